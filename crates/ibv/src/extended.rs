//! The device functions that only an extended context has (`struct verbs_context`). In C they are inline functions of
//! the header, so the library has no symbols for them.

use crate::abi::*;
use crate::abi_ex::*;
use crate::device::Context;
use crate::error::{Error, Result};

/// The mark of a context that is part of an extended one (`__VERBS_ABI_IS_EXTENDED`).
const EXTENDED: usize = usize::MAX;

impl Context {
    /// The extended part, which precedes the context's structure, if both together have at least `len` bytes.
    fn extended(self, call: &'static str, len: usize) -> Result<&'static verbs_context_end> {
        let refused = || {
            let advice = "this device, or its driver in rdma-core, has no extended queues: use plain ones";
            Error::with(call, libc::EOPNOTSUPP, advice)
        };
        let context = self.as_ptr();
        // SAFETY: an open context; the field does not change.
        if unsafe { (*context).abi_compat }.addr() != EXTENDED {
            return Err(refused());
        }
        let end = context.cast::<verbs_context_end>().wrapping_sub(1);
        // SAFETY: an extended context has its length there, and is never closed.
        let has = unsafe { (*end).sz };
        if has < len {
            return Err(refused());
        }
        // SAFETY: the fields that the caller reads are within that length, and do not change.
        Ok(unsafe { &*end })
    }

    /// Creates an extended completion queue.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none; else the errors of ibv_create_cq_ex(3).
    ///
    /// # Safety
    /// The objects of `attr` belong to this device.
    pub(crate) unsafe fn create_cq_ex(self, attr: &mut ibv_cq_init_attr_ex) -> Result<*mut ibv_cq_ex> {
        const CALL: &str = "ibv_create_cq_ex";
        let create = self.extended(CALL, verbs_context_end::FROM_CQ)?.create_cq_ex;
        let create = create.ok_or_else(|| Error::of(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: an open context, and the caller's promise.
        let cq = unsafe { create(self.as_ptr(), attr) };
        if cq.is_null() { Err(Error::last(CALL)) } else { Ok(cq) }
    }

    /// Creates a queue pair with attributes that ibv_create_qp(3) does not take.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the device has none; else the errors of ibv_create_qp_ex(3).
    ///
    /// # Safety
    /// As [`Context::create_cq_ex`].
    pub(crate) unsafe fn create_qp_ex(self, attr: &mut ibv_qp_init_attr_ex) -> Result<*mut ibv_qp> {
        const CALL: &str = "ibv_create_qp_ex";
        let create = self.extended(CALL, verbs_context_end::FROM_QP)?.create_qp_ex;
        let create = create.ok_or_else(|| Error::of(CALL, libc::EOPNOTSUPP))?;
        // SAFETY: an open context, and the caller's promise.
        let qp = unsafe { create(self.as_ptr(), attr) };
        if qp.is_null() { Err(Error::last(CALL)) } else { Ok(qp) }
    }
}
