//! Equality of addresses as peers.
//!
//! IP addresses are compared by the parts that reach the peer: an IPv4 address and its IPv4-mapped IPv6 form are equal,
//! the port counts, the flow label does not, and the scope counts where a link-local address needs it (RFC 4007). All
//! other formats are compared byte by byte.

use std::net::{Ipv4Addr, Ipv6Addr};

use ofi_api::{AddrFormat, Address, Errno, Error, Result};

/// The maximum length of an address in a table, in bytes.
const MAX_LEN: usize = u16::MAX as usize;

/// An address in the one form that all its spellings share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key<'a> {
    Ip { ip: Ipv6Addr, port: u16, scope: u32 },
    Opaque(&'a [u8]),
}

impl<'a> Key<'a> {
    /// The key of `bytes`, whether or not they could be a destination. If the format is IP but the bytes are not an IP
    /// address, the key is opaque, and no stored address has it.
    #[inline]
    pub fn of(format: AddrFormat, bytes: &'a [u8]) -> Self {
        match layout(format, bytes) {
            Some(Layout::V4) => {
                let ip = Ipv4Addr::from(field::<4>(bytes, 4)).to_ipv6_mapped();
                Key::Ip { ip, port: port(bytes), scope: 0 }
            }
            Some(Layout::V6) => {
                let ip = Ipv6Addr::from(field::<16>(bytes, 8));
                let scope = if needs_scope(&ip) { u32::from_ne_bytes(field(bytes, 24)) } else { 0 };
                Key::Ip { ip, port: port(bytes), scope }
            }
            None => Key::Opaque(bytes),
        }
    }
}

/// The canonical form of an address as a value: equal values reach the same peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AddressKey(Box<[u8]>);

impl AddressKey {
    /// The key of an address.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` or `FI_EINVAL` for an address that cannot be a destination.
    pub fn of(format: AddrFormat, bytes: &[u8]) -> Result<Self> {
        let address = destination(format, bytes)?;
        Ok(Self(match Key::of(format, address) {
            Key::Opaque(bytes) => bytes.into(),
            Key::Ip { ip, port, scope } => {
                [&ip.octets()[..], &port.to_ne_bytes(), &scope.to_ne_bytes()].concat().into()
            }
        }))
    }
}

/// The part of `bytes` that is the address, if it could be a destination.
///
/// # Errors
/// `FI_EADDRNOTAVAIL` for an IP address that cannot be sent to: another family, the unspecified address,
/// port 0. `FI_EINVAL` for one without bytes or beyond [`MAX_LEN`].
pub(super) fn destination(format: AddrFormat, bytes: &[u8]) -> Result<&[u8]> {
    if is_ip(format) {
        return match (layout(format, bytes), Key::of(format, bytes)) {
            (Some(layout), Key::Ip { ip, port, .. }) if port > 0 && !ip.to_canonical().is_unspecified() => {
                Ok(&bytes[..layout.len()])
            }
            _ => Err(unusable(format, bytes)),
        };
    }
    let address = match format {
        AddrFormat::Str => bytes.split_inclusive(|&byte| byte == 0).next().unwrap_or(bytes),
        _ => bytes,
    };
    if address.is_empty() || address.len() > MAX_LEN {
        let found = format!("{} bytes", address.len());
        let wanted = format!("1 to {MAX_LEN} bytes");
        let advice = "check addr_format and the length of the address";
        return Err(Error::wanted(Errno::EINVAL, "address to insert", wanted, found, advice));
    }
    Ok(address)
}

#[cold]
fn unusable(format: AddrFormat, bytes: &[u8]) -> Error {
    Error::wanted(
        Errno::EADDRNOTAVAIL,
        "address to insert",
        "an IP address that can be sent to, with a port",
        Address::new(format, bytes.get(..Layout::V6.len()).unwrap_or(bytes)).to_string(),
        "check that the peer's address is complete and in the domain's addr_format",
    )
}

fn is_ip(format: AddrFormat) -> bool {
    use AddrFormat::{Sockaddr, SockaddrIn, SockaddrIn6, SockaddrIp};
    matches!(format, Sockaddr | SockaddrIp | SockaddrIn | SockaddrIn6)
}

/// The kind of socket address that bytes are. `Address` parses them too; here it is done in place, because an index of
/// a million peers does it ten times for each.
#[derive(Clone, Copy)]
enum Layout {
    /// `struct sockaddr_in`: family, port, address.
    V4,
    /// `struct sockaddr_in6`: family, port, flow, address, scope.
    V6,
}

impl Layout {
    const fn len(self) -> usize {
        match self {
            Layout::V4 => 16,
            Layout::V6 => 28,
        }
    }
}

/// The layout of `bytes`, if `format` allows it and they are long enough. Bytes after the address belong to the next
/// one in an array, and are not read.
#[inline]
fn layout(format: AddrFormat, bytes: &[u8]) -> Option<Layout> {
    let family = i32::from(u16::from_ne_bytes(*bytes.first_chunk()?));
    let layout = match format {
        AddrFormat::Sockaddr | AddrFormat::SockaddrIp if family == libc::AF_INET => Layout::V4,
        AddrFormat::SockaddrIn if family == libc::AF_INET => Layout::V4,
        AddrFormat::Sockaddr | AddrFormat::SockaddrIp if family == libc::AF_INET6 => Layout::V6,
        AddrFormat::SockaddrIn6 if family == libc::AF_INET6 => Layout::V6,
        _ => return None,
    };
    (bytes.len() >= layout.len()).then_some(layout)
}

#[inline]
fn port(bytes: &[u8]) -> u16 {
    u16::from_be_bytes(field(bytes, 2))
}

/// `N` bytes at `offset` of a socket address whose length [`layout`] has checked.
#[inline]
fn field<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes[offset..].first_chunk().copied().unwrap_or([0; N])
}

/// Whether an address means a different peer on each link: link-local unicast, and multicast of link or interface
/// scope.
fn needs_scope(ip: &Ipv6Addr) -> bool {
    let [first, second, ..] = ip.octets();
    ip.is_unicast_link_local() || (first == 0xff && matches!(second & 0x0f, 1 | 2))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn bytes(text: &str) -> Vec<u8> {
        Address::from(text.parse::<SocketAddr>().unwrap()).bytes().to_vec()
    }

    fn same(a: &str, b: &str) -> bool {
        let (a, b) = (bytes(a), bytes(b));
        Key::of(AddrFormat::Sockaddr, &a) == Key::of(AddrFormat::Sockaddr, &b)
    }

    #[test]
    fn an_ipv4_address_and_its_mapped_form_are_one_peer() {
        assert!(same("10.1.1.1:5000", "[::ffff:10.1.1.1]:5000"));
        assert!(!same("10.1.1.1:5000", "[::10.1.1.1]:5000"));
        assert!(!same("10.1.1.1:5000", "10.1.1.1:5001"));
    }

    #[test]
    fn scope_counts_only_on_a_link() {
        assert!(!same("[fe80::1%1]:5", "[fe80::1%2]:5"));
        assert!(!same("[ff02::1%1]:5", "[ff02::1%2]:5"));
        assert!(same("[2001:db8::1%1]:5", "[2001:db8::1%2]:5"));
        assert!(same("[ff0e::1%1]:5", "[ff0e::1%2]:5"));
    }

    #[test]
    fn the_flow_label_and_what_follows_the_address_do_not_count() {
        let plain = bytes("[2001:db8::1]:5");
        let mut other = plain.clone();
        other[4..8].copy_from_slice(&[1, 2, 3, 4]);
        other.extend([9; 20]);
        assert_eq!(Key::of(AddrFormat::SockaddrIn6, &plain), Key::of(AddrFormat::SockaddrIn6, &other));
        assert_eq!(destination(AddrFormat::SockaddrIn6, &other).unwrap().len(), 28);
    }

    #[test]
    fn what_cannot_be_sent_to_is_not_available() {
        let of = |format, bytes: &[u8]| destination(format, bytes).unwrap_err().errno();
        for text in ["0.0.0.0:5", "[::]:5", "[::ffff:0.0.0.0]:5", "10.0.0.1:0"] {
            assert_eq!(of(AddrFormat::Sockaddr, &bytes(text)), Errno::EADDRNOTAVAIL, "{text}");
        }
        assert_eq!(of(AddrFormat::SockaddrIn, &[0; 16]), Errno::EADDRNOTAVAIL);
        assert_eq!(of(AddrFormat::SockaddrIn, &bytes("[2001:db8::1]:5")), Errno::EADDRNOTAVAIL);
        assert_eq!(of(AddrFormat::SockaddrIn, &bytes("10.0.0.1:5")[..15]), Errno::EADDRNOTAVAIL);
        assert_eq!(of(AddrFormat::Efa, &[]), Errno::EINVAL);
        assert_eq!(of(AddrFormat::Efa, &vec![1; MAX_LEN + 1]), Errno::EINVAL);
    }

    #[test]
    fn text_ends_with_its_nul() {
        assert_eq!(destination(AddrFormat::Str, b"fi_shm://1\0rest").unwrap(), b"fi_shm://1\0");
        assert_eq!(destination(AddrFormat::Str, b"fi_shm://1").unwrap(), b"fi_shm://1");
    }
}
