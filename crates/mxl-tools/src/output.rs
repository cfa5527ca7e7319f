//! Standard output, which may be closed at any time.

use std::io::Write;

use crate::failure::{Failure, Result};

/// Prints a text unchanged.
///
/// # Errors
/// [`Failure::Closed`] when standard output is closed.
pub fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|_| Failure::Closed)
}

/// Prints a value as JSON, for programs.
///
/// # Errors
/// [`Failure::Closed`] when standard output is closed.
pub fn json(value: &impl serde::Serialize) -> Result<()> {
    // The call cannot fail: all keys are strings.
    print(&format!("{}\n", serde_json::to_string_pretty(value).unwrap_or_default()))
}

/// Nanoseconds in readable form.
pub fn duration(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1_000),
        10_000_000..10_000_000_000 => format!("{} ms", ns / 1_000_000),
        _ => format!("{} s", ns / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_a_unit_of_their_size() {
        assert_eq!([5, 50_000, 20_000_000, 90_000_000_000].map(duration), ["5 ns", "50 us", "20 ms", "90 s"]);
    }
}
