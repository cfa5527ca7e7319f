//! The contract between the core and a transport.
//!
//! A transport moves packets or commands to peers and says what finished; it never matches, never completes, never
//! blocks. All calls of one endpoint's [`Lanes`] come one at a time, under that endpoint's lock. Calls into the core go
//! through [`Host`], and only from inside a call of the core into the transport: sources never call the application.

mod outgoing;
mod part;
mod payload;
mod port;
pub mod record;

use std::any::Any;
use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{
    Address, AtomicKind, Context, Datatype, EpOption, EpType, Errno, Error, FiOp, Info, LibraryMemory,
    MrAccess, MrAttr, Piece, Placement, RemotePiece, Result, RxAttr, Statistic,
};

use crate::slots::SlotId;

pub use crate::source::Arm;

pub use outgoing::{OutAccess, OutAtomic, OutMessage, OutNote, OutRma};
pub use part::{DomainPart, RegionData, Regions, Registered};
pub use payload::Payload;
pub use port::{DATA_SIZE, Held, MAX_PACKET, Port, Reaction};

/// An endpoint's own number for a peer: dense from 0, given out by its [`Lanes`]. A number is used again only
/// once nothing refers to its peer any more ([`Host::retire`]).
pub type Peer = u32;

/// Which receive context of a peer something is for (scalable endpoints; `fi_rx_addr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxName(u16);

impl RxName {
    /// The one that the peer chooses.
    pub const ANY: Self = Self(0);

    /// The context `index`, up to 65,534; `None` beyond.
    pub fn of(index: u64) -> Option<Self> {
        u16::try_from(index).ok()?.checked_add(1).map(Self)
    }

    /// The context's index, unless it is [`RxName::ANY`].
    #[inline]
    pub fn index(self) -> Option<usize> {
        usize::from(self.0).checked_sub(1)
    }

    /// Whether an endpoint with one receive context has it.
    #[inline(always)]
    pub const fn is_of_one(self) -> bool {
        self.0 <= 1
    }

    /// As it goes over the wire; 0 for [`RxName::ANY`], which a transport may as well not send.
    #[inline]
    pub const fn to_wire(self) -> u16 {
        self.0
    }

    /// As it came over the wire.
    #[inline]
    pub const fn from_wire(bits: u16) -> Self {
        Self(bits)
    }
}

/// Remote CQ data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteData {
    /// The data.
    pub value: u64,
    /// Which receive context reports it.
    pub rx: RxName,
}

/// One way of moving messages.
///
/// # Safety
/// What [`Transport::alloc`] gives is valid for its length while it lives, and is nobody else's. Peers and devices
/// access a registration from [`Transport::register`] to [`Transport::deregister`] at most, and only as its rights
/// allow.
pub unsafe trait Transport: Sized + Send + Sync + 'static {
    /// What a domain has of this transport.
    type Domain: Send + Sync + 'static;
    /// What a registration has of this transport.
    type Region: Send + Sync + 'static;
    /// What an endpoint has of this transport.
    type Lanes: Lanes<Self>;
    /// What an outstanding send, read or write has of this transport.
    type Op: Send + 'static;
    /// Names a payload that still lies at its sender.
    type Token: Send + 'static;

    /// Whether reliable endpoints can say when a message was matched with a receive (`FI_MATCH_COMPLETE`).
    const MATCHES: bool = false;

    /// Whether connections come about only while their endpoints are polled: then a thread does it for an application
    /// that does not ([`crate::cm::keeper`]).
    const KEEPS: bool = false;

    /// The longest authorization key that its endpoints check, in bytes; 0 if they check none ([`crate::auth`]).
    const AUTH_KEY_SIZE: usize = 0;

    /// Opens a domain, whose registrations are `registered`.
    ///
    /// # Errors
    /// What opening its resources answers.
    fn open_domain(info: &Info, registered: &Registered<Self::Region>) -> Result<Self::Domain>;

    /// Opens an endpoint's lanes. No peer can reach it before [`Lanes::enable`]. The endpoint's authorization key is
    /// that of `info.ep_attr`, wherever the application gave it.
    ///
    /// # Errors
    /// What opening its resources answers.
    fn open_lanes(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Lanes>;

    /// Prepares a registration, before its key is known.
    ///
    /// # Errors
    /// `FI_ENOSYS` for memory that the transport cannot register.
    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region>;

    /// The key by which devices of peers name a registration, where the domain chooses keys (`FI_MR_PROV_KEY`); `None`:
    /// any key will do. No other open registration of the domain has it.
    fn key(_region: &Self::Region) -> Option<u64> {
        None
    }

    /// Stops peers' use of a registration that goes past its owner: one whose key is already gone
    /// ([`ofi_api::MemoryRegion::close`]), or one that counts its accesses from now on
    /// ([`crate::keys::Region::is_counted`]).
    ///
    /// # Errors
    /// `FI_EBUSY` if a live peer did not stop within the bound.
    fn deregister(domain: &Self::Domain, region: &Self::Region) -> Result<()>;

    /// Whether a counter may count what peers do to a registration: not where every access goes past its owner.
    fn counts(_region: &Self::Region) -> bool {
        true
    }

    /// Allocates memory that peers can map.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>>;

    /// What a device has of a shared receive context that is being opened, where the domain's endpoints take receives
    /// before their messages ([`Lanes::claims`]).
    ///
    /// # Errors
    /// What the device answers.
    fn shared_receives(
        _domain: &Arc<DomainPart<Self>>,
        _attr: &RxAttr,
    ) -> Result<Option<Arc<dyn SharedReceives>>> {
        Ok(None)
    }

    /// An endpoint's option that only this transport has: what it is while `set` was set. `None`: it is not one of its.
    fn option(
        _domain: &Self::Domain,
        _info: &Info,
        _set: &[(EpOption, usize)],
        _option: EpOption,
    ) -> Option<usize> {
        None
    }

    /// Checks a value for such an option. The lanes are told of it before they are enabled ([`Lanes::set_option`]).
    ///
    /// # Errors
    /// Why it cannot be set.
    fn check_option(_domain: &Self::Domain, _info: &Info, _option: EpOption, _value: usize) -> Result<()> {
        Ok(())
    }

    /// What explains the `prov_errno` of error entries (`fi_cq_strerror`): error numbers, but for a domain whose
    /// operations end with others ([`Fault`]).
    fn error_text(_domain: &Self::Domain) -> fn(i32) -> String {
        |number| Errno::from_raw(number).to_string()
    }

    /// Turns a node and service name into an address (`fi_av_insertsvc`).
    ///
    /// # Errors
    /// `FI_EINVAL` for names that do not resolve.
    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address>;

    /// Most bytes that one atomic operation of an endpoint of this type changes; 0 where there are no atomics.
    fn atomic_size(_ep: EpType) -> usize {
        0
    }

    /// Whether endpoints of this type have an operation on a type of number, of those that the core can execute: all of
    /// them where a library executes them at the memory's owner.
    #[inline]
    fn has_atomic(_ep: EpType, _kind: AtomicKind, _op: FiOp, _datatype: Datatype) -> bool {
        true
    }

    /// Bytes of messages that a peer may have under way when it is told to keep its payloads. One that sends more all
    /// the same is stopped.
    fn in_flight() -> usize {
        16 << 20
    }

    /// Bytes that an application may give along with a request, its acceptance, or its rejection.
    fn cm_data_size() -> usize {
        DATA_SIZE
    }

    /// Whether it has nothing but shared memory.
    fn needs_shared_memory() -> bool {
        false
    }

    /// Most bytes of a note's payload; 0 where the transport has no notes, and so no collectives.
    fn note_size() -> usize {
        0
    }

    /// Checks an address given by the application, and brings it into the one form that compares equal.
    ///
    /// # Errors
    /// `FI_EINVAL` for one that cannot be an address of this transport.
    fn normalize(address: &Address) -> Result<Address>;

    /// Opens what a passive endpoint gets connection requests through, under `name` or one of the transport's choosing.
    /// Its authorization key is that of `info.ep_attr`.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`; `FI_ENOSYS` for a transport without connections.
    fn open_port(_info: &Info, _name: Option<&Address>) -> Result<Box<dyn Port>> {
        Err(Error::new(Errno::ENOSYS))
    }
}

/// How an operation will be reported.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    /// The application's context.
    pub context: Context,
    /// The flags of its completion.
    pub flags: ofi_api::CompletionFlags,
    /// Whether success is reported. Failure always is, where there is a queue.
    pub signal: bool,
    /// Its length in bytes, for counters.
    pub len: usize,
    /// Who counts its end.
    pub route: Route,
    /// Which of its endpoint's transmit contexts reports it; 0 for an endpoint that is none.
    pub at: u16,
}

/// Who counts the end of an operation: its endpoint's counters, or, for deferred work, what the core keeps under a
/// number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route(pub(crate) u64);

impl Route {
    /// The endpoint's counters.
    pub const ENDPOINT: Self = Self(0);
}

/// What became of a posted operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// It is finished; the core reports it.
    Done,
    /// The transport opened a slot and will finish it.
    Pending,
}

/// A message that has arrived.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// The sender.
    pub peer: Peer,
    /// For which receive context.
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
pub(crate) type Origin = (Peer, RxName, [bool; 2]);

impl Arrived {
    /// In parts that travel in registers, tag and data in the second: for a call that a hot path makes seldom, and
    /// which would otherwise have each message described in memory.
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

/// What became of a message whose payload is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It was copied to a receive.
    Taken,
    /// It was copied, and waits for a receive. [`Host::may_hold`] says whether the next one may.
    Kept,
    /// There is no room for it: leave it where it is and offer it again later. Nothing else of this peer may pass it.
    Stopped,
}

/// What became of a message whose payload is still at the sender.
pub enum Announced<T: Transport> {
    /// A receive is waiting: move the payload into it, then call [`Host::received`].
    Pull(SlotId),
    /// Kept until a receive is posted; then the core calls [`Lanes::pull`].
    Kept,
    /// As [`Delivery::Stopped`]; the token comes back.
    Stopped(T::Token),
    /// Nobody will ever receive it: tell the sender, as [`Lanes::discard`] does.
    Unwanted(T::Token),
}

/// How a receive that the transport fills stands.
#[derive(Clone, Copy)]
pub struct Receiving<'a> {
    /// Where the bytes go.
    pub pieces: &'a [Piece],
    /// How many of them to move: the message's length, or less if the buffer is shorter.
    pub len: usize,
}

/// Why an operation failed, and the number that the provider has for it: `err` and `prov_errno` of its error entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What the application acts on.
    pub errno: Errno,
    /// What explains it to people ([`Transport::error_text`]).
    pub number: i32,
}

/// What a transport calls in the core.
pub trait Host<T: Transport> {
    /// A poll has disarmed the lanes ([`Lanes::arm`]). Threads that sleep without having polled would not be woken any
    /// more: the core wakes them, and they arm again.
    fn disarmed(&mut self);

    /// A new peer has this address. Peers are introduced in the order of their numbers; one that was
    /// [retired](Host::retire) may have its number used again.
    fn introduce(&mut self, peer: Peer, address: &Address);

    /// Whether nothing refers to the number of a peer whose lane is lost, so that it is free for another one. What
    /// remembers it without need forgets it.
    fn retire(&mut self, peer: Peer) -> bool;

    /// Counts insertions into the address vector: when it changes, [`Host::addresses`] has more. 0 without a vector.
    fn insertions(&self) -> u32 {
        0
    }

    /// All addresses of the vector, for a transport whose packets name their senders by less than an address.
    fn addresses(&self) -> Vec<Address> {
        Vec::new()
    }

    /// The address that the application knows a peer by: the one it was introduced with, or, where the transport is one
    /// of several of its endpoint, what that means to the application.
    fn address(&self, peer: Peer) -> Option<&Address>;

    /// A message has arrived whole: `arrived.len` bytes at `body`.
    ///
    /// # Safety
    /// `body` may be read for `arrived.len` bytes during the call (a peer may be changing them).
    unsafe fn deliver(&mut self, arrived: &Arrived, body: *const u8) -> Delivery;

    /// A message was announced whose payload lies at the sender.
    fn announce(&mut self, arrived: &Arrived, token: T::Token) -> Announced<T>;

    /// The receive behind a pulled payload, while it is open.
    fn receiving(&self, id: SlotId) -> Option<Receiving<'_>>;

    /// A pulled payload has arrived, or failed to.
    fn received(&mut self, id: SlotId, result: Result<(), Errno>);

    /// Takes the oldest receive that is posted for untagged messages, for a transport that hands receives to a device
    /// before their message is known. It ends with [`Host::landed`], [`Host::spent`] or [`Host::received`] with an
    /// error, or with its peer ([`Host::fail_lane`]), and cannot be cancelled any more. `None` if none is posted.
    fn claim(&mut self, _peer: Peer) -> Option<SlotId> {
        None
    }

    /// A message has come into a claimed receive.
    fn landed(&mut self, _id: SlotId, _arrived: &Arrived) {}

    /// A peer's write of `len` bytes with remote CQ data has used a claimed receive up (`FI_RX_CQ_DATA`).
    fn spent(&mut self, _id: SlotId, _data: u64, _len: usize) {}

    /// A peer wrote into local memory with remote CQ data. `false`: no room to report it now; offer it again.
    #[must_use]
    fn remote_write(&mut self, peer: Peer, data: RemoteData, len: usize) -> bool;

    /// A peer's access to registered memory here has been executed by this end. To be called by transports whose
    /// peers' accesses pass through them, for every access that succeeded, with the rights that it needed.
    fn accessed(&mut self, regions: &Regions, access: MrAccess, remote: &[RemotePiece]);

    /// Whether a counter may tell the application of peers' reads: then the application may change what was read as
    /// soon as [`Host::accessed`] was called.
    fn counts_reads(&self, regions: &Regions) -> bool;

    /// A note of a peer's core has arrived.
    ///
    /// # Errors
    /// The peer does not keep to the protocol, and is to be given up.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes during the call (a peer may be changing them).
    unsafe fn noted(&mut self, peer: Peer, words: [u64; 4], body: *const u8, len: usize)
    -> Result<(), Errno>;

    /// Opens a slot for an operation that does not finish at once.
    fn open(&mut self, peer: Peer, ticket: Ticket, op: T::Op) -> SlotId;

    /// The same, with the operation made in its place: on hot paths.
    #[inline]
    fn open_with(&mut self, peer: Peer, ticket: Ticket, make: impl FnOnce() -> T::Op) -> SlotId {
        self.open(peer, ticket, make())
    }

    /// Takes [`Host::open`] back: the operation is not posted after all.
    fn abandon(&mut self, id: SlotId);

    /// The transport's part of an open operation to `peer`: `None` if `id` is stale, forged, or another peer's.
    fn op(&mut self, peer: Peer, id: SlotId) -> Option<&mut T::Op>;

    /// An operation has finished; its slot is gone. Reports it, and hands the transport's part back.
    fn finish(&mut self, peer: Peer, id: SlotId, result: Result<(), Errno>) -> Option<T::Op>;

    /// As [`Host::finish`] with an error, of which the device has a number of its own.
    fn finish_failed(&mut self, peer: Peer, id: SlotId, fault: Fault) -> Option<T::Op>;

    /// As [`Host::received`] with an error, of which the device has a number of its own.
    fn receive_failed(&mut self, id: SlotId, fault: Fault);

    /// A peer is gone: this end's operations to it end with `error`.
    fn fail_outgoing(&mut self, peer: Peer, error: Errno) {
        self.fail_ops(peer, error, |_| true);
    }

    /// A peer is gone: everything outstanding with it ends with `error`; payloads that lay there are lost, and their
    /// receives, posted later, end with `error` too.
    fn fail_peer(&mut self, peer: Peer, error: Errno) {
        self.fail_lane(peer, error, |_| true, |_| true);
    }

    /// As [`Host::fail_outgoing`], for the operations that `which` picks: where a peer has another lane.
    fn fail_ops(&mut self, peer: Peer, error: Errno, which: impl Fn(&T::Op) -> bool);

    /// As [`Host::fail_peer`], for the operations and the payloads at the peer that `ops` and `tokens` pick: where a
    /// peer has another lane.
    fn fail_lane(
        &mut self,
        peer: Peer,
        error: Errno,
        ops: impl Fn(&T::Op) -> bool,
        tokens: impl Fn(&T::Token) -> bool,
    );

    /// Whether the budget for unexpected payloads has room for `len` more bytes of `peer`. If not, the transport should
    /// have the sender keep its payloads, and announce them.
    fn may_hold(&self, peer: Peer, len: usize) -> bool;

    /// Whether the core still takes messages in this poll. When it says no, stop; nothing is lost.
    fn hungry(&self) -> bool;

    /// A connection packet has arrived at a connected endpoint. What to do about it.
    fn packet(&mut self, from: &Address, packet: &[u8]) -> Reaction;

    /// A packet of [`Lanes::packet`] did not arrive, or its destination has gone since.
    fn packet_lost(&mut self, to: &Address, errno: Errno);
}

/// A device's part of a shared receive context: it fills the context's receives with what comes to whichever of its
/// endpoints.
pub trait SharedReceives: Any + Send + Sync {
    /// Hands a receive to the device. It ends with [`Host::landed`], [`Host::spent`] or [`Host::received`] of the
    /// endpoint whose message took it, which may be before this returns.
    ///
    /// # Errors
    /// What the device answers; it has nothing of it then.
    ///
    /// # Safety
    /// The pieces are lent until the receive has ended, or the context was [closed](Self::close) and its endpoints'
    /// lanes have settled ([`Lanes::settle_receives`]).
    unsafe fn post(&self, id: SlotId, pieces: &[Piece]) -> Result<()>;

    /// The application has closed the context.
    fn close(&self);
}

/// What a transport may call from a thread of its own. See [`Lanes::attend`].
pub trait Attendant: Send + Sync {
    /// Has [`Lanes::let_out`] called, under the endpoint's lock.
    fn let_out(&self);
}

/// One endpoint's ways to its peers.
///
/// # Safety
/// Memory that an operation lends, here or in [`Host::op`] and [`Host::receiving`], is read or written until the
/// operation is finished there ([`Host::finish`], [`Host::received`], [`Host::abandon`]) at most, by this end, its
/// threads, peers and devices; what was not finished when the lanes are dropped is not touched after that.
pub unsafe trait Lanes<T: Transport>: Send {
    /// Makes the endpoint reachable, under `name` or one of the transport's choosing, and answers its address.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`.
    fn enable(&mut self, name: Option<&Address>) -> Result<Address>;

    /// The peer with this (normalised) address. Makes its slot at first sight, after [`Host::introduce`]; connects
    /// lazily.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` if the transport cannot have one more.
    fn peer<H: Host<T>>(&mut self, host: &mut H, address: &Address) -> Result<Peer>;

    /// Sends a short message of one piece whole, at once, if it can: then it is finished. `false` says that nothing
    /// happened, and [`Lanes::send`] is called: the way for everything that is not the common case.
    ///
    /// A message that was `injected` may be finished before it has arrived: its end is not reported.
    ///
    /// # Safety
    /// `from` may be read for `len` bytes during the call.
    #[inline]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        _peer: Peer,
        _tag: u64,
        _from: *const u8,
        _len: usize,
        _injected: bool,
    ) -> bool {
        false
    }

    /// Sends a message.
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room. An error means that nothing was sent and nothing will be reported.
    fn send<H: Host<T>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted>;

    /// Begins a read or a write as most are, at once, if it can: its operation is open then ([`Host::open`]). `false`
    /// says that nothing happened, and [`Lanes::rma`] is called: the way for everything that is not the common case.
    #[inline]
    fn access_now<H: Host<T>>(&mut self, _host: &mut H, _out: &OutAccess) -> bool {
        false
    }

    /// Reads or writes a peer's memory.
    ///
    /// # Errors
    /// As `send`.
    fn rma<H: Host<T>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted>;

    /// Changes a peer's memory atomically: once, whatever is sent again. Only for transports with
    /// [`Transport::atomic_size`].
    ///
    /// # Errors
    /// As `send`.
    fn atomic<H: Host<T>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let _ = (host, out);
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// Sends a note: once, and in order with other notes to the same peer. Its memory is the core's again when this
    /// returns. Only for transports with [`Transport::note_size`].
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room.
    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let _ = out;
        Err(ofi_api::Error::new(Errno::EOPNOTSUPP))
    }

    /// A collective waits for a note of this peer: said anew after each poll, as long as it does. A transport that
    /// would not notice otherwise that the peer is gone looks for it.
    fn await_note(&mut self, _peer: Peer) {}

    /// Moves the payload behind `token` into the open receive `into`, then calls [`Host::received`].
    fn pull<H: Host<T>>(&mut self, host: &mut H, peer: Peer, token: T::Token, into: SlotId);

    /// The context that posted `op` closes while the operation is under way: its memory will not be lent any more when
    /// this returns. `true`: the operation goes on without that memory (a payload was copied, what is read goes
    /// nowhere), and ends with [`Host::finish`], which reports nothing. `false`: it is over, as far as this end goes;
    /// the core takes it out of its table. [`Lanes::settle_receives`] follows.
    fn abandon(&mut self, _peer: Peer, _id: SlotId, _op: &mut T::Op) -> bool {
        false
    }

    /// Receives have ended that were being filled, without [`Host::received`], or reads without [`Host::finish`]: their
    /// context was closed, or another transport's failure ended them. When this returns, nobody writes into memory of a
    /// receive that [`Host::receiving`] does not know, or of a read that [`Host::op`] does not.
    fn settle_receives<H: Host<T>>(&mut self, _host: &mut H) {}

    /// Tells the sender that the payload behind `token` is not wanted.
    fn discard(&mut self, peer: Peer, token: T::Token);

    /// Whether it takes receives before their messages ([`Host::claim`]). Asked once, after [`Lanes::enable`].
    fn claims(&self) -> bool {
        false
    }

    /// Its receives are those of a shared context. Told once, after [`Lanes::enable`].
    fn share(&mut self, _receives: &Arc<dyn SharedReceives>) {}

    /// A receive was posted, where [`Lanes::claims`] says so.
    fn receive_posted<H: Host<T>>(&mut self, _host: &mut H) {}

    /// Moves everything on: takes in what has arrived, sends what was waiting, finishes what has ended.
    fn poll<H: Host<T>>(&mut self, host: &mut H);

    /// Says before [`Lanes::enable`] whether the endpoint may use shared memory with peers of its host
    /// (`FI_OPT_SHARED_MEMORY_PERMITTED`), which it may otherwise. Only asked where [`Transport::needs_shared_memory`]
    /// does not say that there is no other way.
    fn permit_shared_memory(&mut self, _permitted: bool) {}

    /// Says before [`Lanes::enable`] what an option of the transport's own was set to ([`Transport::option`]).
    fn set_option(&mut self, _option: EpOption, _value: usize) {}

    /// Who has the endpoint say what it owes when a peer asks after it and the application does not look.
    fn attend(&mut self, _attendant: Weak<dyn Attendant>) {}

    /// Lets out what waits for company, such as acknowledgements, and takes nothing in.
    fn let_out<H: Host<T>>(&mut self, _host: &mut H) {}

    /// A registration is closing, and grants on it are left: gives those back that the lanes have kept, once what they
    /// are for is copied.
    fn give_back(&mut self) {}

    /// Prepares for blocking on [`Lanes::wait_fd`].
    fn arm(&mut self) -> Arm;

    /// Readable when an armed endpoint has something to poll for. `None` where the transport cannot block.
    fn wait_fd(&self) -> Option<RawFd>;

    /// Sends a connection packet of up to [`MAX_PACKET`] bytes, in order with others. It arrives, or
    /// [`Host::packet_lost`] tells. With `watch` that is told too if `to` goes away later, within a second, until it is
    /// joined or another packet is sent.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without connections.
    fn packet(&mut self, _to: &Address, _packet: &[u8], _watch: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Takes over what the port kept with the request that the endpoint accepts ([`Port::held`]). [`Lanes::join`]
    /// follows.
    ///
    /// # Errors
    /// What the transport answers; the acceptance fails with it.
    fn adopt(&mut self, _held: &Held) -> Result<()> {
        Ok(())
    }

    /// Makes `address` the one peer of a connected endpoint, number 0; nobody else is listened to. `first`: this end
    /// begins with whatever connecting takes.
    ///
    /// # Errors
    /// What that answers.
    fn join<H: Host<T>>(&mut self, _host: &mut H, _address: &Address, _first: bool) -> Result<()> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// The connection is over. With `drain`, what the peer sent before is taken first; then [`Host::fail_peer`].
    fn part<H: Host<T>>(&mut self, _host: &mut H, _drain: bool) {}

    /// Whether all connection packets that were sent are known to have arrived, or to be lost. Where
    /// [`Transport::KEEPS`], the endpoint is polled by a thread until then.
    fn is_settled(&self) -> bool {
        true
    }

    /// Joins a multicast group: what is sent to it arrives here from now on. Answers the address to send to.
    ///
    /// # Errors
    /// `FI_ENOSYS` for a transport without multicast; `FI_EINVAL` for what is no group; what the system answers.
    fn join_group(&mut self, _group: &Address) -> Result<Address> {
        Err(Error::new(Errno::ENOSYS))
    }

    /// Leaves a group.
    fn leave_group(&mut self, _group: &Address) {}

    /// Appends the transport's counters.
    fn statistics(&self, into: &mut Vec<Statistic>);

    /// Appends what is known of the way to one peer.
    fn peer_statistics(&self, _peer: Peer, _into: &mut Vec<Statistic>) {}
}
