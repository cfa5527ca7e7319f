//! Peers whose ports nobody has: real sockets, real reports of the system (ICMP).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ofi_testkit::prelude::*;
use ofi_tests::udp::open;

const LOOPBACKS: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
const DRIVERS: [&str; 2] = ["calls", "ring"];

/// A test of each driver in a process of its own, as the driver is a setting of the process.
macro_rules! with_each_driver {
    ($($name:ident: $case:path;)+) => {
        $(#[test]
        fn $name() {
            if std::env::var_os("FI_UDP_DRIVER").is_some() {
                return $case();
            }
            for driver in DRIVERS {
                let program = std::env::current_exe().expect("this program");
                let mut command = std::process::Command::new(program);
                let command = command.args([stringify!($name), "--exact", "--nocapture"]);
                // Through sockets alone: those of one host would be told by shared memory.
                let command = command.env("FI_UDP_DRIVER", driver).env("FI_UDP_SHARED_MEMORY", "0");
                let output = command.output().expect("this program again");
                let said = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{driver}: {said}");
            }
        })+
    };
}

with_each_driver! {
    a_closed_port_ends_the_first_operation: refused;
    a_peer_that_starts_in_time_is_reached: starts;
}

/// Loopback addresses of this host, and for each the addresses to bind: itself, and all of the host.
fn places() -> Vec<(IpAddr, IpAddr)> {
    let there = LOOPBACKS.into_iter().filter(|&ip| UdpSocket::bind((ip, 0)).is_ok());
    let any = |ip: IpAddr| -> IpAddr {
        if ip.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() }
    };
    there.flat_map(|ip| [(ip, ip), (ip, any(ip))]).collect()
}

fn refused() {
    let memory = Memory::patterned(100, 1);
    for (ip, bound) in places() {
        let side = open(SocketAddr::new(bound, 0));
        let nobody =
            SocketAddr::from(UdpSocket::bind((ip, 0)).expect("a port").local_addr().expect("its address"));
        let to = side.insert_address(&nobody.into());
        // The second time it is asked anew.
        for context in 1..=2 {
            let begin = Instant::now();
            side.out(to, &memory).context(context).tag(1).send().expect("a send");
            let error = wait::drive(&[&side], "its end", || side.next_of(context)).failed();
            let took = begin.elapsed();
            assert_eq!(error.err, Errno::ECONNREFUSED, "{bound} to {ip} after {took:?}");
            assert!((Duration::from_millis(1900)..Duration::from_secs(5)).contains(&took), "{took:?}");
        }
    }
}

fn starts() {
    let (memory, got) = (Memory::patterned(100, 1), Memory::new(100));
    for (ip, bound) in places() {
        let side = open(SocketAddr::new(bound, 0));
        let address = UdpSocket::bind((ip, 0)).expect("a port").local_addr().expect("its address");
        let to = side.insert_address(&address.into());
        side.out(to, &memory).context(1).tag(1).send().expect("a send");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(1500) {
            side.poll();
            std::thread::yield_now();
        }
        let late = open(address);
        late.receive(&got).context(2).tag(1).post().expect("a receive");
        wait::drive(&[&side, &late], "the message", || late.next_of(2)).done();
        assert_eq!(got.bytes(), memory.bytes(), "{bound} to {ip}");
        wait::drive(&[&side, &late], "its end", || side.next_of(1)).done();
    }
}
