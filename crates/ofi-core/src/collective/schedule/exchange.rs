//! Collectives that move blocks between ranks without combining them.

use super::{Local, MemoryRange, Planner, RankMemory, Round, transfer};

impl Planner {
    /// Bruck: each round doubles the number of blocks, counted from this rank on.
    pub(super) fn allgather(&mut self) {
        let ranks = self.ranks();
        self.out.scratch = self.block * ranks;
        self.copy_in(RankMemory::Scratch);
        let mut have = 1;
        while have < ranks {
            let count = have.min(ranks - have);
            let part =
                |from: usize| MemoryRange::new(RankMemory::Scratch, from * self.block, count * self.block);
            let send = transfer(self.before(have), vec![part(0)]);
            let receive = transfer(self.behind(have), vec![part(have)]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
            have *= 2;
        }
        for index in 0..ranks {
            let (from, to) =
                (self.nth(RankMemory::Scratch, index), self.nth(RankMemory::Result, self.behind(index)));
            let local = self.copy(from, to);
            self.finally(local);
        }
    }

    pub(super) fn allgather_large(&mut self) {
        let (from, to) =
            (MemoryRange::new(RankMemory::Input, 0, self.block), self.nth(RankMemory::Result, self.shape.me));
        let local = self.copy(from, to);
        self.out.first.push(local);
        self.ring(self.shape.me, |planner, index| planner.nth(RankMemory::Result, index));
    }

    /// Bruck: block `i` has to travel `i` ranks; in round `k` it moves on by `2^k` if `i` has that bit.
    pub(super) fn alltoall(&mut self) {
        let ranks = self.ranks();
        let moving = ranks * self.block;
        self.out.scratch = 2 * moving;
        for index in 0..ranks {
            let (from, to) =
                (self.nth(RankMemory::Input, self.behind(index)), self.nth(RankMemory::Scratch, index));
            let local = self.copy(from, to);
            self.out.first.push(local);
        }
        let mut distance = 1;
        while distance < ranks {
            let travel: Vec<usize> = (0..ranks).filter(|index| index & distance != 0).collect();
            let parts = travel.iter().map(|&index| self.nth(RankMemory::Scratch, index)).collect();
            let landing = MemoryRange::new(RankMemory::Scratch, moving, travel.len() * self.block);
            let then = travel.iter().enumerate().map(|(nth, &index)| Local {
                from: MemoryRange::new(RankMemory::Scratch, moving + nth * self.block, self.block),
                to: self.nth(RankMemory::Scratch, index),
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
            let (from, to) =
                (self.nth(RankMemory::Scratch, index), self.nth(RankMemory::Result, self.before(index)));
            let local = self.copy(from, to);
            self.finally(local);
        }
    }

    pub(super) fn alltoall_large(&mut self) {
        let me = self.shape.me;
        let local = self.copy(self.nth(RankMemory::Input, me), self.nth(RankMemory::Result, me));
        self.out.first.push(local);
        for distance in 1..self.ranks() {
            let (to, from) = (self.behind(distance), self.before(distance));
            let send = transfer(to, vec![self.nth(RankMemory::Input, to)]);
            let receive = transfer(from, vec![self.nth(RankMemory::Result, from)]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }

    /// Blocks of the ranks at distances `from..to` from the root. Ranks other than the root keep the blocks that pass
    /// through them in scratch memory, their own first.
    pub(super) fn passing(&self, root_place: RankMemory, from: usize, to: usize) -> Vec<MemoryRange> {
        let me = self.distance();
        if me != 0 {
            return vec![MemoryRange::new(
                RankMemory::Scratch,
                (from - me) * self.block,
                (to - from) * self.block,
            )];
        }
        let (first, count) = (self.at_distance(from), to - from);
        let straight = count.min(self.ranks() - first);
        let mut parts = vec![MemoryRange::new(root_place, first * self.block, straight * self.block)];
        if straight < count {
            parts.push(MemoryRange::new(root_place, 0, (count - straight) * self.block));
        }
        parts
    }

    /// Binomial tree: the root hands halves on.
    pub(super) fn scatter(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        self.out.scratch = if me == 0 { 0 } else { ranks * self.block };
        let mut half = ranks.next_power_of_two() / 2;
        while half > 0 {
            let mut round = Round::default();
            if me.is_multiple_of(2 * half) && me + half < ranks {
                let parts = self.passing(RankMemory::Input, me + half, (me + 2 * half).min(ranks));
                round.sends.push(transfer(self.at_distance(me + half), parts));
            } else if me % (2 * half) == half {
                let parts = self.passing(RankMemory::Input, me, (me + half).min(ranks));
                round.receives.push(transfer(self.at_distance(me - half), parts));
            }
            self.push(round);
            half /= 2;
        }
        let from = if me == 0 {
            self.nth(RankMemory::Input, self.shape.me)
        } else {
            self.nth(RankMemory::Scratch, 0)
        };
        let local = self.copy(from, MemoryRange::new(RankMemory::Result, 0, self.block));
        self.finally(local);
    }

    pub(super) fn scatter_large(&mut self) {
        let root = self.shape.root;
        let mut round = Round::default();
        let own = MemoryRange::new(RankMemory::Result, 0, self.block);
        if self.distance() == 0 {
            let others = (0..self.ranks()).filter(|&rank| rank != root);
            round.sends =
                others.map(|rank| transfer(rank, vec![self.nth(RankMemory::Input, rank)])).collect();
            let local = self.copy(self.nth(RankMemory::Input, root), own);
            self.out.first.push(local);
        } else {
            round.receives.push(transfer(root, vec![own]));
        }
        self.push(round);
    }

    /// Binomial tree towards the root.
    pub(super) fn gather(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        self.out.scratch = if me == 0 { 0 } else { ranks * self.block };
        let own = if me == 0 {
            self.nth(RankMemory::Result, self.shape.me)
        } else {
            self.nth(RankMemory::Scratch, 0)
        };
        let local = self.copy(MemoryRange::new(RankMemory::Input, 0, self.block), own);
        self.out.first.push(local);
        let mut distance = 1;
        while distance < ranks {
            let mut round = Round::default();
            if me % (2 * distance) == distance {
                let parts = self.passing(RankMemory::Result, me, (me + distance).min(ranks));
                round.sends.push(transfer(self.at_distance(me - distance), parts));
            } else if me.is_multiple_of(2 * distance) && me + distance < ranks {
                let parts = self.passing(RankMemory::Result, me + distance, (me + 2 * distance).min(ranks));
                round.receives.push(transfer(self.at_distance(me + distance), parts));
            }
            self.push(round);
            distance *= 2;
        }
    }

    pub(super) fn gather_large(&mut self) {
        let (me, root) = (self.shape.me, self.shape.root);
        let own = MemoryRange::new(RankMemory::Input, 0, self.block);
        let mut round = Round::default();
        if me == root {
            let others = (0..self.ranks()).filter(|&rank| rank != root);
            round.receives =
                others.map(|rank| transfer(rank, vec![self.nth(RankMemory::Result, rank)])).collect();
            let local = self.copy(own, self.nth(RankMemory::Result, root));
            self.out.first.push(local);
        } else {
            round.sends.push(transfer(root, vec![own]));
        }
        self.push(round);
    }
}
