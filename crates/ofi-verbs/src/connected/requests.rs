//! The requests of a connected endpoint in flight, and which of them the device reports.
//!
//! A *quiet* request is unsignaled: the device does not report its success. A request is quiet if the core does not
//! wait for it ([`Upcalls::awaits`]) and it uses no memory of the application: its payload is inline, or in a slot. A
//! queue pair executes its requests in order, so a quiet one has ended when a later one is reported. At most a quarter
//! of the queue and of the slots is used by quiet requests: completions of the other requests free their room too. When
//! the endpoint closes, it posts a signaled request of no bytes, whose completion shows that the remaining quiet ones
//! have ended ([`Requests::ask`]).
//!
//! The device always reports a failed request, and all that follow it. So an unreported quiet request has succeeded
//! once a later one is reported, whether that one succeeded or not.
//!
//! [`Upcalls::awaits`]: ofi_core::transport::Host::awaits

use ofi_api::Piece;
use ofi_core::slots::{SlotId, Slots};

use super::SLOTS;
use crate::adapter::Slab;
use crate::domain::Local;
use crate::few::Few;
use crate::quiet::Quiet;
use crate::rc::msg::Pair;
use crate::rc::{Post, Remote, Work};

/// A request in flight.
pub struct Request {
    /// `None`: a request whose completion shows that earlier ones have ended.
    pub op: Option<SlotId>,
    pub slot: Option<u32>,
    pub quiet: bool,
    /// Whether the operation was already reported to the application: closing waits for the request.
    pub injected: bool,
    /// Whether it reads the peer's memory: a fence waits for it.
    pub reads: bool,
    /// Destination of the data that is read into the slot.
    pub read: Few<Piece>,
    /// The registrations of its memory.
    pub _regions: Few<Local>,
}

impl Request {
    /// A request whose completion shows that earlier ones have ended.
    fn question() -> Self {
        Self {
            op: None,
            slot: None,
            quiet: false,
            injected: false,
            reads: false,
            read: Few::default(),
            _regions: Few::default(),
        }
    }
}

/// The requests of a connected endpoint in flight, and their slots.
pub struct Requests {
    /// Each with its number among all requests of the queue pair.
    posted: Slots<(u64, Request)>,
    size: usize,
    quiet: Quiet,
    /// Number of quiet requests in flight, and of those with a slot.
    silent: [usize; 2],
    /// The number of the last reported request.
    last_reported: u64,
    pub slots: Slab,
    free: Vec<u32>,
}

impl Requests {
    /// Creates the state for a queue of `size` requests. Each of `slots` holds a payload.
    pub fn new(slots: Slab, size: usize) -> Self {
        Self {
            posted: Slots::default(),
            size,
            quiet: Quiet::default(),
            silent: [0; 2],
            last_reported: 0,
            slots,
            free: (0..SLOTS as u32).collect(),
        }
    }

    /// Whether no request is in flight.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Whether the queue has room for one more.
    pub fn has_room(&self) -> bool {
        self.posted.len() < self.size
    }

    /// Allocates a slot for a payload.
    pub fn take_slot(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Frees a slot that no request uses.
    pub fn give_slot(&mut self, slot: Option<u32>) {
        self.free.extend(slot);
    }

    /// Whether there is room for the next request to be quiet.
    pub fn may_be_quiet(&self, slot: Option<u32>) -> bool {
        self.quiet.has_room(self.size) && (slot.is_none() || self.silent[1] < SLOTS / 4)
    }

    /// Adds the next request, which the caller must post now: [`Requests::posted`] or [`Requests::withdraw`] follows.
    pub fn insert(&mut self, request: Request) -> SlotId {
        let number = self.quiet.number();
        self.posted.insert((number, request))
    }

    /// Records that the device accepted the request.
    pub fn posted(&mut self, id: SlotId) {
        let Some((number, request)) = self.posted.get(id) else { return };
        if request.quiet {
            self.quiet.push(*number, id);
            self.silent[0] += 1;
            self.silent[1] += usize::from(request.slot.is_some());
        } else {
            self.last_reported = *number;
        }
    }

    /// Removes a request that the device did not accept.
    pub fn withdraw(&mut self, id: SlotId) {
        if let Some((_, request)) = self.posted.remove(id) {
            self.give_slot(request.slot);
        }
    }

    /// Removes a completed request, and frees its slot.
    pub fn remove(&mut self, id: SlotId) -> Option<Request> {
        let (_, request) = self.posted.remove(id)?;
        if request.quiet {
            self.silent[0] -= 1;
            self.silent[1] -= usize::from(request.slot.is_some());
        }
        self.give_slot(request.slot);
        Some(request)
    }

    /// Removes the oldest quiet request before this reported one, which thereby has succeeded. Returns its operation.
    pub fn end_before(&mut self, id: SlotId) -> Option<SlotId> {
        let &(number, _) = self.posted.get(id)?;
        while let Some(earlier) = self.quiet.pop_before(number) {
            // A failed request has already been removed.
            if let Some(request) = self.remove(earlier) {
                return request.op;
            }
        }
        None
    }

    /// Whether only quiet requests are in flight.
    pub fn are_quiet(&self) -> bool {
        self.posted.len() == self.silent[0]
    }

    /// Whether quiet requests are in flight.
    pub fn has_quiet(&self) -> bool {
        self.silent[0] > 0
    }

    /// Whether a read is in flight.
    pub fn is_reading(&self) -> bool {
        self.posted.values().any(|(_, request)| request.reads)
    }

    /// Whether an injected operation has not arrived yet.
    pub fn owes(&self) -> bool {
        self.posted.values().any(|(_, request)| request.injected)
    }

    /// Unless another completion is due, posts a signaled request after the quiet ones: a write of no bytes, which has
    /// no effect at the peer. If the queue is full, completions are due, and a later call finds room. `false` if the
    /// device accepts no more requests.
    pub fn ask(&mut self, pair: &dyn Pair) -> bool {
        if self.quiet.newest().is_none_or(|newest| newest < self.last_reported) || !self.has_room() {
            return true;
        }
        let id = self.insert(Request::question());
        let nothing = Work::Write(Remote { addr: 0, rkey: 0 }, None);
        // SAFETY: it has no memory, and accesses none.
        match unsafe { pair.work(id.to_wire(), &[], nothing, Post::default()) } {
            Ok(()) => {
                self.posted(id);
                true
            }
            Err(error) => {
                self.withdraw(id);
                error.errno == libc::ENOMEM
            }
        }
    }

    /// Clears the requests of a destroyed queue pair, and returns their operations.
    pub fn clear(&mut self) -> Vec<SlotId> {
        let ids = self.posted.ids(|_| true);
        let ops = ids.into_iter().filter_map(|id| self.remove(id)?.op).collect();
        self.quiet = Quiet::default();
        self.last_reported = 0;
        ops
    }
}
