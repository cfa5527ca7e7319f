//! What an endpoint has of its device: queues, and the memory of records on their way out and in.

use std::net::SocketAddr;

use ibv::transfer::Source;
use ofi_api::Result;
use ofi_core::pages::Pages;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::Peer;

use crate::rc::{Access, Device, Limits, Queues, Region, Segment, Sizes, Status, WorkCompletion};
use crate::waiter::Waiter;
use crate::wire::SLOT;
use crate::{failed, settings};

/// Records of all lanes that may be on their way out.
const SEND_SLOTS: usize = 256;
/// Remote reads of all lanes that may be under way.
pub const READS: usize = 64;
/// Requests of one lane that may be under way, where the device's queues hold as many.
const REQUESTS: usize = 96;
/// Requests of all lanes that may be under way, where the device's completion queues hold as many: each may have an
/// entry there.
const ALL_REQUESTS: usize = 4096;
/// Bytes that a request carries itself, where the device can: a record of 64 bytes with its header fits.
const INLINE: usize = 128;
/// Marks receives among the numbers of requests. Where these are [`SlotId`]s, the high half is a generation that takes
/// any value, so this is the highest bit of the index: no table has as many slots.
pub const RECEIVE: u64 = 1 << 31;

/// Registered slots.
pub struct Slab {
    region: Box<dyn Region>,
    pages: Pages,
    size: usize,
}

impl Slab {
    /// So many slots of `size` bytes.
    pub fn new(device: &dyn Device, slots: usize, size: usize) -> Result<Self> {
        let pages = Pages::new(slots * size, false)?;
        // SAFETY: the pages go after the registration, and only raw pointers lead to them.
        let region = unsafe { device.register(pages.base(), slots * size, Access::Local) };
        Ok(Self { region: region.map_err(|error| failed(&error))?, pages, size })
    }

    /// Bytes of a slot.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The memory of a slot.
    pub fn at(&self, slot: u32) -> *mut u8 {
        self.pages.base().wrapping_add(slot as usize * self.size)
    }

    /// The same, as a request has it.
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

    fn new(device: &dyn Device) -> Result<Self> {
        let pages = Pages::new(Self::LEN, false)?;
        // SAFETY: the pages go after the registration, and nobody ever writes to them.
        let region = unsafe { device.register(pages.base(), Self::LEN, Access::RemoteRead) };
        Ok(Self { region: region.map_err(|error| failed(&error))?, pages })
    }
}

/// A request that is under way.
pub enum Posted {
    /// A record, or a probe.
    Send {
        peer: Peer,
        /// That it lies in, unless the request carries it.
        slot: Option<u32>,
        /// Among the requests of its lane.
        number: u64,
        /// Its success is not reported.
        quiet: bool,
        /// The operation that ends with it.
        mark: Option<u64>,
        /// Those that end with it besides, of a pack.
        marks: Vec<u64>,
    },
    /// A part of a transfer.
    Step { peer: Peer, transfer: SlotId, number: u64, reads: bool, is_access: bool },
}

impl Posted {
    /// Its number among the requests of its lane.
    pub fn number(&self) -> u64 {
        match self {
            Self::Send { number, .. } | Self::Step { number, .. } => *number,
        }
    }

    /// Whose lane it is on.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Send { peer, .. } | Self::Step { peer, .. } => *peer,
        }
    }
}

/// What came out of the completion queue.
pub enum Ended {
    /// A record is in this slot, of so many bytes.
    Received { slot: u32, qp: u32, len: usize },
    /// A receive of a connection that is over.
    Returned { slot: u32 },
    /// A request has ended.
    Request { id: SlotId, status: Status },
}

/// See the module. Connections go before it: their queue pairs use its memory.
pub struct Adapter {
    pub queues: Box<dyn Queues>,
    pub posted: Slots<Posted>,
    /// Requests of one lane that may be under way.
    pub requests: usize,
    /// Lanes whose connections are kept though they have nothing to do.
    pub connections: usize,
    /// Of those whose ends are reported, so many may be under way, and as many of the others, which are reported if
    /// they fail.
    most: usize,
    /// Of the others, those under way.
    silent: usize,
    pub address: SocketAddr,
    /// Remote reads under way.
    pub reads: usize,
    pub waiter: Waiter,
    /// A word that peers read behind their writes, which then are in memory.
    witness: Witness,
    /// Slots of [`Adapter::receiving`].
    receives: usize,
    free: Vec<u32>,
    /// Slots of quiet requests.
    quiet: usize,
    sending: Slab,
    receiving: Slab,
}

impl Adapter {
    /// Opens it, and listens.
    pub fn new(device: &dyn Device, wanted: SocketAddr) -> Result<Self> {
        let failed = |error: ibv::Error| failed(&error);
        let limits = device.limits().map_err(failed)?;
        let sizes = sizes(limits, settings::RX_SLOTS.get());
        let receives = sizes.receives;
        let mut queues = device.open(sizes).map_err(failed)?;
        let address = queues.listen(wanted).map_err(failed)?;
        let waiter = Waiter::new(&[queues.fd(), queues.event_fd()])?;
        let (sending, receiving) =
            (Slab::new(device, SEND_SLOTS + 1, SLOT)?, Slab::new(device, receives, SLOT)?);
        let free = (0..SEND_SLOTS as u32).collect();
        let adapter = Self {
            queues,
            posted: Slots::default(),
            requests: sizes.requests,
            connections: settings::MAX_CONNECTIONS.get().min(limits.connections),
            most: (sizes.completions - receives) / 2,
            silent: 0,
            address,
            reads: 0,
            waiter,
            witness: Witness::new(device)?,
            receives,
            free,
            quiet: 0,
            sending,
            receiving,
        };
        for slot in 0..receives as u32 {
            adapter.receive(slot);
        }
        Ok(adapter)
    }

    /// Has a slot receive.
    pub fn receive(&self, slot: u32) {
        // SAFETY: the slot's record has been taken, so that it is the device's again; the slab goes after the queue.
        let posted =
            unsafe { self.queues.receive(RECEIVE | u64::from(slot), self.receiving.segment(slot, SLOT)) };
        if let Err(error) = posted {
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive is lost");
        }
    }

    /// Whether one more request may be under way. If not, ends of others will be reported.
    pub fn has_room(&self) -> bool {
        self.posted.len() - self.silent < self.most
    }

    /// A slot for a record on its way out.
    pub fn take_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A record is about to be posted.
    pub fn begin_send(&mut self, posted: Posted) -> SlotId {
        if let Posted::Send { slot, quiet: true, .. } = posted {
            self.silent += 1;
            self.quiet += usize::from(slot.is_some());
        }
        self.posted.insert(posted)
    }

    /// It has ended, or was not posted.
    pub fn end_send(&mut self, slot: Option<u32>, quiet: bool) {
        self.silent -= usize::from(quiet);
        self.quiet -= usize::from(quiet && slot.is_some());
        self.free.extend(slot);
    }

    /// Whether one more record may be quiet. Lanes that rest keep their slots.
    pub fn may_be_quiet(&self, inline: bool) -> bool {
        self.silent < self.most && (inline || self.quiet < SEND_SLOTS / 4)
    }

    /// Slots in use, beside those of quiet requests.
    pub fn slots(&self) -> usize {
        SEND_SLOTS - self.free.len() - self.quiet
    }

    /// Nothing uses it any more.
    pub fn give_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The word that peers may read, as they name it.
    pub fn witness(&self) -> Source {
        Source { addr: self.witness.pages.base() as u64, len: Witness::LEN, rkey: self.witness.region.rkey() }
    }

    /// Memory here for what is read and not looked at: the end of the outgoing slots.
    pub fn scratch(&self, len: usize) -> Segment {
        self.sending.segment(SEND_SLOTS as u32, len)
    }

    /// The memory of a slot for a record on its way out.
    pub fn outgoing(&self, slot: u32) -> *mut u8 {
        self.sending.at(slot)
    }

    /// The same, as a request has it.
    pub fn segment(&self, slot: u32, len: usize) -> Segment {
        self.sending.segment(slot, len)
    }

    /// A record that has come: a copy of what the device wrote would cost, and the device writes to it no more.
    pub fn record(&self, slot: u32, at: usize, len: usize) -> &[u8] {
        let at = at.min(SLOT);
        // SAFETY: the slot is the library's from the receive's end until it is posted again, and nobody writes to it
        // meanwhile.
        unsafe { std::slice::from_raw_parts(self.receiving.at(slot).wrapping_add(at), len.min(SLOT - at)) }
    }

    /// Says what an entry of the completion queue is about.
    pub fn sort(&self, entry: &WorkCompletion) -> Ended {
        sort(entry, self.receives)
    }
}

/// What an endpoint that wants so many receives has of a device. Half of the completion queue is for ends of requests:
/// without room there, nothing could ever be posted.
fn sizes(limits: Limits, receives: usize) -> Sizes {
    let receives = receives.min(limits.receives).min(limits.completions / 2);
    Sizes {
        requests: REQUESTS.min(limits.requests),
        receives,
        completions: (receives + ALL_REQUESTS).min(limits.completions),
        inline: INLINE,
    }
}

/// Sorts a completion of an endpoint with this many receives: its id names a receive's slot, or else a request.
fn sort(entry: &WorkCompletion, receives: usize) -> Ended {
    match entry.id.checked_sub(RECEIVE) {
        Some(slot) if slot < receives as u64 => {
            let slot = slot as u32;
            match entry.status {
                Status::SUCCESS => Ended::Received { slot, qp: entry.qp, len: entry.len },
                _ => Ended::Returned { slot },
            }
        }
        _ => Ended::Request { id: SlotId::from_wire(entry.id), status: entry.status },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rc::Opcode;

    fn entry(id: u64) -> WorkCompletion {
        WorkCompletion {
            id,
            status: Status::SUCCESS,
            opcode: Opcode::Request,
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
                Limits { connections: 1 << 16, requests: 1024, receives: 1 << 15, completions },
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
