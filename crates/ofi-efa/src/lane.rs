//! One endpoint's way to one peer: what waits to go out, and what is known of the peer.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi_api::{Errno, Error, OpFlags, Result};
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, Peer};
use rustc_hash::FxHashMap;

use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::{Common, Entry};
use crate::moving::Incoming;
use crate::op::{Op, Work};
use crate::srd::{Action, Status, To};
use crate::window::Window;
use crate::wire::{
    self, Control, Features, Handshake, Header, Iovs, Message, Origin, Own, RawAddress, Write, WriteForm,
};

/// A packet that waits for a slot.
struct Frame {
    bytes: Box<[u8]>,
    mark: Mark,
}

/// Packets that are made when there are slots for them.
pub enum Stream {
    /// A message in several requests, or what is sent ahead of one that its receiver reads.
    Medium { op: SlotId, message: Message<'static>, done: usize, len: usize },
    /// Data that the peer has cleared.
    Data { op: SlotId, recv_id: u32, done: usize, end: usize },
    /// What answers a read.
    Answer { id: u32 },
}

/// What to do after a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Take the next one.
    Next,
    /// It could not be taken: offer it again later, and nothing behind it.
    Stop,
}

/// A peer does not keep to the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Accesses to a peer's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accesses {
    pub read: bool,
    pub write: bool,
}

/// A write that writes nothing, to hear from a peer, or of it.
pub fn nothing() -> Write<'static> {
    let form = WriteForm::Eager(&[]);
    Write { remote: Iovs::default(), data: None, confirm: false, send_id: 0, own: Own::default(), form }
}

/// Bytes that may wait for a peer, past which it takes no more.
const QUEUE_LIMIT: usize = 1 << 20;
/// How long a lane rests at first, and at most, after its peer had no receive posted.
const REST: (Duration, Duration) = (Duration::from_micros(100), Duration::from_millis(20));

/// How often a peer that was given up is told so at one time.
const DISMISSALS: u8 = 8;

/// See the module.
pub struct Lane {
    pub address: RawAddress,
    pub to: To,
    /// What the peer can do, once it has said so.
    pub features: Option<Features>,
    /// Where it wants messages, without headers: endpoints of libfabric 1.22 to 2.5 that receive in place.
    pub bare: Option<To>,
    /// Which accesses to its memory are the device's.
    pub native: Accesses,
    /// The peer was told what this end can do.
    greeted: bool,
    /// The peer was asked what it can do.
    asked: bool,
    /// How often a peer that was given up is still told so, each time that it has no receive for the word.
    dismissals: u8,
    /// The next message's place.
    pub next_msg: u32,
    /// Which insertion of the peer's address this end's messages and the peer's are counted from.
    counted: [Option<u64>; 2],
    /// Its address was inserted again before it was known whose it is: until then, from where messages to it are
    /// counted is not known.
    is_unsure: bool,
    queue: VecDeque<Frame>,
    pub streams: VecDeque<Stream>,
    /// Packets that the peer had no receive for.
    again: VecDeque<Packet>,
    /// Until when it rests, as the peer has no receives.
    rest: Option<Instant>,
    /// How long it rests the next time.
    pause: Duration,
    /// Bytes in `queue`.
    waiting: usize,
    /// Packets under way.
    pub inflight: usize,
    pub window: Window,
    /// Writes of the peer whose report has no room here yet.
    pub late: VecDeque<Box<[u8]>>,
    /// And long ones.
    pub finishing: Vec<Incoming>,
    /// Transfers of the device for it.
    pub transfers: usize,
    /// Those with requests that are not posted.
    pub accessing: VecDeque<SlotId>,
    /// Operations whose one request is not.
    pub singles: VecDeque<(SlotId, Action)>,
    /// Messages that could not be read, and are to be sent: their numbers here.
    pub nacked: FxHashMap<u32, u32>,
    /// Bytes that are sent ahead of messages that the peer has not read yet.
    pub runts: usize,
    /// Refusals for a peer of which it is not known whether it understands them.
    pub unsaid: Vec<(u32, Errno)>,
    /// Messages that are here, of a peer of which it is not known what a receipt says to it.
    pub doubtful: Vec<(u32, u32)>,
    /// This end's operations that have not ended.
    pub outstanding: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// The newest word of the peer about messages: odd asks for none.
    pub paused: u32,
    /// The newest word to the peer about them.
    pub pausing: u32,
    /// When the peer was asked whether it lives.
    pub probed: Option<Instant>,
    pub is_dirty: bool,
    /// Something has arrived there.
    pub is_met: bool,
    /// Among [`Common::stalled`].
    pub is_stalled: bool,
    /// The peer is lost; what waits for it is to end.
    pub ending: Option<Errno>,
    /// It is lost for good: its address is used by nobody any more.
    pub dead: Option<Errno>,
}

impl Lane {
    /// To a peer that nothing is known of.
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
            queue: VecDeque::new(),
            streams: VecDeque::new(),
            again: VecDeque::new(),
            rest: None,
            pause: REST.0,
            waiting: 0,
            inflight: 0,
            window: Window::default(),
            late: VecDeque::new(),
            finishing: Vec::new(),
            transfers: 0,
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
            is_met: false,
            is_stalled: false,
            ending: None,
            dead: None,
        }
    }

    /// Whether the peer is an endpoint of this library: known or not yet.
    pub fn is_own(&self) -> Option<bool> {
        self.features.map(|features| features.has(Features::OWN))
    }

    /// Asks the peer what it can do: its answer to any packet says so. A request that does nothing, as C's endpoints
    /// send it.
    pub fn ask(&mut self, common: &mut Common, peer: Peer) {
        if self.next_msg == 0 && !std::mem::replace(&mut self.asked, true) {
            self.packet(common, peer, &nothing().encode(self.origin(common)), 0, Mark::Nothing, |_| {});
        }
    }

    /// How requests say who they are from.
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

    /// Whether a message can go out past nothing that waits.
    #[inline(always)]
    pub fn may_send_now(&self) -> bool {
        self.is_free() && self.queue.is_empty() && self.streams.len() <= 1024
    }

    /// Sends a packet, whose payload of `len` bytes `fill` writes: at once if it can, from the queue later otherwise.
    pub fn packet(
        &mut self,
        common: &mut Common,
        peer: Peer,
        header: &Header,
        len: usize,
        mark: Mark,
        fill: impl FnOnce(*mut u8),
    ) {
        self.packet_of(common, peer, header.bytes(), len, mark, fill);
    }

    /// The same, with the header's bytes.
    #[inline(always)]
    pub fn packet_of(
        &mut self,
        common: &mut Common,
        peer: Peer,
        header: &[u8],
        len: usize,
        mark: Mark,
        fill: impl FnOnce(*mut u8),
    ) {
        if self.is_free()
            && self.queue.is_empty()
            && let Some(slot) = common.adapter.take_slot()
        {
            put(common.adapter.outgoing(slot), header);
            fill(common.adapter.outgoing(slot).wrapping_add(header.len()));
            return self
                .post(common, Packet { peer, slot, len: header.len() + len, data: None, mark, bare: false });
        }
        let mut bytes = vec![0u8; header.len() + len].into_boxed_slice();
        bytes[..header.len()].copy_from_slice(header);
        fill(bytes.as_mut_ptr().wrapping_add(header.len()));
        self.waiting += bytes.len();
        self.queue.push_back(Frame { bytes, mark });
        common.hold(&mut self.is_dirty, peer);
    }

    /// Sends word about an operation.
    pub fn control(&mut self, common: &mut Common, peer: Peer, control: Control<'_>) {
        let header = control.encode(common.adapter.address.connid);
        let payload = control.payload();
        self.packet(common, peer, &header, payload.len(), Mark::Nothing, |to| put(to, payload));
    }

    /// Tells a peer, once, what this end can do.
    pub fn greet(&mut self, common: &mut Common, peer: Peer) {
        if common.direct || std::mem::replace(&mut self.greeted, true) {
            return;
        }
        self.packet(common, peer, &greeting(common), 0, Mark::Nothing, |_| {});
    }

    /// Whether the application has removed the peer's address and inserted it again, since messages in that direction
    /// (0: to it, 1: from it) were counted from. C's endpoints forget a peer with its address, and both sides begin
    /// anew; those of this library do not.
    fn is_inserted_again<H: Host<Efa>>(&mut self, host: &H, peer: Peer, direction: usize) -> bool {
        let Some(now) = host.insertion(peer) else { return false };
        self.counted[direction].replace(now).is_some_and(|before| before != now)
    }

    /// The application's vector leads to the peer.
    pub fn named<H: Host<Efa>>(&mut self, common: &mut Common, host: &H, peer: Peer) {
        if !self.is_inserted_again(host, peer, 0) || self.next_msg == 0 {
            return;
        }
        match self.is_own() {
            Some(true) => {}
            Some(false) => self.count_anew(),
            // C's endpoints, which forgot this one, say it again at the next packet.
            None => {
                self.is_unsure = true;
                self.packet(common, peer, &nothing().encode(self.origin(common)), 0, Mark::Nothing, |_| {});
            }
        }
    }

    /// What the peer said of itself decides a doubt.
    pub fn resolve(&mut self) {
        if std::mem::take(&mut self.is_unsure) && self.is_own() == Some(false) {
            self.count_anew();
        }
    }

    fn count_anew(&mut self) {
        (self.next_msg, self.greeted) = (0, false);
    }

    /// Notes from when on the peer's messages are counted: at its first.
    pub fn heard<H: Host<Efa>>(&mut self, host: &H, peer: Peer) {
        self.counted[1] = host.insertion(peer);
    }

    /// A message came whose place is taken. Whether the peer counts anew, so that it is the message's all the same.
    #[cold]
    pub fn counts_anew<H: Host<Efa>>(&mut self, common: &mut Common, host: &H, peer: Peer) -> bool {
        // One that has not said whose it is does: its word may be on its way.
        let is_new = self.is_inserted_again(host, peer, 1) && self.is_own() != Some(true);
        if is_new {
            self.window.restart();
            self.greeted = false;
            self.greet(common, peer);
        }
        is_new
    }

    /// Whether packets can go out.
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

    /// Posts what waits, as far as slots go. `false`: something still waits that needs no word of the peer.
    pub fn flush<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: Peer) -> bool {
        self.rise(common);
        if !self.is_free() {
            return true;
        }
        while let Some(frame) = self.queue.pop_front() {
            let Some(slot) = common.adapter.take_slot() else {
                self.queue.push_front(frame);
                return false;
            };
            let len = frame.bytes.len();
            put(common.adapter.outgoing(slot), &frame.bytes);
            self.waiting -= len;
            self.post(common, Packet { peer, slot, len, data: None, mark: frame.mark, bare: false });
        }
        let posted = self.flush_accesses(common);
        self.flush_streams(common, host, peer) && posted
    }

    /// Posts the packet that `fill` writes into a slot, for a stream. `false`: there is no slot.
    pub fn post_with(
        &mut self,
        common: &mut Common,
        peer: Peer,
        mark: Mark,
        fill: impl FnOnce(&Common, *mut u8) -> usize,
    ) -> bool {
        if !self.is_free() {
            return false;
        }
        let Some(slot) = common.adapter.take_slot() else { return false };
        let len = fill(common, common.adapter.outgoing(slot));
        self.post(common, Packet { peer, slot, len, data: None, mark, bare: false });
        true
    }

    /// Until when it rests.
    pub fn rests_until(&self) -> Option<Instant> {
        self.rest
    }

    /// Sends again what the peer had no receives for, when it has rested.
    fn rise(&mut self, common: &mut Common) {
        if self.rest.is_some_and(|until| common.adapter.now() >= until) {
            self.rest = None;
            while let Some(packet) = self.again.pop_front() {
                self.post(common, packet);
            }
        }
    }

    /// A packet has ended.
    pub fn sent<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, packet: Packet, status: Status) {
        let peer = packet.peer;
        self.inflight = self.inflight.saturating_sub(1);
        match status {
            Status::Done => {
                common.adapter.give_slot(packet.slot);
                self.took();
                self.arrived(common, host, peer, packet.mark);
            }
            Status::NotReady if self.dead.is_none() => {
                self.again.push_back(packet);
                self.rest(common, peer);
            }
            Status::NotReady => common.adapter.give_slot(packet.slot),
            _ => {
                common.adapter.give_slot(packet.slot);
                tracing::debug!(target: "ofi::efa::ep_data", ?status, to = ?self.address, "a packet did not arrive");
                self.lost();
            }
        }
        if self.dead.is_some() {
            // If that was the greeting, the peer's next packet is answered by another one.
            self.greeted &= status == Status::Done || self.features.is_some();
            if status != Status::NotReady && self.dismissals < DISMISSALS {
                self.dismissals = 0; // it was told, or is not there
            }
            self.say_bye(common, peer);
        }
        if self.ending.is_some() || !self.queue.is_empty() || !self.streams.is_empty() {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Sends nothing for a while: the peer has no receives.
    pub fn rest(&mut self, common: &mut Common, peer: Peer) {
        common.counts.not_ready += 1;
        if self.rest.is_none() {
            self.rest = Some(common.adapter.now() + self.pause);
            self.pause = (self.pause * 2).min(REST.1);
            common.resting.push(peer);
        }
    }

    /// The peer has receives: the next rest is a short one.
    pub fn took(&mut self) {
        self.pause = REST.0;
    }

    /// The device says that the peer is not there.
    pub fn lost(&mut self) {
        let lost = if self.features.is_some() { Errno::ECONNRESET } else { Errno::ECONNREFUSED };
        self.ending.get_or_insert(lost);
    }

    /// Whether requests can be posted.
    pub fn may_flush(&self) -> bool {
        self.rest.is_none() && self.ending.is_none() && self.dead.is_none()
    }

    fn arrived<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, mark: Mark) {
        match mark {
            Mark::Nothing => {}
            Mark::Detached => self.detached = self.detached.saturating_sub(1),
            Mark::Op(id) => {
                if let Some(op) = host.op(peer, id) {
                    op.unacked = op.unacked.saturating_sub(1);
                }
                self.settle(common, host, peer, id);
            }
        }
    }

    /// Ends an operation if nothing of it is left to do.
    pub fn settle<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, id: SlotId) {
        if let Some(op) = host.op(peer, id)
            && op.unacked == 0
            && !op.making
            && !op.awaits
        {
            self.finish(common, host, peer, id, Ok(()));
        }
    }

    /// An operation of this end has ended.
    pub fn finish<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if let Some(op) = host.finish(peer, id, result) {
            if let Work::Lent(lent) = &op.work {
                self.runts = self.runts.saturating_sub(lent.runt);
            }
            common.ids.remove(op.id);
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }

    /// An operation is gone with its context.
    pub fn abandoned(&mut self, common: &mut Common, id: SlotId, op: Op) {
        match op.work {
            // The end of its requests says that it is over.
            Work::Native(_) => return,
            Work::Alone(alone) => {
                common.orphans.insert(id, alone);
                return;
            }
            Work::Lent(lent) => self.runts = self.runts.saturating_sub(lent.runt),
            Work::Packed | Work::Out { .. } | Work::In { .. } => {}
        }
        common.ids.remove(op.id);
        self.outstanding = self.outstanding.saturating_sub(1);
    }

    /// Opens an operation with a number for the peer.
    pub fn open<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        ticket: ofi_core::transport::Ticket,
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

    /// An operation was posted: if the peer is lost already, the next poll ends it.
    pub fn posted(&mut self, common: &mut Common, peer: Peer) {
        if self.dead.is_some() {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Whether an endpoint that closes waits for this lane.
    pub fn is_awaited(&self) -> bool {
        let owes = self.detached > 0 || self.inflight > 0 || !self.queue.is_empty() || !self.again.is_empty();
        self.dead.is_none() && self.ending.is_none() && owes
    }

    /// Posts waiting packets alone: this end is closing.
    pub fn flush_frames(&mut self, common: &mut Common, peer: Peer) {
        self.rise(common);
        while self.is_free()
            && let Some(frame) = self.queue.pop_front()
        {
            let Some(slot) = common.adapter.take_slot() else { return self.queue.push_front(frame) };
            let len = frame.bytes.len();
            put(common.adapter.outgoing(slot), &frame.bytes);
            self.post(common, Packet { peer, slot, len, data: None, mark: frame.mark, bare: false });
        }
    }

    /// Tells a peer of this library that this end closes: everything else has arrived.
    pub fn part(&mut self, common: &mut Common, peer: Peer) {
        if self.is_own() == Some(true) && self.dead.is_none() && self.ending.is_none() {
            let bye = Header::of_bye(common.adapter.address.connid);
            self.packet(common, peer, &bye, 0, Mark::Nothing, |_| {});
        }
    }

    /// Tells a peer that was given up, and does not know it, that this is so: what it waits for does not come.
    pub fn dismiss(&mut self, common: &mut Common, peer: Peer, packet: &wire::Packet<'_>) {
        match packet {
            wire::Packet::Bye => return,
            wire::Packet::Handshake(shake) => _ = self.learn(common, shake),
            _ => {}
        }
        if self.dead.is_none() {
            return;
        }
        match self.is_own() {
            Some(true) => {
                self.dismissals = DISMISSALS;
                self.say_bye(common, peer);
            }
            None if !self.greeted => self.introduce(common, peer),
            _ => {}
        }
    }

    /// Tells a peer that was given up that this is so, once what was sent before has ended.
    fn say_bye(&mut self, common: &mut Common, peer: Peer) {
        if self.dismissals > 0 && self.inflight == 0 {
            self.dismissals -= 1;
            let bye = Header::of_bye(common.adapter.address.connid);
            self.last_word(common, peer, &bye);
        }
    }

    /// Greets a peer that was given up before either knew whose the other is: its answer says whether it can be told
    /// so.
    fn introduce(&mut self, common: &mut Common, peer: Peer) {
        let greeting = greeting(common);
        self.greeted = self.last_word(common, peer, &greeting);
    }

    /// Posts a packet past all that waits, if there is a slot: nothing follows on its end. Whether it was posted.
    fn last_word(&mut self, common: &mut Common, peer: Peer, header: &Header) -> bool {
        let Some(slot) = common.adapter.take_slot() else { return false };
        put(common.adapter.outgoing(slot), header.bytes());
        self.post(
            common,
            Packet { peer, slot, len: header.bytes().len(), data: None, mark: Mark::Nothing, bare: false },
        );
        true
    }

    /// Takes the end of a packet when nobody wants to know of it any more.
    pub fn sent_last(&mut self, common: &mut Common, packet: Packet, status: Status) {
        self.inflight = self.inflight.saturating_sub(1);
        if status == Status::NotReady {
            self.again.push_back(packet);
            self.rest = Some(common.adapter.now() + REST.0);
            return;
        }
        common.adapter.give_slot(packet.slot);
        if packet.mark == Mark::Detached {
            self.detached = self.detached.saturating_sub(1);
        }
        if status != Status::Done {
            self.ending.get_or_insert(Errno::ECONNRESET);
        }
    }

    /// The peer is lost: nothing of it is left here.
    pub fn lose<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, errno: Errno) {
        let inflight = self.inflight;
        let old = std::mem::replace(self, Self::new(self.address, self.to.handle));
        (self.dead, self.features, self.greeted) = (Some(errno), old.features, old.greeted);
        (self.native, self.bare) = (old.native, old.bare);
        self.dismissals = old.dismissals;
        // Their slots come back with their completions.
        (self.inflight, self.is_dirty, self.is_stalled) = (inflight, old.is_dirty, old.is_stalled);
        self.is_met = old.is_met;
        for packet in old.again {
            common.adapter.give_slot(packet.slot);
        }
        for entry in common.ids.take(|entry| entry.peer() == peer) {
            if let Entry::Incoming(incoming) = entry
                && let Some(into) = incoming.receive()
            {
                host.received(into, Err(errno));
            }
        }
        host.fail_peer(peer, errno);
        if old.dead.is_none() && old.greeted && self.features.is_none() {
            self.introduce(common, peer);
        }
    }
}

/// What this end can do, as a peer is told.
fn greeting(common: &Common) -> Header {
    Handshake { features: common.features(), ..Handshake::default() }.encode(common.adapter.address.connid)
}

/// Copies to a slot, which has room for a packet.
fn put(to: *mut u8, bytes: &[u8]) {
    // SAFETY: every slot and frame has room for what is put there.
    unsafe { ofi_core::copy::bytes(bytes.as_ptr(), to, bytes.len()) };
}
