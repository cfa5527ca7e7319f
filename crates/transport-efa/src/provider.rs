//! What the provider offers: the devices of this host.

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Caps, EpType, Fabric, Info, MsgOrder, Offers, Protocol, Provider, Refusal, Request, Result,
    Version,
};
use ofi_core::domain::FabricCore;
use ofi_core::offer::{self, Base, Narrow};

use crate::domain::domain_name;
use crate::rma::IOV_LIMIT;
use crate::{Efa, srd};

/// Name in `FI_PROVIDER`.
const NAME: &str = "efa";

/// The provider. It has no state: everything belongs to what is opened from it.
#[derive(Clone, Copy, Debug, Default)]
pub struct EfaProvider;

/// What Amazon's protocol keeps in order: messages and atomic operations. Accesses overtake them, and each other.
fn order() -> MsgOrder {
    MsgOrder::SAS | MsgOrder::ATOMIC_RAR | MsgOrder::ATOMIC_RAW | MsgOrder::ATOMIC_WAR | MsgOrder::ATOMIC_WAW
}

/// What is left of the offer of all transports.
fn narrow(mut info: Info) -> Info {
    (info.ep_attr.auth_key_size, info.domain_attr.auth_key_size) = (0, 0);
    info.domain_attr.max_ep_auth_key = 0;
    for kept in [&mut info.tx_attr.msg_order, &mut info.rx_attr.msg_order] {
        *kept &= order();
    }
    let ep = &mut info.ep_attr;
    (ep.protocol_version, ep.max_order_raw_size, ep.max_order_war_size, ep.max_order_waw_size) = (4, 0, 0, 0);
    info
}

const TYPES: [(EpType, Narrow); 1] = [(EpType::Rdm, narrow)];

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
}

// SAFETY: all that it opens is `ofi-core`'s, which keeps the promises for every transport; an operation is reported when its memory
// is copied, and the device touches packets of the library alone.
unsafe impl Provider for EfaProvider {
    fn name(&self) -> &str {
        NAME
    }

    fn version(&self) -> Version {
        offer::version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        try_offers(request).unwrap_or_else(|refusal| Offers { infos: Vec::new(), refusals: vec![refusal] })
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Efa>::open(info))
    }
}

fn try_offers(request: &Request<'_>) -> Result<Offers, Refusal> {
    let devices = srd::devices().map_err(|why| refusal("device", "an EFA device", why))?;
    let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
    if !matches!(hinted, AddrFormat::Unspec | AddrFormat::Efa) {
        return Err(refusal("addr_format", hinted.to_string(), "FI_ADDR_EFA"));
    }
    offer::check_formats(NAME, request, AddrFormat::Efa)?;
    if request.node.is_some() || request.service.is_some() {
        let named = request.node.or(request.service).unwrap_or("");
        return Err(refusal("node and service", named, "addresses that fi_getname answers"));
    }
    let mut offers = Offers::default();
    for device in devices {
        let reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
        let format = AddrFormat::Efa;
        let base = Base { name: NAME, protocol: Protocol::EFA, reach, format, rma_iov_limit: IOV_LIMIT };
        let mut variants = base.variants();
        for info in &mut variants {
            offer::name_ends(info, request, None);
            info.domain_attr.name = domain_name(device.name());
            info.nic = Some(device.nic());
        }
        let answer = offer::answer(&TYPES, &variants, request);
        offers.infos.extend(answer.infos);
        offers.refusals.extend(answer.refusals);
    }
    if !offers.infos.is_empty() {
        offers.refusals.clear();
    }
    Ok(offers)
}
