//! Address handles: the destinations of datagrams.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::device::Gid;
use crate::error::{Error, Result};
use crate::library::verbs;
use crate::pd::ProtectionDomain;

/// A route to a port. Requests copy the data that they need, but the handle must exist until they complete.
pub struct AddressHandle {
    ah: NonNull<ibv_ah>,
    _pd: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for AddressHandle {}
// SAFETY: as above.
unsafe impl Sync for AddressHandle {}

/// The parameters of a route to a port.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The port's GID. Without one, packets have no route header and stay in their subnet (InfiniBand only).
    pub gid: Option<Gid>,
    /// The index of the sender's GID in its port's table.
    pub gid_index: u8,
    /// The maximum number of routers that a packet may pass.
    pub hops: u8,
    /// The port's LID (InfiniBand).
    pub lid: u16,
    /// The local device's port, counted from 1.
    pub port: u8,
}

impl AddressHandle {
    /// Creates a route from port 1 to the port with this GID.
    ///
    /// # Errors
    /// The errors of ibv_create_ah(3).
    pub fn new(pd: &Arc<ProtectionDomain>, to: Gid) -> Result<Arc<Self>> {
        Self::along(pd, Way { gid: Some(to), gid_index: 0, hops: 0, lid: 0, port: 1 })
    }

    /// Creates a route.
    ///
    /// # Errors
    /// The errors of ibv_create_ah(3).
    pub fn along(pd: &Arc<ProtectionDomain>, way: Way) -> Result<Arc<Self>> {
        let mut attr = ibv_ah_attr { dlid: way.lid, port_num: way.port, ..Default::default() };
        if let Some(to) = way.gid {
            let dgid = [0, 8].map(|at| u64::from_ne_bytes(std::array::from_fn(|byte| to.0[at + byte])));
            let (sgid_index, hop_limit) = (way.gid_index, way.hops);
            attr.grh = ibv_global_route { dgid, sgid_index, hop_limit, ..Default::default() };
            attr.is_global = 1;
        }
        // SAFETY: the domain exists, and the structure is that of the interface.
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
