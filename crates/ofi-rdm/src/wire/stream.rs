//! The streams of a session, by their numbers in frames.

use super::Malformed;

/// Which of a session's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stream {
    /// Everything whose order counts. Its receiver may stop it.
    Commands = 0,
    /// Answers, and payloads that were asked for. Always taken, so two ends that wait for each other's answers get
    /// them.
    Bulk = 1,
}

impl Stream {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Commands, Self::Bulk];

    pub(super) fn parse(number: u8) -> Result<Self, Malformed> {
        match number {
            0 => Ok(Self::Commands),
            1 => Ok(Self::Bulk),
            _ => Err(Malformed::Field("stream number")),
        }
    }
}
