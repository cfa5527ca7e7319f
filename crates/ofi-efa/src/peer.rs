//! One peer of an endpoint: its address, its queues, and the operations in flight.

mod insertion;
mod parting;
mod repeats;
mod restart;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, OpFlags, Result};
use ofi_core::log::{Limit, Told};
use ofi_core::slots::SlotId;
pub use ofi_core::transport::record::Broken;
use ofi_core::transport::{PeerId, Upcalls};
use rustc_hash::FxHashMap;

use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::{Common, Entry};
use crate::moving::Incoming;
use crate::op::{Op, Work};
use crate::ranges::Ranges;
use crate::srd::{Action, Status, To};
use crate::window::Window;
use crate::wire::{
    Control, Features, Handshake, Header, Iovs, Message, Origin, Own, RawAddress, Write, WriteForm,
};

/// A packet that waits for a slot.
struct Frame {
    bytes: Box<[u8]>,
    mark: Mark,
}

/// Packets that are built when slots are free for them.
pub enum PacketStream {
    /// A message in several packets, or the first bytes of a message that the receiver reads.
    Medium { op: SlotId, message: Message<'static>, done: usize, len: usize },
    /// Data that the peer has cleared.
    Data { op: SlotId, recv_id: u32, done: usize, end: usize },
    /// Data for a read of the peer.
    Answer { id: u32 },
}

/// What to do after a message was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Take the next one.
    Next,
    /// The core had no room for the message: it must be offered again before any later message.
    Stop,
}

/// Whether the device accesses a peer's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accesses {
    pub read: bool,
    pub write: bool,
}

/// A write of no bytes, which a peer or its device answers.
pub fn nothing() -> Write<'static> {
    let form = WriteForm::Eager(&[]);
    let own = Own::default();
    Write { remote: Iovs::default(), data: None, confirm: false, send_id: 0, own, number: 0, form }
}

/// Maximum number of queued bytes for a peer.
const QUEUE_LIMIT: usize = 1 << 20;
/// First and maximum RNR back-off (rest) of a peer that had no receive posted.
const REST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// Maximum number of notices that one packet of a peer triggers after the peer was given up.
const DISMISSALS: u8 = 8;

/// The state of one peer: its address, its queues, and the operations in flight.
pub struct Peer {
    pub address: RawAddress,
    pub to: To,
    /// The peer's features, once its handshake has arrived.
    pub features: Option<Features>,
    /// The peer's queue pair for messages without headers: of endpoints of libfabric 1.22 to 2.5 with zero-copy
    /// receive.
    pub bare: Option<To>,
    /// The kinds of access to the peer's memory that the device executes.
    pub native: Accesses,
    /// Whether this end has sent the peer its handshake.
    greeted: bool,
    /// Whether this end has asked the peer for its handshake.
    asked: bool,
    /// Number of notices left for a peer that was given up. A notice that finds no receive is resent.
    dismissals: u8,
    /// The id of the next message.
    pub next_msg: u32,
    /// The insertion of the peer's address at which message ids started: of messages to the peer, and from it.
    counted: [Option<u64>; 2],
    /// Whether the peer's address was inserted again before its library was known. Until then, it is unknown whether
    /// the message ids to the peer restart.
    is_unsure: bool,
    /// [`Upcalls::insertions`] at the last lookup of `counted` for messages from the peer.
    looked: u32,
    /// Whether the peer's address was inserted again. Its next message shows whether the peer has restarted its ids.
    may_restart: bool,
    queue: VecDeque<Frame>,
    pub streams: VecDeque<PacketStream>,
    /// Packets that found no receive at the peer.
    again: VecDeque<Packet>,
    /// The end of the back-off, if the peer has no receives.
    rest: Option<Instant>,
    /// The length of the next back-off.
    pause: Duration,
    /// Packets that failed, and are sent again before anything else.
    repeats: Option<Box<repeats::Repeats>>,
    /// The number of the next packet that is sent again.
    repeated: u32,
    /// How often both ends have begun anew.
    round: u32,
    /// Whether the next packet waits until the device has no packet of before.
    restarts_after_drain: bool,
    /// The round in which this end begins anew after everything with the peer has ended.
    reborn: Option<u32>,
    /// Number of remote accesses whose packets the peer may recognize, and those of the peer that have arrived.
    pub next_access: u64,
    pub accesses: Ranges,
    /// Bytes in `queue`.
    waiting: usize,
    /// Number of packets under way.
    pub inflight: usize,
    /// Number of slots whose memory the device's requests for this peer use instead of the application's.
    pub lent: usize,
    pub window: Window,
    /// Completed writes of the peer that the core has no room to report yet.
    pub late: VecDeque<Box<[u8]>>,
    /// The same for long writes.
    pub finishing: Vec<Incoming>,
    /// Number of the device's transfers for this peer.
    pub transfers: usize,
    /// Number of the device's requests for this peer, other than packets.
    pub requests: usize,
    /// Transfers with unposted requests.
    pub accessing: VecDeque<SlotId>,
    /// Operations whose only request is not posted.
    pub singles: VecDeque<(SlotId, Action)>,
    /// Messages to send because the peer could not read them, by their numbers at this end.
    pub nacked: FxHashMap<u32, u32>,
    /// Runt bytes of messages that the peer has not read yet.
    pub runts: usize,
    /// Refusals to send once the peer is known to understand them.
    pub unsaid: Vec<(u32, Errno)>,
    /// Receipts to send once it is known how the peer interprets them.
    pub doubtful: Vec<(u32, u32)>,
    /// Operations of this end that have not ended.
    pub outstanding: usize,
    /// Messages that were reported as sent but have not arrived.
    pub detached: usize,
    /// The peer's newest number for pausing messages. An odd number asks this end to pause.
    pub paused: u32,
    /// The newest such number that this end has sent.
    pub pausing: u32,
    /// When the peer was last probed.
    pub probed: Option<Instant>,
    pub is_dirty: bool,
    /// Protocols of messages to the peer that were logged.
    pub told: Told,
    /// The number of packets that this end had posted, to any peer, when it knew that the peer owns its queue pair:
    /// the peer had received one.
    pub met: Option<u64>,
    /// Whether the peer is in [`Common::stalled`].
    pub is_stalled: bool,
    /// Whether the peer is in [`Common::resting`].
    pub is_resting: bool,
    /// Set if the peer is lost: the error of its pending operations.
    pub ending: Option<Errno>,
    /// Whether the peer is lost until the application inserts its address again: the error of later operations.
    pub dead: Option<Errno>,
    /// The insertion of the peer's address when the peer was lost.
    dead_since: Option<u64>,
    /// Whether another peer has taken over the queue pair, so that the peer is lost for good.
    pub is_replaced: bool,
}

impl Peer {
    /// A peer in its initial state.
    pub fn new(address: RawAddress, handle: u16) -> Self {
        Self {
            address,
            to: To { handle, qpn: address.qpn, qkey: address.connid },
            features: None,
            bare: None,
            native: Accesses::default(),
            greeted: false,
            dismissals: 0,
            next_msg: 0,
            counted: [None; 2],
            is_unsure: false,
            looked: 0,
            may_restart: false,
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            again: VecDeque::new(),
            rest: None,
            pause: REST.0,
            repeats: None,
            repeated: 0,
            round: 0,
            restarts_after_drain: false,
            reborn: None,
            next_access: 0,
            accesses: Ranges::default(),
            waiting: 0,
            inflight: 0,
            lent: 0,
            window: Window::default(),
            late: VecDeque::new(),
            finishing: Vec::new(),
            transfers: 0,
            requests: 0,
            accessing: VecDeque::new(),
            singles: VecDeque::new(),
            nacked: FxHashMap::default(),
            runts: 0,
            unsaid: Vec::new(),
            doubtful: Vec::new(),
            asked: false,
            outstanding: 0,
            detached: 0,
            paused: 0,
            pausing: 0,
            probed: None,
            is_dirty: false,
            told: Told::default(),
            met: None,
            is_stalled: false,
            is_resting: false,
            ending: None,
            dead: None,
            dead_since: None,
            is_replaced: false,
        }
    }

    /// Whether the peer is an endpoint of this library. `None` if that is not known yet.
    pub fn is_own(&self) -> Option<bool> {
        self.features.map(|features| features.has(Features::OWN))
    }

    /// Whether the peer is known to recognize repeated packets.
    pub fn knows_repeats(&self) -> bool {
        self.features.is_some_and(|features| features.has(Features::REPEATS))
    }

    /// Requests the peer's handshake, which answers any packet. This one is a write of no bytes, as from C's endpoints.
    pub fn ask(&mut self, common: &mut Common, peer: PeerId) {
        if self.next_msg == 0 && !std::mem::replace(&mut self.asked, true) {
            self.ask_again(common, peer);
        }
    }

    fn ask_again(&mut self, common: &mut Common, peer: PeerId) {
        self.packet(common, peer, &nothing().encode(self.origin(common)), 0, Mark::Nothing, |_| {});
    }

    /// How requests identify their sender.
    pub fn origin(&self, common: &Common) -> Origin {
        match self.features {
            Some(_) => Origin::Connid(common.adapter.address.connid),
            None => Origin::Address(common.adapter.address),
        }
    }

    /// Whether another operation may be posted.
    pub fn may_post(&self, flags: OpFlags) -> Result<()> {
        let fenced = flags.contains(OpFlags::FENCE) && self.outstanding > 0;
        let unsure = self.is_unsure && self.dead.is_none();
        if fenced
            || self.waiting > QUEUE_LIMIT
            || self.streams.len() > 1024
            || self.ending.is_some()
            || unsure
        {
            return Err(Error::AGAIN);
        }
        Ok(())
    }

    /// Whether a message can be posted at once, without overtaking queued packets.
    #[inline(always)]
    pub fn may_send_now(&self) -> bool {
        self.is_free() && self.queue.is_empty() && self.streams.len() <= 1024
    }

    /// Sends a packet with a payload of `len` bytes, which `fill` writes. Queues the packet if it cannot be posted at
    /// once.
    pub fn packet(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        header: &Header,
        len: usize,
        mark: Mark,
        fill: impl FnOnce(*mut u8),
    ) {
        self.packet_of(common, peer, header.bytes(), len, mark, fill);
    }

    /// As [`Peer::packet`], with an encoded header.
    #[inline(always)]
    pub fn packet_of(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        header: &[u8],
        len: usize,
        mark: Mark,
        fill: impl FnOnce(*mut u8),
    ) {
        if self.is_free()
            && self.queue.is_empty()
            && let Some(slot) = self.take_slot(common)
        {
            put(common.adapter.outgoing(slot), header);
            fill(common.adapter.outgoing(slot).wrapping_add(header.len()));
            return self.post(common, Packet::new(peer, slot, header.len() + len, mark));
        }
        if self.queue.is_empty() && self.is_free() {
            common.adapter.log_full();
        }
        let mut bytes = vec![0u8; header.len() + len].into_boxed_slice();
        bytes[..header.len()].copy_from_slice(header);
        fill(bytes.as_mut_ptr().wrapping_add(header.len()));
        self.waiting += bytes.len();
        self.queue.push_back(Frame { bytes, mark });
        common.hold(&mut self.is_dirty, peer);
    }

    /// Sends a control packet about an operation.
    pub fn control(&mut self, common: &mut Common, peer: PeerId, control: Control<'_>) {
        let header = control.encode(common.adapter.address.connid);
        let payload = control.payload();
        self.packet(common, peer, &header, payload.len(), Mark::Nothing, |to| put(to, payload));
    }

    /// Sends the peer this end's handshake, once.
    pub fn greet(&mut self, common: &mut Common, peer: PeerId) {
        if common.direct || std::mem::replace(&mut self.greeted, true) {
            return;
        }
        let greeting = greeting(common);
        // Nothing of the queue is posted before the peer's handshake has arrived, and the peer may wait for this one.
        if self.features.is_some() || !self.repeat_early(common, peer, greeting.bytes()) {
            self.packet(common, peer, &greeting, 0, Mark::Nothing, |_| {});
        }
    }

    /// Takes a slot for an outgoing packet, within this peer's share of them.
    #[inline(always)]
    pub fn take_slot(&self, common: &mut Common) -> Option<u32> {
        common.adapter.take_slot(self.inflight + self.again.len() + self.lent)
    }

    /// Takes a slot whose memory a request uses instead of the application's.
    pub fn borrow_slot(&mut self, common: &mut Common) -> Result<u32> {
        let slot = self.take_slot(common).ok_or_else(|| common.adapter.full())?;
        self.lent += 1;
        Ok(slot)
    }

    /// Whether packets can be posted.
    pub fn is_free(&self) -> bool {
        self.again.is_empty() && self.may_flush()
    }

    /// Posts a packet that is in its slot.
    pub fn post(&mut self, common: &mut Common, packet: Packet) {
        let to = if packet.bare { self.bare.unwrap_or(self.to) } else { self.to };
        common.adapter.send(to, packet);
        self.inflight += 1;
        common.counts.sent += 1;
    }

    /// Posts queued packets while slots are free. `false`: packets are still queued that wait neither for the peer nor
    /// for the end of one of its packets.
    pub fn flush<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) -> bool {
        self.rise(common, peer);
        if !self.is_free() {
            return true;
        }
        while let Some(frame) = self.queue.pop_front() {
            let Some(slot) = self.take_slot(common) else {
                self.queue.push_front(frame);
                return self.inflight > 0;
            };
            let len = frame.bytes.len();
            put(common.adapter.outgoing(slot), &frame.bytes);
            self.waiting -= len;
            self.post(common, Packet::new(peer, slot, len, frame.mark));
        }
        let posted = self.flush_accesses(common);
        self.flush_streams(common, host, peer) && posted
    }

    /// Posts a stream's packet, which `fill` writes into a slot. `false`: no slot is free.
    pub fn post_with(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        mark: Mark,
        fill: impl FnOnce(&Common, *mut u8) -> usize,
    ) -> bool {
        if !self.is_free() {
            return false;
        }
        let Some(slot) = self.take_slot(common) else { return false };
        let len = fill(common, common.adapter.outgoing(slot));
        self.post(common, Packet::new(peer, slot, len, mark));
        true
    }

    /// The end of the peer's rest.
    pub fn rests_until(&self) -> Option<Instant> {
        self.rest
    }

    /// Resends packets that found no receive, once the back-off is over.
    fn rise(&mut self, common: &mut Common, peer: PeerId) {
        if self.rest.is_some_and(|until| common.adapter.now() >= until) {
            self.rest = None;
            while let Some(packet) = self.again.pop_front() {
                self.post(common, packet);
            }
            if self.repeats.is_some() {
                self.repeat(common, peer);
            }
        }
    }

    /// Posts nothing to the peer before this time.
    fn rest_until(&mut self, common: &mut Common, peer: PeerId, until: Instant) {
        self.rest = Some(until);
        if !std::mem::replace(&mut self.is_resting, true) {
            common.resting.push(peer);
        }
    }

    /// A packet has ended.
    pub fn sent<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        packet: Packet,
        status: Status,
    ) {
        let peer = packet.peer;
        self.inflight = self.inflight.saturating_sub(1);
        match status {
            Status::Done => {
                common.adapter.give_slot(packet.slot);
                self.took();
                self.arrived(common, host, peer, packet.mark);
            }
            Status::NotReady if common.gives_up => {
                common.counts.not_ready += 1;
                common.adapter.give_slot(packet.slot);
                if let Mark::Op(id) = packet.mark {
                    self.finish(common, host, peer, id, Err(Errno::ENORX));
                }
            }
            Status::NotReady
                if self.dead.is_none() && !(packet.is_former && packet.mark == Mark::Nothing) =>
            {
                self.again.push_back(packet);
                self.rest(common, peer);
            }
            Status::NotReady => common.adapter.give_slot(packet.slot),
            _ if packet.is_former => self.lose_packet(common, host, packet, status),
            _ => self.failed(common, host, packet, status),
        }
        if self.dead.is_some() {
            // If the packet was the handshake, this end sends it again when the peer's next packet arrives.
            self.greeted &= status == Status::Done || self.features.is_some();
            if status != Status::NotReady && self.dismissals < DISMISSALS {
                self.dismissals = 0; // the peer was notified, or is gone
            }
            self.say_bye(common, peer);
        }
        if self.ending.is_some() || !self.queue.is_empty() || !self.streams.is_empty() {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Starts the back-off: the peer has no receives.
    pub fn rest(&mut self, common: &mut Common, peer: PeerId) {
        common.counts.not_ready += 1;
        // The packet that is sent again may be the one that finds no receive.
        if self.rest.is_none() || self.repeats.is_some() {
            if self.pause == REST.0 {
                self.log_rest();
            }
            let until = common.adapter.now() + self.pause;
            self.rest_until(common, peer, until);
            self.pause = (self.pause * 2).min(REST.1);
        }
    }

    /// Logs the first of consecutive back-offs: the peer's device had no receive for a packet.
    #[cold]
    fn log_rest(&self) {
        static LIMIT: Limit = Limit::new();
        if tracing::enabled!(target: "ofi::efa::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::efa::ep_data",
                peer = %crate::address::named(&self.address), first_pause_us = REST.0.as_micros(),
                longest_pause_us = REST.1.as_micros(), more,
                "a peer's device has no receive left (RNR): packets to it wait and are sent again"
            );
        }
    }

    /// Processes the peer's request to pause messages (an odd number), or to resume.
    pub fn pauses(&mut self, number: u32) {
        // Only the newest number counts, because these packets may overtake one another.
        if number.wrapping_sub(self.paused) >= 1 << 31 {
            return;
        }
        static LIMIT: Limit = Limit::new();
        let was_paused = std::mem::replace(&mut self.paused, number) & 1 != 0;
        if !was_paused
            && number & 1 != 0
            && tracing::enabled!(target: "ofi::efa::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::efa::ep_data",
                peer = %crate::address::named(&self.address), more,
                "a peer has no room for more messages: messages to it get FI_EAGAIN until it has"
            );
        }
    }

    /// Logs the protocol of a message, once for each peer and protocol.
    pub fn tell(&mut self, (nth, protocol): (u8, &'static str), len: usize) {
        if self.told.is_first(nth) {
            tracing::debug!(
                target: "ofi::efa::ep_data",
                peer = %crate::address::named(&self.address), protocol, len,
                "chose the protocol of a message to a peer"
            );
        }
    }

    /// Resets the back-off, because the peer has receives.
    pub fn took(&mut self) {
        self.pause = REST.0;
    }

    /// Gives up the peer, which its device cannot reach. On fabric `efa-direct` requests end one by one.
    pub fn lost(&mut self) {
        let lost = if self.features.is_some() { Errno::ECONNRESET } else { Errno::ECONNREFUSED };
        self.ending.get_or_insert(lost);
    }

    /// Whether requests can be posted.
    pub fn may_flush(&self) -> bool {
        self.rest.is_none() && self.ending.is_none() && self.dead.is_none()
    }

    fn arrived<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId, mark: Mark) {
        match mark {
            Mark::Nothing => {}
            Mark::Detached => self.detached = self.detached.saturating_sub(1),
            Mark::Repeat(number) => {
                let mark = self.has_arrived(common, peer, number);
                self.arrived(common, host, peer, mark);
            }
            Mark::Op(id) => {
                if let Some(op) = host.op(peer, id) {
                    op.unacked = op.unacked.saturating_sub(1);
                }
                self.settle(common, host, peer, id);
            }
        }
    }

    /// Ends an operation if none of its work is left.
    pub fn settle<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId, id: SlotId) {
        if let Some(op) = host.op(peer, id)
            && op.unacked == 0
            && !op.making
            && !op.awaits
        {
            self.finish(common, host, peer, id, Ok(()));
        }
    }

    /// An operation of this end has ended.
    pub fn finish<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if result.is_err()
            && let Some(Op { work: Work::Lent(lent), .. }) = host.op(peer, id)
        {
            lent.retire(&common.domain.transport);
        }
        if let Some(op) = host.finish(peer, id, result) {
            if let Work::Lent(lent) = &op.work {
                self.runts = self.runts.saturating_sub(lent.runt);
            }
            common.ids.remove(op.id);
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }

    /// Handles an operation that was discarded with its context.
    pub fn abandoned(&mut self, common: &mut Common, id: SlotId, op: Op) {
        match op.work {
            // The completion of its requests ends it.
            Work::Native(_) => return,
            Work::SingleWr(alone) => {
                common.orphans.insert(id, alone);
                return;
            }
            Work::Lent(lent) => {
                self.runts = self.runts.saturating_sub(lent.runt);
                lent.retire(&common.domain.transport);
            }
            Work::Packed | Work::Out { .. } | Work::In { .. } => {}
        }
        common.ids.remove(op.id);
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Assigns a number to an operation, for the peer.
    pub fn open<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        ticket: ofi_core::transport::CompletionInfo,
        op: Op,
    ) -> Result<(SlotId, u32)> {
        let slot = host.open(peer, ticket, op);
        let Some(id) = common.ids.insert(Entry::Op(peer, slot)) else {
            host.abandon(slot);
            return Err(Error::AGAIN);
        };
        if let Some(op) = host.op(peer, slot) {
            op.id = id;
        }
        self.outstanding += 1;
        Ok((slot, id))
    }

    /// Whether a closing endpoint waits for this peer.
    pub fn is_awaited(&self) -> bool {
        let queued = !self.queue.is_empty() || !self.again.is_empty() || self.repeats.is_some();
        let owes = self.detached > 0 || self.inflight > 0 || queued;
        self.dead.is_none() && self.ending.is_none() && owes
    }

    /// Posts only queued packets, because this end is closing.
    pub fn flush_frames(&mut self, common: &mut Common, peer: PeerId) {
        self.rise(common, peer);
        while self.is_free()
            && let Some(frame) = self.queue.pop_front()
        {
            let Some(slot) = self.take_slot(common) else {
                return self.queue.push_front(frame);
            };
            let len = frame.bytes.len();
            put(common.adapter.outgoing(slot), &frame.bytes);
            self.post(common, Packet::new(peer, slot, len, frame.mark));
        }
    }
}

/// The handshake of this end.
fn greeting(common: &Common) -> Header {
    Handshake { features: common.features(), ..Handshake::default() }.encode(common.adapter.address.connid)
}

/// Copies bytes into a slot, which has room for a packet.
fn put(to: *mut u8, bytes: &[u8]) {
    // SAFETY: every slot and frame has room for the bytes that are copied there.
    unsafe { ofi_core::copy::bytes(bytes.as_ptr(), to, bytes.len()) };
}
