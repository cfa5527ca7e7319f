//! All peers of an endpoint over its socket.
//!
//! A message is sent at once if nothing is in flight to its peer. Otherwise it is queued in the session's stream until
//! a packet is full, or until the next poll. An application that injects messages may never poll again, so the
//! process's thread flushes messages that were queued for a millisecond (`liveness/waiting.rs`).

mod connection;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ofi_api::{AddrFormat, Address, Info, OpFlags, Result};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::transport::{Arm, PeerId, Upcalls};
use ofi_rdm::{Arrivals, Chunks, Endpoint, Instant};

use crate::answer::{BufPool, is_answer};
use crate::config::{config, secret, secure};
use crate::connected::{Connected, is_connected};
use crate::datagram::{self, Messages, PeerNumbers, SharedNumbers};
use crate::driver_adapter::{ANSWERS, Closing, DriverAdapter};
use crate::liveness::Alive;
use crate::message::ask_to_keep;
use crate::peer::Peer;
use crate::peer::common::{Common, EndpointCounts};
use crate::peer::sessionless::SessionlessPeers;
use crate::rx_batch::{PartSize, RxBatch};
use crate::socket::{MAX_GSO_BYTES, Report, Sent, Socket};
use crate::time::now;
use crate::{Udp, address, settings};

/// Longest payload that travels inside a command.
const EAGER: usize = 16 << 10;
/// Maximum payload bytes that one endpoint holds for receivers without room.
const KEPT_LIMIT: usize = 256 << 20;
/// Maximum number of batches that one poll receives, and that it sends.
const ROUNDS: usize = 4;
/// Number of peers that are checked for each new one. It is more than one, so the number of dead peers shrinks.
const LOOKS: usize = 2;
/// Time before the next attempt to send on a full socket.
const FULL: Duration = Duration::from_millis(1);
/// Maximum time that messages are queued behind a packet in flight, unless a poll or a full packet comes first.
const GATHER: Duration = Duration::from_micros(20);

/// The peers of one endpoint.
pub struct UdpEndpoint {
    pub(crate) common: Common,
    pub(crate) endpoint: Endpoint,
    pub(crate) peers: Chunks<Peer>,
    pub(crate) socket: Socket,
    /// For `FI_EP_DGRAM`: messages bypass the sessions, which carry only accesses to remote memory.
    pub(crate) messages: Option<Box<Messages>>,
    /// Data is queued that no poll has sent.
    pub(crate) dirty: bool,
    /// The socket's send buffer is full.
    full: bool,
    /// Number of rejected sessions at the time of the last log entry.
    turned_away: u64,
    pub(crate) alive: Alive,
}

impl UdpEndpoint {
    pub(crate) fn new(domain: &Arc<DomainPart<Udp>>, info: &Info, name: Option<&Address>) -> Result<Self> {
        // An accepting endpoint uses the address at which its passive endpoint was contacted.
        let source = info.src_addr.as_ref().and_then(|source| address::socket(source).ok());
        let v6 = info.addr_format == AddrFormat::SockaddrIn6;
        let name = name.map(address::socket).transpose()?;
        let wanted = address::to_bind(name, source.map(|source| source.ip()), v6)?;
        let wanted = address::beside_groups(info, wanted)?;
        let socket =
            Socket::new(wanted, settings::SOCKET_BUFFER.get(), settings::SEGMENTS.get(), settings::driver())?;
        // An end that does not slow down must not announce ECN.
        let ecn = settings::ECN.get() && settings::CONGESTION.get() && !datagram::is_datagram(info);
        socket.mark(crate::class::of(info), ecn)?;
        let mut alive = Alive::new(wanted)?;
        let mut endpoint = Endpoint::new(config(socket.granted, alive.port), secret()?);
        secure(&mut endpoint, &AuthKey::of(info))?;
        endpoint.set_addresses(socket.names());
        alive.set_epoch(endpoint.epoch());
        alive.watch(socket.raw())?;
        let common = Common {
            domain: Arc::clone(domain),
            caps: info.caps,
            auth: AuthKey::of(info),
            greets: false,
            leaves_whole: false,
            may_answer: false,
            eager: EAGER,
            kept: 0,
            kept_limit: KEPT_LIMIT,
            detached: 0,
            keeping: Vec::new(),
            serving: Vec::new(),
            is_unread: false,
            spare: BufPool::default(),
            changed: Vec::new(),
            sessionless: SessionlessPeers::default(),
            connection: is_connected(info).then(Box::<Connected>::default),
            counts: EndpointCounts::default(),
            next: None,
            cut: PartSize::default(),
        };
        if common.connection.is_some() {
            endpoint.admit(false);
        }
        let messages = datagram::is_datagram(info).then(|| Box::new(Messages::new(info)));
        log_open(&socket, ecn);
        Ok(Self {
            common,
            endpoint,
            peers: Chunks::new(),
            socket,
            messages,
            dirty: false,
            full: false,
            turned_away: 0,
            alive,
        })
    }

    pub(crate) fn meet<H: Upcalls<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> PeerId {
        if let Some(messages) = &mut self.messages {
            messages.look_again();
        }
        if self.endpoint.find(socket).is_none() {
            self.forget_loose(host);
        }
        let (endpoint, peers) = (&mut self.endpoint, &mut self.peers);
        SharedNumbers { endpoint, peers, sessionless: &mut self.common.sessionless }.meet(host, socket)
    }

    /// Forgets idle peers without a session.
    fn forget_loose<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        if self.common.connection.is_some() {
            return; // handles them itself
        }
        for _ in 0..LOOKS.min(self.common.sessionless.peers.len()) {
            let Some(peer) = self.common.sessionless.peers.pop_front() else { return };
            if self.endpoint.address(peer).is_none_or(|address| address.port() == 0) {
                continue; // stands for all peers without a number
            }
            let entry = &mut self.peers[peer as usize];
            if self.endpoint.is_open(peer) {
                entry.is_sessionless = false; // until that is lost
            } else if entry.is_idle() && self.endpoint.is_idle(peer) && host.retire(peer) {
                entry.renew();
                entry.is_sessionless = false;
                self.endpoint.forget(peer);
                if let Some(messages) = &mut self.messages {
                    messages.look_again();
                }
            } else {
                self.common.sessionless.peers.push_back(peer);
            }
        }
    }

    /// Called after data was queued for `peer`: sends it at once if nothing else is in flight to that peer.
    pub(crate) fn posted<H: Upcalls<Udp>>(
        &mut self,
        host: &mut H,
        time: Instant,
        peer: PeerId,
        flags: OpFlags,
    ) {
        self.dirty = true;
        let whole = std::mem::take(&mut self.common.leaves_whole);
        let waits = flags.contains(OpFlags::MORE) || self.socket.has_waiting();
        if waits || !self.endpoint.is_ready(time, peer, GATHER) {
            if flags.contains(OpFlags::INJECT) {
                self.alive.wait();
            }
            return;
        }
        if whole {
            return self.transmit(host, time, 1);
        }
        let Some((buffer, gaps)) = self.socket.next() else { return };
        let mut adapter = DriverAdapter::new(&mut self.common, &mut self.peers, host).with(gaps);
        if let Some(transmit) = self.endpoint.poll_transmit_to(time, peer, buffer, &mut adapter) {
            self.socket.push(&transmit);
            self.common.counts.sent += 1;
            self.flush();
        }
    }

    /// Sends the batch. Returns whether there is room for more.
    pub(crate) fn flush(&mut self) -> bool {
        loop {
            match self.socket.flush() {
                Sent::All => return true,
                Sent::Full => {
                    self.common.counts.send_full += 1;
                    return false;
                }
                Sent::TooLong(peer, len) => {
                    if let Some(peer) = peer {
                        self.endpoint.too_long(peer, len);
                    }
                }
            }
        }
    }

    pub(crate) fn poll<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        let time = now();
        if self.endpoint.is_stopped() {
            self.resume(host);
        }
        let mut worked = false;
        for _ in 0..ROUNDS {
            if !host.hungry() {
                break;
            }
            let places = self.messages.is_none() && self.socket.takes_places();
            let mut placement = if places { self.foresee(host) } else { None };
            // The next part sets it again. Packets of another kind leave it unset, and nothing is predicted.
            let expected = self.common.next.take();
            let (got, more) =
                self.socket.receive_into(placement.as_mut().map(|placement| &mut placement.expected));
            worked |= got > 0;
            self.common.counts.received += got as u64;
            let mut adapter = DriverAdapter::new(&mut self.common, &mut self.peers, host);
            let mut index = 0;
            while index < got {
                if let Some(messages) = &mut self.messages
                    && let (bytes, from) = self.socket.datagram(index)
                    && bytes.first() == Some(&datagram::MAGIC)
                {
                    let sessionless = &mut adapter.common.sessionless;
                    let mut numbers =
                        SharedNumbers { endpoint: &mut self.endpoint, peers: adapter.peers, sessionless };
                    // SAFETY: the datagram stays where it is until the next receive.
                    unsafe { messages.take(adapter.host, &mut numbers, from, bytes.as_ptr(), bytes.len()) };
                    index += 1;
                    continue;
                }
                let row = self.socket.row(index);
                // Each datagram may be a message, so they are handled one by one.
                let count = if self.messages.is_some() { 1 } else { row.count() };
                let (bytes, len) = (if count == 1 { &mut row.bytes[..row.len] } else { row.bytes }, row.len);
                adapter.coming = RxBatch { of: row.of, placed: row.placed };
                let Some(from) = row.from.map(address::canonical) else {
                    index += count;
                    continue;
                };
                let arrivals = Arrivals { bytes, len, marked: row.marked };
                if !row.placed {
                    index += count;
                    self.endpoint.handle_row(time, from, arrivals, &mut adapter);
                    continue;
                }
                let taken = self.endpoint.handle_placed(time, from, &arrivals, &mut adapter) / len;
                index += taken;
                adapter.common.counts.placed += taken as u64;
                if taken == count {
                    continue;
                }
                // The session has ended, and its operations with the destination memory. The remaining packets count as
                // lost.
                if placement.as_ref().is_none_or(|placement| !self.endpoint.is_open(placement.peer)) {
                    break;
                }
                // SAFETY: `placement` is here, and of its memory only the part was touched that is taken.
                unsafe { self.socket.bring_back(index) };
            }
            if got == 0 {
                self.common.next = self.common.next.or(expected);
            }
            if !more {
                break;
            }
        }
        if self.endpoint.wants_addresses() {
            self.endpoint.set_addresses(self.socket.names());
        }
        for Report { to, is_port } in std::mem::take(&mut self.socket.refused) {
            if is_port { self.endpoint.refused(time, to) } else { self.endpoint.unreachable(time, to) }
        }
        if self.endpoint.turned_away() > self.turned_away * 2 {
            self.turned_away = self.endpoint.turned_away();
            tracing::warn!(target: "ofi::udp::ep_ctrl", count = self.turned_away,
                "strangers are rejected: this endpoint has reached its limit of peers, or of peers of one host");
        }
        if let Some(messages) = &mut self.messages {
            let (endpoint, peers) = (&mut self.endpoint, &mut self.peers);
            let mut numbers = SharedNumbers { endpoint, peers, sessionless: &mut self.common.sessionless };
            messages.look_again(); // sessions may have added peers
            messages.poll_groups(host, &mut numbers);
        }
        if !self.common.serving.is_empty() {
            self.serve(host);
        }
        if !self.common.keeping.is_empty() {
            self.end_keeping(host);
        }
        if self.common.connection.is_some() {
            self.move_connection(host, time);
        }
        for _ in 0..std::mem::take(&mut self.common.sessionless.new) {
            self.forget_loose(host);
        }
        let mut adapter = DriverAdapter::new(&mut self.common, &mut self.peers, host);
        self.endpoint.handle_time(time, &mut adapter);
        for peer in std::mem::take(&mut self.common.changed) {
            let expects = self.peers[peer as usize].expects() || self.common.connection.is_some();
            self.endpoint.expect(time, peer, expects);
        }
        if std::mem::take(&mut self.common.may_answer) && !self.dirty && !self.full {
            // The application's answer takes the acknowledgement along; else the next poll sends it.
            self.dirty = true;
            self.alive.wait();
            return;
        }
        // Receiving took time, which must not count as the round trip of packets sent now.
        let time = if worked { now() } else { time };
        self.transmit(host, time, ROUNDS);
    }

    pub(crate) fn transmit<H: Upcalls<Udp>>(&mut self, host: &mut H, time: Instant, rounds: usize) {
        (self.dirty, self.full) = (false, false);
        self.alive.sent();
        let most = self.socket.longest_row();
        for _ in 0..rounds {
            if self.socket.has_waiting() && !self.flush() {
                (self.dirty, self.full) = (true, true);
                return;
            }
            let mut all = false;
            while let Some((buffer, gaps)) = self.socket.next() {
                let (common, peers) = (&mut self.common, &mut self.peers);
                let mut adapter = DriverAdapter::new(common, peers, host).with(gaps);
                match self.endpoint.poll_train(time, most, &mut buffer[..MAX_GSO_BYTES], &mut adapter) {
                    Some(transmit) => {
                        self.socket.push(&transmit);
                        self.common.counts.sent += transmit.count as u64;
                    }
                    None => {
                        all = true;
                        break;
                    }
                }
            }
            if !self.flush() {
                (self.dirty, self.full) = (true, true);
                return;
            }
            if all {
                return;
            }
        }
        self.dirty = true; // there may be more
    }

    /// Retries records that the core had refused.
    #[cold]
    fn resume<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        self.common.is_unread = !host.hungry();
        if host.hungry() {
            let mut adapter = DriverAdapter::new(&mut self.common, &mut self.peers, host);
            self.endpoint.resume(now(), &mut adapter);
        }
    }

    /// Continues peers' reads, and then their later commands.
    #[cold]
    fn serve<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        let time = now();
        let mut still = Vec::new();
        for peer in std::mem::take(&mut self.common.serving) {
            let entry = &mut self.peers[peer as usize];
            if let Some(sender) = self.endpoint.sender(time, peer) {
                entry.serve_reads(&mut self.common, sender, host, peer);
            }
            let answers = self.endpoint.sender(time, peer).map_or(0, |sender| sender.bulk.records());
            entry.is_served = entry.is_read() || answers > ANSWERS;
            if entry.is_served {
                still.push(peer);
            }
        }
        self.common.serving = still;
        self.resume(host);
    }

    /// Tells peers to stop holding payloads.
    #[cold]
    fn end_keeping<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        let time = now();
        let eager = self.common.eager;
        self.common.keeping.retain(|&peer| {
            let entry = &mut self.peers[peer as usize];
            if entry.peer_keeps && !host.may_hold(peer, eager) {
                return true;
            }
            entry.in_keeping = false;
            // The session may have ended since, and its request with it.
            if std::mem::take(&mut entry.peer_keeps)
                && let Some(sender) = self.endpoint.sender(time, peer)
            {
                ask_to_keep(sender, false);
            }
            false
        });
    }

    pub(crate) fn arm(&mut self) -> Arm {
        // Delayed acknowledgements are sent before sleeping.
        let stopped = self.endpoint.is_stopped() && self.common.serving.is_empty();
        let ready = (self.dirty && !self.full) || (stopped && self.common.is_unread);
        if ready || self.endpoint.hasten() || !self.common.changed.is_empty() {
            return Arm::Ready;
        }
        let due = self.common.connection.as_ref().and_then(|connection| connection.due());
        let time = now();
        let again = self.full.then(|| time + FULL);
        let next = [self.endpoint.poll_timeout(), due, again].into_iter().flatten().min();
        if next.is_some_and(|next| next <= time) {
            return Arm::Ready;
        }
        self.socket.wake_at(time, next);
        let grouped = self.messages.as_ref().is_some_and(|messages| messages.is_readable());
        match grouped || self.socket.is_readable() {
            true => Arm::Ready,
            false if stopped => Arm::Stalled,
            false => Arm::Armed,
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::give_back`].
    #[cold]
    pub(crate) fn give_back(&mut self) {
        self.peers.iter_mut().for_each(|entry| entry.settle_answers(&mut self.common.spare));
    }

    /// Sends everything that does not need the application.
    fn send_rest(&mut self) {
        let time = now();
        let mut closing = Closing { common: &mut self.common, peers: &self.peers };
        loop {
            let Some((buffer, _)) = self.socket.next() else {
                if !matches!(self.socket.flush(), Sent::All) {
                    return;
                }
                continue;
            };
            match self.endpoint.poll_transmit(time, buffer, &mut closing) {
                Some(transmit) => self.socket.push(&transmit),
                None => break,
            }
        }
        self.flush();
    }

    /// Logs the sessions that end with the endpoint.
    fn log_sessions(&self) {
        /// Maximum number of sessions that get a line each.
        const MAX_LOGGED_SESSIONS: u32 = 64;
        if !tracing::enabled!(target: "ofi::udp::ep_ctrl", tracing::Level::INFO) {
            return;
        }
        let open = (0..self.endpoint.peers() as u32).filter(|&peer| self.endpoint.is_open(peer));
        for peer in open.take(MAX_LOGGED_SESSIONS as usize) {
            let (Some(address), Some(stats)) =
                (self.endpoint.address(peer), self.endpoint.peer_statistics(peer))
            else {
                continue;
            };
            let [sent, received] = stats.packets;
            tracing::info!(
                target: "ofi::udp::ep_ctrl",
                peer = %address, sent, received, lost = stats.lost, timeouts = stats.probes,
                rtt_us = stats.rtt_ns / 1000, packet_size = stats.packet_size,
                "ends a session: the endpoint closes"
            );
        }
    }

    /// Waits briefly for the acknowledgement of messages that were reported as sent, and closes the sessions.
    fn close(&mut self) {
        self.log_sessions();
        self.alive.unwatch();
        self.give_back(); // a closing registration asks open endpoints only
        self.endpoint.take_leave(&is_answer);
        self.send_rest();
        let end = now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        let connected = self.common.connection.is_some();
        while (connected || self.common.detached > 0) && !self.endpoint.is_drained() && now() < end {
            let wait = self.endpoint.poll_timeout().map_or(end, |time| time.min(end)).since(now());
            self.socket.wait(wait);
            let (got, _) = self.socket.receive();
            let mut closing = Closing { common: &mut self.common, peers: &self.peers };
            for index in 0..got {
                let (bytes, from) = self.socket.datagram(index);
                if let Some(from) = from {
                    self.endpoint.handle(now(), address::canonical(from), bytes, &mut closing);
                }
            }
            self.endpoint.handle_time(now(), &mut closing);
            self.send_rest();
        }
        for peer in 0..self.endpoint.peers() as u32 {
            if let Some((buffer, _)) = self.socket.next()
                && let Some(transmit) = self.endpoint.close(peer, buffer)
            {
                self.socket.push(&transmit);
            }
            self.flush();
        }
    }
}

/// Logs what the kernel granted a new endpoint's socket.
fn log_open(socket: &Socket, ecn: bool) {
    let asked = settings::SOCKET_BUFFER.get();
    tracing::info!(
        target: "ofi::udp::ep_ctrl",
        address = %socket.address,
        receives_by = if socket.takes_places() { "recvmmsg" } else { "io_uring" },
        sends_by = if socket.longest_row() > 1 { "segments (UDP_SEGMENT)" } else { "single datagrams" },
        receive_buffer = socket.granted,
        whole_up_to = EAGER,
        congestion_control = settings::CONGESTION.get(),
        pacing = settings::PACING.get(),
        ecn,
        encryption = settings::ENCRYPTION.get(),
        peer_timeout_ms = settings::PEER_TIMEOUT_MS.get(),
        "opened a socket"
    );
    if socket.granted < asked {
        tracing::debug!(
            target: "ofi::udp::ep_ctrl",
            asked, granted = socket.granted,
            "the kernel grants a smaller buffer than FI_UDP_SOCKET_BUFFER asks for: raise net.core.rmem_max"
        );
    }
    if settings::SEGMENTS.get() && socket.longest_row() == 1 {
        tracing::debug!(
            target: "ofi::udp::ep_ctrl",
            "the kernel does not split batches of datagrams (UDP_SEGMENT): each takes a place in a sendmmsg"
        );
    }
}

impl Drop for UdpEndpoint {
    fn drop(&mut self) {
        self.close();
    }
}
