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
    /// How long a peer, and its process, may leave questions unanswered before all operations to that peer fail.
    pub patience: Duration,
    /// The maximum delay of an acknowledgement that waits for a packet to carry it.
    pub ack_delay: Duration,
    /// The maximum number of peers that endpoints unknown to this one can make it remember.
    pub max_peers: usize,
    /// The maximum number of these peers for each host (IPv6: for each /64 network).
    pub max_of_host: usize,
    /// The silence after which this endpoint may probe such a peer, in order to reuse its place.
    pub idle: Duration,
    /// The maximum number of resting peers whose sessions are kept ready for their next message. The sessions of other
    /// resting peers are compacted.
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
    /// How often data waited for the peer's credit, and how often for the congestion window.
    pub stalls: [u64; 2],
    /// Smoothed round-trip time in nanoseconds.
    pub rtt_ns: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// The maximum length of a packet, in bytes.
    pub packet_size: u64,
}
