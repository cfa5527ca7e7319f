//! Models in loom.

use loom::model::Builder;
use loom::thread;

use super::*;
use crate::sync::Arc;

/// Data under the lock: loom fails a model in which two accesses are not ordered.
struct Guarded(RawLock, UnsafeCell<u32>);

// SAFETY: the number is accessed only inside the lock.
unsafe impl Sync for Guarded {}
// SAFETY: it owns its value.
unsafe impl Send for Guarded {}

impl Guarded {
    fn new(support: Support) -> Arc<Self> {
        Arc::new(Self(RawLock::with(support), UnsafeCell::new(0)))
    }

    fn add(&self, me: usize) {
        let _entered = self.0.enter_as(me);
        // SAFETY: this thread is inside.
        self.1.with_mut(|number| unsafe { *number += 1 });
    }

    /// As [`Guarded::add`], but gives up instead of waiting for `held`, because loom cannot tell two threads that wait
    /// for a third from threads that wait for each other. Returns whether it added.
    fn try_add(&self, me: usize) -> u32 {
        let bias = self.0.bias.load(Ordering::Acquire);
        // SAFETY: owners live as long as the lock.
        let _entered = if unsafe { (*bias).thread } == me {
            self.0.enter_as(me)
        } else if self.0.take(me).is_ok() {
            self.0.enter_by_held(me)
        } else {
            return 0;
        };
        // SAFETY: this thread is inside.
        self.1.with_mut(|number| unsafe { *number += 1 });
        1
    }

    /// As [`Guarded::add`], if no thread is inside. Returns whether it added.
    fn add_if_free(&self, me: usize) -> u32 {
        let Some(_entered) = self.0.try_enter_as(me) else { return 0 };
        // SAFETY: this thread is inside.
        self.1.with_mut(|number| unsafe { *number += 1 });
        1
    }

    fn sum(&self, me: usize) -> u32 {
        let _entered = self.0.enter_as(me);
        let mut sum = 0;
        // SAFETY: this thread is inside.
        self.1.with_mut(|number| sum = unsafe { *number });
        sum
    }
}

fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

fn guest(guarded: &Arc<Guarded>, me: usize, times: usize) -> thread::JoinHandle<()> {
    let guarded = Arc::clone(guarded);
    thread::spawn(move || (0..times).for_each(|_| guarded.add(me)))
}

/// The owner enters twice while another thread revokes its bias.
#[test]
fn an_owner_and_a_revoker_exclude_each_other() {
    model(4, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let guest = guest(&guarded, 2, 1);
        guarded.add(1);
        guarded.add(1);
        guest.join().unwrap();
        assert_eq!(guarded.sum(1), 4);
    });
}

/// The revoking thread becomes the owner while the old owner is at any step of its entry, and is revoked in turn.
#[test]
fn a_late_owner_disturbs_no_later_one() {
    model(3, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let guest = guest(&guarded, 2, 3);
        guarded.add(1);
        guarded.add(1);
        guest.join().unwrap();
        assert_eq!(guarded.sum(1), 6);
    });
}

fn trying(guarded: &Arc<Guarded>, me: usize, times: usize) -> thread::JoinHandle<u32> {
    let guarded = Arc::clone(guarded);
    thread::spawn(move || (0..times).map(|_| guarded.try_add(me)).sum())
}

/// Two threads revoke the same bias.
#[test]
fn two_revokers_exclude_each_other() {
    model(2, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let guests = [trying(&guarded, 2, 1), trying(&guarded, 3, 1)];
        let mut added = 1 + guarded.try_add(1);
        guests.into_iter().for_each(|guest| added += guest.join().unwrap());
        assert_eq!(guarded.sum(1), added);
    });
}

/// A thread that has revoked becomes the owner, and a third thread revokes, while the first is late.
#[test]
fn three_threads_and_two_owners() {
    model(2, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let guests = [trying(&guarded, 2, 3), trying(&guarded, 3, 1)];
        let mut added = 1 + guarded.try_add(1);
        guests.into_iter().for_each(|guest| added += guest.join().unwrap());
        assert_eq!(guarded.sum(1), added);
    });
}

fn visitor(guarded: &Arc<Guarded>, me: usize, times: usize) -> thread::JoinHandle<u32> {
    let guarded = Arc::clone(guarded);
    thread::spawn(move || (0..times).map(|_| guarded.add_if_free(me)).sum())
}

/// A thread that does not wait finds the lock free, or leaves the owner its bias.
#[test]
fn an_owner_and_a_visitor_exclude_each_other() {
    model(4, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let visitor = visitor(&guarded, 2, 2);
        guarded.add(1);
        guarded.add(1);
        let added = visitor.join().unwrap();
        assert_eq!(guarded.sum(1), 3 + added);
    });
}

/// The bias that a visitor gives back is revoked by a third thread.
#[test]
fn a_visitor_and_a_revoker_exclude_each_other() {
    model(2, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let guests = [visitor(&guarded, 2, 1), trying(&guarded, 3, 1)];
        let mut added = 1 + guarded.try_add(1);
        guests.into_iter().for_each(|guest| added += guest.join().unwrap());
        assert_eq!(guarded.sum(1), added);
    });
}

/// The owner itself does not wait, and another thread visits.
#[test]
fn two_visitors_exclude_each_other() {
    model(3, || {
        let guarded = Guarded::new(Support::Expedited);
        guarded.add(1);
        let visitor = visitor(&guarded, 2, 2);
        let mut added = 1 + guarded.add_if_free(1) + guarded.add_if_free(1);
        added += visitor.join().unwrap();
        assert_eq!(guarded.sum(1), added);
    });
}

/// Without the barrier, it is an ordinary lock.
#[test]
fn without_the_barrier_threads_exclude_each_other() {
    model(3, || {
        let guarded = Guarded::new(Support::Missing);
        let guest = guest(&guarded, 2, 2);
        guarded.add(1);
        guarded.add(1);
        guest.join().unwrap();
        assert_eq!(guarded.sum(1), 4);
    });
}
