//! The wait objects of queues and counters: a wake fd, a set of descriptors that includes it, and the forms in which
//! applications see them.

mod mutex_cond;
mod wait_set;

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;

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

/// A wake fd and the descriptors of sources. One source needs no set of descriptors, as both can be waited for
/// directly; most objects that only calls of the library wait for have one.
pub struct Sources {
    wake: RawFd,
    /// The only source, without a set.
    only: Mutex<Option<RawFd>>,
    set: OnceLock<WaitSet>,
}

impl Sources {
    fn only(&self) -> MutexGuard<'_, Option<RawFd>> {
        self.only.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The set, which has all of them from now on.
    fn unite(&self, only: Option<RawFd>) -> Result<&WaitSet> {
        let set = WaitSet::new()?;
        [Some(self.wake), only].into_iter().flatten().try_for_each(|fd| set.add(fd))?;
        Ok(self.set.get_or_init(|| set))
    }

    /// Adds a source's descriptor. A thread that blocks meanwhile must be woken to see it.
    ///
    /// # Errors
    /// Errors of making a set, or of adding to it.
    pub fn add(&self, fd: RawFd) -> Result<()> {
        let mut only = self.only();
        if self.set.get().is_none() {
            match *only {
                None => *only = Some(fd),
                Some(there) if there == fd => {}
                Some(there) => self.unite(Some(there))?.add(fd)?,
            }
            return Ok(());
        }
        self.set.get().map_or(Ok(()), |set| set.add(fd))
    }

    /// Removes a source's descriptor, if it is there.
    pub fn remove(&self, fd: RawFd) {
        let mut only = self.only();
        if *only == Some(fd) {
            *only = None;
        }
        if let Some(set) = self.set.get() {
            set.remove(fd);
        }
    }

    /// One descriptor for all of them, which every object has that the application waits for.
    fn fd(&self) -> Option<RawFd> {
        self.set.get().map(WaitSet::fd)
    }

    /// Blocks until one of them is readable or `deadline` has passed. Returns whether one is.
    pub fn wait_readable(&self, deadline: Option<Instant>) -> bool {
        if let Some(set) = self.fd() {
            return sys::wait_readable(&[set], deadline);
        }
        let only = *self.only();
        match only {
            Some(fd) => sys::wait_readable(&[self.wake, fd], deadline),
            None => sys::wait_readable(&[self.wake], deadline),
        }
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
        let sources = Sources { wake: wake.fd(), only: Mutex::new(None), set: OnceLock::new() };
        let mut waker = None;
        if is_shown {
            let set = sources.unite(None)?.fd();
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
