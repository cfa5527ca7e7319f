//! Chooses between two ways of moving a peer's payloads by measurement.
//!
//! Each size class (a power of two) tries both ways and then uses the faster one. The slower one is tried again now and
//! then, less often the longer it keeps losing, because huge pages, another core or a competing program may change the
//! outcome.

/// Two ways. The first one is used until something is known.
pub trait Ways: Copy + PartialEq {
    /// Both of them.
    const BOTH: [Self; 2];
    /// The base-2 logarithm, rounded down, of the longest payloads in the first size class.
    const FIRST_CLASS: u32;
    /// The number of messages in a trial of either way. The first ones are not counted, because they find memory as the
    /// other way left it.
    const TRIAL: u32;
    const SKIPPED: u32;

    /// The place in `BOTH`.
    fn index(self) -> usize;

    /// The other one of the two.
    fn other(self) -> Self {
        Self::BOTH[1 - self.index()]
    }
}

/// The number of messages between two trials of the slower way, at first and at most. With the maximum, a trial of a
/// way that takes twice as long costs a thousandth.
const SELDOM: u32 = 64;
const HARDLY_EVER: u32 = 4096;
/// A way must be better by this factor to replace the other, because measurements are noisy.
const MARGIN: f32 = 0.95;

/// The measurements of one size class.
#[derive(Clone, Copy, Debug)]
struct Class<W> {
    /// The current way.
    way: W,
    /// The cost of a byte by each way; 0 before the first measurement.
    cost: [f32; 2],
    /// Messages left in the current trial: of `way.other()` if `settled`, else of `way`.
    trial: u32,
    /// Both have been tried.
    settled: bool,
    /// How many measurements of the current trial are still to be ignored.
    skip: u32,
    /// Messages until the next trial, and the interval that this counts down from.
    until: u32,
    interval: u32,
}

/// The measured costs of two ways of moving one peer's payloads, in `CLASSES` size classes: the last one has all longer
/// payloads.
pub struct Choice<W, const CLASSES: usize> {
    classes: [Class<W>; CLASSES],
}

impl<W: Ways, const CLASSES: usize> Default for Choice<W, CLASSES> {
    fn default() -> Self {
        let fresh = Class {
            way: W::BOTH[0],
            cost: [0.0; 2],
            trial: W::TRIAL,
            settled: false,
            skip: W::SKIPPED,
            until: SELDOM,
            interval: SELDOM,
        };
        Self { classes: [fresh; CLASSES] }
    }
}

impl<W: Ways, const CLASSES: usize> Choice<W, CLASSES> {
    /// The size class of a payload.
    pub fn class_of(len: usize) -> usize {
        (len.max(1).ilog2().saturating_sub(W::FIRST_CLASS) as usize).min(CLASSES - 1)
    }

    /// Chooses the way of a message of `len` bytes.
    pub fn choose(&mut self, len: usize) -> W {
        let class = &mut self.classes[Self::class_of(len)];
        if !class.settled {
            if class.trial == 0 {
                if class.way == W::BOTH[0] {
                    (class.way, class.trial, class.skip) = (W::BOTH[1], W::TRIAL, W::SKIPPED);
                } else {
                    class.settled = true;
                    class.decide();
                }
            }
            class.trial = class.trial.saturating_sub(1);
            return class.way;
        }
        if class.trial > 0 {
            class.trial -= 1;
            return class.way.other();
        }
        if class.until == 0 {
            class.decide();
            class.until = class.interval;
            (class.trial, class.skip) = (W::TRIAL - 1, W::SKIPPED);
            return class.way.other();
        }
        class.until -= 1;
        class.way
    }

    /// The way that [`choose`](Self::choose) will return for a message of `len` bytes, unless it begins a trial or
    /// decides anew.
    pub fn next(&self, len: usize) -> W {
        let class = &self.classes[Self::class_of(len)];
        let is_trial = class.settled && class.trial > 0;
        if is_trial { class.way.other() } else { class.way }
    }

    /// Whether to measure a message of `len` bytes for which [`choose`](Self::choose) just returned this way: it is
    /// part of a trial, or one of `every` of its size class.
    pub fn samples(&self, way: W, len: usize, every: u32) -> bool {
        let class = &self.classes[Self::class_of(len)];
        !class.settled || class.way != way || class.until.is_multiple_of(every)
    }

    /// Records the cost per byte, in any unit, of a message of `len` bytes that went this way.
    pub fn measured(&mut self, way: W, len: usize, cost: f32) {
        let class = &mut self.classes[Self::class_of(len)];
        let on_trial = if class.settled { class.way.other() == way } else { class.way == way };
        if on_trial && class.skip > 0 {
            class.skip -= 1;
            class.cost[way.index()] = 0.0; // an old cost says little
            return;
        }
        let sample = cost.max(f32::MIN_POSITIVE);
        let cost = &mut class.cost[way.index()];
        *cost = match *cost {
            0.0 => sample,
            known if on_trial => (known + sample) / 2.0,
            // Outside events (another program had the core) make samples longer, never shorter.
            known => known + (sample.min(2.0 * known) - known) / 8.0,
        };
        class.decide();
    }

    /// Records that a message of `len` bytes could not go the second way.
    pub fn failed(&mut self, len: usize) {
        let class = &mut self.classes[Self::class_of(len)];
        (class.way, class.trial, class.settled) = (W::BOTH[0], 0, true);
        class.interval = HARDLY_EVER;
        class.until = class.interval;
    }
}

impl<W: Ways> Class<W> {
    /// Switches to the way that is cheaper now.
    fn decide(&mut self) {
        if !self.settled {
            return;
        }
        let (mine, its) = (self.cost[self.way.index()], self.cost[self.way.other().index()]);
        if mine == 0.0 && its == 0.0 {
            self.way = W::BOTH[0];
        } else if its != 0.0 && (mine == 0.0 || its < mine * MARGIN) {
            (self.way, self.trial) = (self.way.other(), 0);
            (self.interval, self.until) = (SELDOM, SELDOM);
        } else if its != 0.0 && self.until == 0 {
            self.interval = (self.interval * 2).min(HARDLY_EVER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Path;

    type Choice = super::Choice<Path, 20>;

    const LEN: usize = 1 << 20;

    /// Moves `count` messages at these costs (nanoseconds per byte). Returns how many were copied directly.
    fn run(choice: &mut Choice, count: usize, costs: [f32; 2]) -> usize {
        let mut single = 0;
        for _ in 0..count {
            let path = choice.choose(LEN);
            choice.measured(path, LEN, costs[path.index()]);
            single += usize::from(path == Path::Single);
        }
        single
    }

    #[test]
    fn the_faster_way_is_taken_and_the_slower_one_hardly_costs() {
        let mut choice = Choice::default();
        let straight = run(&mut choice, 10_000, [1.0, 2.0]);
        assert!((Path::TRIAL as usize..100).contains(&straight), "{straight}");
        let straight = run(&mut choice, 10_000, [1.0, 2.0]);
        assert!(straight <= 20, "{straight}");
        let mut choice = Choice::default();
        let straight = run(&mut choice, 10_000, [2.0, 1.0]);
        assert!((9_900..10_000).contains(&straight), "{straight}");
    }

    #[test]
    fn a_change_is_noticed() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [1.0, 2.0]);
        run(&mut choice, 10_000, [1.0, 0.5]);
        let straight = run(&mut choice, 1_000, [1.0, 0.5]);
        assert!(straight > 900, "{straight}");
        // And back, at once, by its own measurements.
        run(&mut choice, 200, [1.0, 3.0]);
        let straight = run(&mut choice, 1_000, [1.0, 3.0]);
        assert!(straight < 100, "{straight}");
    }

    #[test]
    fn one_long_measurement_changes_nothing() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [1.0, 1.6]);
        choice.measured(Path::Ring, LEN, 1_000.0);
        assert!(run(&mut choice, 200, [1.0, 1.6]) <= 2 * Path::TRIAL as usize);
    }

    #[test]
    fn sizes_are_judged_apart() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [2.0, 1.0]);
        assert_eq!(choice.choose(LEN / 4), Path::Ring, "not known yet");
        for len in [0, 1, 4096, usize::MAX] {
            choice.choose(len);
            choice.measured(Path::Ring, len, 0.0);
        }
    }

    #[test]
    fn a_way_that_fails_is_left_alone_for_long() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [2.0, 1.0]);
        choice.failed(LEN);
        assert_eq!((0..1_000).filter(|_| choice.choose(LEN) == Path::Single).count(), 0);
    }

    #[test]
    fn without_measurements_the_first_way_is_taken() {
        let mut choice = Choice::default();
        let taken = (0..1_000).filter(|_| choice.choose(LEN) == Path::Single).count();
        assert!(taken <= 20 * Path::TRIAL as usize, "{taken}");
    }
}
