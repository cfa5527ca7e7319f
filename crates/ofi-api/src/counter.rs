//! Counters: how many operations have ended, without saying which.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{CntrEvents, MutexCond, Result, WaitObj, WaitSet};

/// How to open a counter (`struct fi_cntr_attr`).
#[derive(Clone, Debug, Default)]
pub struct CntrAttr {
    /// The unit: operations, or their bytes. Failures are counted one by one in either case.
    pub events: CntrEvents,
    /// How a thread may block on it.
    pub wait_obj: WaitObj,
    /// The set to belong to, with `FI_WAIT_SET`.
    pub wait_set: Option<Arc<dyn WaitSet>>,
}

/// A counter (`fid_cntr`): a value for successes, and one for failures. Both wrap at 2^64.
///
/// Under manual progress, reading and waiting move on the endpoints that count on it; a counter that is bound to a
/// registration moves on all endpoints of its domain.
pub trait Counter: Send + Sync + std::any::Any {
    /// The value, after driving progress.
    fn read(&self) -> u64;

    /// Drives progress, and returns the number of failed operations.
    fn read_error(&self) -> u64;

    /// Adds to the value.
    ///
    /// # Errors
    /// None for counters in memory; a device may have its own.
    fn add(&self, value: u64) -> Result<()>;

    /// Adds to the count of failures.
    ///
    /// # Errors
    /// As `add`.
    fn add_error(&self, value: u64) -> Result<()>;

    /// Sets the value.
    ///
    /// # Errors
    /// As `add`.
    fn set(&self, value: u64) -> Result<()>;

    /// Sets the count of failures.
    ///
    /// # Errors
    /// As `add`.
    fn set_error(&self, value: u64) -> Result<()>;

    /// Blocks until the value is `threshold` or more, or `timeout` has passed (`None`: without limit).
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`; `FI_EAVAIL` as soon as the count of failures is another than when the call began;
    /// `FI_EINVAL` on a counter without wait object.
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()>;

    /// Whether the caller may block on the wait descriptor: `Ok` if the counter is as it was when it was last read, and
    /// whatever changes it will make the descriptor readable; see `fi_trywait` (`fi_poll(3)`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the counter first; `FI_EINVAL` on a counter without wait object.
    fn trywait(&self) -> Result<()>;

    /// The wait descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD`.
    fn wait_fd(&self) -> Option<RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`, as for queues.
    fn mutex_cond(&self) -> Option<MutexCond>;

    /// The unit that it counts.
    fn events(&self) -> CntrEvents;
}
