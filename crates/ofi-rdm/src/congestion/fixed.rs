//! No congestion control: as much may be in flight as the receiver grants.

use super::Controller;
use crate::time::Instant;

/// The controller without congestion control.
#[derive(Clone, Copy, Debug)]
pub struct Fixed;

impl Controller for Fixed {
    fn window(&self) -> u64 {
        u64::MAX
    }

    fn pace(&self) -> Option<u64> {
        None
    }

    fn on_acked(&mut self, _now: Instant, _sent: Instant, _bytes: u64, _limited: bool) {}

    fn on_lost(&mut self, _now: Instant, _sent: Instant, _bytes: u64, _queue: bool) {}

    fn on_marked(&mut self, _now: Instant, _sent: Instant) {}

    fn on_silence(&mut self, _now: Instant) {}

    fn on_heard(&mut self, _now: Instant) {}

    fn set_packet_size(&mut self, _bytes: u64) {}
}
