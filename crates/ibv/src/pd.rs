//! Protection domains, and registered memory.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::device::Context;
use crate::error::{Error, Result};
use crate::library::{reg_dmabuf_mr, verbs};

/// A protection domain: queue pairs can use only memory of their own domain.
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
            // SAFETY: allocated above; no object of the domain exists, because its objects hold it.
            unsafe { (verbs.ibv_dealloc_pd)(self.pd.as_ptr()) };
        }
    }
}

/// The allowed accesses to registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Local requests read and write it. If its pages cannot be written, as in a read-only mapping, requests may only
    /// read it.
    Local,
    /// As `Local`, but memory whose pages cannot be written is refused.
    LocalWrite,
    /// Peers that know its key also read it.
    RemoteRead,
    /// Peers that know its key also write it.
    RemoteWrite,
    /// Peers that know its key also read and write it.
    RemoteReadWrite,
    /// Peers that know its key also read and write it, and execute atomics on it through this device.
    RemoteAtomic,
}

impl Access {
    pub(crate) fn flags(self) -> c_int {
        match self {
            Self::Local | Self::LocalWrite => IBV_ACCESS_LOCAL_WRITE,
            Self::RemoteRead => IBV_ACCESS_REMOTE_READ,
            Self::RemoteWrite => IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
            Self::RemoteReadWrite => {
                IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE
            }
            Self::RemoteAtomic => {
                let accesses = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
                IBV_ACCESS_LOCAL_WRITE | accesses
            }
        }
    }
}

/// Memory that is registered with a device. Its pages stay pinned until this is dropped.
pub struct MemoryRegion {
    mr: NonNull<ibv_mr>,
    pd: Arc<ProtectionDomain>,
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
    /// The memory stays mapped until this is dropped. Meanwhile, no Rust reference is used to memory that a peer or a
    /// work request changes.
    pub unsafe fn new(pd: &Arc<ProtectionDomain>, addr: *mut u8, len: usize, access: Access) -> Result<Self> {
        // SAFETY: the caller's promise.
        match unsafe { Self::register(pd, addr, len, access.flags()) } {
            // SAFETY: the caller's promise.
            Err(error) if error.errno == libc::EFAULT && access == Access::Local => unsafe {
                Self::register(pd, addr, len, 0)
            },
            made => made,
        }
    }

    /// Registers memory that peers access only through memory windows to parts of it ([`crate::MemoryWindow`]): the
    /// region's own key grants no access.
    ///
    /// # Errors
    /// As [`MemoryRegion::new`].
    ///
    /// # Safety
    /// As [`MemoryRegion::new`].
    pub unsafe fn for_windows(pd: &Arc<ProtectionDomain>, addr: *mut u8, len: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::register(pd, addr, len, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) }
    }

    /// Registers `len` bytes at `offset` of a dma-buf, such as a GPU's memory. Requests address its first byte by
    /// `iova`.
    ///
    /// # Errors
    /// `ENOSYS` if libibverbs is older than 34; `EOPNOTSUPP` if the device does not support dma-bufs; otherwise the
    /// errors of ibv_reg_dmabuf_mr(3).
    pub fn of_dmabuf(
        pd: &Arc<ProtectionDomain>,
        (fd, offset): (BorrowedFd<'_>, u64),
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Self> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let register = reg_dmabuf_mr()?;
        // SAFETY: the domain exists. The device holds the dma-buf, which keeps its memory alive, and no Rust reference
        // to that memory exists.
        let mr = unsafe { register(pd.as_ptr(), offset, len, iova, fd.as_raw_fd(), access.flags()) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last(CALL))?;
        Ok(Self::made(pd, mr))
    }

    /// # Safety
    /// As [`MemoryRegion::new`].
    unsafe fn register(pd: &Arc<ProtectionDomain>, addr: *mut u8, len: usize, flags: c_int) -> Result<Self> {
        // SAFETY: the domain exists; the caller promises the memory.
        let mr = unsafe { (verbs()?.ibv_reg_mr)(pd.as_ptr(), addr.cast(), len, flags) };
        let mr = NonNull::new(mr).ok_or_else(|| Error::last("ibv_reg_mr"))?;
        Ok(Self::made(pd, mr))
    }

    fn made(pd: &Arc<ProtectionDomain>, mr: NonNull<ibv_mr>) -> Self {
        // SAFETY: the registration exists, and its fields do not change.
        let made = unsafe { mr.as_ref() };
        Self { mr, pd: Arc::clone(pd), lkey: made.lkey, rkey: made.rkey }
    }

    pub(crate) fn pd(&self) -> &Arc<ProtectionDomain> {
        &self.pd
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_mr {
        self.mr.as_ptr()
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
