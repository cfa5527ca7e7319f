//! The interface between an endpoint and the code that drives it.

mod gso_batch;

use core::net::SocketAddr;

use crate::stream::{Flow, Sender};
use crate::wire::{Record, Stream};

pub use gso_batch::GsoBatch;
pub(crate) use gso_batch::{HEADS, Heads};

/// The code that drives an [`crate::Endpoint`]: the endpoint reports to it and asks it for bytes. Peers are numbered
/// from 0, without gaps, in the order in which they became known. The number of a forgotten peer goes to the next new
/// one.
pub trait Driver {
    /// A new peer has spoken first.
    fn introduce(&mut self, peer: u32, address: SocketAddr);

    /// A record has arrived. Records are delivered once, in the order in which they were sent. Answers may be written
    /// to `sender`.
    fn record(&mut self, peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow;

    /// Like [`Driver::record`], for records that arrived together. The driver takes one or more from the front. Returns
    /// how many it took, and the result for the last one. A record answered with [`Flow::Stop`] is not taken. The
    /// payloads of [placed](crate::Endpoint::handle_placed) packets arrive through this function, as records whose
    /// payload bytes must not be read; everything else in such a packet arrives through [`Driver::record`].
    fn records(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
    ) -> (usize, Flow) {
        (1, records.first().map_or(Flow::Next, |&record| self.record(peer, sender, stream, record)))
    }

    /// A session has begun. For the driver's log.
    fn began(&mut self, peer: u32, session: Began) {
        let _ = (peer, session);
    }

    /// Packets to the peer were not acknowledged in time, so the endpoint sends probes. For the driver's log.
    fn timed_out(&mut self, peer: u32, state: Late) {
        let _ = (peer, state);
    }

    /// The congestion controller has reduced its window because of `sign`. For the driver's log.
    fn congested(&mut self, peer: u32, sign: Sign, state: Late) {
        let _ = (peer, sign, state);
    }

    /// The session ended. Anything unacknowledged may or may not have arrived, and is discarded.
    fn lost(&mut self, peer: u32, reason: Lost);

    /// The marked record or payload has arrived at the peer.
    fn acked(&mut self, peer: u32, mark: u64);

    /// Copies bytes of a payload, starting at offset `at`.
    fn fill(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]);

    /// Like [`Driver::fill`], for the packets in `row`. Each has room for `part` bytes at `skip`; together these are
    /// consecutive bytes of the payload, starting at offset `at`.
    fn fill_row(&mut self, peer: u32, token: u64, at: u64, row: GsoBatch<'_>) {
        let part = row.part as u64;
        for (at, to) in (at..).step_by(row.part.max(1)).zip(row.parts()) {
            debug_assert_eq!(to.len() as u64, part);
            self.fill(peer, token, at, to);
        }
    }

    /// Like [`Driver::fill`], for a packet that is not read before it is sent. The room is part of the buffer given to
    /// [`crate::Endpoint::poll_transmit`]. Instead of copying, the driver may have the kernel gather the bytes in place
    /// of the room when the packet is sent.
    fn refer(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        self.fill(peer, token, at, to);
    }
}

/// A sign of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Packets were lost.
    Lost,
    /// Packets were marked on the path, because a queue is nearly full.
    Marked,
    /// The peer was silent for several probe timeouts: the window was reset to its minimum.
    Silent,
}

/// The state of a session whose acknowledgements are late, or which has seen a [`Sign`] of congestion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// Probe timeouts so far.
    pub timeouts: u64,
    /// Packets found lost so far.
    pub lost: u64,
    /// Smoothed round-trip time in nanoseconds.
    pub rtt_ns: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// The maximum length of a packet, in bytes.
    pub packet_size: u64,
}

/// The properties of a new session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began {
    /// Where the peer is.
    pub address: SocketAddr,
    /// Whether the peer asked for it.
    pub by_peer: bool,
    /// How its packets are protected: one of [`crate::suites`].
    pub suite: u8,
    /// The longest packet that the peer accepts, in bytes. The search for what the path carries begins at a smaller
    /// size.
    pub longest_packet: u32,
    /// Bytes that may be in flight to the peer.
    pub window: u64,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The peer was silent for the configured time.
    Silent,
    /// Before there was a session, the peer's host reported for some time that the peer's port is closed.
    Refused,
    /// The peer closed it.
    Closed,
    /// The peer does not know the session, or has begun another one.
    Reset,
    /// The peer broke the protocol.
    Broken,
    /// The peer speaks only other versions of the protocol.
    Version,
    /// The peer has another authorization key.
    Key,
    /// The ends accept no common way to protect packets.
    Suites,
    /// The peer is not at the address that this end used, or sees this end at another address than its own: something
    /// on the path translates addresses.
    Address,
    /// The limit of forged packets for one session was reached.
    Forged,
}
