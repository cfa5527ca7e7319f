//! Local memory behind dma-bufs, which the device accesses and the processor does not.
//!
//! An operation of this end finds the registration of such memory by its address, like that of any other memory
//! (`ibv::cache`). The registration uses a duplicate of the descriptor. Where other memory would be copied, the
//! operation is refused ([`Dmabufs::refuse`]): an access without RDMA at either end, one before the peer has announced
//! RDMA, and one that the peer's device refuses.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi_api::{Dmabuf, Errno, Error, Piece, Result};

use crate::srd::{self, Access, Device};

/// One dma-buf, and the number of registrations of it.
struct Known {
    len: usize,
    fd: OwnedFd,
    /// The offset of the first byte behind the descriptor.
    offset: u64,
    uses: usize,
}

/// The dma-bufs that a domain has registered, by their first address and length.
#[derive(Default)]
pub struct Dmabufs {
    all: Mutex<BTreeMap<(usize, usize), Known>>,
    /// Whether there has ever been one. Without any, the lookup is skipped.
    any: AtomicBool,
}

impl Dmabufs {
    fn all(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), Known>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds `len` bytes of a dma-buf, which operations name by `start`.
    ///
    /// # Errors
    /// The descriptor cannot be copied.
    pub fn add(&self, dmabuf: Dmabuf<'_>, start: usize, len: usize) -> Result<()> {
        let fd = dmabuf.fd.try_clone_to_owned()?;
        let mut all = self.all();
        let fresh = Known { len, fd, offset: dmabuf.offset, uses: 0 };
        all.entry((start, len)).or_insert(fresh).uses += 1;
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a dma-buf that [`Dmabufs::add`] has added.
    pub fn remove(&self, start: usize, len: usize) {
        let mut all = self.all();
        if let Some(known) = all.get_mut(&(start, len)) {
            known.uses -= 1;
            if known.uses == 0 {
                all.remove(&(start, len));
            }
        }
    }

    /// Registers a range; `None` if no dma-buf contains it.
    pub fn register(
        &self,
        device: &dyn Device,
        start: usize,
        len: usize,
        access: Access,
    ) -> Option<Result<Box<dyn srd::Region>>> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let all = self.all();
        let (&(begin, _), known) = all.iter().find(|(at, known)| contains(at.0, known.len, start, len))?;
        let (fd, offset) = (known.fd.try_clone(), known.offset + (start - begin) as u64);
        drop(all); // a device may take long
        let register = |fd: OwnedFd| {
            device.register_dmabuf(Dmabuf { fd: fd.as_fd(), offset }, len, start as u64, access)
        };
        Some(fd.map_err(Error::from).and_then(register))
    }

    /// Refuses memory that would have to be copied.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if a piece lies in a dma-buf.
    #[cold]
    pub fn refuse(&self, pieces: &[Piece]) -> Result<()> {
        if !self.any.load(Ordering::Relaxed) {
            return Ok(());
        }
        let all = self.all();
        let touches = |piece: &Piece| {
            let (start, end) = (piece.addr.addr(), piece.addr.addr().saturating_add(piece.len));
            all.iter().any(|(at, known)| start < at.0.saturating_add(known.len) && at.0 < end)
        };
        if !pieces.iter().any(|piece| piece.len > 0 && touches(piece)) {
            return Ok(());
        }
        Err(Error::wanted(
            Errno::EOPNOTSUPP,
            "an access from or to a dma-buf of this end",
            "one that both devices do alone: RDMA at either end, one piece, and a key that the peer's device knows",
            "one that the processor would have to copy",
            "copy through memory of the host",
        ))
    }
}

fn contains(begin: usize, whole: usize, start: usize, len: usize) -> bool {
    start.checked_sub(begin).and_then(|skip| skip.checked_add(len)).is_some_and(|end| end <= whole)
}
