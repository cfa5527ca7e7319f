//! What an endpoint has of its device: a queue pair, and the memory of packets on their way out and in.

use std::collections::VecDeque;
use std::time::Instant;

use ibv::transfer::Step;
use ofi_api::{Errno, Result};
use ofi_core::pages::Pages;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::Peer;

use crate::settings;
use crate::srd::{Access, Completion, Device, From, QueuePair, Region, Segment, Status, To};
use crate::wire::RawAddress;

/// Marks requests for receives; others go by [`SlotId`].
const RECEIVE: u64 = 1 << 63;
/// Requests for peers' memory under way at a time, over which packets keep their room.
const REQUESTS: usize = 256;

/// What ends with a packet's arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Nothing.
    Nothing,
    /// A part of an operation.
    Op(SlotId),
    /// A message that was reported as sent.
    Detached,
}

/// A packet in a slot.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub peer: Peer,
    pub slot: u32,
    pub len: usize,
    /// What the peer is told besides: of a packet that has no header.
    pub data: Option<u32>,
    pub mark: Mark,
}

/// A request to read or write a peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    pub peer: Peer,
    /// What it is a part of.
    pub transfer: SlotId,
    pub step: Step,
    /// What the peer is told with it.
    pub data: Option<u32>,
}

/// What is under way.
#[derive(Clone, Copy, Debug)]
enum Posted {
    Packet(Packet),
    Request(Request),
}

/// Registered slots of one packet each.
struct Slab {
    region: Box<dyn Region>,
    pages: Pages,
    size: usize,
}

impl Slab {
    fn new(device: &dyn Device, slots: usize, size: usize) -> Result<Self> {
        let pages = Pages::new(slots * size, false)?;
        // SAFETY: the pages go after the registration, and only raw pointers lead to them.
        let region = unsafe { device.register(pages.base(), slots * size, Access::Local)? };
        Ok(Self { region, pages, size })
    }

    fn at(&self, slot: u32) -> *mut u8 {
        self.pages.base().wrapping_add(slot as usize * self.size)
    }

    fn segment(&self, slot: u32, len: usize) -> Segment {
        Segment { addr: self.at(slot), len, lkey: self.region.lkey() }
    }
}

/// What came out of the completion queue.
pub enum Ended {
    /// A packet is in this slot, of so many bytes.
    Received { slot: u32, len: usize, data: Option<u32>, from: From },
    /// A packet of this end has ended.
    Sent { packet: Packet, status: Status },
    /// A request of this end for a peer's memory has.
    Accessed { request: Request, status: Status },
    /// A peer has written here, with data; the slot of the receive that this took.
    Written { slot: Option<u32>, len: usize, data: u32, from: From },
    /// Nothing that is known.
    Nothing,
}

/// See the module. The queue pair goes before the memory that it uses.
pub struct Adapter {
    qp: Box<dyn QueuePair>,
    posted: Slots<Posted>,
    /// Requests for peers' memory that have room.
    room: usize,
    pub address: RawAddress,
    /// Bytes of the longest packet.
    pub mtu: usize,
    ready: VecDeque<Completion>,
    free: Vec<u32>,
    /// Slots for packets on their way out.
    slots: usize,
    sending: Slab,
    receiving: Slab,
}

impl Adapter {
    /// Opens it, with receives posted.
    pub fn new(device: &dyn Device) -> Result<Self> {
        let limits = device.limits();
        let receives = settings::RX_SIZE.get().min(limits.receives);
        let sends = settings::TX_SIZE.get().min(limits.sends);
        let sending = Slab::new(device, sends, limits.mtu)?;
        let receiving = Slab::new(device, receives, limits.mtu)?;
        let room = limits.sends.saturating_sub(sends).min(REQUESTS);
        let qp = device.open(sends + room, receives)?;
        let address = RawAddress { gid: device.gid(), qpn: qp.qpn(), connid: qp.qkey() };
        let mut adapter = Self {
            qp,
            posted: Slots::default(),
            room,
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
        Ok(adapter)
    }

    /// The number of a peer's device.
    pub fn attach(&mut self, address: &RawAddress) -> Result<u16> {
        self.qp.attach(&address.gid)
    }

    /// Has a slot receive.
    pub fn receive(&mut self, slot: u32) {
        let segment = self.receiving.segment(slot, self.mtu);
        // SAFETY: the slot's packet has been taken, so that it is the device's again; the slab goes after the queue pair.
        if let Err(error) = unsafe { self.qp.receive(RECEIVE | u64::from(slot), segment) } {
            tracing::warn!(target: "ofi::efa::ep_data", %error, "a receive is lost");
        }
    }

    /// A slot for a packet on its way out.
    pub fn take_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Nothing uses it any more.
    pub fn give_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The memory of a slot for a packet on its way out.
    pub fn outgoing(&self, slot: u32) -> *mut u8 {
        self.sending.at(slot)
    }

    /// Posts the packet in a slot.
    ///
    /// # Errors
    /// What the device answers; the slot stays the caller's.
    pub fn send(&mut self, to: To, packet: Packet) -> Result<(), Errno> {
        let id = self.posted.insert(Posted::Packet(packet));
        let segment = self.sending.segment(packet.slot, packet.len);
        // SAFETY: the slot is the device's until the send has ended.
        unsafe { self.qp.send(id.to_wire(), to, segment, packet.data) }.map_err(|error| {
            self.posted.remove(id);
            tracing::warn!(target: "ofi::efa::ep_data", %error, "a send cannot be posted");
            error.errno()
        })
    }

    /// The memory of a slot for short accesses.
    pub fn lend(&self, slot: u32, len: usize) -> Segment {
        self.sending.segment(slot, len)
    }

    /// Whether a request for a peer's memory has room.
    pub fn has_room(&self) -> bool {
        self.room > 0
    }

    /// Posts one.
    ///
    /// # Errors
    /// What the device answers.
    ///
    /// # Safety
    /// Its memory is registered, and lent until the request has ended.
    pub unsafe fn access(&mut self, to: To, request: Request) -> Result<(), Errno> {
        let id = self.posted.insert(Posted::Request(request));
        let Step { write, local, remote } = request.step;
        let local = Segment { addr: local.addr, len: local.len as usize, lkey: local.lkey };
        let posted = if write {
            // SAFETY: the caller's promise.
            unsafe { self.qp.write(id.to_wire(), to, local, remote, request.data) }
        } else {
            // SAFETY: as above.
            unsafe { self.qp.read(id.to_wire(), to, local, remote) }
        };
        if let Err(error) = posted {
            self.posted.remove(id);
            tracing::warn!(target: "ofi::efa::ep_data", %error, "an access cannot be posted");
            return Err(error.errno());
        }
        self.room -= 1;
        Ok(())
    }

    /// Has everything that is under way come back. Nothing more is sent or received.
    pub fn stop(&mut self) {
        self.qp.stop();
    }

    /// The next request for a peer's memory that has ended, in front of everything else.
    pub fn next_accessed(&mut self) -> Option<(Request, Status)> {
        let is_request = |completion: &Completion| match completion {
            Completion::Sent { id, .. } => {
                matches!(self.posted.get(SlotId::from_wire(*id)), Some(Posted::Request(_)))
            }
            _ => false,
        };
        let at = self.ready.iter().position(is_request)?;
        let Some(Completion::Sent { id, status }) = self.ready.remove(at) else { return None };
        let Some(Posted::Request(request)) = self.posted.remove(SlotId::from_wire(id)) else { return None };
        self.room += 1;
        Some((request, status))
    }

    /// A packet that has come, of which the device writes no more.
    pub fn packet(&self, slot: u32, len: usize) -> *const [u8] {
        std::ptr::slice_from_raw_parts(self.receiving.at(slot), len.min(self.mtu))
    }

    /// Takes completions off the device.
    pub fn refill(&mut self) -> usize {
        self.qp.poll(&mut self.ready).unwrap_or_else(|error| {
            tracing::error!(target: "ofi::efa::cq", %error, "the device is lost");
            0
        })
    }

    /// Whether completions wait.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next completion.
    pub fn next(&mut self) -> Option<Ended> {
        Some(match self.ready.pop_front()? {
            Completion::Received { id, len, data, from } => {
                Ended::Received { slot: (id & !RECEIVE) as u32, len, data, from }
            }
            Completion::Sent { id, status } => match self.posted.remove(SlotId::from_wire(id)) {
                Some(Posted::Packet(packet)) => Ended::Sent { packet, status },
                Some(Posted::Request(request)) => {
                    self.room += 1;
                    Ended::Accessed { request, status }
                }
                None => Ended::Nothing,
            },
            Completion::Written { id, len, data, from } => {
                Ended::Written { slot: id.map(|id| (id & !RECEIVE) as u32), len, data, from }
            }
            Completion::Returned { .. } => Ended::Nothing,
        })
    }

    /// The time, as the device has it.
    pub fn now(&self) -> Instant {
        self.qp.now()
    }

    /// Packets on their way out that have a slot.
    pub fn taken(&self) -> usize {
        self.slots - self.free.len()
    }

    /// Asks for a wake-up.
    pub fn arm(&mut self) -> Result<()> {
        self.qp.arm()
    }

    /// What becomes readable then.
    pub fn fd(&self) -> std::os::fd::RawFd {
        self.qp.fd()
    }
}
