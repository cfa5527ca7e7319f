//! Answers to peers' reads. An answer is sent in parts, which are resent after losses: from the registered memory while
//! nothing may change it, otherwise from a copy. The copy is made before a later command of the peer that is not a
//! read, which may change the memory or cause the application to do so, and when the registration closes. The memory
//! and the copy are released when the peer has acknowledged the whole answer.

use core::ops::{Deref, DerefMut};

use ofi_api::Piece;
use ofi_core::slots::{SlotId, Slots};

use crate::lent::AnswerMemory;
use crate::socket::Gaps;

/// Maximum bytes of answers in flight to one peer.
pub const READ_AHEAD: usize = 4 << 20;
/// Maximum bytes of one answer, rounded down to whole packets. A longer read has several answers.
pub const CHUNK: usize = 1 << 20;
/// The same for a copied answer, which is smaller because copying delays the first byte.
pub const COPIED: usize = 256 << 10;
/// Maximum bytes of free memory that are kept for later reads.
const SPARE: usize = 2 << 20;
/// The length of the shortest piece of that memory.
const SHORTEST: usize = 4 << 10;
/// Number of piece lengths: powers of two up to [`CHUNK`].
const LENGTHS: usize = (CHUNK / SHORTEST).ilog2() as usize + 1;
/// Marks the tokens of answers. Tokens of operations never have this bit, because no table of operations is that large.
const MARK: u64 = 1 << 31;

/// Whether a payload is an answer.
pub fn is_answer(token: u64) -> bool {
    token & MARK != 0
}

/// Where an answer's bytes are.
enum Backing {
    Copied(Room),
    AnswerMemory(AnswerMemory),
}

/// Bytes of a read, from byte `at` of it on.
struct Answer {
    backing: Backing,
    at: u64,
}

impl Answer {
    fn len(&self) -> usize {
        match &self.backing {
            Backing::Copied(room) => room.len(),
            Backing::AnswerMemory(lent) => lent.len(),
        }
    }

    /// The offset in the answer of the `len` bytes from byte `at` of the read, if it has all of them.
    fn skip_to(&self, at: u64, len: usize) -> Option<usize> {
        let skip = usize::try_from(at.checked_sub(self.at)?).ok()?;
        (skip.checked_add(len)? <= self.len()).then_some(skip)
    }
}

/// Memory for a copy.
pub struct Room {
    /// Its length is one of [`BufPool`]'s.
    memory: Box<[u8]>,
    len: usize,
}

impl Deref for Room {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[..self.len]
    }
}

impl DerefMut for Room {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[..self.len]
    }
}

/// Free memory for copies, by length. It is reused because it is in the cache: fresh memory costs a page fault for each
/// page, and the allocator returns long pieces to the system at once.
#[derive(Default)]
pub struct BufPool {
    pieces: [Vec<Box<[u8]>>; LENGTHS],
    bytes: usize,
}

/// The index of the shortest piece length that holds `len` bytes.
fn place_of(len: usize) -> usize {
    (len.next_power_of_two() / SHORTEST).max(1).ilog2() as usize
}

impl BufPool {
    /// Memory for `len` bytes, with any content; at most [`CHUNK`].
    pub fn take(&mut self, len: usize) -> Room {
        let place = place_of(len);
        let memory = match self.pieces[place..].iter_mut().find_map(Vec::pop) {
            Some(memory) => {
                self.bytes -= memory.len();
                memory
            }
            None => vec![0; SHORTEST << place].into(),
        };
        Room { memory, len }
    }

    /// Returns memory from [`BufPool::take`]. Above the limit, memory of other lengths is freed first, because reads
    /// mostly have the same length.
    pub fn give_back(&mut self, room: Room) {
        let own = place_of(room.len);
        self.bytes += room.memory.len();
        self.pieces[place_of(room.memory.len())].push(room.memory);
        while self.bytes > SPARE {
            let bytes = |&place: &usize| (place != own, self.pieces[place].len() << place);
            let most = (0..LENGTHS).filter(|&place| !self.pieces[place].is_empty()).max_by_key(bytes);
            let Some(memory) = most.and_then(|place| self.pieces[place].pop()) else { return };
            self.bytes -= memory.len();
        }
    }
}

/// Answers that a peer has not confirmed yet.
#[derive(Default)]
pub struct Answers {
    answers: Slots<Answer>,
    bytes: usize,
    /// Number of answers that are sent from registered memory.
    lent: usize,
}

impl Answers {
    /// Bytes of all.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether everything has arrived.
    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }

    /// Stores a copied answer and returns its token.
    pub fn keep(&mut self, bytes: Room, at: u64) -> u64 {
        self.insert(Backing::Copied(bytes), at)
    }

    /// Stores an answer that is sent from registered memory, and returns its token.
    pub fn lend(&mut self, lent: AnswerMemory, at: u64) -> u64 {
        self.lent += 1;
        self.insert(Backing::AnswerMemory(lent), at)
    }

    fn insert(&mut self, backing: Backing, at: u64) -> u64 {
        let answer = Answer { backing, at };
        self.bytes += answer.len();
        self.answers.insert(answer).to_wire() | MARK
    }

    /// Copies all answers that are still in registered memory, which may change or disappear from now on.
    #[inline]
    pub fn settle(&mut self, spare: &mut BufPool) {
        if self.lent > 0 {
            self.copy_lent(spare);
        }
    }

    #[cold]
    fn copy_lent(&mut self, spare: &mut BufPool) {
        for id in self.answers.ids(|answer| matches!(answer.backing, Backing::AnswerMemory(_))) {
            let Some(answer) = self.answers.get_mut(id) else { continue };
            if let Backing::AnswerMemory(lent) = &answer.backing {
                let mut room = spare.take(lent.len());
                lent.fill(0, &mut room);
                answer.backing = Backing::Copied(room);
            }
        }
        self.lent = 0;
    }

    /// Handles the acknowledgement of a whole answer, and reuses its memory.
    pub fn arrived(&mut self, token: u64, spare: &mut BufPool) {
        let Some(answer) = self.answers.remove(SlotId::from_wire(token & !MARK)) else { return };
        self.bytes -= answer.len();
        match answer.backing {
            Backing::Copied(room) => spare.give_back(room),
            Backing::AnswerMemory(_) => self.lent -= 1,
        }
    }

    fn get(&self, token: u64) -> Option<&Answer> {
        self.answers.get(SlotId::from_wire(token & !MARK))
    }

    /// Copies bytes from byte `at` of the read on.
    pub fn fill(&self, token: u64, at: u64, to: &mut [u8]) {
        let found = self.get(token).and_then(|answer| Some((answer, answer.skip_to(at, to.len())?)));
        match found {
            Some((Answer { backing: Backing::Copied(room), .. }, skip)) => {
                to.copy_from_slice(&room[skip..skip + to.len()]);
            }
            Some((Answer { backing: Backing::AnswerMemory(lent), .. }, skip)) => lent.fill(skip, to),
            None => to.fill(0), // never requested: parts belong to kept answers
        }
    }

    /// Adds the bytes to the packet as gaps if possible, which avoids a copy. The memory does not change before the
    /// call that builds the packet has sent it.
    pub fn leave(&self, token: u64, at: u64, to: &mut [u8], gaps: &mut Gaps) -> bool {
        let Some(answer) = self.get(token) else { return false };
        let Some(skip) = answer.skip_to(at, to.len()) else { return false };
        match &answer.backing {
            Backing::Copied(room) => {
                let bytes = &room[skip..skip + to.len()];
                gaps.leave(&[Piece::new(bytes.as_ptr().cast_mut(), bytes.len())], 0, to)
            }
            Backing::AnswerMemory(lent) => lent.leave(skip, to, gaps),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_there_until_it_has_arrived_and_shows_nothing_of_others() {
        let (mut spare, mut answers) = (BufPool::default(), Answers::default());
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
        answers.arrived(token, &mut spare);
        answers.arrived(token, &mut spare);
        assert!(answers.is_empty());
        assert_eq!((answers.bytes(), read(&answers, 50_000, 4)), (0, vec![0; 4]));
    }

    #[test]
    fn memory_is_used_again_by_the_next_reads_of_that_length() {
        let mut spare = BufPool::default();
        for len in [CHUNK, 64 << 10, CHUNK, 5_000, 64 << 10] {
            let most = SPARE / len.next_power_of_two();
            let places = |rooms: &[Room]| -> Vec<_> {
                let mut places: Vec<_> = rooms.iter().map(|room| room.as_ptr() as usize).collect();
                places.sort_unstable();
                places
            };
            let mut before = Vec::new();
            for round in 0..8 {
                let rooms: Vec<_> = (0..most).map(|_| spare.take(len)).collect();
                assert!(rooms.iter().all(|room| room.len() == len));
                let now = places(&rooms);
                rooms.into_iter().for_each(|room| spare.give_back(room));
                assert!(spare.bytes <= SPARE);
                // Longer pieces left by others are used first, and are freed one by one.
                assert!(round < 4 || now == before, "{len}: {round}");
                before = now;
            }
        }
    }

    #[test]
    fn every_length_has_room() {
        let mut spare = BufPool::default();
        for len in [0, 1, SHORTEST, SHORTEST + 1, CHUNK - 1, CHUNK] {
            let room = spare.take(len);
            assert_eq!(room.len(), len);
            spare.give_back(room);
        }
    }
}
