//! Waits with limits. A test drives its endpoints until an event occurs, or fails. Between two polls it may sleep for
//! 100 µs.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::side::TestEndpoint;

/// The time limit of every wait. It is generous, because the suite shares its cores with other builds.
pub const BOUND: Duration = Duration::from_secs(10);
/// After so long a wait is one for a timer, and leaves the core to other tests.
const SPIN: Duration = Duration::from_millis(50);

/// Drives `sides` until `ready` returns a value.
///
/// # Panics
/// After [`BOUND`], with `what` was awaited and the counters of all sides.
#[track_caller]
pub fn drive<T>(sides: &[&TestEndpoint], what: &str, ready: impl FnMut() -> Option<T>) -> T {
    drive_for(BOUND, sides, what, ready)
}

/// As [`drive`], with a given bound. Time during which this thread had no processor does not count.
#[track_caller]
pub fn drive_for<T>(
    bound: Duration,
    sides: &[&TestEndpoint],
    what: &str,
    mut ready: impl FnMut() -> Option<T>,
) -> T {
    let start = Instant::now();
    let mut starved = Starvation::default();
    loop {
        sides.iter().for_each(|side| side.poll());
        if let Some(value) = ready() {
            return value;
        }
        let elapsed = start.elapsed();
        if starved.exceeds(elapsed, bound) {
            let report: Vec<String> = sides.iter().map(|side| side.report()).collect();
            panic!("waited {:?} for {what}\n{}", start.elapsed(), report.join("\n"));
        }
        // The other side may be another process on the same core.
        match elapsed < SPIN {
            true => std::thread::yield_now(),
            false => std::thread::sleep(Duration::from_micros(100)),
        }
    }
}

/// The time for which a waiting thread was ready, but had no processor. On a busy machine a slow thread is not a hung
/// one, so this time does not count, up to four times the limit.
#[derive(Default)]
struct Starvation {
    /// The thread's time without a processor, early in the wait.
    before: Option<Duration>,
}

impl Starvation {
    /// Whether a wait of `elapsed` is longer than `bound`.
    fn exceeds(&mut self, elapsed: Duration, bound: Duration) -> bool {
        // Most waits end before the first reading.
        if self.before.is_none() && elapsed > bound / 16 {
            self.before = Some(unserved());
        }
        elapsed > bound && is_late(elapsed, bound, unserved().saturating_sub(self.before.unwrap_or_default()))
    }
}

/// Whether a wait of `elapsed` exceeds `bound`, without the `unserved` part during which the thread had no processor.
fn is_late(elapsed: Duration, bound: Duration, unserved: Duration) -> bool {
    elapsed > 4 * bound || elapsed.saturating_sub(unserved) > bound
}

/// The time since this thread's start for which it was ready, but had no processor; zero where the kernel does not say.
fn unserved() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanos = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// Waits for an event that needs no progress of ours.
///
/// # Panics
/// After [`BOUND`].
#[track_caller]
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    drive(&[], what, || done().then_some(()));
}

/// Runs an action, and drives `sides` until the statistic `name` of `side` shows it.
///
/// # Panics
/// As [`drive`].
#[track_caller]
pub fn until_counted(sides: &[&TestEndpoint], side: &TestEndpoint, name: &str, act: impl FnOnce()) {
    let before = side.statistic(name);
    act();
    drive(sides, name, || (side.statistic(name) > before).then_some(()));
}

/// Drives `sides` for all of `time`, for cases that check that an event does not occur.
pub fn drive_through(time: Duration, sides: &[&TestEndpoint]) {
    let start = Instant::now();
    while start.elapsed() < time {
        sides.iter().for_each(|side| side.poll());
        std::thread::yield_now();
    }
}

/// Blocks on `fd`. Whether it became readable.
///
/// # Panics
/// If `fd` cannot be added to an epoll set.
pub fn readable(fd: RawFd, timeout: Duration) -> bool {
    // SAFETY: makes a descriptor.
    let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    assert!(set >= 0);
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: both descriptors are open, and the event is read during the call.
    let added = unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    assert_eq!(added, 0, "a wait descriptor goes into an epoll set");
    let end = Instant::now() + timeout;
    let found = loop {
        let left = end.saturating_duration_since(Instant::now()).as_millis() as i32;
        // SAFETY: room for one event, as said.
        let found = unsafe { libc::epoll_wait(set, &raw mut event, 1, left) };
        // Any wait may be interrupted, for example when a ring of this thread is released (io_uring(7)).
        if found >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            break found;
        }
    };
    // SAFETY: `set` was made above.
    unsafe { libc::close(set) };
    found == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_without_a_processor_extends_a_wait_up_to_four_times() {
        let [bound, unserved] = [100, 150].map(Duration::from_millis);
        assert!(!is_late(bound, bound, Duration::ZERO));
        assert!(is_late(bound + unserved, bound, unserved / 2));
        assert!(!is_late(bound + unserved, bound, unserved));
        assert!(is_late(5 * bound, bound, 5 * bound));
    }
}
