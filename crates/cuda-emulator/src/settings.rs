//! The settings in the environment.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of devices.
pub(crate) fn devices() -> i32 {
    number("CUDA_EMULATOR_DEVICES").unwrap_or(1) as i32
}

/// Whether devices have access to each other's memory.
pub(crate) fn are_peers() -> bool {
    number("CUDA_EMULATOR_PEERS") != Some(0)
}

/// Number of queries before an event is ready.
pub(crate) fn polls() -> u64 {
    static POLLS: OnceLock<u64> = OnceLock::new();
    *POLLS.get_or_init(|| number("CUDA_EMULATOR_POLLS").unwrap_or(3))
}

/// Whether dma-bufs are provided: memfds, which only simulated NICs accept.
pub(crate) fn gives_dmabuf() -> bool {
    number("CUDA_EMULATOR_DMABUF") == Some(1)
}

/// The result to return from this call of `function`: `CUDA_EMULATOR_FAIL=FUNCTION:RESULT[@NUMBER]`. NUMBER selects a
/// call, counted from 1; without it, all calls fail.
pub(crate) fn failure(function: &str) -> Option<i32> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let wanted = std::env::var("CUDA_EMULATOR_FAIL").ok()?;
    let (name, rest) = wanted.split_once(':')?;
    if name != function {
        return None;
    }
    let (result, nth) = rest.split_once('@').unwrap_or((rest, ""));
    let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let is_it = nth.parse().map_or(nth.is_empty(), |nth: u64| nth == call);
    result.parse().ok().filter(|_| is_it)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}
