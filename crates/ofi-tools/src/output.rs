//! Standard output, for programs whose reader may go away: `fi_info | head` is no failure.

use std::io::{self, Write};

use crate::failure::Failure;

/// Writes `text` to standard output as it is.
///
/// # Errors
/// When it cannot be written. A reader that has closed its end is no error: nobody wants the rest.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.map_err(|error| Failure::system("writing to standard output", error)),
    }
}

/// Writes `value` to standard output, for programs.
///
/// # Errors
/// As [`print()`].
pub fn print_json(value: &serde_json::Value) -> Result<(), Failure> {
    print(&format!("{value:#}\n"))
}

/// Writes a line to standard error. If even that fails, there is nobody left to tell.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
