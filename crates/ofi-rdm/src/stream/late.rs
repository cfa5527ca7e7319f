//! Bytes that arrived out of order, stored at their offset in blocks of one length. A block is allocated when its first
//! byte arrives.
//!
//! Whatever a peer sends, memory is bounded by the stream's window plus one block, and a fragment costs at most a
//! search among [`RUNS`] runs. A fragment that would need one more run is refused.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::ops::Range;

use crate::ranges::RangeSet;

/// Bytes per block.
const BLOCK: u64 = 1 << 15;
/// The maximum number of runs. A run is what arrived between two losses: this many allow a window of 4 MiB in packets
/// of 1,452 bytes to lose every tenth packet.
pub const RUNS: usize = 256;

/// The bytes of one stream that arrived out of order.
#[derive(Debug, Default)]
pub struct Late {
    /// The blocks from number `first` on.
    blocks: VecDeque<Option<Box<[u8]>>>,
    first: u64,
    runs: RangeSet,
}

/// A block, and the range of its bytes that come next.
pub struct Piece {
    block: Box<[u8]>,
    number: u64,
    part: Range<usize>,
}

impl Piece {
    pub fn bytes(&self) -> &[u8] {
        &self.block[self.part.clone()]
    }
}

impl Late {
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Stores bytes from `offset` on. `false` if they would need one run too many.
    #[must_use]
    pub fn keep(&mut self, offset: u64, bytes: &[u8]) -> bool {
        let run = offset..offset + bytes.len() as u64;
        if self.runs.len() >= RUNS && !self.runs.touches(&run) {
            return false;
        }
        if self.runs.is_empty() {
            self.blocks.clear();
            self.first = offset / BLOCK;
        }
        while offset / BLOCK < self.first {
            self.first -= 1;
            self.blocks.push_front(None);
        }
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (index, skip) = ((at / BLOCK - self.first) as usize, (at % BLOCK) as usize);
            if self.blocks.len() <= index {
                self.blocks.resize_with(index + 1, || None);
            }
            let block = self.blocks[index].get_or_insert_with(|| vec![0; BLOCK as usize].into());
            let (here, after) = rest.split_at(rest.len().min(BLOCK as usize - skip));
            block[skip..skip + here.len()].copy_from_slice(here);
            (at, rest) = (at + here.len() as u64, after);
        }
        self.runs.insert(run);
        true
    }

    /// Discards everything below `next` and takes the bytes at `next`, within one block. The caller must give the piece
    /// back.
    pub fn take(&mut self, next: u64) -> Option<Piece> {
        if self.runs.is_empty() {
            return None;
        }
        self.runs.remove(0..next);
        let Some(run) = self.runs.first() else {
            *self = Self::default();
            return None;
        };
        let number = next / BLOCK;
        while self.first < number && self.blocks.pop_front().is_some() {
            self.first += 1;
        }
        if run.start != next {
            return None;
        }
        let end = run.end.min((number + 1) * BLOCK);
        let block = self.blocks.front_mut()?.take()?;
        self.runs.remove(next..end);
        Some(Piece { block, number, part: (next % BLOCK) as usize..(end - number * BLOCK) as usize })
    }

    /// Takes back a block, because its other bytes may still be needed.
    pub fn give_back(&mut self, piece: Piece) {
        if !self.runs.is_empty()
            && piece.number == self.first
            && let Some(place) = self.blocks.front_mut()
        {
            *place = Some(piece.block);
        }
    }
}
