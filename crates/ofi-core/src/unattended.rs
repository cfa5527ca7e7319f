//! What an endpoint has left to its next poll although the application waits for none of it, such as injected messages
//! that gather: if no poll follows, the thread of [`crate::rearm`] polls in place of the application.
//!
//! The thread takes the endpoint's lock only if nothing has changed since it checked the last time. So it stays out of
//! the way of an application that polls, and one that does not is helped after two [`REARM_INTERVAL`]s at most.
//!
//! [`REARM_INTERVAL`]: crate::rearm::REARM_INTERVAL

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ofi_ring::deferred_check::DeferredCheck;

use crate::rearm::{self, Rearm};
use crate::source::Source;

/// What one endpoint has left to its next poll. [`Unattended::begin`] and [`Unattended::end`] are called under the
/// endpoint's lock.
pub struct Unattended {
    check: Arc<DeferredCheck>,
    /// How often something was left.
    begun: AtomicU64,
    /// That number at the thread's last check.
    seen: AtomicU64,
    endpoint: Weak<dyn Source>,
    /// This object.
    own: Weak<Self>,
}

impl Unattended {
    /// Nothing is left. `endpoint` is driven in place of the application.
    pub fn of(endpoint: Weak<dyn Source>) -> Arc<Self> {
        Arc::new_cyclic(|own| Self {
            check: Arc::default(),
            begun: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            endpoint,
            own: Weak::clone(own),
        })
    }

    /// Something is left to the next poll. `false`: there is no thread that would poll.
    #[must_use]
    pub fn begin(&self) -> bool {
        self.begun.store(self.begun.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        !self.check.begin() || self.check_later()
    }

    /// Nothing is left any more.
    pub fn end(&self) {
        self.check.end();
    }

    fn check_later(&self) -> bool {
        let is_listed = rearm::later(&(Weak::clone(&self.own) as _), &self.check);
        if !is_listed {
            self.check.end();
            let _listed_by_nobody = self.check.look();
        }
        is_listed
    }
}

impl Rearm for Unattended {
    fn rearm(&self) {
        let begun = self.begun.load(Ordering::Relaxed);
        let is_new = self.seen.swap(begun, Ordering::Relaxed) != begun;
        if is_new && (!self.check.keep() || self.check_later()) {
            return;
        }
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.drive();
        }
    }
}
