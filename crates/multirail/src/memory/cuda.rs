//! Memory of CUDA devices, through [`ofi_core::hmem::cuda`], which loads the driver's `libcuda.so.1` on first use.

use std::os::fd::OwnedFd;
use std::sync::Arc;

pub use ofi_core::hmem::cuda::{Cuda, DeviceMemory, count, is_installed};

use ofi::{Errno, Error, Result};
use ofi_core::hmem::cuda::{PeerMemory, PendingCopy};

use super::{Copying, Device, Export, Kind, Mapping, Pinned};
use crate::topology::PciAddress;

impl Copying for PendingCopy {
    fn is_done(&mut self) -> Result<bool> {
        PendingCopy::is_done(self)
    }
}

impl Mapping for PeerMemory {
    fn at(&self) -> u64 {
        self.address()
    }

    fn device(&self) -> &dyn Device {
        PeerMemory::device(self)
    }
}

impl Device for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda(self.ordinal())
    }

    fn pci(&self) -> Option<PciAddress> {
        self.pci_bus_id()?.parse().ok()
    }

    unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<Box<dyn Copying>> {
        // SAFETY: the caller's promise is the same.
        Ok(Box::new(unsafe { Cuda::copy(self, to, from, len) }?))
    }

    fn pinned(&self, len: usize) -> Result<Pinned> {
        let memory = Cuda::pinned(self, len)?;
        Ok(Pinned { at: memory.as_ptr(), len, owner: Box::new(memory) })
    }

    fn export(&self, at: u64, len: u64) -> Result<Export> {
        let (handle, offset) = match self.handle_opens_only(at, len)? {
            true => Cuda::export(self, at)?,
            false => (Export::NO_HANDLE, 0),
        };
        Ok(Export { host: super::host()?, device: self.uuid(), handle, offset })
    }

    fn dmabuf(&self, at: u64) -> Result<(OwnedFd, u64)> {
        Cuda::dmabuf(self, at)
    }

    fn import(&self, export: &Export, len: u64) -> Result<Arc<dyn Mapping>> {
        if export.host != super::host()? {
            return Err(Error::with(
                Errno::EHOSTUNREACH,
                "the memory is on another host and cannot be mapped",
            ));
        }
        Ok(Arc::new(Cuda::import(self, export.handle, export.offset, len)?))
    }
}
