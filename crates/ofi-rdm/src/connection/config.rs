//! Configuration of an endpoint's sessions, and counters of a peer.

use core::time::Duration;

use crate::congestion::Congestion;
use crate::wire::Params;

/// Configuration of an endpoint's sessions.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// This endpoint's parameters, which are sent to peers.
    pub params: Params,
    /// The congestion controller of sessions.
    pub congestion: Congestion,
    /// The time for which a peer and its process may leave questions unanswered before all operations to that peer
    /// fail.
    pub patience: Duration,
    /// The maximum delay of an acknowledgement that waits for a packet to carry it.
    pub ack_delay: Duration,
    /// The maximum number of peers that strangers may make this endpoint remember.
    pub max_peers: usize,
    /// The maximum number of these per host (IPv6: per /64).
    pub max_of_host: usize,
    /// The silence after which this endpoint may probe a stranger, in order to reuse its place.
    pub idle: Duration,
    /// The maximum number of resting peers whose sessions stay ready for their next message. Sessions of other resting
    /// peers are compacted.
    pub warm_peers: usize,
}

/// The counters that are kept for a peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct PeerCounts {
    pub packets: [u64; 2],
    pub lost: u64,
    pub duplicates: u64,
    pub probes: u64,
    pub stalls: [u64; 2],
}

/// Counters of one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Packets sent and received.
    pub packets: [u64; 2],
    /// Packets that were detected as lost.
    pub lost: u64,
    /// Packets received with a congestion mark, and packets sent that the peer reported as marked.
    pub marked: [u64; 2],
    /// Packets received more than once.
    pub duplicates: u64,
    /// Probe timeouts.
    pub probes: u64,
    /// Times that data waited for the peer's credit and for the congestion window.
    pub stalls: [u64; 2],
    /// Smoothed round-trip time in nanoseconds.
    pub rtt_ns: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// The maximum length of a packet, in bytes.
    pub packet_size: u64,
}
