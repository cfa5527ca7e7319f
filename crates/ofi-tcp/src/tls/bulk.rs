//! Seals what an established connection sends: in records of 16 KiB, as many at a time as stay in the cache. Each byte
//! is copied once, from the application's memory into its record.

use std::os::fd::BorrowedFd;

use ofi_api::Errno;
use ofi_core::copy;

use super::established::KEY_UPDATE_RECORD;
use super::record::{HEADER, MAX_PLAIN, OVERHEAD};
use super::{Security, Session};

/// Records that are sealed at a time.
const BATCH: usize = 4;
/// Room for them: a change of keys may precede each.
const SEALED: usize = BATCH * (MAX_PLAIN + OVERHEAD + KEY_UPDATE_RECORD);

/// Records that are being filled and sealed.
struct Filling<'a> {
    session: &'a mut Session,
    socket: BorrowedFd<'a>,
    buffer: &'a mut [u8],
    /// The length of the sealed ones, and how many they are.
    ready: usize,
    count: usize,
    /// Bytes in the one that is being filled, which begins at `ready`.
    filled: usize,
    /// Bytes that have been sealed.
    taken: usize,
}

impl Filling<'_> {
    /// Copies a piece. `false`: the kernel takes no more, and what is sealed waits.
    ///
    /// # Safety
    /// It may be read.
    unsafe fn push(&mut self, piece: &libc::iovec) -> Result<bool, Errno> {
        let mut at = 0;
        while at < piece.iov_len {
            if self.filled == 0 {
                self.ready += self.session.renew(&mut self.buffer[self.ready..])?;
            }
            let len = (piece.iov_len - at).min(MAX_PLAIN - self.filled);
            let from = piece.iov_base.cast::<u8>().cast_const().wrapping_add(at);
            let to = self.buffer[self.ready + HEADER + self.filled..][..len].as_mut_ptr();
            // What the application lends may change while it is read: it is copied before anything looks at it.
            // SAFETY: the piece may be read, by the caller's promise, and `to` has `len` bytes of this endpoint.
            unsafe { copy::bytes(from, to, len) };
            (at, self.filled) = (at + len, self.filled + len);
            if self.filled == MAX_PLAIN && !self.end_record()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Seals the record that is being filled, and sends a full batch.
    fn end_record(&mut self) -> Result<bool, Errno> {
        let record = &mut self.buffer[self.ready..];
        self.ready += self.session.established()?.seal(record, self.filled);
        (self.count, self.taken) = (self.count + 1, self.taken + std::mem::take(&mut self.filled));
        if self.count < BATCH {
            return Ok(true);
        }
        self.count = 0;
        self.flush()
    }

    fn flush(&mut self) -> Result<bool, Errno> {
        let ready = std::mem::take(&mut self.ready);
        self.session.send(self.socket, &self.buffer[..ready])
    }
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
        self.sealing.resize(SEALED, 0);
        let buffer = &mut self.sealing[..];
        let mut filling = Filling { session, socket, buffer, ready: 0, count: 0, filled: 0, taken: 0 };
        for piece in pieces {
            // SAFETY: the caller's promise.
            if !unsafe { filling.push(piece) }? {
                return Ok(filling.taken);
            }
        }
        if filling.filled > 0 && !filling.end_record()? {
            return Ok(filling.taken);
        }
        filling.flush()?;
        Ok(filling.taken)
    }
}
