//! Registered memory that the answer to a read is sent from, while nothing may change or remove it.

use ofi_api::{Errno, MrAccess, Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::domain::{RegionData, Regions};
use ofi_core::keys::{Accessor, Grant};

use crate::socket::Gaps;

/// The registered memory that the answer to a read is sent from.
pub struct AnswerMemory {
    /// They keep the registrations open: closing one waits for its grants (`TransportEndpoint::give_back`).
    _grants: Vec<Grant<RegionData>>,
    pieces: Box<[Piece]>,
    len: usize,
}

impl AnswerMemory {
    /// The part of `remote` that `who` may read: `len` bytes from byte `skip`.
    ///
    /// # Errors
    /// The error for the peer if it may not read all of it.
    pub fn new(
        regions: &Regions,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        (skip, len): (usize, usize),
    ) -> Result<Self, Errno> {
        let grants = regions.grants_as(who, remote, (skip, len), MrAccess::REMOTE_READ)?;
        let pieces = grants.iter().flat_map(Grant::pieces).collect();
        Ok(Self { _grants: grants, pieces, len })
    }

    /// Their length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Copies the bytes from byte `skip`; zeroes beyond the end.
    pub fn fill(&self, skip: usize, to: &mut [u8]) {
        // SAFETY: the grants hold the registered memory, and `to` is as long as it says.
        let got = unsafe { copy::gather(&self.pieces, skip, to.as_mut_ptr(), to.len()) };
        to[got..].fill(0);
    }

    /// Adds the bytes from byte `skip` to the packet as gaps, without a copy. Returns whether that is possible.
    pub fn leave(&self, skip: usize, to: &mut [u8], gaps: &mut Gaps) -> bool {
        gaps.leave(&self.pieces, skip, to)
    }
}
