//! Converts jobs to figures: the number of repetitions, and the evaluation of batches.
//!
//! A measurement is split into batches, and the median is reported, so that moments in which the system takes a core
//! away do not count. The number of rounds per batch follows from a short run before, which also warms up. On a busy
//! machine a measurement ends early, with fewer batches.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::jobs;
use super::link::Link;
use super::message::{Job, Task};
use super::node::Node;
use super::options::Memory;
use crate::failure::Result;

/// Messages in flight when rates are measured, as in the benchmarks of other stacks.
pub const WINDOW: usize = 64;

/// Maximum memory of a window on each side, in bytes. A window of larger messages has fewer of them.
const WINDOW_BYTES: usize = 64 << 20;

/// The same for remote accesses. Programs mostly access a few places, so this fits into a shared cache.
const ACCESS_BYTES: usize = 4 << 20;

/// Jobs per measurement, and batches per job.
const JOBS: u64 = 4;
const BATCHES: u64 = 4;

/// Multiple of its budget after which a measurement starts no more jobs.
const OVERTIME: u32 = 2;

/// Messages per window, and rounds, of a checked pass.
const CHECK_WINDOW: usize = 8;

/// The time for each kind of measurement, excluding warm-up.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Round trips.
    pub latency: Duration,
    /// A stream of messages.
    pub rate: Duration,
    /// Each kind of remote access, singly and in a stream.
    pub access: Duration,
}

impl Budget {
    /// Covers twelve sizes of one transport within ten seconds.
    pub const NORMAL: Budget = Budget {
        latency: Duration::from_millis(300),
        rate: Duration::from_millis(350),
        access: Duration::from_millis(60),
    };

    /// A tenth of that.
    pub fn quick() -> Budget {
        let Budget { latency, rate, access } = Budget::NORMAL;
        Budget { latency: latency / 10, rate: rate / 10, access: access / 10 }
    }
}

/// The figures of one size of message.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Size of a message.
    pub bytes: usize,
    /// Half of a round trip, in microseconds.
    pub latency_us: f64,
    /// Messages of a stream, in millions a second.
    pub rate_mps: f64,
    /// Bytes of a stream, in 10^9 a second.
    pub bandwidth_gbps: f64,
    /// Messages in flight in the stream.
    pub window: usize,
    /// Number of messages checked.
    pub checked: Option<u64>,
}

/// The figures of remote accesses of one size.
#[derive(Clone, Debug, Serialize)]
pub struct AccessRow {
    /// Size of an access.
    pub bytes: usize,
    /// The owner of the memory, on both sides.
    pub memory: Memory,
    /// Accesses in flight in the streams.
    pub window: usize,
    /// One write, until it is complete.
    pub write_us: f64,
    /// A stream of writes, in 10^9 bytes a second.
    pub write_gbps: f64,
    /// One read, until it is complete.
    pub read_us: f64,
    /// A stream of reads, in 10^9 bytes a second.
    pub read_gbps: f64,
}

/// The client's side of all measurements of one transport.
pub struct Bench<'a> {
    /// The endpoint.
    pub node: &'a Node,
    /// The connection to the server.
    pub link: &'a mut Link,
    /// The time to measure.
    pub budget: Budget,
    /// A number of rounds that replaces the budget.
    pub iterations: Option<u64>,
}

impl Bench<'_> {
    /// Half of a round trip of `size` bytes, in microseconds.
    ///
    /// # Errors
    /// Any error of either side.
    pub fn latency(&mut self, size: usize, memory: Memory) -> Result<f64> {
        let job = Job { task: Task::PingPong, window: 1, ..job(size, memory) };
        Ok(self.each(job, self.budget.latency)? * 1e6 / 2.0)
    }

    /// The rate of messages of `size` bytes in millions per second, and the number in flight.
    ///
    /// # Errors
    /// As [`Bench::latency`].
    pub fn rate(&mut self, size: usize, memory: Memory) -> Result<(f64, usize)> {
        let job = Job { task: Task::Stream, ..job(size, memory) };
        Ok((1e-6 / self.each(job, self.budget.rate)?, job.window))
    }

    /// One access in microseconds, and a stream of them in 10^9 bytes a second.
    ///
    /// # Errors
    /// As [`Bench::latency`].
    pub fn access(&mut self, size: usize, memory: Memory, write: bool) -> Result<(f64, f64)> {
        let task = if write { Task::Write } else { Task::Read };
        let job = Job { task, window: access_window(size), ..job(size, memory) };
        let one = self.each(Job { window: 1, ..job }, self.budget.access)?;
        let each = self.each(job, self.budget.access)?;
        Ok((one * 1e6, size as f64 / each / 1e9))
    }

    /// Checks messages of `size` bytes in both directions. Returns their number.
    ///
    /// # Errors
    /// As [`Bench::latency`], and received data that differs from the data sent.
    pub fn check(&mut self, size: usize, memory: Memory) -> Result<u64> {
        let (rounds, batches) = (if size < 1 << 20 { 8 } else { 2 }, 1);
        let window = CHECK_WINDOW.min(window(size));
        let job = Job { task: Task::Check, rounds, batches, window, ..job(size, memory) };
        jobs::lead(self.node, self.link, &job)?;
        Ok(2 * job.total() * job.window as u64)
    }

    /// Seconds per round of `job`: a short run warms up and estimates the time, then a long one measures.
    fn each(&mut self, job: Job, budget: Duration) -> Result<f64> {
        let trial = Job { batches: 8, rounds: trial_rounds(&job), ..job };
        let guess = median(jobs::lead(self.node, self.link, &trial)?) / trial.rounds as f64;
        let rounds = match self.iterations {
            Some(count) => count / (JOBS * BATCHES),
            None => (budget.as_secs_f64() / (JOBS * BATCHES) as f64 / guess) as u64,
        };
        let job = Job { batches: BATCHES, rounds: rounds.max(1), ..job };
        let (begin, mut times) = (Instant::now(), Vec::new());
        for _ in 0..JOBS {
            times.extend(jobs::lead(self.node, self.link, &job)?);
            if self.iterations.is_none() && begin.elapsed() > budget * OVERTIME {
                break;
            }
        }
        Ok(median(times) / job.rounds as f64)
    }
}

fn job(size: usize, memory: Memory) -> Job {
    let window = window(size);
    Job { task: Task::PingPong, size, batches: 1, rounds: 1, window, memory, shown: false }
}

/// As many messages in flight as [`WINDOW_BYTES`] allow.
fn window(size: usize) -> usize {
    (WINDOW_BYTES / size.max(1)).clamp(1, WINDOW)
}

/// As many accesses in flight as [`ACCESS_BYTES`] allow, and two at least.
pub fn access_window(size: usize) -> usize {
    (ACCESS_BYTES / size.max(1)).clamp(2, WINDOW)
}

/// About a megabyte per batch, or a thousand rounds.
fn trial_rounds(job: &Job) -> u64 {
    let rounds = (1 << 20) / job.size.max(1024) as u64;
    rounds.max(2).max(job.window as u64 / 4)
}

/// The median of `times` in seconds. It is positive, since even an unmeasurably short event takes time.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64).max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_keep_within_their_memory() {
        assert_eq!(job(64, Memory::Application).window, 64);
        assert_eq!(job(1 << 20, Memory::Application).window, 64);
        assert_eq!(job(4 << 20, Memory::Application).window, 16);
        assert_eq!(job(1 << 30, Memory::Application).window, 1);
    }

    #[test]
    fn a_stall_does_not_move_the_median() {
        let times = [5, 5, 4_000, 6, 5].map(Duration::from_micros);
        assert_eq!(median(times.to_vec()), 5e-6);
        assert!(median(Vec::new()) > 0.0);
    }
}
