//! Looking at several queues and counters at once (fi_poll(3)).

use std::sync::Arc;

use crate::{CompletionQueue, Context, Counter, Result};

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
