//! The state of an active session.

use alloc::boxed::Box;
use core::time::Duration;

use crate::congestion::Controller;
use crate::ranges::RangeSet;
use crate::rtt::Rtt;
use crate::stream::ReceiveStream;
use crate::time::Instant;
use crate::wire::Params;

use super::pacing::Pacer;
use super::packet_size::{PacketSize, Vanishing};
use super::sent::History;
use super::skips::Skips;

/// The state of an active session. Boxed, so that a peer without a session costs little.
#[derive(Debug)]
pub struct Session {
    /// The peer's name for it.
    pub(super) remote: u64,
    pub(super) peer: Params,
    pub(super) receive: [ReceiveStream; 2],

    pub(super) next_number: u64,
    pub(super) skips: Skips,
    pub(super) sent: History,
    pub(super) in_flight: u64,
    pub(super) in_flight_packets: u64,
    pub(super) largest_acked: Option<u64>,
    /// The time at which the packet with the largest acknowledged number was sent.
    pub(super) largest_left: Instant,
    pub(super) last_eliciting: Instant,
    pub(super) loss_time: Option<Instant>,
    pub(super) probe_count: u32,
    /// The first probe timeout of the current silence.
    pub(super) silent_from: Instant,
    /// The probe timeouts since the peer's process last reported that the endpoint exists, the time of the first of
    /// them, and whether the path was since assumed to have changed. Reset when a packet arrives from the peer.
    pub(super) unanswered: u32,
    pub(super) unanswered_from: Instant,
    pub(super) changed: bool,
    /// Losses have reduced the congestion window, and the driver has not been notified yet.
    pub(super) is_cut: bool,
    pub(super) probes: u32,
    /// Packets that may exceed the window, because this end closes before the window opens.
    pub(super) farewell: u32,
    pub(super) rtt: Rtt,
    /// Round-trip samples ignored since the last accepted one.
    pub(super) odd_samples: u8,
    pub(super) controller: Box<dyn Controller>,
    pub(super) pacer: Pacer,
    pub(super) size: PacketSize,
    pub(super) vanishing: Vanishing,

    pub(super) received: RangeSet,
    /// Packet numbers below this are forgotten and count as received.
    pub(super) floor: u64,
    pub(super) largest_at: Instant,
    pub(super) unacked: u32,
    pub(super) ack_by: Option<Instant>,
    pub(super) ack_now: bool,
    /// Acknowledgements are not delayed: the last delayed one found no packet to travel in.
    pub(super) quick: bool,
    pub(super) tell_credit: bool,
    pub(super) bulk_first: bool,
    pub(super) ask: bool,
    pub(super) asks: u32,
    pub(super) last_heard: Instant,
    /// The last time the network reported the peer as unreachable and this end probed it in response, and the number of
    /// such reports since a packet last arrived from the peer.
    pub(super) last_hint: Option<Instant>,
    pub(super) hints: u32,
}

impl Session {
    /// Creates a session in which nothing was sent or received yet.
    pub(super) fn begin(
        remote: u64,
        peer: Params,
        receive: [ReceiveStream; 2],
        controller: Box<dyn Controller>,
        size: PacketSize,
        now: Instant,
    ) -> Self {
        Self {
            remote,
            peer,
            receive,
            next_number: 0,
            skips: Skips::default(),
            sent: History::new(),
            in_flight: 0,
            in_flight_packets: 0,
            largest_acked: None,
            largest_left: now,
            last_eliciting: now,
            loss_time: None,
            probe_count: 0,
            silent_from: now,
            unanswered: 0,
            unanswered_from: now,
            changed: false,
            is_cut: false,
            probes: 0,
            farewell: 0,
            rtt: Rtt::default(),
            odd_samples: 0,
            controller,
            pacer: Pacer::default(),
            size,
            vanishing: Vanishing::default(),
            received: RangeSet::default(),
            floor: 0,
            largest_at: now,
            unacked: 0,
            ack_by: None,
            ack_now: false,
            quick: true,
            tell_credit: false,
            bulk_first: false,
            ask: false,
            asks: 0,
            last_heard: now,
            last_hint: None,
            hints: 0,
        }
    }

    /// Whether the session began recently and no packet of the peer has arrived in it.
    pub(super) fn is_unconfirmed(&self, now: Instant) -> bool {
        self.received.is_empty() && self.floor == 0 && now < self.last_heard + Duration::from_secs(1)
    }
}
