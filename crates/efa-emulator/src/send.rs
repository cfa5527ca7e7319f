//! The sending side of the device: doorbells, requests, packets.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use crate::device::{Device, Outgoing, Pending, RECEIVE_DOORBELL, Ring, SEND_DOORBELL, State, socket_path};
use crate::formats::{Completion, Gid, LONG_REQUEST, Operation, Piece, SendRequest, status};
use crate::memory::peek;
use crate::packet::{CHUNK, HEADER, Packet, PacketKind};
use crate::settings::cap;

/// Maximum number of requests of one queue pair that one round processes.
const ROUND: usize = 32;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub const LOCAL_WRITE: u32 = 1;

impl Device {
    /// Reads every doorbell, and starts the posted requests. Returns whether there were any.
    pub fn take_requests(&mut self) -> bool {
        let numbers: Vec<u16> = self.pairs.keys().copied().collect();
        let mut busy = false;
        for number in numbers {
            let Some(pair) = self.pairs.get_mut(&number) else { continue };
            pair.receives.posted = pair.doorbell.load(RECEIVE_DOORBELL) as u16;
            pair.sends.posted = pair.doorbell.load(SEND_DOORBELL) as u16;
            let state = pair.state;
            if state == State::Error {
                self.flush(number);
                continue;
            }
            if state != State::Sending {
                continue;
            }
            for _ in 0..ROUND {
                let Some(pair) = self.pairs.get_mut(&number) else { break };
                let Some(bytes) = pair.sends.take() else { break };
                self.begin(number, &bytes);
                busy = true;
            }
        }
        busy
    }

    /// Starts a request.
    fn begin(&mut self, pair: u16, bytes: &[u8]) {
        let request = match SendRequest::parse(bytes) {
            Ok(request) => request,
            Err((id, status)) => return self.sent(pair, id, Operation::Send, status),
        };
        self.count += 1;
        if let Some((event, _)) = self.settings.event.filter(|(_, number)| *number == self.count) {
            self.report(event);
        }
        let (id, operation) = (request.id, request.operation);
        if let Some((status, _)) = self.settings.fail.filter(|(_, number)| *number == self.count) {
            return self.sent(pair, id, operation, status);
        }
        let datagrams = self.pairs.get(&pair).is_some_and(|pair| pair.datagrams);
        match self.check(pair, &request) {
            Err(status) => self.sent(pair, id, operation, status),
            Ok(to) if datagrams => {
                let status = self.send_datagram(pair, to, &request);
                self.sent(pair, id, operation, status);
            }
            Ok(to) => {
                let token = self.next_token;
                self.next_token += 1;
                let now = Instant::now();
                let pending = Pending {
                    pair,
                    to,
                    request,
                    received: 0,
                    repeats: 0,
                    sent: now,
                    probed: now,
                    again: None,
                };
                self.requests.insert(token, pending);
                self.route(to, Outgoing::SendRequest { token, offset: 0 });
            }
        }
    }

    /// Sends a datagram, and returns the status of its request, which ends without an answer.
    fn send_datagram(&mut self, pair: u16, to: Gid, request: &SendRequest) -> u8 {
        if request.operation != Operation::Send {
            return status::UNSUPPORTED;
        }
        let Some(domain) = self.pairs.get(&pair).map(|pair| pair.domain) else { return status::FLUSHED };
        let mut bytes = vec![0; HEADER];
        if !self.gather(domain, request, 0..request.len(), &mut bytes) {
            return status::INVALID_LKEY;
        }
        let packet = Packet {
            kind: PacketKind::Datagram,
            source_qp: pair,
            qp: request.qp,
            qkey: request.qkey,
            immediate: request.immediate,
            total: request.len(),
            ..self.probe()
        };
        bytes[..HEADER].copy_from_slice(&packet.encode());
        self.route(to, Outgoing::Datagram(bytes));
        status::OK
    }

    /// Checks a request on this side, and returns the peer's address.
    fn check(&self, pair: u16, request: &SendRequest) -> Result<Gid, u8> {
        let domain = self.pairs.get(&pair).ok_or(status::FLUSHED)?.domain;
        let most = match request.operation {
            Operation::Send => u64::from(self.settings.mtu),
            Operation::Read if self.settings.caps & cap::READ == 0 => return Err(status::UNSUPPORTED),
            Operation::Write if self.settings.caps & cap::WRITE == 0 => return Err(status::UNSUPPORTED),
            Operation::Read | Operation::Write => 1 << 30,
        };
        if request.len() > most {
            return Err(status::LOCAL_LENGTH);
        }
        let right = if request.operation == Operation::Read { LOCAL_WRITE } else { 0 };
        let registered = |piece: &Piece| {
            piece.len == 0 || self.find(domain, piece.key, piece.addr, u64::from(piece.len), right).is_some()
        };
        if !request.pieces.iter().all(registered) {
            return Err(status::INVALID_LKEY);
        }
        let mut handles = self.handles.values();
        let handle = handles.find(|handle| handle.number == request.ah && handle.domain == domain);
        handle.map(|handle| handle.gid).ok_or(status::INVALID_AH)
    }

    /// Completes a request.
    pub fn sent(&mut self, pair: u16, id: u16, operation: Operation, status: u8) {
        if let Some(queue) = self.pairs.get(&pair).map(|pair| pair.send_queue) {
            self.complete(queue, &Completion::Sent { id, status, qp: pair, operation });
        }
    }

    /// Completes a request that the peer has answered, or will not answer.
    pub fn end(&mut self, token: u64, status: u8) {
        if let Some(Pending { pair, request, .. }) = self.requests.remove(&token) {
            self.sent(pair, request.id, request.operation, status);
        }
    }

    /// Flushes all requests and receives of a queue pair in error.
    pub fn flush(&mut self, number: u16) {
        let under_way = self.requests.iter().filter(|(_, pending)| pending.pair == number);
        let tokens: Vec<u64> = under_way.map(|(token, _)| *token).collect();
        tokens.into_iter().for_each(|token| self.end(token, status::FLUSHED));
        while let Some(pair) = self.pairs.get_mut(&number) {
            let Some(bytes) = pair.sends.take() else { break };
            let (id, operation) = match SendRequest::parse(&bytes) {
                Ok(request) => (request.id, request.operation),
                Err((id, _)) => (id, Operation::Send),
            };
            self.sent(number, id, operation, status::FLUSHED);
        }
        while let Some((id, _)) = self.take_receive(number) {
            self.received_nothing(number, id, status::FLUSHED);
        }
    }

    /// Queues an outgoing packet for a peer.
    pub fn route(&mut self, to: Gid, what: Outgoing) {
        self.routes.entry(to).or_default().queue.push_back(what);
    }

    /// Sends queued packets while peers accept them. Returns whether any was sent.
    pub fn send(&mut self) -> bool {
        let peers: Vec<Gid> =
            self.routes.iter().filter(|(_, route)| !route.queue.is_empty()).map(|(gid, _)| *gid).collect();
        let mut busy = false;
        for gid in peers {
            let path = socket_path(&self.settings.dir, &gid);
            for _ in 0..ROUND {
                let Some(next) = self.routes.get_mut(&gid).and_then(|route| route.queue.pop_front()) else {
                    break;
                };
                let Some((bytes, rest)) = self.packet(next) else { continue };
                if self.lost() {
                    continue;
                }
                match self.socket.send_to(&bytes, &path) {
                    Ok(_) => {
                        self.packets += 1;
                        busy = true;
                        if let Some(rest) = rest.after {
                            self.routes.entry(gid).or_default().queue.push_front(rest);
                        }
                    }
                    Err(error)
                        if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) =>
                    {
                        self.gone(&gid);
                        break;
                    }
                    // The peer's queue is full: this packet is sent first next time.
                    Err(_) => {
                        self.routes.entry(gid).or_default().queue.push_front(rest.before);
                        break;
                    }
                }
            }
        }
        busy
    }

    /// The next packet of a queue entry, and the entry before and after the packet. `None` if there is nothing more to
    /// send.
    fn packet(&mut self, next: Outgoing) -> Option<(Vec<u8>, Rest)> {
        match next {
            Outgoing::Packet(packet) => {
                Some((packet.encode().to_vec(), Rest { before: Outgoing::Packet(packet), after: None }))
            }
            Outgoing::Datagram(bytes) => {
                Some((bytes.clone(), Rest { before: Outgoing::Datagram(bytes), after: None }))
            }
            Outgoing::Data { packet, from } => {
                let len = (packet.total - packet.offset).min(CHUNK as u64) as usize;
                let mut bytes = packet.encode().to_vec();
                bytes.resize(HEADER + len, 0);
                if !peek(from.wrapping_add(packet.offset), &mut bytes[HEADER..]) {
                    return None; // unmapped meanwhile: the peer's request times out
                }
                let after = Packet { offset: packet.offset + len as u64, ..packet };
                let after = (after.offset < after.total).then_some(Outgoing::Data { packet: after, from });
                Some((bytes, Rest { before: Outgoing::Data { packet, from }, after }))
            }
            Outgoing::SendRequest { token, offset } => {
                self.requests.get_mut(&token)?.sent = Instant::now();
                let pending = self.requests.get(&token)?;
                let (request, total) = (&pending.request, pending.request.len());
                let pair = self.pairs.get(&pending.pair)?;
                let mut bytes = vec![0; HEADER];
                let end = match request.operation {
                    Operation::Read | Operation::Send => total,
                    Operation::Write => total.min(offset + CHUNK as u64),
                };
                if request.operation != Operation::Read
                    && !self.gather(pair.domain, request, offset..end, &mut bytes)
                {
                    self.end(token, status::INVALID_LKEY);
                    return None;
                }
                let packet = Packet {
                    kind: PacketKind::SendRequest(request.operation),
                    source: self.gid,
                    source_qp: pending.pair,
                    qp: request.qp,
                    qkey: request.qkey,
                    token,
                    immediate: request.immediate,
                    offset: if request.operation == Operation::Read { 0 } else { offset },
                    total,
                    addr: request.remote.addr,
                    key: request.remote.key,
                    unsolicited: pair.unsolicited,
                    repeats: pending.repeats.min(u8::MAX.into()) as u8,
                };
                bytes[..HEADER].copy_from_slice(&packet.encode());
                let after = (end < total).then_some(Outgoing::SendRequest { token, offset: end });
                Some((bytes, Rest { before: Outgoing::SendRequest { token, offset }, after }))
            }
        }
    }

    /// Appends a part of a request's data. `false` if its memory is unmapped.
    fn gather(
        &self,
        domain: u32,
        request: &SendRequest,
        part: std::ops::Range<u64>,
        to: &mut Vec<u8>,
    ) -> bool {
        if let Some(inline) = &request.inline {
            to.extend(inline);
            return true;
        }
        let mut begin = 0;
        for piece in &request.pieces {
            let end = begin + u64::from(piece.len);
            let (from, until) = (part.start.max(begin), part.end.min(end));
            if from < until {
                let len = until - from;
                let Some(addr) = self.find(domain, piece.key, piece.addr + (from - begin), len, 0) else {
                    return false;
                };
                let at = to.len();
                to.resize(at + len as usize, 0);
                if !peek(addr, &mut to[at..]) {
                    return false;
                }
            }
            begin = end;
        }
        true
    }

    /// Ends the requests to a peer whose socket does not exist.
    fn gone(&mut self, gid: &Gid) {
        let heard = self.routes.remove(gid).is_some_and(|route| route.heard);
        let asked = self.requests.iter().filter(|(_, pending)| pending.to == *gid);
        let tokens: Vec<u64> = asked.map(|(token, _)| *token).collect();
        let status = if heard { status::UNRESPONSIVE } else { status::UNREACHABLE };
        tokens.into_iter().for_each(|token| self.end(token, status));
    }

    /// Whether the settings have silenced this device.
    pub fn lost(&self) -> bool {
        self.settings.lose_after.is_some_and(|most| self.packets >= most)
    }

    /// Resends requests that found no receive, and gives up on silent peers. Updates whether the device is mute.
    pub fn look_at_the_clock(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) < CHECK_INTERVAL {
            return;
        }
        self.looked = now;
        self.is_mute = self.settings.mute.is_some() && self.settings.dir.join(MUTE).exists();
        let (mut again, mut dead, mut probes) = (Vec::new(), Vec::new(), Vec::new());
        for (token, pending) in &mut self.requests {
            if pending.again.is_some_and(|at| at <= now) {
                (pending.again, pending.received, pending.sent) = (None, 0, now);
                again.push((*token, pending.to));
            } else if pending.again.is_none() && now.duration_since(pending.sent) > self.settings.timeout {
                dead.push((*token, pending.to));
            } else if now.duration_since(pending.probed) > PROBE {
                pending.probed = now;
                probes.push(pending.to);
            }
        }
        for (token, to) in again {
            self.route(to, Outgoing::SendRequest { token, offset: 0 });
        }
        for (token, to) in dead {
            let heard = self.routes.get(&to).is_some_and(|route| route.heard);
            self.end(token, if heard { status::UNRESPONSIVE } else { status::UNREACHABLE });
        }
        probes.sort_unstable();
        probes.dedup();
        for to in probes {
            self.route(to, Outgoing::Packet(self.probe()));
        }
    }

    /// A probe packet.
    fn probe(&self) -> Packet {
        Packet {
            kind: PacketKind::Probe,
            source: self.gid,
            source_qp: 0,
            qp: 0,
            qkey: 0,
            token: 0,
            immediate: None,
            offset: 0,
            total: 0,
            addr: 0,
            key: 0,
            unsolicited: false,
            repeats: 0,
        }
    }
}

impl Ring {
    /// Reads the next request. `None` if none is posted.
    fn take(&mut self) -> Option<Vec<u8>> {
        let shared = self.shared.as_ref().filter(|_| self.taken != self.posted)?;
        let at = (u32::from(self.taken) % self.entries) as usize * self.entry;
        self.taken = self.taken.wrapping_add(1);
        Some(shared.read::<LONG_REQUEST>(at)[..self.entry].to_vec())
    }
}

/// A queue entry, before and after a packet of it was sent.
struct Rest {
    before: Outgoing,
    after: Option<Outgoing>,
}

/// The file that makes a device mute ([`Settings::mute`](crate::settings::Settings)).
const MUTE: &str = "mute";
/// Interval between checks of outstanding requests.
const CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// Interval between probes of a peer that owes an answer.
const PROBE: Duration = Duration::from_millis(200);
