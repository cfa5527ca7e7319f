//! A session's two streams of records in each direction.

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

/// What the driver did with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// It took it.
    Next,
    /// It has no room: offer the record again, and nothing of this stream before.
    Stop,
    /// The record makes no sense: the peer breaks the protocol.
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

    /// Whether anything waits to be sent, and may be.
    pub(crate) fn has_output(&self) -> bool {
        self.commands.has_output() || self.bulk.has_output()
    }

    /// Whether something was sent that is not known to have arrived at the peer.
    pub fn is_under_way(&self) -> bool {
        self.commands.is_under_way() || self.bulk.is_under_way()
    }

    /// Whether everything has arrived at the peer.
    pub fn is_drained(&self) -> bool {
        self.commands.is_drained() && self.bulk.is_drained()
    }
}
