//! The bare cache-line bounce: the current time of one line from one core to the other.
//!
//! Two threads are pinned, each with a line of its own that only that thread stores to; one way is half of a round
//! trip. A waiting thread pauses between its checks: a check without a pause takes the line away from the writer before
//! the store is done, and costs a third more (57 against 92 ns on a Zen 3 in a virtual machine).
//!
//! On a virtual machine the same two cores are 25, 60, 220 or 450 ns apart from one second to the next, as the
//! host moves them between cache complexes and sockets. That is why every pair of runs has its bounces.

use std::{
    hint,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Instant,
};

use crossbeam_utils::CachePadded;

use crate::{Error, Result, figures::median, sys};

/// Round trips in a batch: long enough for the clock, short enough that few batches are interrupted.
const BATCH: u64 = 500;
/// Number of batches for the median: with [`BATCH`], about 10 ms.
const BATCHES: u64 = 151;

/// One way between the two `cores`, in nanoseconds: the median of many short batches.
///
/// # Errors
/// A thread cannot be pinned, for example on a machine with fewer cores.
pub fn measure(cores: [usize; 2]) -> Result<f64> {
    let lines = [const { CachePadded::new(AtomicU64::new(0)) }; 2];
    let [ping, pong] = &lines;
    let pinned = |core| sys::pin_current_thread(core).map_err(Error::io(format!("pinning to core {core}")));
    thread::scope(|scope| {
        let answering = scope.spawn(move || {
            // An unpinned thread still answers; otherwise the other one would wait for ever.
            let pinned = pinned(cores[1]);
            for turn in 1..=BATCH * BATCHES {
                wait_for(ping, turn);
                pong.store(turn, Ordering::Release);
            }
            pinned
        });
        let asking = scope.spawn(move || {
            let pinned = pinned(cores[0]);
            let mut batches = Vec::with_capacity(BATCHES as usize);
            for batch in 0..BATCHES {
                let start = Instant::now();
                for turn in batch * BATCH + 1..=(batch + 1) * BATCH {
                    ping.store(turn, Ordering::Release);
                    wait_for(pong, turn);
                }
                batches.push(start.elapsed().as_secs_f64() * 1e9 / (2 * BATCH) as f64);
            }
            pinned.map(|()| median(batches).unwrap_or(f64::NAN))
        });
        let joined = (asking.join(), answering.join());
        match joined {
            (Ok(one_way), Ok(answered)) => answered.and(one_way),
            _ => Err(Error::Link("a thread of the bounce panicked".into())),
        }
    })
}

fn wait_for(line: &AtomicU64, turn: u64) {
    while line.load(Ordering::Acquire) != turn {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_bounce_takes_some_time() {
        // Sharing one core is slow (each turn waits for the other's time slice), so measure only with two.
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) {
            let one_way_ns = super::measure([0, 1]).unwrap();
            assert!(one_way_ns > 1.0 && one_way_ns < 1e6, "{one_way_ns}");
        }
    }

    #[test]
    fn a_core_that_is_not_there_is_an_error() {
        assert!(super::measure([0, 5000]).is_err());
    }
}
