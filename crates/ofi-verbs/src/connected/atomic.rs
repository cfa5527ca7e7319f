//! Atomic operations that the peer's device executes, on single numbers of 8 bytes, as in C libfabric's verbs provider.
//! They are atomic with respect to accesses through the same device. Only with `IBV_ATOMIC_GLOB` are they also atomic
//! with respect to the owner's instructions.
//!
//! | call | request |
//! |---|---|
//! | `fi_atomic`, `FI_ATOMIC_WRITE` | a write |
//! | `fi_fetch_atomic`, `FI_ATOMIC_READ` | a read |
//! | `fi_fetch_atomic`, `FI_SUM` | fetch and add |
//! | `fi_compare_atomic`, `FI_CSWAP` | compare and swap |

use ofi_api::{AtomicKind, Datatype, Errno, Error, FiOp, Piece, Result};
use ofi_core::copy;
use ofi_core::transport::OutAtomic;

use crate::rc::{Remote, Work};

/// Size of a number in bytes.
pub const SIZE: usize = 8;

/// Whether this operation on this type is supported. C's provider also adds and compares `FI_DOUBLE` as integers, which
/// is wrong, and supports `FI_FLOAT`, of which it moves 8 bytes.
pub const fn has(kind: AtomicKind, op: FiOp, datatype: Datatype) -> bool {
    let is_moved =
        matches!((kind, op), (AtomicKind::Base, FiOp::AtomicWrite) | (AtomicKind::Fetch, FiOp::AtomicRead));
    let is_changed =
        matches!((kind, op), (AtomicKind::Fetch, FiOp::Sum) | (AtomicKind::Compare, FiOp::Cswap));
    match datatype {
        Datatype::Int64 | Datatype::Uint64 => is_moved || is_changed,
        Datatype::Double => is_moved,
        _ => false,
    }
}

/// The request for an operation, and the local memory that it reads or writes.
///
/// # Errors
/// `FI_EINVAL` if the number is unaligned: the peer's device would end the connection.
pub fn work<'a>(out: &OutAtomic<'a>, at: Remote) -> Result<(&'a [Piece], Work)> {
    if !at.addr.is_multiple_of(SIZE as u64) {
        return Err(Error::wanted(
            Errno::EINVAL,
            "the address of an atomic operation",
            "a multiple of 8, which devices require",
            format!("{:#x}", at.addr),
            "align the number in the peer's memory",
        ));
    }
    Ok(match (out.executor.kind(), out.executor.op()) {
        (AtomicKind::Base, _) => (out.operands, Work::Write(at, None)),
        (AtomicKind::Fetch, FiOp::AtomicRead) => (out.results, Work::Read(at)),
        (AtomicKind::Fetch, _) => (out.results, Work::FetchAdd(at, number(out.operands))),
        (AtomicKind::Compare, _) => {
            let (expected, new) = (number(out.comparands), number(out.operands));
            (out.results, Work::CompareSwap { at, expected, new })
        }
    })
}

fn number(pieces: &[Piece]) -> u64 {
    let mut number = 0u64;
    // SAFETY: the pieces are lent during the call, and the core has checked that they have the length of a number.
    unsafe { copy::gather(pieces, 0, (&raw mut number).cast(), SIZE) };
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_is_what_c_s_provider_has_less_what_would_be_wrong() {
        let mut all = Vec::new();
        for kind in AtomicKind::ALL {
            for &op in FiOp::VALUES {
                for &datatype in Datatype::VALUES {
                    if has(kind, op, datatype) {
                        all.push((op, datatype));
                    }
                }
            }
        }
        let of = |op, datatypes: &[Datatype]| datatypes.iter().map(move |&one| (op, one)).collect::<Vec<_>>();
        let (whole, any) =
            ([Datatype::Int64, Datatype::Uint64], [Datatype::Int64, Datatype::Uint64, Datatype::Double]);
        let wanted = [
            of(FiOp::AtomicWrite, &any),
            of(FiOp::Sum, &whole),
            of(FiOp::AtomicRead, &any),
            of(FiOp::Cswap, &whole),
        ];
        assert_eq!(all, wanted.concat());
    }
}
