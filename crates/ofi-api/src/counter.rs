//! Counters: how many operations have completed, without saying which.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use crate::{CntrEvents, MutexCond, Result, WaitObj, WaitSet};

/// How to open a counter (`struct fi_cntr_attr`).
#[derive(Clone, Debug, Default)]
pub struct CntrAttr {
    /// The unit: operations or bytes. Failures are always counted in operations.
    pub events: CntrEvents,
    /// How a thread may block on it.
    pub wait_obj: WaitObj,
    /// The wait set to join, with `FI_WAIT_SET`.
    pub wait_set: Option<Arc<dyn WaitSet>>,
}

/// A counter (`fid_cntr`): a value for successes, and one for failures. Both wrap at 2^64.
///
/// Under manual progress, reading it and waiting for it drive the endpoints that it counts for; a counter that is
/// bound to a registration drives all endpoints of its domain.
pub trait Counter: Send + Sync + std::any::Any {
    /// The value, after driving progress.
    fn read(&self) -> u64;

    /// Drives progress, and returns the number of failed operations.
    fn read_error(&self) -> u64;

    /// Adds to the value.
    ///
    /// # Errors
    /// None for counters in memory; a device may return its own.
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

    /// Blocks until the value is `threshold` or more, or until `timeout` has passed (`None`: no limit).
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`; `FI_EAVAIL` as soon as the count of failures differs from its value at the start of the call;
    /// `FI_EINVAL` on a counter without a wait object.
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<()>;

    /// Whether the caller may block on the wait descriptor (`fi_trywait`, fi_poll(3)): `Ok` if the counter has not
    /// changed since it was last read, and the next change will make the descriptor readable.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the counter first; `FI_EINVAL` on a counter without a wait object.
    fn trywait(&self) -> Result<()>;

    /// The wait descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD`.
    fn wait_fd(&self) -> Option<RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`, as for queues.
    fn mutex_cond(&self) -> Option<MutexCond>;

    /// The unit that it counts.
    fn events(&self) -> CntrEvents;
}
