//! A transport address: a format, and the bytes that C would see.
//!
//! Addresses of up to [`INLINE`] bytes (every fixed format but `sockaddr_ib`) need no allocation, because
//! address vectors hold and compare many. Layouts are Linux's.

use crate::{AddrFormat, Errno, Error, Result};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A transport address (fi_getinfo(3), "Addressing formats").
///
/// Two addresses are equal if both their formats and their bytes are.
#[derive(Clone)]
pub struct Address {
    format: AddrFormat,
    bytes: Bytes,
}

#[derive(Clone)]
enum Bytes {
    Inline { len: u8, bytes: [u8; INLINE] },
    Heap(Box<[u8]>),
}

/// Room for `sockaddr_in6` (28) and for an EFA address (32).
const INLINE: usize = 32;

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const SOCKADDR_IN_LEN: usize = 16;
const SOCKADDR_IN6_LEN: usize = 28;

impl Address {
    /// An address with these bytes, which are not validated.
    pub fn new(format: AddrFormat, bytes: &[u8]) -> Address {
        let bytes = if bytes.len() <= INLINE {
            let mut inline = [0; INLINE];
            inline[..bytes.len()].copy_from_slice(bytes);
            Bytes::Inline { len: bytes.len() as u8, bytes: inline }
        } else {
            Bytes::Heap(bytes.into())
        };
        Address { format, bytes }
    }

    /// An `FI_ADDR_STR` address: the text and a final NUL, as C expects. Text after a NUL is dropped.
    pub fn from_text(text: &str) -> Address {
        let mut bytes = until_nul(text.as_bytes()).to_vec();
        bytes.push(0);
        Address::new(AddrFormat::Str, &bytes)
    }

    /// How the bytes are laid out.
    pub fn format(&self) -> AddrFormat {
        self.format
    }

    /// The bytes, as C sees them.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Bytes::Heap(bytes) => bytes,
        }
    }

    /// The text of an `FI_ADDR_STR` address without its NUL; `None` for other formats and for text that
    /// is not UTF-8.
    pub fn text(&self) -> Option<&str> {
        match self.format {
            AddrFormat::Str => std::str::from_utf8(until_nul(self.bytes())).ok(),
            _ => None,
        }
    }

    /// The IP address and port, if this is a socket address of the IP family. Flow and scope are kept.
    pub fn to_socket_addr(&self) -> Option<SocketAddr> {
        use AddrFormat::{Sockaddr, SockaddrIn, SockaddrIn6, SockaddrIp};
        let family = u16::from_ne_bytes(self.field(0)?);
        match (self.format, family) {
            (Sockaddr | SockaddrIp | SockaddrIn, AF_INET) => {
                self.bytes().get(..SOCKADDR_IN_LEN)?;
                let ip = Ipv4Addr::from(self.field::<4>(4)?);
                Some(SocketAddrV4::new(ip, self.port()?).into())
            }
            (Sockaddr | SockaddrIp | SockaddrIn6, AF_INET6) => {
                let flow = u32::from_ne_bytes(self.field(4)?);
                let ip = Ipv6Addr::from(self.field::<16>(8)?);
                let scope = u32::from_ne_bytes(self.field(24)?);
                Some(SocketAddrV6::new(ip, self.port()?, flow, scope).into())
            }
            _ => None,
        }
    }

    /// The same address under another format, for formats that share a layout: `FI_SOCKADDR`,
    /// `FI_SOCKADDR_IP` and the format of the socket address itself. `None` if the layouts differ.
    pub fn relabelled(&self, format: AddrFormat) -> Option<Address> {
        use AddrFormat::{Sockaddr, SockaddrIp};
        let same = match (self.to_socket_addr(), format) {
            (Some(_), Sockaddr | SockaddrIp) => true,
            (Some(ip), _) => Address::from(ip).format == format,
            (None, _) => self.format == format,
        };
        same.then(|| Address { format, bytes: self.bytes.clone() })
    }

    fn port(&self) -> Option<u16> {
        self.field(2).map(u16::from_be_bytes)
    }

    pub(crate) fn field<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.bytes().get(offset..offset + N)?.try_into().ok()
    }
}

impl From<SocketAddr> for Address {
    /// `FI_SOCKADDR_IN` or `FI_SOCKADDR_IN6`.
    fn from(address: SocketAddr) -> Address {
        match address {
            SocketAddr::V4(v4) => v4.into(),
            SocketAddr::V6(v6) => v6.into(),
        }
    }
}

impl From<SocketAddrV4> for Address {
    fn from(address: SocketAddrV4) -> Address {
        let mut bytes = [0; SOCKADDR_IN_LEN];
        bytes[0..2].copy_from_slice(&AF_INET.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        bytes[4..8].copy_from_slice(&address.ip().octets());
        Address::new(AddrFormat::SockaddrIn, &bytes)
    }
}

impl From<SocketAddrV6> for Address {
    fn from(address: SocketAddrV6) -> Address {
        let mut bytes = [0; SOCKADDR_IN6_LEN];
        bytes[0..2].copy_from_slice(&AF_INET6.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        bytes[4..8].copy_from_slice(&address.flowinfo().to_ne_bytes());
        bytes[8..24].copy_from_slice(&address.ip().octets());
        bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
        Address::new(AddrFormat::SockaddrIn6, &bytes)
    }
}

impl TryFrom<&Address> for SocketAddr {
    type Error = Error;

    fn try_from(address: &Address) -> Result<SocketAddr> {
        address.to_socket_addr().ok_or_else(|| {
            let advice = "ask for FI_SOCKADDR_IN or FI_SOCKADDR_IN6 in the hints";
            Error::wanted(Errno::EINVAL, "address", "an IP socket address", address.to_string(), advice)
        })
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|&byte| byte == 0).next().unwrap_or(bytes)
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({}, {self})", self.format)
    }
}

impl PartialEq for Address {
    fn eq(&self, other: &Address) -> bool {
        self.format == other.format && self.bytes() == other.bytes()
    }
}

impl Eq for Address {}

impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.format.hash(state);
        self.bytes().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv4_address_has_the_layout_of_sockaddr_in() {
        let address = Address::from("10.31.6.12:7471".parse::<SocketAddr>().unwrap());
        assert_eq!(address.format(), AddrFormat::SockaddrIn);
        assert_eq!(address.bytes()[2..], [0x1d, 0x2f, 10, 31, 6, 12, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(address.to_string(), "fi_sockaddr_in://10.31.6.12:7471");
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn an_ipv6_address_keeps_flow_and_scope() {
        let socket = SocketAddrV6::new("fe80::6:12".parse().unwrap(), 7471, 5, 3);
        let address = Address::from(socket);
        assert_eq!(address.bytes().len(), 28);
        assert_eq!(address.to_socket_addr(), Some(socket.into()));
        assert_eq!(address.to_string(), "fi_sockaddr_in6://[fe80::6:12%3]:7471?flow=5");
        assert_eq!(address.to_string().parse::<Address>().unwrap(), address);
    }

    #[test]
    fn text_has_a_final_nul_for_c_and_none_for_rust() {
        let address: Address = "fi_shm://1000:42".parse().unwrap();
        assert_eq!(address.bytes(), b"fi_shm://1000:42\0");
        assert_eq!(address.text(), Some("fi_shm://1000:42"));
        assert_eq!(Address::from_text("a\0b").text(), Some("a"));
    }

    #[test]
    fn a_long_address_lives_on_the_heap_and_reads_the_same() {
        let bytes = [7; 100];
        assert_eq!(Address::new(AddrFormat::Ucx, &bytes).bytes(), bytes);
    }

    #[test]
    fn a_short_or_foreign_socket_address_is_none() {
        assert_eq!(Address::new(AddrFormat::SockaddrIn, &[2, 0, 0]).to_socket_addr(), None);
        assert_eq!(Address::new(AddrFormat::SockaddrIn, &[]).to_socket_addr(), None);
        assert_eq!(Address::new(AddrFormat::SockaddrIn6, &AF_INET.to_ne_bytes()).to_socket_addr(), None);
    }

    #[test]
    fn formats_that_share_a_layout_may_be_exchanged() {
        let v4 = Address::from("10.0.0.1:1".parse::<SocketAddr>().unwrap());
        let any = v4.relabelled(AddrFormat::Sockaddr).unwrap();
        assert_eq!(any.to_socket_addr(), v4.to_socket_addr());
        assert_eq!(any.relabelled(AddrFormat::SockaddrIn), Some(v4.clone()));
        assert_eq!(v4.relabelled(AddrFormat::SockaddrIn6), None);
    }
}
