//! The thread that waits for all streams of the process, for up to 127 of them with one system call. It ends when the
//! last stream stops waiting.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::Error;
use crate::flows::futex;
use crate::flows::grains::GrainReader;
use crate::flows::samples::SampleReader;
use crate::flows::wait::{FALLBACK, Watch};

/// The reader of a stream.
pub(super) trait Watched: Send + Sync + 'static {
    fn watch(&self) -> Watch<'_>;
}

impl Watched for GrainReader {
    fn watch(&self) -> Watch<'_> {
        self.watch()
    }
}

impl Watched for SampleReader {
    fn watch(&self) -> Watch<'_> {
        self.watch()
    }
}

/// A stream's entry among the waiting ones. Dropping it ends the wait.
#[derive(Debug)]
pub(super) struct SleeperEntry(u64);

impl SleeperEntry {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        Self(COUNT.fetch_add(1, Ordering::Relaxed))
    }

    /// Wakes a task when the flow has changed since it was last seen, or after `limit`. The limit is needed because
    /// neither a deleted flow nor samples that complete no batch cause a signal: the streams check for those
    /// themselves.
    pub fn wait(
        &self,
        reader: Arc<dyn Watched>,
        seen: u32,
        limit: Duration,
        waker: &Waker,
    ) -> Result<(), Error> {
        let until = Instant::now() + limit;
        SLEEPER.wait(Waiting { id: self.0, reader, seen, until, waker: waker.clone() })
    }
}

impl Drop for SleeperEntry {
    fn drop(&mut self) {
        SLEEPER.lock().waiting.retain(|waiting| waiting.id != self.0);
    }
}

/// A waiting stream.
struct Waiting {
    id: u64,
    reader: Arc<dyn Watched>,
    seen: u32,
    until: Instant,
    waker: Waker,
}

struct Sleeper {
    state: Mutex<SleeperState>,
    /// Changes with the list.
    changes: AtomicU32,
}

struct SleeperState {
    waiting: Vec<Waiting>,
    is_running: bool,
}

static SLEEPER: Sleeper = Sleeper {
    state: Mutex::new(SleeperState { waiting: Vec::new(), is_running: false }),
    changes: AtomicU32::new(0),
};

impl Sleeper {
    fn lock(&self) -> MutexGuard<'_, SleeperState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&'static self, waiting: Waiting) -> Result<(), Error> {
        let mut state = self.lock();
        state.waiting.retain(|other| other.id != waiting.id);
        state.waiting.push(waiting);
        if !state.is_running {
            let thread = std::thread::Builder::new().name("mxl-streams".into());
            if let Err(error) = thread.spawn(|| self.run()) {
                state.waiting.pop();
                return Err(Error::os("start a thread", "mxl-streams".as_ref(), error));
            }
            state.is_running = true;
        }
        drop(state);
        self.changes.fetch_add(1, Ordering::Release);
        futex::wake(&self.changes);
        Ok(())
    }

    fn run(&self) {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let (flows, until) = {
                let mut state = self.lock();
                state.is_running = !state.waiting.is_empty();
                let waiting = state.waiting.iter();
                let until = waiting.clone().map(|waiting| waiting.until).min();
                let flow = |waiting: &Waiting| (waiting.reader.clone(), waiting.seen);
                (waiting.map(flow).collect::<Vec<_>>(), until)
            };
            let Some(until) = until else { return };
            let watches: Vec<_> = flows.iter().map(|(reader, seen)| (reader.watch(), *seen)).collect();
            let mut words = vec![(&self.changes, changes)];
            words.extend(watches.iter().map(|(watch, seen)| (watch.word(), *seen)));
            if !futex::wait_many(&words, until.saturating_duration_since(Instant::now())) {
                std::thread::sleep(FALLBACK);
            }
            self.wake(Instant::now());
        }
    }

    /// Wakes the tasks whose flows have changed, or whose time limit has passed.
    fn wake(&self, now: Instant) {
        let mut ready = Vec::new();
        self.lock().waiting.retain(|waiting| {
            let stays = now < waiting.until && waiting.reader.watch().seen() == waiting.seen;
            if !stays {
                ready.push(waiting.waker.clone());
            }
            stays
        });
        // Outside the lock: an executor may poll at once.
        ready.into_iter().for_each(Waker::wake);
    }
}
