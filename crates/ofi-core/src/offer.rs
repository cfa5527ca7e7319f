//! The common offer of all transports. The core implements most of it, so it is defined once: a provider adds its own
//! properties, narrows the offer for each type of endpoint, and calls the negotiation.

use ofi_api::{
    AddrFormat, Address, AvType, Caps, EpAttr, EpType, GetinfoFlags, Info, MrMode, MsgOrder, Offers, OpFlags,
    Progress, Protocol, Refusal, Request, ResourceMgmt, Threading, Version,
};

use crate::auth;
use crate::hmem;
use crate::negotiate::{negotiate_any, provider_matches};

/// The maximum length of an injected message, in bytes, as C libfabric's shm and udp have it.
pub const INJECT: usize = 4096;
/// Operations that an endpoint may have outstanding in each direction by default.
const SIZE: usize = 1024;
/// The most that may be requested.
pub(crate) const MAX_SIZE: usize = 1 << 20;
/// Pieces of local memory in one operation.
pub(crate) const IOV_LIMIT: usize = 8;
/// No limit on the number of objects.
const MANY: usize = 1 << 16;
/// The most transmit contexts, and receive contexts, of a scalable endpoint.
pub(crate) const CONTEXTS: usize = 256;

/// The version of all providers: the library's.
pub fn version() -> Version {
    Version::new(
        env!("CARGO_PKG_VERSION_MAJOR").parse().unwrap_or(0),
        env!("CARGO_PKG_VERSION_MINOR").parse().unwrap_or(0),
    )
}

/// The properties of a transport in an offer.
#[derive(Clone, Copy, Debug)]
pub struct Base {
    /// Of the provider, its fabric and its domain.
    pub name: &'static str,
    /// The protocol of its packets.
    pub protocol: Protocol,
    /// The peers that it reaches: `FI_LOCAL_COMM`, `FI_REMOTE_COMM`.
    pub reach: Caps,
    /// Of all addresses.
    pub format: AddrFormat,
    /// Pieces of remote memory in one operation.
    pub rma_iov_limit: usize,
}

/// The options between which an application chooses, where more costs something.
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

impl Base {
    /// Reliable endpoints, in all variants, the preferred one first: keys that cannot be guessed, manual progress, no
    /// waiting for messages before a direct access.
    pub fn variants(&self) -> Vec<Info> {
        let mut all = Vec::new();
        for order in [free_order(), free_order() | MsgOrder::WAS | MsgOrder::RAS] {
            for size in [SIZE, MAX_SIZE] {
                for progress in [Progress::Manual, Progress::Auto] {
                    // The deprecated names of the two whole modes mean the first and the last.
                    for mr_mode in [
                        MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::BASIC,
                        MrMode::PROV_KEY,
                        MrMode::VIRT_ADDR,
                        MrMode::SCALABLE,
                    ] {
                        all.push(self.info(Variant { mr_mode, progress, size, order }));
                    }
                }
            }
        }
        all
    }

    fn info(&self, variant: Variant) -> Info {
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
                | self.reach,
            addr_format: self.format,
            ..Info::default()
        };
        info.ep_attr = EpAttr {
            ep_type: EpType::Rdm,
            protocol: self.protocol,
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
        (tx.iov_limit, tx.rma_iov_limit) = (IOV_LIMIT, self.rma_iov_limit);
        let rx = &mut info.rx_attr;
        rx.op_flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
        (rx.msg_order, rx.size, rx.iov_limit) = (variant.order, variant.size, IOV_LIMIT);
        let domain = &mut info.domain_attr;
        domain.name = self.name.into();
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
        domain.caps = self.reach;
        info.fabric_attr.name = self.name.into();
        info.fabric_attr.prov_name = self.name.into();
        info.fabric_attr.prov_version = version();
        info
    }
}

/// The offer of a reliable endpoint, narrowed to one type.
pub type Narrow = fn(Info) -> Info;

/// An endpoint with one peer, which needs no address vector, and is never a scalable one.
pub fn connected(mut info: Info) -> Info {
    info.ep_attr.ep_type = EpType::Msg;
    let of_many = Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV | Caps::SOURCE | Caps::SOURCE_ERR;
    info.caps -= of_many | Caps::COLLECTIVE | Caps::SHARED_AV | Caps::AV_USER_ID | Caps::NAMED_RX_CTX;
    (info.domain_attr.max_ep_tx_ctx, info.domain_attr.max_ep_rx_ctx) = (1, 1);
    info
}

/// The refusal of one hint by a provider.
pub fn refusal(
    provider: &str,
    field: &'static str,
    wanted: impl Into<String>,
    offered: impl Into<String>,
) -> Refusal {
    Refusal { provider: provider.into(), field, wanted: wanted.into(), offered: offered.into() }
}

/// Checks that the addresses in the hints are of the format that all of an answer have.
///
/// # Errors
/// The refusal of the first that is not.
pub fn check_formats(provider: &str, request: &Request<'_>, format: AddrFormat) -> Result<(), Refusal> {
    let Some(hints) = request.hints else { return Ok(()) };
    for (field, address) in [("src_addr", &hints.info.src_addr), ("dest_addr", &hints.info.dest_addr)] {
        if let Some(address) = address.as_ref().filter(|address| address.format() != format) {
            let offered = format!("an address of {format}, the format of all others");
            return Err(refusal(provider, field, format!("{address} of {}", address.format()), offered));
        }
    }
    Ok(())
}

/// Puts the addresses of a request into an offer: those of the hints, and the one that node and service name.
pub fn name_ends(info: &mut Info, request: &Request<'_>, named: Option<&Address>) {
    if let Some(hints) = request.hints {
        info.src_addr.clone_from(&hints.info.src_addr);
        info.dest_addr.clone_from(&hints.info.dest_addr);
    }
    if let Some(named) = named {
        let end = match request.flags.contains(GetinfoFlags::SOURCE) {
            true => &mut info.src_addr,
            false => &mut info.dest_addr,
        };
        *end = Some(named.clone());
    }
}

/// The first API whose `fi_mr_attr` names the interface of the memory.
const HMEM_SINCE: Version = Version::new(1, 10);

/// As [`answer`], for a provider that also copies device memory. An info has `FI_HMEM` only on request, because every
/// operation then checks whether its memory is a device's; and only if a device is found.
pub fn answer_with_devices(
    types: &[(EpType, Narrow)],
    mut variants: Vec<Info>,
    request: &Request<'_>,
) -> Offers {
    if !request.hints.is_some_and(|hints| hints.info.caps.contains(Caps::HMEM)) {
        return answer(types, &variants, request);
    }
    let missing = match request.version < HMEM_SINCE {
        true => Some(format!("API {HMEM_SINCE} or later, whose fi_mr_attr has an iface")),
        false => hmem::missing(),
    };
    if missing.is_none() {
        for info in &mut variants {
            info.caps |= Caps::HMEM;
            info.domain_attr.mr_mode |= MrMode::HMEM;
        }
    }
    let mut offers = answer(types, &variants, request);
    if let (Some(missing), Some(info)) = (missing, variants.first()) {
        // Replaces the refusal that only lists the capabilities on offer.
        offers.refusals.retain(|refusal| refusal.field != "caps" || refusal.wanted != "FI_HMEM");
        offers.refusals.push(refusal(&info.fabric_attr.prov_name, "caps", "FI_HMEM", missing));
    }
    offers
}

/// The answer to a request: for each of `types`, preferred first, the grant of `variants`. A repeated type offers more
/// at a higher cost, and is used only if the earlier one does not meet the request.
pub fn answer(types: &[(EpType, Narrow)], variants: &[Info], request: &Request<'_>) -> Offers {
    let mut infos: Vec<Info> = Vec::new();
    let mut refused = Vec::new();
    let provider = variants.first().map_or("", |info| &info.fabric_attr.prov_name);
    for (ep_type, narrow) in eligible(types, provider, request) {
        if infos.iter().any(|info| info.ep_attr.ep_type == ep_type) {
            continue;
        }
        let offers = variants.iter().map(|info| narrow(info.clone()));
        match negotiate_any(offers, request.hints, request.version) {
            Ok(info) => infos.push(info),
            Err(refusals) => refused.push(refusals),
        }
    }
    let refusals = if infos.is_empty() { refused.into_iter().next().unwrap_or_default() } else { Vec::new() };
    Offers { infos, refusals }
}

/// The types that may be granted; or, if none may, the one whose refusals are reported: the requested one, or else the
/// first. Each type takes up to dozens of negotiations, and some programs call getinfo for every endpoint.
fn eligible(types: &[(EpType, Narrow)], provider: &str, request: &Request<'_>) -> Vec<(EpType, Narrow)> {
    let hinted = request.hints.map_or(EpType::Unspec, |hints| hints.info.ep_attr.ep_type);
    let mut eligible = types.to_vec();
    if hinted != EpType::Unspec {
        eligible.retain(|(ep_type, _)| *ep_type == hinted);
        if eligible.is_empty() {
            eligible.extend(types.first());
        }
    }
    if is_for_another(provider, request) {
        eligible.truncate(1);
    }
    eligible
}

/// Whether the hints name another provider, so that nothing of this one can be granted.
pub fn is_for_another(provider: &str, request: &Request<'_>) -> bool {
    request.hints.is_some_and(|hints| !provider_matches(&hints.info.fabric_attr.prov_name, provider))
}
