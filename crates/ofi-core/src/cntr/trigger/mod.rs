//! Triggered operations and deferred work: what waits for a counter, and how it starts.
//!
//! A request waits in its counter ([`Line`]). An application that raises the counter over the first threshold starts
//! what is due. An endpoint that does so moves it to the domain's [`Works`] and flags it: its lock is held, so nothing
//! starts there. The flag is looked at where no lock is held: after a poll, after a post, and when the application
//! changes a counter.
//!
//! Invariants:
//! I1. `Line::first` is the lowest threshold that waits, `u64::MAX` for none. Whoever adds a request stores it first
//!     and then looks at the counter; whoever raises the counter then looks at it. Both in `SeqCst` order: one sees the
//!     other.
//! I2. One thread at a time starts requests (`running`), in the order in which they became due; those of one endpoint
//!     keep that order also when it says `FI_EAGAIN`, and hold up no other endpoint.
//! I3. What waits keeps no counter alive. It shares its endpoint, which takes its triggered operations back when it
//!     closes ([`Works::forget`]); deferred work does not, and fails when it is due.

mod access;
mod line;
mod owned;
mod works;

pub use access::Access;
pub use line::Line;
pub use owned::Owned;
pub use works::{Works, deed};

use std::sync::{Arc, Weak};

use ofi_api::{CompletionFlags, Context, DeferredOp, Errno, Error, Result, UnexpectedEvent, Watcher};

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

    /// Posts a triggered remote access that was checked when it was given.
    ///
    /// # Errors
    /// Those of the call.
    fn access(&self, access: &Access) -> Result<()>;

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
    /// A triggered remote access as most are.
    Access(Arc<dyn Target>, Access),
    /// Another triggered operation.
    Triggered(Arc<dyn Target>, Box<Owned>),
    /// Deferred work on an endpoint.
    Work(Weak<dyn Target>, Box<Owned>, Completion),
    /// Sets a counter.
    Set(Weak<Cntr>, u64),
    /// Adds to a counter.
    Add(Weak<Cntr>, u64),
    /// Tells the application of an unexpected message: no request of its own, but it too waits until no lock is held.
    Tell(Watcher, UnexpectedEvent),
}

impl Deed {
    /// For a triggered operation: whose it is, and what its completion says.
    fn triggered(&self) -> Option<(&Arc<dyn Target>, Context, CompletionFlags)> {
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
    /// What it does.
    pub deed: Deed,
}

impl Item {
    /// Whether it is due at these numbers of its counter. Failures count for deferred work only.
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

    /// Does it. `false` if the endpoint has no room.
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

/// Posts deferred work. `FI_EAGAIN` if the endpoint has no room; what else went wrong is counted or told.
#[cold]
fn work(target: &Weak<dyn Target>, op: &Owned, completion: Option<&Weak<Cntr>>) -> Result<()> {
    let counter = completion.and_then(Weak::upgrade);
    let target = target.upgrade();
    let posted = match &target {
        Some(target) => op.with(|op| target.post_work(op, counter.clone())),
        None => Err(Error::new(Errno::ECANCELED)), // its endpoint was closed
    };
    match (posted, counter, target) {
        (Err(error), ..) if error.is_again() => return Err(error),
        (Err(_), Some(counter), _) => counter.count_error(),
        // Nobody else would ever hear of it.
        (Err(error), None, Some(target)) => target.lost(op.context(), op.flags(), error.errno()),
        (Ok(()), ..) | (Err(_), None, None) => {}
    }
    Ok(())
}
