//! Triggered operations and deferred work: what waits for a counter, and how it starts.
//!
//! A request waits in its counter ([`Line`]). Whoever raises the counter over the first threshold moves what is due to
//! the domain's [`Works`] and flags it; that may happen under the lock of an endpoint, so nothing starts there. The
//! flag is looked at where no lock is held: after a poll, after a post, and when the application changes a counter.
//!
//! Invariants:
//! I1. `Line::first` is the lowest threshold that waits, `u64::MAX` for none. Whoever adds a request stores it first and
//!     then looks at the counter; whoever raises the counter then looks at it. Both in `SeqCst` order: one sees the other.
//! I2. One thread at a time starts requests (`running`), in the order in which they became due; those of one endpoint
//!     keep that order also when it says `FI_EAGAIN`, and hold up no other endpoint.
//! I3. What waits keeps neither endpoints nor counters alive: who closes them withdraws the request.

mod line;
mod owned;
mod works;

pub use line::Line;
pub use owned::Owned;
pub use works::{Works, deed};

use std::sync::{Arc, Weak};

use ofi_api::{CompletionFlags, Context, DeferredOp, Errno, Error, Result};

use crate::cntr::Cntr;

/// What counts the end of an operation, instead of its endpoint.
pub type Completion = Option<Weak<Cntr>>;

/// An endpoint, as requests see it.
pub trait Target: Send + Sync {
    /// Posts a triggered operation, which ends like any other.
    ///
    /// # Errors
    /// Those of the call.
    fn post(&self, op: &DeferredOp<'_>) -> Result<()>;

    /// Posts deferred work, whose end `completion` counts.
    ///
    /// # Errors
    /// Those of the call.
    fn post_work(&self, op: &DeferredOp<'_>, completion: Option<Arc<Cntr>>) -> Result<()>;

    /// An operation that had been taken could not be posted, or was cancelled.
    fn lost(&self, context: Context, flags: CompletionFlags, error: Errno);
}

/// What a request does.
pub enum Deed {
    /// A triggered operation.
    Triggered(Weak<dyn Target>, Owned),
    /// Deferred work on an endpoint.
    Work(Weak<dyn Target>, Owned, Completion),
    /// Sets a counter.
    Set(Weak<Cntr>, u64),
    /// Adds to a counter.
    Add(Weak<Cntr>, u64),
}

/// A request that waits.
pub struct Item {
    /// Its name.
    pub id: u64,
    /// When it is due.
    pub threshold: u64,
    /// What it does.
    pub deed: Deed,
}

impl Item {
    /// Whether it is due at these numbers of its counter. Failures count for deferred work only.
    fn is_due(&self, value: u64, errors: u64) -> bool {
        let reached = match self.deed {
            Deed::Triggered(..) => value,
            _ => value.saturating_add(errors),
        };
        reached >= self.threshold
    }

    /// The endpoint that it is for.
    fn target(&self) -> Option<*const ()> {
        match &self.deed {
            Deed::Triggered(target, _) | Deed::Work(target, ..) => Some(target.as_ptr().cast()),
            Deed::Set(..) | Deed::Add(..) => None,
        }
    }

    /// Does it. It comes back if the endpoint has no room.
    fn start(self) -> Option<Self> {
        match &self.deed {
            Deed::Triggered(target, op) => {
                let target = target.upgrade()?;
                match op.with(|op| target.post(op)) {
                    Ok(()) => {}
                    Err(error) if error.is_again() => return Some(self),
                    Err(error) => target.lost(op.context(), op.flags(), error.errno()),
                }
            }
            Deed::Work(target, op, completion) => {
                let counter = completion.as_ref().and_then(Weak::upgrade);
                let posted = match target.upgrade() {
                    Some(target) => op.with(|op| target.post_work(op, counter.clone())),
                    None => Err(Error::new(Errno::ECANCELED)), // its endpoint was closed
                };
                match (posted, counter) {
                    (Ok(()), _) => {}
                    (Err(error), _) if error.is_again() => return Some(self),
                    (Err(_), Some(counter)) => counter.count_error(),
                    (Err(error), None) => {
                        // Nobody else would ever hear of it.
                        if let Some(target) = target.upgrade() {
                            target.lost(op.context(), op.flags(), error.errno());
                        }
                    }
                }
            }
            Deed::Set(counter, value) => {
                if let Some(counter) = counter.upgrade() {
                    counter.store(*value);
                }
            }
            Deed::Add(counter, value) => {
                if let Some(counter) = counter.upgrade() {
                    counter.raise(*value);
                }
            }
        }
        None
    }
}
