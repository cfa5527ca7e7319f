//! Payloads that the kernel copies directly to their destination.
//!
//! A receiver of a long payload predicts the next packets, and the destination of the bytes after their headers.
//! The socket receives into vectors that alternate between header buffers and those destinations, and checks the
//! headers afterwards (`socket/placed.rs`). A mispredicted payload is moved back into the buffer before anything is
//! processed. Its destination had no valid bytes yet, and gets the right ones later.
//!
//! A payload's parts fill their packets, except for the last. For packets that arrive alone, the prediction continues
//! beyond the payload's end, because a peer sends requested payloads in the order of the requests.

use ofi_api::{MrAccess, Piece};
use ofi_core::domain::RegionData;
use ofi_core::keys::Grant;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};
use ofi_rdm::{Part, RxPrediction};

use crate::Udp;
use crate::command::kind;
use crate::endpoint::UdpEndpoint;
use crate::op::Op;
use crate::peer::common::accessor;
use crate::rx_batch::Next;
use crate::socket::{Expected, LEAST_GAP, PlacementBuffer};

/// Expected packets, and the destination of their payloads.
pub struct Placement {
    pub expected: Expected,
    pub peer: PeerId,
    /// Keeps registered memory open. Memory of a receive or read is lent to the endpoint, and during a poll the
    /// operation can end only with its last byte.
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

/// Whether the kernel's copy of a lone part to this address would be slow. The kernel stores a lone datagram from the
/// start of a page, and copies it with the string instruction (see `ofi-os/copy/string.rs`).
fn is_slow(base: *mut u8) -> bool {
    const PAGE: usize = 4096;
    (1..16).contains(&((base as usize).wrapping_sub(RxPrediction::HEAD) % PAGE))
}

/// The missing bytes of a payload, and their destination.
struct Missing {
    /// Offset in the payload of the first missing byte.
    at: usize,
    /// Missing bytes.
    left: usize,
    /// The contiguous memory for the first of them, and its length.
    base: *mut u8,
    len: usize,
}

/// Rows of expected parts under construction, and their destinations.
struct Rows {
    parts: [(Part, usize); RxPrediction::ROWS],
    places: [PlacementBuffer; RxPrediction::ROWS],
    count: usize,
}

impl Rows {
    fn new() -> Self {
        let none = (Part { kind: 0, id: 0, at: 0, len: 0 }, 0);
        Self {
            parts: [none; RxPrediction::ROWS],
            places: [PlacementBuffer::NONE; RxPrediction::ROWS],
            count: 0,
        }
    }

    /// The parts.
    fn parts(&self) -> &[(Part, usize)] {
        &self.parts[..self.count]
    }

    /// Packets in all rows.
    fn packets(&self) -> usize {
        self.parts().iter().map(|&(_, count)| count).sum()
    }

    /// Adds a row.
    fn add(&mut self, part: Part, count: usize, base: *mut u8) {
        if count > 0 && self.count < RxPrediction::ROWS {
            // SAFETY: so many bytes are there (`Missing::len`). A grant holds registered memory; other memory is lent
            // to an operation that ends with its last byte, after which its place is not used, or by a call that waits
            // for this poll. If the session ends, the batch is dropped (`UdpEndpoint::poll`).
            self.places[self.count] = unsafe { PlacementBuffer::new(base, part.len, count) };
            self.parts[self.count] = (part, count);
            self.count += 1;
        }
    }

    /// Adds the rest of payload `id`, in parts of `part` bytes. Returns whether the expected packets now include its
    /// last byte.
    fn finish(&mut self, kind: u8, id: u64, missing: &Missing, part: usize, alone: bool) -> bool {
        let named = |at: usize, len| Part { kind, id, at: at as u64, len };
        let Missing { at, left, base, len } = *missing;
        if self.count == 0 && is_slow(base) {
            return false;
        }
        let room = if alone { PlacementBuffer::MESSAGES - self.packets() } else { usize::MAX };
        let whole = (len / part).min(room);
        self.add(named(at, part), whole, base);
        let (there, rest) = (whole * part, left - whole * part);
        if rest == 0 {
            return true;
        }
        // The last part is shorter. In a message of many datagrams, the kernel does not separate it from the others.
        let fits = alone && len == left && rest < part && rest >= LEAST_GAP && whole < room;
        if fits {
            self.add(named(at + there, rest), 1, base.wrapping_add(there));
        }
        fits
    }
}

impl UdpEndpoint {
    /// The expected packets, if a long payload is in flight.
    pub fn foresee<H: Upcalls<Udp>>(&mut self, host: &mut H) -> Option<Placement> {
        let found = self.placement(host, self.common.next?);
        if found.is_none() {
            self.common.next = None; // until another part has arrived
        }
        found
    }

    /// The destination of the payload that `next` names, and of the following payloads.
    fn placement<H: Upcalls<Udp>>(&mut self, host: &mut H, next: Next) -> Option<Placement> {
        let Next { peer, stream, kind, id } = next;
        let (part, alone) = (self.common.cut.part, self.common.cut.each == 1);
        if part < LEAST_GAP {
            return None;
        }
        let mut rows = Rows::new();
        let mut grant = None;
        if kind == kind::WRITE_PART {
            let (missing, held) = self.written(host, peer, id, part)?;
            rows.finish(kind, id, &missing, part, alone);
            grant = Some(held);
        } else if kind == kind::PART_AHEAD {
            rows.finish(kind, id, &self.ahead(host, peer, id)?, part, alone);
        } else {
            let long = self.peers.get(peer as usize)?.long.as_deref()?;
            for (_, id) in long.asked.from(kind, id) {
                let Some(missing) = self.missing(host, peer, kind, id) else { break };
                let ends = rows.finish(kind, id, &missing, part, alone);
                if !ends || !alone || rows.packets() == PlacementBuffer::MESSAGES {
                    break;
                }
            }
        }
        let foresight = self.endpoint.foresee(peer, stream, rows.parts())?;
        let mut places = rows.places;
        for (row, place) in places.iter_mut().enumerate() {
            place.count = place.count.min(foresight.count(row));
        }
        let expected = Expected { foresight, places, each: self.common.cut.each };
        (places[0].count > 0).then_some(Placement { expected, peer, _grant: grant })
    }

    /// The rest of the peer's long write.
    fn written<H: Upcalls<Udp>>(
        &self,
        host: &H,
        peer: PeerId,
        id: u64,
        part: usize,
    ) -> Option<(Missing, Grant<RegionData>)> {
        let long = self.peers.get(peer as usize)?.long.as_deref()?;
        let write = long.write.as_deref().filter(|write| write.op == id && write.refusal().is_none())?;
        let (at, left) = (write.got(), write.left());
        if left < LEAST_GAP.min(part) {
            return None;
        }
        let (who, regions) = (accessor(&self.common, host, peer), &self.common.domain.regions);
        let span = (at, left.min(PlacementBuffer::MAX_LEN));
        let grants = regions.grants_as(who, write.remote(), span, MrAccess::REMOTE_WRITE).ok()?;
        let grant = grants.into_iter().next()?;
        let (base, len) = contiguous(grant.pieces(), 0)?;
        Some((Missing { at, left, base, len }, grant))
    }

    /// The rest of a message that arrives ahead of a request.
    fn ahead<H: Upcalls<Udp>>(&self, host: &H, peer: PeerId, id: u64) -> Option<Missing> {
        let long = self.peers.get(peer as usize)?.long.as_deref()?;
        let ahead = long.ahead.as_ref().filter(|ahead| ahead.is(id))?;
        let (into, at, left, wanted) = ahead.missing()?;
        let (base, len) = contiguous(host.receiving(into)?.pieces.iter().copied(), at)?;
        Some(Missing { at, left, base, len: len.min(wanted) })
    }

    /// The rest of a requested payload.
    fn missing<H: Upcalls<Udp>>(&self, host: &mut H, peer: PeerId, kind: u8, id: u64) -> Option<Missing> {
        let (at, left, found) = if kind == kind::READ_PART {
            let Op::Read { pieces, got, len, in_order: true } = host.op(peer, SlotId::from_wire(id))? else {
                return None;
            };
            (*got, *len - *got, contiguous(pieces.iter().copied(), *got))
        } else {
            let pull = self.peers.get(peer as usize)?.long.as_deref()?.pulls.get(&id)?;
            let receiving = host.receiving(SlotId::from_wire(id))?;
            (pull.got, pull.len - pull.got, contiguous(receiving.pieces.iter().copied(), pull.got))
        };
        let (base, len) = found?;
        Some(Missing { at, left, base, len: len.min(left) })
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

    #[test]
    fn a_place_where_the_kernel_copies_slowly_is_left_alone() {
        let page = std::ptr::without_provenance_mut::<u8>(1 << 20);
        for (at, slow) in
            [(0, false), (16, false), (60, false), (61, true), (64, true), (75, true), (76, false)]
        {
            assert_eq!(is_slow(page.wrapping_add(at)), slow, "{at}");
        }
        let missing = Missing { at: 0, left: 90_000, base: page.wrapping_add(64), len: 90_000 };
        let mut rows = Rows::new();
        assert!(!rows.finish(1, 1, &missing, 60_000, true) && rows.parts().is_empty());
    }

    #[test]
    fn rows_end_with_a_short_part_and_go_on_with_the_next_payload() {
        let mut bytes = vec![0u8; 110_000];
        let base = bytes.as_mut_ptr().wrapping_add(4_096 - bytes.as_ptr() as usize % 4_096);
        let rows = |payloads: &[(usize, usize)], alone: bool| {
            let mut rows = Rows::new();
            for (id, &(left, len)) in payloads.iter().enumerate() {
                let missing = Missing { at: 0, left, base, len };
                if !rows.finish(1, id as u64, &missing, 10_000, alone) {
                    break;
                }
            }
            rows.parts().iter().map(|(part, count)| (part.id, part.at, part.len, *count)).collect::<Vec<_>>()
        };
        // Four packets that arrive alone: a full one and a short one, and two of the next payload.
        assert_eq!(
            rows(&[(15_000, 15_000), (90_000, 90_000)], true),
            [(0, 0, 10_000, 1), (0, 10_000, 5_000, 1), (1, 0, 10_000, 2)]
        );
        // A last part that is too short shares its packet with other parts, so the next packets cannot be predicted.
        assert_eq!(rows(&[(11_000, 11_000), (90_000, 90_000)], true), [(0, 0, 10_000, 1)]);
        // The memory ends in the middle of the payload.
        assert_eq!(rows(&[(30_000, 15_000)], true), [(0, 0, 10_000, 1)]);
        // Packets that arrive many in a message: only full ones are predicted.
        assert_eq!(rows(&[(75_000, 75_000)], false), [(0, 0, 10_000, 7)]);
        assert_eq!(rows(&[(8_000, 8_000), (8_000, 8_000)], true), [(0, 0, 8_000, 1), (1, 0, 8_000, 1)]);
    }
}
