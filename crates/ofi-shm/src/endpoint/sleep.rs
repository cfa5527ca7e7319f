//! How an endpoint goes to sleep: it asks senders to ring its doorbell, and then checks for what they sent before.

use ofi_core::transport::{Arm, PeerId};
use ofi_ring::crash_point;
use ofi_ring::doorbell::take_hint;

use super::ShmEndpoint;
use crate::layout::pair;

impl ShmEndpoint {
    pub(super) fn arm(&mut self) -> Arm {
        // Earlier signals are checked below.
        ofi_core::sys::drain_eventfd(&self.common.shared.event);
        self.polls_awake = Some(0);
        (self.armed, self.rare) = (true, true);
        for index in 0..self.hot.len() {
            let peer = self.hot[index];
            if let Some(link) = &self.peers[peer as usize].link {
                self.sleeper.attend(link.own.word32(pair::ATTENTION));
            }
        }
        crash_point!("sleep.attend");
        if self.sleeper.arm().is_err() || self.common.shared.has_news() {
            return Arm::Ready;
        }
        if self.has_input() {
            return Arm::Ready;
        }
        if !self.cold.is_empty() {
            for index in 0..self.hinted.len() {
                if self.hint(index).is_some_and(take_hint) {
                    self.follow_hint(index);
                }
            }
            if self.has_input() {
                return Arm::Ready;
            }
        }
        crash_point!("sleep.armed");
        let is_stopped = |&peer: &PeerId| self.peers[peer as usize].is_stopped();
        if self.hot.iter().any(is_stopped) { Arm::Stalled } else { Arm::Armed }
    }

    /// Whether a hot peer has sent something, or made room for a post that found none. A sleeper is notified of room
    /// only once, because it stays unused if the application no longer posts.
    fn has_input(&mut self) -> bool {
        (0..self.hot.len()).any(|index| {
            let state = &mut self.peers[self.hot[index] as usize];
            let has_input = state.has_input();
            if has_input && state.has_room_again() {
                state.initiated.needed_room = 0;
            }
            has_input
        })
    }

    /// Tells senders that the endpoint stays awake.
    #[cold]
    pub(super) fn settle_down(&mut self) {
        self.polls_awake = None;
        for &peer in &self.hot {
            if let Some(link) = &self.peers[peer as usize].link {
                self.sleeper.unattend(link.own.word32(pair::ATTENTION));
            }
        }
    }
}
