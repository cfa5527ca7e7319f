//! Threads that drive NICs, and how they wait while nothing happens.

use std::time::{Duration, Instant};

use ofi::Node;

use super::options::Options;
use crate::failure::{Failure, Result};
use crate::pingpong::sys;

/// Runs `work` on each thread with its share of the nodes. The first argument is the thread's number.
///
/// # Errors
/// The first error of a thread.
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

/// The waiting of an idle thread: it yields, and after a while it naps, if allowed.
#[derive(Debug)]
pub struct Idle {
    since: Option<Instant>,
    may_nap: bool,
}

impl Idle {
    /// Time of yielding before the first nap: longer than a round trip, too short to matter.
    const EAGER: Duration = Duration::from_millis(20);
    const NAP: Duration = Duration::from_micros(200);

    /// For a thread that may be idle for hours.
    pub fn napping() -> Self {
        Self { since: None, may_nap: true }
    }

    /// For a thread whose peers write into its memory: writes cause no completions, but many providers need its polls
    /// to execute them.
    pub fn watchful() -> Self {
        Self { since: None, may_nap: false }
    }

    /// Must be called after each turn. Returns the time since the last event.
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::write_demo::nics;
    use crate::write_demo::steps::Steps;

    #[test]
    fn a_pinned_thread_stays_on_its_core_with_its_share_of_the_nodes() {
        let options = Options::try_parse_from(["fi_write_demo", "--pin", "--threads=2"]).unwrap();
        let nodes = nics::open("shm", 3, Steps::new(0)).unwrap();
        let seen = |thread, nodes: Vec<Node>| Ok((thread, nodes.len(), sys::allowed_cores().unwrap()));
        let all = share_out(&options, nodes, seen).unwrap();
        let cores = sys::allowed_cores().unwrap();
        let core = |thread: usize| vec![cores[thread % cores.len()]];
        assert_eq!(all, [(0, 2, core(0)), (1, 1, core(1))]);
    }
}
