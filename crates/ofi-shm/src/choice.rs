//! Which of two ways large messages of a peer take, by measurement.
//!
//! For each class of sizes (a power of two) both ways are tried, and then the faster one is taken. The other is tried
//! again now and then, more rarely the longer it keeps losing: memory in huge pages, another core or another program
//! beside this one change the answer. A measurement is the time in which one message came, from the end of the one
//! before if that came the same way: `single/` sees to it that different ways do not overlap.

use std::time::Duration;

/// How a payload comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In parts through the bulk ring.
    Ring = 0,
    /// Straight from memory to memory.
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
/// Messages by which each way is tried at first, and again. The first of them is not counted: it makes a ring, or
/// faults pages in.
const TRIAL: u32 = 4;
/// Messages between two trials of the way that loses: at first, and at most. A trial that loses by half costs a
/// thousandth then.
const SELDOM: u32 = 64;
const HARDLY_EVER: u32 = 4096;
/// A way has to be better by this much to replace the other: measurements are noisy.
const MARGIN: f32 = 0.95;

/// What is known of one class of sizes.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// The way that is taken.
    path: Path,
    /// Nanoseconds for a byte, each way; 0 before any measurement.
    cost: [f32; 2],
    /// Messages left of the trial that runs, of `way.other()` if `settled`, else of `way`.
    trial: u32,
    /// Both have been tried.
    settled: bool,
    /// Measurements left out since the trial began.
    skipped: bool,
    /// Messages until the next trial, and what that counts down from.
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
    /// Which way a message of `len` bytes comes.
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

    /// A message of `len` bytes came this way in `took`.
    pub fn measured(&mut self, path: Path, len: usize, took: Duration) {
        let class = &mut self.classes[class_of(len)];
        let on_trial = if class.settled { class.path.other() == path } else { class.path == path };
        if on_trial && !class.skipped {
            class.skipped = true;
            class.cost[path as usize] = 0.0; // what it cost long ago says little
            return;
        }
        let sample = (took.as_nanos() as f32 / len.max(1) as f32).max(f32::MIN_POSITIVE);
        let cost = &mut class.cost[path as usize];
        *cost = match *cost {
            0.0 => sample,
            known if on_trial => (known + sample) / 2.0,
            // What happens beside (another program had the core) makes samples long and never short.
            known => known + (sample.min(2.0 * known) - known) / 8.0,
        };
        class.decide();
    }

    /// A message of `len` bytes could not come straight, and had to come through the ring.
    pub fn failed(&mut self, len: usize) {
        let class = &mut self.classes[class_of(len)];
        (class.path, class.trial, class.settled) = (Path::Ring, 0, true);
        class.interval = HARDLY_EVER;
        class.until = class.interval;
    }
}

impl Class {
    /// Takes the way that is cheaper now.
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

    /// Moves `count` messages at these costs (nanoseconds for a byte); how many went straight.
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
