//! The wait objects of queues and counters: a wake fd, a set of descriptors that includes it, and the forms in which
//! applications see them.

mod mutex_cond;
mod wait_set;

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{Errno, Error, MutexCond, Result, WaitObj};

pub use wait_set::Waits;

use self::mutex_cond::Waker;
use crate::sys::WaitSet;
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

/// What an object blocks on. Fields drop in order, because the thread of `waker` watches the descriptors of the others.
pub struct WaitObject {
    waker: Option<Waker>,
    /// Notified when there is something that no descriptor shows.
    pub wake: WakeFd,
    /// The wake fd, and the descriptors of all sources.
    pub set: WaitSet,
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
        let (wake, set) = (WakeFd::of(is_shown)?, WaitSet::new()?);
        set.add(wake.fd())?;
        let waker = match wait_obj {
            WaitObj::MutexCond => Some(Waker::start(set.fd())?),
            _ => None,
        };
        Ok(Some(Self { waker, wake, set, group }))
    }

    /// Joins the wait set, where there is one, until it is dropped.
    ///
    /// # Errors
    /// Errors of adding a descriptor to the set.
    pub fn join(&self, member: Weak<dyn Waitable>) -> Result<()> {
        match &self.group {
            Some(group) => group.add(self.set.fd(), member),
            None => Ok(()),
        }
    }

    /// The descriptor that applications see.
    pub fn shown_fd(&self, wait_obj: WaitObj) -> Option<RawFd> {
        matches!(wait_obj, WaitObj::Fd | WaitObj::Pollfd).then(|| self.set.fd())
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
        if let Some(group) = &self.group {
            group.remove(self.set.fd());
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
