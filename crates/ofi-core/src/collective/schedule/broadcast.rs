//! Barriers, broadcasts, and the ring algorithms that other collectives use too.

use super::{MemoryRange, Planner, RankMemory, Round, transfer};

impl Planner {
    pub(super) fn barrier(&mut self) {
        let mut distance = 1;
        while distance < self.ranks() {
            let send = transfer(self.behind(distance), vec![]);
            let receive = transfer(self.before(distance), vec![]);
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
            distance *= 2;
        }
    }

    /// Binomial tree: in each round every rank with the data sends it to a rank without.
    pub(super) fn broadcast(&mut self) {
        let (me, all) = (self.distance(), MemoryRange::new(RankMemory::Input, 0, self.block));
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

    /// Halves of the array are passed down a tree until each rank has a block; then the blocks circulate in a ring.
    pub(super) fn broadcast_large(&mut self) {
        let (me, ranks) = (self.distance(), self.ranks());
        let range = |planner: &Self, from: usize, to: usize| {
            let (start, end) = (planner.cut(from).0, planner.cut(to - 1));
            vec![MemoryRange::new(RankMemory::Input, start, end.0 + end.1 - start)]
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
            MemoryRange::new(RankMemory::Input, at, len)
        });
    }

    /// Blocks circulate in a ring, in rank order: this rank starts with block `first` and ends with all of them.
    pub(super) fn ring(&mut self, first: usize, block: impl Fn(&Self, usize) -> MemoryRange) {
        let ranks = self.ranks();
        for step in 0..ranks - 1 {
            let part = |steps: usize| vec![block(self, (first + ranks - steps % ranks) % ranks)];
            let send = transfer(self.behind(1), part(step));
            let receive = transfer(self.before(1), part(step + 1));
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }

    /// Blocks circulate in a ring, and each rank combines its own into them: at the end, this rank has the complete
    /// block `last`.
    pub(super) fn ring_combine(&mut self, last: usize, block: impl Fn(&Self, usize) -> MemoryRange) {
        let ranks = self.ranks();
        for step in 0..ranks - 1 {
            let part = |steps: usize| vec![block(self, (last + ranks - steps % ranks) % ranks)];
            let send = transfer(self.behind(1), part(step + 1));
            let mut receive = transfer(self.before(1), part(step + 2));
            receive.combine = true;
            self.push(Round { sends: vec![send], receives: vec![receive], then: vec![] });
        }
    }
}
