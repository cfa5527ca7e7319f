//! Drivers, which make progress while futures sleep.
//!
//! A driver reads the queue, arms it, and blocks on its descriptor. A future that is polled meanwhile also reads the
//! queue, which disarms it; the future then wakes the sleeping drivers, and they arm the queue again.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi_api::{CompletionQueue, Errno, Error, Result};

use super::table::{Chores, Table};
use super::{AsyncNode, Inner};
use crate::threading::{Level, Safe};

/// The maximum sleep of a thread: a bound in case a wake-up is lost.
pub(super) const SLEEP: Duration = Duration::from_secs(1);

/// The next step of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turn {
    /// There may be more to do: let other tasks run, then call again.
    Again,
    /// Nothing to do until [`AsyncNode::wait_fd`] is readable, or the waker is woken.
    Sleep,
}

/// Marks a node as driven: while this value exists, its futures sleep until they are ready. For adapters to
/// reactors; programs use the drivers that [`AsyncNode`] lists.
#[derive(Debug)]
pub struct Driver<'a, L: Level = Safe>(&'a AsyncNode<L>);

impl<L: Level> Driver<'_, L> {
    /// Drives the node, and wakes futures whose operations have ended. After [`Turn::Sleep`], call it again when the
    /// node's descriptor is readable or `waker` is woken, whichever comes first.
    ///
    /// # Errors
    /// The queue's error if it can no longer be read; all operations end with this error.
    pub fn turn(&self, waker: &Waker) -> Result<Turn> {
        let mut chores = Chores::default();
        let clone = waker.clone();
        let turn = self.0.inner.turn(&mut self.0.table(), clone, &mut chores);
        chores.run();
        turn
    }
}

impl<L: Level> Inner<L> {
    /// See [`Driver::turn`].
    fn turn(&self, table: &mut Table<L>, waker: Waker, chores: &mut Chores) -> Result<Turn> {
        let turn = table.drive(&self.node, chores).and_then(|()| {
            // No descriptor announces room for operations.
            if table.is_short() || !self.node.try_wait()? { Ok(Turn::Again) } else { Ok(Turn::Sleep) }
        });
        match turn {
            Ok(Turn::Sleep) => table.sleep(waker, chores),
            _ => {
                table.rouse(chores);
                chores.later(waker);
            }
        }
        turn
    }

    /// One turn of the library's thread. `None` if the node has no futures or has another driver, or if its queue
    /// cannot be read: then the thread no longer drives the node, and all its futures have been woken.
    pub(super) fn turn_if_needed(&self, waker: Waker, chores: &mut Chores) -> Option<Turn> {
        let mut table = self.table();
        let is_needed = table.drivers == 1 && !table.is_idle();
        let turn = if is_needed { self.turn(&mut table, waker, chores).ok() } else { None };
        if turn.is_none() {
            table.undriven(chores);
        }
        turn
    }
}

impl<L: Level> Drop for Driver<'_, L> {
    fn drop(&mut self) {
        let mut chores = Chores::default();
        self.0.table().undriven(&mut chores);
        chores.run();
    }
}

/// Wakes a thread that sleeps on a queue.
struct QueueWaker {
    rung: AtomicBool,
    cq: Arc<dyn CompletionQueue>,
}

impl QueueWaker {
    fn new<L: Level>(node: &AsyncNode<L>) -> Arc<Self> {
        Arc::new(Self { rung: AtomicBool::new(false), cq: Arc::clone(node.inner.node.queue()) })
    }

    fn take(&self) -> bool {
        self.rung.swap(false, Ordering::AcqRel)
    }
}

impl Wake for QueueWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The queue of an async node has a wait object, so it can be signalled. No sleep is longer than `SLEEP` in
            // any case.
            let _ = self.cq.signal();
        }
    }
}

impl<L: Level> AsyncNode<L> {
    /// Begins to drive the node from outside its futures.
    pub fn driver(&self) -> Driver<'_, L> {
        self.table().drivers += 1;
        Driver(self)
    }

    /// One turn of a driver thread: drives the node, and sleeps if there is nothing to do and `alarm` is not raised.
    fn turn_thread(&self, driver: &Driver<'_, L>, waker: &Waker, alarm: &QueueWaker) -> Result<()> {
        match driver.turn(waker)? {
            Turn::Again => std::thread::yield_now(),
            Turn::Sleep if alarm.rung.load(Ordering::Acquire) => {}
            Turn::Sleep => drop(self.inner.node.wait_ready(Instant::now().checked_add(SLEEP))?),
        }
        Ok(())
    }

    /// Runs a future on this thread. The thread drives the node and sleeps on its queue. The future may use other
    /// nodes as well; those without a driver keep the thread from sleeping.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let alarm = QueueWaker::new(self);
        let waker = Waker::from(Arc::clone(&alarm));
        let driver = self.driver();
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return output;
            }
            while !alarm.take() {
                if self.turn_thread(&driver, &waker, &alarm).is_err() {
                    std::thread::yield_now(); // the operations have ended with the error
                    break;
                }
            }
        }
    }
}

impl AsyncNode<Safe> {
    /// Starts a thread that drives the node until the returned value is dropped. The node's futures may be polled by
    /// any executor, on any thread.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// use ofi::{AsyncNode, Hints};
    /// let node = Arc::new(AsyncNode::open(&Hints::new().provider("shm"))?);
    /// let driver = node.drive_on_thread()?;
    /// // ... tasks use `node`
    /// drop(driver);
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// # Errors
    /// The system's error if the thread cannot be started.
    pub fn drive_on_thread(self: &Arc<Self>) -> Result<DriverThread> {
        let stop = Arc::new(AtomicBool::new(false));
        let alarm = QueueWaker::new(self);
        let (node, stopped, own) = (Arc::clone(self), Arc::clone(&stop), Arc::clone(&alarm));
        let run = move || {
            let waker = Waker::from(Arc::clone(&own));
            let driver = node.driver();
            while !stopped.load(Ordering::Acquire) {
                own.take();
                if node.turn_thread(&driver, &waker, &own).is_err() {
                    return; // all futures have been woken
                }
            }
        };
        let thread = std::thread::Builder::new().name("ofi-driver".into()).spawn(run).map_err(|error| {
            Error::with(Errno::EAGAIN, format!("the thread that drives a node did not start: {error}"))
        })?;
        Ok(DriverThread { stop, alarm, thread: Some(thread) })
    }
}

/// A thread that drives a node: see [`AsyncNode::drive_on_thread`]. Dropping this ends it.
#[must_use = "dropping it ends the thread"]
pub struct DriverThread {
    stop: Arc<AtomicBool>,
    alarm: Arc<QueueWaker>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for DriverThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.alarm.wake_by_ref();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // the thread returns nothing
        }
    }
}

impl std::fmt::Debug for DriverThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DriverThread").finish_non_exhaustive()
    }
}
