//! Memory windows: keys for parts of registered memory. Requests bind and invalidate them, without calls into the
//! kernel that pin and unpin pages.

use std::ptr::NonNull;
use std::sync::Arc;

use crate::abi::*;
use crate::error::{Error, Result};
use crate::pd::{Access, MemoryRegion, ProtectionDomain};
use crate::qp::{Extra, QueuePair};
use crate::work::Post;

/// How a window is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Bound by a call. Any peer in the protection domain that knows its key can use it (type 1).
    Call,
    /// Bound by a request. Only the peer of the queue pair that it was bound on can use it, and a request on that queue
    /// pair ends the binding (type 2).
    Request,
}

/// A part of registered memory, and peers' rights to it.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The region, which was registered for windows ([`MemoryRegion::for_windows`]).
    pub region: &'a Arc<MemoryRegion>,
    /// The first byte.
    pub addr: *mut u8,
    /// Length in bytes. 0 unbinds a window that is bound by a call.
    pub len: usize,
    /// Peers' rights. Writes and atomics require a region with local writes, which regions for windows have.
    pub access: Access,
}

/// A window, bound or not.
///
/// Drop it before the queue pair that it was bound on is destroyed: some devices wait there until the window is gone.
pub struct MemoryWindow {
    mw: NonNull<ibv_mw>,
    kind: WindowKind,
    /// The regions that it was bound to. A region must not be deregistered while a window is bound to it, and only the
    /// caller knows when a binding has ended.
    regions: Vec<Arc<MemoryRegion>>,
    pd: Arc<ProtectionDomain>,
}

// SAFETY: functions of libibverbs may be called from any thread.
unsafe impl Send for MemoryWindow {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for MemoryWindow {}

impl MemoryWindow {
    /// Allocates a window that is not bound.
    ///
    /// # Errors
    /// The errors of ibv_alloc_mw(3): `EOPNOTSUPP` if the device has no windows.
    pub fn new(pd: &Arc<ProtectionDomain>, kind: WindowKind) -> Result<Self> {
        const CALL: &str = "ibv_alloc_mw";
        let alloc = pd.context().ops().alloc_mw.ok_or_else(|| Error::of(CALL, libc::EOPNOTSUPP))?;
        let number = match kind {
            WindowKind::Call => IBV_MW_TYPE_1,
            WindowKind::Request => IBV_MW_TYPE_2,
        };
        // SAFETY: the domain exists, and the function is its driver's.
        let mw = unsafe { alloc(pd.as_ptr(), number) };
        let mw = NonNull::new(mw).ok_or_else(|| Error::last(CALL))?;
        Ok(Self { mw, kind, regions: Vec::new(), pd: Arc::clone(pd) })
    }

    /// The key of the last binding, for peers. It is valid once the bind request has succeeded.
    pub fn rkey(&self) -> u32 {
        // SAFETY: the window exists; only calls with `&mut self` change it.
        unsafe { (*self.mw.as_ptr()).rkey }
    }

    /// Posts a bind request on a queue pair, which replaces an earlier binding, and returns the new key. Later requests
    /// on the queue pair are executed after it. Binding to a part that the region does not allow ends with
    /// [`crate::Status::BIND`], and the queue pair fails.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; `EXDEV` if the region or queue pair belongs to another domain; the driver's
    /// errors.
    pub fn bind(&mut self, qp: &QueuePair, id: u64, part: Part<'_>, how: Post) -> Result<u32> {
        const CALL: &str = "ibv_bind_mw";
        if !Arc::ptr_eq(&self.pd, part.region.pd()) || !Arc::ptr_eq(&self.pd, &qp.attr.pd) {
            return Err(Error::with(
                CALL,
                libc::EXDEV,
                "window, region and queue pair must belong to one domain",
            ));
        }
        let bind_info = ibv_mw_bind_info {
            mr: part.region.as_ptr(),
            addr: part.addr as u64,
            length: part.len as u64,
            mw_access_flags: (part.access.flags() & !IBV_ACCESS_LOCAL_WRITE) as u32,
        };
        let mw = self.mw.as_ptr();
        match self.kind {
            WindowKind::Call => {
                let bind = self.pd.context().ops().bind_mw;
                let bind = bind.ok_or_else(|| Error::of(CALL, libc::EOPNOTSUPP))?;
                let mut request = ibv_mw_bind { wr_id: id, send_flags: how.flags(), bind_info };
                // SAFETY: window, queue pair and region exist, of one driver; the window keeps the region.
                match unsafe { bind(qp.qp, mw, &mut request) } {
                    0 => {}
                    errno => return Err(Error::of(CALL, errno)),
                }
            }
            WindowKind::Request => {
                let rkey = next_key(self.rkey());
                qp.post_bare(id, IBV_WR_BIND_MW, how, Extra::Bind(ibv_wr_bind { mw, rkey, bind_info }))?;
                // SAFETY: the window exists, and nothing else changes it now.
                unsafe { (*mw).rkey = rkey };
            }
        }
        if !self.regions.iter().any(|region| Arc::ptr_eq(region, part.region)) {
            self.regions.push(Arc::clone(part.region));
        }
        Ok(self.rkey())
    }
}

impl QueuePair {
    /// Posts a request that ends a window's binding ([`WindowKind::Request`]). Once it has completed, `rkey` no longer
    /// gives access.
    ///
    /// # Errors
    /// `ENOMEM` if the queue is full; the driver's errors.
    pub fn invalidate(&self, id: u64, rkey: u32, how: Post) -> Result<()> {
        self.post_bare(id, IBV_WR_LOCAL_INV, how, Extra::Invalid(rkey))
    }
}

/// The key of the next binding: the owner of a window increments the lowest byte (`ibv_inc_rkey`).
const fn next_key(rkey: u32) -> u32 {
    (rkey & !0xFF) | (rkey.wrapping_add(1) & 0xFF)
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        if let Some(dealloc) = self.pd.context().ops().dealloc_mw {
            // SAFETY: allocated above; its regions still exist.
            unsafe { dealloc(self.mw.as_ptr()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_byte_of_a_key_counts_bindings() {
        assert_eq!([0x1200, 0x12FE, 0x12FF].map(next_key), [0x1201, 0x12FF, 0x1200]);
    }
}
