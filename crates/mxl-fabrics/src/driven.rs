//! Progress threads: a thread drives one end of a flow while the program waits for its events or awaits them.
//!
//! The thread polls while there is work, and for [`SPIN`] after it. Then it sleeps on the descriptors of the end's
//! queues ([`crate::rest`]), also while transfers are in flight: completions and arrivals make them readable, and calls
//! of the program wake the thread. If commits come at even intervals ([`crate::interval_predictor`]), it is awake when
//! the next one is due.
//!
//! One thread can drive many ends instead ([`Engine`]): then it sleeps as soon as none of them has anything to do.

use std::num::NonZeroU64;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi::raw::CompletionQueue;
use ofi_core::fork::Born;

use crate::engine::{self, Engine, Next, Step};
use crate::interval_predictor::IntervalPredictor;
use crate::rest::{self, MAX_SLEEP, NAP, Sleeper, WaitFor};
use crate::{Error, Result};

/// Time for which the thread continues to poll after an event, and after a call that has woken it: about the time of an
/// answer of the other end.
const SPIN: Duration = Duration::from_micros(50);

/// Turns of an end on an engine before the next end has its turn.
const TURNS: usize = 16;

/// The ends that a [`Driven`] drives: a [`Target`](crate::Target), an [`Initiator`](crate::Initiator) or a
/// [`Merge`](crate::Merge).
pub trait Drive: sealed::Polled {}

impl<T: sealed::Polled> Drive for T {}

pub(crate) mod sealed {
    use std::sync::Arc;

    use ofi::raw::CompletionQueue;

    use crate::Result;
    use crate::rest::WaitFor;

    /// One end of a flow, or several of one kind.
    pub trait Polled: Send + 'static {
        /// Its events.
        type Event: Send;

        /// Makes progress. Returns whether an event occurred.
        ///
        /// # Errors
        /// The error that broke the end.
        fn turn(&mut self) -> Result<bool>;

        /// The oldest unread event.
        fn take(&mut self) -> Option<Self::Event>;

        /// Whether there is room for the events of a turn without displacing unread ones that the program needs.
        fn has_room(&self) -> bool {
            true
        }

        /// The condition that the end waits for after a turn without events.
        fn rest(&self) -> WaitFor;

        /// Whether nothing is under way here, so that only a peer or the program can bring something to do.
        fn is_quiet(&self) -> bool {
            false
        }

        /// The queues whose descriptors announce events.
        fn queues(&self) -> Vec<Arc<dyn CompletionQueue>>;
    }
}

/// An end of a flow with a thread that drives it.
///
/// The thread publishes arriving grains and sends submitted ones in the background. Dropping it ends the thread, and
/// then the end of the flow.
///
/// ```no_run
/// # fn main() -> mxl_fabrics::Result<()> {
/// # let domain = mxl::Domain::open("/dev/shm/mxl")?;
/// # let definition = mxl::FlowDefinition::video("camera", 1920, 1080, mxl::Rational::new(50, 1))?;
/// use std::time::Duration;
///
/// use mxl_fabrics::{Driven, Provider, Target};
///
/// let place = (Some("10.31.6.12"), Some("7471"));
/// let target = Driven::start(Target::open(&domain, &definition, Provider::Udp, place, None)?)?;
/// println!("{}", target.with(|target| target.info().to_json()));
/// while let Some(received) = target.wait(Duration::from_secs(1))? {
///     println!("{received:?}"); // it is published already
/// }
/// # Ok(())
/// # }
/// ```
pub struct Driven<T: Drive> {
    shared: Arc<DrivenShared<T>>,
    thread: Option<JoinHandle<()>>,
    /// In place of a thread: the engine, and the end's number there.
    engine: Option<(Engine, u64)>,
    /// The process of the thread: a forked child has a copy of this value, but not the thread.
    born: Born,
}

struct DrivenShared<T> {
    state: Mutex<DrivenState<T>>,
    news: Condvar,
    queues: Vec<Arc<dyn CompletionQueue>>,
    /// Those of the queues.
    descriptors: Option<Vec<RawFd>>,
    /// Threads of the program that want the lock. The driving thread lets them go first.
    callers: AtomicUsize,
}

struct DrivenState<T> {
    end: T,
    /// The thread sleeps on descriptors, or is about to.
    is_asleep: bool,
    /// The thread has ended, or must end.
    is_over: bool,
    failed: Option<Error>,
    wakers: Vec<Waker>,
    /// On an engine: its sleeps, and the length of the next one if the end is quiet.
    sleeper: Sleeper,
    pause: Duration,
}

impl<T: Drive> Driven<T> {
    /// Starts a thread that drives an end.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system cannot start a thread.
    pub fn start(end: T) -> Result<Self> {
        let shared = DrivenShared::new(end);
        let driven = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mxl-fabrics".into()).spawn(move || {
            let over = Over(&driven);
            driven.run();
            drop(over);
        });
        let thread =
            thread.map_err(|error| Error::Argument(format!("start the progress thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread), engine: None, born: Born::here() })
    }

    /// Drives an end by the thread of an engine, for programs with many ends: see [`Engine`].
    ///
    /// # Errors
    /// [`Error::Argument`] if the system refuses to wait for the end's queues.
    pub fn start_on(engine: &Engine, end: T) -> Result<Self> {
        let shared = DrivenShared::new(end);
        let number = engine.add(shared.clone())?;
        Ok(Self { shared, thread: None, engine: Some((engine.clone(), number)), born: Born::here() })
    }

    /// Runs `call` on the end, between two turns of the thread: to submit a grain, add a target, or read the
    /// statistics.
    ///
    /// # Panics
    /// In a forked child: the thread that would let it have the end is the parent's.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        self.check_process().expect("the end is used by the process that made it");
        let mut state = self.shared.enter();
        let answer = call(&mut state.end);
        self.shared.changed(state);
        answer
    }

    /// Reads of the end what changes nothing, such as its statistics: its thread is not woken.
    ///
    /// # Panics
    /// In a forked child.
    pub fn inspect<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.check_process().expect("the end is used by the process that made it");
        read(&self.shared.enter().end)
    }

    /// The oldest unread event. Sleeps until there is one; `None` after `timeout`.
    ///
    /// # Errors
    /// The error that broke the end, once; [`Error::Argument`] from then on, and in a forked child.
    pub fn wait(&self, timeout: Duration) -> Result<Option<T::Event>> {
        self.check_process()?;
        let begin = Instant::now();
        let mut state = self.shared.enter();
        loop {
            if let Some(event) = state.next()? {
                return Ok(Some(event));
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sleeps until the end is in some state, which is checked after each change. Returns false after `timeout`. Events
    /// are not read.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub fn wait_until(&self, timeout: Duration, mut is_done: impl FnMut(&T) -> bool) -> Result<bool> {
        self.check_process()?;
        let begin = Instant::now();
        let mut state = self.shared.enter();
        loop {
            state.check()?;
            if is_done(&state.end) {
                return Ok(true);
            }
            let left = timeout.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            state = self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The oldest unread event, as soon as there is one.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub async fn next(&self) -> Result<T::Event> {
        self.check_process()?;
        std::future::poll_fn(|context| {
            let mut state = self.shared.enter();
            match state.next() {
                Ok(Some(event)) => Poll::Ready(Ok(event)),
                Err(error) => Poll::Ready(Err(error)),
                Ok(None) => {
                    let waker = context.waker();
                    if !state.wakers.iter().any(|known| known.will_wake(waker)) {
                        state.wakers.push(waker.clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Stops the thread, and returns the end of the flow that it drove.
    ///
    /// # Panics
    /// If the thread has panicked, and in a forked child, which does not have the thread.
    pub fn stop(mut self) -> T {
        self.end();
        let shared = Arc::clone(&self.shared);
        drop(self);
        let shared = Arc::into_inner(shared).expect("the thread held the only other reference");
        shared.state.into_inner().expect("the thread has not panicked").end
    }

    /// In a forked child the parent's thread drives the parent's end, and may have held the lock during the fork.
    fn check_process(&self) -> Result<()> {
        self.born.check().map_err(|error| Error::Argument(error.to_string()))
    }

    fn end(&mut self) {
        if !self.born.is_here() {
            std::mem::forget(self.thread.take());
            return std::mem::forget(self.engine.take());
        }
        let mut state = self.shared.enter();
        state.is_over = true;
        self.shared.changed(state);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
        if let Some((engine, number)) = self.engine.take() {
            engine.remove(number);
        }
    }
}

impl<T: Drive> Drop for Driven<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T: Drive> DrivenState<T> {
    fn next(&mut self) -> Result<Option<T::Event>> {
        if let Some(event) = self.end.take() {
            return Ok(Some(event));
        }
        self.check().map(|()| None)
    }

    /// The error that broke the end, once.
    fn check(&mut self) -> Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.is_over => Err(Error::Argument("the progress thread ended after an error".into())),
            None => Ok(()),
        }
    }
}

/// Wakes the waiting threads when the progress thread has ended, even by a panic.
struct Over<'a, T: Drive>(&'a DrivenShared<T>);

impl<T: Drive> Drop for Over<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        self.0.changed(state);
    }
}

impl<T: Drive> Step for DrivenShared<T> {
    fn step(&self) -> Next {
        for _ in 0..TURNS {
            // A call of the program may keep the lock for long, as `flush` does. The other ends go on meanwhile.
            let mut state = match self.state.try_lock() {
                Ok(state) => state,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return Next::Nap(Instant::now() + NAP),
            };
            if state.is_over {
                return Next::Over;
            }
            state.is_asleep = false;
            match state.end.turn() {
                Ok(true) => {
                    state.pause = MAX_SLEEP;
                    self.changed(state);
                    if self.callers.load(Ordering::Relaxed) > 0 {
                        std::thread::yield_now();
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    (state.failed, state.is_over) = (Some(error), true);
                    self.changed(state);
                    return Next::Over;
                }
            }
            if state.sleeper.prepare(&self.queues) {
                return Next::Sleep(state.sleeps_until(Instant::now()));
            }
            if state.sleeper.must_nap() {
                return Next::Nap(Instant::now() + NAP);
            }
        }
        Next::Busy
    }

    fn end(&self) {
        drop(Over(self));
    }

    fn descriptors(&self) -> Option<&[RawFd]> {
        self.descriptors.as_deref()
    }
}

impl<T: Drive> DrivenState<T> {
    /// Begins a sleep on an engine. Each is twice as long as the last while nothing happens.
    fn sleeps_until(&mut self, now: Instant) -> Instant {
        self.is_asleep = true;
        let rest = self.end.rest();
        if rest != WaitFor::Announced || !self.end.is_quiet() {
            self.pause = MAX_SLEEP;
            return now + rest.limit(now);
        }
        let pause = self.pause;
        self.pause = engine::MAX_PAUSE.min(pause * 2);
        now + pause
    }
}

impl<T: Drive> DrivenShared<T> {
    fn new(end: T) -> Arc<Self> {
        let queues = end.queues();
        let state = DrivenState {
            end,
            is_asleep: false,
            is_over: false,
            failed: None,
            wakers: Vec::new(),
            sleeper: Sleeper::default(),
            pause: MAX_SLEEP,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            news: Condvar::new(),
            descriptors: rest::descriptors(&queues),
            queues,
            callers: AtomicUsize::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, DrivenState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, for a thread of the program.
    fn enter(&self) -> MutexGuard<'_, DrivenState<T>> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        let state = self.lock();
        self.callers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Wakes the waiting threads after a change of the state, and the driving thread if it sleeps.
    fn changed(&self, mut state: MutexGuard<'_, DrivenState<T>>) {
        let wakers = std::mem::take(&mut state.wakers);
        if std::mem::take(&mut state.is_asleep) {
            // A queue with a descriptor can be signalled, and no sleep is long.
            let _ = self.queues.first().map(|queue| queue.signal());
        }
        drop(state);
        self.news.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The body of the thread.
    fn run(&self) {
        // Reduces the default timer slack of 50 us, if that is permitted.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1000));
        let (mut sleeper, mut rhythm) = (Sleeper::default(), IntervalPredictor::default());
        // The thread polls until then.
        let mut awake = Instant::now() + SPIN;
        let mut slept = false;
        loop {
            let mut state = self.lock();
            if state.is_over {
                return;
            }
            let was_asleep = std::mem::take(&mut state.is_asleep);
            let is_called = std::mem::take(&mut slept) && !was_asleep;
            match state.end.turn() {
                Ok(true) => {
                    let now = Instant::now();
                    rhythm.happened(now);
                    awake = now + SPIN;
                    self.changed(state);
                    if self.callers.load(Ordering::Relaxed) > 0 {
                        std::thread::yield_now();
                    }
                    continue;
                }
                Ok(false) => {}
                Err(error) => {
                    (state.failed, state.is_over) = (Some(error), true);
                    return self.changed(state);
                }
            }
            let now = Instant::now();
            if is_called {
                // An answer to what the call has sent is expected soon.
                awake = now + SPIN;
            }
            let next = rhythm.next(now);
            if now < awake || next.is_some_and(|next| now >= next) {
                drop(state);
                std::thread::yield_now();
            } else if sleeper.prepare(&self.queues) {
                let rest = state.end.rest().or(next.map_or(WaitFor::Announced, WaitFor::Until));
                (state.is_asleep, slept) = (true, true);
                drop(state);
                rest::sleep(self.descriptors.as_deref(), rest.limit(now));
            } else {
                drop(state);
                sleeper.stay_awake();
            }
        }
    }
}
