//! The budget for unexpected messages, and the choice of senders to stop when it is full.
//!
//! There are two budgets, because their exhaustion has different effects. Without bytes, payloads wait at their senders
//! and envelopes still arrive, so a program that receives out of order makes progress. Without envelopes, no message
//! can be recorded, so the senders that hold most must stop, and only those.
//!
//! Both are shared by a dynamic threshold (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
//! packet switches", IEEE/ACM Transactions on Networking 6(2), 1998; [`crate::budget`]): a sender may hold as much as
//! twice what is free *now*. One sender alone gets two thirds of the budget; `n` greedy ones get 2/(2n+1) each, and the
//! rest stays free for the next. Since held budget cannot be taken back, late senders could still find nothing; so each
//! may always hold `FLOOR` envelopes, even beyond the limit: at most 16 for each peer, whose own state takes as much.
//!
//! A payload may arrive that was sent before its sender was told to stop. Such payloads may exceed the budget by as
//! much as the sender can have in flight. They count: the sender is not told to resume until they have left.
//!
//! A stopped sender may resume once it holds less than three quarters of what it may hold. The margin keeps it from
//! stopping and resuming with every message.
//!
//! Invariants:
//! B1. The totals are the sums over `shares`.
//! B2. `stopped` has `(held, peer)` for exactly the shares that are marked stopped. All stopped senders may hold the
//!     same amount, so if the first of them, which holds least, may not resume, none may.

use super::{Limit, MatcherConfig, SourceId};
use std::collections::BTreeSet;

#[derive(Clone, Copy, Default)]
struct Share {
    bytes: usize,
    /// The bytes among them that exceed what the sender may hold.
    beyond: usize,
    envelopes: u32,
    stopped: bool,
}

/// A sender may hold twice what is free. With once, a lone sender could use only half of the budget; more than twice
/// leaves less for those that come later.
type Limited = crate::budget::Budget<2, 1>;

pub(super) struct UnexpectedBudget {
    bytes: Limited,
    envelopes: Limited,
    floor: usize,
    shares: Vec<Share>,
    stopped: BTreeSet<(u32, u32)>,
    stops: u64,
}

impl UnexpectedBudget {
    pub(super) fn new(config: &MatcherConfig) -> Self {
        Self {
            bytes: Limited::new(config.bytes),
            envelopes: Limited::new(config.envelopes),
            floor: config.envelopes.clamp(1, FLOOR),
            shares: Vec::new(),
            stopped: BTreeSet::new(),
            stops: 0,
        }
    }

    #[inline]
    pub(super) fn may_hold_bytes(&self, peer: SourceId, len: usize) -> bool {
        // By what is free before it: a payload may be longer than its sender's share of an empty budget.
        let held = self.share(peer).bytes.saturating_add(len);
        len == 0 || (len <= self.bytes.free() && held <= self.bytes.allowance())
    }

    #[inline]
    pub(super) fn may_hold_envelope(&self, peer: SourceId) -> bool {
        (self.share(peer).envelopes as usize) < self.allowance()
    }

    /// Records one more message, or returns what is exhausted. If an envelope is refused, the sender counts as stopped
    /// until one is accepted, or `resume` names the sender.
    #[inline]
    pub(super) fn hold(&mut self, peer: SourceId, bytes: usize) -> Result<(), Limit> {
        if !self.may_hold_envelope(peer) {
            self.stop(peer);
            return Err(Limit::Envelopes);
        }
        if !self.may_hold_bytes(peer, bytes) {
            return Err(Limit::Bytes);
        }
        self.add(peer, bytes);
        Ok(())
    }

    /// As `hold`, for a payload that was sent before its sender was told to stop. At most `most` bytes of such payloads
    /// may be held.
    #[cold]
    pub(super) fn hold_beyond(&mut self, peer: SourceId, bytes: usize, most: usize) -> Result<(), Limit> {
        match self.hold(peer, bytes) {
            Err(Limit::Bytes) if self.share(peer).beyond.saturating_add(bytes) <= most => {}
            other => return other,
        }
        self.add(peer, bytes);
        self.change(peer, |share| share.beyond += bytes);
        Ok(())
    }

    #[inline]
    fn add(&mut self, peer: SourceId, bytes: usize) {
        self.bytes.take(bytes);
        self.envelopes.take(1);
        self.change(peer, |share| {
            share.bytes += bytes;
            share.envelopes += 1;
        });
        self.forget(peer);
    }

    /// Undoes one `hold`.
    #[inline]
    pub(super) fn release(&mut self, peer: SourceId, bytes: usize) {
        self.bytes.give_back(bytes);
        self.envelopes.give_back(1);
        self.change(peer, |share| {
            share.bytes -= bytes;
            share.beyond = share.beyond.saturating_sub(bytes); // whichever of them left: the same room became free
            share.envelopes -= 1;
        });
    }

    #[cold]
    pub(super) fn stop(&mut self, peer: SourceId) {
        self.stops += u64::from(!self.share(peer).stopped);
        self.change(peer, |share| share.stopped = true);
        self.stopped.insert((self.share(peer).envelopes, peer.0));
    }

    /// Forgets that a sender is stopped, as when it is gone.
    #[inline]
    pub(super) fn forget(&mut self, peer: SourceId) {
        let share = self.share(peer);
        if share.stopped {
            self.stopped.remove(&(share.envelopes, peer.0));
            self.change(peer, |share| share.stopped = false);
        }
    }

    /// A stopped sender that may send again; it no longer counts as stopped.
    #[inline]
    pub(super) fn resume(&mut self) -> Option<SourceId> {
        let &(held, peer) = self.stopped.first()?;
        let allowance = self.allowance();
        if held as usize >= allowance - allowance / 4 {
            return None;
        }
        self.forget(SourceId(peer));
        Some(SourceId(peer))
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.used()
    }

    pub(super) fn stopped(&self) -> usize {
        self.stopped.len()
    }

    pub(super) fn stops(&self) -> u64 {
        self.stops
    }

    pub(super) fn bytes_of(&self, peer: SourceId) -> usize {
        self.share(peer).bytes
    }

    pub(super) fn envelopes_of(&self, peer: SourceId) -> usize {
        self.share(peer).envelopes as usize
    }

    /// The number of envelopes that each sender may hold now.
    #[inline]
    fn allowance(&self) -> usize {
        self.envelopes.allowance().max(self.floor)
    }

    #[inline]
    fn share(&self, peer: SourceId) -> Share {
        self.shares.get(peer.0 as usize).copied().unwrap_or_default()
    }

    #[inline]
    fn change(&mut self, peer: SourceId, change: impl FnOnce(&mut Share)) {
        let at = peer.0 as usize;
        if at >= self.shares.len() {
            self.shares.resize(at + 1, Share::default());
        }
        let share = &mut self.shares[at];
        let before = *share;
        change(share);
        if before.stopped && share.stopped {
            let after = share.envelopes;
            self.stopped.remove(&(before.envelopes, peer.0));
            self.stopped.insert((after, peer.0));
        }
    }
}

/// Envelopes that each sender may hold whatever others do: a judgement, enough to go on with.
const FLOOR: usize = 16;

#[cfg(test)]
impl UnexpectedBudget {
    /// Checks B1 and B2.
    pub(super) fn check(&self) {
        assert_eq!(self.bytes.used(), self.shares.iter().map(|share| share.bytes).sum());
        assert_eq!(self.envelopes.used(), self.shares.iter().map(|share| share.envelopes as usize).sum());
        assert!(self.shares.iter().all(|share| share.beyond <= share.bytes));
        let marked = (0..).zip(&self.shares).filter(|(_, share)| share.stopped);
        assert_eq!(self.stopped, marked.map(|(peer, share)| (share.envelopes, peer)).collect());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bytes: usize, envelopes: usize) -> UnexpectedBudget {
        UnexpectedBudget::new(&MatcherConfig { bytes, envelopes, ..MatcherConfig::default() })
    }

    /// Lets `peer` send until it is stopped; how many messages that were.
    fn flood(budget: &mut UnexpectedBudget, peer: u32) -> usize {
        std::iter::repeat(()).take_while(|()| budget.hold(SourceId(peer), 0) == Ok(())).count()
    }

    #[test]
    fn one_flooding_sender_leaves_room_for_others() {
        let mut budget = budget(0, 9_000);
        assert_eq!(flood(&mut budget, 0), 6_000);
        assert!(!budget.may_hold_envelope(SourceId(0)));
        assert!(budget.may_hold_envelope(SourceId(1)));
        assert_eq!(flood(&mut budget, 1), 2_000);
    }

    #[test]
    fn every_sender_may_hold_the_floor_however_many_came_before() {
        let mut budget = budget(0, 1_000);
        for peer in 0..200 {
            assert!(flood(&mut budget, peer) >= FLOOR, "peer {peer}");
        }
        assert!(budget.envelopes.used() <= 1_000 + 200 * FLOOR);
    }

    #[test]
    fn greedy_senders_share_evenly() {
        let mut budget = budget(0, 21_000);
        for _ in 0..21_000 {
            for peer in 0..10 {
                let _ = budget.hold(SourceId(peer), 0);
            }
        }
        for peer in 0..10 {
            assert!(budget.envelopes_of(SourceId(peer)).abs_diff(2_000) < 10);
        }
    }

    #[test]
    fn a_stopped_sender_resumes_with_a_margin() {
        let mut budget = budget(0, 900);
        assert_eq!(flood(&mut budget, 7), 600);
        assert_eq!((budget.stopped(), budget.stops(), budget.resume()), (1, 1, None));
        budget.release(SourceId(7), 0);
        assert!(budget.may_hold_envelope(SourceId(7)));
        assert_eq!(budget.resume(), None, "no margin yet");
        while budget.resume().is_none() {
            budget.release(SourceId(7), 0);
        }
        assert_eq!(budget.envelopes_of(SourceId(7)), 539, "539 < 3/4 * 2 * (900 - 539), but 540 is not");
        assert_eq!((budget.stopped(), budget.resume()), (0, None));
    }

    #[test]
    fn a_sender_that_goes_on_by_itself_is_not_resumed() {
        let mut budget = budget(0, 900);
        flood(&mut budget, 7);
        budget.release(SourceId(7), 0);
        assert_eq!((budget.hold(SourceId(7), 0), budget.stopped()), (Ok(()), 0));
        (0..600).for_each(|_| budget.release(SourceId(7), 0));
        assert_eq!(budget.resume(), None);
    }

    #[test]
    fn a_release_by_one_sender_lets_another_resume() {
        let mut budget = budget(0, 100);
        flood(&mut budget, 0);
        flood(&mut budget, 1);
        assert_eq!(budget.resume(), None);
        while budget.envelopes_of(SourceId(0)) > 0 {
            budget.release(SourceId(0), 0);
        }
        assert_eq!(budget.resume(), Some(SourceId(0)), "the one that holds least comes first");
        assert_eq!(budget.resume(), Some(SourceId(1)));
        assert_eq!(budget.resume(), None);
    }

    #[test]
    fn a_sender_that_is_gone_does_not_resume() {
        let mut budget = budget(0, 100);
        let held = flood(&mut budget, 3);
        budget.forget(SourceId(3));
        (0..held).for_each(|_| budget.release(SourceId(3), 0));
        assert_eq!((budget.stopped(), budget.resume()), (0, None));
    }

    /// A sender that ignores the stop, with a message taken off the queue now and then.
    #[test]
    fn what_goes_beyond_the_budget_is_bounded_and_counted() {
        let mut budget = budget(100, 10_000);
        let mut held = 0;
        for round in 0..1_000 {
            while budget.hold_beyond(SourceId(0), 10, 50) == Ok(()) {
                held += 10;
                assert!(held <= 70 + 50, "round {round}: {held} bytes");
            }
            assert_eq!(budget.hold_beyond(SourceId(0), 10, 50), Err(Limit::Bytes));
            assert_eq!(budget.bytes(), held);
            assert!(!budget.may_hold_bytes(SourceId(0), 1), "it is not told to go on");
            budget.release(SourceId(0), 10);
            held -= 10;
            budget.check();
        }
        (0..held / 10).for_each(|_| budget.release(SourceId(0), 10));
        assert_eq!((budget.bytes(), budget.may_hold_bytes(SourceId(0), 60)), (0, true));
        budget.check();
    }

    #[test]
    fn a_full_byte_budget_refuses_bytes_but_no_envelopes() {
        let mut budget = budget(100, 100);
        assert_eq!(budget.hold(SourceId(0), 60), Ok(()));
        assert_eq!(
            budget.hold(SourceId(0), 30),
            Err(Limit::Bytes),
            "60 + 30 is more than twice the 40 that are free"
        );
        assert_eq!(budget.hold(SourceId(1), 30), Ok(()), "the share of another");
        assert_eq!(budget.hold(SourceId(0), 0), Ok(()));
        assert_eq!((budget.stopped(), budget.bytes()), (0, 90));
        assert!(!budget.may_hold_bytes(SourceId(2), usize::MAX));
    }
}
