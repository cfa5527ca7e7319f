//! Local memory behind dma-bufs, which a NIC accesses and the processor does not.
//!
//! An operation of this end finds the registration of such memory by its address, like that of any other memory
//! (`ibv::cache`). The registration uses a duplicate of the descriptor. Where other memory would be copied, the
//! operation is refused ([`Dmabufs::refuse`]).

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Dmabuf, Errno, Error, Piece, Result};

/// One dma-buf, and the number of registrations of it.
struct Known {
    len: usize,
    fd: Arc<OwnedFd>,
    /// The offset of the first byte behind the descriptor.
    offset: u64,
    uses: usize,
}

/// The dma-bufs that a domain has registered, by their first address and length.
#[derive(Default)]
pub struct Dmabufs {
    all: Mutex<BTreeMap<(usize, usize), Known>>,
    /// Whether there has ever been one. Without any, nothing is looked up.
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
        let fd = Arc::new(dmabuf.fd.try_clone_to_owned()?);
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

    /// Registers a range with `register`, which gets the dma-buf that contains it; `None` if none does.
    pub fn register<R>(&self, start: usize, len: usize, register: impl FnOnce(Dmabuf<'_>) -> R) -> Option<R> {
        if !self.any() {
            return None;
        }
        let all = self.all();
        let (&(begin, _), known) = all.iter().find(|(at, known)| contains(at.0, known.len, start, len))?;
        let (fd, offset) = (Arc::clone(&known.fd), known.offset + (start - begin) as u64);
        drop(all); // a device may take long
        Some(register(Dmabuf { fd: fd.as_fd(), offset }))
    }

    /// Whether there has ever been one.
    #[inline]
    fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether a piece lies in a dma-buf, at least in part.
    #[inline]
    pub fn touch(&self, pieces: &[Piece]) -> bool {
        self.any() && self.lie_under(pieces)
    }

    #[cold]
    fn lie_under(&self, pieces: &[Piece]) -> bool {
        let all = self.all();
        let touches = |piece: &Piece| {
            let (start, end) = (piece.addr.addr(), piece.addr.addr().saturating_add(piece.len));
            all.iter().any(|(at, known)| start < at.0.saturating_add(known.len) && at.0 < end)
        };
        pieces.iter().any(|piece| piece.len > 0 && touches(piece))
    }

    /// Refuses memory that would have to be copied; `by_device` says which operations the NICs do alone.
    ///
    /// # Errors
    /// `FI_EOPNOTSUPP` if a piece lies in a dma-buf.
    #[inline]
    pub fn refuse(&self, pieces: &[Piece], by_device: &'static str) -> Result<()> {
        if self.touch(pieces) { Err(Self::refusal(by_device)) } else { Ok(()) }
    }

    /// The error for memory that would have to be copied.
    #[cold]
    pub fn refusal(by_device: &'static str) -> Error {
        Error::wanted(
            Errno::EOPNOTSUPP,
            "an operation from or to a dma-buf of this end",
            by_device,
            "one that the processor would have to copy",
            "copy through memory of the host",
        )
    }
}

fn contains(begin: usize, whole: usize, start: usize, len: usize) -> bool {
    start.checked_sub(begin).and_then(|skip| skip.checked_add(len)).is_some_and(|end| end <= whole)
}
