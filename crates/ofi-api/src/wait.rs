//! Sleeping on several queues and counters at once (fi_poll(3)).

use std::ffi::c_void;
use std::os::fd::RawFd;
use std::time::Duration;

use crate::{Result, WaitObj};

/// A pthreads mutex and condition variable (`struct fi_mutex_cond`). The library broadcasts the condition when the
/// object has something to read. Both live as long as the object that returned them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MutexCond {
    /// `pthread_mutex_t *`: to be held while waiting.
    pub mutex: *mut c_void,
    /// `pthread_cond_t *`.
    pub cond: *mut c_void,
}

// SAFETY: the two addresses are only passed on; their users follow the rules of pthreads.
unsafe impl Send for MutexCond {}

/// How to open a wait set (`struct fi_wait_attr`).
#[derive(Clone, Debug, Default)]
pub struct WaitAttr {
    /// How a thread may block on it.
    pub wait_obj: WaitObj,
}

/// A wait set (`fid_wait`): one object to block on for all queues and counters that were opened with it.
pub trait WaitSet: Send + Sync + std::any::Any {
    /// Blocks until one of the set's members has something, or until `timeout` has passed (`None`: no limit).
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`.
    fn wait(&self, timeout: Option<Duration>) -> Result<()>;

    /// Whether the caller may block on the wait object: `Ok` if no member has anything to read, and later events will
    /// be signalled.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the members first; `FI_EINVAL` for `FI_WAIT_YIELD`.
    fn trywait(&self) -> Result<()>;

    /// The descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD` (an array of one, which never changes).
    fn wait_fd(&self) -> Option<RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`.
    fn mutex_cond(&self) -> Option<MutexCond>;
}
