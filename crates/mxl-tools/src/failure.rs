//! The reasons why a program ends early.

use std::io;
use std::process::ExitCode;

/// A result of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why a program ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is invalid; the text says what would be accepted.
    #[error("{0}")]
    Usage(String),
    /// An error of the library.
    #[error(transparent)]
    Mxl(#[from] mxl::Error),
    /// An error of the system.
    #[error("{doing}: {error}")]
    System {
        /// The failed action.
        doing: String,
        /// The error.
        error: io::Error,
    },
    /// The reader of standard output has closed it.
    #[error("standard output is closed")]
    Closed,
}

impl Failure {
    /// Converts errors of the system, for `map_err`.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        |error| Self::System { doing, error }
    }
}

/// Parses the command line and runs `run` with it; prints the reason of a failure.
pub fn main<O: clap::Parser>(program: &str, run: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    match O::try_parse() {
        Err(error) => {
            // A closed standard output is ignored.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS }
        }
        Ok(options) => match run(&options) {
            Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{program}: {}", mxl::visible(&failure.to_string()));
                ExitCode::from(1)
            }
        },
    }
}
