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

    /// Whether something was left since the last call.
    fn has_changed(&self) -> bool {
        let begun = self.begun.load(Ordering::Relaxed);
        self.seen.swap(begun, Ordering::Relaxed) != begun
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
        if self.has_changed() && (!self.check.keep() || self.check_later()) {
            return;
        }
        if let Some(endpoint) = self.endpoint.upgrade() {
            endpoint.drive();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;
    use std::time::{Duration, Instant};

    use ofi_api::{CqBuffer, CqErrorEntry};

    use super::*;
    use crate::source::{Arm, Polled};
    use crate::wake_fd::WakeFd;

    /// Counts how often it is driven; nothing else is asked of it here.
    #[derive(Default)]
    struct Driven(AtomicU64);

    impl Source for Driven {
        fn drive(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
        fn poll(&self, _slot: usize, _buffer: &mut CqBuffer<'_>, _filled: usize) -> Polled {
            unreachable!()
        }
        fn take_error(&self, _slot: usize) -> Option<CqErrorEntry> {
            unreachable!()
        }
        fn is_empty(&self, _slot: usize) -> bool {
            unreachable!()
        }
        fn stand_in(&self) -> Arm {
            unreachable!()
        }
        fn attend(&self) {
            unreachable!()
        }
        fn give_back(&self) {
            unreachable!()
        }
        fn arm(&self, _slot: usize) -> Arm {
            unreachable!()
        }
        fn prepare_to_block(&self, _wake: Option<&WakeFd>) -> Arm {
            unreachable!()
        }
        fn wait_fd(&self) -> Option<RawFd> {
            unreachable!()
        }
    }

    fn unattended() -> (Arc<Unattended>, Arc<Driven>) {
        let endpoint = Arc::<Driven>::default();
        let weak: Weak<dyn Source> = Arc::downgrade(&endpoint) as _;
        (Unattended::of(weak), endpoint)
    }

    #[test]
    fn what_is_left_is_driven_although_nobody_polls() {
        let (unattended, endpoint) = unattended();
        assert!(unattended.begin());
        let start = Instant::now();
        while endpoint.0.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(20), "nothing drives it");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_what_has_not_changed_is_driven() {
        let (unattended, _endpoint) = unattended();
        for _ in 0..3 {
            assert!(unattended.begin());
            unattended.end(); // polled: the thread finds nothing due
            assert!(unattended.has_changed());
        }
        assert!(!unattended.has_changed());
    }
}
