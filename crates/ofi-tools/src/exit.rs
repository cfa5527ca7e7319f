//! How a program ends: what it says, and its exit code.

use std::process::ExitCode;

use crate::failure::Result;
use crate::output;

/// Ends `program`: tells why it failed, if it did.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(&format!("{program}: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

/// What clap has to say about a command line: help on standard output, or an error and exit code 1.
pub fn usage(error: &clap::Error) -> ExitCode {
    // A closed standard output cannot be helped here.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS }
}
