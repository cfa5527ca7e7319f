//! Establishes connections: this end connects when it has something to send, and accepts requests of peers.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ofi_api::{Address, Caps, Errno, Error, Result};
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, Upcalls};

use super::TcpEndpoint;
use crate::bulk::Role;
use crate::conn::{Conn, Peer, Phase};
use crate::handshake::{Standing, Verdict, judge};
use crate::listener::Accepted;
use crate::mismatch::{self, Mismatch};
use crate::sys::{self, Interest};
use crate::wire::cm::{CmKind, CmMessage, Extras};
use crate::wire::{Identity, Order};
use crate::{Tcp, address};

/// The maximum number of connections whose peers have not identified themselves yet.
const MAX_UNIDENTIFIED: usize = 1024;
/// The time within which a peer must send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first refused attempt, and the maximum pause.
const RETRY_PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(200));
/// The time for which a refused request is repeated: the peer may not listen yet.
const REFUSED_RETRY_TIMEOUT: Duration = Duration::from_secs(2);
/// Connections accepted in one poll.
const MAX_ACCEPTS_PER_POLL: usize = 64;

impl TcpEndpoint {
    /// The number of the peer at `socket`.
    pub(crate) fn meet<H: Upcalls<Tcp>>(&mut self, host: &mut H, socket: SocketAddr) -> PeerId {
        if let Some(&peer) = self.by_address.get(&socket) {
            return peer;
        }
        // A number of a peer that is gone, if there is one: more are checked than are used.
        for _ in 0..self.idle.len().min(2) {
            let Some(peer) = self.idle.pop_front() else { break };
            let entry = &mut self.peers[peer as usize];
            if !entry.is_idle() {
                continue; // until its connection is lost again
            }
            if !host.retire(peer) {
                self.idle.push_back(peer);
                continue;
            }
            self.by_address.remove(&entry.address);
            *entry = Peer::new(socket);
            self.by_address.insert(socket, peer);
            host.introduce(peer, &Address::from(socket));
            self.idle.push_back(peer);
            return peer;
        }
        let peer = self.peers.len() as PeerId;
        self.peers.push(Peer::new(socket));
        self.by_address.insert(socket, peer);
        host.introduce(peer, &Address::from(socket));
        self.idle.push_back(peer);
        peer
    }

    /// See [`ofi_core::transport::TransportEndpoint::peer`].
    pub(crate) fn peer<H: Upcalls<Tcp>>(&mut self, host: &mut H, to: &Address) -> Result<PeerId> {
        let socket = address::socket(to)?;
        if socket.is_ipv4() != self.bound.is_ipv4() || socket.port() == 0 {
            return Err(self.unreachable(socket));
        }
        Ok(self.meet(host, socket))
    }

    /// The connection on which to send to a peer, established or being established.
    pub(crate) fn connection(&mut self, peer: PeerId) -> Result<SlotId> {
        let entry = self.peers.get(peer as usize).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))?;
        if let Some(id) = entry.conn {
            return Ok(id);
        }
        let now = Instant::now();
        let mut conn = Conn::new(Phase::Resting(now), Some(peer), now + self.connect_timeout);
        conn.order = entry.order; // what is posted before the connection is there is written in it
        let id = self.conns.insert(Some(Box::new(conn)));
        self.peers[peer as usize].conn = Some(id);
        self.pending.push(id);
        self.attempt(id);
        Ok(id)
    }

    /// Begins an attempt to connect.
    pub(super) fn attempt(&mut self, id: SlotId) {
        let Some(peer) = self.conn(id).and_then(|conn| conn.peer) else { return };
        let to = self.peers[peer as usize].address;
        let started = self.start(id, to);
        let Some(conn) = self.conn(id) else { return };
        conn.attempts += 1;
        match started {
            Ok(true) => self.ask(id),
            Ok(false) => {}
            Err(errno) => self.rest(id, errno),
        }
    }

    /// Starts to connect. `true`: the kernel has connected.
    fn start(&mut self, id: SlotId, to: SocketAddr) -> Result<bool, Errno> {
        let own = self.own_socket();
        let is_bound = own.is_some();
        let socket = own.map_or_else(|| sys::stream(to.is_ipv6()), Ok).map_err(|error| error.errno())?;
        sys::prepare(socket.as_fd(), self.peer_timeout);
        // The peer identifies this end by its source address. An endpoint of all addresses is named by one of them: by
        // loopback on a host without a network, from which no other host is reached.
        let source = self.name.ip();
        let is_named = !self.bound.ip().is_unspecified() || to.ip().is_loopback() || !source.is_loopback();
        if !is_bound && is_named {
            let _ = sys::bind_source(socket.as_fd(), source);
        }
        let connected = sys::connect(socket.as_fd(), to)?;
        let interest = Interest { read: false, write: true };
        self.ready.add(&socket, id.to_wire(), interest).map_err(|error| error.errno())?;
        if let Some(conn) = self.conn(id) {
            (conn.socket, conn.phase, conn.interest) = (Some(socket), Phase::Connecting, interest);
        }
        Ok(connected)
    }

    /// The kernel has connected, or has failed to.
    pub(super) fn connected<H: Upcalls<Tcp>>(&mut self, _host: &mut H, id: SlotId) {
        let Some(socket) = self.conn(id).and_then(|conn| conn.socket.as_ref()) else { return };
        match sys::take_error(socket.as_fd()) {
            None => self.ask(id),
            Some(errno) => self.rest(id, errno),
        }
    }

    /// A connection message that also says what this endpoint takes beyond C's protocol.
    /// `bulk`: see [`Extras::bulk`].
    pub(super) fn saying<'a>(&self, kind: CmKind, payload: &'a [u8], bulk: u32) -> CmMessage<'a> {
        let has = |caps| self.common.caps.intersects(caps);
        let (atomics, notes) = (has(Caps::ATOMIC), has(Caps::COLLECTIVE));
        let window = self.common.window;
        let extras = Extras { refusals: true, atomics, notes, unasked: true, window, bulk, is_bulk: false };
        CmMessage { extras, ..CmMessage::new(kind, payload) }
    }

    /// Sends this end's request.
    pub(super) fn ask(&mut self, id: SlotId) {
        let identity = || Identity::new(self.bound.port(), std::process::id()).encode().to_vec();
        let payload = self.request().unwrap_or_else(identity);
        let further = self.conn(id).filter(|conn| conn.role == Role::BulkOut).map(|conn| conn.bulk);
        let number = match further {
            Some(number) => number,
            None if self.connected.is_some() => 0,
            None => self.bulk_number(id),
        };
        let mut message = self.saying(CmKind::Request, &payload, number);
        message.extras.is_bulk = further.is_some();
        let message = message.encode();
        let secured = self.secure(id, true);
        let Some(conn) = self.conn(id) else { return };
        match secured.and_then(|()| conn.send_message(&message)) {
            Ok(()) => {
                conn.phase = Phase::Asking;
                self.want_of(id);
            }
            Err(errno) => self.rest(id, errno),
        }
    }

    pub(super) fn want_of(&mut self, id: SlotId) {
        let Some(mut conn) = self.conns.get_mut(id).and_then(Option::take) else { return };
        self.want(id, &mut conn);
        if let Some(slot) = self.conns.get_mut(id) {
            *slot = Some(conn);
        }
    }

    /// Handles a failed attempt: another one follows after a pause, until the time limit.
    pub(super) fn rest(&mut self, id: SlotId, errno: Errno) {
        if self.connected.is_some() {
            return self.not_connected(errno, None); // the application decides
        }
        if self.conn(id).is_some_and(|conn| conn.role == Role::BulkOut) {
            return self.give_up_bulk(id);
        }
        let (now, patience) = (Instant::now(), self.connect_timeout);
        let Some(conn) = self.conn(id) else { return };
        (conn.socket, conn.tls, conn.interest, conn.failure) = (None, None, Interest::default(), errno);
        conn.stash.clear();
        let rest = RETRY_PAUSE.0.saturating_mul(1 << conn.attempts.min(10)).min(RETRY_PAUSE.1);
        conn.phase = Phase::Resting(now + rest);
        // The first refusal shortens the time.
        let begun = conn.deadline.checked_sub(patience).unwrap_or(now);
        if now.duration_since(begun) > REFUSED_RETRY_TIMEOUT.min(patience) && errno == Errno::ECONNREFUSED {
            conn.deadline = now;
        }
    }

    /// Continues attempts, and ends attempts that have taken too long.
    pub(super) fn move_pending<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        let now = Instant::now();
        let mut pending = std::mem::take(&mut self.pending);
        let mut ended = Vec::new();
        pending.retain(|&id| {
            let Some(conn) = self.conns.get(id).and_then(Option::as_deref) else { return false };
            if conn.phase == Phase::Ready {
                return false;
            }
            if conn.deadline <= now {
                ended.push(id);
            }
            true
        });
        let due: Vec<SlotId> = pending
            .iter()
            .copied()
            .filter(|&id| matches!(self.conn(id).map(|conn| conn.phase), Some(Phase::Resting(again)) if again <= now))
            .collect();
        self.pending.append(&mut pending);
        for id in ended {
            let Some(conn) = self.conn(id) else { continue };
            let resting = matches!(conn.phase, Phase::Resting(_));
            let errno = if resting { conn.failure } else { Errno::ETIMEDOUT };
            self.count_silent(id);
            self.lose(host, id, errno);
        }
        for id in due {
            if self.conn(id).is_some() {
                self.attempt(id);
            }
        }
    }

    /// Ends the rest of the listener.
    pub(super) fn listen_again(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.end_rest(&self.ready);
        }
    }

    /// Accepts connections, whose requests follow.
    pub(super) fn accept(&mut self) {
        for _ in 0..MAX_ACCEPTS_PER_POLL {
            let Some(listener) = &mut self.listener else { return };
            let socket = match listener.accept(&self.ready) {
                Accepted::Connection(socket) => socket,
                Accepted::Failed => continue,
                Accepted::Nothing => return,
            };
            // Attempts of this end are pending too.
            let is_unidentified = |id: &&SlotId| {
                self.conns
                    .get(**id)
                    .and_then(Option::as_deref)
                    .is_some_and(|conn| conn.phase == Phase::Called)
            };
            if self.pending.len() >= MAX_UNIDENTIFIED
                && self.pending.iter().filter(is_unidentified).count() >= MAX_UNIDENTIFIED
            {
                self.common.counts.refused += 1;
                continue;
            }
            sys::prepare(socket.as_fd(), self.peer_timeout);
            let mut conn = Conn::new(Phase::Called, None, Instant::now() + REQUEST_TIMEOUT);
            conn.interest = conn.wanted();
            let interest = conn.interest;
            let id = self.conns.insert(Some(Box::new(conn)));
            if self.ready.add(&socket, id.to_wire(), interest).is_err() {
                self.conns.remove(id);
                continue;
            }
            if let Some(conn) = self.conn(id) {
                conn.socket = Some(socket);
            }
            if self.secure(id, false).is_err() {
                self.conns.remove(id);
                continue;
            }
            self.pending.push(id);
        }
    }

    /// Reads the other end's connection message.
    pub(super) fn shake_hands<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        match conn.receive_into_stash() {
            Ok(1..) => {}
            Err(errno) if sys::is_full(errno) => return self.want_of(id),
            ended => {
                let errno = self.disagree(id, ended.err().unwrap_or(Errno::ECONNRESET));
                self.count_silent(id);
                return self.failed(host, id, errno);
            }
        }
        let bytes = std::mem::take(&mut conn.stash);
        let (message, used) = match CmMessage::parse(&bytes) {
            Ok(Some(parsed)) => parsed,
            Ok(None) => {
                conn.stash = bytes;
                return;
            }
            Err(_) if conn.tls.is_none() && mismatch::begins_tls(&bytes) => {
                self.deny_tls(id);
                return self.failed(host, id, Mismatch::Encrypted.errno());
            }
            Err(unreadable) => {
                self.log_stranger(id, &unreadable.to_string());
                return self.failed(host, id, Errno::ENOPROTOOPT);
            }
        };
        conn.stash = bytes[used..].into();
        let order = message.order;
        let (phase, role) = (conn.phase, conn.role);
        conn.extras = message.extras;
        if self.connected.is_some() {
            let (kind, data) = (message.kind, message.payload.to_vec());
            return match kind {
                CmKind::Response => self.accepted(id, &data, order),
                CmKind::Refusal => self.not_connected(Errno::ECONNREFUSED, Some(&data)),
                CmKind::Request => self.not_connected(Errno::ECONNREFUSED, None),
            };
        }
        let identity = Identity::parse(message.payload);
        let (kind, number, is_bulk) = (message.kind, message.extras.bulk, message.extras.is_bulk);
        if role == Role::BulkOut {
            return self.bulk_answered(id, kind, order);
        }
        match (phase, message.kind, identity) {
            (Phase::Called, CmKind::Request, Some(identity)) if is_bulk => {
                self.bulk_called(host, id, (&identity, order, number));
            }
            (Phase::Asking, CmKind::Response, Some(identity)) => {
                if let Some(conn) = self.conn(id) {
                    conn.announces = identity.takes_announcements(true);
                    conn.process = identity.process;
                }
                self.establish(host, id, order);
            }
            (Phase::Asking, CmKind::Refusal, _) => self.rest(id, Errno::ECONNREFUSED),
            (Phase::Called, CmKind::Request, Some(identity)) => self.called(host, id, &identity, order),
            (_, _, None) => {
                self.log_stranger(id, "a connection message without the sender's identity");
                self.failed(host, id, Errno::ENOPROTOOPT);
            }
            _ => {
                self.log_stranger(id, "a connection message that may not come now");
                self.failed(host, id, Errno::ENOPROTOOPT);
            }
        }
    }

    /// Counts a caller that ends, or is given up, without a request, unless it is counted by what it has said.
    fn count_silent(&mut self, id: SlotId) {
        let Some(conn) = self.conn(id).filter(|conn| conn.phase == Phase::Called) else { return };
        let is_counted = conn.tls.as_ref().is_some_and(|session| session.mismatch().is_some());
        self.common.counts.refused += u64::from(!is_counted);
    }

    fn log_stranger(&mut self, id: SlotId, what: &str) {
        self.common.counts.broken += 1;
        static LIMIT: Limit = Limit::new();
        let Some(more) = LIMIT.pass() else { return };
        let socket = self.conn(id).and_then(|conn| conn.socket.as_ref());
        let from = socket.and_then(|socket| sys::peer_name(socket.as_fd()));
        let from = from.map_or_else(String::new, |from| from.to_string());
        tracing::warn!(target: "ofi::tcp::ep_ctrl", from, more, "a connection is refused: {what}");
    }

    /// A connection ends before it is established.
    pub(super) fn failed<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId, errno: Errno) {
        match self.conn(id).map(|conn| conn.phase) {
            Some(Phase::Asking) if self.connected.is_some() => {
                self.not_connected(errno, None);
            }
            Some(Phase::Asking) if Mismatch::is_final(errno) => self.lose(host, id, errno),
            // As a refusal: perhaps the peer asks itself.
            Some(Phase::Asking) => self.rest(id, errno),
            _ => self.lose(host, id, errno),
        }
    }

    /// A peer asks for a connection.
    fn called<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId, identity: &Identity, order: Order) {
        let Some(socket) = self.conn(id).and_then(|conn| conn.socket.as_ref()) else { return };
        let (Some(from), Some(here)) = (sys::peer_name(socket.as_fd()), sys::name(socket.as_fd())) else {
            return self.failed(host, id, Errno::ECONNRESET);
        };
        let mut from = address::canonical(from);
        from.set_port(identity.port);
        if identity.port == 0 {
            self.log_stranger(id, "a request without the port of a listener");
            return self.failed(host, id, Errno::ENOPROTOOPT);
        }
        let own = SocketAddr::new(address::canonical(here).ip(), self.bound.port());
        let peer = self.meet(host, from);
        // The connection that there is may have ended without this end having looked.
        if let Some(old) = self.peers[peer as usize].conn
            && self.conn(old).is_some_and(|conn| conn.phase == Phase::Ready)
        {
            self.read(host, old, false);
        }
        let old = self.peers[peer as usize].conn;
        let standing = match old.and_then(|old| self.conn(old)).map(|old| (old.phase, old.process)) {
            None | Some((Phase::Resting(_), _)) => Standing::None,
            Some((Phase::Ready, process)) => Standing::Open(process),
            Some(_) => Standing::Asking,
        };
        let by = |conn: &Conn| Some(address::canonical(sys::name(conn.socket.as_ref()?.as_fd())?).ip());
        let called_by = old
            .and_then(|old| self.conn(old))
            .filter(|old| old.phase == Phase::Ready)
            .and_then(|old| by(old));
        let verdict = match judge(own, from, standing, identity.process) {
            // No late request: the same process knows this end by another of its addresses.
            Verdict::Refuse if called_by.is_some_and(|ip| ip != own.ip()) => Verdict::Beside,
            verdict => verdict,
        };
        let answer = match verdict {
            Verdict::Refuse => CmMessage::new(CmKind::Refusal, &identity.encode()).encode(),
            _ => {
                let number = self.bulk_number(id);
                self.saying(CmKind::Response, &identity.answer(std::process::id()).encode(), number).encode()
            }
        };
        let Some(conn) = self.conn(id) else { return };
        let sent = conn.send_message(&answer).is_ok();
        if verdict == Verdict::Refuse || !sent {
            self.common.counts.refused += u64::from(sent);
            return self.lose(host, id, Errno::ECONNREFUSED);
        }
        (conn.announces, conn.process) = (identity.takes_announcements(false), identity.process);
        conn.peer = Some(peer);
        match verdict {
            Verdict::Beside => {
                if let Some(old) = self.peers[peer as usize].beside.replace(id) {
                    self.conns.remove(old);
                }
            }
            _ => {
                if verdict == Verdict::Replace
                    && let Some(old) = old
                {
                    self.lose(host, old, Errno::ECONNRESET);
                } else if let Some(old) = old
                    && let Some(old) = self.conns.remove(old).flatten()
                    && let Some(conn) = self.conn(id)
                {
                    // What waits for this end's own attempt, none of which was sent.
                    conn.inherit(*old);
                }
                self.peers[peer as usize].conn = Some(id);
            }
        }
        self.establish(host, id, order);
    }

    /// A connection is established.
    fn establish<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId, order: Order) {
        let Some(conn) = self.conn(id) else { return };
        conn.begin_ready();
        if let Some(socket) = &conn.socket {
            sys::begin_stream(socket.as_fd());
        }
        let written_otherwise = conn.order != order && !conn.out.is_empty();
        conn.order = order;
        let (peer, announces, encrypted) = (conn.peer, conn.announces, conn.tls.is_some());
        if let Some(entry) = peer.and_then(|peer| self.peers.get_mut(peer as usize)) {
            entry.order = order;
        }
        if written_otherwise {
            return self.lose(host, id, Errno::ECONNRESET); // the next connection is written in the right order
        }
        let address =
            peer.and_then(|peer| self.peers.get(peer as usize)).map(|entry| entry.address.to_string());
        let address = address.unwrap_or_default();
        tracing::info!(
            target: "ofi::tcp::ep_ctrl",
            peer = address, announces, encrypted, "a connection is established"
        );
        self.common.counts.connections += 1;
        self.common.counts.encrypted += u64::from(encrypted);
        self.pending.retain(|&other| other != id);
        self.may_stripe(id);
        self.begin_atomics(host, id);
        self.flush(host, id);
        self.read(host, id, true);
    }
}
