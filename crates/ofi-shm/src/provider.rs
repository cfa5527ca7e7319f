//! The provider's offers, and the refusals of hints that it cannot meet.

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, Caps, EpType, Fabric, Hints, Info, MsgOrder, Offers, OpFlags, Protocol, Provider,
    Refusal, Request, Result, Version,
};
use ofi_core::fabric::FabricCore;
use ofi_core::offer::{self, Base, Narrow, connected};

use crate::command::RMA_IOV_LIMIT;
use crate::{Shm, name};

/// Name in `FI_PROVIDER`.
const NAME: &str = "shm";

/// The provider. It has no state; the objects opened from it have.
#[derive(Clone, Copy, Debug, Default)]
pub struct ShmProvider;

fn base(format: AddrFormat) -> Base {
    let mut reach = Caps::LOCAL_COMM;
    if crate::settings::REMOTE_COMM.get() {
        reach |= Caps::REMOTE_COMM;
    }
    Base { name: NAME, protocol: Protocol::SHM, reach, format, rma_iov_limit: RMA_IOV_LIMIT }
}

/// The types of endpoints, the preferred one first, and how each changes an offer.
const TYPES: [(EpType, Narrow); 3] =
    [(EpType::Rdm, |info| info), (EpType::Msg, connected), (EpType::Dgram, datagram)];

/// Datagrams: messages that fit into a command and are dropped if there is no room; and remote memory, as with the
/// other types.
fn datagram(mut info: Info) -> Info {
    info.ep_attr.ep_type = EpType::Dgram;
    info.ep_attr.max_msg_size = crate::common::eager();
    let messages = Caps::MSG | Caps::MSG_DIRECTIONS | Caps::MULTI_RECV;
    let sources = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
    let memory = Caps::RMA | Caps::RMA_DIRECTIONS;
    let vectors = Caps::SHARED_AV | Caps::AV_USER_ID;
    info.caps &= messages | sources | memory | vectors | Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    info.tx_attr.inject_size = offer::INJECT.min(info.ep_attr.max_msg_size);
    info.tx_attr.op_flags -= OpFlags::DELIVERY_COMPLETE | OpFlags::MATCH_COMPLETE;
    (info.tx_attr.msg_order, info.rx_attr.msg_order) = (MsgOrder::SAS, MsgOrder::SAS);
    info
}

/// Whether the hints show that a program wants this host only: they name the provider or its addresses, or exclude the
/// capability to reach other hosts.
fn is_asked_for(hints: Option<&Hints>) -> bool {
    let Some(hints) = hints else { return false };
    let info = &hints.info;
    let named = info.fabric_attr.prov_name.split([';', ',']).any(|name| name == NAME);
    let local = info.caps.contains(Caps::LOCAL_COMM) && !info.caps.contains(Caps::REMOTE_COMM);
    named || local || info.addr_format == AddrFormat::Str
}

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
}

/// The address that node and service denote, and the format of all addresses.
fn addresses(request: &Request<'_>) -> Result<(AddrFormat, Option<Address>), Refusal> {
    let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
    let scheme = request.node.is_some_and(name::has_scheme);
    if request.node.is_none() && request.service.is_none() {
        let given =
            request.hints.and_then(|hints| hints.info.src_addr.as_ref().or(hints.info.dest_addr.as_ref()));
        let format = match (hinted, given) {
            (AddrFormat::Unspec, Some(address)) => address.format(),
            (AddrFormat::Unspec, None) => AddrFormat::Str,
            (AddrFormat::Sockaddr | AddrFormat::SockaddrIp, Some(address)) => address.format(),
            (AddrFormat::Sockaddr | AddrFormat::SockaddrIp, None) => AddrFormat::SockaddrIn,
            (format @ (AddrFormat::Str | AddrFormat::SockaddrIn | AddrFormat::SockaddrIn6), _) => format,
            (other, _) => {
                let offered = "FI_ADDR_STR, FI_SOCKADDR_IN, FI_SOCKADDR_IN6, FI_SOCKADDR, FI_SOCKADDR_IP";
                return Err(refusal("addr_format", other.to_string(), offered));
            }
        };
        offer::check_formats(NAME, request, format)?;
        return Ok((format, None));
    }
    if !scheme && !is_asked_for(request.hints) {
        let wanted = format!("{} {}", request.node.unwrap_or(""), request.service.unwrap_or(""));
        let offered = "host names and ports only for programs that ask for provider shm, FI_ADDR_STR, or FI_LOCAL_COMM without FI_REMOTE_COMM";
        return Err(refusal("node and service", wanted, offered));
    }
    // If names were requested, every service is a name. Otherwise it is resolved as in an address vector. Unless socket
    // addresses were requested, the endpoint's addresses are names, as without a service, so that each end can insert
    // the other.
    let resolved = match hinted {
        AddrFormat::Str => name::of_service(request.node, request.service),
        AddrFormat::Unspec => {
            name::resolve(request.node, request.service).and_then(|address| name::as_text(&address))
        }
        _ => name::resolve(request.node, request.service),
    };
    let address = resolved.map_err(|error| {
        refusal("node and service", request.node.unwrap_or("").to_string(), error.to_string())
    })?;
    Ok((address.format(), Some(address)))
}

// SAFETY: everything that it opens belongs to `ofi-core`, which keeps the promises for every transport; peers complete
// an operation only when they no longer use its memory.
unsafe impl Provider for ShmProvider {
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
        let mut variants = base(format).variants();
        for info in &mut variants {
            offer::name_ends(info, request, address.as_ref());
        }
        offer::answer_with_devices(&TYPES, variants, request)
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Shm>::open(info))
    }
}
