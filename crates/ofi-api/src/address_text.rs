//! Addresses as text (fi_getinfo(3), `FI_ADDR_STR`), as `fi_av_straddr` prints them. Printed text parses to the same
//! address.
//!
//! The forms are C libfabric's. A nonzero field that has no place in its form follows in a query, as the man page
//! permits: the flow label of an IPv6 address, the service of a datagram endpoint. The scope of an IPv6 address
//! follows the address itself (RFC 4007). Addresses of a format without a text form, or with too few bytes for their
//! format, print as hexadecimal.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use crate::{AddrFormat, Address, Errno, Error, Result};

/// Linux's `AF_IB`.
const AF_IB: u16 = 27;
/// Bytes of `struct sockaddr_ib`.
const SOCKADDR_IB_LEN: usize = 48;
/// Bytes of an `efa` address, and of the address of a `verbs` datagram endpoint.
const DEVICE_LEN: usize = 32;
/// The bits of an InfiniBand service id that hold rdma_cm's port space.
const PORT_SPACE: u64 = 0xfff << 16;

impl fmt::Display for Address {
    /// The form of `fi_av_straddr`, such as `fi_sockaddr_in://10.31.6.12:7471`. [`FromStr`] reads it back.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = self.text() {
            return f.write_str(text);
        }
        match self.form() {
            Some(text) => f.write_str(&text),
            None => {
                write!(f, "{}://", scheme(self.format()))?;
                self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    /// Parses what [`Display`](fmt::Display) prints, and also `ip:port` and `[ip6]:port`. The host of a socket address
    /// must be numeric; a missing port means 0. Unknown query keys are ignored. A scheme that names no format, such as
    /// `fi_shm://`, gives an `FI_ADDR_STR` address.
    ///
    /// # Errors
    /// `FI_EINVAL` for text without a scheme, and for text that does not have the form of its scheme.
    fn from_str(text: &str) -> Result<Address> {
        if let Ok(socket) = text.parse::<SocketAddr>() {
            return Ok(socket.into());
        }
        let wanted = "format://node:service, such as fi_sockaddr_in://10.31.6.12:7471, or 10.31.6.12:7471";
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad(text, wanted))?;
        let name = scheme.to_ascii_lowercase();
        if name == "fi_sockaddr" {
            return socket(rest).or_else(|| ib(rest)).ok_or_else(|| bad(text, wanted));
        }
        let Some(format) = AddrFormat::VALUES.iter().copied().find(|&format| self::scheme(format) == name)
        else {
            return Ok(Address::from_text(text));
        };
        let (read, wanted): (Option<Address>, &str) = match format {
            AddrFormat::SockaddrIn => (in_family(rest, format), "fi_sockaddr_in://10.31.6.12:7471"),
            AddrFormat::SockaddrIn6 => (in_family(rest, format), "fi_sockaddr_in6://[fe80::6:12%2]:7471"),
            AddrFormat::SockaddrIb => (ib(rest), "fi_sockaddr_ib://[GID]:0xPKEY:0xPORT_SPACE:0xSCOPE[:PORT]"),
            AddrFormat::Efa => (efa(rest), "fi_addr_efa://[GID]:QPN:CONNID"),
            AddrFormat::IbUd => (ib_ud(rest), "fi_addr_ib_ud://GID:QPN/LID/PKEY/SL in hexadecimal"),
            // Hexadecimal is printed only for bytes that are not text.
            AddrFormat::Str => (
                words(format, rest).filter(|address| address.text().is_none()),
                "the text itself, or bytes that are not text in hexadecimal",
            ),
            format => {
                (words(format, rest), "the form that fi_av_straddr prints, or the bytes in hexadecimal")
            }
        };
        read.ok_or_else(|| bad(text, wanted))
    }
}

impl Address {
    /// Parses the node of `fi_getinfo` or `fi_av_insertsvc` as an address (`FI_ADDR_STR`). `None` if it is a host name
    /// instead.
    ///
    /// # Errors
    /// `FI_EINVAL` if the text does not have the form of its scheme, or if a service is given too (fi_getinfo(3): "the
    /// service parameter must be NULL").
    pub fn of_node(node: Option<&str>, service: Option<&str>) -> Option<Result<Address>> {
        let node = node.filter(|node| node.contains("://"))?;
        if let Some(service) = service.filter(|service| !service.is_empty()) {
            let advice = "leave the service out, or give a host's name as the node";
            let found = format!("{node} and service {service:?}");
            return Some(Err(Error::wanted(
                Errno::EINVAL,
                "node",
                "an address without a service",
                found,
                advice,
            )));
        }
        Some(node.parse())
    }

    /// The text in the form of its format; `None` if the format has no text form, or the bytes are too few.
    fn form(&self) -> Option<String> {
        match self.format() {
            AddrFormat::Efa => self.efa_form(),
            AddrFormat::IbUd => self.ib_ud_form(),
            AddrFormat::SockaddrIb => self.ib_form(),
            AddrFormat::Sockaddr => self.socket_form().or_else(|| self.ib_form()),
            AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6 | AddrFormat::SockaddrIp => self.socket_form(),
            AddrFormat::Psmx2 => self.numbers::<2>().map(|numbers| joined("fi_addr_psmx2", &numbers)),
            AddrFormat::Psmx3 => self.numbers::<4>().map(|numbers| joined("fi_addr_psmx3", &numbers)),
            AddrFormat::Opx => self.numbers::<1>().map(|[number]| format!("fi_addr_opx://{number:016x}")),
            AddrFormat::Cxi => {
                let number = u32::from_ne_bytes(self.bytes().try_into().ok()?);
                Some(format!("fi_addr_cxi://0x{number:08x}"))
            }
            _ => None,
        }
    }

    fn socket_form(&self) -> Option<String> {
        Some(match self.to_socket_addr()? {
            SocketAddr::V4(v4) => format!("fi_sockaddr_in://{v4}"),
            // Displays the scope if there is one.
            SocketAddr::V6(v6) => {
                format!("fi_sockaddr_in6://{v6}{}", query(&[("flow", v6.flowinfo().into())]))
            }
        })
    }

    /// GID, queue pair number and connection id.
    fn efa_form(&self) -> Option<String> {
        let gid = Ipv6Addr::from(self.field::<16>(0)?);
        let qpn = u16::from_ne_bytes(self.field(16)?);
        let connid = u32::from_ne_bytes(self.field(20)?);
        Some(format!("fi_addr_efa://[{gid}]:{qpn}:{connid}"))
    }

    /// GID, queue pair number, LID, partition key, service level and, in the query, the service.
    fn ib_ud_form(&self) -> Option<String> {
        let gid = Ipv6Addr::from(self.field::<16>(0)?);
        let qpn = u32::from_ne_bytes(self.field(16)?);
        let lid = u16::from_ne_bytes(self.field(20)?);
        let pkey = u16::from_ne_bytes(self.field(22)?);
        let service = u16::from_ne_bytes(self.field(24)?);
        let [level] = self.field(26)?;
        let query = query(&[("service", service.into())]);
        Some(format!("fi_addr_ib_ud://{gid}:{qpn:x}/{lid:x}/{pkey:x}/{level:x}{query}"))
    }

    /// GID, partition key, port space, scope, the port unless it is 0, and the remaining fields in the query.
    fn ib_form(&self) -> Option<String> {
        if self.bytes().len() < SOCKADDR_IB_LEN || u16::from_ne_bytes(self.field(0)?) != AF_IB {
            return None;
        }
        let pkey = u16::from_be_bytes(self.field(2)?);
        let flow = u32::from_be_bytes(self.field(4)?);
        let gid = Ipv6Addr::from(self.field::<16>(8)?);
        let (id, mask) = (u64::from_be_bytes(self.field(24)?), u64::from_be_bytes(self.field(32)?));
        let scope = u64::from_be_bytes(self.field(40)?);
        let (space, port) = ((id & PORT_SPACE) >> 16, id & 0xffff);
        let mut text = format!("fi_sockaddr_ib://[{gid}]:0x{pkey:x}:0x{space:x}:0x{scope:x}");
        if port != 0 {
            let _ = write!(text, ":{port}");
        }
        let (plain, plain_mask) = service_id(space, port);
        let id = if id == plain { 0 } else { id };
        // A mask of zero differs from the usual mask, but a query omits zeros: `unmasked=1` stands for it.
        let (mask, unmasked) = if mask == plain_mask { (0, 0) } else { (mask, u64::from(mask == 0)) };
        text.push_str(&query(&[("flow", flow.into()), ("sid", id), ("mask", mask), ("unmasked", unmasked)]));
        Some(text)
    }

    /// The bytes as `N` numbers in host byte order; `None` unless there are exactly `8 * N` bytes.
    fn numbers<const N: usize>(&self) -> Option<[u64; N]> {
        let numbers: Vec<u64> = (0..N).filter_map(|at| self.field(8 * at).map(u64::from_ne_bytes)).collect();
        numbers.try_into().ok().filter(|_| self.bytes().len() == 8 * N)
    }
}

/// The service id of an rdma_cm port space and port, and the mask that C's provider uses with it.
fn service_id(space: u64, port: u64) -> (u64, u64) {
    let mask = if space != 0 && port != 0 { u64::MAX } else { 0 };
    (space << 16 | port, mask)
}

/// The scheme of a format.
fn scheme(format: AddrFormat) -> String {
    format.c_name().to_lowercase()
}

fn joined(scheme: &str, numbers: &[u64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:x}")).collect();
    format!("{scheme}://{}", numbers.join(":"))
}

/// A query of the pairs whose values are not zero; empty if there are none.
fn query(pairs: &[(&str, u64)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs.iter().filter(|(_, value)| *value != 0) {
        let sign = if text.is_empty() { '?' } else { '&' };
        let _ = write!(text, "{sign}{key}={value}");
    }
    text
}

fn bad(text: &str, wanted: &str) -> Error {
    Error::wanted(Errno::EINVAL, "address", wanted, format!("{text:?}"), "use a numeric node")
}

/// Splits off the query. The returned function looks up a key: 0 if it is missing, `None` if its value is not a number
/// that fits.
fn with_query(text: &str) -> (&str, impl Fn(&str) -> Option<u64>) {
    let (path, query) = text.split_once('?').unwrap_or((text, ""));
    let value = move |key: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(name, _)| *name == key).map_or(Some(0), |(_, value)| value.parse().ok())
    };
    (path, value)
}

fn in_family(rest: &str, format: AddrFormat) -> Option<Address> {
    socket(rest).filter(|address| address.format() == format)
}

/// Reads `ip:port`, `[ip6]:port`, `ip` and `[ip6]`.
fn socket(rest: &str) -> Option<Address> {
    let (path, value) = with_query(rest);
    let path = path.split('/').next().unwrap_or(path);
    let bare = || path.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().ok();
    let scoped = || format!("{path}:0").parse::<SocketAddrV6>().ok().map(SocketAddr::from);
    let mut socket: SocketAddr =
        path.parse().ok().or_else(|| Some(SocketAddr::new(bare()?, 0))).or_else(scoped)?;
    if let SocketAddr::V6(v6) = &mut socket {
        v6.set_flowinfo(value("flow")?.try_into().ok()?);
    }
    Some(socket.into())
}

/// Reads `[GID]:QPN:CONNID`.
fn efa(rest: &str) -> Option<Address> {
    let (gid, rest) = with_query(rest).0.strip_prefix('[')?.split_once("]:")?;
    let (qpn, connid) = rest.split_once(':')?;
    let mut bytes = [0; DEVICE_LEN];
    bytes[..16].copy_from_slice(&gid.parse::<Ipv6Addr>().ok()?.octets());
    bytes[16..18].copy_from_slice(&qpn.parse::<u16>().ok()?.to_ne_bytes());
    bytes[20..24].copy_from_slice(&connid.parse::<u32>().ok()?.to_ne_bytes());
    Some(Address::new(AddrFormat::Efa, &bytes))
}

/// Reads `GID:QPN/LID/PKEY/SL`; all but the GID are hexadecimal.
fn ib_ud(rest: &str) -> Option<Address> {
    let (path, value) = with_query(rest);
    let mut parts = path.split('/');
    let (gid, qpn) = parts.next()?.rsplit_once(':')?;
    let (lid, pkey, level) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() {
        return None;
    }
    let mut bytes = [0; DEVICE_LEN];
    bytes[..16].copy_from_slice(&gid.parse::<Ipv6Addr>().ok()?.octets());
    bytes[16..20].copy_from_slice(&u32::from_str_radix(qpn, 16).ok()?.to_ne_bytes());
    bytes[20..22].copy_from_slice(&u16::from_str_radix(lid, 16).ok()?.to_ne_bytes());
    bytes[22..24].copy_from_slice(&u16::from_str_radix(pkey, 16).ok()?.to_ne_bytes());
    bytes[24..26].copy_from_slice(&u16::try_from(value("service")?).ok()?.to_ne_bytes());
    bytes[26] = u8::from_str_radix(level, 16).ok()?;
    Some(Address::new(AddrFormat::IbUd, &bytes))
}

/// Reads `[GID]:PKEY:PORT_SPACE:SCOPE`, and `:PORT` after it.
fn ib(rest: &str) -> Option<Address> {
    let (path, value) = with_query(rest);
    let (gid, path) = path.strip_prefix('[')?.split_once("]:")?;
    let numbers: Vec<u64> = path.split(':').map(number).collect::<Option<_>>()?;
    let (pkey, space, scope, port) = match numbers[..] {
        [pkey, space, scope] => (pkey, space, scope, 0),
        [pkey, space, scope, port] => (pkey, space, scope, port),
        _ => return None,
    };
    let space = u16::try_from(space).ok()?.into();
    let (plain, plain_mask) = service_id(space, u16::try_from(port).ok()?.into());
    let or = |given: u64, plain: u64| if given == 0 { plain } else { given };
    let mask = if value("unmasked")? == 0 { or(value("mask")?, plain_mask) } else { 0 };
    let mut bytes = [0; SOCKADDR_IB_LEN];
    bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
    bytes[2..4].copy_from_slice(&u16::try_from(pkey).ok()?.to_be_bytes());
    bytes[4..8].copy_from_slice(&u32::try_from(value("flow")?).ok()?.to_be_bytes());
    bytes[8..24].copy_from_slice(&gid.parse::<Ipv6Addr>().ok()?.octets());
    bytes[24..32].copy_from_slice(&or(value("sid")?, plain).to_be_bytes());
    bytes[32..40].copy_from_slice(&mask.to_be_bytes());
    bytes[40..48].copy_from_slice(&scope.to_be_bytes());
    Some(Address::new(AddrFormat::SockaddrIb, &bytes))
}

/// Reads a decimal number, or a hexadecimal one with its prefix.
fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Reads the numbers that C prints for PSM, Omni-Path and Slingshot addresses, or bytes in hexadecimal.
fn words(format: AddrFormat, rest: &str) -> Option<Address> {
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let count = match format {
        AddrFormat::Psmx2 => 2,
        AddrFormat::Psmx3 => 4,
        AddrFormat::Opx if rest.len() == 16 => 1,
        _ => 0,
    };
    if count > 0 && rest.split(':').count() == count {
        let numbers: Vec<u64> = rest.split(':').map(hexadecimal).collect::<Option<_>>()?;
        let bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        return Some(Address::new(format, &bytes));
    }
    if let Some(number) = rest.strip_prefix("0x").filter(|_| format == AddrFormat::Cxi) {
        return Some(Address::new(format, &u32::from_str_radix(number, 16).ok()?.to_ne_bytes()));
    }
    let pairs = rest.len().div_ceil(2);
    let byte = |at| u8::from_str_radix(rest.get(2 * at..2 * at + 2)?, 16).ok();
    let plain = rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    let bytes = (0..pairs).map(byte).collect::<Option<Vec<u8>>>().filter(|_| plain)?;
    Some(Address::new(format, &bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A valid address of a given format, with every field random.
    fn meaningful(format: AddrFormat) -> BoxedStrategy<Address> {
        let bytes = |len: std::ops::RangeInclusive<usize>| prop::collection::vec(any::<u8>(), len);
        let exactly = |len: usize| bytes(len..=len);
        let v4 = any::<([u8; 4], u16)>().prop_map(|(ip, port)| Address::from(SocketAddr::from((ip, port))));
        let v6 = (any::<[u8; 16]>(), any::<u16>(), small(), small())
            .prop_map(|(ip, port, flow, scope)| SocketAddrV6::new(ip.into(), port, flow, scope).into());
        let ib =
            (exactly(SOCKADDR_IB_LEN), any::<u16>(), any::<bool>()).prop_map(|(mut bytes, port, plain)| {
                bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
                if plain {
                    let (id, mask) = service_id(0x106, port.into());
                    bytes[24..32].copy_from_slice(&id.to_be_bytes());
                    bytes[32..40].copy_from_slice(&mask.to_be_bytes());
                }
                Address::new(AddrFormat::SockaddrIb, &bytes)
            });
        let named = move |address: Address| address.relabelled(format).unwrap_or(address);
        let relabel = move |address: Address| Address::new(format, address.bytes());
        match format {
            AddrFormat::Sockaddr => prop_oneof![v4, v6, ib].prop_map(relabel).boxed(),
            AddrFormat::SockaddrIp => prop_oneof![v4, v6].prop_map(named).boxed(),
            AddrFormat::SockaddrIn => v4.boxed(),
            AddrFormat::SockaddrIn6 => v6.boxed(),
            AddrFormat::SockaddrIb => ib.boxed(),
            AddrFormat::Str => {
                "fi_(shm|ns|unknown)://[a-z0-9:/%-]{0,90}".prop_map(|text| Address::from_text(&text)).boxed()
            }
            // Bytes without a meaning are zero.
            AddrFormat::Efa => exactly(DEVICE_LEN)
                .prop_map(|mut bytes| {
                    bytes[18..20].fill(0);
                    bytes[24..].fill(0);
                    Address::new(AddrFormat::Efa, &bytes)
                })
                .boxed(),
            AddrFormat::IbUd => exactly(DEVICE_LEN)
                .prop_map(|mut bytes| {
                    bytes[27..].fill(0);
                    Address::new(AddrFormat::IbUd, &bytes)
                })
                .boxed(),
            _ => bytes(0..=70).prop_map(move |bytes| Address::new(format, &bytes)).boxed(),
        }
    }

    fn small() -> impl Strategy<Value = u32> {
        prop_oneof![Just(0), any::<u32>()]
    }

    /// Iterates over all formats, so that a new one is tested too.
    fn every_format() -> impl Strategy<Value = Address> {
        prop::sample::select(AddrFormat::VALUES.to_vec()).prop_flat_map(meaningful)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn what_is_printed_is_read_back(address in every_format()) {
            let text = address.to_string();
            let read: Address = text.parse().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
            prop_assert_eq!(read.to_string(), text.clone());
            // An address of a format that covers several families is read back with the format of its family.
            let read = if read == address { read } else { Address::new(address.format(), read.bytes()) };
            prop_assert_eq!(read, address, "{}", text);
        }

        #[cfg(feature = "serde")]
        #[test]
        fn serde_brings_back_what_text_brings_back(address in every_format()) {
            let text = serde_json::to_string(&address).unwrap();
            prop_assert_eq!(serde_json::from_str::<Address>(&text).unwrap(), address);
        }

        #[test]
        fn any_bytes_print_and_any_text_is_an_address_or_an_error(
            format in prop::sample::select(AddrFormat::VALUES.to_vec()),
            bytes in prop::collection::vec(any::<u8>(), 0..60),
            text in "(fi_[a-z0-9_]{0,14}://)?[\\[\\]0-9a-fx:/.?=&%]{0,60}",
        ) {
            let printed = Address::new(format, &bytes).to_string();
            let _ = printed.parse::<Address>();
            for text in [text.clone(), format!("{}://{text}", scheme(format))] {
                if let Ok(address) = text.parse::<Address>() {
                    prop_assert_eq!(address.to_string().parse::<Address>().unwrap(), address, "{}", text);
                }
            }
        }
    }

    fn read(text: &str) -> Result<Address> {
        text.parse()
    }

    #[test]
    fn the_forms_are_those_of_c() {
        for text in [
            "fi_sockaddr_in://10.31.6.12:7471",
            "fi_sockaddr_in6://[fe80::6:12]:7471",
            "fi_sockaddr_ib://[fe80::1]:0xffff:0x106:0x0",
            "fi_addr_efa://[fe80::1:2]:9228:4294967295",
            "fi_addr_ib_ud://fe80::1:1a2b/5/ffff/0",
            "fi_addr_psmx2://1a:2b",
            "fi_addr_psmx3://1:2:3:4",
            "fi_addr_opx://0000000000001a2b",
            "fi_addr_cxi://0x00001a2b",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
            assert_ne!(read(text).unwrap().format(), AddrFormat::Str, "{text}");
        }
        assert_eq!(read("FI_ADDR_EFA://[::1]:1:2").unwrap().to_string(), "fi_addr_efa://[::1]:1:2");
        assert_eq!(Address::new(AddrFormat::Cxi, &[1, 2]).to_string(), "fi_addr_cxi://0102");
        let scoped = "fi_sockaddr_in6://[fe80::6:12%3]:7471?flow=5";
        assert_eq!(read(scoped).unwrap().to_string(), scoped);
    }

    #[test]
    fn strings_are_read_as_the_man_page_shows_them() {
        let print = |text: &str| read(text).map(|address| address.to_string());
        assert_eq!(print("fi_sockaddr://10.31.6.12:7471?qos=3").unwrap(), "fi_sockaddr_in://10.31.6.12:7471");
        assert_eq!(print("fi_sockaddr_in6://[fe80::6:12]").unwrap(), "fi_sockaddr_in6://[fe80::6:12]:0");
        assert_eq!(print("fi_sockaddr_in6://[fe80::6:12%4]").unwrap(), "fi_sockaddr_in6://[fe80::6:12%4]:0");
        assert_eq!(print("fi_sockaddr_in://10.0.0.1").unwrap(), "fi_sockaddr_in://10.0.0.1:0");
    }

    #[test]
    fn what_is_wrong_is_refused_with_the_form_that_is_wanted() {
        for (text, wanted) in [
            ("10.31.6.12", "format://node:service"),
            ("fi_sockaddr_in://[::1]:1", "fi_sockaddr_in://10.31.6.12:7471"),
            ("fi_sockaddr_in://", "fi_sockaddr_in://10.31.6.12:7471"),
            ("fi_sockaddr_in6://[::1]:1?flow=x", "fi_sockaddr_in6://"),
            ("fi_addr_efa://[fe80::1]:1", "[GID]:QPN:CONNID"),
            ("fi_addr_efa://fe80::1:1:1", "[GID]:QPN:CONNID"),
            ("fi_addr_efa://[fe80::1]:65536:1", "[GID]:QPN:CONNID"),
            ("fi_addr_efa://", "[GID]:QPN:CONNID"),
            ("fi_addr_ib_ud://fe80::1:1/2/3", "GID:QPN/LID/PKEY/SL"),
            ("fi_addr_ib_ud://fe80::1:1/2/3/4/5", "GID:QPN/LID/PKEY/SL"),
            ("fi_addr_ib_ud://fe80::1:1/2/3/4?service=65536", "GID:QPN/LID/PKEY/SL"),
            ("fi_sockaddr_ib://[::1]:1:1", "[GID]:0xPKEY"),
            ("fi_addr_cxi://0x123456789", "hexadecimal"),
            ("fi_addr_ucx://0g", "hexadecimal"),
            ("fi_addr_ucx://123", "hexadecimal"),
            ("fi_addr_ucx://+1", "hexadecimal"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.errno(), Errno::EINVAL, "{text}");
            assert!(error.to_string().contains(wanted), "{text}: {error}");
        }
    }

    #[test]
    fn a_node_may_be_an_address_without_a_service() {
        let of = Address::of_node;
        assert!(of(Some("10.0.0.1"), Some("1")).is_none() && of(None, Some("1")).is_none());
        let address = of(Some("fi_sockaddr_in://10.0.0.1:1"), Some("")).unwrap();
        assert_eq!(address, read("10.0.0.1:1"));
        assert!(of(Some("fi_sockaddr_in://10.0.0.1:1"), Some("1")).unwrap().is_err());
    }
}
