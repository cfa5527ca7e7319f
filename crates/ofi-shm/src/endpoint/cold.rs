//! Peers that are not checked at every poll.
//!
//! With more than [`HOT`] peers, quiet peers become cold: their senders set a hint byte, and a poll reads one cache
//! line of hints. It also checks one cold peer in turn, because hints are unreliable (every peer can write them).

use std::sync::atomic::{AtomicU8, Ordering};

use ofi_core::transport::{PeerId, Upcalls};
use ofi_ring::doorbell::take_hint;

use super::ShmEndpoint;
use crate::Shm;
use crate::hints::Hinted;
use crate::layout::{LINE, doorbell, pair};
use crate::peer::Peer;

/// Peers polled at every poll.
pub(super) const HOT: usize = 16;
/// Polls without a command after which a peer may become cold.
const QUIET: u32 = 256;

impl ShmEndpoint {
    /// Makes quiet peers cold while there are too many hot ones. A stopped peer stays hot: it sends nothing that would
    /// make it hot again, and [`arm`](Self::arm) looks for stopped peers among the hot ones.
    #[cold]
    pub(super) fn cool_down<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        let quiet = |state: &Peer| {
            state.schedule.idle >= QUIET
                && state.initiated.outstanding == 0
                && !state.copies()
                && !state.is_stopped()
        };
        let candidates: Vec<PeerId> =
            self.hot.iter().copied().filter(|&peer| quiet(&self.peers[peer as usize])).collect();
        if candidates.is_empty() {
            return;
        }
        for &peer in &candidates {
            if let Some(link) = &self.peers[peer as usize].link {
                self.sleeper.attend(link.own.word32(pair::ATTENTION));
            }
        }
        if self.sleeper.settle().is_err() {
            return;
        }
        let (mut quiet, mut late) = (Vec::new(), Vec::new());
        for peer in candidates {
            // Records sent before the barrier are visible now; later senders ring.
            let state = &mut self.peers[peer as usize];
            state.schedule.is_cold = !state.has_input();
            if state.schedule.is_cold { quiet.push(peer) } else { late.push(peer) }
        }
        self.hot.retain(|&peer| !self.peers[peer as usize].schedule.is_cold);
        self.cold.append(&mut quiet);
        for peer in late {
            self.poll_peer(host, peer);
        }
    }

    pub(super) fn warm_up(&mut self, peer: PeerId) {
        if self.peers.get(peer as usize).is_some_and(|state| state.schedule.is_cold)
            && let Some(at) = self.cold.iter().position(|&other| other == peer)
        {
            self.cold.swap_remove(at);
            let state = &mut self.peers[peer as usize];
            (state.schedule.idle, state.schedule.is_cold) = (0, false);
            if self.peers[peer as usize].up().is_some() {
                self.hot.push(peer);
            }
        }
    }

    /// Whether a peer in use has this hint byte.
    pub(super) fn is_hinted(&self, peer: PeerId, hint: usize) -> bool {
        let link = self.peers.get(peer as usize).and_then(|state| state.link.as_ref());
        link.is_some_and(|link| link.up.is_some() && link.own.hint as usize == hint)
    }

    /// Handles a set hint: one of its senders has sent something.
    pub(super) fn follow_hint(&mut self, hint: usize) {
        match self.hinted.of(hint) {
            Hinted::Nobody => {}
            Hinted::One(peer) => self.warm_up(peer),
            Hinted::Several => {
                let its: Vec<PeerId> =
                    self.cold.iter().copied().filter(|&peer| self.is_hinted(peer, hint)).collect();
                its.into_iter().for_each(|peer| self.warm_up(peer));
            }
        }
    }

    /// A hint byte; `None` before the first peer, which brings the doorbell memory.
    pub(super) fn hint(&self, index: usize) -> Option<&AtomicU8> {
        let doorbell = self.common.shared.doorbell()?;
        // SAFETY: inside the doorbell memory, which `shared` keeps; accessed atomically.
        Some(unsafe { &*doorbell.word(index % doorbell::HINTS) })
    }

    /// Checks one line of hints and one cold peer.
    #[cold]
    pub(super) fn poll_cold<H: Upcalls<Shm>>(&mut self, host: &mut H) {
        let first = self.next_line * LINE;
        for index in first..(first + LINE).min(self.hinted.len()) {
            let is_set = |hint: &AtomicU8| hint.load(Ordering::Relaxed) != 0 && take_hint(hint);
            if self.hint(index).is_some_and(is_set) {
                self.follow_hint(index);
            }
        }
        self.next_line += 1;
        if self.next_line * LINE >= self.hinted.len() {
            self.next_line = 0;
        }
        self.next_cold += 1;
        if self.next_cold >= self.cold.len() {
            self.next_cold = 0;
        }
        if let Some(&peer) = self.cold.get(self.next_cold) {
            self.poll_peer(host, peer);
        }
    }
}
