//! Event queues. Objects push their events; a read first drives the objects that are bound to the queue.
//!
//! Locks: the list of sources and the events have a lock each, and neither is held while a source is called. So a
//! source may push while it holds its own lock, and may be added and removed at any time.

#[cfg(test)]
mod tests;

use std::any::Any;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{
    EqAttr, EqErrorEntry, Errno, Error, Event, EventKind, EventQueue, Fid, MutexCond, Result, WaitObj,
};

use crate::fork::Born;
use crate::source::Arm;
use crate::wait::{WaitObject, Waitable, no_wait_object};
use crate::wake_fd::WakeFd;

/// The maximum number of unread events of the application, unless it requested room for more.
const WRITTEN: usize = 1024;

/// A source that an event queue drives: an endpoint or a listener that reports to it.
pub trait Driven: Send + Sync {
    /// Moves it on.
    fn drive(&self);
    /// Prepares for blocking until there is something to drive, or `wake` is notified.
    fn arm(&self, wake: &WakeFd) -> Arm;
    /// The descriptor to block on, once armed.
    fn wait_fd(&self) -> Option<RawFd>;
    /// Whether its next event is imminent and must precede other objects' requests.
    fn is_settling(&self) -> bool {
        false
    }
    /// Others have waited long enough for that.
    fn stop_settling(&self) {}
    /// Whether work is in progress that does not wait for the application.
    fn is_pending(&self) -> bool {
        false
    }
    /// Moves it on if it is pending.
    fn drive_if_pending(&self) {
        if self.is_pending() {
            self.drive();
        }
    }
    /// When to drive it next, even if nothing arrives.
    fn deadline(&self) -> Option<Instant> {
        None
    }
}

/// An event that was not read yet.
struct Unread {
    event: Event,
    /// The application wrote it.
    is_written: bool,
}

#[derive(Default)]
struct Events {
    good: VecDeque<Unread>,
    bad: VecDeque<EqErrorEntry>,
    /// The time since which the first request has waited for the confirmation of another.
    held: Option<Instant>,
}

/// The attribute that errors about the wait object name.
const FIELD: &str = "fi_eq_attr.wait_obj";

/// The maximum time that a request waits for the confirmation of an earlier acceptance, because both are in flight at
/// the same time. It is longer than a running peer takes on an overloaded machine. One acceptance delays others at most
/// once.
const HELD: Duration = Duration::from_secs(1);
/// How long a blocked thread pauses meanwhile: on a machine with few cores, the confirmation may need the core on which
/// it would otherwise spin.
const PAUSE: Duration = Duration::from_millis(1);

/// The core's event queue.
pub struct EqCore {
    events: Mutex<Events>,
    sources: Mutex<Vec<Weak<dyn Driven>>>,
    waiting: Option<WaitObject>,
    wait_obj: WaitObj,
    /// Events that the application may write before it reads; 0 if it may not.
    room: usize,
    born: Born,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl EqCore {
    /// Opens a queue.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_SET` without a set of this library; `FI_EMFILE` and the like.
    pub fn open(attr: &EqAttr) -> Result<Arc<Self>> {
        crate::cq::holds(attr.size, "fi_eq_attr.size")?;
        let queue = Arc::new(Self {
            events: Mutex::default(),
            sources: Mutex::default(),
            waiting: WaitObject::open(attr.wait_obj, attr.wait_set.as_ref())?,
            wait_obj: attr.wait_obj,
            room: if attr.write { attr.size.max(WRITTEN) } else { 0 },
            born: Born::here(),
        });
        if let Some(waiting) = &queue.waiting {
            let member: Arc<dyn Waitable> = Arc::clone(&queue) as _;
            waiting.join(Arc::downgrade(&member))?;
        }
        tracing::debug!(target: "ofi::core::eq", wait = %attr.wait_obj, size = attr.size, "opened an event queue");
        Ok(queue)
    }

    /// The core's queue behind the application's handle.
    ///
    /// # Errors
    /// `FI_EINVAL` for one of another implementation.
    pub fn of(queue: &Arc<dyn EventQueue>) -> Result<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(queue) as _;
        any.downcast::<Self>().map_err(|_| {
            Error::wanted(
                Errno::EINVAL,
                "the event queue",
                "one opened on a fabric of this library",
                "one of another implementation",
                "open it on the fabric of the object that is bound to it",
            )
        })
    }

    /// Binds the queue to an endpoint, or a part of one, that has none in `slot` yet.
    ///
    /// # Errors
    /// `FI_EBUSY` if there is one.
    pub fn bind_once(self: Arc<Self>, slot: &mut Option<Arc<Self>>) -> Result<()> {
        if slot.is_some() {
            return Err(Error::wanted(
                Errno::EBUSY,
                "fi_ep_bind",
                "one event queue",
                "a second one",
                "bind one queue to each endpoint",
            ));
        }
        *slot = Some(self);
        Ok(())
    }

    /// Reports an event. May be called from any thread and under any lock of the caller's.
    pub fn push(&self, event: Event) {
        lock(&self.events).good.push_back(Unread { event, is_written: false });
        self.ring();
    }

    /// Reports the failure of a call that has returned. As [`EqCore::push`].
    pub fn push_error(&self, error: EqErrorEntry) {
        lock(&self.events).bad.push_back(error);
        self.ring();
    }

    fn ring(&self) {
        if let Some(waiting) = &self.waiting {
            waiting.wake.notify();
        }
    }

    /// Drives `source` at each read from now on, while it lives.
    ///
    /// # Errors
    /// Errors of adding its descriptor to the wait set.
    pub fn add(&self, source: &Arc<dyn Driven>) -> Result<()> {
        self.add_locked(source, source.wait_fd())
    }

    /// As [`EqCore::add`], for a source whose lock the caller holds, and whose descriptor is `fd`.
    ///
    /// # Errors
    /// As [`EqCore::add`].
    pub fn add_locked(&self, source: &Arc<dyn Driven>, fd: Option<RawFd>) -> Result<()> {
        self.born.check()?;
        if let Some(waiting) = &self.waiting
            && let Some(fd) = fd
        {
            waiting.sources.add(fd)?;
        }
        lock(&self.sources).push(Arc::downgrade(source));
        if let Some(waiting) = &self.waiting {
            waiting.wake.signal();
        }
        Ok(())
    }

    /// Stops driving `source`. Call it before its descriptor is closed.
    pub fn remove(&self, source: &Arc<dyn Driven>) {
        self.remove_locked(&**source, source.wait_fd());
    }

    /// As [`EqCore::remove`], for a source whose lock the caller holds, and whose descriptor is `fd`.
    pub fn remove_locked(&self, source: &dyn Driven, fd: Option<RawFd>) {
        if !self.born.is_here() {
            return; // the parent shares the wait set
        }
        if let Some(waiting) = &self.waiting
            && let Some(fd) = fd
        {
            waiting.sources.remove(fd);
        }
        let gone = std::ptr::from_ref(source).cast::<()>();
        lock(&self.sources).retain(|source| source.as_ptr().cast::<()>() != gone);
    }

    /// Stops waiting for the descriptor of a source that is lost, because it may stay readable forever.
    pub fn mute(&self, fd: RawFd) {
        if let Some(waiting) = &self.waiting {
            waiting.sources.remove(fd);
        }
    }

    /// Drops unread events of a closed object, because its number is no longer valid.
    pub fn forget(&self, fid: Fid) {
        let mut events = lock(&self.events);
        let (gone, kept): (VecDeque<_>, _) =
            std::mem::take(&mut events.good).into_iter().partition(|unread| unread.event.fid == fid);
        events.good = kept;
        events.bad.retain(|error| error.fid != fid);
        events.held = None;
        drop(events);
        drop(gone); // outside the lock: dropping a request rejects it
    }

    fn sources(&self) -> Vec<Arc<dyn Driven>> {
        lock(&self.sources).iter().filter_map(Weak::upgrade).collect()
    }

    fn take(&self, consume: bool) -> Result<Event> {
        self.born.check()?;
        let sources = self.sources();
        sources.iter().for_each(|source| source.drive());
        let settling: Vec<_> = sources.iter().filter(|source| source.is_settling()).collect();
        let mut events = lock(&self.events);
        if !events.bad.is_empty() {
            return Err(Error::AVAIL);
        }
        // Programs that set up connections one by one expect the events of one before the request for the next. The
        // request arrives by another path and may be first; then it waits briefly.
        let is_request = |unread: &Unread| unread.event.kind == EventKind::ConnReq;
        let at = events.good.iter().position(|unread| !is_request(unread)).unwrap_or(0);
        if !settling.is_empty() && events.good.get(at).is_some_and(is_request) {
            if events.held.get_or_insert_with(Instant::now).elapsed() < HELD {
                return Err(Error::AGAIN);
            }
            // Outside the lock, because sources push while they hold theirs.
            drop(events);
            settling.iter().for_each(|source| source.stop_settling());
            return self.take(consume);
        }
        if !consume {
            return events.good.get(at).map(|unread| unread.event.clone()).ok_or(Error::AGAIN);
        }
        let unread = events.good.remove(at).ok_or(Error::AGAIN)?;
        if is_request(&unread) {
            events.held = None;
        }
        Ok(unread.event)
    }

    fn take_wait(&self, consume: bool, timeout: Option<Duration>) -> Result<Event> {
        self.born.check()?;
        let alone = self.waiting.is_some() && self.wait_obj != WaitObj::Set;
        if !alone && self.wait_obj != WaitObj::Yield {
            return Err(no_wait_object(FIELD));
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            match self.take(consume) {
                Err(error) if error.is_again() => {}
                other => return other,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::AGAIN);
            }
            match &self.waiting {
                None => std::thread::yield_now(),
                Some(waiting) => {
                    let slept = waiting.wake.asleep(|| self.sleep(waiting, deadline));
                    if !slept && lock(&self.events).held.is_some() {
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }
}

impl EqCore {
    /// Blocks until there may be an event, unless there is one already. Returns whether it blocked.
    fn sleep(&self, waiting: &WaitObject, deadline: Option<Instant>) -> bool {
        let may_sleep = self.trywait().is_ok();
        if may_sleep {
            let due = self.sources().iter().filter_map(|source| source.deadline()).min();
            let until = [due, deadline].into_iter().flatten().min();
            waiting.sources.wait_readable(until);
        }
        may_sleep
    }
}

impl EventQueue for EqCore {
    fn read(&self) -> Result<Event> {
        self.take(true)
    }

    fn peek(&self) -> Result<Event> {
        self.take(false)
    }

    fn read_wait(&self, timeout: Option<Duration>) -> Result<Event> {
        self.take_wait(true, timeout)
    }

    fn peek_wait(&self, timeout: Option<Duration>) -> Result<Event> {
        self.take_wait(false, timeout)
    }

    fn read_error(&self) -> Result<EqErrorEntry> {
        self.born.check()?;
        lock(&self.events).bad.pop_front().ok_or(Error::AGAIN)
    }

    fn write(&self, event: Event) -> Result<()> {
        self.born.check()?;
        if self.room == 0 {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_eq_write",
                "an event queue that was opened with FI_WRITE",
                "one without",
                "set the flag in fi_eq_attr.flags",
            ));
        }
        let mut events = lock(&self.events);
        if events.good.iter().filter(|unread| unread.is_written).count() >= self.room {
            return Err(Error::AGAIN);
        }
        events.good.push_back(Unread { event, is_written: true });
        drop(events);
        self.ring();
        Ok(())
    }

    fn error_text(&self, prov_errno: i32) -> String {
        Errno::from_raw(prov_errno).to_string()
    }

    fn trywait(&self) -> Result<()> {
        self.born.check()?;
        let Some(waiting) = &self.waiting else { return Err(no_wait_object(FIELD)) };
        waiting.prepare();
        waiting.wake.arm();
        // Must precede the check for events: a source pushes what it finds while arming, and then rings.
        let armed = self.sources().iter().all(|source| source.arm(&waiting.wake) == Arm::Armed);
        let events = lock(&self.events);
        if armed && events.good.is_empty() && events.bad.is_empty() { Ok(()) } else { Err(Error::AGAIN) }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.waiting.as_ref().and_then(|waiting| waiting.shown_fd(self.wait_obj))
    }

    fn mutex_cond(&self) -> Option<MutexCond> {
        self.waiting.as_ref().and_then(WaitObject::mutex_cond)
    }
}

impl Waitable for EqCore {
    fn has_something(&self) -> bool {
        self.take(false).map_or_else(|error| error.errno() == Errno::EAVAIL, |_| true)
    }

    fn prepare(&self) -> Result<()> {
        self.trywait()
    }
}

impl Drop for EqCore {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The sets of descriptors are shared with the parent, and its threads do not exist here, so do not wait for
            // them.
            std::mem::forget(self.waiting.take());
        }
    }
}
