//! The interface between an endpoint and the code that drives it.

mod row;

use core::net::SocketAddr;

use crate::stream::{Flow, Sender};
use crate::wire::{Record, Stream};

pub use row::Row;
pub(crate) use row::{HEADS, Heads};

/// Who drives an [`crate::Endpoint`]: what it is told, and asked for. Peers go by numbers, dense from 0, in the order
/// in which they were introduced; the number of one that was forgotten goes to the next.
pub trait Driver {
    /// There is a new peer, which has spoken first.
    fn introduce(&mut self, peer: u32, address: SocketAddr);

    /// A record has arrived: each once, and in the order in which it was sent. Answers may go to `sender`.
    fn record(&mut self, peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow;

    /// As [`Driver::record`], for records that have come together, of which it takes one off the front, or more: how
    /// many, and what became of the last. Of those it answers [`Flow::Stop`] to, it has taken none.
    fn records(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
    ) -> (usize, Flow) {
        (1, records.first().map_or(Flow::Next, |&record| self.record(peer, sender, stream, record)))
    }

    /// The session is over: what was not acknowledged may or may not have arrived, and is forgotten.
    fn lost(&mut self, peer: u32, reason: Lost);

    /// The marked record or payload has arrived at the peer.
    fn acked(&mut self, peer: u32, mark: u64);

    /// Copies bytes of a payload, from `at` on.
    fn fill(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]);

    /// As [`Driver::fill`], for the packets in `row`, each of which has its `part` bytes at `skip`: one behind the
    /// other in the payload, from `at` on.
    fn fill_row(&mut self, peer: u32, token: u64, at: u64, row: Row<'_>) {
        let part = row.part as u64;
        for (at, to) in (at..).step_by(row.part.max(1)).zip(row.parts()) {
            debug_assert_eq!(to.len() as u64, part);
            self.fill(peer, token, at, to);
        }
    }

    /// As [`Driver::fill`], for a packet that nobody looks at before it leaves: the bytes may take their place, which
    /// is a part of the buffer given to [`crate::Endpoint::poll_transmit`], on the way out.
    fn refer(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        self.fill(peer, token, at, to);
    }
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// Nobody answered for as long as was to be waited.
    Silent,
    /// The peer closed it.
    Closed,
    /// The peer knows nothing of it, or has begun another one.
    Reset,
    /// The peer broke the protocol.
    Broken,
    /// The peer speaks other versions of the protocol.
    Version,
    /// The peer has another authorization key.
    Key,
    /// The peer protects packets in no way that this end takes.
    Suites,
    /// The peer does not have the address that it was asked at, or not this end that which the peer sees: somebody
    /// changes addresses on the way.
    Address,
    /// More packets were forged than may be tried against one session.
    Forged,
}
