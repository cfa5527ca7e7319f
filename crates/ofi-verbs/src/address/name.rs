//! Names of datagram endpoints: addresses in the format of C libfabric's verbs provider, and senders in route headers.

use std::net::{Ipv4Addr, Ipv6Addr};

use ibv::GRH;
use ofi_api::{AddrFormat, Address, Errno, Error, Result};

/// Length of an address in bytes: `struct ofi_ib_ud_ep_name` of C libfabric.
const ADDRESS: usize = 32;

/// The location of an endpoint: its port's GID, its queue pair, and its port's LID if that is needed (InfiniBand).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub gid: [u8; 16],
    pub qp: u32,
    pub lid: u16,
}

impl Name {
    /// The name of all senders that are not remembered.
    pub const NOBODY: Self = Self { gid: [0; 16], qp: 0, lid: 0 };

    /// Encodes C's format: GID, queue pair, LID, partition key, service, service level, in this host's byte order.
    pub fn encode(&self) -> Address {
        self.with_service(0)
    }

    /// The same, for an endpoint that is registered at the name server under this service.
    pub fn with_service(&self, service: u16) -> Address {
        let mut bytes = [0; ADDRESS];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.qp.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_ne_bytes());
        bytes[22..24].copy_from_slice(&u16::MAX.to_ne_bytes()); // the default partition
        bytes[24..26].copy_from_slice(&service.to_ne_bytes());
        Address::new(AddrFormat::IbUd, &bytes)
    }

    /// Parses the parts of an address that identify the endpoint.
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid address.
    pub fn parse(address: &Address) -> Result<Self> {
        let bytes: Option<&[u8; ADDRESS]> = address.bytes().try_into().ok();
        let Some(bytes) = bytes.filter(|_| address.format() == AddrFormat::IbUd) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "an address of a datagram endpoint of provider verbs",
                "32 bytes of FI_ADDR_IB_UD",
                format!("{} bytes of {}", address.bytes().len(), address.format()),
                "exchange the addresses that fi_getname returns",
            ));
        };
        let gid = std::array::from_fn(|index| bytes[index]);
        let qp = u32::from_ne_bytes(std::array::from_fn(|index| bytes[16 + index]));
        // C libfabric puts the driver's LID there, which means nothing on Ethernet. A GID that is an IPv4 address is
        // Ethernet's; of others this cannot tell, so such a name of C's with a LID matches no sender.
        let is_ethernet = Ipv6Addr::from(gid).to_ipv4_mapped().is_some();
        let lid = if is_ethernet { 0 } else { u16::from_ne_bytes([bytes[20], bytes[21]]) };
        Ok(Self { gid, qp, lid })
    }
}

/// The service in an address; 0 if it has none.
pub fn service(address: &Address) -> u16 {
    match address.bytes() {
        bytes if bytes.len() == ADDRESS => u16::from_ne_bytes([bytes[24], bytes[25]]),
        _ => 0,
    }
}

/// The sender's GID in the route header of a datagram to the port of GID `own`, or to a group. `None` if there is none.
///
/// The header is that of IPv6 or InfiniBand, or of IPv4 (RoCE version 2) in the last 20 bytes of its space. Then the
/// bytes before it are undefined: those of an earlier datagram, which may look like the other header. The destination
/// decides; of a datagram to another GID of the port, the checksum, as in the kernel (`ib_get_rdma_header_version`).
pub fn source(header: &[u8; GRH], own: &[u8; 16]) -> Option<[u8; 16]> {
    let is_whole = header[0] >> 4 == 6;
    let is_short = header[SHORT] >> 4 == 4;
    let is_short = match (is_whole, is_short) {
        (true, true) => {
            let to_own = header[24..] == own[..] || header[24] == 0xFF;
            let [a, b, c, d] = [36, 37, 38, 39].map(|at| header[at]);
            let to = Ipv4Addr::new(a, b, c, d);
            match (to_own, to.is_multicast() || to.to_ipv6_mapped().octets() == *own) {
                (false, true) => true,
                (true, false) => false,
                _ => header[SHORT] == 0x45 && has_checksum(&header[SHORT..]),
            }
        }
        (_, is_short) => is_short,
    };
    match (is_short, is_whole) {
        (true, _) => {
            let ip = Ipv4Addr::new(header[32], header[33], header[34], header[35]);
            Some(ip.to_ipv6_mapped().octets())
        }
        (false, true) => Some(std::array::from_fn(|index| header[8 + index])),
        (false, false) => None,
    }
}

/// Where a header of IPv4 begins.
const SHORT: usize = 20;

/// Whether the checksum of an IPv4 header is right (RFC 1071).
fn has_checksum(header: &[u8]) -> bool {
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let sum: u32 = words.sum();
    (sum & 0xFFFF) + (sum >> 16) == 0xFFFF
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_c_s_and_what_tells_endpoints_apart_comes_back() {
        let name = Name { gid: std::array::from_fn(|index| index as u8), qp: 0x0001_0203, lid: 0x0405 };
        let address = name.encode();
        let bytes = address.bytes();
        assert_eq!((bytes.len(), &bytes[..16]), (32, &name.gid[..]));
        assert_eq!(bytes[16..24], [&0x0001_0203u32.to_ne_bytes()[..], &[5, 4], &[0xFF; 2]].concat()[..]);
        assert_eq!([service(&address), service(&name.with_service(7471))], [0, 7471]);
        let mut others = bytes.to_vec();
        others[22..].fill(7); // partition, service, level and the bytes after them
        assert_eq!(Name::parse(&Address::new(AddrFormat::IbUd, &others)).unwrap(), name);
        for bad in [Address::new(AddrFormat::IbUd, &others[1..]), Address::new(AddrFormat::Efa, &others)] {
            assert_eq!(Name::parse(&bad).unwrap_err().errno(), Errno::EINVAL);
        }
    }

    #[test]
    fn senders_are_found_in_route_headers_of_either_kind() {
        let mut header = [0; GRH];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[9; 16]);
        assert_eq!(source(&header, &[8; 16]), Some([9; 16]));
        let mut header = [0; GRH];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 77, 0, 1]);
        assert_eq!(source(&header, &[8; 16]), Some(mapped([10, 77, 0, 1])));
        assert_eq!(source(&[0; GRH], &[8; 16]), None);
    }

    fn mapped(ip: [u8; 4]) -> [u8; 16] {
        Ipv4Addr::from(ip).to_ipv6_mapped().octets()
    }

    /// A slot holds what an earlier datagram left there.
    #[test]
    fn an_older_header_in_front_of_one_of_ipv4_names_nobody() {
        let own = mapped([10, 77, 0, 2]);
        let mut header = [0; GRH];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[9; 16]);
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 77, 0, 1]);
        for to in [[10, 77, 0, 2], [239, 1, 2, 3]] {
            header[36..].copy_from_slice(&to);
            assert_eq!(source(&header, &own), Some(mapped([10, 77, 0, 1])), "{to:?}");
        }
        // To another address of the port: the example of a checksum in RFC 1071's way.
        header[20..].copy_from_slice(&[
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xB8, 0x61, 192, 168, 0, 1, 192, 168, 0, 199,
        ]);
        assert_eq!(source(&header, &own), Some(mapped([192, 168, 0, 1])));
        header[31] ^= 1;
        assert_ne!(source(&header, &own), Some(mapped([192, 168, 0, 1])));
        // A sender of IPv6 whose GID has the look of an IPv4 header.
        let own = [0xFD; 16];
        let mut header = [0x60; GRH];
        header[8..24].copy_from_slice(&[0x45; 16]);
        header[24..].copy_from_slice(&own);
        assert_eq!(source(&header, &own), Some([0x45; 16]));
    }
}
