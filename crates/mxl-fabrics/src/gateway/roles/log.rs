//! The program's log: one line for each event, on standard error.

use std::fmt::Display;
use std::io::Write as _;

/// Writes a line. Text of others is shown with its control characters as escapes.
pub fn say(event: impl Display) {
    // A closed standard error is no reason to end.
    let _ = writeln!(std::io::stderr(), "mxl-gateway: {}", mxl::visible(&event.to_string()));
}
