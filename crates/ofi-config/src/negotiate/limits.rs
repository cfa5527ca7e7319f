//! The domain: `domain_attr`. Sizes and counts, and the choices that other files make.

use super::endpoint::key_of;
use super::{Negotiation, caps, models, names};
use ofi_api::{AV_AUTH_KEY, Caps, DomainAttr, EpType, Mode, MrMode, Version};

/// The capabilities that concern a domain (fi_domain(3), "caps").
const DOMAIN_CAPS: Caps = Caps::LOCAL_COMM
    .union(Caps::REMOTE_COMM)
    .union(Caps::SHARED_AV)
    .union(Caps::DIRECTED_RECV)
    .union(Caps::AV_USER_ID)
    .union(Caps::PEER)
    .union(Caps::XPU);

/// The first interface with authorization keys, and with checks on most of the domain's limits.
pub(super) const AUTH_KEYS: Version = Version::new(1, 5);
/// The first interface with authorization keys in address vectors.
pub(super) const AUTH_KEYS_IN_AV: Version = Version::new(1, 20);
/// The first interface with groups of peers.
const GROUPS: Version = Version::new(2, 0);
/// The first interface in which counters have a range.
const COUNTER_RANGES: Version = Version::new(2, 5);

/// The domain of an info with these capabilities and this registration mode.
///
/// Limits are checked, and granted as requested. The numbers that the man page calls optimal (`cq_cnt`, `ep_cnt`,
/// `tx_ctx_cnt`, `rx_ctx_cnt`) are not limits: the provider's are reported.
pub(super) fn domain_attr(talk: &mut Negotiation<'_>, caps: Caps, mr_mode: MrMode) -> DomainAttr {
    let (offer, hints) = (&talk.offer.domain_attr, &talk.hints.domain_attr);
    let progress = models::progress(talk);
    let (auth_key_size, auth_key) = auth_key(talk);
    macro_rules! granted {
        ($field:ident) => {
            talk.at_most(concat!("domain_attr.", stringify!($field)), hints.$field, offer.$field)
        };
        ($field:ident since $version:ident) => {
            talk.at_most_since(
                $version,
                concat!("domain_attr.", stringify!($field)),
                hints.$field,
                offer.$field,
            )
        };
    }
    let mr_key_size = granted!(mr_key_size);
    let provider_keys = mr_mode.expanded().contains(MrMode::PROV_KEY);
    DomainAttr {
        domain: hints.domain.clone().or_else(|| offer.domain.clone()),
        name: names::domain_name(talk),
        threading: models::threading(talk),
        control_progress: progress,
        progress,
        resource_mgmt: models::resource_mgmt(talk),
        av_type: models::av_type(talk),
        mr_mode,
        // The provider's keys have the provider's length.
        mr_key_size: if provider_keys { offer.mr_key_size } else { mr_key_size },
        cq_data_size: granted!(cq_data_size),
        cq_cnt: offer.cq_cnt,
        ep_cnt: offer.ep_cnt,
        tx_ctx_cnt: offer.tx_ctx_cnt,
        rx_ctx_cnt: offer.rx_ctx_cnt,
        max_ep_tx_ctx: granted!(max_ep_tx_ctx),
        max_ep_rx_ctx: granted!(max_ep_rx_ctx),
        max_ep_stx_ctx: granted!(max_ep_stx_ctx),
        max_ep_srx_ctx: granted!(max_ep_srx_ctx),
        cntr_cnt: granted!(cntr_cnt since AUTH_KEYS),
        mr_iov_limit: granted!(mr_iov_limit since AUTH_KEYS),
        caps: domain_caps(talk, caps),
        mode: domain_mode(talk),
        auth_key,
        auth_key_size,
        max_err_data: granted!(max_err_data since AUTH_KEYS),
        mr_cnt: granted!(mr_cnt since AUTH_KEYS),
        tclass: models::tclass(talk, "domain_attr.tclass", hints.tclass, offer.tclass),
        max_ep_auth_key: granted!(max_ep_auth_key since AUTH_KEYS_IN_AV),
        max_group_id: granted!(max_group_id since GROUPS),
        max_cntr_value: counter_range(
            talk,
            "domain_attr.max_cntr_value",
            hints.max_cntr_value,
            offer.max_cntr_value,
        ),
        max_err_cntr_value: counter_range(
            talk,
            "domain_attr.max_err_cntr_value",
            hints.max_err_cntr_value,
            offer.max_err_cntr_value,
        ),
        max_xpu_ctx_cnt: offer.max_xpu_ctx_cnt,
    }
}

/// The modes of the domain, as those of the sides; programs before 1.5 do not know the field.
fn domain_mode(talk: &mut Negotiation<'_>) -> Mode {
    let (needed, accepted) = (talk.offer.domain_attr.mode, talk.hints.domain_attr.mode);
    match talk.api < AUTH_KEYS {
        true => needed,
        false => caps::attr_mode(talk, "domain_attr.mode", needed, accepted),
    }
}

/// The capabilities of the domain: the endpoint's granted ones, all secondary ones, and those that the hints name here.
fn domain_caps(talk: &mut Negotiation<'_>, caps: Caps) -> Caps {
    let all = talk.offer.domain_attr.caps;
    let offered = if all.is_empty() { talk.offer.caps } else { all } & DOMAIN_CAPS;
    let asked = match talk.api < AUTH_KEYS {
        true => Caps::empty(),
        false => talk.hints.domain_attr.caps,
    };
    let missing = asked.difference(offered);
    if !missing.is_empty() {
        talk.refuse("domain_attr.caps", missing, offered);
    }
    offered & (caps | asked | Caps::SECONDARY)
}

/// The range of a counter. Zero in an offer is the whole range. The provider's range is granted, because the
/// application must know where its counters end.
fn counter_range(talk: &mut Negotiation<'_>, field: &'static str, wanted: u64, offered: u64) -> u64 {
    let range = if offered == 0 { u64::MAX } else { offered };
    talk.at_most_since(COUNTER_RANGES, field, wanted, range);
    range
}

/// The authorization key of the domain, or the value that says that the keys are in the address vector, which a
/// provider with keys must support (fi_domain(3)).
fn auth_key(talk: &mut Negotiation<'_>) -> (usize, Vec<u8>) {
    let (offer, hints) = (&talk.offer.domain_attr, &talk.hints.domain_attr);
    let (field, ep_type) = ("domain_attr.auth_key_size", talk.offer.ep_attr.ep_type);
    if talk.api < AUTH_KEYS {
        return (0, Vec::new());
    }
    if hints.auth_key_size != AV_AUTH_KEY || talk.api < AUTH_KEYS_IN_AV {
        return key_of(talk, field, (hints.auth_key_size, &hints.auth_key), offer.auth_key_size);
    }
    if !hints.auth_key.is_empty() {
        talk.refuse(field, "FI_AV_AUTH_KEY and a key", "one of the two");
    } else if offer.auth_key_size == 0 {
        talk.refuse(field, "FI_AV_AUTH_KEY", "no authorization keys");
    } else if ep_type == EpType::Msg {
        talk.refuse(field, "FI_AV_AUTH_KEY", "a key: endpoints of FI_EP_MSG have no address vector");
    }
    (AV_AUTH_KEY, Vec::new())
}
