//! The two streams of records of a session, in each direction.

mod late;
mod parts;
mod receive;
mod resting;
mod send;

use crate::wire::Stream;

pub use parts::Part;
pub(crate) use parts::{PART_HEAD, Train};
pub use receive::{ReceiveStream, Refused};
pub(crate) use resting::Senders;
pub use send::SendStream;

/// The driver's answer to a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// The driver took the record.
    Next,
    /// The driver has no room. The record must be offered again before anything else of this stream.
    Stop,
    /// The record is invalid: the peer violates the protocol.
    Broken,
}

/// The sending ends of a session's streams.
#[derive(Debug)]
pub struct Sender {
    /// [`Stream::Commands`].
    pub commands: SendStream,
    /// [`Stream::Bulk`].
    pub bulk: SendStream,
}

impl Sender {
    pub(crate) const fn new() -> Self {
        Self { commands: SendStream::new(Stream::Commands), bulk: SendStream::new(Stream::Bulk) }
    }

    pub(crate) fn stream(&mut self, stream: Stream) -> &mut SendStream {
        match stream {
            Stream::Commands => &mut self.commands,
            Stream::Bulk => &mut self.bulk,
        }
    }

    /// Whether there is data to send and permission to send it.
    pub(crate) fn has_output(&self) -> bool {
        self.commands.has_output() || self.bulk.has_output()
    }

    /// Whether sent data is unacknowledged.
    pub fn is_under_way(&self) -> bool {
        self.commands.is_under_way() || self.bulk.is_under_way()
    }

    /// Whether everything was acknowledged.
    pub fn is_drained(&self) -> bool {
        self.commands.is_drained() && self.bulk.is_drained()
    }
}
