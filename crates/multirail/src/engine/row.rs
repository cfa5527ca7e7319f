//! Accesses under way, in rows.
//!
//! What successive descriptors of a transfer have in common stands in their row once. An access is then a bit there,
//! and a number in its [`OpId`](super::OpId), from which its chunk follows.

use ofi_core::slots::SlotId;

use super::transfer::Chunk;

/// Most accesses of a row: the bits of [`Row::under_way`].
pub(super) const LONGEST_ROW: u32 = u64::BITS;

/// Accesses that were posted one after the other on one path: a chunk, and whole descriptors of the same length that
/// follow it in the plan. Their transfer is there until they have ended, and so is the transfer's session.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) transfer: SlotId,
    first: Chunk,
    /// When they were posted, in nanoseconds.
    pub(super) since: u64,
    pub(super) path: u32,
    /// A bit for each that has not ended, the first one's lowest.
    under_way: u64,
}

impl Row {
    /// A row of `count` accesses: one to [`LONGEST_ROW`].
    pub(super) fn new(transfer: SlotId, first: Chunk, count: u32, path: u32, since: u64) -> Self {
        Self { transfer, first, since, path, under_way: u64::MAX >> (LONGEST_ROW - count) }
    }

    /// What access `nth` moves.
    pub(super) fn chunk(&self, nth: u32) -> Chunk {
        let Chunk { piece, number, .. } = self.first;
        match nth {
            0 => self.first,
            _ => Chunk { piece: piece + nth, number: number + nth, tried: 0, ..self.first },
        }
    }

    /// Length of each.
    pub(super) fn len(&self) -> u64 {
        self.first.len
    }

    /// How many are under way.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way.count_ones()
    }

    /// Only the first `count` were posted.
    pub(super) fn cut(&mut self, count: u32) {
        self.under_way &= u64::MAX >> (LONGEST_ROW - count);
    }

    /// Access `nth` has ended: whether it was the last. `None` if it is not under way.
    #[inline]
    pub(super) fn end(&mut self, nth: u32) -> Option<bool> {
        let bit = 1_u64 << nth;
        if self.under_way & bit == 0 {
            return None;
        }
        self.under_way &= !bit;
        Some(self.under_way == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(count: u32) -> Row {
        let first = Chunk { piece: 7, offset: 0, len: 100, number: 9, tried: 2 };
        Row::new(SlotId::from_wire(0), first, count, 0, 0)
    }

    #[test]
    fn each_access_ends_once_and_the_last_ends_the_row() {
        for count in [1, 2, LONGEST_ROW - 1, LONGEST_ROW] {
            let mut row = row(count);
            assert_eq!(row.under_way(), count);
            for nth in (0..count).rev() {
                assert_eq!(row.end(nth), Some(nth == 0));
                assert_eq!(row.end(nth), None);
            }
            if count < LONGEST_ROW {
                assert_eq!(row.end(count), None, "it was never posted");
            }
        }
    }

    #[test]
    fn a_row_that_was_cut_has_what_was_posted() {
        let mut row = row(LONGEST_ROW);
        row.cut(2);
        assert_eq!((row.end(2), row.end(1), row.end(0)), (None, Some(false), Some(true)));
    }

    #[test]
    fn chunks_follow_from_the_first() {
        let row = row(3);
        assert_eq!(row.chunk(0), Chunk { piece: 7, offset: 0, len: 100, number: 9, tried: 2 });
        assert_eq!(row.chunk(2), Chunk { piece: 9, offset: 0, len: 100, number: 11, tried: 0 });
    }
}
