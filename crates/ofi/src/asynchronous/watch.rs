//! Wakes futures that wait for event queues, with one thread for the process. The thread sleeps on all of the queues
//! and exists while a future waits. Events (connection requests, closed connections) are few and rare, so event queues
//! need no driver.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, EventQueue, Result};
use ofi_core::sys::{self, WaitSet};

/// How often a queue is read whose endpoints have something under way that ends with time.
const SOON: Duration = Duration::from_millis(50);
/// How often any other is: a bound in case a wake-up is lost.
const SELDOM: Duration = Duration::from_secs(1);

/// A future that waits.
struct Watched {
    eq: Arc<dyn EventQueue>,
    waker: Waker,
    until: Instant,
}

#[derive(Default)]
struct State {
    new: Vec<Watched>,
    /// What wakes the thread, while there is one.
    running: Option<Arc<OwnedFd>>,
    /// The process that it is a thread of: a forked child has none.
    process: u32,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

fn state() -> MutexGuard<'static, Option<State>> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes `waker`, once, when `eq` has something to read; a while later in any case, sooner if something is under way.
/// It must have been read after the waker was there to be woken, or is read when it is.
///
/// # Errors
/// The system's error if the thread cannot be started.
pub fn wake_for(eq: &Arc<dyn EventQueue>, waker: &Waker, under_way: bool) -> Result<()> {
    let until = Instant::now() + if under_way { SOON } else { SELDOM };
    let watched = Watched { eq: Arc::clone(eq), waker: waker.clone(), until };
    let mut guard = state();
    let state = guard.get_or_insert_default();
    if state.process != std::process::id() {
        *state = State { process: std::process::id(), ..State::default() };
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

/// The thread: it ends when no future waits.
fn run(set: &WaitSet, wake: &OwnedFd) {
    let mut all: Vec<Watched> = Vec::new();
    loop {
        {
            let mut guard = state();
            let state = guard.get_or_insert_default();
            all.append(&mut state.new);
            if all.is_empty() {
                state.running = None;
                return;
            }
        }
        // What is there already, or cannot be slept on, is for whoever waits to look at.
        wake_those(&mut all, |waiting| waiting.until <= Instant::now() || waiting.eq.trywait().is_err());
        let watched: Vec<RawFd> = all.iter().filter_map(|waiting| waiting.eq.wait_fd()).collect();
        if watched.iter().any(|&fd| set.add(fd).is_err()) {
            wake_those(&mut all, |_| true); // no room in the set: they read, and come back
        }
        if let Some(until) = all.iter().map(|waiting| waiting.until).min() {
            sys::wait_readable(&[set.fd()], Some(until));
        }
        sys::drain_eventfd(wake);
        let ready = set.ready();
        // Before anybody may close one.
        watched.iter().for_each(|&fd| set.remove(fd));
        wake_those(&mut all, |waiting| waiting.eq.wait_fd().is_some_and(|fd| ready.contains(&fd)));
    }
}

fn wake_those(all: &mut Vec<Watched>, which: impl Fn(&Watched) -> bool) {
    let (woken, rest): (Vec<_>, Vec<_>) = std::mem::take(all).into_iter().partition(|waiting| which(waiting));
    *all = rest;
    woken.into_iter().for_each(|waiting| waiting.waker.wake());
}
