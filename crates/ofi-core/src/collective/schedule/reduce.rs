//! Collectives that combine elements.

use super::{Local, MemoryRange, Planner, RankMemory, Round, Transfer, transfer};

impl Planner {
    /// Recursive doubling on `len` bytes at the start of `place`, with scratch memory from `scratch` on. Ranks beyond a
    /// power of two first pass theirs to a neighbour.
    pub(super) fn allreduce(&mut self, place: RankMemory, len: usize, scratch: usize) {
        let (me, ranks) = (self.shape.me, self.ranks());
        let core = 1 << ranks.ilog2();
        let beyond = ranks - core;
        let (all, other) =
            (MemoryRange::new(place, 0, len), MemoryRange::new(RankMemory::Scratch, scratch, len));
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
                // Both ends combine in the same order, so that they get the same bits.
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

    pub(super) fn allreduce_large(&mut self) {
        self.copy_in(RankMemory::Result);
        let block = |planner: &Self, index: usize| {
            let (at, len) = planner.cut(index);
            MemoryRange::new(RankMemory::Result, at, len)
        };
        let me = self.shape.me;
        self.ring_combine(me, block);
        self.ring(me, block);
    }

    /// Binomial tree towards the root.
    pub(super) fn reduce(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        let place = self.work();
        let all = MemoryRange::new(place, 0, self.block);
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
    pub(super) fn work(&mut self) -> RankMemory {
        let place = if self.distance() == 0 { RankMemory::Result } else { RankMemory::Scratch };
        if place == RankMemory::Scratch {
            self.out.scratch = self.block;
        }
        self.copy_in(place);
        place
    }

    /// Each rank combines a block, and the root collects them.
    pub(super) fn reduce_large(&mut self) {
        let place = self.work();
        let block = |planner: &Self, index: usize| {
            let (at, len) = planner.cut(index);
            MemoryRange::new(place, at, len)
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

    /// All-reduce of the whole array, from which each rank takes its part.
    pub(super) fn reduce_scatter(&mut self) {
        let all = self.block * self.ranks();
        self.out.scratch = 2 * all;
        self.copy_in(RankMemory::Scratch);
        self.allreduce(RankMemory::Scratch, all, all);
        self.take_block(self.shape.me);
    }

    pub(super) fn reduce_scatter_large(&mut self) {
        self.out.scratch = self.block * self.ranks();
        self.copy_in(RankMemory::Scratch);
        self.ring_combine(self.shape.me, |planner, index| planner.nth(RankMemory::Scratch, index));
        self.take_block(self.shape.me);
    }

    /// Copies block `index` of the scratch memory to the result.
    pub(super) fn take_block(&mut self, index: usize) {
        let (from, to) =
            (self.nth(RankMemory::Scratch, index), MemoryRange::new(RankMemory::Result, 0, self.block));
        let local = self.copy(from, to);
        self.finally(local);
    }
}
