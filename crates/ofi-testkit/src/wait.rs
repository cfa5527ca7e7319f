//! Bounded waits. A test never sleeps for something to happen: it drives its endpoints until it did, or fails.

use std::os::fd::RawFd;
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

/// Does something, and drives `sides` until it shows in the statistic `name` of `side`.
///
/// # Panics
/// As [`drive`].
#[track_caller]
pub fn until_counted(sides: &[&Side], side: &Side, name: &str, act: impl FnOnce()) {
    let before = side.statistic(name);
    act();
    drive(sides, name, || (side.statistic(name) > before).then_some(()));
}

/// Drives `sides` for all of `time`, for cases that show that something does not happen.
pub fn drive_through(time: Duration, sides: &[&Side]) {
    let start = Instant::now();
    while start.elapsed() < time {
        sides.iter().for_each(|side| side.poll());
        std::thread::yield_now();
    }
}

/// Blocks on `fd`. Whether it became readable.
///
/// # Panics
/// If `fd` does not go into an epoll set.
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
        // Any wait may be interrupted: a ring that this thread had is let go of so (io_uring(7)).
        if found >= 0 || std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            break found;
        }
    };
    // SAFETY: `set` was made above.
    unsafe { libc::close(set) };
    found == 1
}
