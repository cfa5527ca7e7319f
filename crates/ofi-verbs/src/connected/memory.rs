//! The local and remote memory of requests, as the device addresses it.

use ofi_api::{Errno, Error, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::domain::DomainPart;

use super::MAX_MESSAGE_LEN;
use crate::Verbs;
use crate::domain::Local;
use crate::few::Few;
use crate::rc::{Remote, Segment};

/// The memory of an inline request.
pub fn unregistered(pieces: &[Piece], len: usize) -> Few<Segment> {
    copy::runs(pieces, 0, len).map(|(addr, len)| Segment { addr, len: len as u32, lkey: 0 }).collect()
}

/// The memory of a request that is not copied. It stays registered as long as the returned registrations exist.
pub fn registered(
    domain: &DomainPart<Verbs>,
    pieces: &[Piece],
    len: usize,
) -> ibv::Result<(Few<Segment>, Few<Local>)> {
    // No message or access has a longer piece.
    let runs = || copy::runs(pieces, 0, len).map(|(addr, len)| (addr, len.min(MAX_MESSAGE_LEN)));
    let register = |(addr, len)| {
        // SAFETY: the memory is lent until the operation ends; the callers keep the registration as long.
        unsafe { domain.transport.local(addr, len) }
    };
    let regions = runs().map(register).collect::<ibv::Result<Few<Local>>>()?;
    let segment = |((addr, len), region): (_, &Local)| Segment { addr, len: len as u32, lkey: region.lkey() };
    let segments = runs().zip(regions.iter()).map(segment).collect();
    Ok((segments, regions))
}

/// The peer's memory, as its device addresses it.
pub fn remote(pieces: &[RemotePiece]) -> Result<Remote> {
    let [RemotePiece { addr, key, .. }] = pieces else {
        return Err(Error::with(
            Errno::EINVAL,
            "an access takes one remote piece (tx_attr.rma_iov_limit); split it",
        ));
    };
    let rkey = u32::try_from(*key).map_err(|_| {
        Error::wanted(
            Errno::EKEYREJECTED,
            "the key of a remote access",
            "4 bytes (domain_attr.mr_key_size)",
            format!("{key:#x}"),
            "pass the key that fi_mr_key returned at the peer",
        )
    })?;
    Ok(Remote { addr: *addr, rkey })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_name_one_piece_by_a_key_of_the_device() {
        let piece = |key| RemotePiece { addr: 7, len: 1, key };
        assert_eq!(remote(&[piece(u32::MAX.into())]).unwrap(), Remote { addr: 7, rkey: u32::MAX });
        assert_eq!(remote(&[piece(1 << 32)]).unwrap_err().errno(), Errno::EKEYREJECTED);
        assert_eq!(remote(&[]).unwrap_err().errno(), Errno::EINVAL);
        assert_eq!(remote(&[piece(1), piece(2)]).unwrap_err().errno(), Errno::EINVAL);
    }
}
