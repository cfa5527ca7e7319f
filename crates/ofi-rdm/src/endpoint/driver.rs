//! What an endpoint asks of the code that drives it, and what it hands out to be sent.

use core::net::SocketAddr;

use crate::connection::{Heads, Lost};
use crate::stream::{Flow, Sender, Stream};
use crate::wire::Record;

/// Who drives an [`Endpoint`]: what it is told, and asked for. Peers go by numbers, dense from 0, in the order in which
/// they were introduced; the number of one that was forgotten goes to the next.
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
    /// is a part of the buffer given to [`Endpoint::poll_transmit`], on the way out.
    fn refer(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        self.fill(peer, token, at, to);
    }
}

/// Packets of one length, one behind the other, and where each has room for its part of a payload.
#[derive(Debug)]
pub struct Row<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) len: usize,
    pub(crate) heads: Heads,
    /// Bytes of payload in each packet.
    pub part: usize,
}

impl<'a> Row<'a> {
    /// The room in each, all of which is to be asked for: a packet's heads are written along with it, while its lines
    /// are here.
    pub fn parts(self) -> impl Iterator<Item = &'a mut [u8]> {
        let Self { bytes, len, mut heads, part } = self;
        bytes.chunks_exact_mut(len).map(move |packet| &mut heads.put(packet)[..part])
    }
}

/// Datagrams that came together from one address.
#[derive(Debug)]
pub struct Arrivals<'a> {
    /// One behind the other.
    pub bytes: &'a mut [u8],
    /// Bytes of each but for the last, which may be shorter.
    pub len: usize,
    /// They were marked on their way: a queue was about to be full (CE, RFC 3168).
    pub marked: bool,
}

/// A datagram to be sent, or a row of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// To whom.
    pub to: SocketAddr,
    /// Bytes of it.
    pub len: usize,
    /// Datagrams of this length that lie one behind the other in the buffer.
    pub count: usize,
    /// The peer, unless it goes to a stranger.
    pub peer: Option<u32>,
}

/// Counters of datagrams that lead to no session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Malformed datagrams.
    pub malformed: u64,
    /// Datagrams of another version.
    pub versions: u64,
    /// Packets of sessions that there are not, or from another address than the session's.
    pub strangers: u64,
    /// Handshakes that were echoes or forgeries.
    pub stale: u64,
    /// Cookies asked for.
    pub retries: u64,
    /// Sessions begun.
    pub sessions: u64,
    /// Sessions lost.
    pub lost: u64,
    /// Answers to strangers that were not given as there were too many.
    pub unanswered: u64,
    /// Sessions that were not begun: too many peers, or too many of one host.
    pub turned_away: u64,
    /// Sessions that were not begun: another authorization key, or no suite in common.
    pub rejected: u64,
    /// Packets and answers that were not what the peer had sent.
    pub forged: u64,
    /// Packets not taken, as too much before them was missing in too many places.
    pub crowded: u64,
}
