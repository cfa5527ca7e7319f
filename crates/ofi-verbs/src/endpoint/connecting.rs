//! Establishing the connection of two endpoints: rdma_cm, with a `Greeting` as private data.
//!
//! If both ends start at the same time, the request of the end with the lower address wins. The other end accepts it,
//! and its own request is refused with [`CROSSED`], which is not a failure. A request contains the number of requests
//! that its endpoint has made. This distinguishes a late request, which was in flight while the other one established
//! the connection, from that of a peer that has lost the connection.
//!
//! A request waits at the peer until the peer's program polls, for `FI_VERBS_CONNECT_TIMEOUT_MS` at most. Within that
//! time, a request that could not be served is repeated while operations for the peer live.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use ibv::refusal;
use ofi_api::Errno;
use ofi_core::transport::{PeerId, Upcalls};

use super::VerbsEndpoint;
use crate::peer::{Common, Link, Peer};
use crate::rc::{self, CmEventKind, ConnParam, Connection, Event};
use crate::settings::{RETRIES, connect_timeout, resolve_timeout};
use crate::wire::PAYLOAD;
use crate::{Verbs, address};

const MAGIC: [u8; 4] = *b"ofv1";
/// The reason of a refusal that is no failure.
pub const CROSSED: &[u8] = b"ofv1 crossed";
/// How the reason of a refusal begins after which a later request may be served.
const LATER: &[u8] = b"ofv1 later";
/// The shortest and the longest pause before a request is repeated. In between, each pause is as long as the time
/// since the first request, so that pauses double.
const PAUSES: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];

/// With fewer credits, two ends may wait for each other forever.
const LEAST_CREDITS: usize = 4;

/// The private data that both ends exchange when they connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// The address at which the sender listens.
    pub address: SocketAddr,
    /// Credits for the receiver of the greeting.
    pub credits: u16,
    /// Distinguishes the sender from an earlier endpoint with its address.
    pub incarnation: u64,
    /// Number of requests that the sender has made.
    pub attempts: u32,
}

impl Greeting {
    /// Its length, which is less than the 56 bytes that a request has room for.
    const LEN: usize = 4 + 16 + 2 + 4 + 2 + 8 + 4;

    /// Encodes the greeting, with numbers in network order: `ofv1`, address, port, scope, credits, incarnation,
    /// attempts.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (ip, scope) = match self.address {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let mut bytes = [0; Self::LEN];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(&MAGIC);
        put(&ip.octets());
        put(&self.address.port().to_be_bytes());
        put(&scope.to_be_bytes());
        put(&self.credits.to_be_bytes());
        put(&self.incarnation.to_be_bytes());
        put(&self.attempts.to_be_bytes());
        bytes
    }

    /// Parses a greeting, after which a device may have put zeros. `None` for another program's data.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (bytes, _) = bytes.split_first_chunk::<{ Self::LEN }>()?;
        fn part<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
            std::array::from_fn(|index| bytes[at + index])
        }
        if part::<4>(bytes, 0) != MAGIC {
            return None;
        }
        let ip = Ipv6Addr::from(part::<16>(bytes, 4));
        let port = u16::from_be_bytes(part(bytes, 20));
        let address = match ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::new(IpAddr::V4(Ipv4Addr::from(v4.octets())), port),
            None => std::net::SocketAddrV6::new(ip, port, 0, u32::from_be_bytes(part(bytes, 22))).into(),
        };
        let credits = u16::from_be_bytes(part(bytes, 26));
        if port == 0 || usize::from(credits) < LEAST_CREDITS {
            return None;
        }
        Some(Self {
            address: address::canonical(address),
            credits,
            incarnation: u64::from_be_bytes(part(bytes, 28)),
            attempts: u32::from_be_bytes(part(bytes, 36)),
        })
    }
}

/// This end's greeting for a new connection of a peer. Slots still held by records of an earlier connection count
/// against its credits.
fn greeting(state: &mut Peer, common: &Common) -> [u8; Greeting::LEN] {
    let credits = common.grant.saturating_sub(state.held_slots()).max(LEAST_CREDITS);
    (state.used, state.owed) = (common.grant - credits, 0);
    Greeting {
        address: common.adapter.address,
        credits: credits as u16,
        incarnation: common.incarnation,
        attempts: common.attempts,
    }
    .encode()
}

/// Whether a later request may be served after this refusal.
fn may_pass(event: &Event) -> bool {
    match event.status {
        // Without a reason: the peer's endpoint could not accept, or its process was replaced.
        refusal::BY_PROGRAM => {
            event.private_data.starts_with(LATER) || event.private_data.iter().all(|&byte| byte == 0)
        }
        status => [refusal::NO_RESOURCES, refusal::TIMEOUT, refusal::STALE_CONNECTION].contains(&status),
    }
}

/// Requests the device's maximum of concurrent remote reads, in each direction.
const READS: u8 = u8::MAX;

fn param<'a>(private_data: &'a [u8], common: &Common) -> ConnParam<'a> {
    common.timers.param(private_data, READS, RETRIES)
}

/// Accepts a request to connect.
fn accept(state: &mut Peer, common: &mut Common, id: &mut dyn Connection) -> rc::Result<()> {
    common.timers.before(|code| id.set_ack_timeout(code));
    let data = greeting(state, common);
    create_pair(common, id)?;
    id.accept(param(&data, common)).inspect_err(|_| {
        if let Some((qp, _)) = id.qp() {
            common.adapter.watch.unfollow(qp);
        }
    })
}

/// Creates the queue pair, and follows it before it is connected: from then on it can fail.
fn create_pair(common: &mut Common, id: &mut dyn Connection) -> rc::Result<()> {
    id.create_qp()?;
    if let Some((qp, _)) = id.qp() {
        common.adapter.watch.follow(qp);
    }
    Ok(())
}

impl VerbsEndpoint {
    /// Starts to connect to a peer.
    pub fn connect(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer as usize];
        let common = &mut self.common;
        if let Some(errno) = common.gone {
            state.ending.get_or_insert(errno);
            return common.hold(&mut state.is_dirty, peer);
        }
        let from = SocketAddr::new(common.adapter.address.ip(), 0);
        let queues = &common.adapter.queues;
        let now = queues.now();
        let by = *state.reach_by.get_or_insert_with(|| now + connect_timeout());
        let at = by.min(now + resolve_timeout());
        match queues.call(from, state.address, at.saturating_duration_since(now)) {
            Ok(id) => {
                self.ids.insert(id.number(), peer);
                state.link = Link::Resolving(id, at);
                self.connecting += 1;
                self.next_deadline = Some(self.next_deadline.map_or(at, |next| next.min(at)));
                self.watch(peer);
            }
            Err(error) => {
                tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, to = %state.address, "cannot connect");
                state.reach_by = None;
                state.ending.get_or_insert(Errno::from_raw(error.errno));
                common.hold(&mut state.is_dirty, peer);
            }
        }
    }

    /// Handles events of the device and of connections.
    pub fn handle_events<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.take_device_events();
        loop {
            match self.common.adapter.queues.event() {
                Ok(Some(event)) => self.take_event(host, event),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, "cannot read events of connections");
                    break;
                }
            }
        }
        let now = self.common.adapter.queues.now();
        self.connecting = 0;
        self.next_deadline = None;
        let mut again = Vec::new();
        self.live.retain(|&peer| {
            let state = &mut self.peers[peer as usize];
            let Some(deadline) = state.link.deadline() else {
                state.probe(&mut self.common, peer, now);
                state.is_live = state.link.open().is_some();
                return state.is_live;
            };
            let is_over = state.ending.is_some() || state.reach_by.is_some_and(|by| by <= now);
            if deadline <= now && matches!(state.link, Link::Pausing(_)) && !is_over {
                again.push(peer);
                return true;
            }
            self.connecting += 1;
            if deadline <= now {
                if state.ending.is_none() {
                    // A repeat that is cut short says nothing about the network.
                    let is_late = connect_timeout() > resolve_timeout()
                        && matches!(state.link, Link::Resolving(..))
                        && state.reach_by.is_some_and(|by| by <= now);
                    let (errno, why) = if is_late { Link::Closed.awaited() } else { state.link.awaited() };
                    tracing::warn!(target: "ofi::verbs::ep_ctrl", to = %state.address, "gave up connecting: {why}");
                    state.ending = Some(errno);
                }
                self.common.hold(&mut state.is_dirty, peer);
            } else if self.next_deadline.is_none_or(|next| deadline < next) {
                self.next_deadline = Some(deadline);
            }
            true
        });
        again.into_iter().for_each(|peer| self.ask_again(peer));
    }

    /// Repeats a request that was not served, unless nothing needs the connection any more.
    #[cold]
    fn ask_again(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer as usize];
        state.link = Link::Closed;
        if state.has_work(self.common.turn) {
            return self.connect(peer);
        }
        state.reach_by = None;
    }

    /// The peer has not confirmed the connection that this end accepted.
    #[cold]
    fn not_confirmed<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId, errno: Errno) {
        self.hang_up(host, peer);
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        if state.link.open().is_some() {
            // A record came after all.
            state.ending.get_or_insert(Errno::ECONNRESET);
            return common.hold(&mut state.is_dirty, peer);
        }
        state.reset_connection(common, peer);
        self.retry(peer, errno, None);
    }

    /// A request was not served, or its connection was not established; nothing was sent over it. Pauses before the
    /// next request if that may be served in time and operations need it. Otherwise they end with `errno`. `pause`: how
    /// long to wait for the peer's own request, which is on its way.
    #[cold]
    fn retry(&mut self, peer: PeerId, errno: Errno, pause: Option<Duration>) {
        self.unlink(peer);
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        let now = common.adapter.queues.now();
        let by = *state.reach_by.get_or_insert_with(|| now + connect_timeout());
        let [shortest, longest] = PAUSES;
        let since = connect_timeout().saturating_sub(by.saturating_duration_since(now));
        let until = now + pause.unwrap_or(since.clamp(shortest, longest));
        if pause.is_none() && (until >= by || !state.has_work(common.turn)) {
            state.ending.get_or_insert(errno);
            return common.hold(&mut state.is_dirty, peer);
        }
        tracing::debug!(target: "ofi::verbs::ep_ctrl", to = %state.address, %errno, after = ?(until - now), "the request to connect is repeated");
        state.link = Link::Pausing(until.min(by));
        self.watch(peer);
    }

    /// Adds the peer to those whose connections are checked.
    fn watch(&mut self, peer: PeerId) {
        if !std::mem::replace(&mut self.peers[peer as usize].is_live, true) {
            self.live.push(peer);
        }
    }

    fn take_event<H: Upcalls<Verbs>>(&mut self, host: &mut H, event: Event) {
        if event.kind == CmEventKind::Request {
            return self.take_request(host, event);
        }
        // An event of a dropped identifier, or of the listener.
        let Some(&peer) = self.ids.get(&event.id) else { return };
        let state = &self.peers[peer as usize];
        if !matches!(event.kind, CmEventKind::Established | CmEventKind::Other)
            && (state.is_connected() || matches!(state.link, Link::Accepting(..)))
        {
            // The device may already have reported the reason for the end, and records that arrived before it.
            self.take_rest(host);
        }
        let state = &mut self.peers[peer as usize];
        if state.link.id().map(Connection::number) != Some(event.id) {
            return;
        }
        let common = &mut self.common;
        let link = std::mem::replace(&mut state.link, Link::Closed);
        let failed = match (link, event.kind) {
            (Link::Resolving(id, at), CmEventKind::AddressResolved) => {
                let result = id.resolve_route(at.saturating_duration_since(common.adapter.queues.now()));
                state.link = Link::Resolving(id, at);
                result.err()
            }
            (Link::Resolving(mut id, at), CmEventKind::RouteResolved) => {
                let at = state.reach_by.unwrap_or(at);
                common.attempts += 1;
                common.timers.before(|code| id.set_ack_timeout(code));
                let data = greeting(state, common);
                let result = create_pair(common, &mut *id).and_then(|()| id.connect(param(&data, common)));
                if let Some((qp, inline)) = id.qp() {
                    self.qps.insert(qp, peer);
                    common.provide(self.qps.len());
                    state.inline = inline;
                }
                state.link = Link::Asking(id, at);
                result.err()
            }
            (Link::Asking(id, _), CmEventKind::Established) => match Greeting::parse(&event.private_data) {
                Some(greeting) => {
                    state.greeted(&greeting);
                    state.opened(common, peer, id);
                    None
                }
                None => {
                    state.link = Link::Asking(id, common.adapter.queues.now());
                    common.counts.malformed += 1;
                    state.ending.get_or_insert(Errno::ECONNREFUSED);
                    common.hold(&mut state.is_dirty, peer);
                    None
                }
            },
            (Link::Asking(id, _), CmEventKind::Rejected) if event.private_data.starts_with(CROSSED) => {
                drop(id);
                // The peer's own request is on its way. If it ends before it arrives, this end repeats its own.
                return self.retry(peer, Errno::ECONNREFUSED, Some(resolve_timeout()));
            }
            (Link::Asking(id, _), CmEventKind::Rejected) if may_pass(&event) => {
                drop(id);
                return self.retry(peer, Errno::ECONNREFUSED, None);
            }
            // The peer, or the network, lost all of the kernel's messages.
            (Link::Asking(id, _), CmEventKind::Failed) => {
                drop(id);
                return self.retry(peer, Errno::EHOSTUNREACH, None);
            }
            // The peer no longer wants the connection that it had requested, but this end may.
            (
                Link::Accepting(id, at),
                kind @ (CmEventKind::Rejected | CmEventKind::Failed | CmEventKind::Disconnected),
            ) if state.has_work(common.turn) => {
                state.link = Link::Accepting(id, at);
                let is_silent = kind == CmEventKind::Failed;
                let errno = if is_silent { Errno::EHOSTUNREACH } else { Errno::ECONNREFUSED };
                return self.not_confirmed(host, peer, errno);
            }
            (Link::Accepting(id, _), CmEventKind::Established) => {
                state.opened(common, peer, id);
                None
            }
            // A record arrived before the event.
            (link @ Link::Open(_), CmEventKind::Established) => {
                state.link = link;
                None
            }
            (link, kind) => {
                let was_open = matches!(link, Link::Open(_));
                state.link = link;
                if kind != CmEventKind::Other {
                    let errno = match (kind, was_open) {
                        (CmEventKind::DeviceRemoved, _) => Errno::ENODEV,
                        (_, true) => Errno::ECONNRESET,
                        (CmEventKind::Failed, _) => Errno::EHOSTUNREACH,
                        _ => Errno::ECONNREFUSED,
                    };
                    state.ending.get_or_insert(errno);
                    common.hold(&mut state.is_dirty, peer);
                }
                None
            }
        };
        if let Some(error) = failed {
            tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, to = %state.address, "cannot connect");
            state.ending.get_or_insert(Errno::from_raw(error.errno));
            common.hold(&mut state.is_dirty, peer);
        }
    }

    fn take_request<H: Upcalls<Verbs>>(&mut self, host: &mut H, event: Event) {
        let Some(mut id) = event.request else { return };
        if self.common.gone.is_some() {
            return; // the request is refused as it is dropped
        }
        let Some(greeting) = Greeting::parse(&event.private_data) else {
            self.common.counts.malformed += 1;
            let _ = id.reject(b"not an endpoint of provider verbs");
            return;
        };
        // The port is from the greeting, but the address is from the network, so that a stranger cannot replace a
        // connected peer.
        if id.peer_address().is_some_and(|from| address::canonical(from).ip() != greeting.address.ip()) {
            self.common.counts.malformed += 1;
            let _ = id.reject(b"the greeting has another address");
            return;
        }
        let peer = self.peer_at(host, greeting.address);
        let own = self.common.adapter.address;
        let state = &mut self.peers[peer as usize];
        if greeting.incarnation == self.common.incarnation {
            return self.reflect(peer, id);
        }
        let sign = (greeting.incarnation, greeting.attempts);
        let is_old = state.attempt.is_some_and(|(incarnation, attempts)| {
            incarnation == greeting.incarnation && attempts >= greeting.attempts
        });
        let asking = matches!(state.link, Link::Resolving(..) | Link::Asking(..));
        let wins = (own.ip(), own.port()) < (state.address.ip(), state.address.port());
        if is_old || (asking && wins && state.ending.is_none()) {
            let _ = id.reject(CROSSED);
            return;
        }
        if matches!(state.link, Link::Open(_) | Link::Accepting(..)) {
            // The peer has lost the connection, another process has replaced it, or both ends have closed the idle
            // connection.
            self.hang_up(host, peer);
            if self.peers[peer as usize].has_agreed() {
                self.peers[peer as usize].close_idle(&mut self.common, peer);
            } else if matches!(self.peers[peer as usize].link, Link::Accepting(..)) {
                self.peers[peer as usize].reset_connection(&mut self.common, peer); // nothing was sent over it
            } else {
                // The peer no longer expects answers to its reads, so records after them need not wait. Messages that
                // the application has no room for stay: the request does not wait for that.
                loop {
                    self.peers[peer as usize].reads.clear();
                    self.resume(host, peer);
                    if !self.peers[peer as usize].is_read() {
                        break; // otherwise a waiting read has started
                    }
                }
                let state = &mut self.peers[peer as usize];
                state.lose(&mut self.common, host, peer, Errno::ECONNRESET);
            }
            // If accepting fails, this end asks for the connection itself if work is queued.
            self.common.hold(&mut self.peers[peer as usize].is_dirty, peer);
        }
        let state = &mut self.peers[peer as usize];
        if state.held_slots() >= 2 * self.common.grant {
            let reason = b": messages of earlier connections wait for the application";
            let _ = id.reject(&[LATER, reason].concat());
            return;
        }
        state.attempt = Some(sign);
        let common = &mut self.common;
        let accepted = accept(state, common, &mut *id);
        match accepted {
            Ok(()) => {
                state.greeted(&greeting);
                self.ids.insert(id.number(), peer);
                if let Some((qp, inline)) = id.qp() {
                    self.qps.insert(qp, peer);
                    common.provide(self.qps.len());
                    state.inline = inline;
                }
                state.link = Link::Accepting(id, common.adapter.queues.now() + connect_timeout());
                state.ending = None;
                self.watch(peer);
            }
            Err(error) => {
                tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, from = %greeting.address, "cannot accept");
            }
        }
    }
}

impl VerbsEndpoint {
    /// Handles an endpoint's connection to itself: both ends belong to one peer.
    fn reflect(&mut self, peer: PeerId, mut id: Box<dyn Connection>) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        let accepted = accept(state, common, &mut *id);
        match (accepted, id.qp()) {
            (Ok(()), Some((qp, _))) => {
                self.qps.insert(qp, peer);
                common.provide(self.qps.len());
                state.mirror = Some(id);
            }
            (accepted, _) => {
                tracing::warn!(target: "ofi::verbs::ep_ctrl", error = ?accepted.err(), "cannot accept itself");
                state.ending.get_or_insert(Errno::EIO);
                common.hold(&mut state.is_dirty, peer);
            }
        }
    }

    /// Removes a peer without a connection from the tables of connections.
    pub fn unlink(&mut self, peer: PeerId) {
        self.ids.retain(|_, other| *other != peer);
        let watch = &mut self.common.adapter.watch;
        self.qps.extract_if(|_, other| *other == peer).for_each(|(qp, _)| watch.unfollow(qp));
    }
}

impl Peer {
    /// Handles the arrival of a record. Over a connection that this end accepted, a record may arrive before rdma_cm
    /// reports that the connection is established.
    #[inline]
    pub fn heard(&mut self, common: &mut Common, peer: PeerId) {
        if !matches!(self.link, Link::Accepting(..)) {
            return;
        }
        if let Link::Accepting(id, _) = std::mem::replace(&mut self.link, Link::Closed) {
            self.opened(common, peer, id);
        }
    }

    /// The connection is established.
    pub fn opened(&mut self, common: &mut Common, peer: PeerId, id: Box<dyn Connection>) {
        common.timers.after(|code| id.set_rnr_timer(code));
        tracing::info!(
            target: "ofi::verbs::ep_ctrl",
            peer = %self.address, credits = self.credits, inline = self.inline,
            "a session has begun"
        );
        tracing::debug!(
            target: "ofi::verbs::ep_data",
            peer = %self.address, protocol = "eager", up_to = PAYLOAD,
            "chose the protocol of short messages to a peer; longer ones are announced (rendezvous)"
        );
        self.link = Link::Open(id);
        self.reach_by = None;
        self.last_use = common.turn;
        common.counts.connections += 1;
        common.hold(&mut self.is_dirty, peer);
        if self.wished {
            self.wish(common, peer, true); // an earlier connection, over which this was requested, was closed as idle
        }
    }

    /// Sets the peer's credits from its greeting.
    fn greeted(&mut self, greeting: &Greeting) {
        self.credits = usize::from(greeting.credits);
        self.reserve = self.credits / 4;
        self.held = self.credits / 8;
        self.attempt = Some((greeting.incarnation, greeting.attempts));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_come_back_and_strangers_do_not_pass() {
        for text in ["10.0.0.1:5", "[fd00::1]:65535", "[fe80::1%3]:1"] {
            let address = text.parse().unwrap();
            let greeting = Greeting { address, credits: 32, incarnation: u64::MAX, attempts: 7 };
            let mut bytes = greeting.encode().to_vec();
            assert!(bytes.len() <= 56);
            bytes.resize(56, 0); // like the padding of InfiniBand
            assert_eq!(Greeting::parse(&bytes), Some(greeting));
            for cut in 0..Greeting::LEN {
                assert_eq!(Greeting::parse(&bytes[..cut]), None);
            }
            bytes[0] ^= 1;
            assert_eq!(Greeting::parse(&bytes), None);
        }
        assert_eq!(Greeting::parse(&[0; 56]), None);
    }
}
