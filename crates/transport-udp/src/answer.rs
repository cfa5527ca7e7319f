//! Answers to reads of peers: memory is copied when a read is answered, since later commands may change it, and leaves from the copy,
//! part by part and once more where packets are lost. The copy goes when all of it has arrived.

use ofi_api::Piece;
use ofi_core::slots::{SlotId, Slots};

use crate::socket::Gaps;

/// Bytes that are copied at once, at most.
pub const CHUNK: usize = 256 << 10;
/// Copies that wait for the next read.
const SPARE: usize = 8;
/// Tells a token of an answer from one of an operation: no table of operations has so many.
const MARK: u64 = 1 << 31;

/// Whether a payload is an answer.
pub fn is_answer(token: u64) -> bool {
    token & MARK != 0
}

/// A copy of memory from byte `at` of a read on.
struct Answer {
    bytes: Vec<u8>,
    at: u64,
}

/// Memory for copies: what was just used lies in the cache, and costs no page faults.
#[derive(Default)]
pub struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Room for `len` bytes, whatever they are; at most [`CHUNK`].
    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.0.pop().unwrap_or_else(|| vec![0; CHUNK]);
        bytes.resize(len, 0);
        bytes
    }

    /// Takes such room back.
    pub fn give_back(&mut self, bytes: Vec<u8>) {
        if self.0.len() < SPARE {
            self.0.push(bytes);
        }
    }
}

/// What a peer has not confirmed yet.
#[derive(Default)]
pub struct Answers {
    copies: Slots<Answer>,
    bytes: usize,
}

impl Answers {
    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything has arrived.
    pub fn is_empty(&self) -> bool {
        self.copies.is_empty()
    }

    /// Keeps a copy; answers its token.
    pub fn keep(&mut self, bytes: Vec<u8>, at: u64) -> u64 {
        self.bytes += bytes.len();
        self.copies.insert(Answer { bytes, at }).to_wire() | MARK
    }

    /// It has arrived: answers its memory.
    pub fn arrived(&mut self, token: u64) -> Option<Vec<u8>> {
        let answer = self.copies.remove(SlotId::from_wire(token & !MARK))?;
        self.bytes -= answer.bytes.len();
        Some(answer.bytes)
    }

    /// The bytes of a copy from byte `at` of its read on, `len` of them.
    fn bytes_at(&self, token: u64, at: u64, len: usize) -> Option<&[u8]> {
        let answer = self.copies.get(SlotId::from_wire(token & !MARK))?;
        let skip = usize::try_from(at.checked_sub(answer.at)?).ok()?;
        answer.bytes.get(skip..)?.get(..len)
    }

    /// Copies bytes from byte `at` of the read on.
    pub fn fill(&self, token: u64, at: u64, to: &mut [u8]) {
        match self.bytes_at(token, at, to.len()) {
            Some(bytes) => to.copy_from_slice(bytes),
            None => to.fill(0), // not asked for: parts are of what is kept
        }
    }

    /// Has them sent from where they lie, if that can be: they stay there until they have arrived, which is not before the call that
    /// makes the packet has sent it.
    pub fn leave(&self, token: u64, at: u64, to: &mut [u8], gaps: &mut Gaps) -> bool {
        self.bytes_at(token, at, to.len()).is_some_and(|bytes| {
            let piece = Piece::new(bytes.as_ptr().cast_mut(), bytes.len());
            gaps.leave(&[piece], 0, to)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_until_it_has_arrived_and_shows_nothing_of_others() {
        let (mut spare, mut answers) = (Spare::default(), Answers::default());
        let mut bytes = spare.take(CHUNK);
        bytes.fill(9);
        spare.give_back(bytes);
        let mut bytes = spare.take(3_000);
        bytes.fill(7);
        let token = answers.keep(bytes, 50_000);
        assert!(is_answer(token) && !is_answer(token & !MARK));
        assert_eq!(answers.bytes(), 3_000);
        let read = |answers: &Answers, at: u64, len: usize| {
            let mut to = vec![1u8; len];
            answers.fill(token, at, &mut to);
            to
        };
        assert_eq!(read(&answers, 51_000, 2_000), vec![7; 2_000]);
        for (at, len) in [(49_999, 10), (52_999, 2), (60_000, 1), (u64::MAX, 1), (50_000, 3_001)] {
            assert_eq!(read(&answers, at, len), vec![0; len], "{at} {len}");
        }
        let back = answers.arrived(token).expect("it was there");
        spare.give_back(back);
        assert!(answers.arrived(token).is_none() && answers.is_empty());
        assert_eq!((answers.bytes(), read(&answers, 50_000, 4)), (0, vec![0; 4]));
    }
}
