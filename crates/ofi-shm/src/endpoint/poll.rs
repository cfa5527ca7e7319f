//! A poll: the hot peers every time, everything else now and then.

use ofi_core::transport::{PeerId, Upcalls};

use super::ShmEndpoint;
use super::cold::HOT;
use crate::Shm;

/// Polls after which an endpoint that has slept no longer expects to sleep soon.
const AWAKE: u32 = 4096;

impl ShmEndpoint {
    #[inline(always)]
    pub(super) fn poll<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        if self.rare || self.common.shared.has_news() {
            self.poll_rare(host);
        }
        let mut at = 0;
        while let Some(&peer) = self.hot.get(at) {
            let state = &mut self.peers[peer as usize];
            if state.wants_poll() && state.poll(&mut self.common, host).is_err() {
                self.break_up(host, peer);
                continue;
            }
            at += 1;
        }
        if self.hot.len() > 1 && !host.hungry() {
            self.hot.rotate_left(1); // the next poll starts with another peer, so none starves
        }
    }

    /// The rare work of a poll: events, cold peers, waking up.
    #[cold]
    #[inline(never)]
    fn poll_rare<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        if let Some(polls) = &mut self.polls_awake {
            *polls += 1;
            if *polls > AWAKE {
                self.settle_down();
            }
            if self.armed {
                self.armed = false;
                self.sleeper.disarm();
                host.disarmed();
            }
        }
        if self.common.shared.take_news() || !self.postponed.is_empty() {
            self.take_events(host);
        }
        if !self.cold.is_empty() {
            self.poll_cold(host);
        }
        if self.hot.len() > HOT {
            for index in 0..self.hot.len() {
                self.peers[self.hot[index] as usize].schedule.idle += 1;
            }
            self.cool_down(host);
        }
        self.rare = self.polls_awake.is_some()
            || !self.postponed.is_empty()
            || !self.cold.is_empty()
            || self.hot.len() > HOT;
    }

    pub(super) fn poll_peer<H: Upcalls<Shm>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        let state = &mut self.peers[peer as usize];
        if state.poll(&mut self.common, host).is_err() {
            self.break_up(host, peer);
            return false;
        }
        true
    }
}
