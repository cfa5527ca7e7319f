//! A socket in an epoll set slows down the sender of each datagram. If no thread can sleep on an endpoint,
//! its socket is in no set while datagrams arrive: the liveness thread removes it at the first one. This is a
//! test program of its own, because it looks at all descriptors of its process.

use std::fs;

use ofi_testkit::prelude::*;
use ofi_tests::udp::socket;
use ofi_tests::{Naming, opening};

/// Descriptors of this process's sockets that are bound to a port.
fn sockets(port: u16) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/net/udp").expect("a file of Linux");
    let at = format!(":{port:04X}");
    let rows =
        table.lines().filter(|row| row.split_whitespace().nth(1).is_some_and(|own| own.ends_with(&at)));
    let inodes: Vec<&str> = rows.filter_map(|row| row.split_whitespace().nth(9)).collect();
    let descriptors = fs::read_dir("/proc/self/fd").expect("Linux has it").filter_map(Result::ok);
    descriptors
        .filter(|descriptor| {
            let link = fs::read_link(descriptor.path()).unwrap_or_default();
            inodes.iter().any(|inode| link.to_string_lossy() == format!("socket:[{inode}]"))
        })
        .map(|descriptor| descriptor.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Whether an epoll set contains one of these descriptors.
fn are_watched(sockets: &[String]) -> bool {
    let sets = fs::read_dir("/proc/self/fdinfo").expect("Linux has it").filter_map(Result::ok);
    let lines = sets.map(|set| fs::read_to_string(set.path()).unwrap_or_default());
    lines.into_iter().any(|lines| {
        let members = lines.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
        members.into_iter().any(|member| sockets.iter().any(|socket| socket == member))
    })
}

#[test]
fn a_socket_is_watched_where_somebody_may_sleep_and_nowhere_else() {
    for naming in [Naming::Udp, Naming::Nearby] {
        for (wait, watched) in [(WaitObj::None, false), (WaitObj::Fd, true)] {
            let side = opening(naming).wait_obj(wait).open();
            let port = socket(&side.name()).port();
            // The kernel prints its table in parts, and may leave out a row when other sockets close in between.
            let mut sockets = Vec::new();
            wait::until("the socket to be listed in the kernel's table", || {
                sockets = self::sockets(port);
                !sockets.is_empty()
            });
            let stranger = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            stranger.send_to(&[0], socket(&side.name())).expect("a datagram");
            if watched {
                assert!(are_watched(&sockets), "{naming:?}, {wait:?}");
            } else {
                wait::until("the liveness thread to remove the socket", || !are_watched(&sockets));
            }
        }
    }
}
