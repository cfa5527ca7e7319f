//! The streams of a session, by their numbers in frames.

use super::Malformed;

/// A stream of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// Records whose order matters. The receiver may stop this stream.
    Commands = 0,
    /// Answers, and requested payloads. These are always accepted, so that two ends that wait for each other's answers
    /// both get them.
    Bulk = 1,
}

impl Stream {
    /// Both streams.
    pub const ALL: [Self; 2] = [Self::Commands, Self::Bulk];

    pub(super) fn parse(number: u8) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Commands),
            1 => Ok(Self::Bulk),
            _ => Err(Malformed::Field("stream number")),
        }
    }
}
