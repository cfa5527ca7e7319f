//! What peers make an agent keep, for all of its sessions together.
//!
//! Each session has bounds of its own (`inbox.rs`, `unread.rs`, `session.rs`), which leave it room for a long
//! notification and for a window of short ones: 24 MiB. Hundreds of sessions together have a budget
//! ([`Config::most_kept`](super::Config::most_kept)). It is charged with unfinished notifications, those that the
//! program has not taken, the marks of counted writes, and the numbers of what is owed an answer.
//!
//! Beyond it, the session that keeps the most is ended. Nothing less would help: a fragment that is dropped is never
//! repeated, so its notification would stay unfinished, and so would those behind it. Its sender is told, and its
//! transfers fail; the other sessions go on. A notification whose sender was told that it has arrived counts as
//! delivered there, and is kept when its session ends. So all of these may take half of the budget, and those of a peer
//! two thirds of what other peers leave of it: one with much unread leaves room for those with little. Beyond, nothing
//! is said before the program has taken it.
//!
//! A session is charged in steps of [`STEP`] bytes, rounded down: one that keeps little is never looked at.

use std::collections::BTreeSet;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::{Config, Core};

/// What a peer's notifications may take of those that are told: two thirds of what others leave.
type ArrivalBudget = ofi_core::budget::Budget<2, 1>;

/// Granularity of charges, in bytes.
const STEP: usize = 4096;
/// Bytes counted for an entry of a table beside its contents.
pub(super) const ENTRY: usize = 128;
/// Bytes counted for a number that is remembered.
pub(super) const NUMBER: usize = 32;

/// The budget of an agent.
#[derive(Debug)]
pub(super) struct KeptBudget {
    most: usize,
    /// Bytes that sessions are charged.
    kept: usize,
    /// Bytes of notifications that were not taken, and whose senders were told that they have arrived. They outlive
    /// their sessions. All of them may take half of the budget.
    told: ArrivalBudget,
    /// The sessions that are charged, by their charge.
    charged: BTreeSet<(usize, u64)>,
}

impl KeptBudget {
    pub(super) fn new(config: &Config) -> Self {
        // One notification of any permitted length must fit beside the windows of a few sessions.
        Self::of(config.most_kept.max(config.longest_notification.saturating_mul(2)))
    }

    fn of(most: usize) -> Self {
        Self { most, kept: 0, told: ArrivalBudget::new(most / 2), charged: BTreeSet::new() }
    }

    /// Charges a session for `now` bytes in place of `charge`.
    fn set(&mut self, id: SlotId, charge: &mut usize, now: usize) {
        let (before, now) = (std::mem::replace(charge, now), now);
        self.kept = self.kept - before + now;
        if before > 0 {
            self.charged.remove(&(before, id.to_wire()));
        }
        if now > 0 {
            self.charged.insert((now, id.to_wire()));
        }
    }

    /// Takes another notification of this length whose sender is told that it has arrived, if there is room beside the
    /// peer's others: their number and bytes.
    pub(super) fn tell(&mut self, (count, bytes): (usize, usize), len: usize) -> bool {
        let amount = ENTRY + len;
        let has_room = self.told.may_take(ENTRY * count + bytes, amount);
        if has_room {
            self.told.take(amount);
        }
        has_room
    }

    /// The program has taken such a notification, or its sender has cancelled it, or the peer is forgotten.
    pub(super) fn taken(&mut self, len: usize) {
        self.told.give_back(ENTRY + len);
    }

    /// The session that keeps the most, if all of them keep too much.
    fn excess(&self) -> Option<SlotId> {
        let is_exceeded = self.kept + self.told.used() > self.most;
        self.charged.last().filter(|_| is_exceeded).map(|&(_, id)| SlotId::from_wire(id))
    }
}

impl<G> Core<G> {
    /// Charges a session for what it keeps now, and ends the one that keeps the most if that is too much.
    #[inline]
    pub(super) fn charge(&mut self, id: SlotId) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let kept = session.kept() / STEP * STEP;
        if kept != session.charge || self.budget.excess().is_some() {
            self.recharge(id, kept);
        }
    }

    #[cold]
    fn recharge(&mut self, id: SlotId, kept: usize) {
        if let Some(session) = self.sessions.get_mut(id) {
            self.budget.set(id, &mut session.charge, kept);
        }
        while let Some(heaviest) = self.budget.excess() {
            let session = self.sessions.get(heaviest);
            let bytes = session.map(|session| session.charge);
            let peer = session.and_then(|session| self.peers.get(session.peer?)).map(|peer| &*peer.name);
            tracing::warn!(target: "multirail", peer, bytes, "a session keeps more than all others, and all too much: it ends");
            self.counts.evicted += 1;
            self.part(heaviest, Errno::ENOBUFS, self.now);
        }
    }

    /// The session's state is dropped: it keeps nothing.
    pub(super) fn discharge(&mut self, id: SlotId) {
        if let Some(session) = self.sessions.get_mut(id).filter(|session| session.charge > 0) {
            self.budget.set(id, &mut session.charge, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_that_keeps_the_most_is_named_when_all_keep_too_much() {
        let (mut budget, ids) = (KeptBudget::of(1000), [1, 2, 3].map(SlotId::from_wire));
        let mut charges = [0; 3];
        for (at, now) in [(0, 300), (1, 400), (2, 300)] {
            budget.set(ids[at], &mut charges[at], now);
        }
        assert_eq!(budget.excess(), None);
        budget.set(ids[2], &mut charges[2], 301);
        assert_eq!(budget.excess(), Some(ids[1]));
        budget.set(ids[1], &mut charges[1], 0);
        assert_eq!((budget.excess(), budget.kept, charges), (None, 601, [300, 0, 301]));
        // What was told has half of it, and counts.
        budget.set(ids[1], &mut charges[1], 100);
        assert!(budget.tell((0, 0), 300 - ENTRY) && !budget.tell((0, 0), 500 - ENTRY));
        assert_eq!(budget.excess(), Some(ids[2]));
        budget.taken(300 - ENTRY);
        assert_eq!((budget.excess(), budget.told.used()), (None, 0));
    }

    /// Each takes as much as it gets.
    #[test]
    fn peers_with_much_unread_leave_room_for_others() {
        let mut budget = KeptBudget::of(32 << 20);
        let mut shares = Vec::new();
        for _ in 0..4 {
            let (mut count, len) = (0, 16 << 10);
            while budget.tell((count, count * len), len) {
                count += 1;
            }
            shares.push((count * len) >> 20);
        }
        assert_eq!(shares, [10, 3, 1, 0], "MiB");
        assert!(budget.told.used() < 16 << 20 && budget.tell((0, 0), 1000));
    }
}
