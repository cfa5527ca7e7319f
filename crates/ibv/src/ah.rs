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

/// How to get to a port.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// Its GID; without one, packets have no route header and stay in their subnet (InfiniBand).
    pub gid: Option<Gid>,
    /// Where in its own port's table the sender's GID is.
    pub gid_index: u8,
    /// Routers that a packet passes at most.
    pub hops: u8,
    /// The port's LID (InfiniBand).
    pub lid: u16,
    /// The port of this end's device, from 1 on.
    pub port: u8,
}

impl AddressHandle {
    /// The way from port 1 to the port that has this GID.
    ///
    /// # Errors
    /// Those of ibv_create_ah(3).
    pub fn new(pd: &Arc<ProtectionDomain>, to: Gid) -> Result<Arc<Self>> {
        Self::along(pd, Way { gid: Some(to), gid_index: 0, hops: 0, lid: 0, port: 1 })
    }

    /// A way.
    ///
    /// # Errors
    /// Those of ibv_create_ah(3).
    pub fn along(pd: &Arc<ProtectionDomain>, way: Way) -> Result<Arc<Self>> {
        let mut attr = ibv_ah_attr { dlid: way.lid, port_num: way.port, ..Default::default() };
        if let Some(to) = way.gid {
            let dgid = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| to.0[at + byte])));
            let (sgid_index, hop_limit) = (way.gid_index, way.hops);
            attr.grh = ibv_global_route { dgid, sgid_index, hop_limit, ..Default::default() };
            attr.is_global = 1;
        }
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
