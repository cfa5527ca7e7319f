//! Protection domains, and memory that a device may use.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::verbs;

/// What belongs together: queue pairs use memory of their domain only.
pub struct ProtectionDomain {
    pd: NonNull<ibv_pd>,
    context: Context,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates one.
    ///
    /// # Errors
    /// Those of ibv_alloc_pd(3).
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
            // SAFETY: allocated above; everything of it is gone, as it would hold this.
            unsafe { (verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}

/// What a device may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This end's requests read and write it.
    Local,
    /// Peers that know its key read it, too.
    RemoteRead,
    /// Peers that know its key write it, too.
    RemoteWrite,
    /// Peers that know its key read and write it, too.
    RemoteReadWrite,
    /// Peers that know its key read and write it, and have this device change its numbers.
    RemoteAtomic,
}

/// Memory that is registered with a device. Its pages stay where they are until this is dropped.
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
    /// Those of ibv_reg_mr(3).
    ///
    /// # Safety
    /// The memory stays mapped until this is dropped, and no Rust reference to it is used for what a peer or a work
    /// request changes meanwhile.
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
        // SAFETY: the domain is there; the memory is the caller's promise.
        let mr = unsafe { (verbs()?.ibv_reg_mr)(pd.as_ptr(), addr.cast(), len, flags) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        // SAFETY: a registration, which is not changed as long as it is there.
        let made = unsafe { mr.as_ref() };
        let (lkey, rkey) = (made.lkey, made.rkey);
        Ok(Self { mr, _pd: Arc::clone(pd), lkey, rkey })
    }

    /// Names it in this end's work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Names it in a peer's.
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
