//! Capabilities and modes.
//!
//! Primary capabilities are granted only if requested; secondary ones also without a request if they cost nothing; and
//! all modifiers (send, receive, read, write, and being the target of these) are implied if none is given
//! (fi_getinfo(3), "Capabilities").

use super::{Negotiation, memory};
use ofi_api::{Caps, Hints, Info, Mode};

/// Secondary capabilities that are granted only on request, because each costs a look-up, an event or a lock for every
/// message or access.
pub(super) const COSTLY: Caps =
    Caps::SOURCE.union(Caps::SOURCE_ERR).union(Caps::RMA_EVENT).union(Caps::TRIGGER);

/// Capabilities of messages, which `SEND` and `RECV` restrict.
const MESSAGES: Caps = Caps::MSG.union(Caps::TAGGED);

/// Capabilities of remote memory, which `READ`, `WRITE`, `REMOTE_READ` and `REMOTE_WRITE` restrict.
pub(super) const REMOTE_ACCESS: Caps = Caps::RMA.union(Caps::ATOMIC);

/// The rights that make an endpoint a target.
pub(super) const TARGET: Caps = Caps::REMOTE_READ.union(Caps::REMOTE_WRITE);

/// The capabilities of the endpoint.
///
/// Hints without capabilities get everything that their `mr_mode` allows. Hints that name capabilities are refused if
/// their `mr_mode` does not allow these (C silently grants less than was requested).
///
/// An implied direction that the provider does not have is not granted, and not refused either (as in C):
/// a provider that can only start transfers serves a program that asks for just `FI_RMA`.
pub(super) fn info_caps(talk: &mut Negotiation<'_>) -> Caps {
    let offered = with_directions(talk.offer.caps, Caps::all());
    let asked = talk.hints.caps;
    if asked.is_empty() {
        return memory::allowed_caps(talk, offered);
    }
    let missing = asked.difference(offered);
    if !missing.is_empty() {
        talk.refuse("caps", missing, offered);
    }
    let free = offered.intersection(Caps::SECONDARY).difference(COSTLY);
    let mut granted = with_directions(asked.intersection(offered), offered) | free;
    if asked.contains(Caps::SOURCE_ERR) {
        // The man page requires the two together, and one is useless without the other.
        granted |= offered.intersection(Caps::SOURCE);
    }
    granted
}

/// The capabilities for hints that name none: all of the offer.
pub(super) fn unasked(offer: &Info, hints: Option<&Hints>) -> Caps {
    match hints {
        Some(hints) if hints.info.caps.is_empty() => with_directions(offer.caps, Caps::all()),
        _ => Caps::empty(),
    }
}

/// `caps`, with the directions that they imply as far as these are in `available`.
pub fn with_directions(caps: Caps, available: Caps) -> Caps {
    let mut all = caps;
    for (group, directions) in [(MESSAGES, Caps::MSG_DIRECTIONS), (REMOTE_ACCESS, Caps::RMA_DIRECTIONS)] {
        if caps.intersects(group) && !caps.intersects(directions) {
            all |= directions.intersection(available);
        }
    }
    all
}

/// The modes of the endpoint: what the provider needs must be in the hints, and only that is granted.
/// `local_mr` adds the old name for registered local buffers.
pub(super) fn info_mode(talk: &mut Negotiation<'_>, local_mr: bool) -> Mode {
    let needed = talk.offer.mode | if local_mr { Mode::LOCAL_MR } else { Mode::empty() };
    let accepted = talk.hints.mode;
    needs(talk, "mode", needed, accepted)
}

/// The modes of an attribute: hints of zero stand for those of the info.
pub(super) fn attr_mode(
    talk: &mut Negotiation<'_>,
    field: &'static str,
    needed: Mode,
    accepted: Mode,
) -> Mode {
    let accepted = if accepted.is_empty() { talk.hints.mode } else { accepted };
    needs(talk, field, needed, accepted)
}

fn needs(talk: &mut Negotiation<'_>, field: &'static str, needed: Mode, accepted: Mode) -> Mode {
    let missing = needed.difference(accepted);
    if !missing.is_empty() {
        let offered = format_args!("a provider that needs {missing}");
        match accepted.is_empty() {
            true => talk.refuse(field, "no mode", offered),
            false => talk.refuse(field, accepted, offered),
        }
    }
    needed
}
