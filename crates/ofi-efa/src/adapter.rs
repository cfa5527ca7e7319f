//! An endpoint's part of its device: a queue pair, and the memory of outgoing and incoming packets.

use std::collections::VecDeque;
use std::time::Instant;

use ibv::transfer::Step;
use ofi_api::{Errno, Error, Result};
use ofi_core::budget::Places;
use ofi_core::log::Limit;
use ofi_core::pages::Pages;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::PeerId;

use crate::domain::Domain;
use crate::settings;
use crate::srd::{
    Access, Action, Completion, From, QueuePair, Region, Segment, Sizes, Status, To, WorkRequest,
};
use crate::wire::RawAddress;

/// Marks the ids of receive requests. Other requests carry a [`SlotId`].
const RECEIVE: u64 = 1 << 63;
/// Marks requests that are whole operations, whose ids contain the operation's number. No table of operations is that
/// large.
const ALONE: u64 = 1 << 31;
/// Maximum number of requests in flight other than packets: accesses to peers' memory, and messages of fabric
/// `efa-direct` sent from the application's memory. Packets have a limit of their own.
const REQUESTS: usize = 256;
/// Maximum number of requests per doorbell.
const BATCH: usize = 16;

/// What the arrival of a packet completes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Nothing,
    /// A part of an operation.
    Op(SlotId),
    /// A message that was reported as sent.
    Detached,
    /// The packet under this number that failed before, with a mark of its own.
    Repeat(u32),
}

/// A packet in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub peer: PeerId,
    pub slot: u32,
    pub len: usize,
    /// Immediate data, in a packet without a header.
    pub data: Option<u32>,
    pub mark: Mark,
    /// The packet goes to the peer's queue pair for messages without headers ([`crate::peer::Peer::bare`]).
    pub bare: bool,
    /// The packet is of an earlier life of the peer, or an earlier count of its messages: its loss affects no later
    /// one.
    pub is_former: bool,
    /// The place of the packet among all that were posted, from 1, once it is.
    pub number: u64,
}

impl Packet {
    /// A packet with a header.
    #[inline(always)]
    pub fn new(peer: PeerId, slot: u32, len: usize, mark: Mark) -> Self {
        Self { peer, slot, len, data: None, mark, bare: false, is_former: false, number: 0 }
    }
}

/// A request to read or write a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct RdmaRequest {
    pub peer: PeerId,
    /// The transfer that the request is a part of.
    pub transfer: SlotId,
    pub step: Step,
    /// Immediate data for the peer.
    pub data: Option<u32>,
}

/// A posted packet or request.
enum Posted {
    Packet(Packet),
    RdmaRequest(RdmaRequest),
}

/// Registered slots of one packet each.
struct Slab {
    _region: Box<dyn Region>,
    lkey: u32,
    pages: Pages,
    size: usize,
}

impl Slab {
    fn new(domain: &Domain, slots: usize, size: usize) -> Result<Self> {
        let pages = Pages::new(slots * size, false)?;
        pages.keep_from_children();
        // SAFETY: the pages are freed after the registration, and only raw pointers lead to them.
        let register = || unsafe { domain.device.register(pages.base(), slots * size, Access::Local) };
        let region = domain.with_room(register)?;
        Ok(Self { lkey: region.lkey(), _region: region, pages, size })
    }

    fn at(&self, slot: u32) -> *mut u8 {
        self.pages.base().wrapping_add(slot as usize * self.size)
    }

    fn content(&self, packet: &Packet) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.at(packet.slot), packet.len)
    }

    fn segment(&self, slot: u32, len: usize) -> Segment {
        Segment { addr: self.at(slot), len, lkey: self.lkey }
    }
}

/// A completion, as the endpoint sees it.
pub enum DeviceCompletion {
    /// A packet of `len` bytes has arrived in this slot.
    Received { slot: u32, len: usize, data: Option<u32>, from: From },
    /// A packet of this end has ended.
    Sent { packet: Packet, status: Status },
    /// An access of this end to a peer's memory has ended.
    Accessed { request: RdmaRequest, status: Status },
    /// The only request of an operation has ended.
    SingleWr { id: SlotId, status: Status },
    /// A peer has written here, with data. `slot` is the slot of the receive that the write consumed.
    Written { slot: Option<u32>, len: usize, data: u32, from: From },
    /// The completion matches no request.
    Nothing,
}

/// An endpoint's queue pair and packet memory. The queue pair is dropped before the memory that it uses.
pub struct Adapter {
    qp: Box<dyn QueuePair>,
    posted: Slots<Posted>,
    /// Send requests that are not posted to the device yet.
    untold: Vec<WorkRequest>,
    /// Receive requests that are not posted to the device yet.
    returned: Vec<(u64, Segment)>,
    /// Free queue entries for requests other than packets (`REQUESTS`).
    room: usize,
    /// Most bytes that a request can carry inline.
    inline: usize,
    /// Whether the device is lost.
    lost: bool,
    /// Number of doorbells for send requests.
    pub doorbells: u64,
    /// Number of packets that were posted.
    pub packets: u64,
    pub address: RawAddress,
    /// Longest packet in bytes.
    pub mtu: usize,
    ready: VecDeque<Completion>,
    free: Vec<u32>,
    /// Number of slots for outgoing packets.
    slots: usize,
    sending: Slab,
    receiving: Slab,
}

impl Adapter {
    /// Opens the queue pair, whose sends carry at most `inline` bytes inline, and posts receives. Writes with data
    /// consume none if they are `unsolicited`. See [`Device::open`] for `rnr_retry`.
    pub fn new(domain: &Domain, inline: usize, unsolicited: bool, rnr_retry: Option<u8>) -> Result<Self> {
        let device = &*domain.device;
        let limits = device.limits();
        let inline = inline.min(limits.inline_long);
        let receives = settings::RX_SIZE.get().min(limits.receives);
        let (sends, room) = shares(limits.sends_of(inline), settings::TX_SIZE.get());
        let sending = Slab::new(domain, sends, limits.mtu)?;
        let receiving = Slab::new(domain, receives, limits.mtu)?;
        let qp = device.open(Sizes { sends: sends + room, receives, inline, unsolicited }, rnr_retry)?;
        let address = RawAddress { gid: device.gid(), qpn: qp.qpn(), connid: qp.qkey() };
        tracing::info!(
            target: "ofi::efa::ep_ctrl",
            device = device.name(), address = %crate::address::named(&address),
            sends, receives, inline, mtu = limits.mtu,
            "opened a queue pair"
        );
        let mut adapter = Self {
            qp,
            posted: Slots::default(),
            untold: Vec::with_capacity(BATCH),
            returned: Vec::with_capacity(BATCH),
            room,
            inline,
            lost: false,
            doorbells: 0,
            packets: 0,
            address,
            mtu: limits.mtu,
            ready: VecDeque::new(),
            free: (0..sends as u32).collect(),
            slots: sends,
            sending,
            receiving,
        };
        for slot in 0..receives as u32 {
            adapter.receive(slot);
        }
        adapter.tell();
        Ok(adapter)
    }

    /// Attaches the peer's device, and returns its number.
    pub fn attach(&mut self, address: &RawAddress) -> Result<u16> {
        self.qp.attach(&address.gid)
    }

    /// Queues a receive into a slot. The next [`Adapter::tell`] posts it to the device.
    pub fn receive(&mut self, slot: u32) {
        self.returned.push((RECEIVE | u64::from(slot), self.receiving.segment(slot, self.mtu)));
        if self.returned.len() == BATCH {
            self.return_slots();
        }
    }

    fn return_slots(&mut self) {
        // SAFETY: the slots' packets have been taken, so that the device owns the slots again; the slab is dropped
        // after the queue pair.
        if let Err(error) = unsafe { self.qp.receive(&self.returned) } {
            tracing::warn!(target: "ofi::efa::ep_data", %error, "receives are lost");
        }
        self.returned.clear();
    }

    /// Queues a request. A full batch, or the next [`Adapter::tell`], posts the queued requests to the device.
    ///
    /// # Safety
    /// As [`QueuePair::post`].
    #[inline(always)]
    unsafe fn post(&mut self, request: WorkRequest) {
        self.untold.push(request);
        if self.untold.len() == BATCH {
            self.tell_requests();
        }
    }

    fn tell_requests(&mut self) {
        self.doorbells += 1;
        // SAFETY: the callers of `post` promised it.
        if let Err(error) = unsafe { self.qp.post(&self.untold) } {
            refused(&mut self.ready, &self.untold, &error);
        }
        self.untold.clear();
    }

    /// Posts all queued requests to the device.
    #[inline]
    pub fn tell(&mut self) {
        if !self.untold.is_empty() {
            self.tell_requests();
        }
        if !self.returned.is_empty() {
            self.return_slots();
        }
    }

    /// Takes a slot for an outgoing packet to a peer that has `own` of them. `None`: none is free, or the peer has its
    /// share of them. The packets to a peer whose device has no receives, or does not answer, keep theirs.
    #[inline(always)]
    pub fn take_slot(&mut self, own: usize) -> Option<u32> {
        if Places::has_one(self.free.len(), own) { self.free.pop() } else { None }
    }

    /// Gives back a slot that is no longer in use.
    pub fn give_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Logs which resource of a request is used up, and returns the error of its post.
    #[cold]
    pub fn full(&self) -> ofi_api::Error {
        if self.lost {
            return Error::with(Errno::ENODEV, "the device is lost");
        }
        self.log_full();
        ofi_api::Error::AGAIN
    }

    /// As [`Adapter::full`], for packets that are queued instead.
    #[cold]
    pub fn log_full(&self) {
        static LIMIT: Limit = Limit::new();
        if tracing::enabled!(target: "ofi::efa::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::efa::ep_data",
                address = %crate::address::named(&self.address), packets = self.slots,
                room_for_packets = self.free.len(), room_for_accesses = self.room, more,
                "the endpoint's queue of requests is full (FI_EFA_TX_SIZE), or a peer has its share of it: packets wait, and accesses get FI_EAGAIN"
            );
        }
    }

    /// The memory of a slot for an outgoing packet.
    pub fn outgoing(&self, slot: u32) -> *mut u8 {
        self.sending.at(slot)
    }

    /// The bytes of an outgoing packet that is in its slot.
    pub fn content(&self, packet: &Packet) -> *const [u8] {
        self.sending.content(packet)
    }

    /// Posts the packet in a slot.
    pub fn send(&mut self, to: To, mut packet: Packet) {
        self.packets += 1;
        packet.number = self.packets;
        let id = self.posted.insert(Posted::Packet(packet)).to_wire();
        let from = self.sending.segment(packet.slot, packet.len);
        let action = Action::Send { from, inline: packet.len <= self.inline, data: packet.data };
        // SAFETY: the device owns the slot until the send has ended.
        unsafe { self.post(WorkRequest { id, to, action }) };
    }

    /// Makes the peer's packets in flight former ones ([`Packet::is_former`]) that complete nothing: its operations
    /// have ended.
    #[cold]
    pub fn retire_all(&mut self, peer: PeerId) {
        self.change(peer, |packet, _| (packet.is_former, packet.mark) = (true, Mark::Nothing));
    }

    /// Makes those of the peer's packets in flight former ones whose bytes satisfy `which`.
    #[cold]
    pub fn retire(&mut self, peer: PeerId, which: impl Fn(&[u8]) -> bool) {
        // The packet that is sent again is awaited under its number.
        self.change(peer, |packet, bytes| {
            packet.is_former |= !matches!(packet.mark, Mark::Repeat(_)) && which(bytes);
        });
    }

    fn change(&mut self, peer: PeerId, change: impl Fn(&mut Packet, &[u8])) {
        let is_its = |posted: &Posted| matches!(posted, Posted::Packet(packet) if packet.peer == peer);
        for id in self.posted.ids(is_its) {
            if let Some(Posted::Packet(packet)) = self.posted.get_mut(id) {
                let bytes = self.sending.content(packet);
                // SAFETY: the slot has the packet, which nothing writes to while it is posted.
                change(packet, unsafe { &*bytes });
            }
        }
    }

    /// The memory of a slot, for a short operation.
    pub fn lend(&self, slot: u32, len: usize) -> Segment {
        self.sending.segment(slot, len)
    }

    /// Whether there is room for another access to a peer's memory, or for a message that is one request. The peer has
    /// `own` of these requests in flight.
    #[inline(always)]
    pub fn has_room(&self, own: usize) -> bool {
        Places::has_one(self.room, own)
    }

    /// Posts an access.
    ///
    /// # Safety
    /// The memory is registered, and lent until the request has ended.
    pub unsafe fn access(&mut self, to: To, request: RdmaRequest) {
        let id = self.posted.insert(Posted::RdmaRequest(request)).to_wire();
        let Step { write, local, remote: at } = request.step;
        let local = Segment { addr: local.addr, len: local.len as usize, lkey: local.lkey };
        let action = match write {
            true => Action::Write { from: local, at, data: request.data },
            false => Action::Read { into: local, at },
        };
        self.room -= 1;
        // SAFETY: the caller's promise.
        unsafe { self.post(WorkRequest { id, to, action }) };
    }

    /// Posts the only request of an operation. The caller must have checked for room.
    ///
    /// # Safety
    /// As [`Adapter::access`].
    #[inline(always)]
    pub unsafe fn alone(&mut self, to: To, op: SlotId, action: Action) {
        self.room -= 1;
        // SAFETY: the caller's promise.
        unsafe { self.post(WorkRequest { id: op.to_wire() | ALONE, to, action }) };
    }

    /// As [`Adapter::alone`], but posts the request to the device at once.
    ///
    /// # Safety
    /// As [`Adapter::access`].
    #[inline(always)]
    pub unsafe fn alone_now(&mut self, to: To, op: SlotId, action: Action) {
        if !self.untold.is_empty() || !self.returned.is_empty() {
            // SAFETY: the caller's promise.
            unsafe { self.alone(to, op, action) };
            return self.tell();
        }
        self.room -= 1;
        self.doorbells += 1;
        let request = [WorkRequest { id: op.to_wire() | ALONE, to, action }];
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { self.qp.post(&request) } {
            refused(&mut self.ready, &request, &error);
        }
    }

    /// Most bytes that a request can carry inline.
    pub fn inline(&self) -> usize {
        self.inline
    }

    /// Makes the device return all requests in flight. Afterwards this end neither sends nor receives.
    pub fn stop(&mut self) {
        self.tell();
        self.qp.stop();
    }

    /// The next completion of a request that [`Adapter::has_room`] counts, ahead of all other completions.
    pub fn next_accessed(&mut self) -> Option<DeviceCompletion> {
        let is_request = |completion: &Completion| match completion {
            Completion::Sent { id, .. } => {
                let posted = self.posted.get(SlotId::from_wire(*id));
                id & ALONE != 0 || matches!(posted, Some(Posted::RdmaRequest(_)))
            }
            _ => false,
        };
        let at = self.ready.iter().position(is_request)?;
        let completion = self.ready.remove(at)?;
        Some(self.ended(completion))
    }

    /// A packet that has arrived. The device no longer writes to it.
    pub fn packet(&self, slot: u32, len: usize) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.receiving.at(slot), len.min(self.mtu))
    }

    /// Reads completions from the device, and returns how many are queued. Requests that the device refuses complete
    /// too.
    pub fn refill(&mut self) -> usize {
        self.tell();
        if let Err(error) = self.qp.poll(&mut self.ready)
            && !std::mem::replace(&mut self.lost, true)
        {
            tracing::error!(target: "ofi::efa::cq", %error, "the device's completions cannot be read");
        }
        self.ready.len()
    }

    /// Whether the device is lost. Reads its events.
    pub fn is_lost(&mut self) -> bool {
        self.lost |= self.qp.is_lost();
        self.lost
    }

    /// The descriptors that become readable when [`Adapter::is_lost`] may have changed.
    pub fn event_fds(&self) -> Vec<std::os::fd::RawFd> {
        self.qp.event_fds()
    }

    /// Whether completions are queued.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next completion.
    pub fn next(&mut self) -> Option<DeviceCompletion> {
        let completion = self.ready.pop_front()?;
        Some(self.ended(completion))
    }

    fn ended(&mut self, completion: Completion) -> DeviceCompletion {
        match completion {
            Completion::Received { id, len, data, from } => {
                DeviceCompletion::Received { slot: (id & !RECEIVE) as u32, len, data, from }
            }
            Completion::Sent { id, status } if id & ALONE != 0 => {
                self.room += 1;
                DeviceCompletion::SingleWr { id: SlotId::from_wire(id & !ALONE), status }
            }
            Completion::Sent { id, status } => match self.posted.remove(SlotId::from_wire(id)) {
                Some(Posted::Packet(packet)) => DeviceCompletion::Sent { packet, status },
                Some(Posted::RdmaRequest(request)) => {
                    self.room += 1;
                    DeviceCompletion::Accessed { request, status }
                }
                None => DeviceCompletion::Nothing,
            },
            Completion::Written { id, len, data, from } => {
                DeviceCompletion::Written { slot: id.map(|id| (id & !RECEIVE) as u32), len, data, from }
            }
            Completion::Returned { .. } => DeviceCompletion::Nothing,
        }
    }

    /// The time on the device's clock.
    pub fn now(&self) -> Instant {
        self.qp.now()
    }

    /// Number of slots in use by outgoing packets.
    pub fn taken(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Asks the device for a wake-up at the next completion.
    pub fn arm(&mut self) -> Result<()> {
        self.tell();
        if self.qp.fd().is_some() { self.qp.arm() } else { Ok(()) }
    }

    /// Consumes the notification of earlier completions.
    pub fn quiet(&mut self) {
        self.qp.quiet();
    }

    /// The descriptor that becomes readable on a wake-up, if the device has notifications.
    pub fn fd(&self) -> Option<std::os::fd::RawFd> {
        self.qp.fd()
    }
}

/// Divides a queue of `most` requests between packets and other requests. Each gets some, however many packets are
/// wanted.
fn shares(most: usize, packets: usize) -> (usize, usize) {
    let packets = packets.min(most - REQUESTS.min(most / 2));
    (packets, (most - packets).min(REQUESTS))
}

/// Handles a failed post: each request completes as if the device had refused it.
#[cold]
fn refused(ready: &mut VecDeque<Completion>, requests: &[WorkRequest], error: &Error) {
    tracing::warn!(target: "ofi::efa::ep_data", %error, "requests cannot be posted");
    let status = Status::Refused(error.errno());
    ready.extend(requests.iter().map(|request| Completion::Sent { id: request.id, status }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_and_other_requests_share_a_queue() {
        assert_eq!(shares(4096, 256), (256, REQUESTS));
        assert_eq!(shares(512, 256), (256, 256));
        assert_eq!(shares(256, 256), (128, 128), "a short queue");
        assert_eq!(shares(4096, 32_768), (4096 - REQUESTS, REQUESTS), "more packets than there is room for");
    }
}
