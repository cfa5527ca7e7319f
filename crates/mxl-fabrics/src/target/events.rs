//! A target's events, statistics and times.

use std::time::Instant;

use crate::Histogram;

/// Data that has arrived and is published, and other events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// Slices of a grain have arrived.
    Grain {
        /// The index of the grain.
        index: u64,
        /// Number of slices that are valid now.
        slices: u16,
        /// The payload is invalid.
        invalid: bool,
    },
    /// Samples have arrived.
    Samples {
        /// The index after the last sample.
        index: u64,
        /// The number of samples.
        count: u64,
    },
    /// Grains or samples that will not arrive.
    Lost {
        /// The first of them.
        first: u64,
        /// Their number.
        count: u64,
    },
    /// An initiator has connected, and replaces the previous one.
    Connected,
    /// The initiator has disconnected.
    Disconnected,
}

/// Statistics of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Commits that were published.
    pub published: u64,
    /// Grains or samples that did not arrive.
    pub lost: u64,
    /// Whole grains that were published more than a period after their own had ended, and samples that were published
    /// more than 10 ms after their time: by this host's clock, with which the indices of flows agree.
    pub late: u64,
    /// Grains without a valid payload.
    pub invalid: u64,
    /// Initiators that were accepted.
    pub taken: u64,
    /// Initiators that were refused.
    pub refused: u64,
    /// Connections that the target ended with a farewell, which may not have arrived.
    pub parted: u64,
    /// Messages and writes that were invalid.
    pub nonsense: u64,
    /// Writes of the C++ SDK's protocol whose data the initiator overwrote before this target had read it.
    pub overwritten: u64,
    /// Events that were dropped because the program did not read them.
    pub missed: u64,
}

/// Times of a target, all by its own clock: they do not include the way from the initiator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetTimes {
    /// From seeing the first part of a commit to its publication. A commit without a payload has no parts, and does not
    /// count.
    pub arrival: Histogram,
    /// From one publication to the next of the same initiator.
    pub interval: Histogram,
}

impl TargetTimes {
    /// Counts a publication at the present time: its first part was seen at `first`, and the previous publication was
    /// at `last`.
    pub(super) fn published(&mut self, first: Option<Instant>, last: &mut Option<Instant>) {
        let now = Instant::now();
        if let Some(first) = first {
            self.arrival.record(now - first);
        }
        if let Some(last) = last.replace(now) {
            self.interval.record(now - last);
        }
    }
}
