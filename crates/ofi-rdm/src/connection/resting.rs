//! An idle session in compact form: only the state needed to resume it.

use alloc::boxed::Box;
use core::ops::Range;

use super::packet_size::PacketSize;
use super::skips::Skips;
use super::{Connection, Session, Stats};
use crate::congestion::Controller;
use crate::ranges::RangeSet;
use crate::rtt::Rtt;
use crate::stream::ReceiveStream;
use crate::time::Instant;
use crate::wire::Params;

/// The next byte of a stream, and the limit up to which its sender may send.
type Position = (u64, u64);

/// The compact state of an idle session, in which all sent packets are acknowledged and the driver has taken everything
/// that arrived.
#[derive(Debug)]
pub struct IdleSession {
    pub remote: u64,
    pub peer: Params,
    window: u64,
    receive: [Position; 2],
    next_number: u64,
    skips: Skips,
    largest_acked: Option<u64>,
    rtt: Rtt,
    controller: Box<dyn Controller>,
    size: PacketSize,
    received: Range<u64>,
    pub last_heard: Instant,
    last_hint: Option<Instant>,
}

impl IdleSession {
    /// Fills in the statistics.
    pub fn describe(&self, stats: &mut Stats) {
        stats.rtt_ns = self.rtt.smoothed().as_nanos() as u64;
        stats.window = self.controller.window();
        stats.packet_size = self.size.packet();
    }

    /// Of the received packet numbers, only the highest run is kept. The contents of lower ones that are still missing
    /// have arrived in other packets, or will.
    fn of(session: &Session) -> Option<([Position; 2], Range<u64>)> {
        let [commands, bulk] = &session.receive;
        let received = session.received.iter().next_back().cloned().unwrap_or(session.floor..session.floor);
        Some(([commands.position()?, bulk.position()?], received))
    }

    fn wake(self) -> Session {
        let mut received = RangeSet::new();
        received.insert(self.received.clone());
        let receive = self.receive.map(|(next, limit)| ReceiveStream::at(next, limit, self.window));
        Session {
            next_number: self.next_number,
            skips: self.skips,
            largest_acked: self.largest_acked,
            rtt: self.rtt,
            floor: self.received.start,
            received,
            last_hint: self.last_hint,
            ..Session::begin(self.remote, self.peer, receive, self.controller, self.size, self.last_heard)
        }
    }
}

impl Connection {
    /// Compacts a session at rest.
    pub fn freeze(&mut self) {
        if !self.is_quiet() {
            return;
        }
        self.sender.rest();
        let Some(session) = self.session.as_deref_mut() else { return };
        session.sent.forget();
        if let Some((receive, received)) = IdleSession::of(session).filter(|_| session.sent.is_empty())
            && let Some(session) = self.session.take()
        {
            let session = *session;
            self.asleep = Some(Box::new(IdleSession {
                remote: session.remote,
                peer: session.peer,
                window: session.receive[0].window(),
                receive,
                next_number: session.next_number,
                skips: session.skips,
                largest_acked: session.largest_acked,
                rtt: session.rtt,
                controller: session.controller,
                size: session.size,
                received,
                last_heard: session.last_heard,
                last_hint: session.last_hint,
            }));
        }
    }

    /// Restores a resting session for use.
    #[inline]
    pub(super) fn thaw(&mut self) {
        if let Some(resting) = self.asleep.take() {
            self.session = Some(Box::new(resting.wake()));
        }
    }
}
