//! Why a program ends early.

use std::io;
use std::process::ExitCode;

/// A result of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Why a program ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line cannot be carried out; says what would have been accepted.
    #[error("{0}")]
    Usage(String),
    /// The library answered an error.
    #[error(transparent)]
    Mxl(#[from] mxl::Error),
    /// The system answered an error.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: String,
        /// The answer.
        error: io::Error,
    },
    /// Nobody reads what is printed any more.
    #[error("standard output is closed")]
    Closed,
}

impl Failure {
    /// For `map_err` on the system's answers.
    pub fn system(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        |error| Self::System { doing, error }
    }
}

/// Reads a command line and runs `run` with it; says why it failed, if it did.
pub fn main<O: clap::Parser>(program: &str, run: impl FnOnce(&O) -> Result<()>) -> ExitCode {
    match O::try_parse() {
        Err(error) => {
            // A closed standard output cannot be helped here.
            let _ = error.print();
            if error.use_stderr() { ExitCode::from(1) } else { ExitCode::SUCCESS }
        }
        Ok(options) => match run(&options) {
            Ok(()) | Err(Failure::Closed) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("{program}: {failure}");
                ExitCode::from(1)
            }
        },
    }
}
