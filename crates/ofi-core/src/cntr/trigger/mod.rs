//! Triggered operations and deferred work: requests that wait for a counter, and how they start.
//!
//! A request waits in its counter ([`TriggerLine`]). If the application raises the counter to the first threshold, that
//! call starts the due requests. If an endpoint does so, it moves them to the domain's [`Works`] and sets a flag,
//! because it holds its lock and cannot start anything. The flag is checked where no lock is held: after a poll, after
//! a post, and when the application changes a counter.
//!
//! Invariants:
//! I1. `TriggerLine::first` is the lowest waiting threshold, `u64::MAX` for none. A thread that adds a request stores
//!     it first and then checks the counter; a thread that raises the counter then checks it. Both use `SeqCst` order,
//!     so one sees the other.
//! I2. One thread at a time starts requests (`running`), in the order in which they became due. The requests of one
//!     endpoint keep that order even if it returns `FI_EAGAIN`, and do not delay those of other endpoints.
//! I3. A waiting request does not keep its counter alive. A triggered operation keeps its endpoint alive, which removes
//!     it when the application closes the endpoint ([`Works::forget`]). Deferred work does not, and fails when it is
//!     due if its endpoint is gone.

mod access;
mod line;
mod owned;
mod works;

pub use access::Access;
pub use line::TriggerLine;
pub use owned::Owned;
pub use works::{Works, deed};

use std::sync::{Arc, Weak};

use ofi_api::{CompletionFlags, Context, DeferredOp, Errno, Error, Result, UnexpectedEvent, Watcher};

use crate::cntr::Cntr;

/// The counter that counts an operation's completion, instead of its endpoint's.
pub type Completion = Option<Weak<Cntr>>;

/// An endpoint, as requests see it.
pub trait DeferredTarget: Send + Sync {
    /// Posts a triggered operation, which then completes like any other.
    ///
    /// # Errors
    /// Those of the call.
    fn post(&self, op: &DeferredOp<'_>) -> Result<()>;

    /// Posts a triggered remote access that was checked when it was submitted.
    ///
    /// # Errors
    /// Those of the call.
    fn access(&self, access: &Access) -> Result<()>;

    /// Posts deferred work; `completion` counts its completion.
    ///
    /// # Errors
    /// Those of the call.
    fn post_work(&self, op: &DeferredOp<'_>, completion: Option<Arc<Cntr>>) -> Result<()>;

    /// Reports an accepted operation that could not be posted, or was cancelled.
    fn lost(&self, context: Context, flags: CompletionFlags, error: Errno);
}

/// The action of a request.
pub enum Deed {
    /// A common triggered remote access.
    Access(Arc<dyn DeferredTarget>, Access),
    /// Another triggered operation.
    Triggered(Arc<dyn DeferredTarget>, Box<Owned>),
    /// Deferred work on an endpoint.
    Work(Weak<dyn DeferredTarget>, Box<Owned>, Completion),
    /// Sets a counter.
    Set(Weak<Cntr>, u64),
    /// Adds to a counter.
    Add(Weak<Cntr>, u64),
    /// Reports an unexpected message to the application. Not a request of the application, but it too waits until no
    /// lock is held.
    Tell(Watcher, UnexpectedEvent),
}

impl Deed {
    /// For a triggered operation: its endpoint, and the content of its completion.
    fn triggered(&self) -> Option<(&Arc<dyn DeferredTarget>, Context, CompletionFlags)> {
        match self {
            Self::Access(target, access) => Some((target, access.context(), access.flags())),
            Self::Triggered(target, op) => Some((target, op.context(), op.flags())),
            Self::Work(..) | Self::Set(..) | Self::Add(..) | Self::Tell(..) => None,
        }
    }
}

/// A request that waits.
pub struct Item {
    /// Its name.
    pub id: u64,
    /// When it is due.
    pub threshold: u64,
    /// Its action.
    pub deed: Deed,
}

impl Item {
    /// Whether it is due at these numbers of its counter. Failures count only for deferred work.
    fn is_due(&self, value: u64, errors: u64) -> bool {
        let reached = match self.deed {
            Deed::Access(..) | Deed::Triggered(..) => value,
            _ => value.saturating_add(errors),
        };
        reached >= self.threshold
    }

    /// The endpoint that it is for.
    fn target(&self) -> Option<*const ()> {
        match &self.deed {
            Deed::Access(target, _) | Deed::Triggered(target, _) => Some(Arc::as_ptr(target).cast()),
            Deed::Work(target, ..) => Some(target.as_ptr().cast()),
            Deed::Set(..) | Deed::Add(..) | Deed::Tell(..) => None,
        }
    }

    /// Executes it. Returns `false` if the endpoint has no room.
    #[inline]
    fn start(&self) -> bool {
        let posted = match &self.deed {
            Deed::Access(target, access) => target.access(access),
            Deed::Triggered(target, op) => op.with(|op| target.post(op)),
            Deed::Work(target, op, completion) => work(target, op, completion.as_ref()),
            Deed::Set(counter, value) => {
                if let Some(counter) = counter.upgrade() {
                    counter.store(*value);
                }
                Ok(())
            }
            Deed::Add(counter, value) => {
                if let Some(counter) = counter.upgrade() {
                    counter.raise(*value);
                }
                Ok(())
            }
            Deed::Tell(watcher, event) => {
                watcher(*event);
                Ok(())
            }
        };
        match posted {
            Ok(()) => true,
            Err(error) => self.not_posted(&error),
        }
    }

    #[cold]
    fn not_posted(&self, error: &Error) -> bool {
        if error.is_again() {
            return false;
        }
        if let Some((target, context, flags)) = self.deed.triggered() {
            target.lost(context, flags, error.errno());
        }
        true
    }
}

/// Posts deferred work. `FI_EAGAIN` if the endpoint has no room; other errors are counted or reported.
#[cold]
fn work(target: &Weak<dyn DeferredTarget>, op: &Owned, completion: Option<&Weak<Cntr>>) -> Result<()> {
    let counter = completion.and_then(Weak::upgrade);
    let target = target.upgrade();
    let posted = match &target {
        Some(target) => op.with(|op| target.post_work(op, counter.clone())),
        None => Err(Error::new(Errno::ECANCELED)), // its endpoint was closed
    };
    match (posted, counter, target) {
        (Err(error), ..) if error.is_again() => return Err(error),
        (Err(_), Some(counter), _) => counter.count_error(),
        // Nothing else would report it.
        (Err(error), None, Some(target)) => target.lost(op.context(), op.flags(), error.errno()),
        (Ok(()), ..) | (Err(_), None, None) => {}
    }
    Ok(())
}
