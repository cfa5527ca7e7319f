//! Kinds of memory.
//!
//! Rails transfer DRAM directly. The trait `Device` represents memory that the processor cannot access. Rails transfer
//! it if their NIC registers what `Device::dmabuf` exports; otherwise `staging` copies it in chunks to and from host
//! memory, which rails transfer. Processes of one host map the memory that `Device::export` describes. Another kind of
//! memory (a file, another vendor's accelerator) implements that trait.

#![allow(unsafe_code)] // copies of devices require a promise of the caller

#[cfg(feature = "cuda")]
pub mod cuda;

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use ofi::{Errno, Error, Result};
use ofi_core::hmem::cuda::await_copy;

use crate::topology::PciAddress;

/// The kind of memory of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// Host memory.
    #[default]
    Dram,
    /// Memory of the CUDA device with this ordinal in its process.
    Cuda(u32),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dram => write!(f, "dram"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// The data that another process of this host needs to map memory of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The host: the kernel's boot id.
    pub host: [u8; 16],
    /// The device, whatever its ordinal.
    pub device: [u8; 16],
    /// The driver's handle; [`Export::NO_HANDLE`] if it would open more than the region.
    pub handle: [u8; 64],
    /// Offset of the memory in the handle's allocation.
    pub offset: u64,
}

impl Export {
    /// In place of a handle: the memory cannot be mapped. Its host is named all the same.
    pub const NO_HANDLE: [u8; 64] = [0; 64];
}

/// The owner of memory that the processor does not touch.
///
/// Addresses belong to the device or to this process; the device distinguishes them. Calls come from any thread.
pub(crate) trait Device: Send + Sync + fmt::Debug {
    fn kind(&self) -> Kind;

    /// The device's PCI address, if it is known.
    fn pci(&self) -> Option<PciAddress>;

    /// Starts to copy.
    ///
    /// # Safety
    /// Both ranges are memory of a device or of this process, and stay until the copy [is done](Copying::is_done).
    unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<Box<dyn Copying>>;

    /// Allocates pinned host memory, to and from which copies are fast. Dropping the value frees it.
    fn pinned(&self, len: usize) -> Result<Pinned>;

    /// Describes `len` bytes at `at`, with a handle if that opens nothing beside them.
    fn export(&self, at: u64, len: u64) -> Result<Export>;

    /// A descriptor of the memory at this address, which NICs may register, and the memory's offset behind it.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device or its driver exports none.
    fn dmabuf(&self, at: u64) -> Result<(OwnedFd, u64)>;

    /// Maps memory that another process has exported, `len` bytes from its offset on.
    fn import(&self, export: &Export, len: u64) -> Result<Arc<dyn Mapping>>;
}

/// A copy in flight. Dropping it does not end it.
pub(crate) trait Copying: Send + fmt::Debug {
    /// # Errors
    /// The copy has failed, and no part of it is in flight.
    fn is_done(&mut self) -> Result<bool>;
}

/// Memory of another process, mapped until this is dropped.
pub(crate) trait Mapping: Send + Sync + fmt::Debug {
    /// Its address in this process.
    fn at(&self) -> u64;

    /// The device through which it is mapped, which copies from and to it.
    fn device(&self) -> &dyn Device;
}

/// Host memory that a device has pinned.
pub(crate) struct Pinned {
    pub(crate) at: *mut u8,
    pub(crate) len: usize,
    /// Frees the memory when dropped.
    pub(crate) owner: Box<dyn Send + Sync>,
}

/// The device behind a peer's export, if this process has it open. It copies host memory to and from that export. The
/// device is not opened here, because a program that uses no device would then get a context on one.
#[cfg(feature = "cuda")]
pub(crate) fn opened(export: &Export) -> Option<Arc<dyn Device>> {
    cuda::Cuda::opened(&export.device).map(|device| Arc::new(device) as Arc<dyn Device>)
}

/// Always `None`: without the feature no device is open.
#[cfg(not(feature = "cuda"))]
pub(crate) fn opened(_: &Export) -> Option<Arc<dyn Device>> {
    None
}

/// The kernel's file with the id of this boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Bytes of one copy in [`copy_out`] and [`copy_in`].
const PIECE: usize = 1 << 20;

/// Copies out of a device's memory, and waits.
pub(crate) fn copy_out(device: &dyn Device, from: u64, to: &mut [u8]) -> Result<()> {
    for (nth, to) in to.chunks_mut(PIECE).enumerate() {
        let between = std::mem::ManuallyDrop::new(vec![0_u8; to.len()]);
        let from = from + (nth * PIECE) as u64;
        // SAFETY: the caller's range lies in a region. `between` is leaked if the copy does not end.
        let mut copying =
            unsafe { device.copy(between.as_ptr().expose_provenance() as u64, from, to.len() as u64) }?;
        await_copy(|| copying.is_done())?;
        to.copy_from_slice(&std::mem::ManuallyDrop::into_inner(between));
    }
    Ok(())
}

/// Copies into a device's memory, and waits.
pub(crate) fn copy_in(device: &dyn Device, to: u64, from: &[u8]) -> Result<()> {
    for (nth, from) in from.chunks(PIECE).enumerate() {
        let between = std::mem::ManuallyDrop::new(from.to_vec());
        let to = to + (nth * PIECE) as u64;
        // SAFETY: as in `copy_out`.
        let mut copying =
            unsafe { device.copy(to, between.as_ptr().expose_provenance() as u64, from.len() as u64) }?;
        await_copy(|| copying.is_done())?;
        drop(std::mem::ManuallyDrop::into_inner(between));
    }
    Ok(())
}

/// Identifies the host and its boot.
pub(crate) fn host() -> Result<[u8; 16]> {
    let text = std::fs::read_to_string(BOOT_ID)?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let id = u128::from_str_radix(&digits, 16)
        .map_err(|_| Error::with(Errno::EIO, format!("{BOOT_ID}: {text:?}")))?;
    Ok(id.to_be_bytes())
}
