//! What one rank does in a collective: rounds of sends and receives, worked out before anything moves.
//!
//! A schedule knows no peers and no bytes, only ranks and ranges, so it is checked by playing all ranks of a group
//! against each other in memory (`tests.rs`). Both ends of a transfer have it in the round of the same number, and a
//! pair of ranks has at most one transfer each way in a round.
//!
//! Small data takes a number of rounds that is logarithmic in the ranks; large data is cut into a block for each rank,
//! so that every rank sends and receives all the time.

use ofi_api::CollectiveKind as Kind;

/// Memory of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The caller's `buf`. A broadcast also writes it.
    Input,
    /// The caller's `result`.
    Result,
    /// The library's own.
    Scratch,
}

/// A range of memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// In which memory.
    pub place: Place,
    /// From where on.
    pub at: usize,
    /// How much.
    pub len: usize,
}

impl Part {
    const fn new(place: Place, at: usize, len: usize) -> Self {
        Self { place, at, len }
    }
}

/// Bytes to send to a rank, or to receive from it: the parts one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The other rank.
    pub rank: usize,
    /// The bytes.
    pub parts: Vec<Part>,
    /// Of a receive: whether they are combined with what is there, instead of replacing it. The range is then not sent
    /// from in the same round.
    pub combine: bool,
}

impl Transfer {
    /// How many there are.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }
}

/// Something to do with own memory. Ranges are equally long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Local {
    /// From where.
    pub from: Part,
    /// To where.
    pub to: Part,
    /// Whether to combine instead of replace.
    pub combine: bool,
}

/// Transfers that run side by side, and what is done when all of them have ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Sends.
    pub sends: Vec<Transfer>,
    /// Receives.
    pub receives: Vec<Transfer>,
    /// What comes after.
    pub then: Vec<Local>,
}

/// What one rank does.
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
    pub kind: Kind,
    /// Ranks.
    pub ranks: usize,
    /// This one.
    pub me: usize,
    /// The root, for those that have one.
    pub root: usize,
    /// Elements: of the whole array for broadcast, reduce and all-reduce; for each rank otherwise.
    pub count: usize,
    /// Bytes of an element.
    pub size: usize,
    /// Up to how many bytes data is small.
    pub small: usize,
}

impl Shape {
    /// How long `buf` and `result` are at this rank, in bytes; 0 for what is not looked at.
    pub fn lengths(&self) -> [usize; 2] {
        let one = self.count * self.size;
        let all = one * self.ranks;
        let at_root = |len| if self.me == self.root { len } else { 0 };
        match self.kind {
            Kind::Barrier => [0, 0],
            Kind::Broadcast => [one, 0],
            Kind::Alltoall => [all, all],
            Kind::Allreduce => [one, one],
            Kind::Allgather => [one, all],
            Kind::ReduceScatter => [all, one],
            Kind::Reduce => [one, at_root(one)],
            Kind::Scatter => [at_root(all), one],
            Kind::Gather => [one, at_root(all)],
        }
    }
}

/// The schedule of a rank.
pub fn plan(shape: &Shape) -> Schedule {
    let block = shape.count * shape.size;
    let mut planner = Planner { shape: *shape, block, out: Schedule::default() };
    let is_small = |bytes: usize| bytes <= shape.small;
    match shape.kind {
        Kind::Barrier => planner.barrier(),
        Kind::Broadcast if is_small(block) => planner.broadcast(),
        Kind::Broadcast => planner.broadcast_large(),
        Kind::Alltoall if is_small(block * shape.ranks) => planner.alltoall(),
        Kind::Alltoall => planner.alltoall_large(),
        Kind::Allreduce if is_small(block) => {
            planner.copy_in(Place::Result);
            planner.allreduce(Place::Result, block, 0);
        }
        Kind::Allreduce => planner.allreduce_large(),
        Kind::Allgather if is_small(block * shape.ranks) => planner.allgather(),
        Kind::Allgather => planner.allgather_large(),
        Kind::ReduceScatter if is_small(block * shape.ranks) => planner.reduce_scatter(),
        Kind::ReduceScatter => planner.reduce_scatter_large(),
        Kind::Reduce if is_small(block) => planner.reduce(),
        Kind::Reduce => planner.reduce_large(),
        Kind::Scatter if is_small(block * shape.ranks) => planner.scatter(),
        Kind::Scatter => planner.scatter_large(),
        Kind::Gather if is_small(block * shape.ranks) => planner.gather(),
        Kind::Gather => planner.gather_large(),
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

    /// The rank `steps` behind this one.
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

    /// Something to do at the end.
    fn finally(&mut self, local: Local) {
        match self.out.rounds.last_mut() {
            Some(round) => round.then.push(local),
            None => self.out.first.push(local),
        }
    }

    fn copy(&mut self, from: Part, to: Part) -> Local {
        Local { from, to, combine: false }
    }

    /// Copies all of the input to the front of `place`.
    fn copy_in(&mut self, place: Place) {
        let len = self.shape.lengths()[0];
        let local = self.copy(Part::new(Place::Input, 0, len), Part::new(place, 0, len));
        self.out.first.push(local);
    }

    /// The range of block `index` of an array of `count` elements that is cut into one for each rank.
    fn cut(&self, index: usize) -> (usize, usize) {
        let edge = |index: usize| index * self.shape.count / self.ranks() * self.shape.size;
        (edge(index), edge(index + 1) - edge(index))
    }

    fn barrier(&mut self) {
        let mut distance = 1;
        while distance < self.ranks() {
            let send = transfer(self.behind(distance), vec![]);
            let receive = transfer(self.before(distance), vec![]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
            distance *= 2;
        }
    }

    /// Binomial tree: in each round whoever has the data sends it to one who has not.
    fn broadcast(&mut self) {
        let (me, all) = (self.distance(), Part::new(Place::Input, 0, self.block));
        let mut have = 1;
        while have < self.ranks() {
            let mut round = Round::default();
            if me < have && me + have < self.ranks() {
                round.sends.push(transfer(self.at_distance(me + have), vec![all]));
            } else if (have..2 * have).contains(&me) {
                round.receives.push(transfer(self.at_distance(me - have), vec![all]));
            }
            self.push(round);
            have *= 2;
        }
    }

    /// Halves of the array go down a tree until each rank has a block, then the blocks go round a ring.
    fn broadcast_large(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        let range = |planner: &Self, from: usize, to: usize| {
            let (start, end) = (planner.cut(from).0, planner.cut(to - 1));
            vec![Part::new(Place::Input, start, end.0 + end.1 - start)]
        };
        let mut half = ranks.next_power_of_two() / 2;
        while half > 0 {
            let mut round = Round::default();
            let end = |from: usize| (from + half).min(ranks);
            if me.is_multiple_of(2 * half) && me + half < ranks {
                let parts = range(self, me + half, end(me + half));
                round.sends.push(transfer(self.at_distance(me + half), parts));
            } else if me % (2 * half) == half {
                round.receives.push(transfer(self.at_distance(me - half), range(self, me, end(me))));
            }
            self.push(round);
            half /= 2;
        }
        self.ring(me, |planner, index| {
            let (at, len) = planner.cut(index);
            Part::new(Place::Input, at, len)
        });
    }

    /// Blocks go round a ring: this rank begins with block `first`, and in the end has all. The ring has the ranks' order.
    fn ring(&mut self, first: usize, block: impl Fn(&Self, usize) -> Part) {
        let ranks = self.ranks();
        for step in 0..ranks - 1 {
            let part = |steps: usize| vec![block(self, (first + ranks - steps % ranks) % ranks)];
            let send = transfer(self.behind(1), part(step));
            let receive = transfer(self.before(1), part(step + 1));
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }

    /// Blocks go round a ring, each combined with every rank's: in the end this rank has all of block `last`.
    fn ring_combine(&mut self, last: usize, block: impl Fn(&Self, usize) -> Part) {
        let ranks = self.ranks();
        for step in 0..ranks - 1 {
            let part = |steps: usize| vec![block(self, (last + ranks - steps % ranks) % ranks)];
            let send = transfer(self.behind(1), part(step + 1));
            let mut receive = transfer(self.before(1), part(step + 2));
            receive.combine = true;
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }

    /// Recursive doubling on `len` bytes at the front of `place`, with scratch memory from `scratch` on. Ranks beyond a
    /// power of two hand theirs to a neighbour first.
    fn allreduce(&mut self, place: Place, len: usize, scratch: usize) {
        let (me, ranks) = (self.shape.me, self.ranks());
        let core = 1 << ranks.ilog2();
        let beyond = ranks - core;
        let (all, other) = (Part::new(place, 0, len), Part::new(Place::Scratch, scratch, len));
        self.out.scratch = self.out.scratch.max(scratch + len);
        let paired = me < 2 * beyond;
        let is_out = paired && me % 2 == 1;
        if beyond > 0 {
            let mut round = Round::default();
            if is_out {
                round.sends.push(transfer(me - 1, vec![all]));
            } else if paired {
                round.receives.push(Transfer { rank: me + 1, parts: vec![all], combine: true });
            }
            self.push(round);
        }
        let number = if paired { me / 2 } else { me - beyond };
        let rank_of = |number: usize| if number < beyond { 2 * number } else { number + beyond };
        let mut distance = 1;
        while distance < core {
            let mut round = Round::default();
            if !is_out {
                let partner = rank_of(number ^ distance);
                round.sends.push(transfer(partner, vec![all]));
                round.receives.push(transfer(partner, vec![other]));
                // Both combine in the same order, so that both get the same bits.
                if me < partner {
                    round.then.push(Local { from: other, to: all, combine: true });
                } else {
                    round.then.push(Local { from: all, to: other, combine: true });
                    round.then.push(Local { from: other, to: all, combine: false });
                }
            }
            self.push(round);
            distance *= 2;
        }
        if beyond > 0 {
            let mut round = Round::default();
            if is_out {
                round.receives.push(transfer(me - 1, vec![all]));
            } else if paired {
                round.sends.push(transfer(me + 1, vec![all]));
            }
            self.push(round);
        }
    }

    fn allreduce_large(&mut self) {
        self.copy_in(Place::Result);
        let block = |planner: &Self, index: usize| {
            let (at, len) = planner.cut(index);
            Part::new(Place::Result, at, len)
        };
        let me = self.shape.me;
        self.ring_combine(me, block);
        self.ring(me, block);
    }

    /// Binomial tree towards the root.
    fn reduce(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        let place = self.work();
        let all = Part::new(place, 0, self.block);
        let mut distance = 1;
        while distance < ranks {
            let mut round = Round::default();
            if me % (2 * distance) == distance {
                round.sends.push(transfer(self.at_distance(me - distance), vec![all]));
            } else if me.is_multiple_of(2 * distance) && me + distance < ranks {
                let rank = self.at_distance(me + distance);
                round.receives.push(Transfer { rank, parts: vec![all], combine: true });
            }
            self.push(round);
            distance *= 2;
        }
    }

    /// A copy of the input to work on: the root's result, others' scratch memory.
    fn work(&mut self) -> Place {
        let place = if self.distance() == 0 { Place::Result } else { Place::Scratch };
        if place == Place::Scratch {
            self.out.scratch = self.block;
        }
        self.copy_in(place);
        place
    }

    /// Each rank combines a block, and the root collects them.
    fn reduce_large(&mut self) {
        let place = self.work();
        let block = |planner: &Self, index: usize| {
            let (at, len) = planner.cut(index);
            Part::new(place, at, len)
        };
        let (me, root) = (self.shape.me, self.shape.root);
        self.ring_combine(me, block);
        let mut round = Round::default();
        if me == root {
            let others = (0..self.ranks()).filter(|&rank| rank != root);
            round.receives = others.map(|rank| transfer(rank, vec![block(self, rank)])).collect();
        } else {
            round.sends.push(transfer(root, vec![block(self, me)]));
        }
        self.push(round);
    }

    /// All-reduce of the whole, of which each rank takes its part.
    fn reduce_scatter(&mut self) {
        let all = self.block * self.ranks();
        self.out.scratch = 2 * all;
        self.copy_in(Place::Scratch);
        self.allreduce(Place::Scratch, all, all);
        self.take_block(self.shape.me);
    }

    fn reduce_scatter_large(&mut self) {
        self.out.scratch = self.block * self.ranks();
        self.copy_in(Place::Scratch);
        self.ring_combine(self.shape.me, |planner, index| planner.nth(Place::Scratch, index));
        self.take_block(self.shape.me);
    }

    /// Copies block `index` of the scratch memory to the result.
    fn take_block(&mut self, index: usize) {
        let (from, to) = (self.nth(Place::Scratch, index), Part::new(Place::Result, 0, self.block));
        let local = self.copy(from, to);
        self.finally(local);
    }

    /// Block `index` of an array of as many blocks as ranks.
    fn nth(&self, place: Place, index: usize) -> Part {
        Part::new(place, index * self.block, self.block)
    }

    /// Bruck: in each round twice as many blocks, counted from this rank on.
    fn allgather(&mut self) {
        let ranks = self.ranks();
        self.out.scratch = self.block * ranks;
        self.copy_in(Place::Scratch);
        let mut have = 1;
        while have < ranks {
            let count = have.min(ranks - have);
            let part = |from: usize| Part::new(Place::Scratch, from * self.block, count * self.block);
            let send = transfer(self.before(have), vec![part(0)]);
            let receive = transfer(self.behind(have), vec![part(have)]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
            have *= 2;
        }
        for index in 0..ranks {
            let (from, to) = (self.nth(Place::Scratch, index), self.nth(Place::Result, self.behind(index)));
            let local = self.copy(from, to);
            self.finally(local);
        }
    }

    fn allgather_large(&mut self) {
        let (from, to) = (Part::new(Place::Input, 0, self.block), self.nth(Place::Result, self.shape.me));
        let local = self.copy(from, to);
        self.out.first.push(local);
        self.ring(self.shape.me, |planner, index| planner.nth(Place::Result, index));
    }

    /// Bruck: block `i` has to travel `i` ranks, and in round `k` moves on by `2^k` if `i` has that bit.
    fn alltoall(&mut self) {
        let ranks = self.ranks();
        let moving = ranks * self.block;
        self.out.scratch = 2 * moving;
        for index in 0..ranks {
            let (from, to) = (self.nth(Place::Input, self.behind(index)), self.nth(Place::Scratch, index));
            let local = self.copy(from, to);
            self.out.first.push(local);
        }
        let mut distance = 1;
        while distance < ranks {
            let travel: Vec<usize> = (0..ranks).filter(|index| index & distance != 0).collect();
            let parts = travel.iter().map(|&index| self.nth(Place::Scratch, index)).collect();
            let landing = Part::new(Place::Scratch, moving, travel.len() * self.block);
            let then = travel.iter().enumerate().map(|(nth, &index)| Local {
                from: Part::new(Place::Scratch, moving + nth * self.block, self.block),
                to: self.nth(Place::Scratch, index),
                combine: false,
            });
            let round = Round {
                sends: vec![transfer(self.behind(distance), parts)],
                receives: vec![transfer(self.before(distance), vec![landing])],
                then: then.collect(),
            };
            self.push(round);
            distance *= 2;
        }
        for index in 0..ranks {
            let (from, to) = (self.nth(Place::Scratch, index), self.nth(Place::Result, self.before(index)));
            let local = self.copy(from, to);
            self.finally(local);
        }
    }

    fn alltoall_large(&mut self) {
        let me = self.shape.me;
        let local = self.copy(self.nth(Place::Input, me), self.nth(Place::Result, me));
        self.out.first.push(local);
        for distance in 1..self.ranks() {
            let (to, from) = (self.behind(distance), self.before(distance));
            let send = transfer(to, vec![self.nth(Place::Input, to)]);
            let receive = transfer(from, vec![self.nth(Place::Result, from)]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }

    /// Blocks of the ranks at distances `from..to` of the root. Others than the root keep those that pass through them
    /// in scratch memory, their own first.
    fn passing(&self, root_place: Place, from: usize, to: usize) -> Vec<Part> {
        let me = self.distance();
        if me != 0 {
            return vec![Part::new(Place::Scratch, (from - me) * self.block, (to - from) * self.block)];
        }
        let (first, count) = (self.at_distance(from), to - from);
        let straight = count.min(self.ranks() - first);
        let mut parts = vec![Part::new(root_place, first * self.block, straight * self.block)];
        if straight < count {
            parts.push(Part::new(root_place, 0, (count - straight) * self.block));
        }
        parts
    }

    /// Binomial tree: the root hands halves on.
    fn scatter(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        self.out.scratch = if me == 0 { 0 } else { ranks * self.block };
        let mut half = ranks.next_power_of_two() / 2;
        while half > 0 {
            let mut round = Round::default();
            if me.is_multiple_of(2 * half) && me + half < ranks {
                let parts = self.passing(Place::Input, me + half, (me + 2 * half).min(ranks));
                round.sends.push(transfer(self.at_distance(me + half), parts));
            } else if me % (2 * half) == half {
                let parts = self.passing(Place::Input, me, (me + half).min(ranks));
                round.receives.push(transfer(self.at_distance(me - half), parts));
            }
            self.push(round);
            half /= 2;
        }
        let from = if me == 0 { self.nth(Place::Input, self.shape.me) } else { self.nth(Place::Scratch, 0) };
        let local = self.copy(from, Part::new(Place::Result, 0, self.block));
        self.finally(local);
    }

    fn scatter_large(&mut self) {
        let root = self.shape.root;
        let mut round = Round::default();
        let own = Part::new(Place::Result, 0, self.block);
        if self.distance() == 0 {
            let others = (0..self.ranks()).filter(|&rank| rank != root);
            round.sends = others.map(|rank| transfer(rank, vec![self.nth(Place::Input, rank)])).collect();
            let local = self.copy(self.nth(Place::Input, root), own);
            self.out.first.push(local);
        } else {
            round.receives.push(transfer(root, vec![own]));
        }
        self.push(round);
    }

    /// Binomial tree towards the root.
    fn gather(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        self.out.scratch = if me == 0 { 0 } else { ranks * self.block };
        let own = if me == 0 { self.nth(Place::Result, self.shape.me) } else { self.nth(Place::Scratch, 0) };
        let local = self.copy(Part::new(Place::Input, 0, self.block), own);
        self.out.first.push(local);
        let mut distance = 1;
        while distance < ranks {
            let mut round = Round::default();
            if me % (2 * distance) == distance {
                let parts = self.passing(Place::Result, me, (me + distance).min(ranks));
                round.sends.push(transfer(self.at_distance(me - distance), parts));
            } else if me.is_multiple_of(2 * distance) && me + distance < ranks {
                let parts = self.passing(Place::Result, me + distance, (me + 2 * distance).min(ranks));
                round.receives.push(transfer(self.at_distance(me + distance), parts));
            }
            self.push(round);
            distance *= 2;
        }
    }

    fn gather_large(&mut self) {
        let (me, root) = (self.shape.me, self.shape.root);
        let own = Part::new(Place::Input, 0, self.block);
        let mut round = Round::default();
        if me == root {
            let others = (0..self.ranks()).filter(|&rank| rank != root);
            round.receives = others.map(|rank| transfer(rank, vec![self.nth(Place::Result, rank)])).collect();
            let local = self.copy(own, self.nth(Place::Result, root));
            self.out.first.push(local);
        } else {
            round.sends.push(transfer(root, vec![own]));
        }
        self.push(round);
    }
}

fn transfer(rank: usize, parts: Vec<Part>) -> Transfer {
    Transfer { rank, parts, combine: false }
}
