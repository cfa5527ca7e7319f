//! The closing of a region, while accesses that were granted earlier may still be running.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Region;

/// The number of checks before sleeping: most accesses are copies that take microseconds.
const SPINS: u32 = 200;

/// The maximum sleep between two checks.
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// A region that is closed for new accesses, while old ones may still be running. If this is dropped, they continue,
/// and the transport's data is dropped with the last.
#[derive(Debug)]
#[must_use = "the memory may be given back only when the running accesses have ended"]
pub struct Closing<T> {
    pub(super) region: Arc<Region<T>>,
}

impl<T> Closing<T> {
    /// The number of remaining grants.
    pub fn in_use(&self) -> usize {
        Arc::strong_count(&self.region) - 1
    }

    /// The region that closes.
    pub fn region(&self) -> &Region<T> {
        &self.region
    }

    /// Returns the transport's data if no access is running any more; otherwise the region, for another attempt.
    ///
    /// # Errors
    /// The region, while grants exist.
    pub fn try_finish(self) -> Result<T, Self> {
        // Success implies that the effects of the accesses are visible: the last grant was released before.
        Arc::try_unwrap(self.region).map(|region| region.data).map_err(|region| Self { region })
    }

    /// Waits for running accesses, at most for `bound`. Only for accesses that other threads or peers end: a wait for a
    /// grant that the caller holds never ends.
    ///
    /// # Errors
    /// The region, if grants still exist then.
    pub fn wait(self, bound: Duration) -> Result<T, Self> {
        let mut closing = self;
        let mut since = None;
        let mut looks: u32 = 0;
        loop {
            closing = match closing.try_finish() {
                Ok(data) => return Ok(data),
                Err(closing) => closing,
            };
            looks = looks.saturating_add(1);
            if looks < SPINS {
                std::hint::spin_loop();
                continue;
            }
            let waited = since.get_or_insert_with(Instant::now).elapsed();
            if waited >= bound {
                return Err(closing);
            }
            let pause = Duration::from_micros(10).saturating_mul(looks - SPINS).min(MAX_SLEEP);
            std::thread::sleep(pause.min(bound - waited));
        }
    }
}
