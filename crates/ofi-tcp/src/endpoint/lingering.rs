//! Connections that this end has shut down: what the application relies on as sent still leaves, then the end of the
//! stream. The endpoint's operations with the peer are over, and what the peer sends is discarded.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ofi_core::slots::SlotId;

use super::closing::{is_acknowledged, send_rest};
use super::{LINGERING, TcpEndpoint};
use crate::common::Common;
use crate::conn::{Conn, Phase};
use crate::outgoing::{Outgoing, Stop};
use crate::sys::{self, Drained, Interest, Ready, drain};
use crate::tls::Session;

/// What is waited for when the peer sends no more.
const ROOM: Interest = Interest { read: false, write: true };

/// A connection that this end has shut down, until the other end has ended it too.
pub struct Lingering {
    socket: OwnedFd,
    tls: Option<Box<Session>>,
    out: Outgoing,
    /// Everything is sent, and the end.
    has_ended: bool,
    /// The peer may still send: it may read only when what it sends is taken.
    reads: bool,
    /// When the peer has taken nothing, and sent nothing, for so long, it gets no more.
    until: Instant,
    timeout: Duration,
}

impl Lingering {
    /// Advances it. Returns whether it goes on.
    pub fn step(&mut self, common: &mut Common, ready: &Ready) -> bool {
        let Drained { len, is_over } = drain(self.socket.as_fd());
        if self.has_ended {
            return !is_over;
        }
        if is_over && std::mem::replace(&mut self.reads, false) {
            ready.change(&self.socket, LINGERING, ROOM); // its end would end each wait
        }
        let before = self.sent();
        let stop = send_rest(common, &self.socket, self.tls.as_deref_mut(), &mut self.out);
        if len > 0 || self.sent() != before {
            self.until = Instant::now() + self.timeout;
        }
        match stop {
            Stop::Empty => {
                sys::end_sending(self.socket.as_fd());
                ready.remove(&self.socket); // room to write would end each wait
                self.has_ended = true;
                !is_over
            }
            Stop::Full | Stop::Share => Instant::now() < self.until,
            Stop::Failed(_) => false,
        }
    }

    /// Changes when the kernel takes bytes.
    fn sent(&self) -> (u64, u64) {
        (self.out.sent(), self.tls.as_ref().map_or(0, |session| session.sent()))
    }

    /// Whether the peer's host has everything.
    pub fn is_acknowledged(&self) -> bool {
        self.has_ended && is_acknowledged(self.socket.as_fd())
    }
}

impl TcpEndpoint {
    /// Takes an established connection out of the endpoint, to end it when its queue is sent. Returns the operations of
    /// which the peer gets everything, and needs no more from this end.
    pub(super) fn begin_lingering(&mut self, id: SlotId) -> Vec<SlotId> {
        let now = Instant::now();
        let Some(conn) = self.conn(id).filter(|conn| conn.phase == Phase::Ready) else { return Vec::new() };
        let (mut over, is_whole) = conn.out.give_up_lent();
        if is_whole {
            over.extend(conn.hand_over());
        }
        let rest = Conn::new(Phase::Ready, conn.peer, now);
        let Conn { socket: Some(socket), tls, out, .. } = std::mem::replace(conn, rest) else {
            return Vec::new();
        };
        let both = Interest { read: true, ..ROOM };
        if self.ready.add(&socket, LINGERING, both).is_err() {
            self.ready.change(&socket, LINGERING, both); // it is in the set already
        }
        let timeout = self.peer_timeout;
        let mut lingering =
            Lingering { socket, tls, out, has_ended: false, reads: true, until: now + timeout, timeout };
        if lingering.step(&mut self.common, &self.ready)
            && let Some(connected) = &mut self.connected
        {
            connected.lingering.push(lingering);
        }
        over
    }

    /// Advances connections that this end has shut down.
    pub(super) fn move_lingering(&mut self) {
        if let Some(connected) = &mut self.connected {
            connected.lingering.retain_mut(|lingering| lingering.step(&mut self.common, &self.ready));
        }
    }

    /// When one of them is given up.
    pub(super) fn lingering_deadline(&self) -> Option<Instant> {
        let lingering = self.connected.as_ref().into_iter().flat_map(|connected| &connected.lingering);
        lingering.filter(|lingering| !lingering.has_ended).map(|lingering| lingering.until).min()
    }

    /// All of them.
    pub(super) fn take_lingering(&mut self) -> Vec<Lingering> {
        self.connected.as_mut().map_or(Vec::new(), |connected| std::mem::take(&mut connected.lingering))
    }
}
