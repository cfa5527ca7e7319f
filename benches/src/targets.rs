//! A line of the table: our side, the other side, and the required ratio.

use serde::Serialize;

use crate::{
    Figures, Result, eventfd,
    figures::Quantity,
    ours::{Job, Sleep, Test},
    peers::{PeerRun, libfabric, mpi},
    socket, worker,
};

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// A short name for `--only` and the JSON.
    pub key: &'static str,
    /// A title for people.
    pub title: &'static str,
    /// The compared quantity.
    pub quantity: Quantity,
    /// Our run.
    pub ours: Ours,
    /// The comparison.
    pub against: Option<Against>,
    /// The required ratio or value.
    pub bound: Bound,
    /// The goal, in the unit of the quantity.
    pub goal: Option<f64>,
}

/// Our half of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Ours {
    /// A job that a worker does with the library's Rust API.
    Job(Job),
    /// libfabric's own program, on our `libfabric.so.1`.
    Program(PeerRun),
}

/// The other half of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Against {
    /// A peer's benchmark.
    Peer(PeerRun),
    /// Open MPI's all-reduce.
    Mpi(mpi::AllReduce),
    /// Our own job under other conditions.
    Ours(Job, &'static str),
    /// The bare eventfd round trip.
    Eventfd,
    /// Bare UDP sockets, as between two processes.
    Socket(socket::Test),
}

/// The bound of a line; on ours over theirs unless stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The ratio must be at most this.
    RatioAtMost(f64),
    /// The ratio must be at least this.
    RatioAtLeast(f64),
    /// Ours may exceed theirs by at most this.
    AtMostMore(f64),
    /// Ours must be at most this, whatever the peer's.
    AtMost(f64),
    /// For information.
    None,
}

impl Line {
    /// Whether processes or threads share cores, so that they wait for them.
    pub fn is_crowded(&self) -> bool {
        let Ours::Job(job) = self.ours else { return false };
        match job.test {
            Test::AllReduce { ranks } => ranks > 2,
            Test::Wake(sleep) => sleep == Sleep::Future,
            _ => false,
        }
    }
}

impl Ours {
    /// Runs our half once on `cores`.
    pub fn run(&self, cores: [usize; 2]) -> Result<Figures> {
        match self {
            Self::Job(job) => worker::run(job, cores),
            Self::Program(run) => libfabric::run_on_ours(run, cores),
        }
    }
}

impl Against {
    /// Its name in the table.
    pub fn name(&self) -> String {
        match self {
            Self::Peer(run) => run.name(),
            Self::Mpi(run) => run.name(),
            Self::Ours(_, name) => format!("ours, {name}"),
            Self::Eventfd => "bare eventfd".into(),
            Self::Socket(socket::Test::Spin) => "bare sockets, spinning".into(),
            Self::Socket(socket::Test::Blocked) => "bare sockets, blocked".into(),
        }
    }

    /// Runs the other half once on `cores`.
    pub fn run(&self, cores: [usize; 2]) -> Result<Figures> {
        match self {
            Self::Peer(run) => run.run(cores),
            Self::Mpi(run) => run.run(cores),
            Self::Ours(job, _) => worker::run(job, cores),
            Self::Eventfd => eventfd::measure(cores),
            Self::Socket(test) => socket::measure(*test, cores),
        }
    }
}

impl Bound {
    /// Whether the medians `ours` and `theirs`, with `ratio` the median of the pairs' ratios, meet the bound; `None`
    /// without a bound or without figures.
    pub fn judge(self, ours: f64, theirs: Option<f64>, ratio: Option<f64>) -> Option<bool> {
        match self {
            Self::RatioAtMost(bound) => ratio.map(|ratio| ratio <= bound),
            Self::RatioAtLeast(bound) => ratio.map(|ratio| ratio >= bound),
            Self::AtMostMore(bound) => theirs.map(|theirs| ours - theirs <= bound),
            Self::AtMost(bound) => Some(ours <= bound),
            Self::None => None,
        }
    }

    /// For the table.
    pub fn show(self, quantity: Quantity) -> String {
        match self {
            Self::RatioAtMost(bound) => format!("<= {bound:.2} x"),
            Self::RatioAtLeast(bound) => format!(">= {bound:.2} x"),
            Self::AtMostMore(bound) => format!("<= + {}", quantity.show(bound)),
            Self::AtMost(bound) => format!("<= {}", quantity.show(bound)),
            Self::None => "-".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_judged_in_their_own_direction() {
        assert_eq!(Bound::RatioAtMost(0.5).judge(1.0, Some(2.0), Some(0.5)), Some(true));
        assert_eq!(Bound::RatioAtLeast(2.5).judge(1.0, Some(1.0), Some(2.4)), Some(false));
        assert_eq!(Bound::AtMostMore(25.0).judge(126.0, Some(100.0), None), Some(false));
        assert_eq!(Bound::AtMost(0.01).judge(0.0, None, None), Some(true));
        assert_eq!(Bound::RatioAtMost(0.5).judge(1.0, None, None), None);
    }
}
