//! Device memory of other processes of this host, which the driver maps here (CUDA IPC).
//!
//! A mapping opens the whole allocation, for reading and writing, and that of a small allocation opens the block that
//! the driver has cut it from. So its owner gives a handle only of memory that has blocks of its own, and that a
//! registration covers whole ([`RegisteredDevice::handle`]), and only to peers that may read and write it. The process
//! that maps it checks what its owner claims against the driver's length of the allocation.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use ofi_api::{Errno, Error, MrAttr, Result};

use super::RegisteredDevice;
use super::cuda::{Cuda, PeerMemory};
use crate::config::HMEM_DISABLE_P2P;

/// The length in bytes of the driver's blocks. Allocations of other lengths share one with others, and a handle of
/// theirs opens all of it (CUDA C++ Programming Guide, Interprocess Communication).
const BLOCK: u64 = 2 << 20;

/// Whether a registration of `len` bytes is all that a handle of its allocation of `whole` bytes opens.
const fn covers(len: u64, whole: u64) -> bool {
    len == whole && whole.is_multiple_of(BLOCK)
}

impl Cuda {
    /// Whether a handle of the allocation at `at` opens these `len` bytes and nothing beside them.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that belongs to no device.
    pub fn handle_opens_only(&self, at: u64, len: u64) -> Result<bool> {
        let (base, whole) = self.allocation(at)?;
        Ok(at == base && covers(len, whole))
    }
}

/// The name of a registration's device memory in other processes of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceHandle {
    /// The UUID of the device.
    pub uuid: [u8; 16],
    /// The driver's handle of the allocation.
    pub handle: [u8; 64],
    /// The offset of the registration's first byte in the allocation.
    pub offset: u64,
}

impl RegisteredDevice {
    /// The handle of the registration's memory. `None` if it is not exactly one whole allocation of a multiple of
    /// 2 MiB, if the driver has no handle of it, or if the user forbids that (`FI_HMEM_DISABLE_P2P`).
    pub fn handle(&self, attr: &MrAttr<'_>) -> Option<DeviceHandle> {
        let [piece] = attr.pieces() else { return None };
        let (cuda, at) = (self.stager().cuda(), piece.addr.addr() as u64);
        if HMEM_DISABLE_P2P.get() || !cuda.handle_opens_only(at, piece.len as u64).ok()? {
            return None;
        }
        let exported = cuda.export(at).inspect_err(|error| {
            tracing::info!(
                target: "ofi::core::hmem", %error,
                "no handle of a device's memory: its owner copies it for local peers"
            );
        });
        let (handle, offset) = exported.ok()?;
        Some(DeviceHandle { uuid: cuda.uuid(), handle, offset })
    }
}

/// Device memory of another process, mapped until this is dropped.
#[derive(Debug)]
pub struct MappedPeerDevice {
    memory: ManuallyDrop<PeerMemory>,
    /// A copy did not end, so the mapping stays.
    is_lost: AtomicBool,
}

impl MappedPeerDevice {
    /// Maps `len` bytes.
    ///
    /// # Errors
    /// `FI_ENODEV` if this process has no such device; `FI_EINVAL` for a range beyond the other process's allocation;
    /// the driver's errors.
    pub fn open(handle: &DeviceHandle, len: u64) -> Result<Self> {
        let Some(cuda) = Cuda::of_uuid(&handle.uuid)? else {
            return Err(Error::with(
                Errno::ENODEV,
                "this process does not see the device of a peer's memory",
            ));
        };
        let memory = ManuallyDrop::new(cuda.import(handle.handle, handle.offset, len)?);
        Ok(Self { memory, is_lost: AtomicBool::new(false) })
    }

    /// The address of the first byte in this process.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Copies between this memory and any other, and waits.
    ///
    /// # Errors
    /// The driver's; part of the bytes may have been copied.
    ///
    /// # Safety
    /// One range lies in this memory, and the other is lent to the caller: memory of this process or of its devices.
    pub unsafe fn copy(&self, to: u64, from: u64, len: usize) -> Result<()> {
        // SAFETY: the caller's promise; the mapping stays if the copy does not end.
        let copied = unsafe { self.memory.device().copy(to, from, len as u64) }.and_then(|copy| copy.wait());
        copied.inspect_err(|_| self.is_lost.store(true, Ordering::Relaxed))
    }
}

impl Drop for MappedPeerDevice {
    fn drop(&mut self) {
        if !*self.is_lost.get_mut() {
            // SAFETY: dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_opens_no_more_than_the_registration() {
        assert!(covers(BLOCK, BLOCK) && covers(3 * BLOCK, 3 * BLOCK));
        assert!(!covers(4096, 4096), "other allocations lie in the same block");
        assert!(!covers(BLOCK + 4096, BLOCK + 4096));
        assert!(!covers(BLOCK, 2 * BLOCK));
    }
}
