//! Usage of a core.

use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;

/// The usage up to some moment.
pub struct Usage {
    who: UsageWho,
    used: f64,
    since: Instant,
}

fn used(who: UsageWho) -> f64 {
    // The call cannot fail for our argument.
    let Ok(usage) = getrusage(who) else { return 0.0 };
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    seconds(usage.user_time()) + seconds(usage.system_time())
}

impl Usage {
    pub fn of_this_process() -> Self {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    pub fn of_this_thread() -> Self {
        Self::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> Self {
        Self { who, used: used(who), since: Instant::now() }
    }

    /// Processor time since then divided by elapsed time: 1 is a whole core.
    pub fn share(&self) -> f64 {
        (used(self.who) - self.used) / self.since.elapsed().as_secs_f64()
    }
}
