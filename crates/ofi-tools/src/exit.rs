//! The end of a program: its error message and exit code.

use std::process::ExitCode;

use crate::failure::Result;
use crate::output;

/// Ends `program`: prints the error, if it failed.
pub fn end(program: &str, result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output::tell(&format!("{program}: {failure}"));
            ExitCode::from(failure.code())
        }
    }
}

/// Prints clap's output for a command line: help on standard output, or an error with exit code 1.
pub fn usage(error: &clap::Error) -> ExitCode {
    // There is no remedy for a closed standard output.
    let _ = error.print();
    if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS }
}
