//! The device side of an endpoint: queues, and the memory of outgoing and incoming records.

use std::net::SocketAddr;

use ibv::transfer::Source;
use ofi_api::Result;
use ofi_core::pages::Pages;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::PeerId;

use crate::domain::Domain;
use crate::errors::failed;
use crate::events::Watch;
use crate::rc::{Access, DeviceLimits, Opcode, Queues, Region, Segment, Sizes, Status, WorkCompletion};
use crate::settings;
use crate::transfer::RequestMemory;
use crate::waiter::Waiter;
use crate::wire::SLOT;

/// Maximum number of outgoing records of all peers that occupy a slot.
const SEND_SLOTS: usize = 256;
/// Maximum number of remote reads in flight on all peers.
pub const READS: usize = 64;
/// Maximum number of requests in flight on one peer, if the device's queues hold as many.
const REQUESTS: usize = 96;
/// Maximum number of requests in flight on all peers, if the device's completion queues hold as many: each may need an
/// entry there.
const ALL_REQUESTS: usize = 4096;
/// Maximum bytes of an inline request, if the device allows it: enough for a record of 64 bytes with its header.
const INLINE: usize = 128;
/// Maximum number of receives that an endpoint posts on its own account as its peers become more.
const MAX_RECEIVES: usize = 4096;
/// Marks receives in request ids. Other ids are [`SlotId`]s, whose high half is a generation of any value, so the mark
/// is the highest bit of the index, which no table reaches.
pub const RECEIVE: u64 = 1 << 31;

/// Registered slots.
pub struct Slab {
    region: Box<dyn Region>,
    pages: Pages,
    size: usize,
}

impl Slab {
    /// Registers `slots` slots of `size` bytes.
    pub fn new(domain: &Domain, slots: usize, size: usize) -> Result<Self> {
        let pages = Pages::new(slots * size, false)?;
        pages.keep_from_children();
        // SAFETY: the pages are freed after the registration, and only raw pointers lead to them.
        let register = || unsafe { domain.device.register(pages.base(), slots * size, Access::Local) };
        let region = domain.cache.with_room(register);
        Ok(Self { region: region.map_err(|error| failed(&error))?, pages, size })
    }

    /// Length of a slot in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The memory of a slot.
    pub fn at(&self, slot: u32) -> *mut u8 {
        self.pages.base().wrapping_add(slot as usize * self.size)
    }

    /// The memory of a slot, as a segment of a request.
    pub fn segment(&self, slot: u32, len: usize) -> Segment {
        Segment { addr: self.at(slot), len: len as u32, lkey: self.region.lkey() }
    }
}

/// See [`Adapter::witness`].
struct Witness {
    region: Box<dyn Region>,
    pages: Pages,
}

impl Witness {
    /// Its length.
    const LEN: usize = 8;

    fn new(domain: &Domain) -> Result<Self> {
        let pages = Pages::new(Self::LEN, false)?;
        pages.keep_from_children();
        // SAFETY: the pages are freed after the registration, and no code ever writes to them.
        let register = || unsafe { domain.device.register(pages.base(), Self::LEN, Access::RemoteRead) };
        let region = domain.cache.with_room(register);
        Ok(Self { region: region.map_err(|error| failed(&error))?, pages })
    }
}

/// A request in flight.
pub enum Posted {
    /// A record, or a probe.
    Send {
        peer: PeerId,
        /// The record's slot, unless the record is inline.
        slot: Option<u32>,
        /// Its number among the requests of its peer.
        number: u64,
        /// Whether its success is not reported.
        quiet: bool,
        /// The operation that its completion ends.
        mark: Option<u64>,
        /// Further operations that its completion ends, if the record is a pack.
        marks: Vec<u64>,
    },
    /// A part of a transfer.
    Step { peer: PeerId, transfer: SlotId, number: u64, reads: bool, is_access: bool },
    /// A single access, and the memory that it uses.
    Single { peer: PeerId, op: SlotId, number: u64, reads: bool, held: RequestMemory },
}

impl Posted {
    /// Its number among the requests of its peer.
    pub fn number(&self) -> u64 {
        match self {
            Self::Send { number, .. } | Self::Step { number, .. } | Self::Single { number, .. } => *number,
        }
    }

    /// Its peer.
    pub fn peer(&self) -> PeerId {
        match self {
            Self::Send { peer, .. } | Self::Step { peer, .. } | Self::Single { peer, .. } => *peer,
        }
    }
}

/// A completion, as the endpoint sees it.
pub enum Ended {
    /// A record of `len` bytes has arrived in this slot.
    Received { slot: u32, qp: u32, len: usize },
    /// A receive of a closed connection came back unused.
    Returned { slot: u32 },
    /// Immediate data, which no endpoint sends, has consumed a receive. A write with such data does not write into the
    /// slot, which still holds an earlier record, perhaps another peer's.
    Unasked { slot: u32, qp: u32 },
    /// A request has ended.
    Request { id: SlotId, status: Status },
}

/// An endpoint's device queues and record memory. Connections are dropped before the adapter, because their
/// queue pairs use its memory.
pub struct Adapter {
    pub queues: Box<dyn Queues>,
    pub posted: Slots<Posted>,
    /// Maximum number of requests in flight on one peer.
    pub requests: usize,
    /// Number of connections above which idle ones are closed.
    pub connections: usize,
    /// Maximum number of signaled requests in flight, and separately of quiet ones, whose success is not reported.
    most: usize,
    /// Number of quiet requests in flight.
    silent: usize,
    pub address: SocketAddr,
    /// Number of remote reads in flight.
    pub reads: usize,
    pub waiter: Waiter,
    /// The device's events. Its descriptors are also those for events of connections.
    pub watch: Watch,
    /// A word that peers read after their writes: when the read ends, the writes are in memory.
    witness: Witness,
    /// Number of slots for incoming records: at first, now and at most.
    first: usize,
    receives: usize,
    capacity: usize,
    free: Vec<u32>,
    /// Number of slots that quiet requests use.
    quiet: usize,
    sending: Slab,
    receiving: Slab,
    /// Further slots for incoming records, each of as many as at first, but for the last one.
    more: Vec<Slab>,
}

impl Adapter {
    /// Opens the queues, and listens.
    pub fn new(domain: &Domain, wanted: SocketAddr) -> Result<Self> {
        let device = &*domain.device;
        let failed = |error: ibv::Error| failed(&error);
        let limits = device.limits().map_err(failed)?;
        let first = settings::RX_SLOTS.get();
        let sizes = sizes(limits, first.max(MAX_RECEIVES));
        let (capacity, first) = (sizes.receives, first.min(sizes.receives));
        let mut queues = device.open(sizes).map_err(failed)?;
        let address = queues.listen(wanted).map_err(failed)?;
        let watch = Watch::new(device, &[queues.event_fd()])?;
        let waiter = Waiter::new(&[&[queues.fd()], watch.fds()].concat())?;
        let (sending, receiving) =
            (Slab::new(domain, SEND_SLOTS + 1, SLOT)?, Slab::new(domain, first, SLOT)?);
        let free = (0..SEND_SLOTS as u32).collect();
        let adapter = Self {
            queues,
            posted: Slots::default(),
            requests: sizes.requests,
            connections: settings::MAX_CONNECTIONS.get().min(limits.connections),
            most: (sizes.completions - capacity) / 2,
            silent: 0,
            address,
            reads: 0,
            waiter,
            watch,
            witness: Witness::new(domain)?,
            first,
            receives: first,
            capacity,
            free,
            quiet: 0,
            sending,
            receiving,
            more: Vec::new(),
        };
        for slot in 0..first as u32 {
            adapter.receive(slot);
        }
        Ok(adapter)
    }

    /// Registers and posts receives until there are `wanted`, the credits of all peers, if there may be as many.
    /// Otherwise peers wait for each other's receives.
    #[cold]
    pub fn provide(&mut self, domain: &Domain, wanted: usize) {
        while self.receives < wanted.min(self.capacity) {
            let count = self.first.min(self.capacity - self.receives);
            let slab = match Slab::new(domain, count, SLOT) {
                Ok(slab) => slab,
                Err(error) => {
                    tracing::info!(
                        target: "ofi::verbs::ep_data", %error, receives = self.receives, wanted,
                        "no more receives can be registered: peers share those that there are"
                    );
                    self.capacity = self.receives;
                    return;
                }
            };
            self.more.push(slab);
            let slots = self.receives..self.receives + count;
            self.receives = slots.end;
            slots.for_each(|slot| self.receive(slot as u32));
        }
    }

    /// The slab of a slot for incoming records, and the slot's number there.
    #[inline]
    fn incoming(&self, slot: u32) -> (&Slab, u32) {
        if (slot as usize) < self.first { (&self.receiving, slot) } else { self.incoming_more(slot) }
    }

    #[cold]
    fn incoming_more(&self, slot: u32) -> (&Slab, u32) {
        let beyond = slot as usize - self.first;
        (&self.more[beyond / self.first], (beyond % self.first) as u32)
    }

    /// Posts a receive into a slot.
    pub fn receive(&self, slot: u32) {
        let (slab, at) = self.incoming(slot);
        // SAFETY: the slot's record has been taken, so that the device owns the slot again; the slab is dropped after
        // the queue.
        let posted = unsafe { self.queues.receive(RECEIVE | u64::from(slot), slab.segment(at, SLOT)) };
        if let Err(error) = posted {
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive is lost");
        }
    }

    /// Whether there is room for another request. Otherwise the completions of signaled requests will make room.
    pub fn has_room(&self) -> bool {
        self.posted.len() - self.silent < self.most
    }

    /// Takes a slot for an outgoing record.
    pub fn take_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Counts a record that is about to be posted.
    pub fn begin_send(&mut self, posted: Posted) -> SlotId {
        if let Posted::Send { slot, quiet: true, .. } = posted {
            self.silent += 1;
            self.quiet += usize::from(slot.is_some());
        }
        self.posted.insert(posted)
    }

    /// Uncounts a record whose request has ended, or was not posted.
    pub fn end_send(&mut self, slot: Option<u32>, quiet: bool) {
        self.silent -= usize::from(quiet);
        self.quiet -= usize::from(quiet && slot.is_some());
        self.free.extend(slot);
    }

    /// Whether one more record may be quiet. Idle peers keep the slots of their quiet requests.
    pub fn may_be_quiet(&self, inline: bool) -> bool {
        self.silent < self.most && (inline || self.quiet < SEND_SLOTS / 4)
    }

    /// Slots in use, except by quiet requests.
    pub fn slots(&self) -> usize {
        SEND_SLOTS - self.free.len() - self.quiet
    }

    /// Gives back a slot that is no longer in use.
    pub fn give_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The word that peers may read after their writes, with its key.
    pub fn witness(&self) -> Source {
        Source { addr: self.witness.pages.base() as u64, len: Witness::LEN, rkey: self.witness.region.rkey() }
    }

    /// Memory for data that is read and ignored: the end of the outgoing slots.
    pub fn scratch(&self, len: usize) -> Segment {
        self.sending.segment(SEND_SLOTS as u32, len)
    }

    /// The memory of a slot for an outgoing record.
    pub fn outgoing(&self, slot: u32) -> *mut u8 {
        self.sending.at(slot)
    }

    /// The memory of a slot for an outgoing record, as a segment of a request.
    pub fn segment(&self, slot: u32, len: usize) -> Segment {
        self.sending.segment(slot, len)
    }

    /// A record that has arrived. It is not copied, to save time; the device no longer writes to it.
    pub fn record(&self, slot: u32, at: usize, len: usize) -> &[u8] {
        let at = at.min(SLOT);
        let (slab, slot) = self.incoming(slot);
        // SAFETY: this process owns the slot from the receive's completion until it is posted again, and no code writes
        // to it meanwhile.
        unsafe { std::slice::from_raw_parts(slab.at(slot).wrapping_add(at), len.min(SLOT - at)) }
    }

    /// Classifies an entry of the completion queue.
    pub fn sort(&self, entry: &WorkCompletion) -> Ended {
        sort(entry, self.receives)
    }
}

/// The queue sizes of an endpoint that wants this many receives. Half of the completion queue is reserved for requests,
/// because without room there none could be posted.
fn sizes(limits: DeviceLimits, receives: usize) -> Sizes {
    let receives = receives.min(limits.receives).min(limits.completions / 2);
    Sizes {
        requests: REQUESTS.min(limits.requests),
        receives,
        completions: (receives + ALL_REQUESTS).min(limits.completions),
        inline: INLINE,
    }
}

/// Classifies a completion of an endpoint with this many receives: its id is that of a receive's slot, or of a request.
fn sort(entry: &WorkCompletion, receives: usize) -> Ended {
    match entry.id.checked_sub(RECEIVE) {
        Some(slot) if slot < receives as u64 => {
            let slot = slot as u32;
            match (entry.status, entry.opcode, entry.data) {
                (Status::SUCCESS, Opcode::Receive, None) => {
                    Ended::Received { slot, qp: entry.qp, len: entry.len }
                }
                (Status::SUCCESS, ..) => Ended::Unasked { slot, qp: entry.qp },
                _ => Ended::Returned { slot },
            }
        }
        _ => Ended::Request { id: SlotId::from_wire(entry.id), status: entry.status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(id: u64) -> WorkCompletion {
        WorkCompletion {
            id,
            status: Status::SUCCESS,
            opcode: Opcode::Receive,
            len: 9,
            qp: 3,
            data: None,
            source_qp: 0,
            lid: 0,
            has_route: false,
        }
    }

    #[test]
    fn requests_are_told_from_receives_however_often_their_slots_were_used() {
        let first = Slots::default().insert(()).to_wire();
        for generation in [0, 1 << 61, 1 << 62, 1 << 63, u64::MAX << 32] {
            let id = generation | first;
            assert!(
                matches!(sort(&entry(id), 64), Ended::Request { id: of, .. } if of.to_wire() == id),
                "{id:#x}"
            );
        }
    }

    #[test]
    fn requests_have_room_in_the_completion_queue_beside_the_receives() {
        for (wanted, completions, sized) in [
            (512, 1 << 16, (512, 512 + ALL_REQUESTS)),
            (1 << 15, 1 << 15, (1 << 14, (1 << 14) + ALL_REQUESTS)),
            (512, 512, (256, 512)),
            (512, 100, (50, 100)),
        ] {
            let got = sizes(
                DeviceLimits { connections: 1 << 16, requests: 1024, receives: 1 << 15, completions },
                wanted,
            );
            assert_eq!((got.receives, got.completions), sized, "{wanted} of {completions}");
        }
    }

    #[test]
    fn only_receives_that_there_are_come_back() {
        let sorted = |slot| sort(&entry(RECEIVE | slot), 64);
        assert!(matches!(sorted(63), Ended::Received { slot: 63, qp: 3, len: 9 }));
        for none in [64, RECEIVE - 1, 1 << 32] {
            assert!(matches!(sorted(none), Ended::Request { .. }), "{none:#x}");
        }
    }
}
