//! How often a transport whose polls are system calls is polled while peers on the other transport are active.

/// The number of consecutive empty polls after which polls are spaced out.
const MAX_EMPTY_POLLS: u32 = 256;

/// The time between two such polls, in ticks: about twenty microseconds.
#[cfg(target_arch = "x86_64")]
const POLL_INTERVAL: u64 = 1 << 16;
/// Time between two polls then, in nanoseconds.
#[cfg(not(target_arch = "x86_64"))]
const POLL_INTERVAL: u64 = 20_000;

/// A clock that costs a few nanoseconds. It need not be exact or equal on all processors.
#[cfg(target_arch = "x86_64")]
fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux permits it unless the program has disabled it for
    // itself (`PR_SET_TSC`), in which case it raises a signal.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A clock.
#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> u64 {
    use std::sync::OnceLock;
    use std::time::Instant;
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Schedules one endpoint's polls that are system calls: at every call, or spaced out while they find nothing.
#[derive(Default)]
pub struct Pace {
    quiet: u32,
    last: u64,
}

impl Pace {
    /// Whether to poll now.
    #[inline]
    pub fn is_due(&mut self) -> bool {
        if self.quiet < MAX_EMPTY_POLLS {
            return true;
        }
        let now = ticks();
        let due = now.wrapping_sub(self.last) >= POLL_INTERVAL;
        if due {
            self.last = now;
        }
        due
    }

    /// Records the result of a poll.
    #[inline]
    pub fn looked(&mut self, found: bool) {
        self.quiet = if found { 0 } else { self.quiet.saturating_add(1) };
    }

    /// Polls every time for a while, because something is expected.
    #[inline]
    pub fn wake(&mut self) {
        self.quiet = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_spaced_out_after_many_in_vain_and_go_on() {
        let mut pace = Pace::default();
        for _ in 0..MAX_EMPTY_POLLS {
            assert!(pace.is_due());
            pace.looked(false);
        }
        let looks = (0..1000).filter(|_| pace.is_due()).count();
        assert!((1..1000).contains(&looks), "{looks} of 1000 looks in a row");
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(pace.is_due(), "a look is due after a pause");
        pace.looked(true);
        assert!(pace.is_due() && pace.is_due(), "what was found may have company");
    }
}
