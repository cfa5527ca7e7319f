//! Sockets of provider `udp`.

use std::io::{self, IoSlice};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::Duration;

use nix::sys::socket::{self, ControlMessage, MsgFlags, SockaddrIn, sockopt};

use super::check::Check;
use super::files::Files;

/// The buffer size that `udp` requests by default (`FI_UDP_SOCKET_BUFFER`), in bytes.
const BUFFER: usize = 8 << 20;

/// The buffer that the kernel grants a socket which requests as much as `udp` does.
pub fn buffers(files: &Files) -> Check {
    const NAME: &str = "socket-buffers";
    const EFFECT: &str =
        "peers of udp may have half of a receiver's socket buffer in flight, so a small buffer makes it slow";
    let granted = match granted() {
        Ok(granted) => granted,
        Err(error) => return Check::unknown(NAME, EFFECT, format!("no UDP socket: {error}")),
    };
    // The kernel includes its own overhead: it doubles the requested size.
    if granted >= 2 * BUFFER {
        return Check::good(NAME, EFFECT, format!("{} KiB of {} KiB granted", granted / 2048, BUFFER >> 10));
    }
    let most = files.number("/proc/sys/net/core/rmem_max");
    let most = most.map_or(String::new(), |most| format!(" (net.core.rmem_max = {most})"));
    let found = format!("{} KiB of {} KiB granted{most}", granted / 2048, BUFFER >> 10);
    let change = format!(
        "sysctl -w net.core.rmem_max={0} net.core.wmem_max={0}, or CAP_NET_ADMIN for the program",
        2 * BUFFER
    );
    Check::lacking(NAME, EFFECT, found, change)
}

fn granted() -> io::Result<usize> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    if socket::setsockopt(&socket, sockopt::RcvBufForce, &BUFFER).is_err() {
        socket::setsockopt(&socket, sockopt::RcvBuf, &BUFFER)?;
    }
    Ok(socket::getsockopt(&socket, sockopt::RcvBuf)?)
}

/// Whether the kernel segments and coalesces batches of datagrams: sends a batch of two over loopback, and receives it
/// in one call.
pub fn segments() -> Check {
    const NAME: &str = "udp-segments";
    const EFFECT: &str = "one call sends or receives a batch of short packets (UDP_SEGMENT, UDP_GRO)";
    const CHANGE: &str = "Linux 5.0 or newer; until then raise the interface's MTU";
    match row() {
        Ok(2) => Check::good(NAME, EFFECT, "a batch of two datagrams was segmented and coalesced"),
        Ok(_) => {
            Check::lacking(NAME, EFFECT, "a batch is segmented, but not coalesced by the receiver", CHANGE)
        }
        Err(error) => Check::lacking(NAME, EFFECT, format!("a batch of two datagrams: {error}"), CHANGE),
    }
}

/// Number of segments of a batch of two in the first receive.
fn row() -> io::Result<usize> {
    const SEGMENT: usize = 512;
    let (from, to) = (UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?, UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?);
    to.set_read_timeout(Some(Duration::from_secs(2)))?;
    socket::setsockopt(&to, sockopt::UdpGroSegment, &true)?;
    let port = to.local_addr()?.port();
    let address = SockaddrIn::new(127, 0, 0, 1, port);
    let payload = [7; 2 * SEGMENT];
    let cut = [ControlMessage::UdpGsoSegments(&(SEGMENT as u16))];
    let none = MsgFlags::empty();
    socket::sendmsg(from.as_raw_fd(), &[IoSlice::new(&payload)], &cut, none, Some(&address))?;
    let mut buffer = [0; 4 * SEGMENT];
    Ok(to.recv(&mut buffer)? / SEGMENT)
}
