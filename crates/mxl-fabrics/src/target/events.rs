//! A target's events and statistics.

/// Data that arrived and is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// Slices of a grain have arrived.
    Grain {
        /// Which.
        index: u64,
        /// How many slices are valid now.
        slices: u16,
        /// The payload means nothing.
        invalid: bool,
    },
    /// Samples have arrived.
    Samples {
        /// They end before this one.
        index: u64,
        /// How many.
        count: u64,
    },
    /// Grains or samples that will not come.
    Lost {
        /// The first of them.
        first: u64,
        /// How many.
        count: u64,
    },
    /// An initiator has connected, and replaces the previous one.
    Connected,
    /// The initiator has gone.
    Disconnected,
}

/// Statistics of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Commits that were published.
    pub published: u64,
    /// Grains or samples that did not come.
    pub lost: u64,
    /// Grains without a valid payload.
    pub invalid: u64,
    /// Initiators that were taken.
    pub taken: u64,
    /// Initiators that were refused.
    pub refused: u64,
    /// Messages and writes that made no sense.
    pub nonsense: u64,
    /// Events that were dropped because the program did not fetch them.
    pub missed: u64,
}
