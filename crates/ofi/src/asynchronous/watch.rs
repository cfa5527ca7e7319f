//! One thread for the process, which wakes futures that wait for event queues. The thread sleeps on all of these queues
//! and exists while a future waits. Events (connection requests, closed connections) are rare, so event queues need no
//! driver. The thread also watches the completion queue of a hub that no reactor watches.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ofi_api::{CompletionQueue, Errno, Error, EventQueue, Result};
use ofi_core::sys::{self, WaitSet};

/// The interval of reads of a queue whose endpoints have work in progress that a timer ends.
const SOON: Duration = Duration::from_millis(50);
/// The interval of reads of any other queue: a bound, in case a wake-up is lost.
const SELDOM: Duration = Duration::from_secs(1);

/// The queues that a future waits for.
#[derive(Clone)]
pub struct Queues {
    pub eq: Arc<dyn EventQueue>,
    pub cq: Option<Arc<dyn CompletionQueue>>,
}

impl Queues {
    /// Whether the queues are empty, and their descriptors will signal the next entry.
    fn may_sleep(&self) -> bool {
        self.eq.trywait().is_ok() && self.cq.as_ref().is_none_or(|cq| cq.trywait().is_ok())
    }

    fn fds(&self) -> impl Iterator<Item = RawFd> {
        let cq = self.cq.as_ref().and_then(|cq| cq.wait_fd());
        [self.eq.wait_fd(), cq].into_iter().flatten()
    }

    fn same(&self, other: &Self) -> bool {
        let cqs = (self.cq.as_ref().map(Arc::as_ptr), other.cq.as_ref().map(Arc::as_ptr));
        Arc::ptr_eq(&self.eq, &other.eq) && cqs.0.map(<*const _>::addr) == cqs.1.map(<*const _>::addr)
    }
}

/// A waiting future.
struct Watched {
    queues: Queues,
    waker: Waker,
    until: Instant,
}

#[derive(Default)]
struct WatchState {
    new: Vec<Watched>,
    /// Wakes the thread, while there is one.
    running: Option<Arc<OwnedFd>>,
    /// The process that the thread belongs to. A forked child has no thread.
    process: u32,
}

static STATE: Mutex<Option<WatchState>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<WatchState>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes `waker` once: when one of `queues` has something to read, or after a while in any case (sooner if something is
/// in progress). The caller must read the queues after registering the waker, and when it is woken.
///
/// # Errors
/// The system's error if the thread cannot be started.
pub fn wake_for(queues: Queues, waker: &Waker, under_way: bool) -> Result<()> {
    let until = Instant::now() + if under_way { SOON } else { SELDOM };
    let watched = Watched { queues, waker: waker.clone(), until };
    let mut guard = state();
    let state = guard.get_or_insert_default();
    if state.process != std::process::id() {
        *state = WatchState { process: std::process::id(), ..WatchState::default() };
    }
    state.new.push(watched);
    if let Some(wake) = &state.running {
        sys::signal_eventfd(wake);
        return Ok(());
    }
    let wake = Arc::new(sys::eventfd()?);
    let (set, own) = (WaitSet::new()?, Arc::clone(&wake));
    set.add(wake.as_raw_fd())?;
    let thread = std::thread::Builder::new().name("ofi-events".into()).spawn(move || run(&set, &own));
    thread.map_err(|error| {
        Error::with(Errno::EAGAIN, format!("the thread that watches event queues did not start: {error}"))
    })?;
    state.running = Some(wake);
    Ok(())
}

/// The body of the thread. It ends when no future waits.
fn run(set: &WaitSet, wake: &OwnedFd) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        {
            let mut guard = state();
            let state = guard.get_or_insert_default();
            state.new.drain(..).for_each(|new| enter(&mut all, new));
            if all.is_empty() {
                state.running = None;
                return;
            }
        }
        // If a queue has something to read or cannot be slept on, wake its future.
        wake_those(&mut all, |waiting| waiting.until <= Instant::now() || !waiting.queues.may_sleep());
        let watched: Vec<RawFd> = all.iter().flat_map(|waiting| waiting.queues.fds()).collect();
        if watched.iter().any(|&fd| set.add(fd).is_err()) {
            wake_those(&mut all, |_| true); // no room in the set: the futures read their queues, and return
        }
        if let Some(until) = all.iter().map(|waiting| waiting.until).min() {
            sys::wait_readable(&[set.fd()], Some(until));
        }
        sys::drain_eventfd(wake);
        let ready = set.ready();
        // Remove the descriptors before a queue may be closed.
        watched.iter().for_each(|&fd| set.remove(fd));
        wake_those(&mut all, |waiting| waiting.queues.fds().any(|fd| ready.contains(&fd)));
    }
}

/// Adds a waiting future. A future that was woken for another reason and waits again is entered only once, so that a
/// busy task does not fill the list.
fn enter(all: &mut Vec<Watched>, new: Watched) {
    let same = |old: &&mut Watched| old.queues.same(&new.queues) && old.waker.will_wake(&new.waker);
    match all.iter_mut().find(same) {
        Some(old) => old.until = old.until.min(new.until),
        None => all.push(new),
    }
}

fn wake_those(all: &mut Vec<Watched>, which: impl Fn(&Watched) -> bool) {
    let (woken, rest): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(|waiting| which(waiting));
    *all = rest;
    woken.into_iter().for_each(|waiting| waiting.waker.wake());
}
