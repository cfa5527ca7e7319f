//! The endpoint: `ep_attr`.

use super::caps::REMOTE_ACCESS;
use super::limits::{AUTH_KEYS, AUTH_KEYS_IN_AV};
use super::{Negotiation, models};
use ofi_api::{AV_AUTH_KEY, Caps, EpAttr, SHARED_CONTEXT, TAG_CCL, TAG_MAX_FORMAT, TAG_MPI};

/// The bits of a tag in the format `FI_TAG_MPI`: a tag of 32 and a payload identifier of 8 (fi_tagged(3)).
const MPI_BITS: u32 = 40;
/// The bits of a tag in the format `FI_TAG_CCL`: a payload identifier.
const CCL_BITS: u32 = 8;

/// The endpoint of an info with these capabilities.
pub(super) fn ep_attr(talk: &mut Negotiation<'_>, caps: Caps) -> EpAttr {
    let (offer, hints) = (&talk.offer.ep_attr, &talk.hints.ep_attr);
    let ep_type = models::ep_type(talk);
    let protocol = models::protocol(talk);
    if hints.protocol_version > offer.protocol_version {
        let offered = format_args!("at most {}", offer.protocol_version);
        talk.refuse("ep_attr.protocol_version", hints.protocol_version, offered);
    }
    // A minimum, granted as requested, as C's providers do: `fi_pingpong` asks for its payload's length, and sends
    // more.
    talk.at_most("ep_attr.max_msg_size", hints.max_msg_size, offer.max_msg_size);
    let [raw, war, waw] = order_sizes(talk, caps);
    let (auth_key_size, auth_key) = auth_key(talk);
    EpAttr {
        ep_type,
        protocol,
        protocol_version: offer.protocol_version,
        max_msg_size: offer.max_msg_size,
        msg_prefix_size: offer.msg_prefix_size,
        max_order_raw_size: raw,
        max_order_war_size: war,
        max_order_waw_size: waw,
        mem_tag_format: tag_format(talk, caps),
        tx_ctx_cnt: tx_ctx_cnt(talk),
        rx_ctx_cnt: rx_ctx_cnt(talk),
        auth_key_size,
        auth_key,
    }
}

/// The sizes up to which remote accesses keep their order. They mean nothing without remote access.
fn order_sizes(talk: &mut Negotiation<'_>, caps: Caps) -> [usize; 3] {
    let (offer, hints) = (&talk.offer.ep_attr, &talk.hints.ep_attr);
    let sizes = [
        ("ep_attr.max_order_raw_size", hints.max_order_raw_size, offer.max_order_raw_size),
        ("ep_attr.max_order_war_size", hints.max_order_war_size, offer.max_order_war_size),
        ("ep_attr.max_order_waw_size", hints.max_order_waw_size, offer.max_order_waw_size),
    ];
    sizes.map(|(field, wanted, limit)| match caps.intersects(REMOTE_ACCESS) {
        true => talk.at_most(field, wanted, limit),
        false => limit,
    })
}

/// Which bits of a tag may be used. A named format is granted by name by a provider with enough bits, because it only
/// restricts the application; a pattern of bits is granted as the provider's own pattern, which must reach as high.
fn tag_format(talk: &mut Negotiation<'_>, caps: Caps) -> u64 {
    let offered = talk.offer.ep_attr.mem_tag_format;
    let wanted = talk.hints.ep_attr.mem_tag_format;
    if wanted == 0 || !caps.contains(Caps::TAGGED) {
        return offered;
    }
    let (possible, granted) = match (offered, wanted) {
        (TAG_MPI, TAG_MPI | TAG_CCL) | (TAG_CCL, TAG_CCL) => (true, wanted),
        (TAG_MPI | TAG_CCL, _) => (false, offered),
        (_, TAG_MPI) => (tag_bits(offered) >= MPI_BITS, TAG_MPI),
        (_, TAG_CCL) => (tag_bits(offered) >= CCL_BITS, TAG_CCL),
        (0, pattern) => (true, pattern),
        (_, pattern) => (tag_bits(offered) >= tag_bits(pattern), offered),
    };
    if !possible {
        let (wanted, offered) = (tag_text(wanted), tag_text(offered));
        talk.refuse("ep_attr.mem_tag_format", wanted, offered);
    }
    granted
}

/// The number of low bits that a pattern leaves to the application; zero leaves all.
fn tag_bits(pattern: u64) -> u32 {
    if pattern == 0 { u64::BITS } else { u64::BITS - pattern.leading_zeros() }
}

fn tag_text(format: u64) -> String {
    match format {
        TAG_MPI => "FI_TAG_MPI".into(),
        TAG_CCL => "FI_TAG_CCL".into(),
        pattern if pattern >= TAG_MAX_FORMAT => format!("{} bits ({pattern:#x})", tag_bits(pattern)),
        other => format!("format {other}"),
    }
}

fn tx_ctx_cnt(talk: &mut Negotiation<'_>) -> usize {
    let counts = (talk.hints.ep_attr.tx_ctx_cnt, talk.offer.ep_attr.tx_ctx_cnt);
    let domain = &talk.offer.domain_attr;
    ctx_cnt(talk, "ep_attr.tx_ctx_cnt", counts, domain.max_ep_tx_ctx, domain.max_ep_stx_ctx)
}

fn rx_ctx_cnt(talk: &mut Negotiation<'_>) -> usize {
    let counts = (talk.hints.ep_attr.rx_ctx_cnt, talk.offer.ep_attr.rx_ctx_cnt);
    let domain = &talk.offer.domain_attr;
    ctx_cnt(talk, "ep_attr.rx_ctx_cnt", counts, domain.max_ep_rx_ctx, domain.max_ep_srx_ctx)
}

/// The number of the endpoint's contexts: up to the domain's limit, or a shared one if the domain can share. Zero
/// requests the provider's usual number, unless that is "shared", which the application must request explicitly. The
/// usual number, and one, are possible whatever the limit.
fn ctx_cnt(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    (wanted, usual): (usize, usize),
    limit: usize,
    sharers: usize,
) -> usize {
    let limit = if usual == SHARED_CONTEXT { limit.max(1) } else { limit.max(usual).max(1) };
    match wanted {
        SHARED_CONTEXT if sharers == 0 => talk.refuse(field, "FI_SHARED_CONTEXT", "no shared context"),
        SHARED_CONTEXT => {}
        0 if usual == SHARED_CONTEXT => talk.refuse(field, "contexts of its own", "only FI_SHARED_CONTEXT"),
        0 => return usual,
        count if count > limit => talk.refuse(field, count, format_args!("at most {limit}")),
        _ => {}
    }
    wanted
}

/// The authorization key of the endpoint. With the keys in the address vector it must have none.
fn auth_key(talk: &mut Negotiation<'_>) -> (usize, Vec<u8>) {
    let (offer, hints) = (&talk.offer.ep_attr, &talk.hints.ep_attr);
    if talk.api < AUTH_KEYS {
        return (0, Vec::new());
    }
    if talk.api >= AUTH_KEYS_IN_AV && talk.hints.domain_attr.auth_key_size == AV_AUTH_KEY {
        if hints.auth_key_size != 0 || !hints.auth_key.is_empty() {
            let offered = "none: with FI_AV_AUTH_KEY the keys are in the address vector";
            talk.refuse("ep_attr.auth_key_size", hints.auth_key_size, offered);
        }
        return (0, Vec::new());
    }
    key_of(talk, "ep_attr.auth_key_size", (hints.auth_key_size, &hints.auth_key), offer.auth_key_size)
}

/// A key of the length that the hints give, not longer than `limit`. A length without a key asks whether
/// keys of that length are possible.
pub(super) fn key_of(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    (size, key): (usize, &[u8]),
    limit: usize,
) -> (usize, Vec<u8>) {
    if !key.is_empty() && key.len() != size {
        talk.refuse(field, size, format_args!("the length of the key, {}", key.len()));
        return (size, key.to_vec());
    }
    if size == 0 {
        return (0, Vec::new()); // none is used (fi_endpoint(3)), however long one may be
    }
    // The largest number has another meaning, which an offer of "any length" must not take on.
    (talk.at_most(field, size, limit.min(AV_AUTH_KEY - 1)), key.to_vec())
}
