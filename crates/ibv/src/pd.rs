//! Protection domains, and registered memory.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::verbs;

/// A protection domain: queue pairs use only memory of their domain.
pub struct ProtectionDomain {
    pd: NonNull<ibv_pd>,
    context: Context,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a domain.
    ///
    /// # Errors
    /// The errors of ibv_alloc_pd(3).
    pub fn new(context: Context) -> Result<Arc<Self>> {
        // SAFETY: an open context.
        let pd = unsafe { (verbs()?.ibv_alloc_pd)(context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Arc::new(Self { pd, context }))
    }

    /// Its device.
    pub fn context(&self) -> Context {
        self.context
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_pd {
        self.pd.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: allocated above; no object of the domain exists, because they hold it.
            unsafe { (verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}

/// The allowed accesses to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Requests of this end read and write it.
    Local,
    /// Peers that know its key also read it.
    RemoteRead,
    /// Peers that know its key also write it.
    RemoteWrite,
    /// Peers that know its key also read and write it.
    RemoteReadWrite,
    /// Peers that know its key also read and write it, and have this device execute atomics on it.
    RemoteAtomic,
}

/// Memory that is registered with a device. Its pages stay pinned until this is dropped.
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    _pd: Arc<ProtectionDomain>,
    lkey: u32,
    rkey: u32,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers memory.
    ///
    /// # Errors
    /// The errors of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The memory stays mapped until this is dropped, and meanwhile no Rust reference is used to memory that a peer or
    /// a work request changes.
    pub unsafe fn new(pd: &Arc<ProtectionDomain>, addr: *mut u8, len: usize, access: Access) -> Result<Self> {
        let flags = match access {
            Access::Local => IBV_ACCESS_LOCAL_WRITE,
            Access::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Access::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Access::RemoteReadWrite => {
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
            }
            Access::RemoteAtomic => {
                let accesses = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
                IBV_ACCESS_LOCAL_WRITE | accesses
            }
        };
        // SAFETY: the domain exists; the caller promises the memory.
        let mr = unsafe { (verbs()?.ibv_reg_mr)(pd.as_ptr(), addr.cast(), len, flags) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        // SAFETY: the registration exists, and its fields do not change.
        let made = unsafe { mr.as_ref() };
        let (lkey, rkey) = (made.lkey, made.rkey);
        Ok(Self { mr, _pd: Arc::clone(pd), lkey, rkey })
    }

    /// Its key in this end's work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Its key in peers' work requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Ok(verbs) = verbs() {
            // SAFETY: registered above.
            unsafe { (verbs.ibv_dereg_mr)(self.mr.as_ptr()) };
        }
    }
}
