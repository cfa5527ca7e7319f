//! How an endpoint behaves towards its peers, and what is counted of one.

use core::time::Duration;

use crate::congestion::Congestion;
use crate::wire::Params;

/// How an endpoint behaves.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// What peers are told.
    pub params: Params,
    /// Which congestion controller sessions get.
    pub congestion: Congestion,
    /// How long a peer may leave questions unanswered, its process too, before everything addressed to it fails.
    pub patience: Duration,
    /// How long an acknowledgement may wait for something to go along with.
    pub ack_delay: Duration,
    /// Peers that strangers may make this end remember, at most.
    pub max_peers: usize,
    /// And of those, of one host (IPv6: of one /64).
    pub max_of_host: usize,
    /// How long nothing has to come of a stranger before it may be asked whether it is there: for the place that it
    /// takes.
    pub idle: Duration,
    /// Peers at rest whose sessions stay as they are, for the next message to them; others are put into less memory.
    pub warm_peers: usize,
}

/// What is counted of one peer.
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
    /// Packets sent, and received.
    pub packets: [u64; 2],
    /// Packets that were found lost.
    pub lost: u64,
    /// Packets received that were marked for congestion on their way, and packets sent of which the peer has said so.
    pub marked: [u64; 2],
    /// Packets that came more than once.
    pub duplicates: u64,
    /// Probe timeouts.
    pub probes: u64,
    /// Times that data waited for the peer's credit, and for the congestion window.
    pub stalls: [u64; 2],
    /// Smoothed round-trip time in nanoseconds.
    pub rtt_ns: u64,
    /// Congestion window in bytes.
    pub window: u64,
    /// Longest packet in bytes.
    pub packet_size: u64,
}
