//! Bounded waits. A test never sleeps for something to happen: it drives its endpoints until it did, or fails.

use std::time::{Duration, Instant};

use crate::side::Side;

/// The longest that anything may take. Generous, because the suite shares its cores with other builds.
pub const BOUND: Duration = Duration::from_secs(10);

/// Drives `sides` until `ready` gives a value.
///
/// # Panics
/// After [`BOUND`], with `what` was waited for and the counters of all sides.
#[track_caller]
pub fn drive<T>(sides: &[&Side], what: &str, ready: impl FnMut() -> Option<T>) -> T {
    drive_for(BOUND, sides, what, ready)
}

/// As [`drive`], with a bound of its own.
#[track_caller]
pub fn drive_for<T>(bound: Duration, sides: &[&Side], what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        sides.iter().for_each(|side| side.poll());
        if let Some(value) = ready() {
            return value;
        }
        if start.elapsed() > bound {
            let report: Vec<String> = sides.iter().map(|side| side.report()).collect();
            panic!("waited {:?} for {what}\n{}", start.elapsed(), report.join("\n"));
        }
        // The other side may be another process on the same core.
        std::thread::yield_now();
    }
}

/// Waits for something that needs no progress of ours.
///
/// # Panics
/// After [`BOUND`].
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    drive(&[], what, || done().then_some(()));
}

/// Drives `sides` for all of `time`, for cases that show that something does not happen.
pub fn drive_through(time: Duration, sides: &[&Side]) {
    let start = Instant::now();
    while start.elapsed() < time {
        sides.iter().for_each(|side| side.poll());
        std::thread::yield_now();
    }
}
