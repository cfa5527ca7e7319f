//! The wait objects of queues and counters: a wake fd, a set of descriptors that includes it, and the forms in which
//! applications see them.

mod mutex_cond;
mod wait_set;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, MutexCond, Result, WaitObj};

pub use wait_set::Waits;

use self::mutex_cond::Waker;
use crate::sys::{self, WaitSet};
use crate::wake_fd::WakeFd;

/// A member of a wait set.
pub trait Waitable: Send + Sync {
    /// Drives progress, and says whether there is something.
    fn has_something(&self) -> bool;
    /// Prepares for blocking, as `fi_trywait`.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is something.
    fn prepare(&self) -> Result<()>;
}

/// A wake fd and the descriptors of sources. Threads wait for a single source and the wake fd directly, which is faster
/// than an epoll set; for several, and where the application waits itself, there is a set.
///
/// A poll(2) goes on with the descriptors that it was given: it misses a source that is added, and holds the file of
/// one that is removed, whose address then stays in use. So a change waits until all threads have left such a poll.
pub struct Sources {
    wake: WakeFd,
    list: Mutex<List>,
    set: OnceLock<WaitSet>,
}

#[derive(Default)]
struct List {
    fds: Vec<RawFd>,
    /// Threads that poll these descriptors directly.
    polling: Arc<AtomicU32>,
}

/// Maximum time for which a change waits for threads that poll: they only have to be scheduled.
const MAX_POLL_EXIT: Duration = Duration::from_secs(1);
/// Between two signals to them, of which another thread may take one.
const SIGNAL_INTERVAL: Duration = Duration::from_micros(50);

impl Sources {
    fn new(wake: &WakeFd) -> Self {
        Self { wake: wake.clone(), list: Mutex::default(), set: OnceLock::new() }
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set of all of `fds` and the wake fd.
    fn unite(&self, fds: &[RawFd]) -> Result<&WaitSet> {
        if let Some(set) = self.set.get() {
            return Ok(set);
        }
        let set = WaitSet::new()?;
        std::iter::once(self.wake.fd()).chain(fds.iter().copied()).try_for_each(|fd| set.add(fd))?;
        Ok(self.set.get_or_init(|| set))
    }

    /// Adds a source's descriptor.
    ///
    /// # Errors
    /// Errors of making a set, or of adding to it.
    pub fn add(&self, fd: RawFd) -> Result<()> {
        let mut list = self.list();
        if list.fds.contains(&fd) {
            return Ok(());
        }
        match self.set.get() {
            Some(set) => set.add(fd)?,
            None if list.fds.is_empty() => {}
            None => self.unite(&list.fds)?.add(fd)?,
        }
        list.fds.push(fd);
        self.changed(list);
        Ok(())
    }

    /// Removes a source's descriptor, if it is there. No thread waits for it when this returns.
    pub fn remove(&self, fd: RawFd) {
        let mut list = self.list();
        if let Some(at) = list.fds.iter().position(|&other| other == fd) {
            list.fds.swap_remove(at);
            if let Some(set) = self.set.get() {
                set.remove(fd);
            }
            self.changed(list);
        }
    }

    /// Waits until no thread polls the descriptors that the list had before.
    fn changed(&self, mut list: MutexGuard<'_, List>) {
        let polling = std::mem::take(&mut list.polling);
        drop(list);
        let began = Instant::now();
        while polling.load(Ordering::Acquire) > 0 && began.elapsed() < MAX_POLL_EXIT {
            self.wake.signal();
            std::thread::sleep(SIGNAL_INTERVAL);
        }
    }

    /// The descriptor of the set, if there is one.
    fn fd(&self) -> Option<RawFd> {
        self.set.get().map(WaitSet::fd)
    }

    /// Blocks until one of them is readable or `deadline` has passed. Returns whether one is.
    pub fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        let list = self.list();
        let fds = match (list.fds.as_slice(), self.fd()) {
            ([_, _, ..], Some(set)) => {
                drop(list);
                return sys::wait_readable(&[set], deadline);
            }
            (fds, _) => [Some(self.wake.fd()), fds.first().copied()],
        };
        let polling = Arc::clone(&list.polling);
        polling.fetch_add(1, Ordering::Relaxed); // under the lock
        drop(list);
        let fds: [RawFd; 2] = fds.map(|fd| fd.unwrap_or(-1));
        let is_readable = sys::wait_readable(&fds, deadline);
        polling.fetch_sub(1, Ordering::Release);
        is_readable
    }
}

/// What an object blocks on. Fields drop in order, because the thread of `waker` watches the descriptors of the others.
pub struct WaitObject {
    waker: Option<Waker>,
    /// Notified when there is something that no descriptor shows.
    pub wake: WakeFd,
    /// The wake fd, and the descriptors of all sources.
    pub sources: Sources,
    /// The wait set that the object belongs to.
    group: Option<Arc<Waits>>,
}

impl WaitObject {
    /// What `wait_obj` needs; `None` for none and yield.
    ///
    /// # Errors
    /// `FI_EINVAL` for `FI_WAIT_SET` without a set of this library; `FI_EMFILE` and the like.
    pub fn open(wait_obj: WaitObj, group: Option<&Arc<dyn ofi_api::WaitSet>>) -> Result<Option<Self>> {
        let group = match (wait_obj, group) {
            (WaitObj::None | WaitObj::Yield, _) => return Ok(None),
            (WaitObj::Set, group) => Some(Waits::of(group)?),
            _ => None,
        };
        let is_shown = matches!(wait_obj, WaitObj::Fd | WaitObj::Pollfd | WaitObj::MutexCond | WaitObj::Set);
        let wake = WakeFd::of(is_shown)?;
        let sources = Sources::new(&wake);
        let mut waker = None;
        if is_shown {
            let set = sources.unite(&[])?.fd();
            waker = (wait_obj == WaitObj::MutexCond).then(|| Waker::start(set)).transpose()?;
        }
        Ok(Some(Self { waker, wake, sources, group }))
    }

    /// Joins the wait set, where there is one, until it is dropped.
    ///
    /// # Errors
    /// Errors of adding a descriptor to the set.
    pub fn join(&self, member: Weak<dyn Waitable>) -> Result<()> {
        match (&self.group, self.sources.fd()) {
            (Some(group), Some(fd)) => group.add(fd, member),
            _ => Ok(()),
        }
    }

    /// The descriptor that applications see.
    pub fn shown_fd(&self, wait_obj: WaitObj) -> Option<RawFd> {
        matches!(wait_obj, WaitObj::Fd | WaitObj::Pollfd).then(|| self.sources.fd()).flatten()
    }

    /// Notes that a thread is about to wait in a way that the application chose.
    pub fn prepare(&self) {
        self.waker.iter().for_each(Waker::prepare);
    }

    /// What applications see of `FI_WAIT_MUTEX_COND`.
    pub fn mutex_cond(&self) -> Option<MutexCond> {
        self.waker.as_ref().map(Waker::pair)
    }
}

impl Drop for WaitObject {
    fn drop(&mut self) {
        if let (Some(group), Some(fd)) = (&self.group, self.sources.fd()) {
            group.remove(fd);
        }
    }
}

/// The error of blocking on an object that cannot.
#[cold]
pub fn no_wait_object(field: &'static str) -> Error {
    Error::wanted(
        Errno::EINVAL,
        field,
        "an object that can block on its own",
        "FI_WAIT_NONE, or FI_WAIT_SET, whose members are waited for together",
        "open it with FI_WAIT_UNSPEC or FI_WAIT_FD, poll it, or wait on its set",
    )
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::time::Duration;

    use super::*;

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_millis(10))
    }

    #[test]
    fn one_source_needs_no_set_and_each_of_several_ends_a_wait() {
        let object = WaitObject::open(WaitObj::Unspec, None).unwrap().unwrap();
        let events: Vec<_> = (0..4).map(|_| sys::eventfd().unwrap()).collect();
        let sources = &object.sources;
        for (count, event) in events.iter().enumerate() {
            sources.add(event.as_raw_fd()).unwrap();
            sources.add(event.as_raw_fd()).unwrap();
            assert_eq!(sources.fd().is_some(), count > 0);
            for event in &events[..=count] {
                assert!(!sources.wait_readable(soon()));
                sys::signal_eventfd(event);
                assert!(sources.wait_readable(None));
                sys::drain_eventfd(event);
            }
            object.wake.arm();
            object.wake.notify();
            assert!(sources.wait_readable(None));
            object.wake.arm();
        }
        for event in &events {
            sources.remove(event.as_raw_fd());
            sys::signal_eventfd(event);
        }
        assert!(!sources.wait_readable(soon()), "a removed source");
    }

    #[test]
    fn a_removed_only_source_makes_room_for_the_next() {
        let object = WaitObject::open(WaitObj::Unspec, None).unwrap().unwrap();
        let (one, other) = (sys::eventfd().unwrap(), sys::eventfd().unwrap());
        object.sources.add(one.as_raw_fd()).unwrap();
        object.sources.remove(one.as_raw_fd());
        object.sources.add(other.as_raw_fd()).unwrap();
        sys::signal_eventfd(&one);
        assert!(object.sources.fd().is_none() && !object.sources.wait_readable(soon()));
        sys::signal_eventfd(&other);
        assert!(object.sources.wait_readable(None));
    }

    /// Threads that wait for these sources.
    fn blocked<'a>(
        scope: &'a std::thread::Scope<'a, '_>,
        object: &'a WaitObject,
        count: usize,
    ) -> Vec<std::thread::ScopedJoinHandle<'a, bool>> {
        let until = Some(Instant::now() + Duration::from_secs(30));
        let wait = move || loop {
            // As those do that wait for an event.
            object.wake.arm();
            if object.sources.wait_readable(until) && !sys::is_readable(object.wake.fd()) {
                return true;
            }
            if until.is_some_and(|until| Instant::now() > until) {
                return false;
            }
        };
        let threads = (0..count).map(|_| scope.spawn(wait)).collect();
        while object.sources.list().polling.load(Ordering::Acquire) < count as u32 {
            std::thread::yield_now();
        }
        threads
    }

    #[test]
    fn every_blocked_thread_sees_an_added_source() {
        for before in 0..2 {
            let object = WaitObject::open(WaitObj::Unspec, None).unwrap().unwrap();
            let events: Vec<_> = (0..=before).map(|_| sys::eventfd().unwrap()).collect();
            let (last, others) = events.split_last().unwrap();
            others.iter().for_each(|event| object.sources.add(event.as_raw_fd()).unwrap());
            std::thread::scope(|scope| {
                let threads = blocked(scope, &object, 4);
                object.sources.add(last.as_raw_fd()).unwrap();
                sys::signal_eventfd(last);
                assert!(threads.into_iter().all(|thread| thread.join().unwrap()), "{before} sources before");
            });
        }
    }

    #[test]
    fn a_removed_source_is_free_although_threads_are_blocked() {
        let object = WaitObject::open(WaitObj::Unspec, None).unwrap().unwrap();
        let other = sys::eventfd().unwrap();
        std::thread::scope(|scope| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = socket.local_addr().unwrap();
            object.sources.add(socket.as_raw_fd()).unwrap();
            let threads = blocked(scope, &object, 3);
            object.sources.remove(socket.as_raw_fd());
            drop(socket);
            let again = std::net::UdpSocket::bind(address);
            object.sources.add(other.as_raw_fd()).unwrap();
            sys::signal_eventfd(&other);
            assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
            again.expect("nobody holds the socket");
        });
    }

    #[test]
    fn an_object_that_the_application_waits_for_has_one_descriptor() {
        for wait_obj in [WaitObj::Fd, WaitObj::Pollfd] {
            let object = WaitObject::open(wait_obj, None).unwrap().unwrap();
            let fd = object.shown_fd(wait_obj).unwrap();
            let event = sys::eventfd().unwrap();
            object.sources.add(event.as_raw_fd()).unwrap();
            assert!(!sys::is_readable(fd));
            sys::signal_eventfd(&event);
            assert!(sys::is_readable(fd) && object.shown_fd(wait_obj) == Some(fd));
        }
    }
}
