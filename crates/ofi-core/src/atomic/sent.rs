//! A peer's operation in a packet: its operands, then its comparands, and space for the old values.

use std::mem::MaybeUninit;

use ofi_api::{Errno, RemotePiece, Result};

use super::Executor;
use crate::copy;
use crate::keys::{Accessor, RegionTable};

/// The maximum number of bytes that an atomic operation may change if its operands and comparands travel in one record
/// or packet ([`Transport::atomic_size`](crate::transport::Transport::atomic_size)).
pub const MAX_PACKET_ATOMIC_LEN: usize = 4096;

/// Operands, comparands or old values of one operation, aligned for every type. Only the used part is initialised.
#[repr(align(16))]
struct Array(MaybeUninit<[u8; MAX_PACKET_ATOMIC_LEN]>);

impl Array {
    const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    fn addr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }

    /// Copies `bytes`, at most [`MAX_PACKET_ATOMIC_LEN`] of them.
    fn fill(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= MAX_PACKET_ATOMIC_LEN, "the bytes of an array");
        // SAFETY: there is room for as many.
        unsafe { copy::bytes(bytes.as_ptr(), self.addr(), bytes.len()) };
    }
}

/// Room for one operation, on the executing thread's stack.
pub struct Sent {
    operands: Array,
    comparands: Array,
    old: Array,
}

impl Default for Sent {
    fn default() -> Self {
        Self { operands: Array::new(), comparands: Array::new(), old: Array::new() }
    }
}

impl Sent {
    /// Executes an operation on registered memory for the peer `who`: on all of `remote`, with the operands and
    /// comparands in `body`, if the operation takes them ([`Executor::sent_len`]). Returns the old values, if it
    /// fetches them.
    ///
    /// # Errors
    /// The error for the peer: `FI_EINVAL` for lengths that do not fit, and those of [`Executor::execute_at`].
    pub fn execute<R>(
        &mut self,
        executor: &Executor,
        regions: &RegionTable<R>,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        body: &[u8],
    ) -> Result<&[u8], Errno> {
        let len = remote.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.len));
        let len = len.filter(|&len| len > 0 && len <= MAX_PACKET_ATOMIC_LEN).ok_or(Errno::EINVAL)?;
        if body.len() != executor.sent_len(len) {
            return Err(Errno::EINVAL);
        }
        let (operands, comparands) = body.split_at(if executor.takes_operands() { len } else { 0 });
        self.operands.fill(operands);
        self.comparands.fill(comparands);
        let mut old = std::ptr::null_mut();
        if executor.fetches() {
            self.old.fill(&[0; MAX_PACKET_ATOMIC_LEN][..len]);
            old = self.old.addr();
        }
        let (operands, comparands) = (self.operands.addr(), self.comparands.addr());
        // SAFETY: operands and comparands were just filled with `len` bytes where the executor wants them, and there is
        // room for as many old values; the arrays are aligned for every type.
        unsafe { executor.execute_at(regions, who, remote, operands, comparands, old)? };
        if old.is_null() {
            return Ok(&[]);
        }
        // SAFETY: `len` bytes of the array were initialised above.
        Ok(unsafe { std::slice::from_raw_parts(old, len) })
    }
}

#[cfg(test)]
mod tests {
    use ofi_api::{AtomicKind, Datatype, FiOp, MrAccess, MrAttr, Piece};

    use super::*;
    use crate::keys::{Addressing, KeyChoice, Registration};

    #[test]
    fn operands_are_taken_apart_and_old_values_come_back() {
        let table = RegionTable::new(Addressing::Offset, 1);
        let mut memory = [10_u64, 20];
        let piece = [Piece::new(memory.as_mut_ptr().cast(), 16)];
        // SAFETY: the memory outlives the table, and is looked at only between operations.
        let attr = unsafe { MrAttr::new(&piece, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE) };
        let desc = table.register(Registration::new(&attr, KeyChoice::Random, ())).unwrap();
        let key = table.region(desc).unwrap().region().key();
        let remote = [RemotePiece { addr: 8, len: 8, key }, RemotePiece { addr: 0, len: 8, key }];
        let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_ne_bytes()).collect() };
        let run = |kind, op, body: &[u64]| {
            let executor = Executor::find(kind, op, Datatype::Uint64).unwrap();
            let mut sent = Sent::default();
            sent.execute(&executor, &table, Accessor::ANYBODY, &remote, &bytes(body)).map(<[u8]>::to_vec)
        };
        assert_eq!(run(AtomicKind::Base, FiOp::Sum, &[1, 2]), Ok(Vec::new()));
        assert_eq!(run(AtomicKind::Fetch, FiOp::AtomicRead, &[]), Ok(bytes(&[21, 12])));
        assert_eq!(run(AtomicKind::Compare, FiOp::Cswap, &[7, 8, 21, 0]), Ok(bytes(&[21, 12])));
        assert_eq!(run(AtomicKind::Fetch, FiOp::Sum, &[1]), Err(Errno::EINVAL), "too few operands");
        assert_eq!(run(AtomicKind::Fetch, FiOp::AtomicRead, &[1, 1]), Err(Errno::EINVAL), "too many");
        assert_eq!(memory, [12, 7]);
    }
}
