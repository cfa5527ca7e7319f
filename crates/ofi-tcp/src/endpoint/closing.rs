//! Closes an endpoint: data that was reported as sent reaches the peer's host, within a time limit.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use ofi_api::{Errno, RemotePiece};
use ofi_core::auth::AuthKey;
use ofi_core::domain::Regions;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::sys::wait_readable;
use ofi_core::transport::Payload;

use super::TcpEndpoint;
use crate::bulk::stripe;
use crate::common::Common;
use crate::conn::{Body, Conn, Phase, To};
use crate::outgoing::{Lender, Outgoing, Stop};
use crate::settings;
use crate::stream::Through;
use crate::sys::{self, Interest, drain};
use crate::tls::Session;
use crate::wire::cm::{CmKind, CmMessage};
use crate::wire::{Identity, Packet};

/// Lends nothing: the application has its memory back.
struct Nobody<'a>(&'a Regions, &'a AuthKey);

impl Lender for Nobody<'_> {
    fn payload(&mut self, _op: SlotId) -> Option<&Payload> {
        None
    }

    fn sent(&mut self, _op: SlotId) {}

    fn answered(&mut self, _remote: &[RemotePiece]) {}

    fn regions(&self) -> (&Regions, Accessor<'_>) {
        (self.0, Accessor { auth: self.1, peer: None })
    }
}

impl TcpEndpoint {
    fn close(&mut self) {
        let end = Instant::now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        // Connection requests are not accepted any more: one would end each wait below.
        if let Some(listener) = &self.listener {
            listener.leave(&self.ready);
        }
        for id in self.conns.ids(|conn| conn.as_deref().is_some_and(|conn| conn.phase == Phase::Called)) {
            if let Some(socket) = self.conn(id).and_then(|conn| conn.socket.take()) {
                self.ready.remove(&socket); // a request that comes now is not read
            }
        }
        self.timer.set(None);
        for id in self.conns.ids(|conn| conn.as_deref().is_some_and(|conn| conn.phase == Phase::Ready)) {
            let Some(conn) = self.conn(id) else { continue };
            if conn.out.give_up_lent().1 {
                conn.hand_over();
            } else {
                conn.announced.clear(); // the stream ends inside a packet: nothing may follow
            }
        }
        let mut lingering = self.take_lingering();
        loop {
            let mut waits = false;
            for id in self.conns.ids(|_| true) {
                if !self.is_finished(id) {
                    waits = true;
                }
            }
            lingering.retain_mut(|lingering| lingering.step(&mut self.common, &self.ready));
            waits |= lingering.iter().any(|lingering| !lingering.is_acknowledged());
            if !waits || Instant::now() >= end {
                break;
            }
            wait_readable(&[self.fd()], Some(end.min(Instant::now() + Duration::from_millis(2))));
        }
        for id in self.conns.ids(|_| true) {
            if let Some(socket) = self.conn(id).and_then(|conn| conn.socket.as_ref()) {
                sys::end_sending(socket.as_fd());
                drain(socket.as_fd());
            }
        }
    }

    /// Whether a connection has nothing left to do.
    fn is_finished(&mut self, id: SlotId) -> bool {
        let phase = self.conn(id).map(|conn| conn.phase);
        match phase {
            Some(Phase::Asking) => self.read_response(id),
            Some(Phase::Connecting) => self.look_whether_connected(id),
            Some(Phase::Resting(again)) if again <= Instant::now() => self.attempt(id),
            _ => {}
        }
        let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { return true };
        if conn.phase != Phase::Ready {
            // Only copied data was reported as sent.
            return !conn.out.is_copied() || (conn.out.is_empty() && conn.atomics.is_empty());
        }
        let is_over = if conn.keeps() {
            serve(conn)
        } else {
            conn.socket.as_ref().is_none_or(|socket| drain(socket.as_fd()).is_over)
        };
        let Some(socket) = &conn.socket else { return true };
        if is_over {
            self.ready.remove(socket); // it would end each wait
            conn.announced.clear();
        }
        match send_rest(&mut self.common, socket, conn.tls.as_deref_mut(), &mut conn.out) {
            Stop::Empty if conn.keeps() => false,
            Stop::Empty => {
                // At once: the peer's answer to the end acknowledges everything. Without it the peer's host delays the
                // acknowledgement of the last bytes by 40 ms and more.
                sys::end_sending(socket.as_fd());
                // Room to write would end each wait.
                self.ready.change(socket, id.to_wire(), Interest { read: true, write: false });
                is_acknowledged(socket.as_fd())
            }
            Stop::Full | Stop::Share => false,
            Stop::Failed(_) => true,
        }
    }

    /// Reads the response to this end's request.
    fn read_response(&mut self, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        let got = match conn.receive_into_stash() {
            Err(errno) if sys::is_full(errno) => return,
            Ok(got) if got > 0 => got,
            _ => 0,
        };
        let answer = CmMessage::parse(&conn.stash);
        match answer {
            Ok(None) if got > 0 => {}
            Ok(Some((message, _))) if message.kind == CmKind::Response && message.order == conn.order => {
                let extras = message.extras;
                if Identity::parse(message.payload).is_some() {
                    (conn.phase, conn.extras) = (Phase::Ready, extras);
                    let waiting = std::mem::take(&mut conn.atomics);
                    if conn.takes_atomics() {
                        waiting.into_iter().for_each(|atomic| conn.begin(atomic));
                    }
                }
            }
            _ => self.rest(id, Errno::ECONNREFUSED),
        }
    }

    fn look_whether_connected(&mut self, id: SlotId) {
        let Some(socket) = self.conn(id).and_then(|conn| conn.socket.as_ref()) else { return };
        if sys::take_error(socket.as_fd()).is_some_and(|errno| errno != Errno::EAGAIN) {
            self.rest(id, Errno::ECONNREFUSED);
        } else if sys::is_connected(socket.as_fd()) {
            self.ask(id);
        }
    }
}

/// Sends what is queued on a connection whose application has its memory back.
pub(super) fn send_rest(
    common: &mut Common,
    socket: &OwnedFd,
    session: Option<&mut Session>,
    out: &mut Outgoing,
) -> Stop {
    let mut vectors = std::mem::take(&mut common.vectors);
    let mut lender = Nobody(&common.domain.regions, &common.auth);
    let encrypts = common.encrypts;
    let mut through = Through { socket, session, security: common.tls.as_deref_mut(), encrypts };
    let stop = out.flush(&mut lender, &mut vectors, |vectors| {
        // SAFETY: the queue's vectors may be read during the call.
        unsafe { through.send_pieces(vectors) }
    });
    let stop = through.rest(stop);
    vectors.clear();
    common.vectors = vectors;
    stop
}

/// Whether the peer's host has all bytes. The FIN counts as one byte, whose acknowledgement is not awaited; after a
/// reset nothing is acknowledged any more.
pub(super) fn is_acknowledged(socket: BorrowedFd<'_>) -> bool {
    sys::unsent(socket) <= 1 || !sys::is_connected(socket)
}

/// Sends the kept messages that a peer asks for, and discards everything else. Returns whether the peer sends no more.
fn serve(conn: &mut Conn) -> bool {
    for _ in 0..1024 {
        if !answer(conn) {
            return true;
        }
        match conn.receive_into_stash() {
            Ok(0) => return true,
            Ok(_) => {}
            Err(errno) => return !sys::is_full(errno),
        }
    }
    false
}

/// Processes what has arrived, for [`serve`]. Returns whether it is packets.
fn answer(conn: &mut Conn) -> bool {
    let stash = std::mem::take(&mut conn.stash);
    let mut rest = &stash[..];
    loop {
        if let Some(body) = &mut conn.body {
            let len = body.left().min(rest.len());
            body.at += len;
            rest = &rest[len..];
            if body.left() > 0 {
                return true;
            }
            conn.body = None;
        }
        match Packet::parse(rest, conn.order) {
            Ok(Some((packet, header))) => {
                rest = &rest[header..];
                if let Packet::Cts { number } = packet
                    && let Some(own) = conn.announced.remove(&number)
                    && own.kept.is_some()
                {
                    conn.begin_announced(number, &own, None);
                }
                let count = std::mem::take(&mut conn.stripes);
                if let Packet::Striped { count } = packet {
                    conn.stripes = count;
                }
                let len = stripe(packet.payload_len(), count, 0).end; // others are read on their connections
                conn.body = Some(Body::new(To::Nowhere, len, false));
            }
            Ok(None) => {
                conn.stash.extend(rest);
                return true;
            }
            Err(_) => return false,
        }
    }
}

impl Drop for TcpEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
