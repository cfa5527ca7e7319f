//! Grains of a flow as a stream, for programs with an executor: feature `stream`.
//!
//! One thread waits for all streams of a process, by one system call for up to 127 of them, and ends with the last that
//! waits.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::{FusedStream, Stream};

use super::futex;
use super::grains::{GrainInfo, GrainReader};
use super::wait::{FALLBACK, SLICE, Wait};
use crate::Error;

/// The whole grains of a flow, each index once. Made by [`GrainReader::stream`].
///
/// An item announces a grain; [`GrainReader::read`] with its index returns the payload. A missed grain is an error,
/// after which the stream continues with the oldest available grain. After [`Error::FlowInvalid`] or an error of the
/// system it ends.
#[derive(Debug)]
pub struct Grains {
    reader: Arc<GrainReader>,
    next: u64,
    /// Names it among those that wait.
    id: u64,
    is_over: bool,
}

impl GrainReader {
    /// A stream of the grains from index `first` on.
    pub fn stream(self: &Arc<Self>, first: u64) -> Grains {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let id = COUNT.fetch_add(1, Ordering::Relaxed);
        Grains { reader: self.clone(), next: first, id, is_over: false }
    }
}

impl Grains {
    /// The reader, for reading payloads.
    pub fn reader(&self) -> &Arc<GrainReader> {
        &self.reader
    }

    fn end(&mut self, error: Error) -> Option<Result<GrainInfo, Error>> {
        self.is_over = true;
        Some(Err(error))
    }
}

impl Stream for Grains {
    type Item = Result<GrainInfo, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        // Seen before it is looked: what is written in between ends the wait at once.
        let seen = this.reader.watch().seen();
        let item = match this.reader.read(this.next, Wait::Not) {
            Ok(grain) => {
                this.next = this.next.saturating_add(1);
                Some(Ok(grain.info()))
            }
            Err(Error::TooEarly { .. }) => {
                let (reader, waker) = (this.reader.clone(), context.waker().clone());
                match SLEEPER.wait(Waiting { id: this.id, reader, seen, waker }) {
                    Ok(()) => return Poll::Pending,
                    Err(error) => this.end(error),
                }
            }
            Err(error @ Error::Skipped { .. }) => {
                this.next = this.next.saturating_add(1);
                Some(Err(error))
            }
            Err(Error::TooLate { index, oldest }) => {
                this.next = oldest.max(this.next.saturating_add(1));
                Some(Err(Error::TooLate { index, oldest }))
            }
            Err(error) => this.end(error),
        };
        Poll::Ready(item)
    }
}

impl FusedStream for Grains {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl Drop for Grains {
    fn drop(&mut self) {
        SLEEPER.lock().waiting.retain(|waiting| waiting.id != self.id);
    }
}

/// A stream that waits.
struct Waiting {
    id: u64,
    reader: Arc<GrainReader>,
    seen: u32,
    waker: Waker,
}

/// The thread that waits for all of them.
struct Sleeper {
    state: Mutex<State>,
    /// Changes with the list.
    changes: AtomicU32,
}

struct State {
    waiting: Vec<Waiting>,
    is_running: bool,
}

static SLEEPER: Sleeper = Sleeper {
    state: Mutex::new(State { waiting: Vec::new(), is_running: false }),
    changes: AtomicU32::new(0),
};

impl Sleeper {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a stream's task when its flow changes, or some time later.
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
            let flows: Vec<(Arc<GrainReader>, u32)> = {
                let mut state = self.lock();
                state.is_running = !state.waiting.is_empty();
                if !state.is_running {
                    return;
                }
                state.waiting.iter().map(|waiting| (waiting.reader.clone(), waiting.seen)).collect()
            };
            let watches: Vec<_> = flows.iter().map(|(reader, seen)| (reader.watch(), *seen)).collect();
            let mut words = vec![(&self.changes, changes)];
            words.extend(watches.iter().map(|(watch, seen)| (watch.word(), *seen)));
            let begin = std::time::Instant::now();
            if !futex::wait_many(&words, SLICE) {
                std::thread::sleep(FALLBACK);
            }
            // A flow that is gone says nothing: its stream looks for itself.
            self.wake(begin.elapsed() >= SLICE - Duration::from_millis(1));
        }
    }

    /// Wakes those whose flows have changed, or all.
    fn wake(&self, all: bool) {
        let mut ready = Vec::new();
        self.lock().waiting.retain(|waiting| {
            let stays = !all && waiting.reader.watch().seen() == waiting.seen;
            if !stays {
                ready.push(waiting.waker.clone());
            }
            stays
        });
        // Outside the lock: an executor may poll at once.
        ready.into_iter().for_each(Waker::wake);
    }
}
