//! Opens and accepts [bulk connections](crate::bulk), sends and takes the stripes on them, and ends them.
//!
//! A bulk connection that fails ends alone if no stripe is lost with it. If one is, its sender sends no more on the
//! main connection, and its receiver ends that as soon as it needs the stripe: messages before it are taken by both
//! ends. An idle one is closed by the end that has opened it, and opened again when it is needed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use ofi_api::{Errno, OpFlags};
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};

use super::TcpEndpoint;
use crate::bulk::{Bulk, IDLE_TIMEOUT, MAX_INCOMING, OutStripe, RETRY_PAUSE, Role, STOP_PAUSE, Source};
use crate::conn::{AHEAD, Body, Conn, Phase, Stall, To};
use crate::sys;
use crate::taking::{At, Broken};
use crate::wire::cm::{CmKind, CmMessage};
use crate::wire::{Identity, Order, Packet};
use crate::{Tcp, address, settings};

impl TcpEndpoint {
    fn bulk(&mut self, peer: PeerId) -> Option<&mut Bulk> {
        self.peers.get_mut(peer as usize)?.bulk.as_deref_mut()
    }

    /// The connection of a peer's packets, if it is established.
    fn main(&mut self, peer: PeerId) -> Option<(SlotId, &mut Conn)> {
        let id = self.peers.get(peer as usize)?.conn?;
        Some((id, self.conn(id).filter(|conn| conn.phase == Phase::Ready)?))
    }

    /// The number that requests for bulk connections beside this connection have to name.
    pub(super) fn bulk_number(&mut self, id: SlotId) -> u32 {
        // 0 takes none. An endpoint that opens none takes none either.
        let number = if settings::BULK_CONNECTIONS.get() > 1 { getrandom::u32().unwrap_or(0) } else { 0 };
        if let Some(conn) = self.conn(id) {
            conn.bulk = number;
        }
        number
    }

    /// A connection for packets is established: this end may open others beside it.
    pub(super) fn may_stripe(&mut self, id: SlotId) {
        let limit = settings::BULK_CONNECTIONS.get() - 1;
        let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { return };
        let Some(entry) = conn.peer.and_then(|peer| self.peers.get_mut(peer as usize)) else { return };
        // Not beside a second connection to the same peer, as when an endpoint is its own.
        if limit > 0 && conn.extras.bulk != 0 && entry.conn == Some(id) && entry.beside.is_none() {
            entry.bulk = Some(Box::new(Bulk::new(limit)));
            conn.role = Role::Main;
        }
    }

    /// See [`Conn::begin_stripes`].
    pub(super) fn begin_stripes(&mut self, peer: PeerId, id: SlotId, len: usize, flags: OpFlags) -> u8 {
        let Some(bulk) = self.peers.get_mut(peer as usize).and_then(|entry| entry.bulk.as_deref_mut()) else {
            return 1;
        };
        let conn = self.conns.get_mut(id).and_then(Option::as_deref_mut);
        let conn = conn.filter(|conn| conn.role == Role::Main && !flags.contains(OpFlags::INJECT));
        conn.map_or(1, |conn| conn.begin_stripes(Some(bulk), len))
    }

    /// Whether stripes of this end have not left yet: what follows them is not sent before.
    #[inline]
    pub(super) fn has_stripes_left(&self, peer: PeerId) -> bool {
        let bulk = self.peers.get(peer as usize).and_then(|entry| entry.bulk.as_deref());
        bulk.is_some_and(|bulk| {
            let conns = bulk.ready.iter().filter_map(|&id| self.conns.get(id).and_then(Option::as_deref));
            !bulk.waiting.is_empty() || conns.into_iter().any(|conn| conn.out.has_lent())
        })
    }

    /// Sends stripes, after the packet to which they belong.
    pub(super) fn send_stripes<H: Upcalls<Tcp>>(&mut self, host: &mut H, main: SlotId) {
        for id in self.queue_stripes(main) {
            self.flush(host, id);
        }
    }

    /// Passes stripes to their connections, and opens more of those that are wanted. Returns the connections that have
    /// room.
    fn queue_stripes(&mut self, main: SlotId) -> Vec<SlotId> {
        let mut ready = Vec::new();
        let Some(peer) = self.conn(main).and_then(|conn| conn.peer) else { return ready };
        let Some(bulk) = self.bulk(peer) else { return ready };
        if std::mem::take(&mut bulk.wants_more) {
            self.open_bulk(peer);
        }
        let Some(bulk) = self.bulk(peer).filter(|bulk| !bulk.waiting.is_empty()) else { return ready };
        bulk.used = Instant::now();
        for OutStripe { to, packet, source, range } in std::mem::take(&mut bulk.waiting) {
            let Some(conn) = self.conn(to) else { continue }; // it has ended, and stops the main connection
            conn.out.header(&packet, conn.order);
            match source {
                Source::Lent(op) => conn.out.lend_range(op, range),
                Source::Read(remote, answer) => conn.out.read_range(remote, range, Some(answer)),
            }
            if !conn.full && !std::mem::replace(&mut conn.dirty, true) {
                ready.push(to);
            }
            self.common.counts.striped += 1;
        }
        ready
    }

    /// Opens as many bulk connections as are missing.
    fn open_bulk(&mut self, peer: PeerId) {
        let now = Instant::now();
        let deadline = now + self.connect_timeout;
        let Some((_, main)) = self.main(peer) else { return };
        let (order, number) = (main.order, main.extras.bulk);
        let Some(bulk) = self.bulk(peer).filter(|bulk| bulk.not_before <= now) else { return };
        for _ in bulk.out.len()..bulk.limit {
            let mut conn = Conn::new(Phase::Connecting, Some(peer), deadline);
            (conn.role, conn.order, conn.bulk) = (Role::BulkOut, order, number);
            let id = self.conns.insert(Some(Box::new(conn)));
            if let Some(bulk) = self.bulk(peer) {
                bulk.out.push(id);
            }
            self.pending.push(id);
            self.attempt(id);
        }
    }

    /// A bulk connection of this end did not come about.
    pub(super) fn give_up_bulk(&mut self, id: SlotId) {
        let Some(conn) = self.conns.remove(id).flatten() else { return };
        self.pending.retain(|&other| other != id);
        if let Some(bulk) = conn.peer.and_then(|peer| self.bulk(peer)) {
            bulk.forget(id);
            bulk.not_before = Instant::now() + RETRY_PAUSE;
        }
    }

    /// The peer has answered the request for a bulk connection.
    pub(super) fn bulk_answered(&mut self, id: SlotId, kind: CmKind, order: Order) {
        let Some(peer) = self.conn(id).and_then(|conn| conn.peer).filter(|_| kind == CmKind::Response) else {
            return self.give_up_bulk(id);
        };
        self.begin_bulk(id, order);
        if let Some(bulk) = self.bulk(peer) {
            bulk.ready.push(id);
            bulk.used = Instant::now();
        }
        self.look = self.look.min(Instant::now() + IDLE_TIMEOUT);
    }

    fn begin_bulk(&mut self, id: SlotId, order: Order) {
        let Some(conn) = self.conn(id) else { return };
        (conn.order, conn.phase) = (order, Phase::Ready);
        if let Some(socket) = &conn.socket {
            sys::begin_stream(socket.as_fd());
        }
        self.common.counts.bulk += 1;
        self.pending.retain(|&other| other != id);
        self.want_of(id);
    }

    /// A peer asks for a bulk connection, for which it names the number that it got on its main connection.
    pub(super) fn bulk_called<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        (identity, order, number): (&Identity, Order, u32),
    ) {
        let socket = self.conn(id).and_then(|conn| conn.socket.as_ref());
        let from = socket.and_then(|socket| sys::peer_name(socket.as_fd())).map(|from| {
            let mut from = address::canonical(from);
            from.set_port(identity.port);
            from
        });
        let peer = from.and_then(|from| self.by_address.get(&from).copied());
        // The answer that establishes the main connection at this end may not have been read.
        let asking = peer.and_then(|peer| self.peers[peer as usize].conn);
        if let Some(main) = asking.filter(|&main| self.conn(main).is_some_and(|c| c.phase == Phase::Asking)) {
            self.shake_hands(host, main);
        }
        let known = peer.filter(|&peer| {
            let incoming = self.bulk(peer).map_or(0, |bulk| bulk.incoming.len());
            let main = self.main(peer).is_some_and(|(_, main)| number != 0 && main.bulk == number);
            main && incoming < MAX_INCOMING
        });
        let answer = match known {
            Some(_) => {
                self.saying(CmKind::Response, &identity.answer(std::process::id()).encode(), 0).encode()
            }
            None => CmMessage::new(CmKind::Refusal, &identity.encode()).encode(),
        };
        let Some(conn) = self.conn(id) else { return };
        let sent = conn.send_message(&answer).is_ok();
        let Some(peer) = known else {
            self.common.counts.refused += 1;
            static LIMIT: Limit = Limit::new();
            if let Some(more) = LIMIT.pass() {
                let from = from.map_or_else(String::new, |from| from.to_string());
                tracing::warn!(
                    target: "ofi::tcp::ep_ctrl", from, more,
                    "a bulk connection is refused: it names no connection, or there are {MAX_INCOMING}"
                );
            }
            return self.lose(host, id, Errno::ECONNREFUSED);
        };
        if !sent {
            return self.lose(host, id, Errno::ECONNREFUSED);
        }
        (conn.peer, conn.role) = (Some(peer), Role::BulkIn);
        let Some((_, main)) = self.main(peer) else { return self.lose(host, id, Errno::ECONNREFUSED) };
        main.role = Role::Main;
        let (extras, striped) = (main.extras, main.striped);
        if let Some(conn) = self.conn(id) {
            // The peer uses it after the answer: for none of the payloads that this end has begun to parse.
            (conn.extras, conn.striped) = (extras, striped);
        }
        let bulk = self.peers[peer as usize].bulk.get_or_insert_with(|| Box::new(Bulk::new(0)));
        bulk.incoming.push(id);
        self.begin_bulk(id, order);
        self.read(host, id, true);
    }

    /// Processes bytes of a bulk connection.
    pub(super) fn take_stripes<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        peer: PeerId,
        conn: &mut Conn,
        bytes: &[u8],
    ) -> Result<usize, Broken> {
        let mut used = 0;
        loop {
            if conn.body.is_some() {
                let Some(entry) = self.peers.get_mut(peer as usize) else { return Ok(used) };
                let mut at = At { common: &mut self.common, entry, host, peer, on: id };
                used += conn.place(&mut at, &bytes[used..])?;
                if conn.stalled.is_some() || conn.body.as_ref().is_some_and(|body| body.left() > 0) {
                    return Ok(used);
                }
                self.end_stripe(peer, conn);
                continue;
            }
            let Some((packet, header)) = Packet::parse(&bytes[used..], conn.order)? else { return Ok(used) };
            let Packet::Stripe { number, index, len } = packet else {
                return Err(Broken::Unexpected("something other than a stripe on a bulk connection"));
            };
            if conn.role != Role::BulkIn {
                return Err(Broken::Unexpected("a stripe on a bulk connection of this end"));
            }
            let Some(body) = self.begin_stripe(peer, (number, index, len))? else {
                conn.stalled = Some(Stall::Stripes);
                return Ok(used);
            };
            (conn.body, conn.stripes, conn.ahead) = (Some(body), index, AHEAD.0);
            conn.striped = number + 1;
            used += header;
        }
    }

    /// The destination of a stripe; `None` if it has to wait for its packet.
    fn begin_stripe(&mut self, peer: PeerId, said: (u64, u8, u64)) -> Result<Option<Body>, Broken> {
        let wrong = Broken::Unexpected("a stripe that is none of a payload");
        let (_, main) = self.main(peer).ok_or(wrong)?;
        if said.0 >= main.striped {
            return Ok(None);
        }
        let body = main.body.as_mut().ok_or(wrong)?;
        let is_first_here = body.left() == 0;
        let stripes = body.stripes.as_mut().ok_or(wrong)?;
        let Some(range) = stripes.begin(said, body.len, is_first_here).map_err(|()| wrong)? else {
            return Ok(None);
        };
        let to = body.to.clone();
        let (at, end, len) = (range.start, range.end, body.len);
        Ok(Some(Body { to, at, end, len, confirm: body.confirm, stripes: None }))
    }

    /// A stripe is here.
    fn end_stripe(&mut self, peer: PeerId, conn: &mut Conn) {
        let Some(ended) = conn.body.take() else { return };
        let Some(body) = self.main(peer).and_then(|(_, main)| main.body.as_mut()) else { return };
        if let Some(stripes) = &mut body.stripes {
            stripes.end(conn.stripes);
        }
        if matches!(ended.to, To::Refused(_)) {
            body.to = ended.to;
        }
    }

    /// After something was read from a main or a bulk connection: what waited for it goes on at the next poll, and
    /// stripes that it has asked for leave with the next flush, behind their packets.
    pub(super) fn go_on(&mut self, id: SlotId, peer: PeerId, role: Role) {
        let Some((main, conn)) = self.main(peer) else { return };
        match conn.body.as_ref().and_then(|body| body.stripes) {
            Some(stripes) if stripes.are_here() => self.unblock(main),
            Some(stripes) if role == Role::Main || stripes.are_in_turn() => {
                let incoming = self.bulk(peer).map_or_else(Vec::new, |bulk| bulk.incoming.clone());
                incoming.into_iter().for_each(|id| self.unblock(id));
            }
            _ => {}
        }
        if role == Role::Main {
            let mut ready = self.queue_stripes(id);
            self.dirty.append(&mut ready);
        }
    }

    fn unblock(&mut self, id: SlotId) {
        if let Some(conn) = self.conn(id).filter(|conn| conn.stalled == Some(Stall::Stripes)) {
            conn.stalled = Some(Stall::Poll);
            self.stalled.push_back(id);
        }
    }

    /// A bulk connection has ended. `conn` is no longer among the others.
    pub(super) fn lose_bulk<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        (id, peer): (SlotId, PeerId),
        conn: &Conn,
        errno: Errno,
    ) {
        let Some(bulk) = self.bulk(peer) else { return };
        let is_used = bulk.ready.contains(&id);
        let waits = bulk.waiting.iter().any(|stripe| stripe.to == id);
        bulk.forget(id);
        if conn.phase != Phase::Ready || (conn.role == Role::BulkOut && is_used) {
            bulk.not_before = Instant::now() + RETRY_PAUSE;
        }
        let Some((main, _)) = self.main(peer).filter(|_| conn.phase == Phase::Ready) else { return };
        tracing::info!(
            target: "ofi::tcp::ep_ctrl", peer = %self.peers[peer as usize].address, error = errno.name(),
            "a bulk connection has ended"
        );
        match conn.role {
            // What the peer's host has, the peer reads. It cannot go on without the rest.
            Role::BulkOut if is_used && (waits || !is_drained(conn)) => self.stop_main(host, main, errno),
            Role::BulkOut => {}
            _ if conn.body.is_some() || is_ended_here(conn) || self.is_short(peer) => {
                self.flush(host, main); // acknowledgements
                self.resume(host, main);
                self.lose(host, main, errno);
            }
            _ => {
                let is_clean = conn.stash.is_empty() && conn.socket.as_ref().is_some_and(ended_by_peer);
                if let Some(bulk) = self.bulk(peer).filter(|_| !is_clean) {
                    bulk.lost = true;
                }
            }
        }
    }

    /// Stripes of this end are lost, so the peer processes nothing that follows their packet: this end sends no more.
    /// It takes what the peer has sent.
    fn stop_main<H: Upcalls<Tcp>>(&mut self, host: &mut H, main: SlotId, errno: Errno) {
        self.flush(host, main);
        let Some(conn) = self.conn(main) else { return };
        if let Some(socket) = &conn.socket {
            sys::end_sending(socket.as_fd());
        }
        conn.stop_sending(errno);
        let peer = conn.peer;
        self.read(host, main, false);
        self.end_operations(host, main);
        self.want_of(main);
        if let Some(peer) = peer {
            self.finish_bulk(peer, Instant::now());
        }
    }

    /// Whether the payload that arrives awaits more stripes than connections can bring: each brings one.
    fn is_short(&mut self, peer: PeerId) -> bool {
        let Some((_, main)) = self.main(peer) else { return false };
        let Some(stripes) = main.body.as_ref().and_then(|body| body.stripes) else { return false };
        let striped = main.striped;
        let incoming = self.bulk(peer).map_or_else(Vec::new, |bulk| bulk.incoming.clone());
        let may_bring = |conn: &Conn| conn.body.is_some() || conn.striped < striped;
        let left = incoming.into_iter().filter(|&id| self.conn(id).is_some_and(|conn| may_bring(conn)));
        stripes.missing() > left.count()
    }

    /// The main connections that wait for stripes, of which no bulk connection can bring one: each waits itself. A peer
    /// that does as it should never comes here.
    pub(super) fn stuck_mains(&mut self) -> Vec<SlotId> {
        let waits = |conn: &Conn| conn.stalled == Some(Stall::Stripes);
        let mains =
            self.conns.ids(|conn| conn.as_deref().is_some_and(|conn| conn.role == Role::Main && waits(conn)));
        let mut stuck = Vec::new();
        for main in mains {
            let Some(peer) = self.conn(main).and_then(|conn| conn.peer) else { continue };
            let incoming = self.bulk(peer).map_or_else(Vec::new, |bulk| bulk.incoming.clone());
            if incoming.into_iter().all(|id| self.conn(id).is_none_or(|conn| waits(conn))) {
                stuck.push(main);
            }
        }
        stuck
    }

    /// The bulk connections of a peer end with its main one.
    pub(super) fn end_bulk(&mut self, peer: PeerId) {
        let Some(bulk) = self.peers.get_mut(peer as usize).and_then(|entry| entry.bulk.take()) else {
            return;
        };
        for id in bulk.all() {
            self.conns.remove(id);
        }
    }

    /// Ends bulk connections of this end that are not used any more. The peer ends them too, then.
    pub(super) fn close_idle_bulk(&mut self, now: Instant) {
        if settings::BULK_CONNECTIONS.get() == 1 {
            return;
        }
        for at in 0..self.peers.len() {
            let Some(bulk) = self.peers[at].bulk.as_deref_mut().filter(|bulk| !bulk.ready.is_empty()) else {
                continue;
            };
            self.look = self.look.min(now + IDLE_TIMEOUT);
            if now.saturating_duration_since(bulk.used) >= IDLE_TIMEOUT || self.has_stopped(at as PeerId) {
                self.finish_bulk(at as PeerId, now);
            }
        }
    }

    /// Whether this end sends no more to a peer.
    fn has_stopped(&mut self, peer: PeerId) -> bool {
        self.main(peer).is_some_and(|(_, main)| main.broken.is_some())
    }

    /// Ends the bulk connections of this end to a peer as soon as their stripes have left.
    fn finish_bulk(&mut self, peer: PeerId, now: Instant) {
        let has_stopped = self.has_stopped(peer);
        let entry = self.peers.get_mut(peer as usize);
        let bulk = entry.and_then(|entry| entry.bulk.as_deref_mut()).filter(|bulk| bulk.waiting.is_empty());
        let Some(bulk) = bulk else { return };
        for id in std::mem::take(&mut bulk.ready) {
            match self.conns.get_mut(id).and_then(Option::as_deref_mut) {
                // A stripe that is lost afterwards has to stop the main connection, if that has not stopped.
                Some(conn) if !conn.is_sent() || !(has_stopped || is_drained(conn)) => bulk.ready.push(id),
                Some(Conn { socket: Some(socket), .. }) => sys::end_sending(socket.as_fd()),
                _ => {}
            }
        }
        if has_stopped && !bulk.ready.is_empty() {
            self.look = self.look.min(now + STOP_PAUSE);
        }
    }
}

/// Whether a peer that is connected has said its end.
fn ended_by_peer(socket: &OwnedFd) -> bool {
    sys::is_connected(socket.as_fd()) && sys::has_ended(socket.as_fd())
}

/// Whether this end has ended a connection, because of what the peer has sent: some of it was not taken.
fn is_ended_here(conn: &Conn) -> bool {
    let is_open = |socket: &OwnedFd| sys::is_connected(socket.as_fd()) && !sys::has_ended(socket.as_fd());
    let mismatch = conn.tls.as_ref().and_then(|session| session.mismatch());
    conn.broken.is_some() || mismatch.is_some() || conn.socket.as_ref().is_some_and(is_open)
}

/// Whether the peer's host has everything.
fn is_drained(conn: &Conn) -> bool {
    conn.is_sent() && conn.socket.as_ref().is_none_or(|socket| sys::unsent(socket.as_fd()) == 0)
}
