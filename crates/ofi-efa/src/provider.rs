//! The provider's offers: the devices of this host.

use std::net::Ipv6Addr;
use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, Caps, EpType, Fabric, GetinfoFlags, Info, Mode, MrMode, MsgOrder, Offers, OpFlags,
    Protocol, Provider, Refusal, Request, Result, Version,
};
use ofi_core::composite::Composite;
use ofi_core::fabric::FabricCore;
use ofi_core::hmem;
use ofi_core::offer::{self, Base, Narrow};

use crate::address;
use crate::domain::{DIRECT, domain_name};
use crate::near::EfaOrShm;
use crate::options::{Options, Rdma};
use crate::rma::IOV_LIMIT;
use crate::settings;
use crate::srd::{self, DeviceLimits, Gid};

/// Name in `FI_PROVIDER`.
const NAME: &str = "efa";

/// The provider. It has no state: all state belongs to the objects that it opens.
#[derive(Clone, Copy, Debug, Default)]
pub struct EfaProvider;

/// The order that Amazon's protocol guarantees: among messages and atomic operations. Reads and writes are unordered.
fn order() -> MsgOrder {
    MsgOrder::SAS | MsgOrder::ATOMIC_RAR | MsgOrder::ATOMIC_RAW | MsgOrder::ATOMIC_WAR | MsgOrder::ATOMIC_WAW
}

/// Narrows the core's offer to this provider's.
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

/// Narrows an offer to single requests of the device, with the requirements of C's provider, so that a program gets the
/// same fabric from both libraries. [`direct_variants`] applies the device's limits.
fn narrow_direct(mut info: Info) -> Info {
    info = narrow(info);
    let rma = Caps::RMA | Caps::READ | Caps::WRITE | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
    info.caps &= Caps::MSG
        | Caps::SEND
        | Caps::RECV
        | Caps::SOURCE
        | Caps::LOCAL_COMM
        | Caps::REMOTE_COMM
        | Caps::HMEM
        | rma;
    info.mode = Mode::CONTEXT2;
    info.fabric_attr.name = DIRECT.into();
    (info.tx_attr.msg_order, info.rx_attr.msg_order) = (MsgOrder::empty(), MsgOrder::empty());
    info.tx_attr.op_flags -= OpFlags::MATCH_COMPLETE;
    info.rx_attr.op_flags -= OpFlags::MULTI_RECV;
    info.tx_attr.rma_iov_limit = 1;
    let domain = &mut info.domain_attr;
    domain.mr_mode |= MrMode::LOCAL;
    (domain.mr_key_size, domain.cq_data_size, domain.mr_iov_limit) = (4, 4, 1);
    (domain.max_ep_tx_ctx, domain.max_ep_rx_ctx) = (1, 1);
    (domain.max_ep_stx_ctx, domain.max_ep_srx_ctx) = (0, 0);
    info
}

/// A device's offers for fabric `efa-direct`, only if the device finds registrations by its own keys. As in C's
/// provider, the longest injected message is what a request can carry inline: a request of 64 bytes, unless the program
/// wants to inject more (`inject`) and the device has longer ones.
fn direct_variants(variants: &[Info], limits: &DeviceLimits, inject: usize) -> Vec<Info> {
    let wanted = MrMode::VIRT_ADDR | MrMode::PROV_KEY;
    let mut all: Vec<Info> = variants
        .iter()
        .filter(|info| info.domain_attr.mr_mode.expanded().contains(wanted))
        .cloned()
        .collect();
    let rdma = Rdma::of(limits, &Options::default());
    // Writes with data that consume receives consume the library's, so programs need no FI_RX_CQ_DATA.
    let accesses = rdma.read && rdma.write;
    for info in &mut all {
        info.tx_attr.inject_size = if inject > limits.inline { limits.inline_long } else { limits.inline };
        info.ep_attr.max_msg_size = if accesses { rdma.longest.max(limits.mtu) } else { limits.mtu };
        if !accesses {
            info.caps -= Caps::RMA | Caps::READ | Caps::WRITE | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
        }
    }
    // A program that requests no remote memory access gets the size limit of messages.
    let mut short: Vec<Info> = all.clone();
    for info in &mut short {
        info.ep_attr.max_msg_size = limits.mtu;
        info.caps -= Caps::RMA | Caps::READ | Caps::WRITE | Caps::REMOTE_READ | Caps::REMOTE_WRITE;
    }
    [short, all].concat()
}

/// Narrows an offer to fabric `efa`. `rx_attr.size` follows `FI_EFA_RX_SIZE`, as in C's provider: programs count
/// messages by it, and both ends must count to the same number. `tx_attr.size` follows `FI_EFA_TX_SIZE` where that is
/// set, as in C's. The setting's default counts packets, which bounds no number of operations.
fn narrow_rdm(mut info: Info) -> Info {
    info = narrow(info);
    info.rx_attr.size = settings::RX_SIZE.get();
    info.tx_attr.size = settings::TX_SIZE.explicit().unwrap_or(info.tx_attr.size);
    info
}

const TYPES: [(EpType, Narrow); 1] = [(EpType::Rdm, narrow_rdm)];

fn refusal(field: &'static str, wanted: impl Into<String>, offered: impl Into<String>) -> Refusal {
    offer::refusal(NAME, field, wanted, offered)
}

// SAFETY: it opens only objects of `ofi-core`, which keeps the promises for every transport; an operation is reported
// when its memory is copied, and the device touches only packets of the library.
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
        Ok(FabricCore::<Composite<EfaOrShm>>::open(info))
    }

    fn has_device_keys(&self) -> bool {
        true
    }
}

fn try_offers(request: &Request<'_>) -> Result<Offers, Refusal> {
    let mut devices = srd::devices().map_err(|why| refusal("device", "an EFA device", why))?;
    let (list, names) = (settings::IFACE.get(), names_of(&devices));
    devices.retain(|device| settings::uses(&list, device.name()));
    if devices.is_empty() {
        return Err(refusal("FI_EFA_IFACE", list, names));
    }
    let hinted = request.hints.map_or(AddrFormat::Unspec, |hints| hints.info.addr_format);
    if !matches!(hinted, AddrFormat::Unspec | AddrFormat::Efa) {
        return Err(refusal("addr_format", hinted.to_string(), "FI_ADDR_EFA"));
    }
    offer::check_formats(NAME, request, AddrFormat::Efa)?;
    let (wanted, peer) = (wanted_device(request)?, named_peer(request)?);
    let (mut offers, mut direct) = (Offers::default(), Vec::new());
    // libfabric 1.x lacks fabric `efa-direct`: programs for it find each other over fabric `efa`.
    let named = request.hints.is_some_and(|hints| hints.info.fabric_attr.name == DIRECT);
    let offers_direct = named || request.version >= Version::new(2, 0);
    let wants_gpus = request.hints.is_some_and(|hints| hints.info.caps.contains(Caps::HMEM));
    let takes_gpus = offers_direct && wants_gpus && hmem::all_export();
    for device in devices.iter().filter(|device| wanted.is_none_or(|gid| gid == device.gid())) {
        let reach = Caps::LOCAL_COMM | Caps::REMOTE_COMM;
        let format = AddrFormat::Efa;
        let base = Base { name: NAME, protocol: Protocol::EFA, reach, format, rma_iov_limit: IOV_LIMIT };
        let mut variants = base.variants();
        for info in &mut variants {
            offer::name_ends(info, request, peer.as_ref());
            info.src_addr = Some(address::unmade(&device.gid()));
            info.domain_attr.name = domain_name(device.name());
            info.nic = Some(device.nic());
        }
        let limits = device.limits();
        let inject = request.hints.map_or(0, |hints| hints.info.tx_attr.inject_size);
        let (types, of_direct) =
            ([(EpType::Rdm, narrow_direct as Narrow)], direct_variants(&variants, &limits, inject));
        // The device alone accesses memory there, so it must reach that of every GPU.
        let answer = match takes_gpus {
            true => offer::answer_with_devices(&types, of_direct, request),
            false => offer::answer(&types, &of_direct, request),
        };
        if offers_direct {
            direct.extend(answer.infos);
        }
        let answer = offer::answer_with_devices(&TYPES, variants, request);
        offers.infos.extend(answer.infos);
        offers.refusals.extend(answer.refusals);
    }
    // First, as in C's provider: this fabric is faster for programs that can use it.
    offers.infos.splice(0..0, direct);
    if !offers.infos.is_empty() {
        offers.refusals.clear();
    } else if offers.refusals.is_empty() {
        let has: Vec<String> =
            devices.iter().map(|device| Ipv6Addr::from(device.gid()).to_string()).collect();
        let wanted = wanted.map_or(String::new(), |gid| Ipv6Addr::from(gid).to_string());
        return Err(refusal("src_addr", wanted, has.join(", ")));
    }
    Ok(offers)
}

fn names_of(devices: &[Arc<dyn srd::Device>]) -> String {
    devices.iter().map(|device| device.name()).collect::<Vec<_>>().join(", ")
}

/// The peer that node and service name without `FI_SOURCE`.
fn named_peer(request: &Request<'_>) -> Result<Option<Address>, Refusal> {
    let (node, service) = (request.node, request.service);
    if request.flags.contains(GetinfoFlags::SOURCE) || (node, service) == (None, None) {
        return Ok(None);
    }
    let named = node.or(service).unwrap_or_default();
    address::resolve(node, service)
        .map(Some)
        .map_err(|error| refusal("node and service", named, error.to_string()))
}

/// The requested local device: from a node with `FI_SOURCE`, or from an address of the hints. A service does not affect
/// this end, as in C's provider: the device chooses the queue pair.
fn wanted_device(request: &Request<'_>) -> Result<Option<Gid>, Refusal> {
    let node = request.node.filter(|_| request.flags.contains(GetinfoFlags::SOURCE));
    if let Some(node) = node.filter(|node| !node.is_empty()) {
        let gid = address::device_named(node);
        return gid.map(Some).map_err(|error| refusal("node (FI_SOURCE)", node, error.to_string()));
    }
    let hinted = request.hints.and_then(|hints| hints.info.src_addr.as_ref());
    let gid = hinted.map(|hinted| {
        let gid = address::device(hinted);
        gid.map_err(|error| refusal("src_addr", hinted.to_string(), error.to_string()))
    });
    gid.transpose()
}
