//! Errors, and their numbers in the C++ SDK.

use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flow does not exist.
    #[error("no flow {0} in the domain")]
    NotFound(Uuid),
    /// The data has not been written yet. Waiting may help.
    #[error("index {index} is not written yet")]
    TooEarly {
        /// The requested index.
        index: u64,
    },
    /// The data was overwritten, or the writer may overwrite it at any moment.
    #[error("index {index} is overwritten: the oldest is {oldest}")]
    TooLate {
        /// The requested index.
        index: u64,
        /// The oldest index that can still be read after the writer's next step.
        oldest: u64,
    },
    /// The writer went past this grain without writing it.
    #[error("grain {index} was never written")]
    Skipped {
        /// The requested index.
        index: u64,
    },
    /// The flow was deleted, or replaced by another of the same name: open it again.
    #[error("the flow was deleted or replaced: open it again")]
    FlowInvalid,
    /// A process truncated a file of the flow while it was in use here. Data read from the flow may be zeros, and
    /// writes do not reach readers: open the flow again.
    #[error("{path} was truncated while it was in use: open the flow again")]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// The JSON of a flow definition, or of options, is refused.
    #[error("flow definition: {0}")]
    Definition(String),
    /// The flow exists and differs from the definition.
    #[error("flow {id} exists with {what} {there}, not {wanted}")]
    Conflict {
        /// The flow's id.
        id: Uuid,
        /// The property that differs.
        what: &'static str,
        /// The value of the existing flow.
        there: String,
        /// The value of the definition.
        wanted: String,
    },
    /// This writer has the grain open already.
    #[error("the slot of grain {0} is open already")]
    AlreadyOpen(u64),
    /// A file of the domain is invalid.
    #[error("{path}: {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// The operating system refused.
    #[error("{call} {path}: {source}")]
    Os {
        /// The call that failed.
        call: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The C++ SDK's status codes of flows (`mxlStatus`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
#[non_exhaustive]
pub enum Status {
    /// Success.
    Ok = 0,
    /// Any error without a code of its own.
    Unknown = 1,
    /// No such flow.
    FlowNotFound = 2,
    /// The data was overwritten.
    TooLate = 3,
    /// The data is not yet written.
    TooEarly = 4,
    /// The handle is not a reader of this kind.
    InvalidReader = 5,
    /// The handle is not a writer of this kind.
    InvalidWriter = 6,
    /// A wait ended.
    Timeout = 7,
    /// An argument is invalid.
    InvalidArg = 8,
    /// The flow exists and differs.
    Conflict = 9,
    /// The system denies permission.
    PermissionDenied = 10,
    /// The flow was deleted, replaced or truncated.
    FlowInvalid = 11,
}

impl Error {
    /// The C++ SDK's number.
    pub fn status(&self) -> Status {
        match self {
            Self::NotFound(_) => Status::FlowNotFound,
            Self::TooEarly { .. } => Status::TooEarly,
            Self::TooLate { .. } | Self::Skipped { .. } => Status::TooLate,
            Self::FlowInvalid | Self::Truncated { .. } => Status::FlowInvalid,
            Self::Argument(_) => Status::InvalidArg,
            Self::Conflict { .. } | Self::AlreadyOpen(_) => Status::Conflict,
            Self::Definition(_) | Self::File { .. } => Status::Unknown,
            Self::Os { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    Status::PermissionDenied
                }
                _ => Status::Unknown,
            },
        }
    }

    /// Whether the data has not been written yet, so that waiting may help.
    pub fn is_early(&self) -> bool {
        matches!(self, Self::TooEarly { .. })
    }

    pub(crate) fn os(call: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Os { call, path: path.to_path_buf(), source: source.into() }
    }

    pub(crate) fn file(path: &Path, what: impl Into<String>) -> Self {
        Self::File { path: path.to_path_buf(), what: what.into() }
    }

    pub(crate) fn argument(what: impl Into<String>) -> Self {
        Self::Argument(what.into())
    }
}
