//! A queue in which receives wait for messages and messages for receives. It belongs to one endpoint, to one receive
//! context, or to several endpoints (`shared_receive.rs`). Matching rules and reporting are elsewhere.

use ofi_api::{CompletionFlags, Context, Errno, Lent, Piece};

use crate::copy;
use crate::cq::Credit;
use crate::hmem::{Parts, Staged};
use crate::matching::{Envelope, Limit, Matcher, MatcherConfig, PostedReceive};
use crate::slots::{SlotId, Slots};
use crate::transport::{Arrived, CounterTarget, PeerId, Transport};

/// The memory of one receive.
pub struct Buffer {
    first: Piece,
    /// All pieces, unless there is exactly one.
    all: Option<Box<[Piece]>>,
}

impl Buffer {
    fn one(first: Piece) -> Self {
        Self { first, all: None }
    }

    fn many(all: Box<[Piece]>) -> Self {
        Self { first: Piece::new(std::ptr::null_mut(), 0), all: Some(all) }
    }

    /// The first byte of a buffer of one piece.
    pub fn start(&self) -> *mut u8 {
        self.first.addr
    }

    #[inline]
    pub fn pieces(&self) -> &[Piece] {
        match &self.all {
            None => std::slice::from_ref(&self.first),
            Some(all) => all,
        }
    }

    #[inline]
    fn len(&self) -> usize {
        match &self.all {
            None => self.first.len,
            Some(all) => all.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len)),
        }
    }
}

/// A posted receive, small enough to fit into one cache line with the data for matching.
pub struct CompactReceive {
    pub context: Context,
    /// The memory, if it is one piece.
    piece: Piece,
    /// [`SIGNALLED`], [`SILENT`], [`COUNTED`], or the id of a [`Special`], which has none of these values.
    tail: u64,
}

/// A receive of one piece whose success is reported.
pub const SIGNALLED: u64 = 0;
/// As [`SIGNALLED`], on an endpoint that counts receives. It takes the general path, so that the fast path need not
/// check for counters.
pub const COUNTED: u64 = 2;
/// A receive of one piece whose success is not reported. (Generations of occupied slots are odd, so no id is below
/// 2^32.)
pub const SILENT: u64 = 1;

/// Rare parts of a receive.
pub struct Special {
    pub signal: bool,
    /// The counter of its end.
    pub route: CounterTarget,
    pub kind: SpecialKind,
}

/// See [`Special`].
pub enum SpecialKind {
    /// Not exactly one piece.
    Pieces(Box<[Piece]>),
    /// The multi-receive buffer behind the receive.
    Multi(SlotId),
    /// Some of the memory is a device's.
    Device(Parts),
}

impl CompactReceive {
    /// A receive into one piece, marked [`SIGNALLED`], [`SILENT`] or [`COUNTED`].
    #[inline(always)]
    pub const fn plain(context: Context, piece: Piece, mark: u64) -> Self {
        Self { context, piece, tail: mark }
    }

    /// Context and memory, if a message of `len` bytes completes this receive without further work: it has one piece,
    /// which is long enough, and its success is reported.
    #[inline(always)]
    pub fn simple(&self, len: usize) -> Option<(Context, *mut u8)> {
        (self.tail == SIGNALLED && len <= self.piece.len).then_some((self.context, self.piece.addr))
    }

    /// Whether the receive is more than one piece of memory.
    pub fn is_special(&self) -> bool {
        self.tail > COUNTED
    }

    fn special(&self) -> Option<SlotId> {
        self.is_special().then_some(SlotId::from_wire(self.tail))
    }
}

impl PostedReceive for CompactReceive {
    #[inline]
    fn context(&self) -> usize {
        self.context.0
    }

    #[inline]
    fn memory(&self) -> usize {
        self.piece.addr.addr()
    }
}

/// A multi-receive buffer, in which messages are packed one after the other.
struct MultiBuffer {
    buffer: Piece,
    used: usize,
    /// Messages assigned to it whose bytes have not all arrived.
    filling: usize,
    /// The buffer is no longer posted; the completion that finds `filling` at zero releases it.
    exhausted: bool,
}

/// The stored content of an unexpected message.
pub enum UnexpectedPayload<T: Transport> {
    /// All of it.
    Bytes(Box<[u8]>),
    /// The payload lies at the sender.
    AtSender(T::Token),
    /// The payload was at a sender that is now gone.
    Lost(Errno),
}

/// A matched receive whose bytes are in transit.
pub struct Filling {
    pub context: Context,
    pub buffer: Buffer,
    /// Whether success is reported. In a shared queue: whether a report was requested.
    pub signal: bool,
    pub multi: Option<SlotId>,
    pub route: CounterTarget,
    /// The receive context that reports it; 0 for the endpoint itself.
    pub at: u16,
    pub arrived: Arrived,
    /// The memory of the receive, if any of it is a device's: `buffer` is then a buffer of the host.
    pub staged: Option<Box<Staged>>,
}

impl Filling {
    /// Bytes that will be placed.
    #[inline]
    pub fn placed(&self) -> usize {
        self.arrived.len.min(self.buffer.len())
    }
}

/// A waiting message, and the endpoint through which it came.
pub struct Kept<T: Transport> {
    pub held: UnexpectedPayload<T>,
    /// The endpoint, among those that share the queue.
    pub member: u32,
    /// The endpoint's number for the sender.
    pub peer: PeerId,
}

/// A message that has arrived, or that waits at its sender.
pub enum Incoming<T: Transport> {
    Body(*const u8),
    Token(T::Token),
}

/// The outcome for it.
pub enum Arrival<T: Transport> {
    /// It goes to a receive.
    Receive(Filling, Incoming<T>),
    /// It was kept for a receive. `over`: it exceeds the budget.
    Kept { over: bool },
    /// There is no room for it. Its body is not kept.
    Refused(Incoming<T>),
}

/// The receive that a message goes to.
enum Found {
    Receive(Filling),
    Nobody,
    /// A multi-receive buffer, but no room to report it.
    Stopped,
}

/// One receive queue: posted receives, unexpected messages, and multi-receive buffers.
pub struct RxQueue<T: Transport> {
    pub matcher: Matcher<CompactReceive, Kept<T>>,
    specials: Slots<Special>,
    multis: Slots<MultiBuffer>,
    pub min_multi_recv: usize,
}

impl<T: Transport> RxQueue<T> {
    pub fn new(config: &MatcherConfig) -> Self {
        Self {
            matcher: Matcher::new(config),
            specials: Slots::default(),
            multis: Slots::default(),
            min_multi_recv: crate::settings::MIN_MULTI_RECV,
        }
    }

    /// A receive to post into `lent`. `plain` is the mark to use for a single piece ([`CompactReceive::plain`]).
    #[inline(always)]
    pub fn posted(&mut self, context: Context, lent: &Lent<'_>, signal: bool, plain: u64) -> CompactReceive {
        if let [piece] = lent.pieces() {
            return CompactReceive { context, piece: *piece, tail: plain };
        }
        self.posted_special(
            context,
            Special {
                signal,
                route: CounterTarget::ENDPOINT,
                kind: SpecialKind::Pieces(lent.pieces().into()),
            },
        )
    }

    /// A receive to post whose memory is not one piece.
    #[inline(never)]
    pub fn posted_special(&mut self, context: Context, special: Special) -> CompactReceive {
        let id = self.specials.insert(special);
        CompactReceive { context, piece: Piece::new(std::ptr::null_mut(), 0), tail: id.to_wire() }
    }

    /// Makes a multi-receive buffer.
    pub fn multi(&mut self, piece: &Piece) -> SlotId {
        let buffer = Piece::new(piece.addr, piece.len);
        self.multis.insert(MultiBuffer { buffer, used: 0, filling: 0, exhausted: false })
    }

    /// The multi-receive buffer behind a posted receive, and whether success is reported.
    fn multi_of(&self, posted: &CompactReceive) -> Option<(SlotId, bool)> {
        match self.specials.get(posted.special()?)? {
            Special { signal, kind: SpecialKind::Multi(id), .. } => Some((*id, *signal)),
            Special { kind: SpecialKind::Pieces(_) | SpecialKind::Device(_), .. } => None,
        }
    }

    /// Forgets a receive that is no longer posted. Returns its multi-receive buffer, if it had one.
    pub fn forget(&mut self, posted: &CompactReceive) -> Option<SlotId> {
        match self.specials.remove(posted.special()?)?.kind {
            SpecialKind::Multi(id) => Some(id),
            SpecialKind::Pieces(_) | SpecialKind::Device(_) => None,
        }
    }

    /// Finds the receive for a message, and unposts it unless it has room for more messages. `room`: whether an entry
    /// without a receive's credit may be reported.
    #[inline]
    fn find(&mut self, envelope: &Envelope, arrived: &Arrived, room: bool) -> Found {
        let Some(mut found) = self.matcher.arrive(envelope) else { return Found::Nobody };
        if !found.recv().is_special() {
            let posted = found.take();
            return Found::Receive(self.fill(posted, arrived));
        }
        let (id, context) = (found.id(), found.recv().context);
        let Some((multi, signal)) = self.matcher.get(id).and_then(|posted| self.multi_of(posted)) else {
            return match self.matcher.take(id) {
                Some(posted) => Found::Receive(self.fill(posted, arrived)),
                None => Found::Nobody,
            };
        };
        if !room {
            return Found::Stopped;
        }
        match self.fill_multi(context, signal, multi, arrived) {
            Some((filling, exhausted)) => {
                if exhausted && let Some(posted) = self.matcher.take(id) {
                    self.forget(&posted);
                }
                Found::Receive(filling)
            }
            None => Found::Nobody,
        }
    }

    /// Takes the oldest receive that matches this envelope, before its message exists, which may be as long as all of
    /// its memory.
    pub fn claim(&mut self, envelope: &Envelope, arrived: &Arrived) -> Option<Filling> {
        match self.find(envelope, arrived, false) {
            Found::Receive(mut filling) => {
                if let Some(staged) = filling.staged.take() {
                    let staging = filling.staged.insert(Box::new(staged.whole()));
                    filling.buffer = Buffer::one(staging.piece());
                }
                Some(filling)
            }
            Found::Nobody | Found::Stopped => None,
        }
    }

    /// Finds the receive of a message, or keeps the message. `from`: the endpoint that it came through. With `beyond`,
    /// a payload that has already arrived may exceed the budget by as much as a peer can have in flight
    /// ([`Transport::in_flight`]).
    ///
    /// # Safety
    /// A [`Incoming::Body`] may be read for `arrived.len` bytes during the call.
    pub unsafe fn arrive(
        &mut self,
        envelope: &Envelope,
        arrived: &Arrived,
        from: u32,
        (room, beyond): (bool, bool),
        incoming: Incoming<T>,
    ) -> Arrival<T> {
        match self.find(envelope, arrived, room) {
            Found::Receive(filling) => return Arrival::Receive(filling, incoming),
            Found::Stopped => return Arrival::Refused(incoming),
            Found::Nobody => {}
        }
        let kept = |held| Kept { held, member: from, peer: arrived.peer };
        let (content, bytes) = match incoming {
            Incoming::Token(token) => (kept(UnexpectedPayload::AtSender(token)), 0),
            Incoming::Body(body) => {
                if !self.matcher.may_hold_envelope(envelope.peer) {
                    return Arrival::Refused(incoming);
                }
                let mut bytes = Box::<[u8]>::new_uninit_slice(arrived.len);
                // SAFETY: `body` is readable for `len` bytes, by the caller's promise, and the box is as long.
                unsafe { copy::bytes(body, bytes.as_mut_ptr().cast(), arrived.len) };
                // SAFETY: every byte was just written.
                (kept(UnexpectedPayload::Bytes(unsafe { bytes.assume_init() })), arrived.len)
            }
        };
        let refused = match self.matcher.store(envelope, content, bytes) {
            Ok(_) => return Arrival::Kept { over: false },
            Err(refused) => refused,
        };
        let content = if refused.limit == Limit::Bytes && beyond {
            // The transport tells the sender to keep the next ones.
            match self.matcher.store_beyond(envelope, refused.content, bytes, T::in_flight()) {
                Ok(_) => return Arrival::Kept { over: true },
                Err(refused) => refused.content,
            }
        } else {
            refused.content
        };
        Arrival::Refused(match content.held {
            UnexpectedPayload::AtSender(token) => Incoming::Token(token),
            UnexpectedPayload::Bytes(_) | UnexpectedPayload::Lost(_) => Incoming::Body(std::ptr::null()),
        })
    }

    /// Starts to fill a receive that is no longer posted and has no multi-receive buffer.
    pub fn fill(&mut self, posted: CompactReceive, arrived: &Arrived) -> Filling {
        let mut staged = None;
        let (buffer, signal, route) = match posted.special().and_then(|id| self.specials.remove(id)) {
            Some(Special { signal, route, kind: SpecialKind::Pieces(all) }) => {
                (Buffer::many(all), signal, route)
            }
            Some(Special { signal, route, kind: SpecialKind::Device(parts) }) => {
                let staging = staged.insert(Box::new(parts.staged(arrived.len)));
                (Buffer::one(staging.piece()), signal, route)
            }
            _ => (Buffer::one(posted.piece), posted.tail != SILENT, CounterTarget::ENDPOINT),
        };
        let (context, arrived) = (posted.context, *arrived);
        Filling { context, buffer, signal, multi: None, route, at: 0, arrived, staged }
    }

    /// Starts to fill the next part of a multi-receive buffer. Returns whether that exhausts the buffer, which must
    /// then be unposted.
    pub fn fill_multi(
        &mut self,
        context: Context,
        signal: bool,
        multi: SlotId,
        arrived: &Arrived,
    ) -> Option<(Filling, bool)> {
        let buffer = self.multis.get_mut(multi)?;
        let free = buffer.buffer.len - buffer.used;
        let taken = free.min(arrived.len);
        let part = Piece::new(buffer.buffer.addr.wrapping_add(buffer.used), taken);
        buffer.used += taken;
        buffer.filling += 1;
        buffer.exhausted = free - taken < self.min_multi_recv.max(1);
        let exhausted = buffer.exhausted;
        let filling = Filling {
            context,
            buffer: Buffer::one(part),
            signal,
            multi: Some(multi),
            route: CounterTarget::ENDPOINT,
            at: 0,
            arrived: *arrived,
            staged: None,
        };
        Some((filling, exhausted))
    }

    /// Removes a completed part from its multi-receive buffer. Returns the flag to report, and whether the credit is
    /// returned.
    pub fn release(&mut self, multi: SlotId) -> (CompletionFlags, Credit) {
        let Some(buffer) = self.multis.get_mut(multi) else {
            return (CompletionFlags::empty(), Credit::None);
        };
        buffer.filling -= 1;
        if buffer.filling == 0 && buffer.exhausted {
            self.multis.remove(multi);
            (CompletionFlags::MULTI_RECV, Credit::Receive)
        } else {
            (CompletionFlags::empty(), Credit::None)
        }
    }

    /// Ends a posted receive without a message. Returns the flags, whether the credit is returned, and its counter.
    pub fn end(&mut self, posted: &CompactReceive) -> (CompletionFlags, Credit, CounterTarget) {
        let special = posted.special().and_then(|id| self.specials.get(id));
        let route = special.map_or(CounterTarget::ENDPOINT, |special| special.route);
        let (mut flags, mut credit) = (CompletionFlags::empty(), Credit::Receive);
        if let Some(id) = self.forget(posted)
            && let Some(multi) = self.multis.get_mut(id)
        {
            multi.exhausted = true;
            if multi.filling == 0 {
                self.multis.remove(id);
                flags = CompletionFlags::MULTI_RECV;
            } else {
                credit = Credit::None; // returned with the flag when the last part has arrived
            }
        }
        (flags, credit, route)
    }
}
