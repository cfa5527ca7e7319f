//! The end of a wait.

use std::time::{Duration, Instant};

/// A hundred years. The clock may be unable to represent later times, and no wait lasts that long.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The end of a wait that begins now, for any `timeout`, including `Duration::MAX`.
pub fn end_of(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_timeout_has_an_end() {
        let now = Instant::now();
        assert!(end_of(Duration::MAX) >= now + LONGEST);
        assert!(end_of(Duration::from_secs(5)) < now + LONGEST);
        assert!(end_of(Duration::ZERO) >= now);
    }
}
