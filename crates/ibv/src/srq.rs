//! Shared receive queues.

use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use crate::abi::*;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::pd::ProtectionDomain;
use crate::work::{MAX_PIECES, Segment, gather};

/// A queue of receives that several queue pairs share.
pub struct SharedReceiveQueue {
    srq: NonNull<ibv_srq>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for SharedReceiveQueue {}
// SAFETY: as above.
unsafe impl Sync for SharedReceiveQueue {}

impl SharedReceiveQueue {
    /// Creates a queue of `size` receives of up to `pieces` pieces.
    ///
    /// # Errors
    /// The errors of ibv_create_srq(3).
    pub fn new(pd: &Arc<ProtectionDomain>, size: usize, pieces: u32) -> Result<Arc<Self>> {
        let max_wr = u32::try_from(size).unwrap_or(u32::MAX);
        let mut attr = ibv_srq_init_attr { srq_context: null_mut(), max_wr, max_sge: pieces, srq_limit: 0 };
        // SAFETY: the domain exists, and the structure is that of the interface.
        let srq = unsafe { (verbs()?.ibv_create_srq)(pd.as_ptr(), &mut attr) };
        let srq = NonNull::new(srq).ok_or_else(|| Error::last("ibv_create_srq"))?;
        Ok(Arc::new(Self { srq, pd: Arc::clone(pd) }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_srq {
        self.srq.as_ptr()
    }

    /// Distinguishes the queue from others while it exists ([`crate::AsyncEvent::SharedLimit`]).
    pub fn number(&self) -> usize {
        self.srq.as_ptr() as usize
    }

    /// Requests one [`crate::AsyncEvent::SharedLimit`] when fewer than `limit` receives are left.
    ///
    /// # Errors
    /// The errors of ibv_modify_srq(3): `EINVAL` for more than the queue holds.
    pub fn alert_below(&self, limit: u32) -> Result<()> {
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
        // SAFETY: the queue exists, and the structure is that of the interface.
        match unsafe { (verbs()?.ibv_modify_srq)(self.srq.as_ptr(), &mut attr, IBV_SRQ_LIMIT) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_modify_srq", errno)),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full.
    ///
    /// # Safety
    /// The segments are registered for local access, and no other code uses them until the receive ends or the queue is
    /// gone.
    pub unsafe fn post(&self, id: u64, to: &[Segment]) -> Result<()> {
        let Some(post) = self.pd.context().ops().post_srq_recv else {
            return Err(Error::of("ibv_post_srq_recv", libc::ENOSYS));
        };
        let mut pieces = [ibv_sge::default(); MAX_PIECES];
        let num_sge = gather("ibv_post_srq_recv", &mut pieces, to)?;
        let mut request = ibv_recv_wr { wr_id: id, next: null_mut(), sg_list: pieces.as_mut_ptr(), num_sge };
        let mut bad = null_mut();
        // SAFETY: a queue of this driver, and a request that the driver copies.
        match unsafe { post(self.srq.as_ptr(), &mut request, &mut bad) } {
            0 => Ok(()),
            errno => Err(Error::of("ibv_post_srq_recv", errno)),
        }
    }
}

impl Drop for SharedReceiveQueue {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above; no queue pair on it exists, because queue pairs hold it.
            unsafe { (verbs.ibv_destroy_srq)(self.srq.as_ptr()) };
        }
    }
}
