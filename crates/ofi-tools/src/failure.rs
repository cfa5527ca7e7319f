//! The reasons why a program ends early, and their exit codes.
//!
//! As in C, a program that fails with a libfabric error exits with that error's number, and a usage error exits with 1.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use ofi::raw::Errno;

/// A result of this crate.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The reason why a program ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command line is invalid; the text says what is accepted.
    #[error("{0}")]
    Usage(String),
    /// An error of the library.
    #[error("{doing}: {error:#}")]
    Stack {
        /// The call.
        doing: &'static str,
        /// Its error.
        error: ofi::raw::Error,
    },
    /// An error of the system.
    #[error("{doing}: {error}")]
    System {
        /// The attempted operation.
        doing: String,
        /// The system's error.
        error: io::Error,
    },
    /// The other process is gone, or behaves unexpectedly.
    #[error("{0}")]
    Peer(String),
    /// The other process reported why it ends.
    #[error("the peer gave up: {why}")]
    Told {
        /// The reason.
        why: String,
        /// Its exit code.
        code: u8,
    },
    /// Nothing happened within the time limit.
    #[error("nothing arrived for {} s while {doing}; is the peer stopped?", limit.as_secs())]
    Silent {
        /// The awaited event.
        doing: String,
        /// The time limit.
        limit: Duration,
    },
    /// The received data is not the data that was sent.
    #[error("data is damaged: {0}")]
    Data(String),
}

impl Failure {
    /// For `map_err` on the library's results.
    pub fn stack(doing: &'static str) -> impl Fn(ofi::raw::Error) -> Failure {
        move |error| Failure::Stack { doing, error }
    }

    /// The system's `error` during `doing`.
    pub fn system(doing: impl Display, error: io::Error) -> Failure {
        Failure::System { doing: doing.to_string(), error }
    }

    /// The exit code: an error number of libfabric, or 1.
    pub fn code(&self) -> u8 {
        let number = match self {
            Failure::Usage(_) => return 1,
            Failure::Told { code, .. } => return *code,
            Failure::Stack { error, .. } => error.fi_errno(),
            Failure::System { error, .. } => error.raw_os_error().unwrap_or(1),
            Failure::Peer(_) => Errno::ECONNRESET.get(),
            Failure::Silent { .. } => Errno::ETIMEDOUT.get(),
            Failure::Data(_) => Errno::EIO.get(),
        };
        exit_code(number)
    }
}

/// `number` as an exit code. libfabric's own numbers, from 256 on, do not fit and become 1.
pub fn exit_code(number: i32) -> u8 {
    u8::try_from(number).ok().filter(|&code| code != 0).unwrap_or(1)
}
