//! Chooses the path of a peer's large messages by measurement.
//!
//! Each size class (a power of two) tries both paths and then uses the faster one. The slower one is tried again now
//! and then, less often the longer it keeps losing: huge pages, another core or a competing program change the answer.
//! A measurement is the time that one message took, counted from the end of the previous one if that used the same
//! path; `single/` makes sure that different paths do not overlap.

use std::time::Duration;

/// The path of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In parts through the bulk ring.
    Ring = 0,
    /// Directly from memory to memory.
    Single = 1,
}

impl Path {
    const fn other(self) -> Self {
        match self {
            Self::Ring => Self::Single,
            Self::Single => Self::Ring,
        }
    }
}

/// Size classes: 2^12 and below, up to 2^31 and above.
const CLASSES: usize = 20;
/// Messages of a trial of either path. The first is not counted: it creates a ring or faults pages in.
const TRIAL: u32 = 4;
/// Messages between two trials of the slower path: initially, and at most. With the latter, a trial of a path that
/// takes twice as long costs a thousandth.
const SELDOM: u32 = 64;
const HARDLY_EVER: u32 = 4096;
/// A path must be better by this factor to replace the other, because measurements are noisy.
const MARGIN: f32 = 0.95;

/// What is known about one size class.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The current path.
    path: Path,
    /// Nanoseconds per byte on each path; 0 before the first measurement.
    cost: [f32; 2],
    /// Messages left in the current trial: of `path.other()` if `settled`, else of `path`.
    trial: u32,
    /// Both have been tried.
    settled: bool,
    /// Measurements left out since the trial began.
    skipped: bool,
    /// Messages until the next trial, and the interval that this counts down from.
    until: u32,
    interval: u32,
}

const FRESH: Class = Class {
    path: Path::Ring,
    cost: [0.0; 2],
    trial: TRIAL,
    settled: false,
    skipped: false,
    until: SELDOM,
    interval: SELDOM,
};

/// See the module.
pub struct Choice {
    classes: [Class; CLASSES],
}

impl Default for Choice {
    fn default() -> Self {
        Self { classes: [FRESH; CLASSES] }
    }
}

fn class_of(len: usize) -> usize {
    (len.max(1).ilog2() as usize).saturating_sub(12).min(CLASSES - 1)
}

impl Choice {
    /// Chooses the path of a message of `len` bytes.
    pub fn choose(&mut self, len: usize) -> Path {
        let class = &mut self.classes[class_of(len)];
        if !class.settled {
            if class.trial == 0 {
                match class.path {
                    Path::Ring => (class.path, class.trial, class.skipped) = (Path::Single, TRIAL, false),
                    Path::Single => {
                        class.settled = true;
                        class.decide();
                    }
                }
            }
            class.trial = class.trial.saturating_sub(1);
            return class.path;
        }
        if class.trial > 0 {
            class.trial -= 1;
            return class.path.other();
        }
        if class.until == 0 {
            class.decide();
            class.until = class.interval;
            (class.trial, class.skipped) = (TRIAL - 1, false);
            return class.path.other();
        }
        class.until -= 1;
        class.path
    }

    /// Records that a message of `len` bytes took `took` on this path.
    pub fn measured(&mut self, path: Path, len: usize, took: Duration) {
        let class = &mut self.classes[class_of(len)];
        let on_trial = if class.settled { class.path.other() == path } else { class.path == path };
        if on_trial && !class.skipped {
            class.skipped = true;
            class.cost[path as usize] = 0.0; // an old cost says little
            return;
        }
        let sample = (took.as_nanos() as f32 / len.max(1) as f32).max(f32::MIN_POSITIVE);
        let cost = &mut class.cost[path as usize];
        *cost = match *cost {
            0.0 => sample,
            known if on_trial => (known + sample) / 2.0,
            // Outside events (another program had the core) make samples longer, never shorter.
            known => known + (sample.min(2.0 * known) - known) / 8.0,
        };
        class.decide();
    }

    /// Records that a message of `len` bytes could not be copied directly and came through the ring.
    pub fn failed(&mut self, len: usize) {
        let class = &mut self.classes[class_of(len)];
        (class.path, class.trial, class.settled) = (Path::Ring, 0, true);
        class.interval = HARDLY_EVER;
        class.until = class.interval;
    }
}

impl Class {
    /// Switches to the path that is cheaper now.
    fn decide(&mut self) {
        if !self.settled {
            return;
        }
        let (mine, its) = (self.cost[self.path as usize], self.cost[self.path.other() as usize]);
        if its == 0.0 {
            return;
        }
        if mine == 0.0 || its < mine * MARGIN {
            (self.path, self.trial) = (self.path.other(), 0);
            (self.interval, self.until) = (SELDOM, SELDOM);
        } else if self.until == 0 {
            self.interval = (self.interval * 2).min(HARDLY_EVER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 1 << 20;

    /// Moves `count` messages at these costs (nanoseconds per byte). Returns how many were copied directly.
    fn run(choice: &mut Choice, count: usize, costs: [f32; 2]) -> usize {
        let mut single = 0;
        for _ in 0..count {
            let path = choice.choose(LEN);
            let took = Duration::from_nanos((costs[path as usize] * LEN as f32) as u64);
            choice.measured(path, LEN, took);
            single += usize::from(path == Path::Single);
        }
        single
    }

    #[test]
    fn the_faster_way_is_taken_and_the_slower_one_hardly_costs() {
        let mut choice = Choice::default();
        let straight = run(&mut choice, 10_000, [1.0, 2.0]);
        assert!((TRIAL as usize..100).contains(&straight), "{straight}");
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
        choice.measured(Path::Ring, LEN, Duration::from_secs(1));
        assert!(run(&mut choice, 200, [1.0, 1.6]) <= 2 * TRIAL as usize);
    }

    #[test]
    fn sizes_are_judged_apart() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [2.0, 1.0]);
        assert_eq!(choice.choose(LEN / 4), Path::Ring, "not known yet");
        for len in [0, 1, 4096, usize::MAX] {
            choice.choose(len);
            choice.measured(Path::Ring, len, Duration::ZERO);
        }
    }

    #[test]
    fn a_way_that_fails_is_left_alone_for_long() {
        let mut choice = Choice::default();
        run(&mut choice, 1_000, [2.0, 1.0]);
        choice.failed(LEN);
        assert_eq!((0..1_000).filter(|_| choice.choose(LEN) == Path::Single).count(), 0);
    }
}
