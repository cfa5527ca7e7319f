//! Progress threads: a thread that drives one end of a flow while the program waits for its events, or awaits them.
//!
//! The thread polls while there is work, and for [`SPIN`] after it. Then it sleeps on the descriptors of the
//! end's queues. Incoming data makes them readable, and calls of the program wake the thread. Progress does
//! not depend on a wake-up alone: no sleep is longer than [`SLEEP`], after which the thread polls again, for
//! example to greet a target that does not answer.
#![allow(unsafe_code)] // borrows descriptors of queues that `Shared` keeps

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi::raw::CompletionQueue;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{Error, Result};

/// How long the thread continues to poll after the last event.
const SPIN: Duration = Duration::from_micros(200);
/// How long it sleeps if no descriptor announces the next event.
const NAP: Duration = Duration::from_micros(50);
/// Longest sleep.
const SLEEP: Duration = Duration::from_millis(20);

/// The ends that a [`Driven`] drives: a [`Target`](crate::Target), an [`Initiator`](crate::Initiator) or a
/// [`Merge`](crate::Merge).
pub trait Drive: sealed::Polled {}

impl<T: sealed::Polled> Drive for T {}

pub(crate) mod sealed {
    use std::sync::Arc;

    use ofi::raw::CompletionQueue;

    use crate::Result;

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

        /// Whether work is pending that no descriptor announces, such as waiting for room.
        fn has_more(&self) -> bool;

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
    shared: Arc<Shared<T>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared<T> {
    state: Mutex<State<T>>,
    news: Condvar,
    queues: Vec<Arc<dyn CompletionQueue>>,
    /// Threads of the program that want the lock. The driving thread lets them go first.
    callers: AtomicUsize,
}

struct State<T> {
    end: T,
    /// The thread sleeps on descriptors, or is about to.
    is_asleep: bool,
    /// The thread has ended, or must end.
    is_over: bool,
    failed: Option<Error>,
    wakers: Vec<Waker>,
}

impl<T: Drive> Driven<T> {
    /// Starts a thread that drives an end.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system cannot start a thread.
    pub fn start(end: T) -> Result<Self> {
        let queues = end.queues();
        let state = State { end, is_asleep: false, is_over: false, failed: None, wakers: Vec::new() };
        let state = Mutex::new(state);
        let shared = Arc::new(Shared { state, news: Condvar::new(), queues, callers: AtomicUsize::new(0) });
        let driven = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("mxl-fabrics".into()).spawn(move || {
            let over = Over(&driven);
            driven.run();
            drop(over);
        });
        let thread =
            thread.map_err(|error| Error::Argument(format!("start the progress thread: {error}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Runs `call` on the end, between two turns of the thread: to submit a grain, add a target, or read the
    /// statistics.
    pub fn with<R>(&self, call: impl FnOnce(&mut T) -> R) -> R {
        let mut state = self.shared.enter();
        let answer = call(&mut state.end);
        self.shared.changed(state);
        answer
    }

    /// The oldest unread event. Sleeps until there is one; `None` after `timeout`.
    ///
    /// # Errors
    /// The error that broke the end, once; [`Error::Argument`] from then on.
    pub fn wait(&self, timeout: Duration) -> Result<Option<T::Event>> {
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

    /// The oldest unread event, as soon as there is one.
    ///
    /// # Errors
    /// The errors of [`wait`](Self::wait).
    pub async fn next(&self) -> Result<T::Event> {
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
    /// If the thread has panicked.
    pub fn stop(mut self) -> T {
        self.end();
        let shared = Arc::clone(&self.shared);
        drop(self);
        let shared = Arc::into_inner(shared).expect("the thread held the only other reference");
        shared.state.into_inner().expect("the thread has not panicked").end
    }

    fn end(&mut self) {
        let mut state = self.shared.enter();
        state.is_over = true;
        self.shared.changed(state);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl<T: Drive> Drop for Driven<T> {
    fn drop(&mut self) {
        self.end();
    }
}

impl<T: Drive> State<T> {
    fn next(&mut self) -> Result<Option<T::Event>> {
        if let Some(event) = self.end.take() {
            return Ok(Some(event));
        }
        match self.failed.take() {
            Some(error) => Err(error),
            None if self.is_over => Err(Error::Argument("the progress thread ended after an error".into())),
            None => Ok(None),
        }
    }
}

/// Wakes the waiting threads when the progress thread has ended, even by a panic.
struct Over<'a, T: Drive>(&'a Shared<T>);

impl<T: Drive> Drop for Over<'_, T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        self.0.changed(state);
    }
}

impl<T: Drive> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, for a thread of the program.
    fn enter(&self) -> MutexGuard<'_, State<T>> {
        self.callers.fetch_add(1, Ordering::Relaxed);
        let state = self.lock();
        self.callers.fetch_sub(1, Ordering::Relaxed);
        state
    }

    /// Wakes the waiting threads after a change of the state, and the driving thread if it sleeps.
    fn changed(&self, mut state: MutexGuard<'_, State<T>>) {
        let wakers = std::mem::take(&mut state.wakers);
        if std::mem::take(&mut state.is_asleep) {
            // A queue with a descriptor can be signalled, and no sleep is longer than `SLEEP`.
            let _ = self.queues.first().map(|queue| queue.signal());
        }
        drop(state);
        self.news.notify_all();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The body of the thread.
    fn run(&self) {
        let mut busy = Instant::now();
        loop {
            let mut state = self.lock();
            state.is_asleep = false;
            if state.is_over {
                return;
            }
            let turned = state.end.turn();
            let may_sleep = matches!(turned, Ok(false)) && !state.end.has_more() && busy.elapsed() > SPIN;
            match turned {
                Ok(true) => {
                    busy = Instant::now();
                    self.changed(state);
                    if self.callers.load(Ordering::Relaxed) > 0 {
                        std::thread::yield_now();
                    }
                }
                // There is no event, and descriptors announce the next one.
                Ok(false) if may_sleep && self.queues.iter().all(|queue| queue.trywait().is_ok()) => {
                    state.is_asleep = true;
                    drop(state);
                    self.sleep();
                }
                Ok(false) => {
                    let is_new = busy.elapsed() < SPIN;
                    drop(state);
                    if is_new { std::thread::yield_now() } else { std::thread::sleep(NAP) }
                }
                Err(error) => {
                    (state.failed, state.is_over) = (Some(error), true);
                    return self.changed(state);
                }
            }
        }
    }

    /// Sleeps until data arrives, or a call wakes the thread.
    fn sleep(&self) {
        let fds: Option<Vec<_>> = self.queues.iter().map(|queue| queue.wait_fd()).collect();
        let Some(fds) = fds.filter(|fds| !fds.is_empty()) else { return std::thread::sleep(NAP) };
        let mut fds: Vec<PollFd<'_>> = fds
            .into_iter()
            .map(|fd| {
                // SAFETY: the descriptor belongs to the queue as long as it lives, and `self` keeps the queue.
                PollFd::from_borrowed_fd(unsafe { BorrowedFd::borrow_raw(fd) }, PollFlags::IN)
            })
            .collect();
        let time = Timespec { tv_sec: 0, tv_nsec: i64::from(SLEEP.subsec_nanos()) };
        // A signal ends the sleep early, which is harmless.
        let _ = poll(&mut fds, Some(&time));
    }
}
