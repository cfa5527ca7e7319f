//! Steps at which a test can have a process killed, as if by `kill -9` at exactly that step.
//!
//! [`crash_point!`](crate::crash_point) marks a step of a protocol between processes. In a release build it does
//! nothing. In a debug build, a process with `OFI_CRASH_AT=label:count` in its environment dies at the `count`-th
//! pass of that label, without any cleanup. `tests/tests/processes/crash.rs` reads the labels from the sources, so a
//! new label is tested without being listed anywhere.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Whether this build has crash points.
pub const ENABLED: bool = cfg!(debug_assertions) && !cfg!(loom);

/// The variable that names a label and a count.
pub const VARIABLE: &str = "OFI_CRASH_AT";

/// Kills the process here if `OFI_CRASH_AT` names this label.
///
/// ```
/// // Nothing happens without `OFI_CRASH_AT=example.step:1` in the environment.
/// ofi_ring::crash_point!("example.step");
/// ```
#[macro_export]
macro_rules! crash_point {
    ($label:literal) => {
        if $crate::crash::ENABLED {
            $crate::crash::pass($label);
        }
    };
}

struct CrashTarget {
    label: String,
    /// Remaining passes.
    left: AtomicU64,
}

/// Parses `label:count`; without a count, the first pass.
fn parse(text: &str) -> Option<CrashTarget> {
    let (label, count) = text.rsplit_once(':').unwrap_or((text, "1"));
    let left = count.parse().ok().filter(|&count: &u64| count > 0)?;
    (!label.is_empty()).then(|| CrashTarget { label: label.to_owned(), left: AtomicU64::new(left) })
}

/// The function behind [`crash_point!`](crate::crash_point).
pub fn pass(label: &str) {
    static TARGET: OnceLock<Option<CrashTarget>> = OnceLock::new();
    let target = TARGET.get_or_init(|| parse(&std::env::var(VARIABLE).ok()?));
    if let Some(target) = target
        && target.label == label
        && target.left.fetch_sub(1, Ordering::Relaxed) == 1
    {
        die();
    }
}

#[cold]
fn die() {
    loop {
        // SAFETY: takes no pointers. The process gets the signal before this thread continues, whatever other threads
        // do.
        unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGKILL) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_labels_with_a_count() {
        let parsed = |text| parse(text).map(|target| (target.label, target.left.into_inner()));
        assert_eq!(parsed("ring.publish:3"), Some(("ring.publish".into(), 3)));
        assert_eq!(parsed("ring.publish"), Some(("ring.publish".into(), 1)));
        for bad in ["", ":2", "ring.publish:0", "ring.publish:x"] {
            assert_eq!(parsed(bad), None, "{bad}");
        }
    }
}
