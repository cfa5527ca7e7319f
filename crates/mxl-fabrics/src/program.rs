//! How the programs of this crate begin and end.

use std::process::ExitCode;

use clap::Parser;

use crate::Result;

/// Runs `body` with the options of the command line. Wrong options and errors go to standard error, the latter behind
/// the program's name; both end with status 1.
pub fn run<O: Parser>(name: &str, body: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    let options = match O::try_parse() {
        Ok(options) => options,
        Err(error) => {
            // A closed standard output is ignored.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS };
        }
    };
    match body(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {}", mxl::visible(&error.to_string()));
            ExitCode::from(1)
        }
    }
}
