//! A limit on how often one place logs, for events whose number depends on the network.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Lets one event through per interval, and counts the others. Declare it as a static at the place that logs:
///
/// ```
/// use ofi_config::log::Limit;
///
/// static LOST: Limit = Limit::new();
/// if let Some(more) = LOST.pass() {
///     tracing::debug!(target: "ofi::udp::ep_data", more, "packets were lost");
/// }
/// ```
///
/// `pass` reads the clock, so check `tracing::enabled!` first where that matters.
#[derive(Debug)]
pub struct Limit {
    /// Milliseconds since 1970 from which the next event passes.
    next: AtomicU64,
    suppressed: AtomicU64,
}

/// As the default of C's `FI_LOG_INTERVAL`.
const INTERVAL: Duration = Duration::from_secs(2);

impl Limit {
    /// A limit of one event in two seconds.
    #[expect(clippy::new_without_default, reason = "it is made in statics, where Default cannot be called")]
    pub const fn new() -> Self {
        Self { next: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// The number of events that were not logged since the last one, if this one may be.
    pub fn pass(&self) -> Option<u64> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.pass_at(since)
    }

    fn pass_at(&self, now: Duration) -> Option<u64> {
        let (now, next) = (now.as_millis() as u64, self.next.load(Ordering::Relaxed));
        let later = now + INTERVAL.as_millis() as u64;
        // A clock that was set back must not silence the place for long.
        let is_due = now >= next || next > later;
        if is_due && self.next.compare_exchange(next, later, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return Some(self.suppressed.swap(0, Ordering::Relaxed));
        }
        self.suppressed.fetch_add(1, Ordering::Relaxed);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_event_passes_in_each_interval_and_tells_of_the_others() {
        let limit = Limit::new();
        let at = |ms: u64| limit.pass_at(Duration::from_millis(1_700_000_000_000 + ms));
        assert_eq!((at(0), at(1), at(1999)), (Some(0), None, None));
        assert_eq!((at(2000), at(2001)), (Some(2), None));
        assert_eq!(at(9000), Some(1));
        assert_eq!(at(6000), Some(0), "the clock was set back by 3 s");
    }
}
