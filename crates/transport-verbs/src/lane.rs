//! One peer of an endpoint: its connection, its credits, and what is under way with it.
//!
//! Invariants:
//! - A lane has at most as many records under way as the peer gave it credits, a quarter of which only answers may use. Answers are taken
//!   by the peer whatever else it cannot take, so two ends that wait for each other's answers get them.
//! - The last of the other credits are for what has waited, which then goes out in packs: a burst to a peer that does not look is not cut
//!   off at the number of its credits.
//! - A record's slot belongs to the device from the post to the end of the request.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use ibv::CmId;
use ofi_api::{Caps, Errno, Error, MrAccess, OpFlags, Result};
use ofi_core::domain::DomainPart;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::record::Fields;
use ofi_core::transport::{Host, Peer};
use rustc_hash::FxHashMap;

use crate::Verbs;
use crate::adapter::{Adapter, Posted, REQUESTS};
use crate::fetch::{End, Transfer};
use crate::meeting::Link;
use crate::message::{Exposed, Op, QUEUE_LIMIT};
use crate::native::Key;
use crate::rma::{ServedRead, ServedWrite};
use crate::wire::{HEAD, PAYLOAD, PREFIX, SLOT, header, kind};

/// What all lanes of an endpoint have in common.
pub struct Common {
    pub domain: Arc<DomainPart<Verbs>>,
    pub caps: Caps,
    pub adapter: Adapter,
    /// Bytes kept for receivers that are out of room, and how many may be.
    pub kept: usize,
    pub kept_limit: usize,
    /// Peers that were asked to keep their payloads.
    pub wishing: Vec<Peer>,
    /// Peers with something to post, or to look at.
    pub dirty: Vec<Peer>,
    /// Peers whose records wait for room here.
    pub stalled: Vec<Peer>,
    /// Whether accesses follow messages in order, so that whoever takes the messages has to execute them.
    pub orders_messages: bool,
    /// Credits that each peer gets.
    pub grant: usize,
    /// Tells this endpoint from an earlier one of the same address.
    pub incarnation: u64,
    /// Connections asked for so far.
    pub attempts: u32,
    pub counts: Counts,
}

/// What people may read about the lanes.
#[derive(Default)]
pub struct Counts {
    pub eager: u64,
    pub announced: u64,
    pub regions: u64,
    pub reads: u64,
    pub native_reads: u64,
    pub native_writes: u64,
    pub given: u64,
    pub sent: u64,
    pub packs: u64,
    pub received: u64,
    pub stalls: u64,
    pub connections: u64,
    pub malformed: u64,
}

impl Common {
    /// Whether the endpoint lets peers access its memory in this way, by operations of capability `kind`.
    pub fn serves(&self, kind: Caps, access: MrAccess) -> bool {
        let directions = self.caps & Caps::RMA_DIRECTIONS;
        let serves = |right, direction| {
            !access.contains(right) || directions.is_empty() || directions.contains(direction)
        };
        self.caps.intersects(kind)
            && serves(MrAccess::REMOTE_READ, Caps::REMOTE_READ)
            && serves(MrAccess::REMOTE_WRITE, Caps::REMOTE_WRITE)
    }

    /// Has a lane looked at by the next poll.
    pub fn hold(&mut self, is_dirty: &mut bool, peer: Peer) {
        if !std::mem::replace(is_dirty, true) {
            self.dirty.push(peer);
        }
    }
}

/// The mark of messages that were reported as sent before they arrived.
pub const DETACHED: u64 = u64::MAX;

/// What to do after a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Take the next one.
    Next,
    /// It could not be taken: offer it again later, and nothing behind it.
    Stop,
}

/// A record that waits for credits or room.
pub struct Frame {
    bytes: Box<[u8]>,
    mark: Option<u64>,
}

/// A record of the peer that could not be taken yet.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The slot that it is in, alone or with others.
    pub slot: u32,
    /// Where in the slot.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// It is the last in the slot, which is posted again when it has been taken.
    pub last: bool,
}

/// Which credits a record may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// All of them.
    Answer,
    /// All but the answers'.
    Waited,
    /// All but those and the last, which are for what has waited.
    Direct,
}

/// What waits among the commands.
pub enum Item {
    Frame(Frame),
    /// The parts of a long write.
    Parts {
        id: SlotId,
        done: usize,
        len: usize,
    },
}

/// See the module.
pub struct Lane {
    pub address: SocketAddr,
    pub link: Link,
    /// The other end of the connection of an endpoint with itself: what is sent over `link` comes in here.
    pub mirror: Option<CmId>,
    /// The peer's last attempt to connect that is known.
    pub attempt: Option<(u64, u32)>,
    /// Records that may be sent.
    pub credits: usize,
    /// Of them, those that only answers may use.
    pub reserve: usize,
    /// Of the others, those that only packs of what has waited may use.
    pub held: usize,
    /// Credits to be given back.
    pub owed: usize,
    commands: VecDeque<Item>,
    answers: VecDeque<Frame>,
    /// Bytes in both.
    waiting: usize,
    /// Requests under way.
    pub requests: usize,
    /// Records that could not be taken yet.
    pub stalled: VecDeque<Part>,
    /// Reads of the peer, being served. Its later commands wait.
    pub reads: VecDeque<ServedRead>,
    /// The peer's long write, being served.
    pub write: Option<Box<ServedWrite>>,
    /// Short messages that count as sent, but wait for the peer to want them.
    pub kept: Slots<(Exposed, usize)>,
    pub transfers: Slots<Transfer>,
    /// Transfers with requests that are not posted yet.
    pub fetching: VecDeque<SlotId>,
    /// Of them, accesses to the peer's memory. What follows them waits.
    pub accesses_waiting: usize,
    /// Requests of accesses under way that read.
    pub reads_out: usize,
    /// This end's operations that have not ended.
    pub outstanding: usize,
    /// Of them, accesses that the peer executes.
    pub executed: usize,
    /// The peer's registrations that this end's device may access.
    pub keys: FxHashMap<u64, Key>,
    /// Keys that the peer was given, and what the device calls them.
    pub given: FxHashMap<u64, u32>,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// The peer was asked to keep its payloads.
    pub wished: bool,
    /// The peer asked this end to keep its payloads.
    pub peer_wishes: bool,
    /// It is among [`Common::dirty`].
    pub is_dirty: bool,
    /// The connection is over; what came before it is still to be taken.
    pub ending: Option<Errno>,
}

impl Lane {
    /// To a peer that nothing is known of.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            link: Link::Closed,
            mirror: None,
            attempt: None,
            credits: 0,
            reserve: 0,
            held: 0,
            owed: 0,
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            waiting: 0,
            requests: 0,
            stalled: VecDeque::new(),
            reads: VecDeque::new(),
            write: None,
            kept: Slots::default(),
            transfers: Slots::default(),
            fetching: VecDeque::new(),
            accesses_waiting: 0,
            reads_out: 0,
            outstanding: 0,
            executed: 0,
            keys: FxHashMap::default(),
            given: FxHashMap::default(),
            detached: 0,
            wished: false,
            peer_wishes: false,
            is_dirty: false,
            ending: None,
        }
    }

    /// A record of the peer has been taken.
    pub fn taken(&mut self, common: &mut Common, part: Part) {
        if part.last {
            self.owed += 1;
            common.adapter.receive(part.slot);
        }
    }

    /// Whether records can go out.
    pub fn is_open(&self) -> bool {
        self.link.open().is_some() && self.ending.is_none()
    }

    /// Whether reads of the peer are being served.
    pub fn is_read(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether commands wait to be posted.
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether something waits to be posted.
    pub fn waits(&self) -> bool {
        !self.commands.is_empty() || !self.answers.is_empty() || !self.fetching.is_empty() || self.is_read()
    }

    /// A record has come. Over a connection that this end granted it may come before rdma_cm reports the connection, which then is there.
    #[inline]
    pub fn heard(&mut self, common: &mut Common, peer: Peer) {
        if !matches!(self.link, Link::Accepting(..)) {
            return;
        }
        if let Link::Accepting(id, _) = std::mem::replace(&mut self.link, Link::Closed) {
            self.link = Link::Open(id);
            common.counts.connections += 1;
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Whether an endpoint that closes waits for this lane: for requests under way, among them answers that the peer counts on,
    /// and for the peer to take what was reported as sent.
    pub fn is_awaited(&self) -> bool {
        let owes = self.requests > 0 || !self.answers.is_empty() || self.detached > 0;
        self.is_open() && (owes || !self.kept.is_empty())
    }

    /// Whether another operation may be posted.
    pub fn may_post(&self, flags: OpFlags) -> Result<()> {
        let fenced = flags.contains(OpFlags::FENCE) && self.outstanding > 0;
        if fenced || self.waiting > QUEUE_LIMIT || self.ending.is_some() {
            return Err(Error::AGAIN);
        }
        Ok(())
    }

    /// An operation of this end has ended.
    pub fn finish<H: Host<Verbs>>(
        &mut self,
        host: &mut H,
        peer: Peer,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        let Some(op) = host.finish(peer, id, result) else { return };
        self.outstanding = self.outstanding.saturating_sub(1);
        if matches!(op, Op::Access | Op::Write(_) | Op::Read { .. }) {
            self.executed = self.executed.saturating_sub(1);
        }
    }

    /// Tells the peer how its operation ended.
    pub fn done(&mut self, common: &mut Common, peer: Peer, flags: u8, op: u64, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        let mut fields = Fields::new();
        fields.word(op).word(errno);
        self.record(common, peer, (kind::DONE, flags), fields.bytes(), 0, None, |_| {});
    }

    /// Sends a record, whose payload of `len` bytes `fill` writes: at once if it can, from the queue later otherwise.
    #[expect(clippy::too_many_arguments, reason = "a record has these parts")]
    pub fn record(
        &mut self,
        common: &mut Common,
        peer: Peer,
        (what, flags): (u8, u8),
        fields: &[u8],
        len: usize,
        mark: Option<u64>,
        fill: impl FnOnce(*mut u8),
    ) {
        let answers = what >= kind::ANSWERS;
        let head = header(what, flags);
        let total = HEAD + fields.len() + len;
        let (empty, of) = match answers {
            true => (self.answers.is_empty(), Use::Answer),
            false => (self.commands.is_empty(), Use::Direct),
        };
        if empty
            && self.has_credit(of)
            && let Some(slot) = common.adapter.take_slot()
        {
            let to = common.adapter.outgoing(slot);
            put(to, &head, fields);
            fill(to.wrapping_add(HEAD + fields.len()));
            return self.post(common, peer, slot, total, mark, Vec::new());
        }
        let mut bytes = vec![0u8; total].into_boxed_slice();
        put(bytes.as_mut_ptr(), &head, fields);
        fill(bytes.as_mut_ptr().wrapping_add(HEAD + fields.len()));
        self.waiting += total;
        let frame = Frame { bytes, mark };
        if answers {
            self.answers.push_back(frame)
        } else {
            self.commands.push_back(Item::Frame(frame))
        }
        common.hold(&mut self.is_dirty, peer);
    }

    /// Whether a record may go out now.
    fn has_credit(&self, of: Use) -> bool {
        let kept = match of {
            Use::Answer => 0,
            Use::Waited => self.reserve,
            Use::Direct => self.reserve + self.held,
        };
        // Commands follow the accesses before them; answers are nobody's order.
        let is_turn = of == Use::Answer || self.accesses_waiting == 0;
        self.is_open() && is_turn && self.credits > kept && self.requests < REQUESTS
    }

    /// Posts the record in a slot; `marks` are those of a pack's other records.
    fn post(
        &mut self,
        common: &mut Common,
        peer: Peer,
        slot: u32,
        len: usize,
        mark: Option<u64>,
        marks: Vec<u64>,
    ) {
        let given = u16::try_from(self.owed).unwrap_or(u16::MAX);
        let to = common.adapter.outgoing(slot).wrapping_add(2).cast::<[u8; 2]>();
        // SAFETY: bytes 2 and 3 of the slot's header, which is not posted yet.
        unsafe { to.write(given.to_be_bytes()) };
        let Some(qp) = self.link.open().and_then(|id| id.qp()) else { return common.adapter.give_slot(slot) };
        let wr = common.adapter.posted.insert(Posted::Send { peer, slot, mark, marks });
        let segment = common.adapter.segment(slot, len);
        // What the peer does on account of this must not change what a read of this end still answers with.
        let fence = self.reads_out > 0;
        // SAFETY: the slot is the device's until the request has ended.
        if let Err(error) = unsafe { qp.send(wr.to_wire(), &[segment], fence) } {
            // The connection cannot be used any more: what waits for this record ends with the lane.
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a send cannot be posted");
            common.adapter.posted.remove(wr);
            common.adapter.give_slot(slot);
            self.ending.get_or_insert(Errno::EIO);
            return common.hold(&mut self.is_dirty, peer);
        }
        self.owed -= usize::from(given);
        self.requests += 1;
        self.credits = self.credits.saturating_sub(1);
        common.counts.sent += 1;
    }

    /// Posts what waits, as far as credits and slots go. `false`: something still waits that no peer's word is needed for.
    pub fn flush<H: Host<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: Peer) -> bool {
        if !self.is_open() {
            return true;
        }
        self.fetch(common, peer);
        loop {
            if !self.answers.is_empty() && self.has_credit(Use::Answer) {
                if !self.post_answer(common, peer) {
                    return false;
                }
                continue;
            }
            if self.is_read() && self.has_credit(Use::Answer) {
                self.serve_reads(common, host, peer);
                continue;
            }
            if !self.has_credit(Use::Waited) {
                break;
            }
            match self.commands.front() {
                None => break,
                Some(Item::Frame(_)) => {
                    if !self.post_pack(common, peer) {
                        return false;
                    }
                }
                Some(Item::Parts { .. }) if !self.has_credit(Use::Direct) => break,
                Some(&Item::Parts { id, done, len }) => {
                    self.commands.pop_front();
                    let Some(slot) = common.adapter.take_slot() else {
                        self.commands.push_front(Item::Parts { id, done, len });
                        return false;
                    };
                    let part = PAYLOAD.min(len - done);
                    let Some(Op::Write(payload)) = host.op(peer, id) else {
                        // The application has ended the write in the middle: the peer cannot make sense of what comes next.
                        common.adapter.give_slot(slot);
                        self.ending.get_or_insert(Errno::ECANCELED);
                        return false;
                    };
                    let mut fields = Fields::new();
                    fields.word(id.to_wire());
                    let to = common.adapter.outgoing(slot);
                    put(to, &header(kind::WRITE_PART, 0), fields.bytes());
                    let at = HEAD + fields.bytes().len();
                    // SAFETY: the slot has room for a payload behind header and fields.
                    unsafe { payload.gather(done, to.wrapping_add(at), part) };
                    if done + part < len {
                        self.commands.push_front(Item::Parts { id, done: done + part, len });
                    }
                    self.post(common, peer, slot, at + part, None, Vec::new());
                }
            }
        }
        if self.owed > 0 && self.owed >= common.grant / 4 && self.requests < REQUESTS {
            let Some(slot) = common.adapter.take_slot() else { return false };
            put(common.adapter.outgoing(slot), &header(kind::CREDIT, 0), &[]);
            self.credits += 1; // it needs none
            self.post(common, peer, slot, HEAD, None, Vec::new());
        }
        true
    }

    /// Posts the first of the answers that wait. `false`: there is no slot.
    fn post_answer(&mut self, common: &mut Common, peer: Peer) -> bool {
        let Some(slot) = common.adapter.take_slot() else { return false };
        match self.answers.pop_front() {
            Some(frame) => {
                let len = self.lay(common.adapter.outgoing(slot), &frame);
                self.post(common, peer, slot, len, frame.mark, Vec::new());
            }
            None => common.adapter.give_slot(slot),
        }
        true
    }

    /// Posts the first of the commands that wait, together with those behind it that fit in one record. `false`: there is no slot.
    fn post_pack(&mut self, common: &mut Common, peer: Peer) -> bool {
        let Some(slot) = common.adapter.take_slot() else { return false };
        let to = common.adapter.outgoing(slot);
        let (mut count, mut total) = (0, HEAD);
        for item in &self.commands {
            let Item::Frame(frame) = item else { break };
            total += PREFIX + frame.bytes.len();
            if total > SLOT && count > 0 {
                break;
            }
            count += 1;
        }
        if count < 2 {
            if let Some(Item::Frame(frame)) = self.commands.pop_front() {
                let len = self.lay(to, &frame);
                self.post(common, peer, slot, len, frame.mark, Vec::new());
            } else {
                common.adapter.give_slot(slot);
            }
            return true;
        }
        put(to, &header(kind::PACK, 0), &[]);
        let (mut at, mut marks) = (HEAD, Vec::new());
        for item in self.commands.drain(..count).collect::<Vec<_>>() {
            let Item::Frame(frame) = item else { break };
            let prefix = (frame.bytes.len() as u16).to_be_bytes();
            // SAFETY: `total` counted this prefix, and is no more than a slot.
            unsafe { ofi_core::copy::bytes(prefix.as_ptr(), to.wrapping_add(at), PREFIX) };
            at += PREFIX;
            at += self.lay(to.wrapping_add(at), &frame);
            marks.extend(frame.mark);
        }
        common.counts.packs += 1;
        self.post(common, peer, slot, at, None, marks);
        true
    }

    /// Copies a frame that has waited to a slot, where it fits: its length.
    fn lay(&mut self, to: *mut u8, frame: &Frame) -> usize {
        let len = frame.bytes.len();
        // SAFETY: a slot that nothing else uses, and no record is longer than one; of a pack, the rest of the slot is as long.
        unsafe { ofi_core::copy::bytes(frame.bytes.as_ptr(), to, len) };
        self.waiting -= len;
        len
    }

    /// Posts waiting frames alone: this end is closing.
    pub fn flush_frames(&mut self, common: &mut Common, peer: Peer) {
        while !self.answers.is_empty() && self.has_credit(Use::Answer) && self.post_answer(common, peer) {}
        while self.has_credit(Use::Waited) {
            match self.commands.front() {
                None => return,
                // What is not whole when its owner goes is nobody's.
                Some(Item::Parts { .. }) => drop(self.commands.pop_front()),
                Some(Item::Frame(_)) => {
                    if !self.post_pack(common, peer) {
                        return;
                    }
                }
            }
        }
    }

    /// Appends the parts of a long write behind its announcement.
    pub fn push_parts(&mut self, common: &mut Common, peer: Peer, id: SlotId, len: usize) {
        self.commands.push_back(Item::Parts { id, done: 0, len });
        common.hold(&mut self.is_dirty, peer);
    }

    /// A record has arrived at the peer, or never will.
    pub fn sent<H: Host<Verbs>>(&mut self, host: &mut H, peer: Peer, mark: u64) {
        if mark == DETACHED {
            self.detached = self.detached.saturating_sub(1);
        } else {
            self.finish(host, peer, SlotId::from_wire(mark), Ok(()));
        }
    }

    /// The connection is over: nothing of it is left here. The queue pair goes first, so that the device writes nowhere any more.
    pub fn lose<H: Host<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, errno: Errno) {
        let was_dirty = self.is_dirty;
        let old = std::mem::replace(self, Self::new(self.address));
        self.attempt = old.attempt;
        self.is_dirty = was_dirty;
        drop(old.link);
        drop(old.mirror);
        for wr in common.adapter.posted.ids(|posted| posted.peer() == peer) {
            match common.adapter.posted.remove(wr) {
                Some(Posted::Send { slot, .. }) => common.adapter.give_slot(slot),
                Some(Posted::Step { reads, .. }) => common.adapter.reads -= usize::from(reads),
                None => {}
            }
        }
        for part in old.stalled.iter().filter(|part| part.last) {
            common.adapter.receive(part.slot);
        }
        for id in old.kept.ids(|_| true) {
            common.kept -= old.kept.get(id).map_or(0, |(_, len)| *len);
        }
        common.wishing.retain(|&other| other != peer);
        common.stalled.retain(|&other| other != peer);
        let mut receives = Vec::new();
        let mut transfers = old.transfers;
        for id in transfers.ids(|_| true) {
            // And with it the registrations.
            let Some(Transfer { end, slot, .. }) = transfers.remove(id) else { continue };
            if let Some(slot) = slot {
                common.adapter.give_slot(slot);
            }
            if let End::Receive { into, .. } = end {
                receives.push(into);
            }
        }
        for into in receives {
            host.received(into, Err(errno));
        }
        host.fail_peer(peer, errno);
    }
}

/// Writes header and fields of a record.
fn put(to: *mut u8, head: &[u8; HEAD], fields: &[u8]) {
    // SAFETY: every record has room for its header.
    unsafe { ofi_core::copy::bytes(head.as_ptr(), to, HEAD) };
    // SAFETY: and for its fields behind it.
    unsafe { ofi_core::copy::bytes(fields.as_ptr(), to.wrapping_add(HEAD), fields.len()) };
}
