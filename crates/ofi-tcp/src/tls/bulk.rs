//! Seals what an established connection sends: in records of 16 KiB, as many at a time as stay in the cache.

use std::os::fd::BorrowedFd;

use ofi_api::Errno;
use ofi_core::copy;

use super::{Security, Session};

/// Bytes that are sealed at a time.
const BATCH: usize = 64 << 10;
/// Room for them sealed: a record of 16 KiB is 22 bytes longer, and a new key may precede it.
const SEALED: usize = BATCH + (4 << 10);

/// Those of an endpoint.
#[derive(Default)]
pub struct Buffers {
    plain: Vec<u8>,
    sealed: Vec<u8>,
}

impl Security {
    /// Sends the bytes of all of `pieces`. Returns how many went, or are kept by the session to be sent next.
    ///
    /// # Errors
    /// The error number of send(2); `EAGAIN` if there is no room.
    ///
    /// # Safety
    /// The pieces may be read during the call.
    pub unsafe fn send_pieces(
        &mut self,
        session: &mut Session,
        socket: BorrowedFd<'_>,
        pieces: &[libc::iovec],
    ) -> Result<usize, Errno> {
        session.push(socket)?;
        if session.has_sealed() {
            return Err(Errno::EAGAIN);
        }
        let Buffers { plain, sealed } = &mut self.sealing;
        plain.resize(BATCH, 0);
        sealed.resize(SEALED, 0);
        // What the application lends may change while it is read: it is copied before anything looks at it.
        let (mut taken, mut filled) = (0, 0);
        for piece in pieces {
            let mut at = 0;
            while at < piece.iov_len {
                let len = (piece.iov_len - at).min(BATCH - filled);
                let from = piece.iov_base.cast::<u8>().cast_const().wrapping_add(at);
                let to = plain[filled..filled + len].as_mut_ptr();
                // SAFETY: the piece may be read, by the caller's promise, and `to` has `len` bytes of this endpoint.
                unsafe { copy::bytes(from, to, len) };
                (at, filled) = (at + len, filled + len);
                if filled < BATCH {
                    continue;
                }
                let ready = session.seal(&plain[..filled], sealed)?;
                taken += std::mem::take(&mut filled);
                if !session.send(socket, &sealed[..ready])? {
                    return Ok(taken);
                }
            }
        }
        if filled > 0 {
            let ready = session.seal(&plain[..filled], sealed)?;
            taken += filled;
            session.send(socket, &sealed[..ready])?;
        }
        Ok(taken)
    }
}
