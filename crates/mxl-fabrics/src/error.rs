//! Errors.

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The flow answered an error.
    #[error(transparent)]
    Flow(#[from] mxl::Error),
    /// The provider answered an error.
    #[error("{doing}: {error}")]
    Stack {
        /// The call.
        doing: &'static str,
        /// Its answer.
        error: ofi::Error,
    },
    /// A target info is invalid, or names a target that this library cannot write to.
    #[error("target info: {0}")]
    Info(String),
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// There is a target of this id already.
    #[error("target {0} was added already")]
    Exists(u64),
    /// No target has this id.
    #[error("no target {0}")]
    NotFound(u64),
}

impl Error {
    /// For `map_err` on the stack's answers.
    pub(crate) fn stack(doing: &'static str) -> impl Fn(ofi::Error) -> Self {
        move |error| Self::Stack { doing, error }
    }
}
