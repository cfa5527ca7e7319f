//! The provider's offers, and the cases in which it makes none.

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Caps, EpType, Fabric, Info, MsgOrder, Offers, OpFlags, Protocol, Provider, Refusal, Request,
    Result, Version,
};
use ofi_core::composite::Composite;
use ofi_core::fabric::FabricCore;
use ofi_core::ip::interface::Interface;
use ofi_core::ip::request::AddressRequest;
use ofi_core::offer::{self, Base, Narrow};

use crate::TcpOrShm;
use crate::address::IP;
use crate::settings::ATOMICS;
use crate::tls;

/// Name in `FI_PROVIDER`.
const NAME: &str = "tcp";
/// `FI_PROTO_XNET`.
const PROTOCOL: Protocol = Protocol::XNET;
/// The maximum number of remote pieces of one operation: a header has room for as many.
const RMA_IOV_LIMIT: usize = 4;

/// The provider. It has no state; the objects opened from it have.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpProvider;

/// Orders among atomic operations.
const OF_ATOMICS: MsgOrder =
    MsgOrder::ATOMIC_RAR.union(MsgOrder::ATOMIC_RAW).union(MsgOrder::ATOMIC_WAR).union(MsgOrder::ATOMIC_WAW);

/// The types of endpoints, and how each changes an offer.
const TYPES: [(EpType, Narrow); 2] = [(EpType::Rdm, narrow), (EpType::Msg, connected)];

/// What the protocol has no packets for is not offered: receive contexts by name. Authorization keys need encryption.
/// Atomics and collectives are on request ([`ATOMICS`]), between ends of this library. A read is answered after packets
/// that the peer has sent before it: nothing may rely on writes and messages waiting for earlier reads. Atomic
/// operations are executed in the order in which they come.
fn narrow(mut info: Info) -> Info {
    info.caps -= Caps::NAMED_RX_CTX;
    if tls::lacking().is_some() {
        (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
        info.domain_attr.max_ep_auth_key = 0;
    }
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
        | MsgOrder::RMA_WAW
        | OF_ATOMICS;
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

/// Connected endpoints without tagged messages: C libfabric lists them apart from those with tags. A program that
/// requests nothing and passes over infos with capabilities that it does not know, as the C++ SDK of MXL does with
/// `FI_TAGGED`, finds these.
fn untagged(info: Info) -> Info {
    let mut info = connected(info);
    info.caps -= Caps::TAGGED | Caps::TAGGED_MULTI_RECV | Caps::TAGGED_DIRECTED_RECV;
    info.ep_attr.mem_tag_format = 0;
    info
}

/// Refuses all requests while the settings of certificates cannot be used: the program must not send in the clear
/// instead.
fn unprotected() -> Option<Refusal> {
    let error = tls::check_settings().err()?;
    tracing::warn!(target: "ofi::tcp::core", "tcp is not offered: {error}");
    Some(offer::refusal(NAME, "environment", "FI_TCP_TLS_*", error.to_string()))
}

/// The offer for all addresses, or for those of one interface.
fn answer(
    request: &Request<'_>,
    asked: &AddressRequest,
    format: AddrFormat,
    interface: Option<&Interface>,
) -> Offers {
    let mut reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
    if interface.is_some_and(Interface::is_loopback) {
        reach = Caps::LOCAL_COMM;
    }
    let base = Base { name: NAME, protocol: PROTOCOL, reach, format, rma_iov_limit: RMA_IOV_LIMIT };
    let mut variants = base.variants();
    for info in &mut variants {
        if !ATOMICS.get() {
            info.caps -= Caps::ATOMIC | Caps::COLLECTIVE;
            info.tx_attr.msg_order -= OF_ATOMICS;
            info.rx_attr.msg_order -= OF_ATOMICS;
        }
        asked.name_ends(info, request, interface);
    }
    if request.hints.is_some() {
        return offer::answer_with_devices(&TYPES, variants, request);
    }
    let plain = offer::answer(&[(EpType::Msg, untagged)], &variants, request);
    let mut offers = offer::answer_with_devices(&TYPES, variants, request);
    offers.infos.extend(plain.infos);
    offers
}

// SAFETY: everything that it opens is `ofi-core`'s, which keeps the promises for every transport; the peers complete an
// operation only when they no longer use its memory.
unsafe impl Provider for TcpProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        offer::version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        if let Some(refusal) = unprotected() {
            return Offers { infos: Vec::new(), refusals: vec![refusal] };
        }
        IP.offers(request, |asked, format, interface| answer(request, asked, format, interface))
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Composite<TcpOrShm>>::open(info))
    }
}

#[cfg(test)]
mod tests {
    use ofi_api::{GetinfoFlags, Hints};

    use super::*;

    fn caps(hints: Option<&Hints>) -> Vec<Caps> {
        let flags = GetinfoFlags::SOURCE;
        let request = Request { version: Version::API, node: Some("127.0.0.1"), service: None, flags, hints };
        let offers = TcpProvider.offers(&request);
        let connected = offers.infos.iter().filter(|info| info.ep_attr.ep_type == EpType::Msg);
        connected.map(|info| info.caps).collect()
    }

    #[test]
    fn a_request_for_anything_finds_connected_endpoints_without_tags() {
        let all = caps(None);
        let access = Caps::MSG | Caps::RMA | Caps::WRITE | Caps::REMOTE_WRITE;
        assert!(all.iter().all(|caps| caps.contains(access)), "{all:?}");
        let tagged: Vec<bool> = all.iter().map(|caps| caps.contains(Caps::TAGGED)).collect();
        assert_eq!(tagged, [true, false]);
        assert!(!all[1].intersects(Caps::TAGGED_MULTI_RECV | Caps::TAGGED_DIRECTED_RECV), "{all:?}");
    }

    #[test]
    fn hints_find_one_kind_of_connected_endpoints() {
        assert_eq!(caps(Some(&Hints::default())).len(), 1);
    }
}
