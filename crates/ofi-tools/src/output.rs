//! Standard output, for programs whose reader may close it: `fi_info | head` must not fail.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes `text` to standard output as it is.
///
/// # Errors
/// Standard output cannot be written. A reader that has closed its end is not an error: it does not want the rest.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::system("writing to standard output", error)),
    }
}

/// Writes `value` as JSON to standard output.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Writes a line to standard error, and ignores a failure: there is no other place to report it.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
