//! The driver of nodes that have no other: one thread for the process, which exists while futures of such nodes wait.
//!
//! A node joins the thread when a future of it is left pending and the node has no driver. It leaves when it has no
//! futures left, or gets another driver. The thread sleeps on the queues of all its nodes. Only nodes of the level
//! [`Safe`] join: an exclusive one may be used by one thread at a time, so its futures wake themselves.

use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};
use std::time::Instant;

use ofi_api::{CompletionQueue, Errno, Error, Result};
use ofi_core::sys::{self, WaitSet};

use super::driver::{SLEEP, Turn};
use super::table::Chores;
use super::{AsyncNode, Inner};
use crate::threading::{Level, Safe};

/// A node's registration with the thread. It is also the waker that brings the thread back to the node.
pub struct Seat {
    inner: Mutex<Option<Arc<Inner<Safe>>>>,
    rung: AtomicBool,
    /// Wakes the thread.
    wake: Mutex<Option<Arc<OwnedFd>>>,
}

impl Seat {
    fn new(inner: &Arc<Inner<Safe>>) -> Arc<Self> {
        let inner = Mutex::new(Some(Arc::clone(inner)));
        Arc::new(Self { inner, rung: AtomicBool::new(false), wake: Mutex::new(None) })
    }

    /// Removes a node that is being dropped. Waits for a turn in progress, so that the endpoint closes at once.
    pub fn leave(self: &Arc<Self>) {
        let inner = lock(&self.inner).take();
        drop(inner);
        self.wake_by_ref();
    }

    /// Drives the node. `None` if it no longer needs this thread.
    fn turn(self: &Arc<Self>) -> Option<Turn> {
        let (mut chores, waker) = (Chores::default(), Waker::from(Arc::clone(self)));
        let turn = lock(&self.inner).as_ref().and_then(|inner| inner.turn_if_needed(waker, &mut chores));
        // After releasing the lock: this runs foreign code, and may drop the node.
        chores.run();
        turn
    }
}

impl Wake for Seat {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel)
            && let Some(wake) = &*lock(&self.wake)
        {
            sys::signal_eventfd(wake);
        }
    }
}

/// A node that the thread drives. It holds the queue, so that the descriptor stays open while it is in the wait set.
struct Driven {
    seat: Arc<Seat>,
    _cq: Arc<dyn CompletionQueue>,
    fd: RawFd,
    /// The set has the descriptor.
    is_watched: bool,
    /// There may be more to do immediately.
    again: bool,
}

/// A node that joins the thread.
type Coming = (Arc<Seat>, Arc<dyn CompletionQueue>, RawFd);

#[derive(Default)]
struct DriverState {
    new: Vec<Coming>,
    /// Wakes the thread, while there is one.
    running: Option<Arc<OwnedFd>>,
    /// The process that the thread belongs to. A forked child has no thread.
    process: u32,
}

static STATE: Mutex<Option<DriverState>> = Mutex::new(None);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the thread drive `node`, unless another driver does.
///
/// # Errors
/// The node is not of the level [`Safe`], its queue has no descriptor, or the thread cannot be started.
pub fn drive<L: Level>(node: &AsyncNode<L>) -> Result<()> {
    let none = || Error::new(Errno::ENOSYS);
    let inner: &dyn Any = &node.inner;
    let inner = inner.downcast_ref::<Arc<Inner<Safe>>>().ok_or_else(none)?;
    let cq = Arc::clone(inner.node.queue());
    let fd = cq.wait_fd().ok_or_else(none)?;
    {
        let mut table = inner.table();
        if table.drivers > 0 {
            return Ok(());
        }
        table.drivers = 1;
    }
    let seat = node.seat.get_or_init(|| Seat::new(inner));
    enter((Arc::clone(seat), cq, fd)).inspect_err(|_| {
        let mut chores = Chores::default();
        inner.table().undriven(&mut chores);
        chores.run();
    })
}

fn enter(node: Coming) -> Result<()> {
    let mut guard = lock(&STATE);
    let state = guard.get_or_insert_default();
    if state.process != std::process::id() {
        *state = DriverState { process: std::process::id(), ..DriverState::default() };
    }
    let wake = match &state.running {
        Some(wake) => Arc::clone(wake),
        None => state.running.insert(start()?).clone(),
    };
    sys::signal_eventfd(&wake);
    *lock(&node.0.wake) = Some(wake);
    state.new.push(node);
    Ok(())
}

/// Starts the thread. Returns the eventfd that wakes it.
fn start() -> Result<Arc<OwnedFd>> {
    let wake = Arc::new(sys::eventfd()?);
    let (set, own) = (WaitSet::new()?, Arc::clone(&wake));
    set.add(wake.as_raw_fd())?;
    let thread = std::thread::Builder::new().name("ofi-futures".into()).spawn(move || run(&set, &own));
    let failed =
        |error| Error::with(Errno::EAGAIN, format!("the thread that drives nodes did not start: {error}"));
    thread.map(|_| wake).map_err(failed)
}

/// The body of the thread. It ends when no node needs it.
fn run(set: &WaitSet, wake: &Arc<OwnedFd>) {
    let mut all: Vec<Driven> = Vec::new();
    let (mut ready, mut is_late) = (Vec::new(), false);
    loop {
        {
            let mut guard = lock(&STATE);
            let state = guard.get_or_insert_default();
            all.extend(state.new.drain(..).map(|(seat, cq, fd)| {
                // If the set has no room for the node, poll it in every round.
                let is_watched = set.add(fd).is_ok();
                Driven { seat, _cq: cq, fd, is_watched, again: true }
            }));
            if all.is_empty() {
                state.running = None;
                return;
            }
        }
        all.retain_mut(|node| {
            let rung = node.seat.rung.swap(false, Ordering::AcqRel);
            if !(rung || node.again || is_late || ready.contains(&node.fd)) {
                return true;
            }
            let turn = node.seat.turn();
            node.again = turn == Some(Turn::Again) || !node.is_watched;
            if turn.is_none() && node.is_watched {
                set.remove(node.fd);
            }
            turn.is_some()
        });
        if all.iter().any(|node| node.again) {
            (ready, is_late) = (set.ready(), false);
            std::thread::yield_now();
            continue;
        }
        // A bound, in case a wake-up is lost.
        is_late = !sys::wait_readable(&[set.fd()], Instant::now().checked_add(SLEEP));
        sys::drain_eventfd(wake);
        ready = set.ready();
    }
}
