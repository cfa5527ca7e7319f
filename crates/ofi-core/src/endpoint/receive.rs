//! The receive side: reports ended receives, and holds receives that are being filled. Posted receives are in
//! `queue.rs`.

use ofi_api::{CompletionFlags, Context, CqErrorEntry, CqTaggedEntry, Errno, FiAddr, Lent, OpFlags, Piece};

use super::peers::Peers;
use super::queue::{COUNTED, CompactReceive, Filling, Kept, RxQueue, SIGNALLED, SILENT, UnexpectedPayload};
use super::shared_receive::SharedPart;
use super::staging::CompletionStaging;
use crate::cntr::Kind;
use crate::cq::Credit;
use crate::matching::{Envelope, MatcherConfig, Space};
use crate::slots::{SlotId, Slots};
use crate::transport::{Arrived, CounterTarget, Fault, Origin, PeerId, RxName, Transport};

/// Statistics of the receive side.
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
    /// Its own receives; empty if it uses a shared context.
    pub queue: RxQueue<T>,
    /// Its part in a shared receive context.
    pub shared: Option<SharedPart<T>>,
    pub filling: Slots<Filling>,
    pub op_flags: OpFlags,
    /// The queue was bound with `FI_SELECTIVE_COMPLETION`.
    pub selective: bool,
    pub bound: bool,
    /// The marks of a receive whose success is reported, and of one without flags; see [`RxSide::decide`].
    signalled: u64,
    plain: u64,
    /// The permitted receives: untagged and tagged.
    pub may_receive: [bool; 2],
    /// The same marks once it is enabled, if plain receives have no flags by default.
    pub quick: [bool; 2],
    /// `FI_SOURCE`: completions name the sender.
    pub report_source: bool,
    /// `FI_SOURCE_ERR`: a completion from a sender that is not in the address vector is an error.
    pub source_errors: bool,
    /// Either of them; see [`RxSide::decide`].
    sourced: bool,
    pub directed: bool,
    pub tagged_directed: bool,
    /// For `FI_EP_DGRAM`: messages are dropped if there is no room.
    pub lossy: bool,
    pub iov_limit: usize,
    /// The transport takes receives before their messages arrive.
    pub claimed: bool,
    /// Memory may be a device's (`FI_HMEM`), so no receive takes the fast path.
    pub devices: bool,
    pub counts: Counts,
}

impl<T: Transport> RxSide<T> {
    pub fn new(config: &MatcherConfig) -> Self {
        Self {
            queue: RxQueue::new(config),
            shared: None,
            filling: Slots::default(),
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
            lossy: false,
            iov_limit: 1,
            claimed: false,
            devices: false,
            counts: Counts::default(),
        }
    }

    /// Decides how receives are marked. `counted`: a counter counts them.
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
    pub fn plain(&self, context: Context, piece: Piece) -> CompactReceive {
        CompactReceive::plain(context, piece, self.plain)
    }

    /// As [`RxSide::reports`], for a receive of a shared queue. `asked`: whether the receive requested a report.
    pub fn reports_shared(&self, asked: bool) -> bool {
        self.reports(if asked { OpFlags::COMPLETION } else { OpFlags::empty() })
    }

    /// A receive to post into `lent`.
    #[inline(always)]
    pub fn posted(&mut self, context: Context, lent: &Lent<'_>, signal: bool) -> CompactReceive {
        let plain = if signal { self.signalled } else { SILENT };
        self.queue.posted(context, lent, signal, plain)
    }

    /// As [`RxQueue::release`], in the queue that the buffer is in.
    fn release(&mut self, multi: SlotId) -> (CompletionFlags, Credit) {
        match &self.shared {
            None => self.queue.release(multi),
            Some(part) => part.release(multi),
        }
    }

    /// Whether there is room for `len` more bytes of a peer's unexpected payloads.
    pub fn may_hold(&self, peer: PeerId, len: usize) -> bool {
        if self.lossy {
            return true;
        }
        match &self.shared {
            None => self.queue.matcher.may_hold_bytes(crate::matching::SourceId(peer), len),
            Some(part) => part.may_hold(peer, len),
        }
    }

    /// The bytes and the number of a peer's unexpected messages.
    pub fn held(&self, peer: PeerId) -> (usize, usize) {
        match &self.shared {
            None => self.queue.matcher.held_by(crate::matching::SourceId(peer)),
            Some(part) => part.held(peer),
        }
    }

    /// Whether there are waiting messages of a peer, or receives for its messages.
    pub fn knows(&mut self, peer: PeerId) -> bool {
        match &self.shared {
            None => {
                let matcher = &mut self.queue.matcher;
                let peer = crate::matching::SourceId(peer);
                let directed = self.directed || self.tagged_directed;
                matcher.envelopes_of(peer) > 0 || directed && matcher.has_directed_at(peer)
            }
            Some(part) => part.knows(peer),
        }
    }

    /// Records that the number of `peer` may be reused.
    pub fn forget(&mut self, peer: PeerId) {
        if let Some(part) = &mut self.shared {
            part.forget(peer);
        }
    }

    /// Handles the loss of payloads at a peer: those whose tokens are `meant`.
    pub fn lose(&mut self, peer: PeerId, errno: Errno, meant: impl Fn(&T::Token) -> bool) {
        let lose = |kept: &mut Kept<T>| {
            if matches!(&kept.held, UnexpectedPayload::AtSender(token) if meant(token)) {
                kept.held = UnexpectedPayload::Lost(errno);
            }
        };
        match &mut self.shared {
            None => drop(self.queue.matcher.drop_peer(crate::matching::SourceId(peer), |kept, _| {
                lose(kept);
                false
            })),
            Some(part) => part.lose(peer, lose),
        }
    }

    /// Reports a simple receive ([`CompactReceive::simple`]).
    #[inline(always)]
    pub fn report(
        &mut self,
        staging: &mut CompletionStaging,
        peers: &mut Peers,
        context: Context,
        arrived: &Arrived,
    ) {
        self.counts.messages += 1;
        self.counts.bytes += arrived.len as u64;
        if self.sourced {
            let (from, words, len) = arrived.parts();
            return self.report_sourced(staging, peers, (context, len), from, words);
        }
        staging.received(received(context, arrived), FiAddr::NOTAVAIL, Credit::Receive);
    }

    /// As `report`, with the sender.
    #[inline(never)]
    fn report_sourced(
        &mut self,
        staging: &mut CompletionStaging,
        peers: &mut Peers,
        (context, len): (Context, usize),
        from: Origin,
        words: (u64, u64),
    ) {
        let arrived = &Arrived::of_parts(from, words, len);
        let body = received(context, arrived);
        let source = if self.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        if self.source_errors && source == FiAddr::NOTAVAIL {
            let (credit, context) = ((Credit::Receive, CounterTarget::ENDPOINT), body.op_context);
            let placed = (arrived.len, std::ptr::null_mut());
            return unknown_source(staging, peers, context, arrived, placed, body.flags, credit);
        }
        staging.received(body, source, Credit::Receive);
    }

    /// Reports a filled receive.
    pub fn complete(&mut self, staging: &mut CompletionStaging, peers: &mut Peers, filling: &Filling) {
        let arrived = &filling.arrived;
        let placed = filling.placed();
        self.counts.messages += 1;
        self.counts.bytes += placed as u64;
        if placed < arrived.len {
            return self.truncated(staging, peers, filling, placed);
        }
        let mut flags = arrived_flags(arrived);
        let mut credit = Credit::Receive;
        let mut signal = filling.signal;
        let mut buf = std::ptr::null_mut();
        if let Some(multi) = filling.multi {
            let (released, given) = self.release(multi);
            (flags, credit, buf) = (flags | released, given, filling.buffer.start());
            signal |= !released.is_empty() && self.bound;
        }
        if !signal {
            staging.ended(Kind::Receive, placed, filling.route);
            staging.credits[credit as usize] += 1;
            return;
        }
        let source = if self.report_source { peers.source(arrived.peer) } else { FiAddr::NOTAVAIL };
        if self.source_errors && source == FiAddr::NOTAVAIL {
            return unknown_source(
                staging,
                peers,
                filling.context,
                arrived,
                (placed, buf),
                flags,
                (credit, filling.route),
            );
        }
        staging.ended(Kind::Receive, placed, filling.route);
        let body = CqTaggedEntry {
            op_context: filling.context,
            flags,
            len: placed,
            buf,
            data: arrived.data,
            tag: arrived.tag,
        };
        staging.received(body, source, credit);
    }

    #[cold]
    fn truncated(
        &mut self,
        staging: &mut CompletionStaging,
        peers: &mut Peers,
        filling: &Filling,
        placed: usize,
    ) {
        self.counts.truncated += 1;
        self.fail(staging, peers, filling, Fault { errno: Errno::ETRUNC, number: 0 }, placed);
    }

    /// The raw address of a sender that is not in the address vector, if it is to be reported (`FI_SOURCE_ERR`).
    pub fn strange(&self, peers: &mut Peers, peer: PeerId) -> Option<Vec<u8>> {
        let is_strange = self.source_errors && peers.source(peer) == FiAddr::NOTAVAIL;
        is_strange.then(|| raw_address(peers, peer))
    }

    /// Reports a receive that failed after `placed` bytes.
    #[cold]
    pub fn fail(
        &mut self,
        staging: &mut CompletionStaging,
        peers: &mut Peers,
        filling: &Filling,
        Fault { errno, number }: Fault,
        placed: usize,
    ) {
        self.counts.failed += 1;
        let arrived = &filling.arrived;
        let (released, credit) =
            filling.multi.map_or((CompletionFlags::empty(), Credit::Receive), |multi| self.release(multi));
        let mut error = CqErrorEntry::new(filling.context, arrived_flags(arrived) | released, errno);
        (error.len, error.data, error.tag) = (placed, arrived.data, arrived.tag);
        (error.olen, error.prov_errno) = (arrived.len - placed, number);
        error.src_addr = peers.source(arrived.peer);
        if errno == Errno::ETRUNC {
            // The message has arrived, so its sender can be answered.
            error.err_data = self.strange(peers, arrived.peer).unwrap_or_default();
        }
        if filling.multi.is_some() {
            error.buf = filling.buffer.start() as usize;
        }
        staging.receive_failed(error, credit, filling.route);
    }
}

/// Reports data from a sender that is not in the address vector (`FI_SOURCE_ERR`).
#[cold]
fn unknown_source(
    staging: &mut CompletionStaging,
    peers: &Peers,
    context: Context,
    arrived: &Arrived,
    (placed, buf): (usize, *mut u8),
    flags: CompletionFlags,
    (credit, route): (Credit, CounterTarget),
) {
    let mut error = CqErrorEntry::new(context, flags, Errno::EADDRNOTAVAIL);
    (error.len, error.data, error.tag) = (placed, arrived.data, arrived.tag);
    error.buf = buf.addr();
    error.err_data = raw_address(peers, arrived.peer);
    staging.receive_failed(error, credit, route);
}

fn raw_address(peers: &Peers, peer: PeerId) -> Vec<u8> {
    peers.address(peer).map(|address| address.bytes().to_vec()).unwrap_or_default()
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

/// The flags of a receive that waited in this space.
pub fn kind_of(space: Space) -> CompletionFlags {
    let kind = if space == Space::Tagged { CompletionFlags::TAGGED } else { CompletionFlags::MSG };
    CompletionFlags::RECV | kind
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
        peer: crate::matching::SourceId(arrived.peer),
        tag: arrived.tag,
        len: arrived.len as u64,
        data: arrived.has_data.then_some(arrived.data),
    }
}

/// A message of `peer` that has arrived, as the matcher sees it.
pub fn arrived(envelope: &Envelope, peer: PeerId) -> Arrived {
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
