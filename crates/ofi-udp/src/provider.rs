//! The provider's offers, and its refusals.

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Caps, EpType, Fabric, Info, MsgOrder, Offers, OpFlags, Protocol, Provider, Refusal, Request,
    Result, TrafficClass, Version,
};
use ofi_core::composite::Composite;
use ofi_core::fabric::FabricCore;
use ofi_core::ip::interface::Interface;
use ofi_core::ip::request::AddressRequest;
use ofi_core::offer::{self, Base, Narrow, connected};
use ofi_core::transport::record::RMA_IOV_LIMIT;

use crate::UdpOrShm;
use crate::address::IP;
use crate::config;
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

/// The offer for all addresses, or for those of one interface.
fn answer(
    request: &Request<'_>,
    asked: &AddressRequest,
    format: AddrFormat,
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
        asked.name_ends(info, request, interface);
        info.nic.clone_from(&nic);
    }
    offer::answer_with_devices(&TYPES, variants, request)
}

// SAFETY: everything that it opens is `ofi-core`'s, which keeps the promises for every transport; the peers complete an
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
        IP.offers(request, |asked, format, interface| answer(request, asked, format, interface))
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Composite<UdpOrShm>>::open(info))
    }
}
