//! A value of one of two transports.

/// A value of the near transport or of the far one.
pub enum Either<N, F> {
    /// The near one's.
    Near(N),
    /// The far one's.
    Far(F),
}
