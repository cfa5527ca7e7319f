//! Bytes that came before those in front of them, where they will be needed: blocks of one length, each made when the
//! first of its bytes comes.
//!
//! Whatever a peer sends, this takes no more memory than the stream's window and a block, and no fragment costs more
//! than a search among [`RUNS`] runs: what would be one run more is refused.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;
use core::ops::Range;

use crate::ranges::RangeSet;

/// Bytes of a block.
const BLOCK: u64 = 1 << 15;
/// Runs that are kept. Each is what came after a loss: a window of 4 MiB in packets of 1,452 bytes may lose every tenth
/// of them.
pub const RUNS: usize = 256;

/// See the module.
#[derive(Debug, Default)]
pub struct Late {
    /// Blocks from number `first` on.
    blocks: VecDeque<Option<Box<[u8]>>>,
    first: u64,
    runs: RangeSet,
}

/// A block, and which of its bytes come next.
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

    /// Keeps bytes from `offset` on. `false` if they would be one run too many.
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

    /// Forgets what lies below `next`, and takes what lies there, as far as one block has it. The piece is to be given
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

    /// Takes a block back: others of its bytes may be needed.
    pub fn give_back(&mut self, piece: Piece) {
        if !self.runs.is_empty()
            && piece.number == self.first
            && let Some(place) = self.blocks.front_mut()
        {
            *place = Some(piece.block);
        }
    }
}
