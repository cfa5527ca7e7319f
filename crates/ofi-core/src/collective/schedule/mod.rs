//! The steps of one rank in a collective: rounds of sends and receives, planned before anything is sent.
//!
//! A schedule contains only ranks and ranges, no peers or bytes, so tests simulate all ranks of a group in memory
//! (`tests.rs`). Both ends of a transfer have it in the same round, and a pair of ranks has at most one transfer in
//! each direction in a round.
//!
//! Small data takes a number of rounds that is logarithmic in the number of ranks. Large data is divided into a block
//! for each rank, so that every rank sends and receives all the time.

mod broadcast;
mod exchange;
mod reduce;

use ofi_api::CollectiveKind as ControlKind;

/// Memory of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankMemory {
    /// The caller's `buf`. A broadcast also writes it.
    Input,
    /// The caller's `result`.
    Result,
    /// The library's own.
    Scratch,
}

/// A range of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryRange {
    /// In which memory.
    pub place: RankMemory,
    /// From where on.
    pub at: usize,
    /// Its length.
    pub len: usize,
}

impl MemoryRange {
    const fn new(place: RankMemory, at: usize, len: usize) -> Self {
        Self { place, at, len }
    }
}

/// Bytes to send to a rank, or to receive from it: the parts in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other rank.
    pub rank: usize,
    /// The bytes.
    pub parts: Vec<MemoryRange>,
    /// For a receive: combines the elements with those already there instead of replacing them. The range is then not
    /// sent in the same round.
    pub combine: bool,
}

impl Transfer {
    /// Their number.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }
}

/// A step on local memory. Ranges are equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// From where.
    pub from: MemoryRange,
    /// To where.
    pub to: MemoryRange,
    /// Whether to combine instead of replace.
    pub combine: bool,
}

/// Transfers that run concurrently, and the local steps after all of them have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Sends.
    pub sends: Vec<Transfer>,
    /// Receives.
    pub receives: Vec<Transfer>,
    /// Steps after the transfers.
    pub then: Vec<Local>,
}

/// The schedule of one rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Before the first round.
    pub first: Vec<Local>,
    /// The rounds.
    pub rounds: Vec<Round>,
    /// Bytes of scratch memory.
    pub scratch: usize,
}

/// A collective, as one rank sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Which.
    pub kind: ControlKind,
    /// Ranks.
    pub ranks: usize,
    /// This one.
    pub me: usize,
    /// The root, for those that have one.
    pub root: usize,
    /// The number of elements: of the whole array for broadcast, reduce and all-reduce; for each rank otherwise.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
    /// The largest size of small data, in bytes.
    pub small: usize,
}

impl Shape {
    /// The lengths of `buf` and `result` at this rank, in bytes; 0 for one that is not used.
    pub fn lengths(&self) -> [usize; 2] {
        let one = self.count * self.size;
        let all = one * self.ranks;
        let at_root = |len| if self.me == self.root { len } else { 0 };
        match self.kind {
            ControlKind::Barrier => [0, 0],
            ControlKind::Broadcast => [one, 0],
            ControlKind::Alltoall => [all, all],
            ControlKind::Allreduce => [one, one],
            ControlKind::Allgather => [one, all],
            ControlKind::ReduceScatter => [all, one],
            ControlKind::Reduce => [one, at_root(one)],
            ControlKind::Scatter => [at_root(all), one],
            ControlKind::Gather => [one, at_root(all)],
        }
    }
}

/// The schedule of a rank.
pub fn plan(shape: &Shape) -> Schedule {
    let block = shape.count * shape.size;
    let mut planner = Planner { shape: *shape, block, out: Schedule::default() };
    let is_small = |bytes: usize| bytes <= shape.small;
    match shape.kind {
        ControlKind::Barrier => planner.barrier(),
        ControlKind::Broadcast if is_small(block) => planner.broadcast(),
        ControlKind::Broadcast => planner.broadcast_large(),
        ControlKind::Alltoall if is_small(block * shape.ranks) => planner.alltoall(),
        ControlKind::Alltoall => planner.alltoall_large(),
        ControlKind::Allreduce if is_small(block) => {
            planner.copy_in(RankMemory::Result);
            planner.allreduce(RankMemory::Result, block, 0);
        }
        ControlKind::Allreduce => planner.allreduce_large(),
        ControlKind::Allgather if is_small(block * shape.ranks) => planner.allgather(),
        ControlKind::Allgather => planner.allgather_large(),
        ControlKind::ReduceScatter if is_small(block * shape.ranks) => planner.reduce_scatter(),
        ControlKind::ReduceScatter => planner.reduce_scatter_large(),
        ControlKind::Reduce if is_small(block) => planner.reduce(),
        ControlKind::Reduce => planner.reduce_large(),
        ControlKind::Scatter if is_small(block * shape.ranks) => planner.scatter(),
        ControlKind::Scatter => planner.scatter_large(),
        ControlKind::Gather if is_small(block * shape.ranks) => planner.gather(),
        ControlKind::Gather => planner.gather_large(),
    }
    planner.out
}

struct Planner {
    shape: Shape,
    /// `count` elements.
    block: usize,
    out: Schedule,
}

impl Planner {
    fn ranks(&self) -> usize {
        self.shape.ranks
    }

    /// The rank `steps` after this one.
    fn behind(&self, steps: usize) -> usize {
        (self.shape.me + steps) % self.ranks()
    }

    /// The rank `steps` before this one.
    fn before(&self, steps: usize) -> usize {
        (self.shape.me + self.ranks() - steps % self.ranks()) % self.ranks()
    }

    /// This rank, counted from the root on.
    fn distance(&self) -> usize {
        (self.shape.me + self.ranks() - self.shape.root) % self.ranks()
    }

    /// The rank that is `distance` behind the root.
    fn at_distance(&self, distance: usize) -> usize {
        (self.shape.root + distance) % self.ranks()
    }

    fn push(&mut self, round: Round) {
        self.out.rounds.push(round);
    }

    /// A step at the end.
    fn finally(&mut self, local: Local) {
        match self.out.rounds.last_mut() {
            Some(round) => round.then.push(local),
            None => self.out.first.push(local),
        }
    }

    fn copy(&mut self, from: MemoryRange, to: MemoryRange) -> Local {
        Local { from, to, combine: false }
    }

    /// Copies all of the input to the front of `place`.
    fn copy_in(&mut self, place: RankMemory) {
        let len = self.shape.lengths()[0];
        let local = self.copy(MemoryRange::new(RankMemory::Input, 0, len), MemoryRange::new(place, 0, len));
        self.out.first.push(local);
    }

    /// The range of block `index`, if an array of `count` elements is divided into a block for each rank.
    fn cut(&self, index: usize) -> (usize, usize) {
        let edge = |index: usize| index * self.shape.count / self.ranks() * self.shape.size;
        (edge(index), edge(index + 1) - edge(index))
    }

    /// Block `index` of an array of as many blocks as ranks.
    fn nth(&self, place: RankMemory, index: usize) -> MemoryRange {
        MemoryRange::new(place, index * self.block, self.block)
    }
}

fn transfer(rank: usize, parts: Vec<MemoryRange>) -> Transfer {
    Transfer { rank, parts, combine: false }
}
