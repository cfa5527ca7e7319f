//! The grains that a target has in part. Later slices of a grain go to it alone only if it has the earlier ones: a
//! target that was connected in the middle of a grain would publish what its slot held before as the grain's beginning.

use std::collections::VecDeque;

use super::peer::{Job, Payload, What};

/// Grains in part that are remembered. A grain beyond them is sent again from its first slice on.
const GRAINS: usize = 16;

/// The last grains that were queued for a target in part, and how many of their slices.
#[derive(Debug, Default)]
pub(crate) struct BegunGrains(VecDeque<(u64, u16)>);

impl BegunGrains {
    /// A part of a grain as the target needs it: with all earlier slices, unless they were queued since it was
    /// connected.
    pub fn with_earlier(&mut self, mut job: Job) -> Job {
        let What::Grain { start, end, payload: Payload::Valid | Payload::Flagged } = &mut job.what else {
            return job;
        };
        let known = self.0.iter_mut().find(|(index, _)| *index == job.index);
        match known {
            Some((_, known)) if *known >= *start => *known = (*known).max(*end),
            Some((_, known)) => (*start, *known) = (0, *end),
            None => {
                *start = 0;
                if self.0.len() == GRAINS {
                    self.0.pop_front();
                }
                self.0.push_back((job.index, *end));
            }
        }
        job
    }

    /// Slices of a grain were lost.
    pub fn forget(&mut self, index: u64) {
        self.0.retain(|(other, _)| *other != index);
    }

    /// The target was connected anew.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sent(begun: &mut BegunGrains, index: u64, start: u16, end: u16) -> (u16, u16) {
        let what = What::Grain { start, end, payload: Payload::Valid };
        let job = Job { index, what, posted: 0, number: None, since: Instant::now() };
        match begun.with_earlier(job).what {
            What::Grain { start, end, .. } => (start, end),
            What::Samples { .. } => panic!("a grain became samples"),
        }
    }

    #[test]
    fn later_slices_go_alone_only_after_the_earlier_ones() {
        let mut begun = BegunGrains::default();
        assert_eq!(sent(&mut begun, 7, 20, 30), (0, 30));
        assert_eq!(sent(&mut begun, 7, 30, 40), (30, 40));
        assert_eq!(sent(&mut begun, 8, 0, 10), (0, 10));
        assert_eq!(sent(&mut begun, 7, 20, 40), (20, 40));
        // A gap: slices 40 to 49 were not sent.
        assert_eq!(sent(&mut begun, 7, 50, 60), (0, 60));
        begun.forget(7);
        assert_eq!([sent(&mut begun, 7, 60, 61), sent(&mut begun, 8, 10, 11)], [(0, 61), (10, 11)]);
        begun.clear();
        assert_eq!(sent(&mut begun, 8, 11, 12), (0, 12));
        for index in 100..100 + GRAINS as u64 {
            assert_eq!(sent(&mut begun, index, 0, 1), (0, 1));
        }
        assert_eq!([sent(&mut begun, 8, 12, 13), sent(&mut begun, 110, 1, 2)], [(0, 13), (1, 2)]);
    }
}
