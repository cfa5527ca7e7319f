//! Payloads that the kernel puts in place without a second copy (design decision 9).
//!
//! A lane that receives a long payload can predict the next packets, and the destination of the bytes after their
//! headers. The socket receives into vectors that alternate between room for headers and those destinations, and checks
//! the headers afterwards (`socket/placed.rs`). A mispredicted payload is moved back into the buffer before anything is
//! processed. Its destination had no valid bytes yet, and gets the right ones later.

use ofi_api::{MrAccess, Piece};
use ofi_core::domain::RegionData;
use ofi_core::keys::Grant;
use ofi_core::slots::SlotId;
use ofi_core::transport::Host;
use ofi_rdm::{Foresight, Part};

use crate::Udp;
use crate::coming::Next;
use crate::command::kind;
use crate::lane::common::accessor;
use crate::lanes::UdpLanes;
use crate::socket::{Expected, LEAST_GAP, Place};

/// Expected packets, and the destination of their payloads.
pub struct Placement {
    pub expected: Expected,
    /// Holds registered memory. Memory of a receive or read is lent to the endpoint, and the operation cannot end while
    /// the endpoint polls.
    _grant: Option<Grant<RegionData>>,
}

/// The contiguous memory at byte `skip` of `pieces`: its address and length.
fn contiguous(pieces: impl IntoIterator<Item = Piece>, mut skip: usize) -> Option<(*mut u8, usize)> {
    for piece in pieces {
        if skip < piece.len {
            return Some((piece.addr.wrapping_add(skip), piece.len - skip));
        }
        skip -= piece.len;
    }
    None
}

impl UdpLanes {
    /// The expected packets, if a long payload is in flight.
    pub fn foresee<H: Host<Udp>>(&mut self, host: &mut H) -> Option<Placement> {
        let found = self.placement(host, self.common.next?);
        if found.is_none() {
            self.common.next = None; // until another part has arrived
        }
        found
    }

    /// The destination of the payload's continuation in `next`, in full packets.
    fn placement<H: Host<Udp>>(&mut self, host: &mut H, next: Next) -> Option<Placement> {
        let Next { peer, stream, kind, id, at, came } = next;
        let part = came.packet.checked_sub(Foresight::HEAD).filter(|&part| part >= LEAST_GAP)?;
        let (base, len, grant) = self.place(host, &next, part)?;
        let foresight = self.endpoint.foresee(peer, stream, &Part { kind, id, at, len: part })?;
        // The last part is usually shorter, and other records may follow it, so it is copied.
        let count = (len / part).min(foresight.most);
        // SAFETY: so many bytes are there. The grant holds registered memory; other memory is lent to an operation that
        // ends when its last byte is taken, which is not among these, or by a call that waits for this poll.
        let place = unsafe { Place::new(base, part, count) };
        let expected = Expected { foresight, place, each: came.of };
        (count > 0).then_some(Placement { expected, _grant: grant })
    }

    /// The destination of the payload's continuation in parts of `part` bytes, and its length.
    fn place<H: Host<Udp>>(
        &mut self,
        host: &mut H,
        next: &Next,
        part: usize,
    ) -> Option<(*mut u8, usize, Option<Grant<RegionData>>)> {
        let at = usize::try_from(next.at).ok()?;
        let long = self.lanes.get(next.peer as usize)?.long.as_deref();
        match next.kind {
            kind::WRITE_PART => {
                let write = long?.write.as_deref().filter(|write| write.op == next.id && write.got == at)?;
                let left = write.len - write.got;
                if left < part || write.failed.is_some() {
                    return None;
                }
                let (who, regions) = (accessor(&self.common, host, next.peer), &self.common.domain.regions);
                let span = (at, left.min(Place::MOST));
                let grants = regions.grants_as(who, &write.remote, span, MrAccess::REMOTE_WRITE).ok()?;
                let grant = grants.into_iter().next()?;
                let (base, len) = contiguous(grant.pieces(), 0)?;
                Some((base, len, Some(grant)))
            }
            kind::MESSAGE_PART => {
                let pull = long?.pulls.get(&next.id).filter(|pull| pull.got == at)?;
                let left = pull.len - pull.got;
                let receiving = host.receiving(SlotId::from_wire(next.id))?;
                let (base, len) = contiguous(receiving.pieces.iter().copied(), at)?;
                Some((base, len.min(left), None))
            }
            // Answers to reads end in packets that are not full (`answer.rs`), so they would mostly be mispredicted,
            // which costs a copy.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_goes_on_until_its_piece_ends() {
        let mut bytes = [0u8; 10];
        let base = bytes.as_mut_ptr();
        let pieces = [Piece::new(base, 4), Piece::new(base.wrapping_add(4), 6)];
        let found = |skip| contiguous(pieces, skip).map(|(at, len)| (at as usize - base as usize, len));
        assert_eq!(
            [0, 3, 4, 9, 10].map(found),
            [Some((0, 4)), Some((3, 1)), Some((4, 6)), Some((9, 1)), None]
        );
    }
}
