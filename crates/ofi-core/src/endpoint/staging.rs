//! The outboxes of an endpoint's two directions, which are one if both are bound to the same queue.

use ofi_api::{CompletionFlags, Context, CqBuffer, CqErrorEntry, CqTaggedEntry, FiAddr};

use std::sync::Arc;

use crate::cntr::{Cntr, Counters, Kind};
use crate::cq::{Credit, Credits, Entry, Outbox};
use crate::hmem::Staged;
use crate::slots::{SlotId, Slots};
use crate::transport::CounterTarget;
use crate::wake_fd::WakeFd;

/// The index of the outbox of receive completions, or of all completions if both directions have the same queue.
pub const RECEIVE: usize = 1;

/// An action at the end of an operation, besides reporting it.
pub enum Route {
    /// Deferred work: the counter of its completion, and whether the endpoint reports it too.
    Work(Option<Arc<Cntr>>, bool),
    /// Its memory is a device's. `EndpointCore::unstage` removes this before a success is reported.
    Device(Box<DeviceOp>),
}

/// An operation whose memory is a device's.
pub struct DeviceOp {
    /// The memory, and the buffer that the transport moves.
    pub staged: Staged,
    /// The buffer is copied to the memory at the end.
    pub reads: bool,
    /// The counter of its end.
    pub route: CounterTarget,
}

/// Both outboxes, and the credits that entries return.
pub struct CompletionStaging {
    outboxes: [Outbox; 2],
    /// Index of the outbox of transmit completions.
    transmit: usize,
    /// Operations that may still be posted.
    pub credits: Credits,
    /// The counters of ended operations.
    pub counters: Counters,
    /// Actions at the end of operations, by the number in their [`CounterTarget`].
    pub routes: Slots<Route>,
    /// Which directions have a queue, by slot. Failures of the others are only counted.
    pub read: [bool; 2],
}

impl CompletionStaging {
    /// Outboxes for contexts of `tx_size` and `rx_size` operations.
    pub fn new(tx_size: usize, rx_size: usize) -> Self {
        Self {
            outboxes: [Outbox::new(rx_size), Outbox::new(rx_size)],
            transmit: 0,
            credits: [0, tx_size, rx_size],
            counters: Counters::default(),
            routes: Slots::default(),
            read: [true; 2],
        }
    }

    /// Records that both directions have the same queue.
    pub fn join(&mut self) {
        self.transmit = RECEIVE;
    }

    /// An outbox, with the credits.
    #[inline]
    pub fn slot(&mut self, slot: usize) -> (&mut Outbox, &mut Credits) {
        (&mut self.outboxes[slot & 1], &mut self.credits)
    }

    /// Begins a poll that fills `buffer`, starting at entry `filled`, for the reader of `slot`. It must be ended with
    /// [`CompletionStaging::end`].
    #[inline]
    pub fn begin(&mut self, slot: usize, buffer: &mut CqBuffer<'_>, filled: usize) {
        self.outboxes[slot & 1].begin_direct(buffer, filled);
        if slot & 1 != RECEIVE {
            self.begin_unread();
        }
    }

    /// Ends direct mode ([`CompletionStaging::begin`]). Returns the number of entries in the buffer.
    #[inline]
    pub fn end(&mut self, slot: usize) -> usize {
        self.outboxes[slot & 1].end_direct()
    }

    /// The queue that is reading.
    pub fn reader(&self) -> Option<&WakeFd> {
        self.outboxes.iter().find_map(Outbox::reader)
    }

    /// Begins a poll outside of a read.
    #[inline]
    pub fn begin_unread(&mut self) {
        self.outboxes[RECEIVE].begin();
    }

    /// Completes a transmit operation in the call that posted it.
    #[inline(always)]
    pub fn sent(&mut self, context: Context, flags: CompletionFlags) {
        self.credits[Credit::Transmit as usize] -= 1;
        let body = CqTaggedEntry { op_context: context, flags, ..CqTaggedEntry::EMPTY };
        let entry = Entry { body, source: FiAddr::NOTAVAIL, credit: Credit::Transmit, error: false };
        self.outboxes[self.transmit & 1].wait(entry);
    }

    /// Completes a transmit operation.
    #[inline]
    pub fn transmitted(&mut self, body: CqTaggedEntry) {
        self.outboxes[self.transmit & 1].push(&mut self.credits, body, FiAddr::NOTAVAIL, Credit::Transmit);
    }

    /// Completes a transmit operation with an error.
    pub fn transmit_failed(&mut self, error: CqErrorEntry, route: CounterTarget) {
        if self.failed(Kind::of(error.flags), route) && self.read[0] {
            self.outboxes[self.transmit & 1].push_error(error, Credit::Transmit);
        } else {
            self.credits[Credit::Transmit as usize] += 1;
        }
    }

    /// Completes a receive, or reports an unsolicited entry.
    #[inline(always)]
    pub fn received(&mut self, body: CqTaggedEntry, source: FiAddr, credit: Credit) {
        self.outboxes[RECEIVE].push(&mut self.credits, body, source, credit);
    }

    /// Completes a receive with an error.
    pub fn receive_failed(&mut self, error: CqErrorEntry, credit: Credit, route: CounterTarget) {
        if self.failed(Kind::Receive, route) {
            self.not_found(error, credit);
        } else {
            self.credits[credit as usize] += 1;
        }
    }

    /// Reports an operation that was never posted and holds no credit.
    pub fn lost(&mut self, error: CqErrorEntry) {
        let receive = error.flags.contains(CompletionFlags::RECV);
        self.counters.fail(if receive { Kind::Receive } else { Kind::of(error.flags) });
        let (slot, direction) = if receive { (RECEIVE, 1) } else { (self.transmit & 1, 0) };
        if self.read[direction] {
            self.outboxes[slot].push_error(error, Credit::None);
        }
    }

    /// Counts a success.
    #[inline]
    pub fn ended(&mut self, kind: Kind, len: usize, route: CounterTarget) {
        if route == CounterTarget::ENDPOINT {
            self.counters.count(kind, len);
        } else {
            self.work_ended(kind, len, route);
        }
    }

    #[cold]
    fn work_ended(&mut self, kind: Kind, len: usize, route: CounterTarget) {
        let (counter, told) = match self.routes.remove(SlotId::from_wire(route.0)) {
            None => return,
            Some(Route::Device(device)) => return self.ended(kind, len, device.route),
            Some(Route::Work(counter, told)) => (counter, told),
        };
        if let Some(counter) = counter {
            counter.raise(1);
        }
        if told {
            self.counters.count(kind, len);
        }
    }

    /// Counts a failure. Returns whether the queue must report it. For deferred work, it must if a report was
    /// requested, or if nothing else reports the failure.
    #[cold]
    fn failed(&mut self, kind: Kind, route: CounterTarget) -> bool {
        if route == CounterTarget::ENDPOINT {
            self.counters.fail(kind);
            return true;
        }
        let (counter, told) = match self.routes.remove(SlotId::from_wire(route.0)) {
            None => return true,
            Some(Route::Device(device)) => return self.failed(kind, device.route),
            Some(Route::Work(counter, told)) => (counter, told),
        };
        if let Some(counter) = &counter {
            counter.count_error();
        }
        if told {
            self.counters.fail(kind);
        }
        told || counter.is_none()
    }

    /// Reports a failure that does not count as an operation: a search that found nothing, or remote CQ data from a
    /// stranger.
    pub fn not_found(&mut self, error: CqErrorEntry, credit: Credit) {
        if self.read[1] {
            self.outboxes[RECEIVE].push_error(error, credit);
        } else {
            self.credits[credit as usize] += 1;
        }
    }

    /// Whether an unsolicited entry may be reported.
    #[inline]
    pub fn has_room(&self) -> bool {
        self.outboxes[RECEIVE].has_room()
    }

    /// Whether to take more messages.
    #[inline(always)]
    pub fn hungry(&self) -> bool {
        self.outboxes[RECEIVE].hungry()
    }

    /// Whether a reader of `slot` would find nothing.
    pub fn is_empty(&self, slot: usize) -> bool {
        self.outboxes[slot & 1].is_empty()
    }
}
