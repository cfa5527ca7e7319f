//! Threads that drive NICs, and what they do while nothing happens.

use std::time::{Duration, Instant};

use ofi::Node;

use super::options::Options;
use crate::failure::{Failure, Result};
use crate::pingpong::sys;

/// Runs `work` on each thread with its share of the nodes, the thread's number first.
///
/// # Errors
/// The first that a thread ends with.
pub fn share_out<T: Send>(
    options: &Options,
    nodes: Vec<Node>,
    work: impl Fn(usize, Vec<Node>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let threads = (options.threads as usize).min(nodes.len());
    let mut shares: Vec<Vec<Node>> = (0..threads).map(|_| Vec::new()).collect();
    nodes.into_iter().enumerate().for_each(|(nth, node)| shares[nth % threads].push(node));
    let cores =
        sys::allowed_cores().map_err(|error| Failure::system("asking for the allowed cores", error))?;
    let work = |thread: usize, nodes| {
        if options.pin
            && let Some(&core) = cores.get(thread % cores.len().max(1))
        {
            sys::pin(core).map_err(|error| Failure::system(format!("running on core {core}"), error))?;
        }
        work(thread, nodes)
    };
    if shares.len() == 1 {
        return shares.pop().into_iter().map(|nodes| work(0, nodes)).collect();
    }
    std::thread::scope(|scope| {
        let work = &work;
        let started: Vec<_> = shares
            .into_iter()
            .enumerate()
            .map(|(thread, nodes)| scope.spawn(move || work(thread, nodes)))
            .collect();
        let gone = |_| Err(Failure::Peer("a thread panicked".to_string()));
        started.into_iter().map(|thread| thread.join().unwrap_or_else(gone)).collect()
    })
}

/// What a thread does that finds nothing to do: it yields, and naps after a while if it may.
#[derive(Debug)]
pub struct Idle {
    since: Option<Instant>,
    may_nap: bool,
}

impl Idle {
    /// Yields before it naps: longer than a round trip, shorter than anybody minds.
    const EAGER: Duration = Duration::from_millis(20);
    const NAP: Duration = Duration::from_micros(200);

    /// For a thread that may have nothing to do for hours.
    pub fn napping() -> Self {
        Self { since: None, may_nap: true }
    }

    /// For a thread whose peers write into its memory: that is no completion, and many providers need its polls for it.
    pub fn watchful() -> Self {
        Self { since: None, may_nap: false }
    }

    /// Called after each turn. Answers for how long nothing has happened.
    pub fn after(&mut self, busy: bool) -> Duration {
        if busy {
            self.since = None;
            return Duration::ZERO;
        }
        let idle = self.since.get_or_insert_with(Instant::now).elapsed();
        match self.may_nap && idle >= Self::EAGER {
            true => std::thread::sleep(Self::NAP),
            false => std::thread::yield_now(),
        }
        idle
    }
}
