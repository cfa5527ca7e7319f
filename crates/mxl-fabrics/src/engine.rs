//! One thread that drives many ends of flows, most of them idle.
//!
//! A thread for each end ([`Driven::start`](crate::Driven::start)) has the lowest latency: it polls for a while after
//! an event, and before one that it expects. It also wakes up fifty times a second when nothing happens, so thousands
//! of them keep cores busy. An engine has one thread, which sleeps in one `epoll` for all of its ends and never polls
//! in advance. An end without pending work is looked at ever less often, down to once in [`MAX_PAUSE`].
//!
//! # Invariants
//!
//! I1. The thread runs an end only while it is in the table, and says which one it runs: who takes an end out waits
//!     until the thread has left it.
//! I2. A descriptor is armed for one event (`EPOLLONESHOT`), and again before each sleep of its end: an end that is not
//!     asleep, or that naps, causes no wake-ups.
#![allow(unsafe_code)] // borrows descriptors that their end keeps

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use ofi_core::fork::Born;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::{Error, Result};

/// The longest time between two looks at an end that nothing announces anything of. No progress depends on a
/// descriptor alone.
pub(crate) const MAX_PAUSE: Duration = Duration::from_secs(10);
/// The number of the descriptor that wakes the thread itself.
const BELL: u64 = 0;
/// Events of one system call.
const EVENTS: usize = 256;

/// What an end waits for after it was run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// There is more to do at once.
    Busy,
    /// Its armed descriptors, or this time.
    Sleep(Instant),
    /// This time alone.
    Nap(Instant),
    /// Nothing: it is over.
    Over,
}

/// An end that the thread runs.
pub(crate) trait Step: Send + Sync {
    /// Makes as much progress as is fair to the others. Arms its queues if it is about to sleep.
    fn step(&self) -> Next;
    /// Ends it after a panic, so that nobody waits for it.
    fn end(&self);
    /// The descriptors that announce events, which it keeps open. They never change. `None` if it cannot be waited for.
    fn descriptors(&self) -> Option<&[RawFd]>;
}

/// A thread that drives the ends of flows that are [started on it](crate::Driven::start_on). It ends with the last of
/// them and of these handles.
#[derive(Clone)]
pub struct Engine(Arc<StepHandle>);

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine of {} ends", self.0.core.ends().steps.len())
    }
}

struct StepHandle {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread, which a forked child does not have.
    born: Born,
}

struct Core {
    epoll: OwnedFd,
    bell: OwnedFd,
    is_over: AtomicBool,
    next: AtomicU64,
    ends: Mutex<Ends>,
    /// The thread has left an end.
    left: Condvar,
}

#[derive(Default)]
struct Ends {
    steps: HashMap<u64, Arc<dyn Step>>,
    /// New ones, which the thread has not seen.
    new: Vec<u64>,
    /// The one that the thread runs.
    current: Option<u64>,
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system refuses a descriptor or the thread.
    pub fn start() -> Result<Self> {
        let refused =
            |what: &'static str| move |error| Error::Argument(format!("start an engine: {what}: {error}"));
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(refused("epoll"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(refused("eventfd"))?;
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN).map_err(refused("epoll"))?;
        let core = Arc::new(Core {
            epoll,
            bell,
            is_over: AtomicBool::new(false),
            next: AtomicU64::new(BELL + 1),
            ends: Mutex::default(),
            left: Condvar::new(),
        });
        let run = core.clone();
        let thread = std::thread::Builder::new().name("mxl-engine".into()).spawn(move || run.run());
        let thread = thread.map_err(|error| Error::Argument(format!("start an engine: thread: {error}")))?;
        Ok(Self(Arc::new(StepHandle { core, thread: Some(thread), born: Born::here() })))
    }

    /// Drives an end from now on. Returns its number.
    ///
    /// # Errors
    /// [`Error::Argument`] for an end that cannot be waited for, and in a forked child, which has not the thread.
    pub(crate) fn add(&self, step: Arc<dyn Step>) -> Result<u64> {
        if !self.0.born.is_here() {
            let what = "the thread of this engine is in the parent process: start an engine after the fork";
            return Err(Error::Argument(what.into()));
        }
        let core = &self.0.core;
        let number = core.next.fetch_add(1, Ordering::Relaxed);
        let Some(fds) = step.descriptors() else {
            return Err(Error::Argument("an engine cannot wait for this end: it has no descriptor".into()));
        };
        for &fd in fds {
            let (data, flags) = (EventData::new_u64(number), EventFlags::ONESHOT);
            if let Err(error) = epoll::add(&core.epoll, descriptor(&fd), data, flags) {
                self.forget(&*step);
                return Err(Error::Argument(format!("an engine cannot wait for this end: {error}")));
            }
        }
        let mut ends = core.ends();
        ends.steps.insert(number, step);
        ends.new.push(number);
        drop(ends);
        core.ring();
        Ok(number)
    }

    /// Takes an end out, and waits until the thread has left it.
    pub(crate) fn remove(&self, number: u64) {
        let core = &self.0.core;
        let mut ends = core.ends();
        let Some(step) = ends.steps.remove(&number) else { return };
        while ends.current == Some(number) && !self.0.is_its_thread() {
            ends = core.left.wait(ends).unwrap_or_else(PoisonError::into_inner);
        }
        drop(ends);
        self.forget(&*step);
    }

    fn forget(&self, step: &dyn Step) {
        for fd in step.descriptors().into_iter().flatten() {
            // One that was not added is no harm.
            let _ = epoll::delete(&self.0.core.epoll, descriptor(fd));
        }
    }
}

/// A descriptor of an end that the caller keeps.
fn descriptor(fd: &RawFd) -> BorrowedFd<'_> {
    // SAFETY: the end keeps it open, and lives as long as the result.
    unsafe { BorrowedFd::borrow_raw(*fd) }
}

impl StepHandle {
    fn is_its_thread(&self) -> bool {
        let its: Option<ThreadId> = self.thread.as_ref().map(|thread| thread.thread().id());
        its == Some(std::thread::current().id())
    }
}

impl Drop for StepHandle {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.born.is_here() {
            // The thread is the parent's.
            return std::mem::forget(thread);
        }
        self.core.is_over.store(true, Ordering::Release);
        self.core.ring();
        // A waker of an end may have dropped the last handle, in the thread itself.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Core {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// The body of the thread.
    fn run(&self) {
        let mut events = Vec::with_capacity(EVENTS);
        // Ends to run now, and the times of the others.
        let (mut due, mut times) = (VecDeque::new(), Times::default());
        while !self.is_over.load(Ordering::Acquire) {
            // Each of them once; those that are busy again come after everybody else.
            for _ in 0..due.len() {
                let Some(number) = due.pop_front() else { break };
                match self.step(number) {
                    Next::Busy => due.push_back(number),
                    Next::Sleep(until) | Next::Nap(until) => times.set(number, Some(until)),
                    Next::Over => times.set(number, None),
                }
            }
            let wait = if due.is_empty() { times.wait(Instant::now()) } else { Some(Duration::ZERO) };
            let wait = wait.map(|wait| Timespec {
                tv_sec: wait.as_secs().cast_signed(),
                tv_nsec: wait.subsec_nanos().into(),
            });
            events.clear();
            // A signal ends the wait early, which is harmless.
            let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), wait.as_ref());
            for event in &events {
                let Event { data, .. } = *event;
                if data.u64() == BELL {
                    let _ = rustix::io::read(&self.bell, &mut [0; 8]);
                } else {
                    times.call(data.u64(), &mut due);
                }
            }
            for number in std::mem::take(&mut self.ends().new) {
                due.push_back(number);
            }
            times.take_due(Instant::now(), &mut due);
        }
    }

    /// Runs an end (I1).
    fn step(&self, number: u64) -> Next {
        let mut ends = self.ends();
        let Some(step) = ends.steps.get(&number).cloned() else { return Next::Over };
        ends.current = Some(number);
        drop(ends);
        // Waiting threads of the program must not wait for ever if an end panics.
        let run = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.step()));
        let next = run.unwrap_or_else(|_| {
            step.end();
            Next::Over
        });
        if let Next::Sleep(_) = next {
            for fd in step.descriptors().into_iter().flatten() {
                let flags = EventFlags::IN | EventFlags::ONESHOT; // I2
                let data = EventData::new_u64(number);
                if let Err(error) = epoll::modify(&self.epoll, descriptor(fd), data, flags) {
                    tracing::debug!(target: "mxl::fabrics", %error, "a descriptor that cannot be waited for");
                }
            }
        }
        drop(step);
        self.ends().current = None;
        self.left.notify_all();
        next
    }
}

/// When each end is due. An end has one time at most.
#[derive(Default)]
struct Times {
    order: BTreeSet<(Instant, u64)>,
    of: HashMap<u64, Instant>,
}

impl Times {
    fn set(&mut self, number: u64, time: Option<Instant>) {
        let before = match time {
            Some(time) => self.of.insert(number, time),
            None => self.of.remove(&number),
        };
        if let Some(before) = before {
            self.order.remove(&(before, number));
        }
        self.order.extend(time.map(|time| (time, number)));
    }

    /// The time to the first one.
    fn wait(&self, now: Instant) -> Option<Duration> {
        self.order.first().map(|(time, _)| time.saturating_duration_since(now))
    }

    /// Makes an end due now, unless it is already.
    fn call(&mut self, number: u64, due: &mut VecDeque<u64>) {
        if self.of.contains_key(&number) {
            self.set(number, None);
            due.push_back(number);
        }
    }

    /// Moves the ends whose time has come.
    fn take_due(&mut self, now: Instant, due: &mut VecDeque<u64>) {
        while let Some(&(time, number)) = self.order.first().filter(|(time, _)| *time <= now) {
            self.order.remove(&(time, number));
            self.of.remove(&number);
            due.push_back(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_due_once() {
        let (now, mut times, mut due) = (Instant::now(), Times::default(), VecDeque::new());
        let at = |ms| now + Duration::from_millis(ms);
        assert_eq!(times.wait(now), None);
        for (number, time) in [(1, 30), (2, 10), (3, 20), (2, 40)] {
            times.set(number, Some(at(time)));
        }
        assert_eq!(times.wait(now), Some(Duration::from_millis(20)));
        times.call(1, &mut due);
        times.call(1, &mut due);
        times.call(9, &mut due);
        times.take_due(at(20), &mut due);
        assert_eq!(due, [1, 3]);
        times.set(2, None);
        times.take_due(at(1000), &mut due);
        assert_eq!((due.len(), times.wait(now)), (2, None));
    }
}
