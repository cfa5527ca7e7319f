//! The threads that sleep on an endpoint, and how they are woken even if another thread polls.
//!
//! A transport is armed once, for all sleepers, and a poll disarms it for all, because a polling thread wants no
//! wake-ups. While polls continue, sleepers miss nothing: a poll notifies the sleepers for which it finds something. A
//! polling thread that goes to sleep arms it again, for all. But if it just stops polling, the others would sleep for
//! ever. So a thread of the process checks [a moment later](crate::rearm): if the transport is still disarmed, it arms
//! it on behalf of the sleepers, and wakes them only if something is already waiting. Waking them at once would not
//! work: two threads that are about to sleep would disarm it for each other for ever.
//!
//! Invariants, under the endpoint's lock, which every call here holds:
//! S1. A sleeping thread has armed its wake fd, then the transport, and is in `known` ([`Sleepers::armed`]).
//! S2. The transport is armed, or `undone` is due, or no thread in `known` sleeps. While an armed transport is
//!     [stalled](Sleepers::stalled), `undone` is due too.
//! S3. While `undone` is due, it is [checked](Sleepers::settle) every [`REARM_INTERVAL`](crate::rearm::REARM_INTERVAL).

use std::sync::{Arc, Weak};

use ofi_ring::deferred_check::DeferredCheck;

use crate::rearm::{self, Rearm};
use crate::source::Arm;
use crate::wake_fd::WakeFd;

/// After this many successive checks that find it disarmed, all sleepers are woken: about a second. An armed wake fd
/// counts as slept on until it is rung, even if the thread that waited at its descriptor is already awake.
const MAX_DISARMED_CHECKS: u32 = 100;

/// The sleepers of one endpoint.
pub struct Sleepers {
    known: Vec<Sleeper>,
    undone: Arc<DeferredCheck>,
    looks: u32,
    endpoint: Weak<dyn Rearm>,
}

struct Sleeper {
    wake: WakeFd,
    /// The thread that armed it, or `None` if several did.
    thread: Option<usize>,
}

/// The calling thread's number, which may be reused after the thread has ended.
fn here() -> usize {
    std::thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

impl Sleeper {
    /// Whether another thread may sleep there while this one reads the queue of `reader`.
    fn may_sleep(&self, reader: Option<&WakeFd>) -> bool {
        let is_awake = reader.is_some_and(|reader| reader.is(&self.wake)) && self.thread == Some(here());
        !is_awake && self.wake.is_slept_on()
    }
}

impl Sleepers {
    /// Creates an empty set. `endpoint` is called later to [re-arm](Sleepers::settle) what a poll has disarmed.
    pub fn of(endpoint: Weak<dyn Rearm>) -> Self {
        Self { known: Vec::new(), undone: Arc::default(), looks: 0, endpoint }
    }

    /// Records that the transport is armed. The thread that waits for `wake`, if there is one, is about to sleep.
    pub fn armed(&mut self, wake: Option<&WakeFd>) {
        self.undone.end();
        let Some(wake) = wake else { return };
        match self.known.iter_mut().find(|sleeper| sleeper.wake.is(wake)) {
            Some(sleeper) => sleeper.thread = sleeper.thread.filter(|&thread| thread == here()),
            None => self.known.push(Sleeper { wake: wake.clone(), thread: Some(here()) }),
        }
    }

    /// As [`Sleepers::armed`], for a transport whose peers wait for the application: all sleepers are woken a moment
    /// later.
    pub fn stalled(&mut self, wake: Option<&WakeFd>) {
        self.armed(wake);
        self.look_later();
    }

    /// Records that a poll has disarmed the transport. `reader`: the wake fd of the queue that was polled, if any.
    pub fn disarmed(&mut self, reader: Option<&WakeFd>) {
        if self.undone.is_due() {
            return;
        }
        self.known.retain(|sleeper| sleeper.may_sleep(reader));
        self.look_later();
    }

    /// Checks the endpoint a moment later, if any thread may be asleep.
    fn look_later(&mut self) {
        if !self.known.is_empty() && self.undone.begin() && !rearm::later(&self.endpoint, &self.undone) {
            let _listed_by_nobody = self.undone.look();
            self.wake();
        }
    }

    /// Whether the transport must be rearmed for sleeping threads. Called by the thread of [`crate::rearm`].
    pub fn are_due(&mut self) -> bool {
        let due = self.undone.is_due();
        self.looks = if due { self.looks + 1 } else { 0 };
        due
    }

    /// Records the result of [rearming](crate::transport::TransportEndpoint::arm) by that thread.
    pub fn settle(&mut self, arm: Arm) {
        if arm == Arm::Armed && self.looks < MAX_DISARMED_CHECKS {
            self.undone.end();
        } else {
            self.wake();
        }
    }

    /// Wakes all, to poll and arm anew.
    fn wake(&mut self) {
        (self.looks, _) = (0, self.undone.end());
        self.known.drain(..).for_each(|sleeper| sleeper.wake.notify());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An endpoint that does nothing when it is asked to rearm.
    struct Nobody;

    impl Rearm for Nobody {
        fn rearm(&self) {}
    }

    fn sleepers() -> (Sleepers, Arc<Nobody>) {
        let endpoint = Arc::new(Nobody);
        let weak: Weak<dyn Rearm> = Arc::downgrade(&endpoint) as _;
        (Sleepers::of(weak), endpoint)
    }

    fn wake(is_shown: bool) -> WakeFd {
        WakeFd::of(is_shown).unwrap()
    }

    #[test]
    fn a_poll_leaves_something_to_do_only_if_somebody_sleeps() {
        let (mut sleepers, _endpoint) = sleepers();
        sleepers.disarmed(None);
        assert!(!sleepers.are_due(), "nobody was there");
        let wake = wake(false);
        wake.arm();
        sleepers.armed(Some(&wake));
        sleepers.disarmed(None);
        assert!(!sleepers.are_due(), "nobody is inside a call that blocks");
        wake.asleep(|| {
            wake.arm();
            sleepers.armed(Some(&wake));
            sleepers.disarmed(None);
            assert!(sleepers.are_due());
            sleepers.armed(None);
            assert!(!sleepers.are_due(), "armed anew by another one");
        });
    }

    #[test]
    fn a_descriptor_is_slept_on_unless_its_own_thread_reads_the_queue() {
        let (mut sleepers, _endpoint) = sleepers();
        let (own, other) = (wake(true), wake(true));
        own.arm();
        sleepers.armed(Some(&own));
        sleepers.disarmed(Some(&own));
        assert!(!sleepers.are_due(), "this thread is awake");
        own.arm();
        sleepers.armed(Some(&own));
        sleepers.disarmed(Some(&other));
        assert!(sleepers.are_due(), "it may block on the first after reading the second");
        sleepers.armed(None);
        std::thread::scope(|scope| scope.spawn(|| sleepers.disarmed(Some(&own))).join().unwrap());
        assert!(sleepers.are_due(), "another thread reads");
    }

    #[test]
    fn what_is_there_wakes_them_and_so_does_a_second_of_polls() {
        let (mut sleepers, _endpoint) = sleepers();
        let wake = wake(true);
        let mut undo = || {
            wake.arm();
            sleepers.armed(Some(&wake));
            sleepers.disarmed(None);
            assert!(sleepers.are_due());
            sleepers.settle(Arm::Ready);
            assert!(!wake.is_armed(), "rung");
        };
        undo();
        undo();
        // Peers that wait for the application: it may have made room without a poll.
        wake.arm();
        sleepers.stalled(Some(&wake));
        assert!(sleepers.are_due());
        sleepers.settle(Arm::Stalled);
        assert!(!wake.is_armed());
        wake.arm();
        sleepers.armed(Some(&wake));
        for look in 1..=MAX_DISARMED_CHECKS {
            sleepers.disarmed(None);
            assert!(sleepers.are_due());
            sleepers.settle(Arm::Armed);
            assert_eq!(wake.is_armed(), look < MAX_DISARMED_CHECKS, "look {look}");
        }
        sleepers.disarmed(None);
        assert!(!sleepers.are_due(), "nobody sleeps any more");
    }
}
