//! The provider's offers, and the cases in which it makes none.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, Caps, EpType, Fabric, GetinfoFlags, Info, MsgOrder, Offers, OpFlags, Protocol,
    Provider, Refusal, Request, Result, Version,
};
use ofi_core::fabric::FabricCore;
use ofi_core::offer::{self, Base, Narrow};

use crate::interface::{self, Interface};
use crate::{Tcp, address};

/// Name in `FI_PROVIDER`.
const NAME: &str = "tcp";
/// `FI_PROTO_XNET`.
const PROTOCOL: Protocol = Protocol::XNET;
/// The maximum number of remote pieces of one operation: a header has room for as many.
const RMA_IOV_LIMIT: usize = 4;

/// The provider. It has no state; the objects opened from it have.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpProvider;

/// The types of endpoints, and how each changes an offer.
const TYPES: [(EpType, Narrow); 2] = [(EpType::Rdm, narrow), (EpType::Msg, connected)];

/// What the protocol has no packets for is not offered: atomics, notes between cores, receive contexts by name, keys. A
/// read is answered after packets that the peer has sent before it: nothing may rely on writes and messages waiting for
/// earlier reads.
fn narrow(mut info: Info) -> Info {
    info.caps -= Caps::ATOMIC | Caps::COLLECTIVE | Caps::NAMED_RX_CTX;
    (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
    info.domain_attr.max_ep_auth_key = 0;
    (info.domain_attr.max_ep_tx_ctx, info.domain_attr.max_ep_rx_ctx) = (1, 1);
    info.tx_attr.op_flags -= OpFlags::MATCH_COMPLETE;
    let order = MsgOrder::SAS
        | MsgOrder::SAW
        | MsgOrder::RAS
        | MsgOrder::RAR
        | MsgOrder::RAW
        | MsgOrder::WAS
        | MsgOrder::WAW
        | MsgOrder::RMA_RAR
        | MsgOrder::RMA_RAW
        | MsgOrder::RMA_WAW;
    for kept in [&mut info.tx_attr.msg_order, &mut info.rx_attr.msg_order] {
        *kept &= order;
    }
    info.ep_attr.max_order_war_size = 0;
    info
}

/// Connected endpoints. Those of C libfabric take tagged messages only with a shared receive context.
fn connected(info: Info) -> Info {
    let mut info = offer::connected(narrow(info));
    (info.ep_attr.protocol, info.ep_attr.protocol_version) = (Protocol::SOCK_TCP, 0);
    info
}

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
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

/// The interfaces that get an offer each: all if neither end is given, otherwise the matching ones. A given end
/// determines their family; a source with an address determines the interface.
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
    let mut reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    if interface.is_some_and(Interface::is_loopback) {
        reach = Caps::LOCAL_COMM;
    }
    let base = Base { name: NAME, protocol: PROTOCOL, reach, format, rma_iov_limit: RMA_IOV_LIMIT };
    let mut variants = base.variants();
    for info in &mut variants {
        offer::name_ends(info, request, address);
        if let Some(interface) = interface {
            info.domain_attr.name.clone_from(&interface.name);
            info.fabric_attr.name.clone_from(&interface.network);
            let given = info.src_addr.as_ref().and_then(Address::to_socket_addr);
            let port = given.map_or(0, |given| given.port());
            info.src_addr = Some(Address::from(SocketAddr::new(interface.ip, port)));
        } else if info.src_addr.is_none() {
            // The interface that leads to the peer.
            let to = info.dest_addr.as_ref().and_then(|address| address::socket(address).ok());
            info.src_addr = to.and_then(address::route).map(|ip| Address::from(SocketAddr::new(ip, 0)));
        }
    }
    offer::answer(&TYPES, &variants, request)
}

// SAFETY: everything that it opens is `ofi-core`'s, which keeps the promises for every transport; the lanes complete an
// operation only when they no longer use its memory.
unsafe impl Provider for TcpProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        offer::version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
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
        Ok(FabricCore::<Tcp>::open(info))
    }
}
