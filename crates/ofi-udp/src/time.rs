//! The time as `ofi-rdm` counts it.

use std::sync::OnceLock;

use ofi_rdm::Instant;

/// The current time.
pub fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    // Not 0, so that "never" is always earlier.
    Instant::from_nanos(1_000_000 + start.elapsed().as_nanos() as u64)
}
