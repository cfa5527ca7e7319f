//! Receives of a shared context (`fi_srx_context`): one shared receive queue of the device. The next message on any
//! connection consumes the next receive.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Error, Piece, Result, RxAttr};
use ofi_core::domain::DomainPart;
use ofi_core::slots::{SlotId, Slots};

use super::memory::registered;
use super::{RECEIVE, SHARED};
use crate::Verbs;
use crate::domain::Local;
use crate::errors::failed;
use crate::few::Few;
use crate::rc::Segment;
use crate::rc::msg::SharedQueue;

/// A receive that is posted to the device.
struct Claimed {
    into: SlotId,
    segments: Few<Segment>,
    /// The registrations of its memory.
    _regions: Few<Local>,
}

/// A shared receive queue, with the memory of its posted receives.
pub struct SharedReceives {
    // The queue is dropped first: it uses the memory of posted receives.
    srq: Arc<dyn SharedQueue>,
    posted: Mutex<Slots<Claimed>>,
    domain: Arc<DomainPart<Verbs>>,
    is_closed: AtomicBool,
}

// SAFETY: segments are addresses, which only the device dereferences.
unsafe impl Send for Claimed {}

impl SharedReceives {
    /// Opens the queue of a context.
    ///
    /// # Errors
    /// The errors of ibv_create_srq(3).
    pub fn new(domain: &Arc<DomainPart<Verbs>>, attr: &RxAttr) -> Result<Self> {
        let device = domain.transport.connects()?;
        let limits = device.abilities().map_err(|error| failed(&error))?;
        let size = attr.size.clamp(1, SHARED.min(limits.shared));
        let srq =
            device.shared(size, attr.iov_limit.clamp(1, limits.pieces)).map_err(|error| failed(&error))?;
        let (posted, is_closed) = (Mutex::default(), AtomicBool::new(false));
        Ok(Self { srq, posted, domain: Arc::clone(domain), is_closed })
    }

    fn posted(&self) -> MutexGuard<'_, Slots<Claimed>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The device's queue.
    pub fn queue(&self) -> &Arc<dyn SharedQueue> {
        &self.srq
    }

    /// The context's receive that the device has completed; `None` for an unknown id.
    pub fn take(&self, id: SlotId) -> Option<SlotId> {
        self.posted().remove(id).map(|claimed| claimed.into)
    }

    /// Reposts a receive that a closed queue pair returned unused, or that an unwanted message consumed. If the device
    /// refuses it, returns the context's receive, which ends.
    pub fn put_back(&self, id: SlotId) -> Option<SlotId> {
        let mut guard = self.posted();
        let claimed = guard.get(id)?;
        // SAFETY: as in `post`: the receive has not ended.
        let posted = unsafe { self.srq.post(RECEIVE | id.to_wire(), &claimed.segments) };
        let error = posted.err()?;
        tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive cannot be posted again");
        guard.remove(id).map(|claimed| claimed.into)
    }

    /// Whether the application has closed the context.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl ofi_core::transport::SharedReceives for SharedReceives {
    unsafe fn post(&self, into: SlotId, pieces: &[Piece]) -> Result<()> {
        let whole = pieces.iter().map(|piece| piece.len).sum();
        let (segments, regions) = registered(&self.domain, pieces, whole).map_err(|error| failed(&error))?;
        let mut guard = self.posted();
        let id = guard.insert(Claimed { into, segments, _regions: regions });
        let posted = guard.get(id).map_or(Ok(()), |claimed| {
            // SAFETY: the memory was lent until the receive has completed, by the caller's promise, and is registered
            // for as long.
            unsafe { self.srq.post(RECEIVE | id.to_wire(), &claimed.segments) }
        });
        posted.map_err(|error| {
            guard.remove(id);
            if error.errno == libc::ENOMEM { Error::AGAIN } else { failed(&error) }
        })
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}
