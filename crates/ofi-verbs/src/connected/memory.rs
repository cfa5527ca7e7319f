//! The local and remote memory of requests, as the device addresses it.

use std::sync::Arc;

use ofi_api::{Errno, Error, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::domain::DomainPart;
use ofi_core::pages::Pages;

use super::MAX_MESSAGE_LEN;
use crate::Verbs;
use crate::domain::Local;
use crate::few::Few;
use crate::rc::{Access, Region, Remote, Segment};

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

/// The memory of a request that only reads it. A copy takes the place of memory that the kernel refuses to pin: before
/// Linux 6.2 all shared mappings that the process may only read, such as those of a flow's readers.
pub fn sent(
    domain: &DomainPart<Verbs>,
    pieces: &[Piece],
    len: usize,
) -> ibv::Result<(Few<Segment>, Few<Local>)> {
    match registered(domain, pieces, len) {
        Err(error) if error.errno == libc::EFAULT => {
            let Some(copied) = Copied::of(domain, pieces, len)? else { return Err(error) };
            tracing::debug!(target: "ofi::verbs::ep_data", len, "memory that cannot be registered is copied");
            let segment = Segment { addr: copied.memory.base(), len: len as u32, lkey: copied.lkey() };
            Ok((Few::One([segment]), Few::One([Arc::new(Box::new(copied) as Box<dyn Region>)])))
        }
        made => made,
    }
}

/// A copy of a payload, in registered memory of its own.
struct Copied {
    // Dropped in this order.
    region: Box<dyn Region>,
    memory: Pages,
}

impl Copied {
    /// `None` for memory that this process cannot read either.
    fn of(domain: &DomainPart<Verbs>, pieces: &[Piece], len: usize) -> ibv::Result<Option<Self>> {
        let memory = Pages::new(len, false).map_err(|_| ibv::Error {
            call: "mmap",
            errno: libc::ENOMEM,
            advice: "no memory for a copy of a payload that cannot be registered".into(),
        })?;
        let (mut at, this) = (memory.base(), std::process::id().cast_signed());
        for (from, len) in copy::runs(pieces, 0, len) {
            let (to, from) = (
                libc::iovec { iov_base: at.cast(), iov_len: len },
                libc::iovec { iov_base: from.cast(), iov_len: len },
            );
            // SAFETY: the runs are as long as the pages together, and nobody has a reference to those. The kernel
            // checks what it reads.
            let copied = unsafe { libc::process_vm_readv(this, &to, 1, &from, 1, 0) };
            if usize::try_from(copied) != Ok(len) {
                return Ok(None);
            }
            at = at.wrapping_add(len);
        }
        // SAFETY: the pages stay mapped until the region is dropped, and nobody has a reference to them.
        let region = unsafe { domain.transport.device.register(memory.base(), len, Access::Local) }?;
        Ok(Some(Self { region, memory }))
    }
}

// SAFETY: the keys are those of the region, which exists as long as this.
unsafe impl Region for Copied {
    fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    fn rkey(&self) -> u32 {
        self.region.rkey()
    }
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
