//! Address handles: where a datagram goes.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::abi_ex::*;
use crate::device::Gid;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::pd::ProtectionDomain;

/// A way to a port. Requests that name it copy what they need, but those that are still under way want it to be there.
pub struct AddressHandle {
    ah: NonNull<ibv_ah>,
    _pd: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

impl AddressHandle {
    /// The way from port 1 to the port that has this GID.
    ///
    /// # Errors
    /// Those of ibv_create_ah(3).
    pub fn new(pd: &Arc<ProtectionDomain>, to: Gid) -> Result<Arc<Self>> {
        let dgid = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| to.0[at + byte])));
        let grh = ibv_global_route { dgid, ..Default::default() };
        let mut attr = ibv_ah_attr { grh, is_global: 1, port_num: 1, ..Default::default() };
        // SAFETY: the domain is there, and the structure is as the interface has it.
        let ah = unsafe { (verbs()?.ibv_create_ah)(pd.as_ptr(), &mut attr) };
        let ah = NonNull::new(ah).ok_or_else(|| Error::last("ibv_create_ah"))?;
        Ok(Arc::new(Self { ah, _pd: Arc::clone(pd) }))
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_ah {
        self.ah.as_ptr()
    }
}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: made above.
            unsafe { (verbs.ibv_destroy_ah)(self.ah.as_ptr()) };
        }
    }
}
