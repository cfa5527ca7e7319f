//! Looking at, and sleeping on, several queues and counters at once (fi_poll(3)).

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{CompletionQueue, Context, Counter, Result, WaitObj};

/// A mutex and a condition variable of pthreads (`struct fi_mutex_cond`), which the library broadcasts when there is
/// something. Both live as long as the object that answered them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MutexCond {
    /// `pthread_mutex_t *`: to be held while waiting.
    pub mutex: *mut c_void,
    /// `pthread_cond_t *`.
    pub cond: *mut c_void,
}

// SAFETY: two addresses; whoever uses them does so by the rules of pthreads.
unsafe impl Send for MutexCond {}

/// How to open a wait set (`struct fi_wait_attr`).
#[derive(Clone, Debug, Default)]
pub struct WaitAttr {
    /// How a thread may block on it.
    pub wait_obj: WaitObj,
}

/// A wait set (`fid_wait`): one thing to block on for all queues and counters that were opened with it.
pub trait WaitSet: Send + Sync + std::any::Any {
    /// Blocks until one of the set's members has something, or until `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`.
    fn wait(&self, timeout: Option<Duration>) -> Result<()>;

    /// Whether the caller may block on the wait object: `Ok` if no member has anything, and whatever comes will be
    /// signalled.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the members first; `FI_EINVAL` for `FI_WAIT_YIELD`.
    fn trywait(&self) -> Result<()>;

    /// The descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD` (an array of one, which never changes).
    fn wait_fd(&self) -> Option<RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`.
    fn mutex_cond(&self) -> Option<MutexCond>;
}

/// A member of a poll set.
#[derive(Clone, Debug)]
pub enum PollMember {
    /// Reported while it has an entry.
    Queue(Arc<dyn CompletionQueue>),
    /// Reported when its value or its failure count has changed since the last check, other than by the application.
    Counter(Arc<dyn Counter>),
}

/// A poll set (`fid_poll`).
pub trait PollSet: Send + Sync + std::any::Any {
    /// Adds a member, to be reported as `context`.
    ///
    /// # Errors
    /// `FI_EBUSY` if it is in the set already; `FI_EINVAL` for an object of another implementation.
    fn add(&self, member: PollMember, context: Context) -> Result<()>;

    /// Removes a member.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not in the set.
    fn remove(&self, member: &PollMember) -> Result<()>;

    /// Drives all members, and writes the contexts of the ready ones to `contexts`, as many as fit. The others
    /// are reported first the next time. Returns the number written.
    fn poll(&self, contexts: &mut [Context]) -> usize;
}
