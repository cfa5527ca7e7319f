//! Notices a dead target while nothing is sent to it. The transport reports the death of a process only to peers that
//! have an operation under way to it.
//!
//! A target repeats its last report every [`KEEPALIVE`] while it has nothing new to say. One that has done so in this
//! connection, and is then silent for [`SILENCE`], counts as dead. A target of an older build repeats nothing, and is
//! noticed at the next transfer, as before; so is one of the C++ SDK, whose protocol has no reports.
//!
//! An initiator that was not driven has heard nothing either, so the silence is counted from when it is driven again.

use std::time::{Duration, Instant};

use super::peer::{PeerState, TargetPeer};
use crate::message::KEEPALIVE;

/// Silence after which a target that repeats its reports counts as dead.
pub(super) const SILENCE: Duration = KEEPALIVE.saturating_mul(4);
/// Time between two checks beyond which the initiator was not driven. A wait checks more often.
const UNDRIVEN: Duration = KEEPALIVE.saturating_mul(2);

/// What an initiator has heard of a connected target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// The last sign of life.
    last: Instant,
    checked: Instant,
    /// The target repeats its reports.
    repeats: bool,
}

impl Heard {
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now, checked: now, repeats: false }
    }

    pub(super) fn sign(&mut self, now: Instant) {
        self.last = now;
    }

    /// A report without news: the target repeats them if it took the time for it.
    pub(super) fn repeated(&mut self, now: Instant) {
        self.repeats |= now.saturating_duration_since(self.last) > KEEPALIVE / 2;
        self.sign(now);
    }

    /// Whether the target has been silent for too long.
    fn is_over(&mut self, now: Instant) -> bool {
        if now.saturating_duration_since(self.checked) > UNDRIVEN {
            self.last = now;
        }
        self.checked = now;
        now.saturating_duration_since(self.last) > SILENCE
    }
}

impl TargetPeer {
    /// Whether its silence counts: with an operation under way, the transport reports its death.
    fn is_watched(&self) -> bool {
        self.heard.repeats && self.state == PeerState::Connected && self.flights.is_empty()
    }

    /// When a waiting initiator is to check its silence next.
    pub(super) fn silence_due(&self) -> Option<Instant> {
        self.is_watched().then(|| self.heard.checked + UNDRIVEN / 2)
    }

    /// Whether the target is connected and counts as dead.
    pub(super) fn is_silent(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if !self.is_watched() || !self.heard.is_over(now()) {
            return false;
        }
        let target = self.info.id;
        tracing::warn!(target: "mxl::fabrics", target, "a target has said nothing for {SILENCE:?}: it counts as dead");
        true
    }
}
