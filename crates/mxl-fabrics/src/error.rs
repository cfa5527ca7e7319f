//! Errors.

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the flow.
    #[error(transparent)]
    Flow(#[from] mxl::Error),
    /// An error of the provider.
    #[error("{doing}: {error}")]
    Stack {
        /// The call.
        doing: &'static str,
        /// Its error.
        error: ofi::Error,
    },
    /// A target info is invalid, or names a target that this library cannot write to.
    #[error("target info: {0}")]
    Info(String),
    /// An argument is invalid.
    #[error("{0}")]
    Argument(String),
    /// A target with this id exists already.
    #[error("target {0} was added already")]
    Exists(u64),
    /// Another initiator has replaced this one at the target with this id. The initiator does not compete for it, and
    /// greets it again once it is added again ([`Initiator::add`](crate::Initiator::add)).
    #[error("another initiator writes to target {0}: stop that one, or add the target again to replace it")]
    Replaced(u64),
    /// No address of this host matches; the lines say why.
    #[error("No matching interfaces found:\n  {}", .0.join("\n  "))]
    NoInterface(Vec<String>),
    /// No target has this id.
    #[error("no target {0}")]
    NotFound(u64),
}

impl Error {
    /// Converts errors of the stack, for `map_err`.
    pub(crate) fn stack(doing: &'static str) -> impl Fn(ofi::Error) -> Self {
        move |error| Self::Stack { doing, error }
    }
}
