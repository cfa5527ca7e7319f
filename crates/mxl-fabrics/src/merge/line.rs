//! Selects the samples of a merged flow: each once, in order, from the path that delivered it first.

use super::trust::{IndexVerdict, Seen, Trust};

/// Samples from `start` to before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleRange {
    pub start: u64,
    pub end: u64,
}

/// The next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Copy samples of a path.
    Copy { path: usize, part: SampleRange },
    /// Samples that no path brought.
    Lost(SampleRange),
    /// Wait for further arrivals.
    Wait,
}

/// The verdict on an arriving batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Worth {
    /// A part of it is new.
    New,
    /// The source has jumped: the flow restarts with this batch. The part is the loss in between.
    Anew(SampleRange),
    /// The whole batch has arrived before.
    Duplicate,
    /// The batch is far from all others and lacks confirmation.
    Strange,
}

/// The samples of one path.
#[derive(Default)]
struct Track {
    /// In order of arrival, which is the order of the indices.
    parts: Vec<SampleRange>,
    /// The end of the newest part.
    end: u64,
}

/// The published position, and the samples that wait for others.
pub(super) struct Line {
    /// Samples that a path holds.
    length: u64,
    /// All samples before it are published.
    next: Option<u64>,
    tracks: [Track; super::PATHS],
    trust: Trust,
}

/// Consecutive strange batches after which a path that no other contradicts is trusted.
const MAX_STRANGE_BATCHES: u64 = 20;

impl Line {
    pub fn new(length: u64) -> Self {
        let trust = Trust::new(length, MAX_STRANGE_BATCHES);
        Self { length, next: None, tracks: Default::default(), trust }
    }

    /// Judges and records samples that a path has received.
    pub fn arrived(&mut self, path: usize, part: SampleRange, now: Option<u64>, live: u8) -> Worth {
        let mut worth = Worth::New;
        match self.next {
            None => self.next = Some(part.start),
            Some(next) => match self.trust.place(path, part.end, Seen { head: next, now, live }) {
                IndexVerdict::Near if part.end <= next => {
                    self.tracks[path].end = part.end;
                    return Worth::Duplicate;
                }
                IndexVerdict::Near => {}
                IndexVerdict::Far => return if part.end < next { Worth::Duplicate } else { Worth::Strange },
                IndexVerdict::Jump => {
                    self.tracks = Default::default();
                    self.next = Some(part.start);
                    worth = Worth::Anew(SampleRange { start: next, end: part.start.max(next) });
                }
            },
        }
        let track = &mut self.tracks[path];
        if track.end > part.start {
            // The path went back: its earlier samples have moved, or are overwritten.
            track.parts.retain(|other| other.end <= part.start);
        }
        track.end = part.end;
        match track.parts.last_mut().filter(|last| last.end == part.start) {
            Some(last) => last.end = part.end,
            None => track.parts.push(part),
        }
        self.trust.taken(part.end, now);
        worth
    }

    /// The next step, for at most `most` samples.
    pub fn step(&self, most: u64, live: u8) -> Step {
        let Some(next) = self.next else { return Step::Wait };
        for (path, track) in self.tracks.iter().enumerate() {
            if let Some(part) = track.parts.iter().find(|part| part.start <= next && next < part.end) {
                let end = part.end.min(next.saturating_add(most));
                return Step::Copy { path, part: SampleRange { start: next, end } };
            }
        }
        let starts = self.tracks.iter().flat_map(|track| &track.parts).map(|part| part.start);
        let Some(end) = starts.filter(|start| *start > next).min() else { return Step::Wait };
        // A path that is beyond the gap can no longer fill it. The line waits for a silent path until so much has
        // accumulated that more would be overwritten.
        let has_all_passed =
            (0..super::PATHS).all(|path| live & 1 << path == 0 || self.tracks[path].end > next);
        let held = |track: &Track| track.parts.iter().map(|part| part.end - part.start).sum::<u64>();
        if has_all_passed || self.tracks.iter().any(|track| held(track) > self.length / 2) {
            return Step::Lost(SampleRange { start: next, end });
        }
        Step::Wait
    }

    /// Records that everything up to `end` is published.
    pub fn done(&mut self, end: u64) {
        self.next = Some(end);
        for track in &mut self.tracks {
            track.parts.retain(|part| part.end > end);
        }
    }

    /// Records that a path no longer has the samples before `end`.
    pub fn gone(&mut self, path: usize, end: u64) {
        let parts = &mut self.tracks[path].parts;
        parts.retain(|part| part.end > end);
        parts.iter_mut().for_each(|part| part.start = part.start.max(end));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    const BOTH: u8 = 0b11;

    fn part(start: u64, end: u64) -> SampleRange {
        SampleRange { start, end }
    }

    /// Takes everything available: samples with their paths, and losses.
    fn pump(line: &mut Line, live: u8) -> Vec<Step> {
        let mut steps = Vec::new();
        loop {
            let step = line.step(1000, live);
            match step {
                Step::Copy { part, .. } | Step::Lost(part) => line.done(part.end),
                Step::Wait => return steps,
            }
            steps.push(step);
        }
    }

    #[test]
    fn a_gap_is_filled_by_the_other_path_before_anything_later_is_published() {
        let mut line = Line::new(100);
        assert_eq!(line.arrived(0, part(10, 20), None, BOTH), Worth::New);
        assert_eq!(line.arrived(1, part(10, 15), None, BOTH), Worth::New);
        assert_eq!(pump(&mut line, BOTH), [Step::Copy { path: 0, part: part(10, 20) }]);
        assert_eq!(line.arrived(0, part(30, 40), None, BOTH), Worth::New);
        assert_eq!(pump(&mut line, BOTH), []);
        assert_eq!(line.arrived(1, part(15, 35), None, BOTH), Worth::New);
        let from_second = Step::Copy { path: 1, part: part(20, 35) };
        assert_eq!(pump(&mut line, BOTH), [from_second, Step::Copy { path: 0, part: part(35, 40) }]);
        assert_eq!(line.arrived(1, part(35, 40), None, BOTH), Worth::Duplicate);
    }

    #[test]
    fn a_gap_of_both_is_lost_and_one_of_a_path_alone_too() {
        let mut line = Line::new(100);
        line.arrived(0, part(10, 20), None, BOTH);
        pump(&mut line, BOTH);
        line.arrived(0, part(25, 30), None, BOTH);
        assert_eq!(pump(&mut line, BOTH), []);
        line.arrived(1, part(28, 35), None, BOTH);
        let steps = pump(&mut line, BOTH);
        assert_eq!(steps[0], Step::Lost(part(20, 25)));
        assert_eq!(steps.len(), 3);
        // The other path's initiator has disconnected.
        line.arrived(0, part(40, 45), None, 0b01);
        assert_eq!(pump(&mut line, 0b01)[0], Step::Lost(part(35, 40)));
    }

    #[test]
    fn a_silent_path_is_not_waited_for_for_ever() {
        let mut line = Line::new(100);
        line.arrived(0, part(0, 10), None, BOTH);
        line.arrived(1, part(0, 10), None, BOTH);
        pump(&mut line, BOTH);
        line.arrived(0, part(20, 70), None, BOTH);
        assert_eq!(pump(&mut line, BOTH), []);
        line.arrived(0, part(70, 71), None, BOTH);
        assert_eq!(pump(&mut line, BOTH)[0], Step::Lost(part(10, 20)));
    }

    #[test]
    fn one_batch_from_the_far_future_changes_nothing_and_two_paths_jump_together() {
        let mut line = Line::new(100);
        line.arrived(0, part(0, 10), None, BOTH);
        pump(&mut line, BOTH);
        assert_eq!(line.arrived(1, part(u64::MAX - 10, u64::MAX), None, BOTH), Worth::Strange);
        assert_eq!(line.arrived(0, part(10, 20), None, BOTH), Worth::New);
        assert_eq!(pump(&mut line, BOTH), [Step::Copy { path: 0, part: part(10, 20) }]);
        assert_eq!(line.arrived(0, part(5000, 5010), None, BOTH), Worth::Strange);
        assert_eq!(line.arrived(1, part(5000, 5010), None, BOTH), Worth::Anew(part(20, 5000)));
        assert_eq!(pump(&mut line, BOTH), [Step::Copy { path: 1, part: part(5000, 5010) }]);
    }

    proptest! {
        /// Paths that lose batches of various sizes, compared with sets of samples.
        #[test]
        fn every_sample_that_a_path_has_is_published_once_and_in_order(
            batches in proptest::collection::vec((0_usize..3, 1_u64..12, any::<bool>()), 1..200)
        ) {
            const LIVE: u8 = 0b111;
            let mut line = Line::new(10_000);
            let mut ends = [500_u64; 3];
            let mut had = [const { BTreeSet::new() }; 3];
            let (mut published, mut lost) = (BTreeSet::new(), BTreeSet::new());
            let mut next = None;
            for (path, count, is_lost) in batches {
                let batch = part(ends[path], ends[path] + count);
                ends[path] = batch.end;
                if is_lost {
                    continue;
                }
                line.arrived(path, batch, None, LIVE);
                had[path].extend(batch.start..batch.end);
                for step in pump(&mut line, LIVE) {
                    let (Step::Copy { part, .. } | Step::Lost(part)) = step else { unreachable!() };
                    prop_assert!(part.start < part.end && next.is_none_or(|next| next == part.start));
                    next = Some(part.end);
                    for sample in part.start..part.end {
                        match step {
                            Step::Copy { path, .. } => {
                                prop_assert!(had[path].contains(&sample) && published.insert(sample));
                            }
                            _ => {
                                prop_assert!(had.iter().all(|had| !had.contains(&sample)));
                                prop_assert!(lost.insert(sample));
                            }
                        }
                    }
                }
                // Samples that a path had, and before which no sample is missing, are published.
                let next = next.unwrap_or(u64::MAX);
                prop_assert!(had.iter().all(|had| !had.contains(&next)));
            }
        }
    }
}
