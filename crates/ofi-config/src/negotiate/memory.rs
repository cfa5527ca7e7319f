//! `mr_mode`: the requirements of registration on the application.
//!
//! From API 1.5 the hints list what the application can do, and only what the provider needs of it is
//! granted (fi_mr(3)). Before that, and with the deprecated values, it is one of two whole modes: BASIC
//! (virtual addresses, the provider's keys, allocated pages) or SCALABLE (offsets, the application's keys).

use super::caps::{REMOTE_ACCESS, TARGET};
use super::{BITS_OF_MR_MODE, Negotiation};
use ofi_api::{Caps, MrMode};

/// The registration mode, and whether local buffers must be registered under the old name
/// [`LOCAL_MR`](ofi_api::Mode::LOCAL_MR).
///
/// An empty `mr_mode` means scalable, as the man page says and as C tells providers; C itself accepts it, and then
/// silently removes remote access.
pub(super) fn mr_mode(talk: &mut Negotiation<'_>, caps: Caps) -> (MrMode, bool) {
    let offered = talk.offer.domain_attr.mr_mode;
    let wanted = talk.hints.domain_attr.mr_mode;
    let needed = needed(offered, caps);
    if is_whole(talk) {
        let granted = match wanted {
            MrMode::BASIC | MrMode::SCALABLE if offered.contains(wanted) => wanted,
            // API below 1.5, zero: either mode is acceptable, so the provider's native one.
            none if none.is_empty() && offered.intersects(MrMode::DEPRECATED) => natural(offered),
            _ => {
                let whole = offered.intersection(MrMode::DEPRECATED);
                let offered = format_args!("of BASIC and SCALABLE, each by itself: [ {whole} ]");
                talk.refuse("domain_attr.mr_mode", format_args!("[ {wanted} ]"), offered);
                wanted
            }
        };
        return (granted, needed.contains(MrMode::LOCAL));
    }
    let missing = needed.difference(wanted);
    if !missing.is_empty() {
        let offered = format_args!("a provider that needs {missing}");
        match wanted.is_empty() {
            true => talk.refuse("domain_attr.mr_mode", "scalable registration", offered),
            false => talk.refuse("domain_attr.mr_mode", wanted, offered),
        }
    }
    (needed, false)
}

/// The part of `caps` that the hints' `mr_mode` permits, for hints without capabilities: being a target, device memory
/// and collectives are dropped if the application does not register as the provider needs.
pub(super) fn allowed_caps(talk: &Negotiation<'_>, caps: Caps) -> Caps {
    if is_whole(talk) {
        return caps;
    }
    let accepted = talk.hints.domain_attr.mr_mode;
    let missing = needed(talk.offer.domain_attr.mr_mode, caps).difference(accepted);
    let mut allowed = caps;
    if missing.intersects(MrMode::RMA_TARGET) {
        allowed -= TARGET | Caps::RMA_EVENT;
        if !allowed.intersects(Caps::RMA_DIRECTIONS) {
            allowed -= REMOTE_ACCESS; // which without a direction would mean all of them
        }
    }
    for (mode, cap) in
        [(MrMode::HMEM, Caps::HMEM), (MrMode::COLLECTIVE, Caps::COLLECTIVE), (MrMode::XPU_DESC, Caps::XPU)]
    {
        if missing.contains(mode) {
            allowed -= cap;
        }
    }
    allowed
}

/// The bits of an offer that matter for an endpoint with these capabilities.
fn needed(offered: MrMode, caps: Caps) -> MrMode {
    let mut needed = offered.difference(MrMode::DEPRECATED);
    for (mode, cap) in [
        (MrMode::HMEM, Caps::HMEM),
        (MrMode::COLLECTIVE, Caps::COLLECTIVE),
        (MrMode::XPU_DESC, Caps::XPU),
        (MrMode::RMA_EVENT, Caps::RMA_EVENT),
    ] {
        if !caps.contains(cap) {
            needed -= mode;
        }
    }
    if caps.intersects(REMOTE_ACCESS) && caps.intersects(TARGET) {
        return needed;
    }
    needed -= MrMode::RMA_TARGET;
    let local = MrMode::LOCAL | MrMode::HMEM | MrMode::COLLECTIVE | MrMode::XPU_DESC;
    // Nothing is ever registered, so how registration works does not matter.
    if needed.intersects(local) { needed } else { MrMode::empty() }
}

/// Whether the hints choose between the two whole modes instead of listing bits.
fn is_whole(talk: &Negotiation<'_>) -> bool {
    talk.api < BITS_OF_MR_MODE || talk.hints.domain_attr.mr_mode.intersects(MrMode::DEPRECATED)
}

fn natural(offered: MrMode) -> MrMode {
    let basic = offered.intersects(MrMode::BASIC_BITS) || !offered.contains(MrMode::SCALABLE);
    if basic && offered.contains(MrMode::BASIC) { MrMode::BASIC } else { MrMode::SCALABLE }
}
