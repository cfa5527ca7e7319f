//! The peers that were forgotten last, with enough state to tell echoes of their old questions from new questions.

use alloc::collections::{BTreeMap, VecDeque};
use core::net::SocketAddr;

use crate::connection::OldIncarnations;

/// The maximum number of peers remembered. Echoes follow their questions within moments.
const MAX_PAST_PEERS: usize = 256;

/// The peers that were forgotten last, oldest first.
#[derive(Debug, Default)]
pub struct Pasts {
    by_address: BTreeMap<SocketAddr, OldIncarnations>,
    /// The remembered addresses, oldest first.
    order: VecDeque<SocketAddr>,
    /// At least the number of questions that this end sent to any forgotten peer. A peer that remembers a number takes
    /// a lower one for an echo.
    attempts: u64,
}

impl Pasts {
    /// Remembers a peer that is being forgotten.
    pub fn remember(&mut self, address: SocketAddr, past: OldIncarnations) {
        self.attempts = self.attempts.max(past.attempts);
        if past.peer_epoch.is_none() {
            return; // there was never a session
        }
        if self.by_address.insert(address, past).is_none() {
            self.order.push_back(address);
        }
        if self.order.len() > MAX_PAST_PEERS
            && let Some(first) = self.order.pop_front()
        {
            self.by_address.remove(&first);
        }
    }

    /// At least the number of questions that were sent to any forgotten peer.
    pub fn attempts(&self) -> u64 {
        self.attempts
    }

    /// Takes the remembered state of the peer at this address, which is being added again.
    pub fn recall(&mut self, address: &SocketAddr) -> OldIncarnations {
        let past = self.by_address.remove(address);
        if past.is_some() {
            self.order.retain(|other| other != address);
        }
        let mut past = past.unwrap_or_default();
        past.attempts = self.attempts;
        past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(number: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], number))
    }

    #[test]
    fn the_last_peers_are_remembered_and_attempts_of_all() {
        let mut pasts = Pasts::default();
        for number in 0..1000_u16 {
            let epoch = Some(u64::from(number));
            let attempts = if number == 7 { 99 } else { 1 };
            let mut past = OldIncarnations::default();
            (past.attempts, past.peer_epoch) = (attempts, epoch);
            pasts.remember(at(number), past);
        }
        assert_eq!((pasts.by_address.len(), pasts.order.len()), (MAX_PAST_PEERS, MAX_PAST_PEERS));
        let (old, new) = (pasts.recall(&at(0)), pasts.recall(&at(999)));
        assert_eq!((old.peer_epoch, old.attempts), (None, 99));
        assert_eq!((new.peer_epoch, new.attempts), (Some(999), 99));
        assert_eq!((pasts.by_address.len(), pasts.order.len()), (MAX_PAST_PEERS - 1, MAX_PAST_PEERS - 1));
        assert_eq!(pasts.recall(&at(999)).peer_epoch, None, "it was taken");
    }
}
