//! All connections of an endpoint, and their socket calls.
//!
//! The first packet to a peer after a poll is sent at once. Further packets are batched until the next poll, or until
//! there are many, so that one call sends them and one receives them. An operation whose completion the application
//! does not read is also sent at once, because no other call may follow soon.

mod atomic;
mod bulk;
mod closing;
mod connected;
mod granting;
mod hot;
mod lingering;
mod meeting;
mod pulling;
mod sealed;
mod sending;
mod silence;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{AddrFormat, Address, EpType, Errno, Error, Info, Progress, RemotePiece, Result};
use ofi_core::auth::AuthKey;
use ofi_core::domain::{DomainPart, Regions};
use ofi_core::keys::Accessor;
use ofi_core::log::Limit;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::sys::{Timer, is_readable};
use ofi_core::transport::{Arm, Payload, PeerId, Upcalls};
use rustc_hash::FxHashMap;

use self::hot::{HOT_POLLS, Hot};
use crate::bulk::Role;
use crate::common::{Common, EndpointCounts};
use crate::conn::{AHEAD, Conn, EAGER, Peer, Phase, Stall};
use crate::listener::Listener;
use crate::op::TcpOp;
use crate::outgoing::{Lender, Outgoing, Stop};
use crate::stream::Through;
use crate::sys::{self, Found, Interest, Ready};
use crate::taking::{At, Broken, VECTORS};
use crate::tls::Security;
use crate::{Tcp, address, ports, settings};

/// Payloads with at least this many missing bytes are received directly into their destination.
const STRAIGHT: usize = 4 << 10;
/// Calls that receive from one connection in one poll, and the bytes after which there is none.
const ROUNDS: usize = 8;
const SHARE: usize = 1 << 20;
/// Connections of strangers whose handshakes of TLS one poll advances.
const MAX_HANDSHAKES_PER_POLL: usize = 4;
/// Numbers of descriptors other than connections; connections have greater ones.
const LISTENER: u64 = 0;
const TIMER: u64 = 1;
const LINGERING: u64 = 2;
const END_OF_REST: u64 = 3;

/// The connections of one endpoint.
pub struct TcpEndpoint {
    pub(crate) common: Common,
    pub(crate) peers: Vec<Peer>,
    by_address: FxHashMap<SocketAddr, PeerId>,
    /// The connections. One that is being processed is taken out.
    pub(crate) conns: Slots<Option<Box<Conn>>>,
    /// Connected endpoints have none.
    listener: Option<Listener>,
    connected: Option<Box<connected::Connected>>,
    /// The address that the listener is bound to: the endpoint's name.
    bound: SocketAddr,
    pub(crate) name: SocketAddr,
    ready: Ready,
    timer: Timer,
    found: Vec<Found>,
    scratch: Box<[u8]>,
    /// The connection on which all has come of late, if it is one: polls read it without asking what is ready.
    hot: Hot,
    /// Handshakes of strangers that this poll has advanced.
    handshakes: usize,
    /// Connections that are not established yet.
    pending: Vec<SlotId>,
    /// Connections with data that no poll has sent yet.
    pub(crate) dirty: Vec<SlotId>,
    /// Some of that data is of operations without completions.
    unattended: bool,
    /// Connections whose last received bytes cannot be processed yet ([`Stall`]).
    stalled: VecDeque<SlotId>,
    /// Connections whose peers get new grants when receives have taken their messages.
    ungranted: Vec<SlotId>,
    /// Peers of C libfabric for whose notes a collective waits.
    silent: Vec<PeerId>,
    /// Peers without a connection, whose numbers may be used again.
    idle: VecDeque<PeerId>,
    polls: u64,
    /// Packets may be batched, because the application polls ([`TcpEndpoint::gathers`]).
    gathers: bool,
    /// The poll after which a thread went to sleep.
    armed: u64,
    max_saved: usize,
    connect_timeout: Duration,
    peer_timeout: Duration,
    look: Instant,
}

impl TcpEndpoint {
    pub(crate) fn new(domain: &Arc<DomainPart<Tcp>>, info: &Info, name: Option<&Address>) -> Result<Self> {
        let source = info.src_addr.as_ref().and_then(|source| address::socket(source).ok());
        let v6 = info.addr_format == AddrFormat::SockaddrIn6;
        let name = match name {
            Some(name) => Some(address::socket(name)?),
            None => source,
        };
        let wanted = address::to_bind(name, None, v6)?;
        let (listener, connected, bound) = match info.ep_attr.ep_type {
            EpType::Msg => {
                let (connected, bound) = connected::Connected::new(wanted, info.handle.is_some())?;
                (None, Some(Box::new(connected)), bound)
            }
            _ => ports::listen(wanted).map(|(listener, bound)| (Some(listener), None, bound))?,
        };
        let mut name = bound;
        if name.ip().is_unspecified() {
            name.set_ip(address::host_ip(name.is_ipv6()));
        }
        let (ready, timer) = (Ready::new()?, Timer::new()?);
        let reading = Interest { read: true, write: false };
        let listener =
            listener.map(|socket| Listener::new(socket, LISTENER, END_OF_REST, &ready)).transpose()?;
        // SAFETY: the timer is open.
        unsafe { ready.add_raw(timer.fd(), TIMER, reading) }?;
        let peer_timeout = Duration::from_millis(settings::PEER_TIMEOUT_MS.get() as u64);
        tracing::info!(target: "ofi::tcp::ep_ctrl", address = %bound, name = %name, "opened an endpoint");
        let tls = Security::of(info)?;
        Ok(Self {
            common: Common {
                domain: Arc::clone(domain),
                caps: info.caps,
                auth: AuthKey::of(info),
                encrypts: tls.is_some(),
                tls,
                spooled: 0,
                window: settings::UNEXPECTED_BYTES.get() as u64,
                vectors: Vec::new(),
                counts: EndpointCounts::default(),
            },
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            conns: Slots::default(),
            listener,
            connected,
            bound,
            name,
            ready,
            timer,
            found: Vec::new(),
            scratch: vec![0; AHEAD.1].into(),
            hot: Hot::default(),
            handshakes: 0,
            pending: Vec::new(),
            dirty: Vec::new(),
            unattended: false,
            stalled: VecDeque::new(),
            ungranted: Vec::new(),
            silent: Vec::new(),
            idle: Default::default(),
            polls: 1,
            gathers: info.domain_attr.progress == Progress::Manual,
            armed: 0,
            max_saved: settings::MAX_SAVED_SIZE.get().max(EAGER),
            connect_timeout: Duration::from_millis(settings::CONNECT_TIMEOUT_MS.get() as u64),
            peer_timeout,
            look: Instant::now() + peer_timeout / 4,
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.ready.raw()
    }

    /// Whether it is bound to all addresses of the host.
    pub(crate) fn has_all_addresses(&self) -> bool {
        self.bound.ip().is_unspecified()
    }

    pub(crate) fn conn(&mut self, id: SlotId) -> Option<&mut Conn> {
        self.conns.get_mut(id)?.as_deref_mut()
    }

    /// Makes progress.
    pub(crate) fn poll<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        self.polls += 1;
        self.flush_dirty(host);
        for _ in 0..self.stalled.len() {
            let Some(id) = self.stalled.pop_front() else { break };
            self.resume(host, id);
        }
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        self.handshakes = 0;
        if !self.read_hot(host) {
            self.ready.collect(&mut found);
        }
        for &Found { number, read, write, ended } in &found {
            match number {
                LISTENER => self.accept(),
                TIMER => self.timer.set(None),
                LINGERING => {} // below
                END_OF_REST => self.listen_again(),
                number => {
                    let id = SlotId::from_wire(number);
                    if write {
                        self.writable(host, id);
                    }
                    if read {
                        self.readable(host, id);
                    }
                    if ended {
                        self.leave_ended(id);
                    }
                }
            }
        }
        self.found = found;
        if self.connected.is_some() {
            self.move_connection(host);
        }
        if !self.pending.is_empty() {
            self.move_pending(host);
        }
        if !self.silent.is_empty() {
            self.report_silent(host);
        }
        self.look_for_silence(host);
        if !self.ungranted.is_empty() {
            self.grant(host);
        }
        self.flush_dirty(host);
        if self.may_resume() {
            host.disarmed(); // no event wakes those who sleep if no poll follows
        }
    }

    /// Prepares for blocking.
    pub(crate) fn arm(&mut self) -> Arm {
        let waits = !self.dirty.is_empty() || !self.silent.is_empty() || self.has_events();
        if waits || self.may_resume() || is_readable(self.fd()) {
            return Arm::Ready;
        }
        let now = Instant::now();
        let pending = self.pending.iter().filter_map(|&id| {
            let conn = self.conns.get(id)?.as_deref()?;
            Some(if let Phase::Resting(again) = conn.phase { again } else { conn.deadline })
        });
        let look = self.needs_look().then_some(self.look);
        let needs_room = |&id: &SlotId| {
            self.conns.get(id).and_then(|conn| conn.as_deref()?.stalled) == Some(Stall::Application)
        };
        let next = pending.chain(look).chain(self.lingering_deadline()).min();
        self.timer.set(next.map(|next| next.saturating_duration_since(now)));
        self.armed = self.polls;
        // Another thread may post receives without polling, and the transport is not told of them.
        if self.stalled.iter().any(needs_room) { Arm::Stalled } else { Arm::Armed }
    }

    /// Whether a packet may wait for the next poll: not while a thread sleeps instead of polling, which nothing would
    /// wake.
    fn gathers(&self) -> bool {
        self.gathers && self.armed != self.polls
    }

    /// Whether another poll processes more of a stalled connection. Others wait for the application, or for the peer to
    /// read, which shows by room in the socket.
    fn may_resume(&self) -> bool {
        self.stalled.iter().any(|&id| {
            self.conns.get(id).and_then(Option::as_deref).is_some_and(|conn| match conn.stalled {
                Some(Stall::Peer) => !conn.is_owed_much(),
                Some(Stall::Poll) => true,
                Some(Stall::Application | Stall::Stripes) | None => false,
            })
        })
    }

    /// Processes bytes for which there was no room, if there may be room now.
    fn resume<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        match conn.stalled {
            None | Some(Stall::Stripes) => {}
            Some(Stall::Peer) if conn.is_owed_much() => self.stalled.push_back(id),
            Some(_) => {
                conn.stalled = None;
                self.read(host, id, true);
            }
        }
    }

    /// The socket of a stalled connection that has ended is ready for ever: it leaves the set until its bytes are
    /// processed.
    fn leave_ended(&mut self, id: SlotId) {
        let Some(conn) = self.conns.get_mut(id).and_then(Option::as_deref_mut) else { return };
        let waits = matches!(conn.stalled, Some(Stall::Application | Stall::Peer | Stall::Stripes));
        if let Some(socket) = conn.socket.as_ref().filter(|_| waits && !conn.away) {
            self.ready.remove(socket);
            conn.away = true;
        }
    }

    fn readable<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        match self.conn(id).map(|conn| conn.phase) {
            Some(Phase::Ready) => {
                self.hot.found(id);
                self.read(host, id, false);
            }
            // Strangers' handshakes take the time of the endpoint's own poll: the others are ready at the next one.
            Some(Phase::Called) if self.common.encrypts => {
                self.handshakes += 1;
                if self.handshakes <= MAX_HANDSHAKES_PER_POLL {
                    self.shake_hands(host, id);
                }
            }
            Some(Phase::Asking | Phase::Called) => self.shake_hands(host, id),
            _ => {}
        }
    }

    fn writable<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        match self.conn(id).map(|conn| conn.phase) {
            Some(Phase::Ready) => self.flush(host, id),
            Some(Phase::Connecting) => self.connected(host, id),
            Some(Phase::Asking | Phase::Called) => self.push_sealed(host, id),
            _ => {}
        }
    }

    /// Reads the hot connection, if there is one. Returns whether this poll need not ask what else is ready.
    fn read_hot<H: Upcalls<Tcp>>(&mut self, host: &mut H) -> bool {
        let Some(id) = self.hot.id else { return false };
        let before = self.common.counts.received;
        self.read(host, id, false);
        let has_come = self.common.counts.received != before;
        let Some(conn) = self.conn(id) else {
            self.hot = Hot::default();
            return false;
        };
        let needs_events = conn.full || conn.stalled.is_some();
        self.hot.read(has_come);
        !needs_events && self.pending.is_empty() && !self.polls.is_multiple_of(HOT_POLLS)
    }

    /// Reads from an established connection. `stashed`: first takes what has been read before.
    fn read<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId, stashed: bool) {
        let Some(slot) = self.conns.get_mut(id) else { return };
        let may_read = |conn: &mut Box<Conn>| conn.phase == Phase::Ready && conn.stalled.is_none();
        let Some(mut conn) = slot.take_if(may_read) else { return };
        let result = self.read_from(host, id, &mut conn, stashed);
        let (stalled, role, peer) = (conn.stalled, conn.role, conn.peer);
        if !conn.is_listed && conn.awaits_grant(self.common.window) {
            conn.is_listed = true;
            self.ungranted.push(id);
        }
        if conn.dirty {
            self.dirty.push(id);
        }
        self.want(id, &mut conn);
        if let Some(slot) = self.conns.get_mut(id) {
            *slot = Some(conn);
        }
        match result {
            Err(errno) => self.lose(host, id, errno),
            Ok(()) if !matches!(stalled, None | Some(Stall::Stripes)) => {
                self.stalled.push_back(id);
                self.end_operations(host, id);
            }
            Ok(()) => {}
        }
        if let Some(peer) = peer.filter(|_| role != Role::Alone) {
            self.go_on(id, peer, role);
        }
    }

    fn read_from<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        conn: &mut Conn,
        stashed: bool,
    ) -> Result<(), Errno> {
        let Some(peer) = conn.peer else { return Ok(()) };
        conn.answered = 0;
        // A payload that is here as a whole may wait for the application's room, with nothing behind it.
        if stashed && (!conn.stash.is_empty() || conn.body.is_some()) {
            let mut stash = std::mem::take(&mut conn.stash);
            let used = self.take(host, id, peer, conn, &stash)?;
            stash.skip(used);
            conn.stash = stash;
        }
        if let Some(session) = conn.tls.take() {
            return self.read_sealed(host, id, peer, conn, session);
        }
        let mut received = 0;
        for _ in 0..ROUNDS {
            if conn.stalled.is_some() || received >= SHARE || !host.hungry() {
                return Ok(());
            }
            let Some(entry) = self.peers.get_mut(peer as usize) else { return Ok(()) };
            let mut vectors = std::mem::take(&mut self.common.vectors);
            vectors.clear();
            let is_long =
                conn.stash.is_empty() && conn.body.as_ref().is_some_and(|body| body.left() >= STRAIGHT);
            let mut at = At { common: &mut self.common, entry, host, peer, on: id };
            let grants = if is_long { conn.places(&mut at, &mut vectors) } else { Vec::new() };
            let straight: usize = vectors.iter().map(|vector| vector.iov_len).sum();
            let kept = conn.stash.len();
            if self.scratch.len() < kept + AHEAD.1 {
                self.scratch = vec![0; kept + AHEAD.1].into();
            }
            self.scratch[..kept].copy_from_slice(&conn.stash);
            conn.stash.clear();
            // What follows a payload is read with it only if all of that has a place.
            let all = conn.body.as_ref().is_none_or(|body| straight == 0 || straight == body.left());
            let room = if all && vectors.len() <= VECTORS { conn.ahead } else { 0 };
            let room = &mut self.scratch[kept..][..room];
            let asked = straight + room.len();
            vectors.push(libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
            let Some(socket) = &conn.socket else { return Ok(()) };
            // SAFETY: the places are lent for writing, held by the grants where they are registered memory, and the
            // scratch memory is this end's.
            let got = unsafe { sys::receive_pieces(socket.as_fd(), &vectors) };
            drop(grants);
            vectors.clear();
            self.common.vectors = vectors;
            self.common.counts.reads += 1;
            self.common.counts.received += u64::from(got.is_ok());
            let got = match got {
                Ok(0) => return Err(Errno::ECONNRESET),
                Ok(got) => got,
                Err(errno) if sys::is_full(errno) => {
                    conn.stash.extend(&self.scratch[..kept]);
                    return conn.broken.map_or(Ok(()), Err);
                }
                Err(errno) => return Err(errno),
            };
            if let Some(body) = conn.body.as_mut().filter(|_| straight > 0) {
                body.at += got.min(straight);
            }
            received += got;
            let len = kept + got.saturating_sub(straight);
            let scratch = std::mem::take(&mut self.scratch);
            let taken = self.take(host, id, peer, conn, &scratch[..len]);
            if let Ok(used) = taken {
                conn.stash.extend(&scratch[used..len]);
            }
            self.scratch = scratch;
            taken?;
            if straight == 0 && got == asked {
                conn.read_ahead();
            }
            if got < asked {
                // The kernel has no more. What is broken and stalled waits for the application.
                return conn.broken.filter(|_| conn.stalled.is_none()).map_or(Ok(()), Err);
            }
        }
        Ok(())
    }

    /// Processes bytes of a peer.
    fn take<H: Upcalls<Tcp>>(
        &mut self,
        host: &mut H,
        id: SlotId,
        peer: PeerId,
        conn: &mut Conn,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let Some(entry) = self.peers.get_mut(peer as usize) else { return Err(Errno::ECONNRESET) };
        let taken = if conn.role.is_bulk() {
            self.take_stripes(host, id, peer, conn, bytes)
        } else {
            conn.take(&mut At { common: &mut self.common, entry, host, peer, on: id }, bytes)
        };
        taken.map_err(|broken| {
            self.common.counts.broken += u64::from(broken != Broken::Lost);
            if conn.role.is_bulk() {
                conn.broken = Some(Errno::ECONNRESET);
            }
            static LIMIT: Limit = Limit::new();
            if let Some(more) = LIMIT.pass() {
                let address = self.peers[peer as usize].address;
                tracing::warn!(
                    target: "ofi::tcp::ep_data", peer = %address, more,
                    "a peer's connection is ended: {broken}"
                );
            }
            Errno::ECONNRESET
        })
    }

    /// Registers the events that a connection waits for.
    fn want(&self, id: SlotId, conn: &mut Conn) {
        let wanted = conn.wanted();
        let Some(socket) = conn.socket.as_ref().filter(|_| conn.interest != wanted) else { return };
        if !conn.away {
            self.ready.change(socket, id.to_wire(), wanted);
        } else if wanted.read {
            if self.ready.add(socket, id.to_wire(), wanted).is_err() {
                return; // tried again at the next change
            }
            conn.away = false;
        }
        conn.interest = wanted;
    }

    fn flush_dirty<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        if std::mem::take(&mut self.unattended) {
            host.attended();
        }
        let mut dirty = std::mem::take(&mut self.dirty);
        for id in dirty.drain(..) {
            self.flush(host, id);
        }
        if self.dirty.is_empty() {
            self.dirty = dirty; // its memory
        }
    }

    /// Sends queued data.
    pub(crate) fn flush<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(mut conn) = self.conns.get_mut(id).and_then(Option::take) else { return };
        let stop = self.flush_to(host, &mut conn);
        let is_bulk = conn.role.is_bulk();
        self.want(id, &mut conn);
        if let Some(slot) = self.conns.get_mut(id) {
            *slot = Some(conn);
        }
        if let Stop::Failed(errno) = stop {
            let errno = if errno.get() == libc::EPIPE { Errno::ECONNRESET } else { errno };
            // What the peer has sent before says more than this end's failure to send, and must not be lost. That is
            // also so of stripes on bulk connections, which fail too if the peer is dead.
            let is_over = !is_bulk && self.break_off(id, errno);
            self.read(host, id, false);
            if !is_over {
                self.lose(host, id, errno);
            }
        }
    }

    /// Sends no more on a connection that is over for the kernel. Returns whether it is over.
    fn break_off(&mut self, id: SlotId, errno: Errno) -> bool {
        let Some(conn) = self.conn(id) else { return false };
        let is_open = conn.socket.as_ref().is_some_and(|socket| sys::is_connected(socket.as_fd()));
        if is_open || errno != Errno::ECONNRESET {
            return false;
        }
        conn.stop_sending(errno);
        true
    }

    /// Ends the operations on a connection that is over, and whose last bytes wait for the application, possibly for
    /// ever.
    fn end_operations<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        if let (Some(errno), Some(peer), Some(Stall::Application)) = (conn.broken, conn.peer, conn.stalled) {
            host.fail_outgoing(peer, errno);
            if let Some(entry) = self.peers.get_mut(peer as usize) {
                entry.outstanding = 0;
            }
        }
    }

    fn flush_to<H: Upcalls<Tcp>>(&mut self, host: &mut H, conn: &mut Conn) -> Stop {
        let (Phase::Ready, Some(peer), Some(socket)) = (conn.phase, conn.peer, &conn.socket) else {
            return Stop::Empty;
        };
        conn.dirty = false;
        if conn.broken.is_some() {
            conn.out = Outgoing::default();
            return Stop::Full;
        }
        if conn.is_sent() {
            conn.full = false;
            return Stop::Empty;
        }
        let Some(entry) = self.peers.get_mut(peer as usize) else { return Stop::Empty };
        let encrypts = self.common.encrypts;
        let (mut vectors, mut tls) = (std::mem::take(&mut self.common.vectors), self.common.tls.take());
        let (mut lender, mut calls) = (Lending { common: &mut self.common, entry, host, peer }, 0);
        let (session, security) = (conn.tls.as_deref_mut(), tls.as_deref_mut());
        let mut through = Through { socket, session, security, encrypts };
        let stop = conn.out.flush(&mut lender, &mut vectors, |vectors| {
            calls += 1;
            // SAFETY: the queue's vectors may be read during the call.
            unsafe { through.send_pieces(vectors) }
        });
        let stop = through.rest(stop);
        vectors.clear();
        (self.common.vectors, self.common.tls) = (vectors, tls);
        self.common.counts.writes += calls;
        self.common.counts.full += u64::from(stop == Stop::Full);
        (conn.full, conn.wrote) = (matches!(stop, Stop::Full | Stop::Share), self.polls);
        stop
    }

    /// Ends a connection, and all operations in flight on it.
    pub(crate) fn lose<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId, errno: Errno) {
        let Some(conn) = self.conns.remove(id).flatten() else { return };
        self.pending.retain(|&other| other != id);
        let Some(peer) = conn.peer else { return };
        if conn.role.is_bulk() {
            return self.lose_bulk(host, (id, peer), &conn, errno);
        }
        drop(conn);
        let Some(entry) = self.peers.get_mut(peer as usize) else { return };
        let other = match (entry.conn, entry.beside) {
            (Some(main), beside) if main == id => beside,
            (main, Some(beside)) if beside == id => main,
            _ => return, // another one is in its place
        };
        (entry.conn, entry.beside, entry.outstanding) = (None, None, 0);
        if let Some(other) = other {
            self.conns.remove(other);
        }
        self.end_bulk(peer);
        let Some(entry) = self.peers.get_mut(peer as usize) else { return };
        tracing::info!(target: "ofi::tcp::ep_ctrl", peer = %entry.address, error = errno.name(), "a connection has ended");
        self.common.counts.lost += 1;
        // Messages that are here as a whole stay for their receives.
        host.fail_peer_where(peer, errno, |_| true, |token| !entry.has_whole(token));
        for id in entry.spools.ids(|spool| !spool.is_whole()) {
            self.common.spooled -= entry.unspool(id).map_or(0, |spool| spool.bytes.len());
        }
        let spools = &entry.spools;
        entry.unasked.retain(|_, id| spools.get(*id).is_some());
        self.idle.push_back(peer);
    }

    /// The error of an address that this endpoint cannot reach.
    fn unreachable(&self, to: SocketAddr) -> Error {
        Error::with(
            Errno::EADDRNOTAVAIL,
            format!(
                "{to} cannot be reached from {}: it needs a port, and the same address family",
                self.bound
            ),
        )
    }
}

/// Gives a connection access to the payloads that it sends.
struct Lending<'a, H> {
    common: &'a mut Common,
    entry: &'a mut Peer,
    host: &'a mut H,
    peer: PeerId,
}

impl<H: Upcalls<Tcp>> Lender for Lending<'_, H> {
    fn payload(&mut self, op: SlotId) -> Option<&Payload> {
        match self.host.op(self.peer, op) {
            Some(TcpOp::Send { payload, .. }) => Some(payload),
            _ => None,
        }
    }

    fn sent(&mut self, op: SlotId) {
        match self.host.op(self.peer, op) {
            Some(TcpOp::Send { stripes: left @ 2.., .. }) => return *left -= 1,
            Some(TcpOp::Send { confirm: false, .. }) => {}
            _ => return,
        }
        if self.host.finish(self.peer, op, Ok(())).is_some() {
            self.entry.outstanding = self.entry.outstanding.saturating_sub(1);
        }
    }

    fn answered(&mut self, remote: &[RemotePiece]) {
        self.host.accessed(&self.common.domain.regions, ofi_api::MrAccess::REMOTE_READ, remote);
    }

    fn regions(&self) -> (&Regions, Accessor<'_>) {
        let who = Accessor { auth: &self.common.auth, peer: self.host.address(self.peer) };
        (&self.common.domain.regions, who)
    }
}
