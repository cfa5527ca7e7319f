//! Checking several queues and counters at once (fi_poll(3)).

use std::sync::Arc;

use crate::{CompletionQueue, Context, Counter, Result};

/// A member of a poll set.
#[derive(Clone, Debug)]
pub enum PollMember {
    /// Reported while it has an entry.
    Queue(Arc<dyn CompletionQueue>),
    /// Reported when its value or failure count has changed since the last check. Changes by the application do not
    /// count.
    Counter(Arc<dyn Counter>),
}

/// A poll set (`fid_poll`).
pub trait PollSet: Send + Sync + std::any::Any {
    /// Adds a member, to be reported as `context`.
    ///
    /// # Errors
    /// `FI_EBUSY` if it is already in the set; `FI_EINVAL` for an object of another library.
    fn add(&self, member: PollMember, context: Context) -> Result<()>;

    /// Removes a member.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not in the set.
    fn remove(&self, member: &PollMember) -> Result<()>;

    /// Drives all members, and writes the contexts of the ready ones to `contexts`, as many as fit. Members that did
    /// not fit come first in the next call. Returns the number written.
    fn poll(&self, contexts: &mut [Context]) -> usize;
}
