//! An endpoint as seen by queues, counters and progress threads: they drive it, and sleep on it.

use ofi_api::{CqBuffer, CqErrorEntry};

use crate::spin_policy::YieldHint;
use crate::wake_fd::WakeFd;

/// Whether the caller may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arm {
    /// There is work already: poll first.
    Ready,
    /// The descriptor becomes readable when there is something to poll for.
    Armed,
    /// As `Armed`, but something that has arrived waits for the application, which may make room without a poll: a
    /// sleeper polls again after [`REARM_INTERVAL`](crate::rearm::REARM_INTERVAL).
    Stalled,
}

/// The result of a poll of a source.
#[derive(Clone, Copy, Debug)]
pub struct Polled {
    /// Entries in the buffer, including those from before the poll.
    pub filled: usize,
    /// The source's request to the polling thread; `None` if its next entry is an error. (One field, because two fields
    /// are returned in registers.)
    pub(crate) hint: Option<YieldHint>,
}

impl Polled {
    /// The result of a poll that filled the buffer up to `filled`. `error`: the next entry is an error.
    #[inline]
    pub fn new(filled: usize, error: bool, hint: YieldHint) -> Self {
        Self { filled, hint: if error { None } else { Some(hint) } }
    }
}

/// A source that a queue polls. `slot` selects the source's outbox of the queue.
pub trait Source: Send + Sync {
    /// Drives the source and moves its completions into `buffer` from entry `filled` on.
    fn poll(&self, slot: usize, buffer: &mut CqBuffer<'_>, filled: usize) -> Polled;
    /// Takes the next entry, an error.
    fn take_error(&self, slot: usize) -> Option<CqErrorEntry>;
    /// Whether nothing waits for this queue.
    fn is_empty(&self, slot: usize) -> bool;
    /// Drives the source in place of the application.
    fn drive(&self);
    /// As [`Source::drive`], and then prepares for blocking as [`Source::prepare_to_block`] does. Other sleepers need
    /// not be woken to rearm: this rearms for them, or returns [`Arm::Ready`] and is called again.
    fn stand_in(&self) -> Arm;
    /// Drives the source for an application call other than a queue read.
    fn attend(&self);
    /// Releases its grants on closing registrations.
    fn give_back(&self);
    /// Prepares for blocking until there is something for this queue.
    fn arm(&self, slot: usize) -> Arm;
    /// Prepares for blocking until there is something to poll for, or `wake` is notified, where there is one.
    fn prepare_to_block(&self, wake: Option<&WakeFd>) -> Arm;
    /// The descriptor to block on, once armed.
    fn wait_fd(&self) -> Option<std::os::fd::RawFd>;
}
