//! Connects `ofi-rdm`'s events and requests with the peers and the core.

use std::net::SocketAddr;

use ofi_api::{Address, Errno};
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;
use ofi_core::transport::record::{Broken, Words, flag};
use ofi_rdm::wire::Record;
use ofi_rdm::{Began, Chunks, Driver, Flow, GsoBatch, Late, Lost, Sender, Sign, Stream, suites};

use crate::answer::is_answer;
use crate::command::kind;
use crate::connected::CONNECTION;
use crate::message::{fill, leave};
use crate::op::Op;
use crate::parts::Parts;
use crate::peer::common::Common;
use crate::peer::sessionless::introduce;
use crate::peer::{DETACHED, Peer, errno_of};
use crate::rx_batch::{Next, RxBatch};
use crate::socket::Gaps;
use crate::{Udp, ahead, note};

/// Maximum bytes of unacknowledged answers to one peer. Above it, the peer's commands wait.
pub const ANSWERS: usize = 1 << 20;

/// The adapter through which `ofi-rdm` calls the peers and the core.
pub struct DriverAdapter<'a, H> {
    pub common: &'a mut Common,
    pub peers: &'a mut Chunks<Peer>,
    pub host: &'a mut H,
    /// The payload gaps of the packet that is being built.
    pub gaps: Option<&'a mut Gaps>,
    /// The packets that the current records came in.
    pub coming: RxBatch,
}

impl<'a, H: Upcalls<Udp>> DriverAdapter<'a, H> {
    pub fn new(common: &'a mut Common, peers: &'a mut Chunks<Peer>, host: &'a mut H) -> Self {
        Self { common, peers, host, gaps: None, coming: RxBatch::default() }
    }

    /// Creates the adapter for building a packet whose payload may have gaps.
    pub fn with(self, gaps: &'a mut Gaps) -> Self {
        Self { gaps: Some(gaps), ..self }
    }

    /// Processes the first of `records`; if it is a part of a payload, also those that continue it. Their payloads may
    /// be `placed`. Returns their number and the outcome.
    fn take(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
        placed: bool,
    ) -> Result<(usize, Flow), Broken> {
        let record = *records.first().ok_or(Broken)?;
        let one = |flow| (1, flow);
        let Some(entry) = self.peers.get_mut(peer as usize) else { return Err(Broken) };
        let (common, host) = (&mut *self.common, &mut *self.host);
        let (flags, body) = (record.flags, record.body);
        if stream == Stream::Commands {
            if entry.is_read() || !host.hungry() {
                common.is_unread |= !host.hungry();
                return Ok(one(Flow::Stop));
            }
            // The commands of a peer that does not acknowledge answers wait here.
            if sender.bulk.records() > ANSWERS {
                entry.await_service(common, peer);
                return Ok(one(Flow::Stop));
            }
            if let Some(connection) = &mut common.connection
                && let Some(taken) = connection.take(peer, record.kind, body)
            {
                return taken.map(one);
            }
            // The parts of a payload follow its command.
            let part = matches!(record.kind, kind::WRITE_PART | kind::PART_AHEAD).then_some(record.kind);
            if entry.next_part() != part {
                return Err(Broken);
            }
            if record.kind != kind::READ {
                entry.settle_answers(&mut common.spare);
            }
            let flow = match record.kind {
                kind::MESSAGE => entry.take_message(common, sender, host, peer, flags, body),
                kind @ (kind::ANNOUNCE | kind::AHEAD) => {
                    entry.take_announcement(common, sender, host, peer, (kind, flags), body)
                }
                kind::PART_AHEAD => {
                    let parts = Parts::of(records, placed)?;
                    let ended = entry.take_parts_ahead(common, sender, host, peer, &parts)?;
                    let next = Next { peer, stream, kind: record.kind, id: parts.id };
                    common.took(next, &parts, self.coming, ended);
                    return Ok((parts.count(), Flow::Next));
                }
                kind::WRITE => entry.take_write(common, sender, host, peer, flags, body),
                kind::WRITE_LONG => entry.take_long_write(common, host, peer, flags, body),
                kind::WRITE_PART => {
                    let parts = Parts::of(records, placed)?;
                    let flow = entry.take_write_parts(common, sender, host, peer, &parts)?;
                    if flow == Flow::Next {
                        let next = Next { peer, stream, kind: record.kind, id: parts.id };
                        common.took(next, &parts, self.coming, !entry.is_written());
                    }
                    return Ok((parts.count(), flow));
                }
                kind::READ => entry.take_read(common, sender, host, peer, body),
                kind::NOTE => note::take(host, peer, body),
                kind::ATOMIC => entry.take_atomic(common, sender, host, peer, body),
                _ => Err(Broken),
            };
            return flow.map(one);
        }
        if common.connection.as_ref().is_some_and(|connection| !connection.is_open_to(peer)) {
            return Ok(one(Flow::Next)); // too late
        }
        match record.kind {
            kind::DONE => self.take_done(peer, flags, body)?,
            kind::SEND => entry.start_payload(common, sender, host, peer, flags, body)?,
            kind @ (kind::MESSAGE_PART | kind::READ_PART) => {
                let parts = Parts::of(records, placed)?;
                let ended = match kind {
                    kind::READ_PART => entry.take_read_parts(common, host, peer, &parts)?,
                    _ => entry.take_message_parts(common, sender, host, peer, &parts)?,
                };
                common.took(Next { peer, stream, kind, id: parts.id }, &parts, self.coming, ended);
                return Ok((parts.count(), Flow::Next));
            }
            kind::KEEP => entry.keeps = Words(body).word()? != 0,
            _ => return Err(Broken),
        }
        Ok(one(Flow::Next))
    }

    /// Handles the peer's report that an operation of this end has ended.
    fn take_done(&mut self, peer: u32, flags: u8, body: &[u8]) -> Result<(), Broken> {
        let mut words = Words(body);
        let (op, errno) = (words.word()?, words.word()?);
        let id = SlotId::from_wire(op);
        let entry = self.peers.get_mut(peer as usize).ok_or(Broken)?;
        if flags & flag::KEPT != 0 {
            if let Some(bytes) = entry.long().kept.remove(id) {
                self.common.kept -= bytes.len();
            }
            return Ok(());
        }
        let errno = i32::try_from(errno).map_err(|_| Broken)?;
        let result = if errno == 0 { Ok(()) } else { Err(Errno::from_raw(errno)) };
        if result.is_err()
            && let Some(long) = entry.long.as_deref_mut()
        {
            long.asked.remove(kind::READ_PART, op); // if it was a read, its answer will not come
        }
        // An unknown operation has already ended, for example a discarded message.
        entry.finish(self.common, self.host, peer, id, result);
        Ok(())
    }
}

impl<H: Upcalls<Udp>> DriverAdapter<'_, H> {
    /// The peer's name in the log: its address, or its number if the core does not know it.
    #[cold]
    fn named(&self, peer: u32) -> String {
        self.host.address(peer).map_or_else(|| format!("number {peer}"), ToString::to_string)
    }
}

/// The name of a packet protection, for the log.
fn suite_name(suite: u8) -> &'static str {
    match suite {
        suites::AES_256_GCM => "AES-256-GCM",
        suites::CHACHA20_POLY1305 => "ChaCha20-Poly1305",
        _ => "none",
    }
}

/// The reason for the end of a session, for the log.
fn reason_text(reason: Lost) -> &'static str {
    match reason {
        Lost::Silent => "the peer was silent for FI_UDP_PEER_TIMEOUT_MS and is taken for dead",
        Lost::Refused => "the peer's host reports that the port is closed",
        Lost::Closed => "the peer closed it",
        Lost::Reset => "the peer has restarted, or has begun another session",
        Lost::Broken => "the peer broke the protocol",
        Lost::Version => "the peer speaks only other versions of the protocol",
        Lost::Key => "the peer has another authorization key",
        Lost::Suites => "the peer accepts none of this end's encryption suites (FI_UDP_ENCRYPTION)",
        Lost::Address => "something on the path changes addresses (NAT)",
        Lost::Forged => "the limit of forged packets was reached",
    }
}

impl<H: Upcalls<Udp>> Driver for DriverAdapter<'_, H> {
    fn introduce(&mut self, peer: u32, address: SocketAddr) {
        introduce(self.peers, &mut self.common.sessionless, peer);
        if self.common.connection.is_none() {
            self.host.introduce(peer, &Address::from(address));
        }
    }

    fn record(&mut self, peer: u32, sender: &mut Sender, stream: Stream, record: Record<'_>) -> Flow {
        // Not in place, whatever else of its packet is.
        self.take(peer, sender, stream, &[record], false).unwrap_or((1, Flow::Broken)).1
    }

    fn records(
        &mut self,
        peer: u32,
        sender: &mut Sender,
        stream: Stream,
        records: &[Record<'_>],
    ) -> (usize, Flow) {
        self.take(peer, sender, stream, records, self.coming.placed).unwrap_or((1, Flow::Broken))
    }

    fn began(&mut self, _peer: u32, session: Began) {
        tracing::info!(
            target: "ofi::udp::ep_ctrl",
            peer = %session.address,
            asked_by = if session.by_peer { "the peer" } else { "this end" },
            encryption = suite_name(session.suite),
            longest_packet = session.longest_packet,
            window = session.window,
            "a session has begun"
        );
        tracing::debug!(
            target: "ofi::udp::ep_data",
            peer = %session.address, protocol = "eager", up_to = self.common.eager,
            "chose the protocol of short messages to a peer; longer ones are announced (rendezvous)"
        );
    }

    #[cold]
    fn timed_out(&mut self, peer: u32, late: Late) {
        static LIMIT: Limit = Limit::new();
        if tracing::enabled!(target: "ofi::udp::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::udp::ep_data",
                peer = self.named(peer), timeouts = late.timeouts, lost = late.lost,
                rtt_us = late.rtt_ns / 1000, window = late.window, packet_size = late.packet_size, more,
                "acknowledgements are late: packets are sent again"
            );
        }
    }

    #[cold]
    fn congested(&mut self, peer: u32, sign: Sign, state: Late) {
        static LIMITS: [Limit; 3] = [const { Limit::new() }; 3];
        if tracing::enabled!(target: "ofi::udp::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMITS[sign as usize].pass()
        {
            let why = match sign {
                Sign::Lost => "packets were lost",
                Sign::Marked => "the path marks packets (ECN)",
                Sign::Silent => "the peer was silent for several probe timeouts",
            };
            tracing::debug!(
                target: "ofi::udp::ep_data",
                peer = self.named(peer), why, window = state.window, lost = state.lost,
                timeouts = state.timeouts, rtt_us = state.rtt_ns / 1000, packet_size = state.packet_size, more,
                "the congestion window was {}", if sign == Sign::Silent { "reset" } else { "reduced" }
            );
        }
    }

    fn lost(&mut self, peer: u32, reason: Lost) {
        let errno = errno_of(reason);
        let why = reason_text(reason);
        let peer_address = self.named(peer);
        tracing::info!(target: "ofi::udp::ep_ctrl", peer = peer_address, why, "a session has ended");
        if reason == Lost::Broken {
            tracing::warn!(target: "ofi::udp::ep_data", peer = peer_address, "a peer broke the protocol; its session is given up");
        }
        if reason == Lost::Forged {
            tracing::warn!(
                target: "ofi::udp::ep_data",
                peer = peer_address,
                "more forged packets than the keys' limit permits; the session is given up"
            );
        }
        if reason == Lost::Address {
            tracing::warn!(
                target: "ofi::udp::ep_ctrl",
                peer = peer_address,
                "an address changes on the path to a peer (NAT): if that is intended, set \
                 FI_UDP_ADDRESS_TRANSLATION=1 at both ends"
            );
        }
        if matches!(reason, Lost::Key | Lost::Suites) {
            tracing::warn!(target: "ofi::udp::ep_ctrl", peer = peer_address, ?reason, "a peer has a different authorization key, or another FI_UDP_ENCRYPTION");
        }
        if let Some(connection) = &mut self.common.connection {
            return connection.lost(peer, reason);
        }
        if let Some(entry) = self.peers.get_mut(peer as usize) {
            entry.lose(self.common, self.host, peer, errno);
        }
    }

    fn acked(&mut self, peer: u32, mark: u64) {
        let Some(entry) = self.peers.get_mut(peer as usize) else { return };
        if mark == DETACHED {
            entry.detached = entry.detached.saturating_sub(1);
            self.common.detached = self.common.detached.saturating_sub(1);
            return;
        }
        if mark == CONNECTION
            && let Some(connection) = &mut self.common.connection
        {
            return connection.arrived(peer);
        }
        if is_answer(mark) {
            if let Some(long) = entry.long.as_deref_mut() {
                long.answers.arrived(mark, &mut self.common.spare);
            }
            return;
        }
        let (id, is_ahead) = ahead::operation(mark);
        if is_ahead {
            return; // the peer reports whether it has taken or dropped them
        }
        let op = self.host.op(peer, id);
        if let Some(Op::Injected) = op {
            entry.detached = entry.detached.saturating_sub(1);
            self.common.detached = self.common.detached.saturating_sub(1);
        }
        if let Some(Op::Sent | Op::Injected | Op::Message { confirm: false, .. }) = op {
            entry.finish(self.common, self.host, peer, id, Ok(()));
        }
    }

    fn fill(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        if is_answer(token) {
            return fill_answer(self.peers, peer, token, at, to);
        }
        match self.host.op(peer, ahead::operation(token).0) {
            Some(Op::Message { payload, .. } | Op::Write(payload)) => fill(payload, at as usize, to),
            // The peer reported the end of an operation that is still being sent: it wants none of its bytes, or breaks
            // the protocol. It gets zeros.
            _ => to.fill(0),
        }
    }

    fn fill_row(&mut self, peer: u32, token: u64, at: u64, row: GsoBatch<'_>) {
        let part = row.part;
        if is_answer(token) {
            let parts = (at..).step_by(part.max(1)).zip(row.parts());
            return parts.for_each(|(at, to)| fill_answer(self.peers, peer, token, at, to));
        }
        match self.host.op(peer, ahead::operation(token).0) {
            Some(Op::Message { payload, .. } | Op::Write(payload)) => {
                (at as usize..)
                    .step_by(part.max(1))
                    .zip(row.parts())
                    .for_each(|(at, to)| fill(payload, at, to));
            }
            _ => row.parts().for_each(|to| to.fill(0)),
        }
    }

    fn refer(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        if is_answer(token) {
            let long = self.peers.get(peer as usize).and_then(|entry| entry.long.as_deref());
            let gaps = self.gaps.as_deref_mut();
            let left = long.zip(gaps).is_some_and(|(long, gaps)| long.answers.leave(token, at, to, gaps));
            if !left {
                fill_answer(self.peers, peer, token, at, to);
            }
            return;
        }
        match self.host.op(peer, ahead::operation(token).0) {
            Some(Op::Message { payload, .. } | Op::Write(payload)) => {
                if !self.gaps.as_deref_mut().is_some_and(|gaps| leave(payload, at as usize, to, gaps)) {
                    fill(payload, at as usize, to);
                }
            }
            _ => to.fill(0),
        }
    }
}

/// Copies bytes of an answer to a read.
fn fill_answer(peers: &Chunks<Peer>, peer: u32, token: u64, at: u64, to: &mut [u8]) {
    match peers.get(peer as usize).and_then(|entry| entry.long.as_deref()) {
        Some(long) => long.answers.fill(token, at, to),
        None => to.fill(0),
    }
}

/// Stands in for the application while an endpoint closes.
pub struct Closing<'a> {
    pub common: &'a mut Common,
    pub peers: &'a Chunks<Peer>,
}

impl Driver for Closing<'_> {
    fn introduce(&mut self, _peer: u32, _address: SocketAddr) {}

    fn record(&mut self, _peer: u32, _sender: &mut Sender, _stream: Stream, _record: Record<'_>) -> Flow {
        Flow::Stop
    }

    fn lost(&mut self, _peer: u32, _reason: Lost) {}

    fn acked(&mut self, _peer: u32, mark: u64) {
        if mark == DETACHED {
            self.common.detached = self.common.detached.saturating_sub(1);
        }
    }

    fn fill(&mut self, peer: u32, token: u64, at: u64, to: &mut [u8]) {
        fill_answer(self.peers, peer, token, at, to); // peers that need other payloads are muted
    }
}
