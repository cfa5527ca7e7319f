//! The provider's offers, and its refusals.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, Caps, EpType, Fabric, GetinfoFlags, Info, MsgOrder, Offers, OpFlags, Protocol,
    Provider, Refusal, Request, Result, TrafficClass, Version,
};
use ofi_core::composite::Both;
use ofi_core::fabric::FabricCore;
use ofi_core::offer::{self, Base, Narrow, connected};
use ofi_core::transport::record::RMA_IOV_LIMIT;

use crate::UdpOrShm;
use crate::address;
use crate::config;
use crate::interface::{self, Interface};
use crate::nic;
use crate::settings;

/// Name in `FI_PROVIDER`.
const NAME: &str = "udp";
/// The protocol of `docs/protocol.md`. C libfabric has no name for it.
const PROTOCOL: Protocol = Protocol::specific(0x7275_7470);
/// Datagrams with this library's header.
const DATAGRAM_PROTOCOL: Protocol = Protocol::specific(0x7275_7464);

/// The provider. It has no state; the objects opened from it have.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpProvider;

fn base(format: AddrFormat) -> Base {
    let reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    Base { name: NAME, protocol: PROTOCOL, reach, format, rma_iov_limit: RMA_IOV_LIMIT }
}

/// The endpoint types in order of preference, and how each changes an offer.
const TYPES: [(EpType, Narrow); 5] = [
    (EpType::Rdm, |info| info),
    (EpType::Msg, connected),
    (EpType::Dgram, bare),
    (EpType::Dgram, headed),
    (EpType::Dgram, reaching),
];

/// Removes authorization keys from an offer.
fn without_keys(mut info: Info) -> Info {
    (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
    info.domain_attr.max_ep_auth_key = 0;
    info
}

/// Unreliable datagrams: their common properties.
fn datagrams(info: Info) -> Info {
    let mut info = without_keys(info); // a single datagram cannot prove one
    info.ep_attr.ep_type = EpType::Dgram;
    let messages = Caps::MSG | Caps::MSG_DIRECTIONS | Caps::MULTI_RECV | Caps::MULTICAST;
    let sources = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
    info.caps |= Caps::MULTICAST;
    info.caps &= messages
        | sources
        | Caps::TAGGED
        | Caps::TAGGED_DIRECTED_RECV
        | Caps::TAGGED_MULTI_RECV
        | Caps::RMA
        | Caps::RMA_DIRECTIONS
        | Caps::RMA_EVENT
        | Caps::LOCAL_COMM
        | Caps::REMOTE_COMM;
    let v6 = info.addr_format == AddrFormat::SockaddrIn6;
    // The header of IPv6 is 20 bytes longer.
    let longest = settings::DATAGRAM_SIZE.get();
    info.ep_attr.max_msg_size = if v6 { longest - 20 } else { longest };
    info.tx_attr.inject_size = offer::INJECT.min(info.ep_attr.max_msg_size);
    info.tx_attr.op_flags -=
        OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE | OpFlags::TRANSMIT_COMPLETE;
    (info.tx_attr.msg_order, info.rx_attr.msg_order) = (MsgOrder::empty(), MsgOrder::empty());
    info
}

/// Bare messages, which any UDP socket understands, such as C libfabric's provider `udp`.
fn bare(info: Info) -> Info {
    let mut info = datagrams(info);
    info.caps -= Caps::TAGGED | Caps::TAGGED_DIRECTED_RECV | Caps::TAGGED_MULTI_RECV | memory();
    (info.ep_attr.protocol, info.ep_attr.protocol_version) = (Protocol::UDP, 0);
    info.domain_attr.cq_data_size = 0;
    info
}

/// Remote memory.
fn memory() -> Caps {
    Caps::RMA | Caps::RMA_DIRECTIONS | Caps::RMA_EVENT
}

/// Messages with tags and remote CQ data, in this library's header.
fn headed(info: Info) -> Info {
    let mut info = reaching(info);
    info.caps -= memory();
    info
}

/// The same with remote memory, over sessions on the same socket.
fn reaching(info: Info) -> Info {
    let mut info = datagrams(info);
    info.ep_attr.protocol = DATAGRAM_PROTOCOL;
    info.ep_attr.max_msg_size -= crate::datagram::MAX_HEADER_LEN;
    info.tx_attr.inject_size = offer::INJECT.min(info.ep_attr.max_msg_size);
    info
}

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
}

/// Refuses a request for a key or encryption in a build without them: the program must not send in the clear instead.
fn beyond_this_build(request: &Request<'_>) -> Option<Refusal> {
    let wants_key = request.hints.is_some_and(|hints| {
        let (domain, endpoint) = (&hints.info.domain_attr, &hints.info.ep_attr);
        let sizes = domain.auth_key_size | endpoint.auth_key_size;
        sizes != 0 || !domain.auth_key.is_empty() || !endpoint.auth_key.is_empty()
    });
    let wanted = config::beyond_this_build(wants_key)?;
    Some(refusal("encryption", wanted, format!("neither keys nor encryption: {}", config::WITHOUT)))
}

/// Refuses all requests while a setting that protects packets is unreadable: its default protects less.
fn unreadable() -> Option<Refusal> {
    let problem = settings::protections().err()?;
    let reason = format!("nothing: {}; {}", problem.reason, config::CORRECT);
    tracing::warn!(target: "ofi::udp::core", "{problem}; udp is not offered: {}", config::CORRECT);
    Some(refusal("environment", format!("{}={}", problem.env, problem.found), reason))
}

/// The address that node and service denote, and the format of all addresses.
fn addresses(request: &Request<'_>) -> Result<(AddrFormat, Option<Address>), Refusal> {
    let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
    let given =
        request.hints.and_then(|hints| hints.info.src_addr.as_ref().or(hints.info.dest_addr.as_ref()));
    let format = match (hinted, given) {
        (AddrFormat::Unspec | AddrFormat::Sockaddr | AddrFormat::SockaddrIp, Some(address)) => {
            Some(address.format())
        }
        (AddrFormat::Unspec | AddrFormat::Sockaddr | AddrFormat::SockaddrIp, None) => None,
        (format, _) => Some(format),
    };
    if let Some(other) =
        format.filter(|format| !matches!(format, AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6))
    {
        let offered = "FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR, FI_SOCKADDR_IP";
        return Err(refusal("addr_format", other.to_string(), offered));
    }
    let nowhere = request.node.is_none_or(str::is_empty) && request.flags.contains(GetinfoFlags::SOURCE);
    let named = request.node.is_some() || request.service.is_some();
    let address =
        named.then(|| address::resolve(request.node, request.service, format)).transpose().map_err(
            |error| refusal("node and service", request.node.unwrap_or("").to_string(), error.to_string()),
        )?;
    // A service of this host, whatever address is requested.
    let address = match address.as_ref().and_then(Address::to_socket_addr) {
        Some(mut all) if nowhere => {
            all.set_ip(address::any(all.is_ipv6()));
            Some(Address::from(all))
        }
        _ => address,
    };
    let format = format.or(address.as_ref().map(Address::format)).unwrap_or(AddrFormat::SockaddrIn);
    offer::check_formats(NAME, request, format)?;
    Ok((format, address))
}

fn format_of(ip: IpAddr) -> AddrFormat {
    if ip.is_ipv6() { AddrFormat::SockaddrIn6 } else { AddrFormat::SockaddrIn }
}

/// The interfaces with an offer of their own: all if neither end is given, otherwise those that match. A given end
/// determines their address family; a source with an address determines the interface.
fn interfaces(request: &Request<'_>, format: AddrFormat, address: Option<&Address>) -> Vec<Interface> {
    let mut ends = Info::default();
    offer::name_ends(&mut ends, request, address);
    let placed = ends.src_addr.is_some() || ends.dest_addr.is_some();
    let hints = request.hints.map(|hints| &hints.info);
    let chosen =
        hints.is_some_and(|info| !(info.domain_attr.name.is_empty() && info.fabric_attr.name.is_empty()));
    if placed && !chosen {
        return Vec::new();
    }
    let hinted = hints.map_or(AddrFormat::Unspec, |info| info.addr_format);
    let any = !placed && matches!(hinted, AddrFormat::Unspec | AddrFormat::Sockaddr | AddrFormat::SockaddrIp);
    let source = ends.src_addr.and_then(|address| address.to_socket_addr()).map(|source| source.ip());
    let source = source.filter(|ip| !ip.is_unspecified());
    let mut all = interface::usable();
    all.retain(|interface| any || format_of(interface.ip) == format);
    all.retain(|interface| source.is_none_or(|ip| ip == interface.ip));
    all
}

/// The offer for all addresses, or for those of one interface.
fn answer(
    request: &Request<'_>,
    format: AddrFormat,
    address: Option<&Address>,
    interface: Option<&Interface>,
) -> Offers {
    let mut base = base(format);
    if interface.is_some_and(Interface::is_loopback) {
        base.reach = Caps::LOCAL_COMM;
    }
    let nic = interface.and_then(|interface| nic::of(&interface.name));
    let mut variants = base.variants();
    if !cfg!(feature = "encryption") {
        variants = variants.into_iter().map(without_keys).collect();
    }
    for info in &mut variants {
        // Any requested class is granted (`class.rs`).
        (info.tx_attr.tclass, info.domain_attr.tclass) =
            (TrafficClass::BEST_EFFORT, TrafficClass::BEST_EFFORT);
        offer::name_ends(info, request, address);
        if let Some(interface) = interface {
            info.domain_attr.name.clone_from(&interface.name);
            info.fabric_attr.name.clone_from(&interface.network);
            info.nic.clone_from(&nic);
            let given = info.src_addr.as_ref().and_then(Address::to_socket_addr);
            let port = given.map_or(0, |given| given.port());
            info.src_addr = Some(Address::from(SocketAddr::new(interface.ip, port)));
        } else if info.src_addr.is_none() {
            // The interface on the route to the peer.
            let to = info.dest_addr.as_ref().and_then(|address| address::socket(address).ok());
            info.src_addr = to.and_then(address::route).map(|ip| Address::from(SocketAddr::new(ip, 0)));
        }
    }
    offer::answer(&TYPES, &variants, request)
}

// SAFETY: everything that it opens is `ofi-core`'s, which keeps the promises for every transport; the lanes complete an
// operation only when they no longer use its memory.
unsafe impl Provider for UdpProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        offer::version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        if let Some(refusal) = unreadable().or_else(|| beyond_this_build(request)) {
            return Offers { infos: Vec::new(), refusals: vec![refusal] };
        }
        let (format, address) = match addresses(request) {
            Ok(found) => found,
            Err(refusal) => return Offers { infos: Vec::new(), refusals: vec![refusal] },
        };
        let mut offers = answer(request, format, address.as_ref(), None);
        // All addresses of the host first, then each interface by itself.
        for interface in interfaces(request, format, address.as_ref()) {
            let format = format_of(interface.ip);
            offers.infos.extend(answer(request, format, address.as_ref(), Some(&interface)).infos);
        }
        if !offers.infos.is_empty() {
            offers.refusals.clear();
        }
        offers
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Both<UdpOrShm>>::open(info))
    }
}
