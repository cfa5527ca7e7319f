//! Traffic classes on the wire: the differentiated services field of each datagram (RFC 2474), which the network may
//! honour, and the two ECN bits after it, by which the network reports congestion (RFC 3168).

use std::net::UdpSocket;

use ofi_api::{Errno, Error, Info, Result, TrafficClass};

use crate::sys::set_option;

/// The code point of a class, by the recommendations of RFC 4594 and RFC 8622.
///
/// # Errors
/// `FI_EINVAL` for a code point above 63, or a label that fi_endpoint(3) does not have.
fn code_point(class: TrafficClass) -> Result<u8> {
    Ok(match class {
        TrafficClass::UNSPEC | TrafficClass::BEST_EFFORT => 0, // default forwarding
        TrafficClass::LOW_LATENCY => 46,                       // expedited forwarding
        TrafficClass::DEDICATED_ACCESS => 34,                  // AF41
        TrafficClass::BULK_DATA => 10,                         // AF11
        TrafficClass::SCAVENGER => 1,                          // LE
        TrafficClass::NETWORK_CTRL => 48,                      // CS6
        other => other.dscp().filter(|_| other.is_known()).ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the traffic class of an endpoint",
                "a label of fi_endpoint(3), or fi_tc_dscp_set of a code point of 6 bits",
                other.to_string(),
                "use one of them",
            )
        })?,
    })
}

/// The class of an endpoint: its own, or that of its domain.
pub fn of(info: &Info) -> TrafficClass {
    match info.tx_attr.tclass {
        TrafficClass::UNSPEC | TrafficClass::BEST_EFFORT => info.domain_attr.tclass,
        class => class,
    }
}

/// ECT(0): its sender slows down if the network marks it.
const CAPABLE: i32 = 0b10;
/// CE: the network has marked it.
const MARKED: i32 = 0b11;

/// Whether a datagram with this field was marked on the way because a queue was filling up.
pub fn is_marked(field: i32) -> bool {
    field & 0b11 == MARKED
}

/// Sets the field of everything that `socket` sends. `ecn`: routers may mark its datagrams instead of dropping them,
/// and the kernel reports incoming marks.
///
/// # Errors
/// As [`code_point`]; `FI_EPERM` if this process lacks the privilege.
pub fn mark(socket: &UdpSocket, class: TrafficClass, ecn: bool) -> Result<()> {
    let field = i32::from(code_point(class)?) << 2 | if ecn { CAPABLE } else { 0 };
    if field == 0 {
        return Ok(());
    }
    let six = socket.local_addr().is_ok_and(|address| address.is_ipv6());
    if ecn {
        // Without the kernel's reports only marks are missed; losses are still detected.
        set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
        if six {
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
        }
    }
    let marked = match six {
        // A socket of IPv6 may send over IPv4 too.
        true => {
            set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, field);
            set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, field)
        }
        false => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, field),
    };
    if marked { Ok(()) } else { Err(ofi_core::sys::os_error("setsockopt(IP_TOS)")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// The differentiated services field of the next datagram.
    fn received(socket: &UdpSocket, kind: (i32, i32)) -> Option<i32> {
        let (mut byte, mut control) = ([0_u8; 8], [0_u64; 16]);
        let mut piece = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
        // SAFETY: all zeroes is a valid `msghdr`.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
        (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        // SAFETY: every pointer in the header is valid for the length beside it.
        assert!(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) } >= 0);
        // SAFETY: the kernel filled the header in.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
        // SAFETY: null, or a header in our buffer.
        let header = unsafe { header.as_ref() }?;
        assert_eq!((header.cmsg_level, header.cmsg_type), kind);
        // SAFETY: the data follow the header, in our buffer.
        let data = unsafe { libc::CMSG_DATA(header) };
        // SAFETY: at least one byte; IPv4 has no more.
        Some(unsafe { data.read() }.into())
    }

    #[test]
    fn datagrams_carry_the_class_of_their_socket() {
        let families = [
            ("127.0.0.1:0", (libc::IPPROTO_IP, libc::IP_RECVTOS), (libc::IPPROTO_IP, libc::IP_TOS)),
            ("[::1]:0", (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS), (libc::IPPROTO_IPV6, libc::IPV6_TCLASS)),
        ];
        for (address, (level, option), kind) in families {
            let Ok(to) = UdpSocket::bind(address) else {
                println!("skipped {address}: this host does not have the family");
                continue;
            };
            to.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            assert!(set_option(&to, level, option, 1));
            for (class, field) in [
                (TrafficClass::UNSPEC, 0),
                (TrafficClass::LOW_LATENCY, 46 << 2),
                (TrafficClass::SCAVENGER, 1 << 2),
                (TrafficClass::from_dscp(26), 26 << 2),
            ] {
                let from = UdpSocket::bind(address).unwrap();
                for (ecn, low) in [(false, 0), (true, CAPABLE)] {
                    mark(&from, class, ecn).unwrap();
                    from.send_to(&[1], to.local_addr().unwrap()).unwrap();
                    let found = received(&to, kind);
                    assert_eq!(found, Some(field | low), "{address} {class}");
                    assert!(found.is_some_and(|found| !is_marked(found) && is_marked(found | 0b11)));
                }
            }
        }
    }

    #[test]
    fn what_is_no_class_is_refused() {
        for wrong in [TrafficClass::from_dscp(64), TrafficClass::from_c(0x301), TrafficClass::from_c(7)] {
            assert_eq!(code_point(wrong).unwrap_err().errno(), Errno::EINVAL, "{wrong}");
        }
    }
}
