//! Binds an endpoint's socket, and records what the kernel grants.

use std::net::{SocketAddr, UdpSocket};

use ofi_api::{Errno, Error, Result};
use ofi_core::sys::os_error;

use super::local;
use crate::sys::{option, set_option};
use crate::{ports, settings};

/// A socket, and what the kernel granted it.
pub struct Bound {
    /// Bound and non-blocking; it sends no fragments and reports ICMP errors.
    pub socket: UdpSocket,
    /// The granted receive buffer in bytes, overhead included.
    pub granted: usize,
    /// Whether many datagrams may be sent as one message (UDP_SEGMENT).
    pub joins: bool,
}

/// Binds a socket with buffers of about `buffer` bytes. `segments`: use segmentation offload if the kernel supports it.
///
/// # Errors
/// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, and other errors of bind(2).
pub fn bind(address: SocketAddr, buffer: usize, segments: bool) -> Result<Bound> {
    let socket = ports::bind(address).map_err(|error| {
        let errno = Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO));
        let wanted = "an address and port of this host that are free";
        let advice = "leave the port 0, or choose another address with FI_SOURCE or fi_setname";
        Error::wanted(errno, "the address of an endpoint", wanted, format!("{address}: {error}"), advice)
    })?;
    socket.set_nonblocking(true).map_err(|_| os_error("fcntl"))?;
    local::prepare(&socket, address);
    let asked = i32::try_from(buffer).unwrap_or(i32::MAX);
    // Privileged processes get the requested size, others at most net.core.rmem_max and wmem_max.
    for (forced, plain) in [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        if !set_option(&socket, libc::SOL_SOCKET, forced, asked) {
            set_option(&socket, libc::SOL_SOCKET, plain, asked);
        }
    }
    busy_poll(&socket, settings::BUSY_POLL_US.get());
    // Packets that are too long for the path must be dropped, so that probes find the path MTU.
    if address.is_ipv4() {
        set_option(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        set_option(&socket, libc::IPPROTO_IP, libc::IP_RECVERR, 1);
    } else {
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        set_option(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
    }
    if segments {
        set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    }
    let joins = segments && option(&socket, libc::SOL_UDP, libc::UDP_SEGMENT).is_some();
    let granted = option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(212_992);
    Ok(Bound { socket, granted: usize::try_from(granted).unwrap_or(0).max(65_536), joins })
}

/// Makes receives of `socket` busy-poll the network card for `microseconds`, which avoids interrupts. 0 leaves the
/// host's setting.
fn busy_poll(socket: &UdpSocket, microseconds: usize) {
    let wanted = i32::try_from(microseconds).unwrap_or(i32::MAX);
    if wanted > 0 && !set_option(socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL, wanted) {
        let error = std::io::Error::last_os_error();
        tracing::warn!(
            target: "ofi::udp::ep_ctrl",
            "FI_UDP_BUSY_POLL_US={wanted} has no effect ({error}): it takes CAP_NET_ADMIN, or sysctl net.core.busy_read"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_polling_is_what_the_host_says_or_what_is_asked() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let polls = || option(&socket, libc::SOL_SOCKET, libc::SO_BUSY_POLL);
        let host = polls();
        busy_poll(&socket, 0);
        assert_eq!(polls(), host);
        busy_poll(&socket, 50);
        // Without privileges the host's setting remains, which is no error.
        assert!(polls() == Some(50) || polls() == host, "{:?}", polls());
    }
}
