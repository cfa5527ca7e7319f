//! The thread of the process that rearms endpoints which sleeping threads had armed and another thread's poll has
//! disarmed ([`crate::sleepers`]).

use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, Weak};
use std::time::Duration;

use ofi_ring::deferred_check::DeferredCheck;

/// The delay before a disarmed endpoint is rearmed: the longest that a sleeper may miss an event. A progress thread
/// checks at the same interval ([`crate::progress`]).
pub const REARM_INTERVAL: Duration = Duration::from_millis(10);

/// An object to check.
pub trait Rearm: Send + Sync {
    /// Rearms the endpoint, or wakes the sleepers. Called by the thread, without a lock.
    fn rearm(&self);
}

struct Due {
    what: Weak<dyn Rearm>,
    flags: Arc<DeferredCheck>,
}

#[derive(Default)]
struct RearmThread {
    list: Mutex<Vec<Due>>,
    more: Condvar,
}

/// The thread of this process. A forked child has none until it needs one.
static THREAD: Mutex<Option<(u32, Arc<RearmThread>)>> = Mutex::new(None);

/// Calls `what.rearm()` after [`REARM_INTERVAL`], if `flags` still say that it is due. Call it when
/// [`DeferredCheck::begin`] returns `true`. Returns `false` if no thread can be started: the caller must then rearm
/// `what` at once.
#[must_use]
pub fn later(what: &Weak<dyn Rearm>, flags: &Arc<DeferredCheck>) -> bool {
    let Some(thread) = RearmThread::get() else { return false };
    let due = Due { what: Weak::clone(what), flags: Arc::clone(flags) };
    thread.list.lock().unwrap_or_else(PoisonError::into_inner).push(due);
    thread.more.notify_one();
    true
}

impl RearmThread {
    /// `None` if no thread can be started, or if the lock is taken: in a child that was forked at that moment, it stays
    /// taken for ever.
    fn get() -> Option<Arc<Self>> {
        let mut known = match THREAD.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let process = std::process::id();
        if let Some((_, thread)) = known.as_ref().filter(|(of, _)| *of == process) {
            return Some(Arc::clone(thread));
        }
        let fresh = Arc::<Self>::default();
        let thread = Arc::clone(&fresh);
        let builder = std::thread::Builder::new().name("ofi-rearm".into()).stack_size(256 << 10);
        builder.spawn(move || thread.run()).ok()?;
        *known = Some((process, Arc::clone(&fresh)));
        Some(fresh)
    }

    fn run(&self) {
        loop {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.more.wait_while(list, |list| list.is_empty()));
            std::thread::sleep(REARM_INTERVAL);
            let due = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
            for Due { what, flags } in due {
                if flags.look()
                    && let Some(what) = what.upgrade()
                {
                    what.rearm();
                }
            }
        }
    }
}
