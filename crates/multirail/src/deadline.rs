//! The end of a wait.

use std::time::{Duration, Instant};

/// Maximum timeout: a hundred years, since the clock may not represent later times.
const MAX_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The end of a wait that begins now, for any `timeout`, including `Duration::MAX`.
pub fn end_of(timeout: Duration) -> Instant {
    Instant::now() + timeout.min(MAX_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_timeout_has_an_end() {
        let now = Instant::now();
        assert!(end_of(Duration::MAX) >= now + MAX_TIMEOUT);
        assert!(end_of(Duration::from_secs(5)) < now + MAX_TIMEOUT);
        assert!(end_of(Duration::ZERO) >= now);
    }
}
