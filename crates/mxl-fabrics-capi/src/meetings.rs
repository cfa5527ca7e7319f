//! Ends of this process that serve the same target: a call that waits for one end drives the others meanwhile, because
//! one thread of the program may drive all of them. Ends that another thread's call is using are skipped.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use mxl_fabrics::{Beside, Result, Visit};

/// An end that may be set up: the part of the object behind a handle that outlives a wait.
pub(crate) type ObjectSlot<T> = Arc<Mutex<Option<T>>>;

/// An end after its setup.
pub(crate) trait Visited: Send + 'static {
    /// Drives the end for a call that waits for another one, and keeps its error for its own next call.
    fn visit(&mut self, visit: &mut Visit<'_>);
}

/// A slot of any kind.
trait End: Send + Sync {
    /// Drives the end, if it is set up and no call uses it now.
    fn visit(&self, visit: &mut Visit<'_>);
}

impl<T: Visited> End for Mutex<Option<T>> {
    fn visit(&self, visit: &mut Visit<'_>) {
        let mut ready = match self.try_lock() {
            Ok(ready) => ready,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        if let Some(ready) = ready.as_mut() {
            ready.visit(visit);
        }
    }
}

/// The two sides of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Targets,
    Initiators,
}

/// The ends of each target, by its id.
type Meetings = HashMap<u64, Vec<(Side, Weak<dyn End>)>>;

/// The lock is held briefly, and no other lock is taken meanwhile.
static MEETINGS: Mutex<Option<Meetings>> = Mutex::new(None);

fn meetings() -> MutexGuard<'static, Option<Meetings>> {
    MEETINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether `there` is `end`.
fn is<T>(there: &Weak<dyn End>, end: &ObjectSlot<T>) -> bool {
    std::ptr::addr_eq(there.as_ptr(), Arc::as_ptr(end))
}

/// Records that the target with this id is set up, or that an initiator has it.
pub(crate) fn join<T: Visited>(id: u64, side: Side, end: &ObjectSlot<T>) {
    let mut meetings = meetings();
    let ends = meetings.get_or_insert_default().entry(id).or_default();
    if !ends.iter().any(|(_, there)| is(there, end)) {
        let end: Arc<dyn End> = Arc::<Mutex<Option<T>>>::clone(end);
        ends.push((side, Arc::downgrade(&end)));
    }
}

/// Records that the targets with these ids are closed, or that an initiator no longer has them.
pub(crate) fn leave<T>(ids: &[u64], end: &ObjectSlot<T>) {
    let mut meetings = meetings();
    let Some(all) = meetings.as_mut() else { return };
    for id in ids {
        let Some(ends) = all.get_mut(id) else { continue };
        ends.retain(|(_, there)| !is(there, end));
        if ends.is_empty() {
            all.remove(id);
        }
    }
}

/// The ends of this process on one side of the targets with some ids.
pub(crate) struct Others(Vec<Arc<dyn End>>);

impl Others {
    pub fn of(ids: &[u64], side: Side) -> Self {
        let meetings = meetings();
        let Some(all) = meetings.as_ref() else { return Self(Vec::new()) };
        let ends = ids.iter().filter_map(|id| all.get(id)).flatten().filter(|(of, _)| *of == side);
        Self(ends.filter_map(|(_, end)| end.upgrade()).collect())
    }
}

impl Beside for Others {
    fn each(&mut self, visit: &mut Visit<'_>) -> Result<()> {
        self.0.iter().for_each(|end| end.visit(visit));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Idle;

    impl Visited for Idle {
        fn visit(&mut self, _visit: &mut Visit<'_>) {}
    }

    #[test]
    fn nothing_is_left_of_ends_that_have_left() {
        let [one, two]: [ObjectSlot<Idle>; 2] = [ObjectSlot::default(), ObjectSlot::default()];
        let ids = [u64::MAX - 1, u64::MAX];
        for id in ids {
            join(id, Side::Targets, &one);
            join(id, Side::Targets, &one);
            join(id, Side::Initiators, &two);
        }
        let count = |ids: &[u64], side| Others::of(ids, side).0.len();
        assert_eq!((count(&ids, Side::Targets), count(&ids[..1], Side::Initiators)), (2, 1));
        assert_eq!(count(&[u64::MAX - 2], Side::Targets), 0);
        leave(&ids, &one);
        leave(&ids[..1], &two);
        assert!(!meetings().as_ref().unwrap().contains_key(&ids[0]));
        assert_eq!((count(&ids, Side::Targets), count(&ids, Side::Initiators)), (0, 1));
        leave(&ids, &two);
        assert!(!meetings().as_ref().unwrap().contains_key(&ids[1]));
    }
}
