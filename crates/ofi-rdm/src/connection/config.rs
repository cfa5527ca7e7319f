//! Configuration of an endpoint's sessions, and counters of a peer.

use core::time::Duration;

use crate::congestion::Congestion;
use crate::wire::Params;

/// Configuration of an endpoint's sessions.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The parameters that peers are told.
    pub params: Params,
    /// The congestion controller of sessions.
    pub congestion: Congestion,
    /// How long a peer and its process may leave questions unanswered before all operations to that peer fail.
    pub patience: Duration,
    /// How long an acknowledgement may wait for a packet that can carry it.
    pub ack_delay: Duration,
    /// Most peers that strangers may make this endpoint remember.
    pub max_peers: usize,
    /// Most of these per host (IPv6: per /64).
    pub max_of_host: usize,
    /// How long a stranger must be silent before this endpoint may probe it, in order to reuse its place.
    pub idle: Duration,
    /// Most peers at rest whose sessions stay ready for their next message. Sessions of other resting peers are
    /// compacted.
    pub warm_peers: usize,
}

/// Counters of a peer, as kept.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
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
    /// Packets that were found lost.
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
    /// Longest packet in bytes.
    pub packet_size: u64,
}
