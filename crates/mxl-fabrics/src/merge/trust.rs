//! Decides which indices of a path count. A path may be wrong or malicious: one accepted index from the far future
//! would make all data of the other paths too late.
//!
//! An index *near* the newest taken one always counts: at most one window before or after it. If the flow follows the
//! clock, as MXL's flows do, the index must not be ahead of the clock by more than half a window either. Any other
//! index counts only after confirmation; until then its data is dropped.

/// The verdict on an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IndexVerdict {
    /// The index belongs to the accepted ones.
    Near,
    /// The index does not belong to them, and lacks confirmation.
    Far,
    /// The flow continues from here: its source has jumped forward or back.
    Jump,
}

/// The latest far index of a path.
#[derive(Clone, Copy, Debug)]
struct Stranger {
    index: u64,
    /// The number of successive far indices, each near the previous one.
    count: u64,
}

/// The context in which an index is judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The newest taken index.
    pub head: u64,
    /// The index at the current time, by the flow's rate.
    pub now: Option<u64>,
    /// The paths that have an initiator, a bit for each.
    pub live: u8,
}

/// Judges the indices of all paths.
pub(super) struct Trust {
    /// A window, in grains or samples.
    length: u64,
    /// Consecutive far indices after which a path that no other contradicts is trusted.
    patience: u64,
    strangers: [Option<Stranger>; super::PATHS],
    /// Far indices of all paths since the last near one.
    since: u64,
    /// The newest taken index matched the clock.
    is_clocked: bool,
}

impl Trust {
    pub fn new(length: u64, patience: u64) -> Self {
        Self { length, patience, strangers: [None; super::PATHS], since: 0, is_clocked: false }
    }

    /// Judges an index of a path.
    pub fn place(&mut self, path: usize, index: u64, seen: Seen) -> IndexVerdict {
        let Seen { head, now, live } = seen;
        let is_early = |now: u64| self.is_clocked && index > now.saturating_add(self.length / 2);
        if head.abs_diff(index) <= self.length && !now.is_some_and(is_early) {
            self.strangers[path] = None;
            self.since = 0;
            return IndexVerdict::Near;
        }
        let is_near = |other: &Stranger| other.index.abs_diff(index) <= self.length;
        let count = self.strangers[path].filter(is_near).map_or(1, |before| before.count + 1);
        self.strangers[path] = Some(Stranger { index, count });
        self.since += 1;
        let others = || (0..super::PATHS).filter(|other| *other != path && live & 1 << other != 0);
        let agrees = |other: usize| self.strangers[other].as_ref().is_some_and(is_near);
        let is_of_now = now.is_some_and(|now| now.abs_diff(index) <= self.length);
        // No path has brought another index for long.
        let is_alone = self.since > self.patience && count > self.patience;
        let is_believed = if index > head {
            let is_due = now.is_some_and(|now| index <= now.saturating_add(self.length / 2));
            (self.is_clocked && is_due) || others().any(agrees) || others().next().is_none() || is_alone
        } else {
            // A path that is merely late brings such indices too, so one other path is not enough.
            let all_agree = others().next().is_some() && others().all(agrees);
            all_agree || is_alone || (is_of_now && !self.is_clocked && count > self.patience)
        };
        if !is_believed {
            return IndexVerdict::Far;
        }
        self.strangers = [None; super::PATHS];
        self.since = 0;
        IndexVerdict::Jump
    }

    /// Records an accepted index.
    pub fn taken(&mut self, index: u64, now: Option<u64>) {
        self.is_clocked = now.is_some_and(|now| now.abs_diff(index) <= self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: u64 = 8;

    fn seen(head: u64, now: u64) -> Seen {
        Seen { head, now: Some(now), live: 0b11 }
    }

    #[test]
    fn a_path_alone_moves_nothing_far_and_a_second_one_confirms() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        assert_eq!(trust.place(0, 108, seen(100, 1)), IndexVerdict::Near);
        assert_eq!(trust.place(0, 109, seen(100, 1)), IndexVerdict::Far);
        assert_eq!(trust.place(0, u64::MAX, seen(100, 1)), IndexVerdict::Far);
        // The other path is at its old position, and does not confirm the jump.
        assert_eq!(trust.place(1, 101, seen(100, 1)), IndexVerdict::Near);
        assert_eq!(trust.place(0, 5000, seen(101, 1)), IndexVerdict::Far);
        assert_eq!(trust.place(1, 5001, seen(101, 1)), IndexVerdict::Jump);
    }

    #[test]
    fn a_liar_that_goes_on_is_not_believed_while_another_path_delivers() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        for step in 0..1000 {
            assert_eq!(trust.place(0, 70_000 + step, seen(100 + step, 1)), IndexVerdict::Far);
            assert_eq!(trust.place(1, 101 + step, seen(100 + step, 1)), IndexVerdict::Near);
        }
        // It jumps when that path is silent for a window, or disconnects.
        let places: Vec<_> = (0..=LENGTH).map(|step| trust.place(0, 80_000 + step, seen(1101, 1))).collect();
        assert_eq!(places.iter().filter(|place| **place == IndexVerdict::Far).count() as u64, LENGTH);
        assert_eq!(places.last(), Some(&IndexVerdict::Jump));
        let alone = Seen { live: 0b01, ..seen(1101, 1) };
        assert_eq!(trust.place(0, 90_000, alone), IndexVerdict::Jump);
    }

    #[test]
    fn the_clock_allows_a_jump_to_now_and_none_beyond() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        trust.taken(100, Some(101));
        // The source paused; one path is back.
        assert_eq!(trust.place(0, 1000, seen(100, 1001)), IndexVerdict::Jump);
        trust.taken(1000, Some(1001));
        assert_eq!(trust.place(0, 1010, seen(1000, 1001)), IndexVerdict::Far);
        // In single steps it gets no further than half a window ahead of the clock.
        assert_eq!(trust.place(0, 1005, seen(1000, 1001)), IndexVerdict::Near);
        trust.taken(1005, Some(1001));
        assert_eq!(trust.place(0, 1006, seen(1005, 1001)), IndexVerdict::Far);
        assert_eq!(trust.place(1, 1001, seen(1005, 1001)), IndexVerdict::Near);
    }

    #[test]
    fn the_clock_does_not_count_for_a_flow_that_does_not_follow_it() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        trust.taken(100, Some(7000));
        assert_eq!(trust.place(0, 7000, seen(100, 7000)), IndexVerdict::Far);
        assert_eq!(trust.place(1, 101, seen(100, 7000)), IndexVerdict::Near);
    }

    #[test]
    fn a_first_index_from_the_future_is_left_for_those_of_now() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        trust.taken(90_000, Some(500));
        for step in 0..LENGTH {
            assert_eq!(trust.place(1, 500 + step, seen(90_000 + step, 500 + step)), IndexVerdict::Far);
            assert_eq!(trust.place(0, 90_001 + step, seen(90_000 + step, 500 + step)), IndexVerdict::Near);
        }
        assert_eq!(trust.place(1, 500 + LENGTH, seen(90_008, 508)), IndexVerdict::Jump);
    }

    #[test]
    fn late_paths_do_not_take_the_flow_back_and_a_source_that_restarts_does() {
        let mut trust = Trust::new(LENGTH, LENGTH);
        let three = |head| Seen { live: 0b111, ..seen(head, 1) };
        for step in 0..100 {
            assert_eq!(trust.place(0, 201 + step, three(200 + step)), IndexVerdict::Near);
            assert_eq!(trust.place(1, 180 + step, three(201 + step)), IndexVerdict::Far);
            assert_eq!(trust.place(2, 180 + step, three(201 + step)), IndexVerdict::Far);
        }
        assert_eq!(trust.place(0, 1, seen(301, 1)), IndexVerdict::Far);
        assert_eq!(trust.place(1, 1, seen(301, 1)), IndexVerdict::Jump);
    }
}
