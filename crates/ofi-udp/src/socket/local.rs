//! The local addresses of datagrams at a socket that is bound to all addresses of the host (`IP_PKTINFO`,
//! `IPV6_RECVPKTINFO`). A peer identifies an endpoint by the address that it sent to, so replies must have that source
//! address.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use crate::class;
use crate::sockaddr::{empty_storage, from_storage, to_storage};

/// Size in bytes of the control messages of one datagram: UDP_GRO or UDP_SEGMENT, a local address of either family, and
/// the traffic class.
pub const CONTROL: usize = 96;
/// Bytes of a header (cmsg(3)).
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Maximum number of peers in the table. When it is full, it is cleared: replies to an unknown peer use the source
/// address that the routing table selects.
const MAX_KNOWN_PEERS: usize = 1 << 16;

/// The control messages of one message.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub struct Control(pub [u8; CONTROL]);

/// The content of control messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// The length of each datagram of the message.
    pub segment: Option<usize>,
    /// The local address that the datagrams were sent to.
    pub local: Option<IpAddr>,
    /// Whether they were marked for congestion on the way.
    pub marked: bool,
}

impl Control {
    /// Nothing.
    pub const EMPTY: Self = Self([0; CONTROL]);

    /// Reads the control messages in the first `len` bytes.
    pub fn read(&self, len: usize) -> Told {
        let mut told = Told::default();
        let mut bytes = &self.0[..len.min(CONTROL)];
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).map(i32::from_ne_bytes)
        };
        while let Some((len, rest)) = bytes.split_first_chunk::<8>() {
            let len = usize::from_ne_bytes(*len);
            let (Some(level), Some(kind)) = (word(rest, 0), word(rest, 4)) else { break };
            let Some(body) = bytes.get(HEADER..len) else { break };
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    told.segment = word(body, 0).and_then(|len| usize::try_from(len).ok());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    told.marked = body.first().is_some_and(|field| class::is_marked((*field).into()));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    told.marked = word(body, 0).is_some_and(class::is_marked);
                }
                // struct in_pktinfo: interface, local address, destination.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    told.local = body.get(4..8).and_then(|ip| <[u8; 4]>::try_from(ip).ok()).map(IpAddr::from);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    told.local = body.first_chunk::<16>().map(|ip| IpAddr::from(*ip));
                }
                _ => {}
            }
            bytes = bytes.get(len.next_multiple_of(8)..).unwrap_or_default();
        }
        told
    }

    /// Appends a control message at `at`. Returns the offset of the next one.
    fn put(&mut self, at: usize, level: i32, kind: i32, body: &[u8]) -> usize {
        let (len, end) = (HEADER + body.len(), at + HEADER + body.len());
        self.0[at..at + 8].copy_from_slice(&len.to_ne_bytes());
        self.0[at + 8..at + 12].copy_from_slice(&level.to_ne_bytes());
        self.0[at + 12..at + 16].copy_from_slice(&kind.to_ne_bytes());
        self.0[at + HEADER..end].copy_from_slice(body);
        end.next_multiple_of(8)
    }

    /// Appends `UDP_SEGMENT` with segments of `len` bytes.
    pub fn put_segment(&mut self, at: usize, len: u16) -> usize {
        self.put(at, libc::SOL_UDP, libc::UDP_SEGMENT, &len.to_ne_bytes())
    }

    /// Appends the source address of a message.
    pub fn put_local(&mut self, at: usize, local: IpAddr) -> usize {
        match local {
            IpAddr::V4(ip) => {
                let mut body = [0; 12];
                body[4..8].copy_from_slice(&ip.octets());
                self.put(at, libc::IPPROTO_IP, libc::IP_PKTINFO, &body)
            }
            IpAddr::V6(ip) => {
                let mut body = [0; 20];
                body[..16].copy_from_slice(&ip.octets());
                self.put(at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &body)
            }
        }
    }
}

/// Makes the kernel report the local address of each datagram if `address` is a wildcard, and excludes datagrams to
/// groups that only other sockets have joined.
pub fn prepare(socket: &UdpSocket, address: SocketAddr) {
    /// `IPV6_MULTICAST_ALL` (linux/in6.h).
    const IPV6_MULTICAST_ALL: i32 = 29;
    if !address.ip().is_unspecified() {
        return;
    }
    let options = match address {
        SocketAddr::V4(_) => {
            [(libc::IPPROTO_IP, libc::IP_PKTINFO, 1), (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, 0)]
        }
        SocketAddr::V6(_) => {
            [(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1), (libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0)]
        }
    };
    for (level, name, value) in options {
        crate::sys::set_option(socket, level, name, value);
    }
}

/// The local address that each peer has sent to.
pub struct Locals {
    known: HashMap<SocketAddr, IpAddr>,
    last: (SocketAddr, IpAddr),
}

impl Default for Locals {
    fn default() -> Self {
        let nobody = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        Self { known: HashMap::new(), last: (SocketAddr::new(nobody, 0), nobody) }
    }
}

impl Locals {
    /// Records that `from` has sent to `local`.
    #[inline]
    pub fn note(&mut self, from: SocketAddr, local: IpAddr) {
        if self.last != (from, local) {
            self.note_other(from, local);
        }
    }

    fn note_other(&mut self, from: SocketAddr, local: IpAddr) {
        if self.known.len() >= MAX_KNOWN_PEERS && !self.known.contains_key(&from) {
            self.known.clear();
        }
        self.known.insert(from, local);
        self.last = (from, local);
    }

    /// The source address for datagrams to `to`; `None` leaves it to the routes.
    #[inline]
    pub fn of(&self, to: SocketAddr) -> Option<IpAddr> {
        if self.last.0 == to { Some(self.last.1) } else { self.known.get(&to).copied() }
    }

    /// Clears the table, because a local address may be gone. Returns whether it had entries.
    #[cold]
    pub fn forget(&mut self) -> bool {
        let had = !self.known.is_empty();
        *self = Self::default();
        had
    }
}

/// As recvfrom(2), with the local address that the datagram arrived at, if the kernel reports it.
pub fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Result<(usize, SocketAddr, Option<IpAddr>)> {
    let (mut name, mut control) = (empty_storage(), Control::EMPTY);
    let mut vector = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut header = super::empty_header().msg_hdr;
    header.msg_name = (&raw mut name).cast();
    header.msg_namelen = size_of_val(&name) as libc::socklen_t;
    (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
    (header.msg_control, header.msg_controllen) = (control.0.as_mut_ptr().cast(), CONTROL);
    // SAFETY: the header leads to memory of this call and of `buffer`, of the lengths that it says.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut header, 0) };
    let len = usize::try_from(got).map_err(|_| Error::last_os_error())?;
    let from = from_storage(&name).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((len, from, control.read(header.msg_controllen).local))
}

/// As sendto(2), from the address `local` of this host, if one is given.
///
/// # Safety
/// `from` may be read for `len` bytes; others may change them meanwhile.
pub unsafe fn send_raw(
    socket: &UdpSocket,
    (from, len): (*const u8, usize),
    to: SocketAddr,
    local: Option<IpAddr>,
) -> Result<usize> {
    let (mut name, mut control) = (empty_storage(), Control::EMPTY);
    let mut vector = libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len };
    let mut header = super::empty_header().msg_hdr;
    header.msg_namelen = to_storage(to, &mut name);
    header.msg_name = (&raw mut name).cast();
    (header.msg_iov, header.msg_iovlen) = (&mut vector, 1);
    if let Some(local) = local {
        header.msg_controllen = control.put_local(0, local);
        header.msg_control = control.0.as_mut_ptr().cast();
    }
    // SAFETY: the header leads to memory of this call and to the caller's, of the lengths that it says; none of it is
    // written.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &header, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| Error::last_os_error())
}

/// As [`send_raw`], for borrowed bytes.
pub fn send(socket: &UdpSocket, bytes: &[u8], to: SocketAddr, local: Option<IpAddr>) -> Result<usize> {
    // SAFETY: a slice may be read.
    unsafe { send_raw(socket, (bytes.as_ptr(), bytes.len()), to, local) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_cut_message_says_nothing() {
        for ip in ["10.1.2.3", "2001:db8::7"] {
            let local: IpAddr = ip.parse().unwrap();
            let mut control = Control::EMPTY;
            let at = control.put_segment(0, 1_400);
            let end = control.put_local(at, local);
            assert!(end <= CONTROL);
            assert_eq!(control.read(end).local, Some(local));
            assert!((0..end - 8).all(|len| control.read(len).local.is_none()), "{ip}");
        }
        let mut wild = Control([0xff; CONTROL]);
        assert_eq!(wild.read(CONTROL), Told::default());
        wild.0[..8].copy_from_slice(&0usize.to_ne_bytes());
        assert_eq!(wild.read(usize::MAX), Told::default());
    }

    #[test]
    fn an_answer_leaves_from_the_address_that_was_asked() {
        for (any, asked) in [("0.0.0.0", "127.0.0.5"), ("::", "::1")] {
            let socket = crate::ports::bind(SocketAddr::new(any.parse().unwrap(), 0)).unwrap();
            let port = socket.local_addr().unwrap().port();
            prepare(&socket, SocketAddr::new(any.parse().unwrap(), port));
            let asked = SocketAddr::new(asked.parse().unwrap(), port);
            let asker = UdpSocket::bind(SocketAddr::new(ofi_core::ip::any(asked.is_ipv6()), 0)).unwrap();
            asker.connect(asked).unwrap(); // receives from nobody else
            asker.send(b"question").unwrap();
            socket.set_nonblocking(false).unwrap();
            let mut buffer = [0; 16];
            let (len, from, local) = receive(&socket, &mut buffer).unwrap();
            assert_eq!(
                (&buffer[..len], from.port(), local),
                (&b"question"[..], asker.local_addr().unwrap().port(), Some(asked.ip()))
            );
            send(&socket, b"answer", from, local).unwrap();
            assert_eq!(asker.recv(&mut buffer).unwrap(), 6);
        }
    }

    #[test]
    fn the_last_address_that_a_peer_sent_to_counts() {
        let [one, other] = [1, 2].map(|port| SocketAddr::from(([10, 0, 0, 9], port)));
        let [first, second] = [1u8, 2].map(|last| IpAddr::from([10, 0, 0, last]));
        let mut locals = Locals::default();
        assert_eq!(locals.of(one), None);
        locals.note(one, first);
        locals.note(other, second);
        assert_eq!([locals.of(one), locals.of(other)], [Some(first), Some(second)]);
        locals.note(one, second);
        assert_eq!(locals.of(one), Some(second));
        assert!(locals.forget() && !locals.forget());
        assert_eq!(locals.of(one), None);
    }
}
