//! An operation of this end on device memory: the transport moves a buffer of the host instead.

use std::sync::Arc;

use ofi_api::{Piece, Result};

use super::{Devices, Owner, Stager, StagingBuffer};
use crate::copy;

/// The memory of an operation, of which at least one piece is a device's.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: Box<[(Option<Arc<Stager>>, Piece)]>,
    first: Arc<Stager>,
}

/// The memory of an operation, by who accesses it.
pub(crate) enum Found {
    /// The processor accesses all of it.
    Host,
    /// A device's driver copies at least a piece.
    Device(Parts),
    /// Neither accesses at least a piece.
    Opaque,
}

impl Parts {
    /// The memory of an operation.
    pub fn of(devices: &Devices, pieces: &[Piece]) -> Found {
        let of = |piece: &Piece| if piece.len == 0 { None } else { devices.find(piece.addr.addr()) };
        if pieces.iter().all(|piece| of(piece).is_none()) {
            return Found::Host;
        }
        let (mut first, mut parts) = (None, Vec::with_capacity(pieces.len()));
        for piece in pieces {
            let stager = match of(piece) {
                None => None,
                Some(Owner::Opaque) => return Found::Opaque,
                Some(Owner::Copied(stager)) => Some(stager),
            };
            first = first.or_else(|| stager.clone());
            parts.push((stager, *piece));
        }
        first.map_or(Found::Host, |first| Found::Device(Self { parts: parts.into(), first }))
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.parts.iter().fold(0_usize, |sum, (_, piece)| sum.saturating_add(piece.len))
    }

    /// A buffer with undefined content for the first `len` bytes.
    pub fn staged(self, len: usize) -> Staged {
        let buffer = self.first.buffer(len.min(self.len()));
        Staged { parts: self, buffer }
    }
}

/// The memory of an operation, and the buffer that the transport moves in its place.
pub(crate) struct Staged {
    parts: Parts,
    buffer: StagingBuffer,
}

impl Staged {
    /// The same memory, with a buffer for all of it.
    pub fn whole(self) -> Self {
        let len = self.parts.len();
        self.parts.staged(len)
    }

    /// The buffer.
    pub fn piece(&self) -> Piece {
        Piece::new(self.buffer.as_ptr(), self.buffer.len())
    }

    /// Copies the memory to the buffer.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The memory is lent for reading during the call, and nothing else uses the buffer.
    pub unsafe fn fill(&mut self) -> Result<()> {
        let mut at = 0;
        for (device, piece) in &self.parts.parts {
            let run = piece.len.min(self.buffer.len() - at);
            match device {
                // SAFETY: the caller's promise.
                Some(_) => unsafe { self.buffer.copy_in(at, piece.addr.addr() as u64, run)? },
                // SAFETY: the caller's promise, and `run` bytes are left in the buffer.
                None => unsafe { copy::bytes(piece.addr, self.buffer.as_ptr().wrapping_add(at), run) },
            }
            at += run;
        }
        Ok(())
    }

    /// Copies the first `len` bytes of the buffer to the memory.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The memory is lent for writing during the call, and nothing else uses the buffer.
    pub unsafe fn empty(&mut self, len: usize) -> Result<()> {
        let (mut at, len) = (0, len.min(self.buffer.len()));
        for (device, piece) in &self.parts.parts {
            let run = piece.len.min(len - at);
            match device {
                // SAFETY: the caller's promise.
                Some(_) => unsafe { self.buffer.copy_out(at, piece.addr.addr() as u64, run)? },
                // SAFETY: the caller's promise, and `run` bytes are left in the buffer.
                None => unsafe { copy::bytes(self.buffer.as_ptr().wrapping_add(at), piece.addr, run) },
            }
            at += run;
        }
        Ok(())
    }
}
