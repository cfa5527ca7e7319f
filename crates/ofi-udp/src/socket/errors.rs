//! ICMP errors that the network reported for datagrams of a socket (IP_RECVERR). They are hints: any host on the path
//! may forge them.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::sockaddr::{empty_storage, from_storage};

/// Maximum number of errors that one call reads from the socket's error queue.
const MAX_ERRORS_PER_CALL: usize = 64;

/// A report that an address is unreachable. Its sender is not recorded: routers and firewalls report too, and a forger
/// may name any sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The address that a datagram was sent to, in canonical form.
    pub to: SocketAddr,
    /// ICMP port unreachable; otherwise host or network unreachable.
    pub is_port: bool,
}

/// Reads the socket's error queue, and reports addresses that ICMP reported as unreachable. It skips errors about the
/// length of datagrams, because probes find the path MTU.
pub fn drain(socket: &UdpSocket, mut refused: impl FnMut(Report)) {
    let mut name = empty_storage();
    let mut control = [0u64; 64];
    let mut byte = [0u8; 1];
    for _ in 0..MAX_ERRORS_PER_CALL {
        let mut vector = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
        let mut header = super::empty_header().msg_hdr;
        header.msg_name = std::ptr::from_mut(&mut name).cast();
        header.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        header.msg_iov = &mut vector;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(&control);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the header leads to memory of this call, of the lengths that it says.
        if unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, flags) } < 0 {
            return;
        }
        let len = header.msg_controllen.min(size_of_val(&control));
        let bytes: Vec<u8> = control.iter().flat_map(|word| word.to_ne_bytes()).take(len).collect();
        if let Some(errno) = unreachable(&bytes)
            && let Some(to) = from_storage(&name)
        {
            let to = crate::address::canonical(to);
            refused(Report { to, is_port: errno == libc::ECONNREFUSED });
        }
    }
}

/// The error number of an ICMP error (sock_extended_err of ip(7)) among these control messages that is not about
/// length.
fn unreachable(mut bytes: &[u8]) -> Option<i32> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(i32::from_ne_bytes)
    };
    while let (Some(len), Some(level), Some(kind)) = (
        bytes.get(..8).and_then(|eight| eight.try_into().ok()).map(usize::from_ne_bytes),
        word(bytes, 8),
        word(bytes, 12),
    ) {
        if len < HEADER || len > bytes.len() {
            return None;
        }
        let is_error = [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)]
            .contains(&(level, kind));
        let body = &bytes[HEADER..len];
        // ee_errno, then ee_origin.
        if is_error
            && let (Some(errno), Some(&origin)) = (word(body, 0), body.get(4))
            && [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6].contains(&origin)
            && errno != libc::EMSGSIZE
        {
            return Some(errno);
        }
        bytes = bytes.get(len.next_multiple_of(8)..).unwrap_or_default();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_closed_port_is_told_and_a_cut_message_is_nothing() {
        let socket = super::super::bind::bind(([127, 0, 0, 1], 0).into(), 65_536, true).unwrap().socket;
        let nobody = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.send_to(b"hello", nobody).unwrap();
        let (mut told, end) = (vec![], Instant::now() + Duration::from_secs(5));
        while told.is_empty() && Instant::now() < end {
            drain(&socket, |to| told.push(to));
        }
        assert_eq!(told, [Report { to: nobody, is_port: true }]);
        let mut error = [0u8; 24];
        error[..8].copy_from_slice(&24usize.to_ne_bytes());
        error[8..12].copy_from_slice(&libc::IPPROTO_IP.to_ne_bytes());
        error[12..16].copy_from_slice(&libc::IP_RECVERR.to_ne_bytes());
        error[16..20].copy_from_slice(&libc::ECONNREFUSED.to_ne_bytes());
        error[20] = libc::SO_EE_ORIGIN_ICMP;
        assert_eq!(unreachable(&error), Some(libc::ECONNREFUSED));
        assert!((0..24).all(|cut| unreachable(&error[..cut]).is_none()));
        error[..8].copy_from_slice(&usize::MAX.to_ne_bytes());
        assert_eq!(unreachable(&error), None);
    }
}
