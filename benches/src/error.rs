//! Errors between starting a program and reading its figures.

use std::{io, path::PathBuf, process::ExitStatus, time::Duration};

/// The reason why a figure is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system returned an error.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// A program of a peer is not installed and could not be installed.
    #[error("{program} is missing: {reason}")]
    Missing {
        /// The program, as looked up on `PATH`.
        program: String,
        /// The reason, and the remedy.
        reason: String,
    },
    /// A child process failed.
    #[error("{program} ended with {status}; its last output: {tail}")]
    Failed {
        /// The command line.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// The end of its output.
        tail: String,
    },
    /// A child process was still running, or not yet listening, at its limit.
    #[error("{program} did not {what} within {limit:?}; its last output: {tail}")]
    Late {
        /// The command line.
        program: String,
        /// The awaited event.
        what: &'static str,
        /// The limit.
        limit: Duration,
        /// The end of its output.
        tail: String,
    },
    /// A program's output has no figures where they should be.
    #[error("cannot find {wanted} in the output of {program}: {output:?}")]
    Unreadable {
        /// The program.
        program: String,
        /// The text that was searched for.
        wanted: &'static str,
        /// The output, shortened.
        output: String,
    },
    /// The two sides of a worker pair disagree.
    #[error("the other side of the pair: {0}")]
    Link(String),
    /// Our side has no such measurement.
    #[error("our side has no measurement called {0}")]
    NotReady(String),
    /// A budget table is missing or malformed.
    #[error("{path}: {reason}", path = path.display())]
    Budget {
        /// The document.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// An error of our own stack, in its words.
    #[error("our side: {0}")]
    Stack(String),
}

/// The result of everything in this package.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an operating-system error with the operation: `map_err(Error::io("mapping the ring"))`.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The end of `text`, short enough for an error message.
pub fn tail(text: &str) -> String {
    const KEEP: usize = 400;
    let text = text.trim();
    let start = text.char_indices().rev().nth(KEEP).map_or(0, |(at, _)| at);
    text[start..].to_owned()
}
