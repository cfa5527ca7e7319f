//! Endpoints to flush that were locked by another thread, which may be stopped there. The helper thread retries them
//! later and meanwhile serves others.

use std::time::{Duration, Instant};

/// Time before the first retry, and the maximum time between two; it doubles in between.
const FIRST_RETRY_INTERVAL: Duration = Duration::from_millis(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(64);

/// The endpoints to retry, and the time of the next retry.
pub struct Late {
    /// Their epochs.
    epochs: Vec<u64>,
    pause: Duration,
    again: Option<Instant>,
}

impl Default for Late {
    fn default() -> Self {
        Self { epochs: Vec::new(), pause: FIRST_RETRY_INTERVAL, again: None }
    }
}

impl Late {
    /// Adds an endpoint to flush.
    pub fn add(&mut self, epoch: u64) {
        if !self.epochs.contains(&epoch) {
            self.epochs.push(epoch);
            (self.pause, self.again) = (FIRST_RETRY_INTERVAL, None);
        }
    }

    /// The time of the next retry, if there are any endpoints.
    pub fn again(&self) -> Option<Instant> {
        self.again
    }

    /// Flushes each endpoint if there are new ones or the retry is due. `let_out` returns whether it succeeded.
    pub fn attempt(&mut self, now: Instant, let_out: impl Fn(u64) -> bool) {
        if self.again.is_some_and(|again| again > now) {
            return;
        }
        self.epochs.retain(|&epoch| !let_out(epoch));
        self.again = None;
        if self.epochs.is_empty() {
            self.pause = FIRST_RETRY_INTERVAL;
        } else {
            self.again = Some(now + self.pause);
            self.pause = (2 * self.pause).min(MAX_RETRY_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_busy_endpoint_is_tried_again_and_delays_no_other() {
        let (mut late, tried) = (Late::default(), RefCell::new(Vec::new()));
        let attempt = |late: &mut Late, now, busy: u64| {
            late.attempt(now, |epoch| {
                tried.borrow_mut().push(epoch);
                epoch != busy
            });
            std::mem::take(&mut *tried.borrow_mut())
        };
        let mut now = Instant::now();
        [1, 2, 1].into_iter().for_each(|epoch| late.add(epoch));
        assert_eq!(attempt(&mut late, now, 1), [1, 2]);
        assert_eq!(attempt(&mut late, now, 1), [], "it is not time yet");
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let again = late.again().unwrap();
            pauses.push((again - now).as_millis());
            now = again;
            assert_eq!(attempt(&mut late, now, 1), [1]);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        late.add(3);
        assert_eq!(attempt(&mut late, now, 1), [1, 3], "a new one is tried at once");
        now = late.again().unwrap();
        assert_eq!(attempt(&mut late, now, 0), [1]);
        assert_eq!(late.again(), None);
        assert_eq!(attempt(&mut late, now, 0), []);
    }
}
