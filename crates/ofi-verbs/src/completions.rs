//! Completion queues of the device that connected endpoints share.
//!
//! Endpoints whose operations are reported to the same queues of the application share one, so that reading a queue of
//! the application polls the device once, however many connections the queue has. Whoever polls the device puts each
//! entry into the mailbox of the endpoint that has the entry's queue pair.
//!
//! - **Turns.** An endpoint that has looked polls the device again only if no other has polled it since. So of
//!   endpoints that are polled in a row, the first one polls the device ([`Look::InTurn`]).
//! - **Size.** An endpoint reserves room for all that its queue pair may have outstanding. The queue grows when it is
//!   full. If the device cannot resize it, or at the device's limit, further endpoints share another one.
//! - **Queue pairs that are gone.** Their entries may still be in the queue. An endpoint that leaves empties the queue
//!   before it gives its room back. A new queue pair may have the number of an old one: the queue is emptied before the
//!   number is its.
//! - **Sleeping.** A notification of the device wakes the sleepers of all endpoints. The endpoint that consumes it arms
//!   the queue again and then moves all entries to their mailboxes ([`may_sleep`]), which wakes the sleepers of their
//!   endpoints. So every entry wakes somebody once the queue has been armed, and of endpoints that are armed in a row,
//!   the first one arms the device's queue.
//!
//! Locks: the queue's lock is taken inside an endpoint's and inside the pool's. Under it only the device is called, and
//! descriptors are made readable.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use ofi_api::Result;
use ofi_core::lock::Lock;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::wake_fd::WakeFd;
use ofi_ring::cq_arm::{CqArm, may_sleep};
use rustc_hash::FxHashMap;

use crate::errors::failed;
use crate::rc;
use crate::rc::WorkCompletion;
use crate::rc::msg::Completions;

/// A poll of an endpoint reads no more from the device after this many entries.
pub const MAX_COMPLETIONS_PER_POLL: usize = 256;

/// The names of the application's queues that report operations and receives.
type Reporting = [Option<usize>; 2];

/// The completion queues of a domain that endpoints share.
#[derive(Default)]
pub struct CompletionPool(Mutex<Vec<(Reporting, Weak<SharedCompletions>)>>);

/// When an endpoint polls the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// If no other endpoint has polled it since this one looked.
    InTurn,
    /// At once, and everything that is in the queue: afterwards none of this endpoint's entries is left in it.
    Now,
}

/// A number that no queue pair has: theirs have 24 bits.
const NO_PAIR: u32 = u32::MAX;

/// The entries of one endpoint that were read from the device.
struct Mailbox {
    entries: VecDeque<WorkCompletion>,
    /// Wakes the endpoint's sleepers.
    wake: WakeFd,
    /// The number of its queue pair, or [`NO_PAIR`].
    qp: u32,
}

/// See [`SharedCompletions`].
struct Sharing {
    mailboxes: Slots<Mailbox>,
    /// The mailboxes by the numbers of their queue pairs.
    routes: FxHashMap<u32, SlotId>,
    /// Entries that the queue has room for, and that its endpoints may have outstanding.
    room: usize,
    reserved: usize,
    /// Whether the device has refused to resize the queue.
    is_fixed: bool,
    /// How often the device was polled, and how often its queue was armed.
    polls: u64,
    arms: u64,
    /// Whether those may sleep that rely on the last arm.
    may_sleep: bool,
    /// Whether the queue has failed. No endpoint joins it any more.
    is_lost: bool,
}

/// A completion queue of the device, and the endpoints that share it.
struct SharedCompletions {
    device: Arc<dyn Completions>,
    sharing: Lock<Sharing>,
}

impl Sharing {
    /// Polls the device once. Entries of `own` go to `into`, others to their mailboxes. Returns the number of entries.
    fn poll(
        &mut self,
        device: &dyn Completions,
        own: u32,
        into: &mut VecDeque<WorkCompletion>,
    ) -> rc::Result<usize> {
        self.polls += 1;
        let Self { mailboxes, routes, is_lost, .. } = self;
        let polled = device.poll(&mut |entry| {
            if entry.qp == own {
                return into.push_back(entry);
            }
            // Without a route, it is an entry of a queue pair whose endpoint is gone.
            let mailbox = routes.get(&entry.qp).and_then(|&id| mailboxes.get_mut(id));
            if let Some(mailbox) = mailbox {
                mailbox.entries.push_back(entry);
                mailbox.wake.notify();
            }
        });
        *is_lost |= polled.is_err();
        polled
    }

    /// Makes all endpoints poll, and the next one that is armed arm the device's queue.
    fn wake_all(&mut self) {
        self.may_sleep = false;
        self.mailboxes.values().for_each(|mailbox| mailbox.wake.notify());
    }

    /// Puts all entries of the device's queue into their mailboxes. Entries that are added meanwhile may be left.
    /// Returns whether none is left.
    fn empty(&mut self, device: &dyn Completions) -> rc::Result<bool> {
        let mut taken = 0;
        while taken <= self.room {
            match self.poll(device, NO_PAIR, &mut VecDeque::new())? {
                0 => return Ok(true),
                count => taken += count,
            }
        }
        Ok(false)
    }

    /// Reserves room for another endpoint. Returns whether there is any.
    fn reserve(&mut self, device: &dyn Completions, need: usize, limit: usize) -> bool {
        let wanted = self.reserved + need;
        if wanted > self.room {
            if self.is_fixed || wanted > limit {
                return false;
            }
            let room = wanted.max(2 * self.room).min(limit);
            if let Err(error) = device.resize(room) {
                tracing::debug!(
                    target: "ofi::verbs::cq",
                    %error, room,
                    "further endpoints get another completion queue"
                );
                self.is_fixed = true;
                return false;
            }
            self.room = room;
            // Nothing says that a queue stays armed while it grows.
            self.wake_all();
        }
        self.reserved = wanted;
        true
    }
}

impl CompletionPool {
    /// Joins the completion queue of the endpoints that report to the same queues of the application, with room for
    /// `need` outstanding operations. `limit`: how many entries a queue of the device may have. `create` creates one
    /// with room for so many.
    ///
    /// # Errors
    /// The errors of `create` and of eventfd(2).
    pub fn join(
        &self,
        reporting: Reporting,
        need: usize,
        limit: usize,
        mut create: impl FnMut(usize) -> rc::Result<Arc<dyn Completions>>,
    ) -> Result<Member> {
        let wake = WakeFd::new()?;
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|(_, queue)| queue.strong_count() > 0);
        let shares = reporting != [None, None];
        let (mut room, mut found) = (need, None);
        for (_, queue) in known.iter().filter(|(other, _)| shares && *other == reporting) {
            let Some(queue) = queue.upgrade() else { continue };
            let mut sharing = queue.sharing.lock();
            if sharing.is_lost {
                continue;
            }
            if sharing.reserve(&*queue.device, need, limit) {
                drop(sharing);
                found = Some(queue);
                break;
            }
            // The next one is larger, if there is memory, so that there are few.
            room = room.max(2 * sharing.room).min(limit);
        }
        let queue = match found {
            Some(queue) => queue,
            None => {
                let mut created = create(room);
                if created.is_err() && room > need {
                    room = need;
                    created = create(room);
                }
                let queue = created.map_err(|error| failed(&error))?;
                let sharing = Sharing {
                    mailboxes: Slots::default(),
                    routes: FxHashMap::default(),
                    room,
                    reserved: need,
                    is_fixed: false,
                    polls: 0,
                    arms: 0,
                    may_sleep: false,
                    is_lost: false,
                };
                let queue = Arc::new(SharedCompletions { device: queue, sharing: Lock::new(sharing) });
                known.push((reporting, Arc::downgrade(&queue)));
                queue
            }
        };
        let mailbox = Mailbox { entries: VecDeque::new(), wake: wake.clone(), qp: NO_PAIR };
        let mut sharing = queue.sharing.lock();
        let id = sharing.mailboxes.insert(mailbox);
        // Its first look polls the device, and its first arm arms it.
        let (seen, armed) = (sharing.polls, sharing.arms);
        drop(sharing);
        Ok(Member { queue, id, need, wake, seen, armed })
    }
}

/// An endpoint's part of a completion queue.
pub struct Member {
    queue: Arc<SharedCompletions>,
    id: SlotId,
    need: usize,
    wake: WakeFd,
    /// The polls and the arms of the queue that this endpoint has seen.
    seen: u64,
    armed: u64,
}

impl Member {
    /// The device's queue.
    pub fn device(&self) -> &Arc<dyn Completions> {
        &self.queue.device
    }

    /// The descriptors that make a sleeping endpoint poll.
    pub fn fds(&self) -> [RawFd; 2] {
        [self.queue.device.fd(), self.wake.fd()]
    }

    /// The queue has failed. No further endpoint joins it.
    pub fn lose(&mut self) {
        self.queue.sharing.lock().is_lost = true;
    }

    /// From now on, entries of this new queue pair, to which nothing was posted yet, are this endpoint's.
    pub fn serve(&mut self, qp: u32) {
        let mut sharing = self.queue.sharing.lock();
        if let Some(&before) = sharing.routes.get(&qp) {
            // An entry of the old queue pair must not be taken for one of the new. A lost queue has no new ones.
            let _ = sharing.empty(&*self.queue.device);
            if let Some(mailbox) = sharing.mailboxes.get_mut(before) {
                mailbox.qp = NO_PAIR;
            }
        }
        if let Some(mailbox) = sharing.mailboxes.get_mut(self.id) {
            let before = std::mem::replace(&mut mailbox.qp, qp);
            sharing.routes.remove(&before);
        }
        sharing.routes.insert(qp, self.id);
    }

    /// Moves this endpoint's entries to `into`: those of the mailbox, or, if there are none, those of the device.
    ///
    /// # Errors
    /// The device or its queue is lost.
    pub fn fetch(&mut self, into: &mut VecDeque<WorkCompletion>, look: Look) -> rc::Result<()> {
        let mut sharing = self.queue.sharing.lock();
        let Some(mailbox) = sharing.mailboxes.get_mut(self.id) else { return Ok(()) };
        let own = mailbox.qp;
        if !mailbox.entries.is_empty() {
            into.append(&mut mailbox.entries);
            return Ok(());
        }
        if look == Look::InTurn && self.seen != sharing.polls {
            self.seen = sharing.polls;
            return Ok(());
        }
        let most = if look == Look::Now { sharing.room } else { MAX_COMPLETIONS_PER_POLL };
        let mut taken = 0;
        loop {
            let polled = sharing.poll(&*self.queue.device, own, into);
            self.seen = sharing.polls;
            let count = polled?;
            taken += count;
            if count == 0 || !into.is_empty() || taken >= most {
                return Ok(());
            }
        }
    }

    /// Prepares a thread to sleep on the descriptors. Returns whether it may, because this endpoint has no entries.
    pub fn arm(&mut self) -> bool {
        self.wake.arm();
        let mut sharing = self.queue.sharing.lock();
        if self.armed == sharing.arms {
            sharing.arms += 1;
            sharing.may_sleep = may_sleep(&mut Arming { sharing: &mut sharing, device: &*self.queue.device });
        }
        (self.armed, self.seen) = (sharing.arms, sharing.polls);
        sharing.may_sleep && sharing.mailboxes.get(self.id).is_none_or(|mailbox| mailbox.entries.is_empty())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut sharing = self.queue.sharing.lock();
        let _ = sharing.empty(&*self.queue.device); // a lost queue has no room to give back
        if let Some(mailbox) = sharing.mailboxes.remove(self.id) {
            sharing.routes.remove(&mailbox.qp);
        }
        sharing.reserved -= self.need;
    }
}

/// Arms the device's queue.
struct Arming<'a> {
    sharing: &'a mut Sharing,
    device: &'a dyn Completions,
}

impl CqArm for Arming<'_> {
    fn quiet(&mut self) {
        self.device.quiet();
    }

    fn arm(&mut self) -> bool {
        self.device.arm().is_ok()
    }

    fn look(&mut self) -> bool {
        let is_empty = self.sharing.empty(self.device).unwrap_or(false);
        if !is_empty {
            // Nobody is notified of the entries that are left, so everybody polls.
            self.sharing.wake_all();
        }
        !is_empty
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::rc::{Opcode, Status};

    /// A queue to which tests add entries.
    #[derive(Default)]
    struct Queue {
        entries: Mutex<VecDeque<WorkCompletion>>,
        room: AtomicUsize,
        is_fixed: bool,
        polls: AtomicUsize,
        arms: AtomicUsize,
        has_news: AtomicBool,
        is_lost: AtomicBool,
    }

    impl Queue {
        fn add(&self, qp: u32, id: u64) {
            let mut entries = self.entries.lock().unwrap();
            entries.push_back(WorkCompletion {
                id,
                status: Status::SUCCESS,
                opcode: Opcode::Request,
                len: 0,
                qp,
                data: None,
                source_qp: 0,
                lid: 0,
                has_route: false,
            });
            assert!(entries.len() <= self.room.load(Ordering::Relaxed), "an overrun");
            self.has_news.store(true, Ordering::Relaxed);
        }

        fn polls(&self) -> usize {
            self.polls.load(Ordering::Relaxed)
        }
    }

    // SAFETY: it has no memory.
    unsafe impl Completions for Queue {
        fn poll(&self, take: &mut dyn FnMut(WorkCompletion)) -> rc::Result<usize> {
            self.polls.fetch_add(1, Ordering::Relaxed);
            let mut entries = self.entries.lock().unwrap();
            let count = entries.len().min(4);
            entries.drain(..count).for_each(take);
            Ok(count)
        }

        fn resize(&self, entries: usize) -> rc::Result<()> {
            if self.is_fixed {
                return Err(rc::Error { call: "ibv_resize_cq", errno: libc::ENOSYS, advice: "".into() });
            }
            self.room.store(entries, Ordering::Relaxed);
            Ok(())
        }

        fn arm(&self) -> rc::Result<()> {
            self.arms.fetch_add(1, Ordering::Relaxed);
            if self.is_lost.load(Ordering::Relaxed) {
                return Err(rc::Error { call: "ibv_req_notify_cq", errno: libc::EIO, advice: "".into() });
            }
            Ok(())
        }

        fn quiet(&self) {
            self.has_news.store(false, Ordering::Relaxed);
        }

        fn fd(&self) -> RawFd {
            -1
        }

        fn number(&self) -> usize {
            0
        }
    }

    /// The queues that a pool has created.
    #[derive(Default)]
    struct Created(Vec<Arc<Queue>>);

    const ONE: Reporting = [Some(1), Some(1)];

    impl Created {
        fn join(&mut self, pool: &CompletionPool, reporting: Reporting, is_fixed: bool) -> Member {
            let create = |room| {
                let queue = Arc::new(Queue { room: AtomicUsize::new(room), is_fixed, ..Queue::default() });
                self.0.push(Arc::clone(&queue));
                Ok(queue as _)
            };
            pool.join(reporting, 10, 100, create).unwrap()
        }

        fn rooms(&self) -> Vec<usize> {
            self.0.iter().map(|queue| queue.room.load(Ordering::Relaxed)).collect()
        }
    }

    /// Members of one queue, with queue pairs 0, 1 and so on.
    fn members(count: u32) -> (CompletionPool, Arc<Queue>, Vec<Member>) {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let join = |qp| {
            let mut member = created.join(&pool, ONE, false);
            member.serve(qp);
            member
        };
        let members = (0..count).map(join).collect();
        (pool, created.0.remove(0), members)
    }

    /// The ids that a member finds.
    fn found(member: &mut Member, look: Look) -> Vec<u64> {
        let mut into = VecDeque::new();
        member.fetch(&mut into, look).unwrap();
        into.into_iter().map(|entry| entry.id).collect()
    }

    #[test]
    fn members_that_look_in_turn_poll_the_device_once() {
        let (_pool, queue, mut members) = members(3);
        for round in 0..5 {
            queue.add(round % 3, 7);
            let before = queue.polls();
            let counts: Vec<usize> =
                members.iter_mut().map(|member| found(member, Look::InTurn).len()).collect();
            assert_eq!(counts.iter().sum::<usize>(), 1, "{counts:?}");
            // Once more if the entry was another's.
            assert!(queue.polls() - before <= 2);
            let before = queue.polls();
            members.iter_mut().for_each(|member| assert!(found(member, Look::InTurn).is_empty()));
            assert_eq!(queue.polls() - before, 1);
        }
        let before = queue.polls();
        members.iter_mut().for_each(|member| assert!(found(member, Look::Now).is_empty()));
        assert_eq!(queue.polls() - before, 3);
    }

    /// A connection that ends takes what it has left, and then its queue pair is gone.
    #[test]
    fn a_member_that_looks_now_finds_its_entry_behind_all_others() {
        let (_pool, queue, mut members) = members(2);
        queue.room.store(1000, Ordering::Relaxed);
        members[0].queue.sharing.lock().room = 1000;
        (0..600).for_each(|id| queue.add(1, id));
        queue.add(0, 7);
        assert_eq!(found(&mut members[0], Look::InTurn), [], "it stops after a while");
        assert_eq!(found(&mut members[0], Look::Now), [7]);
        assert_eq!(found(&mut members[1], Look::InTurn).len(), 600);
    }

    #[test]
    fn nobody_joins_a_queue_that_has_failed() {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let mut first = created.join(&pool, ONE, false);
        let _second = created.join(&pool, ONE, false);
        assert_eq!(created.0.len(), 1);
        first.lose();
        let _third = created.join(&pool, ONE, false);
        assert_eq!(created.rooms(), [20, 10]);
    }

    #[test]
    fn nobody_sleeps_after_an_arm_that_failed() {
        let (_pool, queue, mut members) = members(2);
        queue.is_lost.store(true, Ordering::Relaxed);
        assert!(!members[0].arm() && !members[1].arm(), "the second one relies on the first");
        queue.is_lost.store(false, Ordering::Relaxed);
        assert!(members[1].arm() && members[0].arm());
    }

    #[test]
    fn members_arm_again_after_the_queue_has_grown() {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let mut members: Vec<Member> = (0..2).map(|_| created.join(&pool, ONE, false)).collect();
        assert!(members.iter_mut().all(Member::arm));
        members.push(created.join(&pool, ONE, false));
        assert_eq!(created.rooms(), [40]);
        assert!(ofi_core::sys::is_readable(members[0].wake.fd()));
        assert!(members[0].arm());
        assert_eq!(created.0[0].arms.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_member_that_looks_alone_polls_each_time() {
        let (_pool, queue, mut members) = members(3);
        for _ in 0..3 {
            queue.add(2, 7);
            assert_eq!(found(&mut members[2], Look::InTurn), [7]);
        }
    }

    /// The old queue pair is gone, and has left entries in the queue.
    #[test]
    fn entries_of_an_old_queue_pair_are_not_the_new_one_s() {
        let (_pool, queue, mut members) = members(2);
        (0..10).for_each(|id| queue.add(0, id));
        members[1].serve(0);
        queue.add(0, 10);
        assert_eq!(found(&mut members[1], Look::Now), [10]);
        assert_eq!(found(&mut members[0], Look::Now), (0..10).collect::<Vec<_>>());
        queue.add(1, 11);
        assert_eq!(found(&mut members[1], Look::Now), [], "its first one is gone");
    }

    #[test]
    fn a_member_that_leaves_gives_its_room_back() {
        let (pool, queue, mut members) = members(2);
        let mut created = Created::default();
        for id in 0..50 {
            (0..10).for_each(|_| queue.add(1, id));
            queue.add(0, id);
            members.truncate(1);
            let mut next = created.join(&pool, ONE, false);
            next.serve(1);
            members.push(next);
            assert_eq!(found(&mut members[1], Look::Now), []);
            assert_eq!(found(&mut members[0], Look::Now), [id]);
        }
        assert!(created.0.is_empty());
        assert_eq!(queue.room.load(Ordering::Relaxed), 20);
    }

    #[test]
    fn a_queue_grows_to_the_device_s_limit_and_then_there_is_another() {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let members: Vec<Member> = (0..25).map(|_| created.join(&pool, ONE, false)).collect();
        assert_eq!(created.rooms(), [100, 100, 100]);
        drop(members);
        let _member = created.join(&pool, ONE, false);
        assert_eq!(created.0.len(), 4, "the others are gone");
    }

    #[test]
    fn a_device_that_cannot_resize_has_few_queues() {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let _members: Vec<Member> = (0..15).map(|_| created.join(&pool, ONE, true)).collect();
        assert_eq!(created.rooms(), [10, 20, 40, 80]);
    }

    #[test]
    fn only_who_reports_to_the_same_queues_shares() {
        let (pool, mut created) = (CompletionPool::default(), Created::default());
        let reporting = [ONE, [Some(1), Some(2)], [Some(1), None], [None, None], [None, None], ONE];
        let _members = reporting.map(|reporting| created.join(&pool, reporting, false));
        assert_eq!(created.0.len(), 5);
    }

    #[test]
    fn members_that_are_armed_in_turn_arm_the_device_once() {
        let (_pool, queue, mut members) = members(3);
        for round in 1..5 {
            assert!(members.iter_mut().all(Member::arm));
            assert_eq!(queue.arms.load(Ordering::Relaxed), round);
        }
    }

    /// Whoever arms takes the device's notification, and wakes those whose entries it finds.
    #[test]
    fn a_sleeper_is_woken_for_an_entry_that_another_member_finds() {
        let (_pool, queue, mut members) = members(3);
        let is_woken = |member: &Member| ofi_core::sys::is_readable(member.wake.fd());
        assert!(members[..2].iter_mut().all(Member::arm));
        queue.add(0, 7);
        assert!(members[2].arm(), "in turn: it leaves the notification");
        assert!(queue.has_news.load(Ordering::Relaxed) && !is_woken(&members[0]));
        assert!(members[2].arm(), "it takes the notification");
        assert!(!queue.has_news.load(Ordering::Relaxed));
        assert!(is_woken(&members[0]) && !is_woken(&members[1]));
        assert!(!members[0].arm(), "it has an entry");
        assert_eq!(found(&mut members[0], Look::InTurn), [7]);
        assert!(members[0].arm());
        queue.add(1, 8);
        assert_eq!(found(&mut members[2], Look::Now), []);
        assert!(is_woken(&members[1]) && !is_woken(&members[0]));
    }
}
