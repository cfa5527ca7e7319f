//! Accesses in flight, in rows.
//!
//! A row stores the common properties of successive descriptors of a transfer once. An access is then a bit in the row,
//! and a number in its [`OpId`](super::OpId), from which its chunk follows.

use ofi_core::slots::SlotId;

use super::latency::CLASSES;
use super::transfer::{Chunk, Piece};

/// Maximum accesses in a row: the bits of [`PostedRun::under_way`].
pub(super) const MAX_ROW_LEN: u32 = u64::BITS;

/// Accesses that were posted one after the other on one path: a chunk, and the whole descriptors that follow it in the
/// plan. Their transfer and its session exist until the accesses have ended.
#[derive(Clone, Copy)]
pub(super) struct PostedRun {
    pub(super) transfer: SlotId,
    first: Chunk,
    /// Time of posting, in nanoseconds.
    pub(super) since: u64,
    /// Bytes in flight on its path when it was posted, its own included.
    pub(super) load: u64,
    pub(super) path: u32,
    /// The key that they use, if it was leased to the session.
    pub(super) lease: Option<u64>,
    /// Whether all accesses are as long as the first.
    is_even: bool,
    /// A bit for each access that has not ended; the lowest bit is the first access.
    under_way: u64,
}

impl PostedRun {
    /// Creates a row of the descriptors in `found`: one to [`MAX_ROW_LEN`] accesses.
    pub(super) fn new(
        transfer: SlotId,
        first: Chunk,
        found: &Found,
        path: u32,
        lease: Option<u64>,
        since: u64,
    ) -> Self {
        let under_way = u64::MAX >> (MAX_ROW_LEN - found.count);
        Self { transfer, first, since, load: found.bytes, path, lease, is_even: found.is_even, under_way }
    }

    /// The chunk that access `nth` moves, by the descriptors of its plan.
    pub(super) fn chunk(&self, nth: u32, pieces: &[Piece]) -> Chunk {
        let Chunk { piece, number, .. } = self.first;
        match nth {
            0 => self.first,
            _ => Chunk {
                piece: piece + nth,
                offset: 0,
                len: self.len(nth, pieces),
                number: number + nth,
                tried: 0,
                refusals: 0,
            },
        }
    }

    /// The chunk of the first access.
    pub(super) fn first(&self) -> &Chunk {
        &self.first
    }

    /// The accesses in flight.
    pub(super) fn in_flight(self) -> impl Iterator<Item = u32> {
        (0..MAX_ROW_LEN).filter(move |nth| self.under_way >> nth & 1 == 1)
    }

    /// The length of access `nth`.
    #[inline]
    fn len(&self, nth: u32, pieces: &[Piece]) -> u64 {
        match nth {
            0 => self.first.len,
            _ => pieces.get((self.first.piece + nth) as usize).map_or(0, |piece| piece.len),
        }
    }

    /// The number of accesses in flight.
    pub(super) fn under_way(&self) -> u32 {
        self.under_way.count_ones()
    }

    /// Keeps only the first `count` accesses: the others were not posted.
    pub(super) fn cut(&mut self, count: u32) {
        self.under_way &= u64::MAX >> (MAX_ROW_LEN - count);
    }

    /// Ends access `nth`. Returns whether it was the last, or `None` if it is not in flight.
    #[inline]
    pub(super) fn end(&mut self, nth: u32) -> Option<bool> {
        self.end_some(nth, 1)
    }

    /// Ends `count` accesses (1 to [`MAX_ROW_LEN`]) from `nth` on. Returns whether none is left, or `None` if one of
    /// them is not in flight.
    #[inline]
    pub(super) fn end_some(&mut self, nth: u32, count: u32) -> Option<bool> {
        let bits = u64::MAX >> (MAX_ROW_LEN - count) << nth;
        if self.under_way & bits != bits {
            return None;
        }
        self.under_way &= !bits;
        Some(self.under_way == 0)
    }

    /// The bytes of `count` accesses from `nth` on, and the length of the first. `None` if several have different
    /// lengths of which one is beyond the first length class.
    #[inline]
    pub(super) fn bytes<'a>(
        &self,
        nth: u32,
        count: u32,
        pieces: impl FnOnce() -> &'a [Piece],
    ) -> Option<(u64, u64)> {
        if self.is_even {
            return Some((u64::from(count) * self.first.len, self.first.len));
        }
        let pieces = pieces();
        let lens = (nth..nth + count).map(|nth| self.len(nth, pieces));
        let (bytes, bits) = lens.fold((0, 0), |(bytes, bits), len| (bytes + len, bits | len));
        (count == 1 || bits < CLASSES[0]).then(|| (bytes, self.len(nth, pieces)))
    }
}

/// Descriptors that make up a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) count: u32,
    /// Total bytes.
    pub(super) bytes: u64,
    /// All descriptors are equally long.
    is_even: bool,
}

impl Found {
    /// A row of one access.
    pub(super) fn one(len: u64) -> Self {
        Self { count: 1, bytes: len, is_even: true }
    }
}

/// The row that begins with the first of `pieces`. It includes the following pieces that are shorter than `longest` or
/// as long as the first, lie in the same region and fit into `room` together: at most `most` pieces.
pub(super) fn row_of(pieces: &[Piece], most: u32, room: u64, longest: u64) -> Found {
    let Some((first, rest)) = pieces.split_first() else {
        return Found { count: 0, bytes: 0, is_even: true };
    };
    let rest = &rest[..rest.len().min(most as usize - 1)];
    let Some(mut left) = room.checked_sub(first.len) else { return Found::one(first.len) };
    // Most rows are even, and this loop is short.
    let fit = left.checked_div(first.len).unwrap_or(0).min(rest.len() as u64) as usize;
    let is_same = |next: &Piece| next.len == first.len && next.remote_region == first.remote_region;
    let even = rest[..fit].iter().position(|next| !is_same(next)).unwrap_or(fit);
    left -= even as u64 * first.len;
    let mut count = even;
    while let Some(next) = rest.get(count) {
        let is_short = next.len < longest || next.len == first.len;
        if !is_short || next.remote_region != first.remote_region || next.len > left {
            break;
        }
        (left, count) = (left - next.len, count + 1);
    }
    Found { count: count as u32 + 1, bytes: room - left, is_even: count == even }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::latency::class;
    use super::*;

    const FIRST: Chunk = Chunk { piece: 7, offset: 0, len: 100, number: 9, tried: 2, refusals: 0 };

    fn row(count: u32) -> PostedRun {
        let found = Found { count, bytes: u64::from(count) * FIRST.len, is_even: true };
        PostedRun::new(SlotId::from_wire(0), FIRST, &found, 0, None, 0)
    }

    #[test]
    fn each_access_ends_once_and_the_last_ends_the_row() {
        for count in [1, 2, MAX_ROW_LEN - 1, MAX_ROW_LEN] {
            let mut row = row(count);
            assert_eq!(row.under_way(), count);
            for nth in (0..count).rev() {
                assert_eq!(row.end(nth), Some(nth == 0));
                assert_eq!(row.end(nth), None);
            }
            if count < MAX_ROW_LEN {
                assert_eq!(row.end(count), None, "it was never posted");
            }
        }
    }

    #[test]
    fn a_row_that_was_cut_has_what_was_posted() {
        let mut row = row(MAX_ROW_LEN);
        row.cut(2);
        assert_eq!((row.end(2), row.end(1), row.end(0)), (None, Some(false), Some(true)));
    }

    #[test]
    fn chunks_follow_from_the_first() {
        let pieces: Vec<Piece> = (0..10).map(|nth| piece(93 + nth, 0)).collect();
        let row = row(3);
        assert_eq!(row.chunk(0, &pieces), FIRST);
        assert_eq!(
            row.chunk(2, &pieces),
            Chunk { piece: 9, offset: 0, len: 102, number: 11, tried: 0, refusals: 0 }
        );
    }

    fn piece(len: u64, remote_region: u32) -> Piece {
        Piece { region: 0, local: 0, remote_region, remote: 0, len }
    }

    /// Lengths on both sides of a limit, and regions that change occasionally.
    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let len = prop_oneof![Just(64_u64), 1..200_u64, 4090..4100_u64];
        let region = prop_oneof![60 => Just(0_u32), 1 => Just(1)];
        prop::collection::vec((len, region).prop_map(|(len, region)| piece(len, region)), 1..100)
    }

    proptest! {
        /// Compares rows with a list of the posted chunks: each row is as long as permitted, and each of its accesses
        /// ends once with its own bytes, in any order.
        #[test]
        fn a_row_is_a_list_of_chunks(
            pieces in pieces(),
            before in 0..10_u32,
            most in 1..=MAX_ROW_LEN,
            room in prop_oneof![Just(u64::MAX), 0..20_000_u64],
            longest in prop_oneof![Just(u64::MAX), Just(64), Just(4096), 1..4200_u64],
            posted in 1..=MAX_ROW_LEN,
            order in prop::collection::vec((0..MAX_ROW_LEN, prop_oneof![Just(1), 1..=MAX_ROW_LEN]), 0..200),
        ) {
            let before = before.min(pieces.len() as u32 - 1);
            let rest = &pieces[before as usize..];
            let sum = |count: usize| rest[..count].iter().map(|piece| piece.len).sum::<u64>();
            let may_be = |count: usize| {
                let follow = &rest[1..count];
                sum(count) <= room
                    && follow.iter().all(|piece| piece.len < longest || piece.len == rest[0].len)
                    && follow.iter().all(|piece| piece.remote_region == rest[0].remote_region)
            };
            let count = (2..=rest.len().min(most as usize)).take_while(|&count| may_be(count)).last().unwrap_or(1);
            let found = row_of(rest, most, room, longest);
            prop_assert_eq!((found.count as usize, found.bytes), (count, sum(count)));

            let first = Chunk { piece: before, offset: 0, len: rest[0].len, number: 40, tried: 5, refusals: 2 };
            let mut row = PostedRun::new(SlotId::from_wire(0), first, &found, 0, None, 0);
            let posted = posted.min(found.count);
            row.cut(posted);
            let mut chunks: Vec<Option<Chunk>> = (0..posted)
                .map(|nth| match nth {
                    0 => first,
                    _ => Chunk {
                        piece: before + nth,
                        offset: 0,
                        len: rest[nth as usize].len,
                        number: 40 + nth,
                        tried: 0,
                        refusals: 0,
                    },
                })
                .map(Some)
                .collect();
            for (nth, count) in order.into_iter().chain((0..MAX_ROW_LEN).map(|nth| (nth, 1))) {
                let left = chunks.iter().flatten().count();
                prop_assert_eq!(row.under_way() as usize, left);
                prop_assert_eq!(row.in_flight().count(), left);
                let count = count.min(MAX_ROW_LEN - nth);
                let ended = (nth..nth + count).map(|nth| chunks.get(nth as usize).copied().flatten());
                let Some(ended) = ended.collect::<Option<Vec<Chunk>>>() else {
                    prop_assert_eq!(row.end_some(nth, count), None);
                    continue;
                };
                chunks[nth as usize..(nth + count) as usize].fill(None);
                prop_assert_eq!(row.chunk(nth, &pieces), ended[0]);
                let sum = ended.iter().map(|chunk| chunk.len).sum::<u64>();
                let is_alike = row.is_even || ended.iter().all(|chunk| class(chunk.len) == class(ended[0].len));
                match row.bytes(nth, count, || &pieces) {
                    Some(found) => prop_assert!(is_alike && found == (sum, ended[0].len)),
                    None => prop_assert!(count > 1 && !row.is_even && ended.iter().any(|chunk| chunk.len >= 2048)),
                }
                prop_assert_eq!(row.end_some(nth, count), Some(left == count as usize));
            }
            prop_assert_eq!(row.is_even, rest[..count].iter().all(|piece| piece.len == rest[0].len));
        }
    }
}
