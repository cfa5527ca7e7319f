//! The receive side: posted receives, messages that came before them, and receives being filled.

use ofi_api::{CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, Errno, FiAddr, Lent, OpFlags, Piece};

use super::outboxes::Outboxes;
use super::peers::Peers;
use crate::cntr::Kind;
use crate::cq::Credit;
use crate::matching::{Config, Envelope, Matcher, PostedReceive, Space};
use crate::slots::{SlotId, Slots};
use crate::transport::{Arrived, Origin, Peer, Route, RxName, Transport};

/// The memory of one receive.
pub struct Buffer {
    first: Piece,
    /// All pieces, where there is not exactly one.
    all: Option<Box<[Piece]>>,
}

impl Buffer {
    fn one(first: Piece) -> Self {
        Self { first, all: None }
    }

    fn many(all: Box<[Piece]>) -> Self {
        Self { first: Piece::new(std::ptr::null_mut(), 0), all: Some(all) }
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

/// A posted receive, small enough to lie in one cache line with what matching needs.
pub struct Posted {
    pub context: Context,
    /// The memory, if it is one piece.
    piece: Piece,
    /// [`SIGNALLED`], [`SILENT`], [`COUNTED`], or the id of a [`Special`], which has none of these values.
    tail: u64,
}

/// A receive of one piece whose success is reported.
const SIGNALLED: u64 = 0;
/// The same, on an endpoint that counts receives: it takes the longer way, so that the short one need not ask.
const COUNTED: u64 = 2;
/// A receive of one piece whose success is not reported. (Generations of occupied slots are odd, so no id is below 2^32.)
const SILENT: u64 = 1;

/// What few receives have.
pub struct Special {
    pub signal: bool,
    /// Who counts its end.
    pub route: Route,
    pub kind: SpecialKind,
}

/// See [`Special`].
pub enum SpecialKind {
    /// Not exactly one piece.
    Pieces(Box<[Piece]>),
    /// The multi-receive buffer behind the receive.
    Multi(SlotId),
}

impl Posted {
    /// Context and memory, if this is a receive that `len` bytes complete without further ado: one piece that is long
    /// enough, whose success is reported.
    #[inline(always)]
    pub fn simple(&self, len: usize) -> Option<(Context, *mut u8)> {
        (self.tail == SIGNALLED && len <= self.piece.len).then_some((self.context, self.piece.addr))
    }

    /// Whether there is more to it than one piece of memory.
    pub fn is_special(&self) -> bool {
        self.tail > COUNTED
    }

    fn special(&self) -> Option<SlotId> {
        self.is_special().then_some(SlotId::from_wire(self.tail))
    }
}

impl PostedReceive for Posted {
    #[inline]
    fn context(&self) -> usize {
        self.context.0
    }
}

/// A multi-receive buffer: messages are packed one behind the other.
pub struct MultiBuffer {
    pub buffer: Piece,
    pub used: usize,
    /// Messages assigned to it whose bytes have not all arrived.
    pub filling: usize,
    /// It is no longer posted; the completion that finds `filling` at zero releases it.
    pub exhausted: bool,
}

/// What is kept of a message that no receive waited for.
pub enum Held<T: Transport> {
    /// All of it.
    Bytes(Box<[u8]>),
    /// The payload lies at the sender.
    AtSender(T::Token),
    /// The payload lay at a sender that is gone.
    Lost(Errno),
}

/// A receive that has its message, whose bytes are on their way.
pub struct Filling {
    pub context: Context,
    pub buffer: Buffer,
    signal: bool,
    multi: Option<SlotId>,
    route: Route,
    pub arrived: Arrived,
}

impl Filling {
    /// Bytes that will be placed.
    #[inline]
    pub fn placed(&self) -> usize {
        self.arrived.len.min(self.buffer.len())
    }
}

/// What people may read about the receive side.
#[derive(Default)]
pub struct Counts {
    pub messages: u64,
    pub bytes: u64,
    pub unexpected: u64,
    pub truncated: u64,
    pub failed: u64,
    pub stopped: u64,
    pub over_budget: u64,
    pub dropped: u64,
}

/// The receive side of an endpoint.
pub struct RxSide<T: Transport> {
    pub matcher: Matcher<Posted, Held<T>>,
    pub filling: Slots<Filling>,
    specials: Slots<Special>,
    pub multis: Slots<MultiBuffer>,
    pub op_flags: OpFlags,
    /// The queue was bound with `FI_SELECTIVE_COMPLETION`.
    pub selective: bool,
    pub bound: bool,
    /// What a receive whose success is reported is marked with, and what one without flags is; see [`RxSide::decide`].
    signalled: u64,
    plain: u64,
    /// What the endpoint was opened for: untagged and tagged receives.
    pub may_receive: [bool; 2],
    /// The same once it is enabled, if plain receives have no flags by default.
    pub quick: [bool; 2],
    /// `FI_SOURCE`: completions say from whom.
    pub report_source: bool,
    /// `FI_SOURCE_ERR`: completions from whom the address vector does not know are errors.
    pub source_errors: bool,
    /// Either of them; see [`RxSide::decide`].
    sourced: bool,
    pub directed: bool,
    pub tagged_directed: bool,
    pub min_multi_recv: usize,
    /// Of `FI_EP_DGRAM`: what finds no room is dropped.
    pub lossy: bool,
    pub iov_limit: usize,
    pub counts: Counts,
}

impl<T: Transport> RxSide<T> {
    pub fn new(config: &Config) -> Self {
        Self {
            matcher: Matcher::new(config),
            filling: Slots::default(),
            specials: Slots::default(),
            multis: Slots::default(),
            op_flags: OpFlags::empty(),
            selective: false,
            bound: false,
            signalled: SIGNALLED,
            plain: SIGNALLED,
            may_receive: [false; 2],
            quick: [false; 2],
            report_source: false,
            source_errors: false,
            sourced: false,
            directed: false,
            tagged_directed: false,
            min_multi_recv: 0,
            lossy: false,
            iov_limit: 1,
            counts: Counts::default(),
        }
    }

    /// Decides how receives are marked: `counted` says whether a counter counts them.
    pub fn decide(&mut self, counted: bool) {
        self.signalled = if counted { COUNTED } else { SIGNALLED };
        self.sourced = self.report_source || self.source_errors;
        self.plain = if self.reports(OpFlags::empty()) { self.signalled } else { SILENT };
    }

    /// Whether the success of a receive with these flags is reported.
    #[inline(always)]
    pub fn reports(&self, flags: OpFlags) -> bool {
        (!self.selective || flags.contains(OpFlags::COMPLETION)) && self.bound
    }

    /// A receive without flags to post into one piece.
    #[inline(always)]
    pub fn plain(&self, context: Context, piece: Piece) -> Posted {
        Posted { context, piece, tail: self.plain }
    }

    /// A receive to post into one piece.
    #[inline(always)]
    fn of_one(&self, context: Context, piece: Piece, signal: bool) -> Posted {
        Posted { context, piece, tail: if signal { self.signalled } else { SILENT } }
    }

    /// A receive to post into `lent`.
    #[inline(always)]
    pub fn posted(&mut self, context: Context, lent: &Lent<'_>, signal: bool) -> Posted {
        if let [piece] = lent.pieces() {
            return self.of_one(context, *piece, signal);
        }
        self.posted_special(
            context,
            Special { signal, route: Route::ENDPOINT, kind: SpecialKind::Pieces(lent.pieces().into()) },
        )
    }

    /// A receive to post of something that is not one piece.
    #[inline(never)]
    pub fn posted_special(&mut self, context: Context, special: Special) -> Posted {
        let id = self.specials.insert(special);
        Posted { context, piece: Piece::new(std::ptr::null_mut(), 0), tail: id.to_wire() }
    }

    /// The multi-receive buffer behind a posted receive, and whether success is reported.
    pub fn multi_of(&self, posted: &Posted) -> Option<(SlotId, bool)> {
        match self.specials.get(posted.special()?)? {
            Special { signal, kind: SpecialKind::Multi(id), .. } => Some((*id, *signal)),
            Special { kind: SpecialKind::Pieces(_), .. } => None,
        }
    }

    /// Who counts the end of a posted receive.
    pub fn route_of(&self, posted: &Posted) -> Route {
        let special = posted.special().and_then(|id| self.specials.get(id));
        special.map_or(Route::ENDPOINT, |special| special.route)
    }

    /// Forgets a receive that is posted no longer; answers the multi-receive buffer that was behind it.
    pub fn forget(&mut self, posted: &Posted) -> Option<SlotId> {
        match self.specials.remove(posted.special()?)?.kind {
            SpecialKind::Multi(id) => Some(id),
            SpecialKind::Pieces(_) => None,
        }
    }

    /// Starts to fill a receive that is posted no longer, and has no multi-receive buffer.
    pub fn fill(&mut self, posted: Posted, arrived: &Arrived) -> Filling {
        let (buffer, signal, route) = match posted.special().and_then(|id| self.specials.remove(id)) {
            Some(Special { signal, route, kind: SpecialKind::Pieces(all) }) => {
                (Buffer::many(all), signal, route)
            }
            _ => (Buffer::one(posted.piece), posted.tail != SILENT, Route::ENDPOINT),
        };
        Filling { context: posted.context, buffer, signal, multi: None, route, arrived: *arrived }
    }

    /// Starts to fill the next part of a multi-receive buffer. Whether the buffer is now exhausted; then it must no
    /// longer be posted.
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
            route: Route::ENDPOINT,
            arrived: *arrived,
        };
        Some((filling, exhausted))
    }

    /// Takes a completed part off its multi-receive buffer: the flag to report, and whether the credit comes back.
    fn release(&mut self, multi: SlotId) -> (CompletionFlags, Credit) {
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

    /// Reports a simple receive ([`Posted::simple`]).
    #[inline(always)]
    pub fn report(&mut self, boxes: &mut Outboxes, peers: &mut Peers, context: Context, arrived: &Arrived) {
        self.counts.messages += 1;
        self.counts.bytes += arrived.len as u64;
        if self.sourced {
            let (from, words, len) = arrived.parts();
            return self.report_sourced(boxes, peers, (context, len), from, words);
        }
        boxes.received(received(context, arrived), FiAddr::NOTAVAIL, Credit::Receive);
    }

    /// As `report`, with from whom it came.
    #[inline(never)]
    fn report_sourced(
        &mut self,
        boxes: &mut Outboxes,
        peers: &mut Peers,
        (context, len): (Context, usize),
        from: Origin,
        words: (u64, u64),
    ) {
        let arrived = &Arrived::of_parts(from, words, len);
        let body = received(context, arrived);
        let source = if self.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        if self.source_errors && source == FiAddr::NOTAVAIL {
            let (credit, context) = ((Credit::Receive, Route::ENDPOINT), body.op_context);
            return unknown_source(boxes, peers, context, arrived, arrived.len, body.flags, credit);
        }
        boxes.received(body, source, Credit::Receive);
    }

    /// Reports a filled receive.
    pub fn complete(&mut self, boxes: &mut Outboxes, peers: &mut Peers, filling: &Filling) {
        let arrived = &filling.arrived;
        let placed = filling.placed();
        self.counts.messages += 1;
        self.counts.bytes += placed as u64;
        if placed < arrived.len {
            return self.truncated(boxes, peers, filling, placed);
        }
        let mut flags = arrived_flags(arrived);
        let mut credit = Credit::Receive;
        let mut signal = filling.signal;
        let mut buf = std::ptr::null_mut();
        if let Some(multi) = filling.multi {
            let (released, given) = self.release(multi);
            (flags, credit, buf) = (flags | released, given, filling.buffer.first.addr);
            signal |= !released.is_empty() && self.bound;
        }
        if !signal {
            boxes.ended(Kind::Receive, placed, filling.route);
            boxes.credits[credit as usize] += 1;
            return;
        }
        let source = if self.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        if self.source_errors && source == FiAddr::NOTAVAIL {
            return unknown_source(
                boxes,
                peers,
                filling.context,
                arrived,
                placed,
                flags,
                (credit, filling.route),
            );
        }
        boxes.ended(Kind::Receive, placed, filling.route);
        let body = CqTaggedEntry {
            op_context: filling.context,
            flags,
            len: placed,
            buf,
            data: arrived.data,
            tag: arrived.tag,
        };
        boxes.received(body, source, credit);
    }

    #[cold]
    fn truncated(&mut self, boxes: &mut Outboxes, peers: &mut Peers, filling: &Filling, placed: usize) {
        self.counts.truncated += 1;
        self.fail(boxes, peers, filling, Errno::ETRUNC, placed);
    }

    /// Reports a receive that failed after `placed` bytes.
    #[cold]
    pub fn fail(
        &mut self,
        boxes: &mut Outboxes,
        peers: &mut Peers,
        filling: &Filling,
        errno: Errno,
        placed: usize,
    ) {
        self.counts.failed += 1;
        let arrived = &filling.arrived;
        let (released, credit) =
            filling.multi.map_or((CompletionFlags::empty(), Credit::Receive), |multi| self.release(multi));
        let mut error = CqErrorEntry::new(filling.context, arrived_flags(arrived) | released, errno);
        (error.len, error.data, error.tag) = (placed, arrived.data, arrived.tag);
        error.olen = arrived.len - placed;
        error.src_addr = peers.source(arrived.peer);
        if filling.multi.is_some() {
            error.buf = filling.buffer.first.addr as usize;
        }
        boxes.receive_failed(error, credit, filling.route);
    }
}

/// Data came from somebody whom the address vector does not know (`FI_SOURCE_ERR`).
#[cold]
fn unknown_source(
    boxes: &mut Outboxes,
    peers: &Peers,
    context: Context,
    arrived: &Arrived,
    placed: usize,
    flags: CompletionFlags,
    (credit, route): (Credit, Route),
) {
    let mut error = CqErrorEntry::new(context, flags, Errno::EADDRNOTAVAIL);
    (error.len, error.data, error.tag) = (placed, arrived.data, arrived.tag);
    error.err_data = peers.address(arrived.peer).map(|address| address.bytes().to_vec()).unwrap_or_default();
    boxes.receive_failed(error, credit, route);
}

/// The completion of a receive that took all of a message.
#[inline(always)]
fn received(context: Context, arrived: &Arrived) -> CqTaggedEntry {
    CqTaggedEntry {
        op_context: context,
        flags: arrived_flags(arrived),
        len: arrived.len,
        buf: std::ptr::null_mut(),
        data: arrived.data,
        tag: arrived.tag,
    }
}

/// The flags of a received message's completion.
#[inline]
pub fn arrived_flags(arrived: &Arrived) -> CompletionFlags {
    let kind = if arrived.tagged { CompletionFlags::TAGGED } else { CompletionFlags::MSG };
    let data = if arrived.has_data { CompletionFlags::REMOTE_CQ_DATA } else { CompletionFlags::empty() };
    CompletionFlags::RECV | kind | data
}

/// The matcher's view of a message.
#[inline]
pub fn envelope(arrived: &Arrived) -> Envelope {
    Envelope {
        space: if arrived.tagged { Space::Tagged } else { Space::Untagged },
        peer: crate::matching::Peer(arrived.peer),
        tag: arrived.tag,
        len: arrived.len as u64,
        data: arrived.has_data.then_some(arrived.data),
    }
}

/// A message as it arrived, from the matcher's view.
pub fn arrived(envelope: &Envelope) -> Arrived {
    let peer: Peer = envelope.peer.0;
    Arrived {
        peer,
        rx: RxName::ANY,
        tagged: envelope.space == Space::Tagged,
        has_data: envelope.data.is_some(),
        tag: envelope.tag,
        data: envelope.data.unwrap_or(0),
        len: envelope.len as usize,
    }
}
