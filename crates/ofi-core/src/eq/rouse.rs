//! What becomes of those that sleep on an event queue when somebody else polls what they had armed.
//!
//! As long as the other goes on polling, it pushes what there is to the queue, which wakes them. If it sleeps itself, it arms anew,
//! for all. But if it just stops, they would sleep for ever. So a thread of the process rings them [`PATIENCE`] later, unless it
//! was armed anew until then. Ringing them at once would have them arm and be undone as fast as the other polls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, Weak};
use std::time::Duration;

use super::EqCore;

/// How long a sleeper may miss what nobody polls for: as a progress thread ([`crate::progress`]).
const PATIENCE: Duration = Duration::from_millis(10);

/// An event queue that an endpoint is driven by, and whether those who sleep on it have armed in vain.
pub struct Sleepers {
    eq: Weak<EqCore>,
    undone: Arc<AtomicBool>,
}

type Undone = (Weak<EqCore>, Arc<AtomicBool>);

/// Who is to be rung.
#[derive(Default)]
struct Rouser {
    list: Mutex<Vec<Undone>>,
    more: Condvar,
}

/// The thread of this process. A forked child has none until it needs one.
static ROUSER: Mutex<Option<(u32, Arc<Rouser>)>> = Mutex::new(None);

impl Sleepers {
    /// Those of this queue.
    pub fn new(eq: &Arc<EqCore>) -> Self {
        Self { eq: Arc::downgrade(eq), undone: Arc::default() }
    }

    /// The endpoint is armed.
    pub fn armed(&self) {
        self.undone.store(false, Ordering::SeqCst);
    }

    /// The endpoint is not armed any more.
    #[cold]
    pub fn disarmed(&self) {
        let Some(eq) = self.eq.upgrade().filter(|eq| eq.is_slept_on()) else { return };
        if self.undone.swap(true, Ordering::SeqCst) {
            return;
        }
        match Rouser::get() {
            Some(rouser) => rouser.add((Weak::clone(&self.eq), Arc::clone(&self.undone))),
            None => eq.ring(),
        }
    }
}

impl Rouser {
    /// `None` if no thread can be started, or somebody else is about to: a child of a fork in that moment has the lock for ever.
    fn get() -> Option<Arc<Self>> {
        let mut known = match ROUSER.try_lock() {
            Ok(known) => known,
            Err(TryLockError::Poisoned(known)) => known.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let process = std::process::id();
        if let Some((_, rouser)) = known.as_ref().filter(|(of, _)| *of == process) {
            return Some(Arc::clone(rouser));
        }
        let fresh = Arc::<Self>::default();
        let thread = Arc::clone(&fresh);
        let builder = std::thread::Builder::new().name("ofi-rouse".into()).stack_size(128 << 10);
        builder.spawn(move || thread.run()).ok()?;
        *known = Some((process, Arc::clone(&fresh)));
        Some(fresh)
    }

    fn add(&self, undone: Undone) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push(undone);
        self.more.notify_one();
    }

    fn run(&self) {
        loop {
            let list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            drop(self.more.wait_while(list, |list| list.is_empty()));
            std::thread::sleep(PATIENCE);
            let due = std::mem::take(&mut *self.list.lock().unwrap_or_else(PoisonError::into_inner));
            for (eq, undone) in due {
                if undone.swap(false, Ordering::SeqCst)
                    && let Some(eq) = eq.upgrade()
                {
                    eq.ring();
                }
            }
        }
    }
}
