//! The receiving side of the device: packets, their effects on memory and queues, and the answers.

use std::time::{Duration, Instant};

use crate::device::{Device, Outgoing, State};
use crate::formats::{Arrival, Completion, Operation, Receive, status};
use crate::memory::poke;
use crate::packet::{MAX_PACKET_LEN, Packet, PacketKind};
use crate::send::LOCAL_WRITE;

/// `IBV_ACCESS_REMOTE_WRITE`, `IBV_ACCESS_REMOTE_READ`.
const REMOTE_WRITE: u32 = 2;
const REMOTE_READ: u32 = 4;
/// Maximum number of packets received in one round.
const ROUND: usize = 64;
/// Number of bytes before a received datagram (`struct ibv_grh`). Their content is not emulated.
const ROUTING: usize = 40;
/// Maximum delay of a late packet.
const LATE: Duration = Duration::from_millis(1);

impl Device {
    /// Receives packets. Returns whether there were any.
    pub fn take_packets(&mut self) -> bool {
        let mut busy = false;
        let mut room = vec![0; MAX_PACKET_LEN];
        for _ in 0..ROUND {
            let Ok(len) = self.socket.recv(&mut room) else { break };
            busy = true;
            if self.lost() {
                continue;
            }
            self.packets += 1;
            let bytes = &room[..len];
            if self.random.chance(self.settings.reorder) {
                let at = Instant::now() + LATE.mul_f64((self.random.fresh() % 100) as f64 / 100.0);
                self.late.push((at, bytes.to_vec()));
            } else {
                self.arrived(bytes);
            }
        }
        let now = Instant::now();
        while let Some(at) = self.late.iter().position(|(at, _)| *at <= now) {
            let (_, bytes) = self.late.swap_remove(at);
            self.arrived(&bytes);
            busy = true;
        }
        busy
    }

    fn arrived(&mut self, bytes: &[u8]) {
        // Ignores data from programs that are not devices.
        let Some((packet, payload)) = Packet::parse(bytes) else { return };
        self.routes.entry(packet.source).or_default().heard = true;
        match packet.kind {
            PacketKind::Probe => {}
            PacketKind::Answer(status) => self.answered(packet.token, status),
            PacketKind::Data => self.data(&packet, payload),
            PacketKind::Datagram => self.datagram(&packet, payload),
            PacketKind::SendRequest(operation) => match self.asked(operation, &packet, payload) {
                Ok(None) => {}
                Ok(Some(())) => self.answer(&packet, status::OK),
                Err(status) => self.answer(&packet, status),
            },
        }
    }

    /// Processes the peer's status of a request.
    fn answered(&mut self, token: u64, status: u8) {
        let Some(pending) = self.requests.get_mut(&token) else { return };
        if status == status::RNR {
            let retries = self.pairs.get(&pending.pair).map_or(0, |pair| pair.rnr_retry);
            if retries == 7 || pending.repeats < u32::from(retries) {
                let wait = Duration::from_micros(100 << pending.repeats.min(6));
                pending.repeats += 1;
                pending.again = Some(Instant::now() + wait);
                return;
            }
        }
        self.end(token, status);
    }

    /// Processes a part of a read's data.
    fn data(&mut self, packet: &Packet, payload: &[u8]) {
        let Some(pending) = self.requests.get(&packet.token) else { return };
        let request = &pending.request;
        let [piece] = request.pieces[..] else { return };
        if request.operation != Operation::Read
            || packet.total != request.len()
            || pending.to != packet.source
        {
            return;
        }
        let Some(domain) = self.pairs.get(&pending.pair).map(|pair| pair.domain) else { return };
        let at = piece.addr.wrapping_add(packet.offset);
        let to = self.find(domain, piece.key, at, payload.len() as u64, LOCAL_WRITE);
        if !to.is_some_and(|to| poke(to, payload)) {
            return self.end(packet.token, status::INVALID_LKEY);
        }
        let Some(pending) = self.requests.get_mut(&packet.token) else { return };
        pending.received += payload.len() as u64;
        pending.sent = Instant::now();
        if pending.received >= packet.total {
            self.end(packet.token, status::OK);
        }
    }

    /// The domain of the addressed queue pair, and whether it accepts writes without receives. `None` if no queue pair
    /// of that kind may receive the packet.
    fn addressed(&self, packet: &Packet, datagrams: bool) -> Option<(u32, bool)> {
        let pair = self.pairs.get(&packet.qp)?;
        let ready = matches!(pair.state, State::Receiving | State::Sending) && pair.datagrams == datagrams;
        (ready && pair.qkey == packet.qkey).then_some((pair.domain, pair.unsolicited))
    }

    /// Delivers a datagram into a receive, after the room for its routing header. Without a receive it is lost.
    fn datagram(&mut self, packet: &Packet, payload: &[u8]) {
        let Some((domain, _)) = self.addressed(packet, true) else { return };
        let bytes = [&[0; ROUTING][..], payload].concat();
        let arrival = Arrival {
            operation: Operation::Send,
            len: bytes.len() as u32,
            ah: self.handle_for(domain, &packet.source),
            source_qp: packet.source_qp,
            immediate: packet.immediate,
            gid: packet.source,
            unsolicited: false,
        };
        // If the receive has an error, only the receive completes with it; the sender is not notified.
        let _ = self.deliver(packet, domain, arrival, &bytes);
    }

    /// Executes a request of a peer. `None` if the answer follows later; the error is the status of the peer's request.
    fn asked(&mut self, operation: Operation, packet: &Packet, payload: &[u8]) -> Result<Option<()>, u8> {
        let (domain, unsolicited) = self.addressed(packet, false).ok_or(status::BAD_QPN)?;
        let ah = self.handle_for(domain, &packet.source);
        let mut arrival = Arrival {
            operation,
            len: packet.total as u32,
            ah,
            source_qp: packet.source_qp,
            immediate: packet.immediate,
            gid: packet.source,
            unsolicited: false,
        };
        if operation == Operation::Send {
            if payload.len() as u64 != packet.total {
                return Err(status::REMOTE_LENGTH);
            }
            return self.deliver(packet, domain, arrival, payload).map(Some);
        }
        if ah.is_none() {
            return Err(status::UNKNOWN_PEER);
        }
        let right = if operation == Operation::Read { REMOTE_READ } else { REMOTE_WRITE };
        let start = if packet.total == 0 {
            0
        } else {
            self.find(domain, packet.key, packet.addr, packet.total, right).ok_or(status::BAD_ADDRESS)?
        };
        if operation == Operation::Read {
            if packet.total == 0 {
                return Ok(Some(()));
            }
            let back = Packet { kind: PacketKind::Data, source: self.gid, offset: 0, ..*packet };
            self.route(packet.source, Outgoing::Data { packet: back, from: start });
            return Ok(None);
        }
        if !payload.is_empty() && !poke(start.wrapping_add(packet.offset), payload) {
            return Err(status::BAD_ADDRESS);
        }
        let key = (packet.source, packet.token);
        let came = self.writes.remove(&key).unwrap_or(0) + payload.len() as u64;
        if came < packet.total {
            self.writes.insert(key, came);
            return Ok(None);
        }
        if packet.immediate.is_none() {
            return Ok(Some(()));
        }
        if packet.unsolicited != unsolicited {
            return Err(status::FEATURE);
        }
        if unsolicited {
            arrival.unsolicited = true;
            self.received(packet.qp, 0, status::OK, arrival);
            return Ok(Some(()));
        }
        let (id, _) = self.receive_for(packet)?;
        self.received(packet.qp, id, status::OK, arrival);
        Ok(Some(()))
    }

    /// Removes a posted receive, unless a fault is injected.
    fn receive_for(&mut self, packet: &Packet) -> Result<(u16, Vec<Receive>), u8> {
        if packet.repeats < self.settings.rnr_times && self.random.chance(self.settings.rnr) {
            return Err(status::RNR);
        }
        self.take_receive(packet.qp).ok_or(status::RNR)
    }

    /// Delivers a send into a receive.
    fn deliver(&mut self, packet: &Packet, domain: u32, arrival: Arrival, payload: &[u8]) -> Result<(), u8> {
        let (pair, (id, pieces)) = (packet.qp, self.receive_for(packet)?);
        let mut rest = payload;
        for Receive { piece, .. } in pieces {
            let (now, later) = rest.split_at(rest.len().min(piece.len as usize));
            rest = later;
            let len = now.len() as u64;
            let to =
                if len == 0 { Some(0) } else { self.find(domain, piece.key, piece.addr, len, LOCAL_WRITE) };
            if len > 0 && !to.is_some_and(|to| poke(to, now)) {
                self.received(pair, id, status::INVALID_LKEY, arrival);
                return Err(status::ABORT);
            }
        }
        if !rest.is_empty() {
            self.received(pair, id, status::LOCAL_LENGTH, arrival);
            return Err(status::REMOTE_LENGTH);
        }
        self.received(pair, id, status::OK, arrival);
        Ok(())
    }

    fn received(&mut self, pair: u16, id: u16, status: u8, arrival: Arrival) {
        if let Some(queue) = self.pairs.get(&pair).map(|pair| pair.receive_queue) {
            self.complete(queue, &Completion::Received { id, status, qp: pair, arrival });
        }
    }

    /// Ends a receive without a message.
    pub fn received_nothing(&mut self, pair: u16, id: u16, status: u8) {
        let arrival = Arrival {
            operation: Operation::Send,
            len: 0,
            ah: None,
            source_qp: 0,
            immediate: None,
            gid: [0; 16],
            unsolicited: false,
        };
        self.received(pair, id, status, arrival);
    }

    fn answer(&mut self, packet: &Packet, status: u8) {
        self.writes.remove(&(packet.source, packet.token));
        let answer = Packet {
            kind: PacketKind::Answer(status),
            source: self.gid,
            source_qp: packet.qp,
            qp: packet.source_qp,
            qkey: 0,
            token: packet.token,
            immediate: None,
            offset: 0,
            total: 0,
            addr: 0,
            key: 0,
            unsolicited: false,
            repeats: 0,
        };
        self.route(packet.source, Outgoing::Packet(answer));
    }
}
