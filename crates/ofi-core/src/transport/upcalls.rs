//! The calls of a transport into the core: arrivals, ends, losses.

use ofi_api::{Address, Context, Errno, MrAccess, Piece, RemotePiece};

use super::{PeerId, Reaction, Regions, RemoteData, RxName, Transport};
use crate::slots::SlotId;

/// How an operation will be reported.
#[derive(Clone, Copy, Debug)]
pub struct CompletionInfo {
    /// The application's context.
    pub context: Context,
    /// The flags of its completion.
    pub flags: ofi_api::CompletionFlags,
    /// Whether success is reported. Failure always is, where there is a queue.
    pub signal: bool,
    /// Its length in bytes, for counters.
    pub len: usize,
    /// The counter of its end.
    pub route: CounterTarget,
    /// The transmit context that reports it; 0 for the endpoint itself.
    pub at: u16,
}

/// The counter of an operation's completion: its endpoint's counters or, for deferred work, a counter that the core
/// keeps under a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterTarget(pub(crate) u64);

impl CounterTarget {
    /// The endpoint's counters.
    pub const ENDPOINT: Self = Self(0);
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// The sender.
    pub peer: PeerId,
    /// The receive context.
    pub rx: RxName,
    /// Whether `tag` counts.
    pub tagged: bool,
    /// Whether `data` counts.
    pub has_data: bool,
    /// The tag.
    pub tag: u64,
    /// Remote CQ data.
    pub data: u64,
    /// Length of the whole message in bytes.
    pub len: usize,
}

/// From whom, for which receive context, and whether tag and data count: a part of an [`Arrived`] that fits a register.
pub(crate) type Origin = (PeerId, RxName, [bool; 2]);

impl Arrived {
    /// The parts to pass in registers, with tag and data in the second. For a call that a hot path rarely makes, and
    /// which would otherwise force each message's description into memory.
    #[inline(always)]
    pub(crate) const fn parts(&self) -> (Origin, (u64, u64), usize) {
        ((self.peer, self.rx, [self.tagged, self.has_data]), (self.tag, self.data), self.len)
    }

    /// The other way.
    #[inline(always)]
    pub(crate) const fn of_parts(origin: Origin, (tag, data): (u64, u64), len: usize) -> Self {
        let (peer, rx, [tagged, has_data]) = origin;
        Self { peer, rx, tagged, has_data, tag, data, len }
    }
}

/// The outcome for a message with its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The message was copied to a receive.
    Taken,
    /// The message was copied and waits for a receive. [`Upcalls::may_hold`] returns whether the next one may.
    Kept,
    /// There is no room: leave the message where it is, and offer it again later. No other message of this peer may
    /// pass it.
    Stopped,
}

/// The outcome for a message whose payload is still at the sender.
pub enum Announced<T: Transport> {
    /// A receive is waiting: move the payload into it, then call [`Upcalls::received`].
    Pull(SlotId),
    /// Kept until a receive is posted; then the core calls [`TransportEndpoint::pull`](super::TransportEndpoint::pull).
    Kept,
    /// As [`Delivery::Stopped`]; the token comes back.
    Stopped(T::Token),
    /// No receive will ever take it: tell the sender, as
    /// [`TransportEndpoint::discard`](super::TransportEndpoint::discard) does.
    Unwanted(T::Token),
}

/// The state of a receive that the transport fills.
#[derive(Clone, Copy)]
pub struct Receiving<'a> {
    /// The destination of the bytes.
    pub pieces: &'a [Piece],
    /// The number of bytes to move: the message's length, or less if the buffer is shorter.
    pub len: usize,
}

/// The reason of a failure, and the provider's number for it: `err` and `prov_errno` of its error entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The error for the application.
    pub errno: Errno,
    /// The number that explains it to people ([`Transport::error_text`]).
    pub number: i32,
}

/// The calls of a transport into the core.
pub trait Upcalls<T: Transport> {
    /// Called when a poll has disarmed the transport ([`TransportEndpoint::arm`](super::TransportEndpoint::arm)).
    /// Threads that sleep without having polled would no longer be woken, so the core wakes them, and they rearm.
    fn disarmed(&mut self);

    /// The transport has left something to its next poll that the application does not wait for. If the application
    /// does not poll, a thread does, [some milliseconds](crate::unattended) later. `false`: there is no such thread.
    fn attend_later(&mut self) -> bool;

    /// Nothing of it is left.
    fn attended(&mut self);

    /// A new peer has this address. Peers are introduced in the order of their numbers; one that was
    /// [retired](Upcalls::retire) may have its number used again.
    fn introduce(&mut self, peer: PeerId, address: &Address);

    /// Whether the number of a lost peer is free for reuse: nothing refers to it any more. Caches of the
    /// number are cleared.
    fn retire(&mut self, peer: PeerId) -> bool;

    /// The number of insertions into the address vector. When it changes, [`Upcalls::addresses`] has more. 0 without a
    /// vector.
    fn insertions(&self) -> u32 {
        0
    }

    /// The number of the insertion of a peer's address, which changes if the application removes the address and
    /// inserts it again. `None` if the address is not in the vector.
    fn insertion(&self, _peer: PeerId) -> Option<u64> {
        None
    }

    /// All addresses of the vector, for a transport whose packets do not contain their senders' full addresses.
    fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    /// A peer's address as known to the application: the one that it was introduced with, or, if the endpoint has
    /// several transports, its translation for the application.
    fn address(&self, peer: PeerId) -> Option<&Address>;

    /// A message has arrived whole: `arrived.len` bytes at `body`.
    ///
    /// # Safety
    /// `body` may be read for `arrived.len` bytes during the call (a peer may be changing them).
    unsafe fn deliver(&mut self, arrived: &Arrived, body: *const u8) -> Delivery;

    /// A message was announced. Its payload is at the sender.
    fn announce(&mut self, arrived: &Arrived, token: T::Token) -> Announced<T>;

    /// The receive behind a pulled payload, while it is open.
    fn receiving(&self, id: SlotId) -> Option<Receiving<'_>>;

    /// A pulled payload has arrived, or failed to.
    fn received(&mut self, id: SlotId, result: Result<(), Errno>);

    /// Takes the oldest receive posted for untagged messages, for a transport that passes receives to a device before
    /// their message is known. The receive ends with [`Upcalls::landed`], [`Upcalls::spent`], or [`Upcalls::received`]
    /// with an error, or with its peer ([`Upcalls::fail_peer_where`]), and can no longer be cancelled. `None` if none
    /// is posted.
    fn claim(&mut self, _peer: PeerId) -> Option<SlotId> {
        None
    }

    /// A message has come into a claimed receive.
    fn landed(&mut self, _id: SlotId, _arrived: &Arrived) {}

    /// A peer's write of `len` bytes with remote CQ data has consumed a claimed receive (`FI_RX_CQ_DATA`).
    fn spent(&mut self, _id: SlotId, _data: u64, _len: usize) {}

    /// A peer wrote into local memory with remote CQ data. `false`: no room to report it now; offer it again.
    #[must_use]
    fn remote_write(&mut self, peer: PeerId, data: RemoteData, len: usize) -> bool;

    /// This end has executed a peer's access to registered memory. Transports that execute accesses call it for every
    /// one that succeeded, with the rights that it needed.
    fn accessed(&mut self, regions: &Regions, access: MrAccess, remote: &[RemotePiece]);

    /// Whether a counter may report peers' reads to the application: if so, the application may change the memory as
    /// soon as [`Upcalls::accessed`] was called.
    fn counts_reads(&self, regions: &Regions) -> bool;

    /// A note of a peer's core has arrived.
    ///
    /// # Errors
    /// An error if the peer violates the protocol and must be disconnected.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes during the call (a peer may be changing them).
    unsafe fn noted(
        &mut self,
        peer: PeerId,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno>;

    /// Opens a slot for an operation that does not finish at once.
    fn open(&mut self, peer: PeerId, ticket: CompletionInfo, op: T::Op) -> SlotId;

    /// As `open`, but constructs the operation in place: for hot paths.
    #[inline]
    fn open_with(&mut self, peer: PeerId, ticket: CompletionInfo, make: impl FnOnce() -> T::Op) -> SlotId {
        self.open(peer, ticket, make())
    }

    /// Whether the success of this operation is needed, for a queue entry or for a counter. If not, a transport may
    /// detect success late, but must still report a failure.
    fn awaits(&mut self, _ticket: &CompletionInfo) -> bool {
        true
    }

    /// Reverts [`Upcalls::open`]: the operation is not posted after all.
    fn abandon(&mut self, id: SlotId);

    /// The transport's part of an open operation to `peer`: `None` if `id` is stale, forged, or another peer's.
    fn op(&mut self, peer: PeerId, id: SlotId) -> Option<&mut T::Op>;

    /// As `op`, for any peer: for numbers that only this end's device knows.
    fn own_op(&mut self, id: SlotId) -> Option<&mut T::Op>;

    /// An operation has finished; its slot is gone. Reports it, and returns the transport's part.
    fn finish(&mut self, peer: PeerId, id: SlotId, result: Result<(), Errno>) -> Option<T::Op>;

    /// As [`Upcalls::finish`] with an error, for which the device has its own number.
    fn finish_failed(&mut self, peer: PeerId, id: SlotId, fault: Fault) -> Option<T::Op>;

    /// As [`Upcalls::received`] with an error, for which the device has its own number.
    fn receive_failed(&mut self, id: SlotId, fault: Fault);

    /// A peer is gone: this end's operations to it end with `error`.
    fn fail_outgoing(&mut self, peer: PeerId, error: Errno) {
        self.fail_ops(peer, error, |_| true);
    }

    /// Handles the loss of a peer: everything outstanding with it ends with `error`. Payloads that were there are lost,
    /// and receives that are later posted for them end with `error` too.
    fn fail_peer(&mut self, peer: PeerId, error: Errno) {
        self.fail_peer_where(peer, error, |_| true, |_| true);
    }

    /// As [`Upcalls::fail_outgoing`], for the operations that `which` selects, because the peer is also reachable over
    /// another transport.
    fn fail_ops(&mut self, peer: PeerId, error: Errno, which: impl Fn(&T::Op) -> bool);

    /// As [`Upcalls::fail_peer`], for the operations and the payloads at the peer that `ops` and `tokens` select,
    /// because the peer is also reachable over another transport.
    fn fail_peer_where(
        &mut self,
        peer: PeerId,
        error: Errno,
        ops: impl Fn(&T::Op) -> bool,
        tokens: impl Fn(&T::Token) -> bool,
    );

    /// Reports that a peer will send no more notes that collectives wait for. Everything else with it continues.
    fn notes_gone(&mut self, peer: PeerId, error: Errno);

    /// Whether the budget for unexpected payloads has room for `len` more bytes of `peer`. If not, the transport should
    /// have the sender keep its payloads, and announce them.
    fn may_hold(&self, peer: PeerId, len: usize) -> bool;

    /// Bytes and number of a peer's messages that wait here for receives; announced ones count no bytes.
    fn held(&self, peer: PeerId) -> (usize, usize);

    /// Whether the core accepts more messages in this poll. If not, stop; nothing is lost.
    fn hungry(&self) -> bool;

    /// A connection packet has arrived at a connected endpoint. Returns the reaction.
    fn packet(&mut self, from: &Address, packet: &[u8]) -> Reaction;

    /// A pending join ([`TransportEndpoint::join_group`](super::TransportEndpoint::join_group)) has ended. `group` is
    /// the address that the call has returned. After an error the transport has left the group.
    fn joined_group(&mut self, group: &Address, receives: bool, result: Result<(), Errno>);

    /// A packet of [`TransportEndpoint::packet`](super::TransportEndpoint::packet) was not delivered, or its
    /// destination has disappeared since.
    fn packet_lost(&mut self, to: &Address, errno: Errno);
}
