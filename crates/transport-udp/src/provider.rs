//! What the provider offers, and when it keeps out of the way.

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, AvType, Caps, EpAttr, EpType, Fabric, GetinfoFlags, Info, MrMode, MsgOrder, Offers,
    OpFlags, Progress, Protocol, Provider, Refusal, Request, ResourceMgmt, Result, Threading, TrafficClass,
    Version,
};
use ofi_core::auth;
use ofi_core::composite::Both;
use ofi_core::domain::FabricCore;
use ofi_core::negotiate::negotiate_any;

use crate::UdpOrShm;
use crate::address;
use crate::command::RMA_IOV_LIMIT;
use crate::settings;

/// Name in `FI_PROVIDER`.
const NAME: &str = "udp";
/// Longest injected message, as C libfabric's udp has it.
const INJECT: usize = 4096;
/// Operations that an endpoint may have outstanding in each direction, unless more are asked for.
const SIZE: usize = 1024;
/// And the most that may be asked for.
const MAX_SIZE: usize = 1 << 20;
/// Pieces of local memory in one operation.
const IOV_LIMIT: usize = 8;
/// Our protocol (`docs/protocol.md`). C has no name for it.
const PROTOCOL: Protocol = Protocol::specific(0x7275_7470);
/// Our datagrams with a header.
const DATAGRAM_PROTOCOL: Protocol = Protocol::specific(0x7275_7464);
/// As many of each object as one likes.
const MANY: usize = 1 << 16;
/// The most transmit contexts, and receive contexts, of a scalable endpoint.
const CONTEXTS: usize = 256;

/// The provider. It has no state: everything belongs to what is opened from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct UdpProvider;

/// The choices that an application has, where more for it costs something.
#[derive(Clone, Copy)]
struct Variant {
    mr_mode: MrMode,
    progress: Progress,
    size: usize,
    order: MsgOrder,
}

/// Order that costs nothing.
fn free_order() -> MsgOrder {
    MsgOrder::SAS
        | MsgOrder::SAR
        | MsgOrder::SAW
        | MsgOrder::RAR
        | MsgOrder::RAW
        | MsgOrder::WAR
        | MsgOrder::WAW
        | MsgOrder::RMA_RAR
        | MsgOrder::RMA_RAW
        | MsgOrder::RMA_WAR
        | MsgOrder::RMA_WAW
        | MsgOrder::ATOMIC_RAR
        | MsgOrder::ATOMIC_RAW
        | MsgOrder::ATOMIC_WAR
        | MsgOrder::ATOMIC_WAW
}

/// All variants, the preferred one first: keys that cannot be guessed, manual progress, no waiting for messages before
/// a direct access.
fn variants(format: AddrFormat) -> Vec<Info> {
    let mut all = Vec::new();
    for order in [free_order(), free_order() | MsgOrder::WAS | MsgOrder::RAS] {
        for size in [SIZE, MAX_SIZE] {
            for progress in [Progress::Manual, Progress::Auto] {
                for mr_mode in [
                    MrMode::VIRT_ADDR | MrMode::PROV_KEY,
                    MrMode::PROV_KEY,
                    MrMode::VIRT_ADDR,
                    MrMode::empty(),
                ] {
                    all.push(offer(format, Variant { mr_mode, progress, size, order }));
                }
            }
        }
    }
    all
}

fn offer(format: AddrFormat, variant: Variant) -> Info {
    let mut info = Info {
        caps: Caps::MSG
            | Caps::TAGGED
            | Caps::RMA
            | Caps::ATOMIC
            | Caps::COLLECTIVE
            | Caps::SEND
            | Caps::RECV
            | Caps::READ
            | Caps::WRITE
            | Caps::REMOTE_READ
            | Caps::REMOTE_WRITE
            | Caps::MULTI_RECV
            | Caps::TAGGED_MULTI_RECV
            | Caps::DIRECTED_RECV
            | Caps::TAGGED_DIRECTED_RECV
            | Caps::SOURCE
            | Caps::SOURCE_ERR
            | Caps::FENCE
            | Caps::NAMED_RX_CTX
            | Caps::SHARED_AV
            | Caps::AV_USER_ID
            | Caps::RMA_EVENT
            | Caps::TRIGGER
            | Caps::LOCAL_COMM
            | Caps::REMOTE_COMM,
        addr_format: format,
        ..Info::default()
    };
    info.ep_attr = EpAttr {
        ep_type: EpType::Rdm,
        protocol: PROTOCOL,
        protocol_version: 1,
        max_msg_size: isize::MAX as usize,
        max_order_raw_size: usize::MAX,
        max_order_war_size: usize::MAX,
        max_order_waw_size: usize::MAX,
        mem_tag_format: u64::MAX,
        tx_ctx_cnt: 1,
        rx_ctx_cnt: 1,
        auth_key_size: auth::MAX_SIZE,
        ..EpAttr::default()
    };
    let tx = &mut info.tx_attr;
    tx.op_flags = OpFlags::COMPLETION
        | OpFlags::INJECT
        | OpFlags::INJECT_COMPLETE
        | OpFlags::TRANSMIT_COMPLETE
        | OpFlags::DELIVERY_COMPLETE
        | OpFlags::MATCH_COMPLETE;
    (tx.msg_order, tx.inject_size, tx.size) = (variant.order, INJECT, variant.size);
    (tx.iov_limit, tx.rma_iov_limit) = (IOV_LIMIT, RMA_IOV_LIMIT);
    // Any class that is asked for is granted (`class.rs`).
    tx.tclass = TrafficClass::BEST_EFFORT;
    let rx = &mut info.rx_attr;
    rx.op_flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
    (rx.msg_order, rx.size, rx.iov_limit) = (variant.order, variant.size, IOV_LIMIT);
    let domain = &mut info.domain_attr;
    domain.name = NAME.into();
    domain.tclass = TrafficClass::BEST_EFFORT;
    (domain.threading, domain.resource_mgmt) = (Threading::Safe, ResourceMgmt::Enabled);
    (domain.control_progress, domain.progress) = (variant.progress, variant.progress);
    (domain.av_type, domain.mr_mode) = (AvType::Unspec, variant.mr_mode);
    (domain.mr_key_size, domain.cq_data_size, domain.mr_iov_limit) = (8, 8, IOV_LIMIT);
    (domain.cq_cnt, domain.ep_cnt, domain.mr_cnt) = (MANY, MANY, MANY);
    domain.cntr_cnt = MANY;
    (domain.tx_ctx_cnt, domain.rx_ctx_cnt) = (MANY, MANY);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (CONTEXTS, CONTEXTS);
    (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx) = (MANY, MANY);
    domain.max_err_data = 128;
    (domain.auth_key_size, domain.max_ep_auth_key) = (auth::MAX_SIZE, 1);
    domain.caps = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    info.fabric_attr.name = NAME.into();
    info.fabric_attr.prov_name = NAME.into();
    info.fabric_attr.prov_version = version();
    info
}

/// What is left of an offer.
type Narrow = fn(Info) -> Info;

/// The types of endpoints, the preferred one first, and what each makes of an offer.
const TYPES: [(EpType, Narrow); 4] =
    [(EpType::Rdm, |info| info), (EpType::Msg, connected), (EpType::Dgram, bare), (EpType::Dgram, headed)];

/// Unreliable datagrams: what all of them have.
fn datagrams(mut info: Info) -> Info {
    info.ep_attr.ep_type = EpType::Dgram;
    // Nobody could check a key, datagram by datagram.
    (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
    info.domain_attr.max_ep_auth_key = 0;
    let messages = Caps::MSG | Caps::MSG_DIRECTIONS | Caps::MULTI_RECV | Caps::MULTICAST;
    let sources = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
    info.caps |= Caps::MULTICAST;
    info.caps &= messages
        | sources
        | Caps::TAGGED
        | Caps::TAGGED_DIRECTED_RECV
        | Caps::TAGGED_MULTI_RECV
        | Caps::LOCAL_COMM
        | Caps::REMOTE_COMM;
    let v6 = info.addr_format == AddrFormat::SockaddrIn6;
    // The header of IPv6 is 20 bytes longer.
    let longest = settings::DATAGRAM_SIZE.get();
    info.ep_attr.max_msg_size = if v6 { longest - 20 } else { longest };
    info.tx_attr.inject_size = info.ep_attr.max_msg_size;
    info.tx_attr.op_flags -=
        OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE | OpFlags::TRANSMIT_COMPLETE;
    (info.tx_attr.msg_order, info.rx_attr.msg_order) = (MsgOrder::empty(), MsgOrder::empty());
    info
}

/// Messages as they are, which any UDP socket understands, that of C libfabric's udp for one.
fn bare(info: Info) -> Info {
    let mut info = datagrams(info);
    info.caps -= Caps::TAGGED | Caps::TAGGED_DIRECTED_RECV | Caps::TAGGED_MULTI_RECV;
    (info.ep_attr.protocol, info.ep_attr.protocol_version) = (Protocol::UDP, 0);
    info.domain_attr.cq_data_size = 0;
    info
}

/// Messages with tags and remote CQ data, in a header of ours.
fn headed(info: Info) -> Info {
    let mut info = datagrams(info);
    info.ep_attr.protocol = DATAGRAM_PROTOCOL;
    info.ep_attr.max_msg_size -= crate::datagram::HEADER;
    info.tx_attr.inject_size = info.ep_attr.max_msg_size;
    info
}

/// An endpoint with one peer, which needs no address vector.
fn connected(mut info: Info) -> Info {
    info.ep_attr.ep_type = EpType::Msg;
    let of_many = Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV | Caps::SOURCE | Caps::SOURCE_ERR;
    info.caps -= of_many | Caps::COLLECTIVE;
    info
}

fn version() -> Version {
    Version::new(
        env!("CARGO_PKG_VERSION_MAJOR").parse().unwrap_or(0),
        env!("CARGO_PKG_VERSION_MINOR").parse().unwrap_or(0),
    )
}

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    Refusal { provider: NAME.into(), field, wanted: wanted.into(), offered: offered.into() }
}

/// The address that node and service name, and the format of all addresses.
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
    let named = request.node.is_some() || request.service.is_some();
    let address =
        named.then(|| address::resolve(request.node, request.service, format)).transpose().map_err(
            |error| refusal("node and service", request.node.unwrap_or("").to_string(), error.to_string()),
        )?;
    let format = format.or(address.as_ref().map(Address::format)).unwrap_or(AddrFormat::SockaddrIn);
    let hinted = request.hints.map(|hints| (&hints.info.src_addr, &hints.info.dest_addr));
    if let Some((source, destination)) = hinted {
        for (field, address) in [("src_addr", source), ("dest_addr", destination)] {
            if let Some(address) = address.as_ref().filter(|address| address.format() != format) {
                let offered = format!("an address of {format}, the format of all others");
                return Err(refusal(field, format!("{address} of {}", address.format()), offered));
            }
        }
    }
    Ok((format, address))
}

impl Provider for UdpProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        let (format, address) = match addresses(request) {
            Ok(found) => found,
            Err(refusal) => return Offers { infos: Vec::new(), refusals: vec![refusal] },
        };
        let mut variants = variants(format);
        for info in &mut variants {
            let hinted = request.hints.map(|hints| &hints.info);
            info.src_addr = hinted.and_then(|info| info.src_addr.clone());
            info.dest_addr = hinted.and_then(|info| info.dest_addr.clone());
            if address.is_some() {
                if request.flags.contains(GetinfoFlags::SOURCE) {
                    info.src_addr = address.clone();
                } else {
                    info.dest_addr = address.clone();
                }
            }
            if info.src_addr.is_none() {
                // The interface that leads to the peer.
                let to = info.dest_addr.as_ref().and_then(|address| address::socket(address).ok());
                info.src_addr =
                    to.and_then(address::route).map(|ip| Address::from(std::net::SocketAddr::new(ip, 0)));
            }
        }
        let mut infos = Vec::new();
        let mut refused = Vec::new();
        for (ep_type, narrow) in TYPES {
            if ep_type == EpType::Dgram && infos.iter().any(|info: &Info| info.ep_attr.ep_type == ep_type) {
                continue; // bare ones will do
            }
            let offers: Vec<Info> = variants.iter().map(|info| narrow(info.clone())).collect();
            match negotiate_any(&offers, request.hints, request.version) {
                Ok(info) => infos.push(info),
                Err(refusals) => refused.push((ep_type, refusals)),
            }
        }
        if !infos.is_empty() {
            return Offers { infos, refusals: Vec::new() };
        }
        // What stood in the way of the type that was asked for, or of the usual one.
        let hinted = request.hints.map_or(EpType::Unspec, |hints| hints.info.ep_attr.ep_type);
        let at = refused.iter().position(|(ep_type, _)| *ep_type == hinted).unwrap_or(0);
        Offers { infos, refusals: refused.swap_remove(at).1 }
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Both<UdpOrShm>>::open(info))
    }
}
