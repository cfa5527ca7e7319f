//! Outgoing records: posted at once if there are credits, slots and room on the queue pair, else queued and packed.

use ofi_api::{Errno, Result};
use ofi_core::log::Limit;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::Fields;
use ofi_core::transport::{PeerId, Upcalls};

use crate::Verbs;
use crate::adapter::Posted;
use crate::op::Op;
use crate::peer::{Common, DETACHED, Frame, Item, Peer, Retiring};
use crate::rc::Post;
use crate::wire::{HEAD, PAYLOAD, PREFIX, SLOT, header, kind};

/// The credits that a record may use.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// All credits.
    Answer,
    /// All credits except those for answers.
    Waited,
    /// All credits except those for answers and for packs of queued records.
    Direct,
}

impl Peer {
    /// Sends a record with a payload of `len` bytes, which `fill` writes. Queues the record if it cannot be posted at
    /// once.
    #[expect(clippy::too_many_arguments, reason = "a record has these parts")]
    pub fn record(
        &mut self,
        common: &mut Common,
        peer: PeerId,
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
            && self.has_credit(common, of)
            && let Some(slot) = common.adapter.take_slot()
        {
            let to = common.adapter.outgoing(slot);
            put(to, &head, fields);
            fill(to.wrapping_add(HEAD + fields.len()));
            return self.post(common, peer, slot, total, mark, Vec::new());
        }
        if empty {
            self.starved(common, of);
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

    /// Reports the result of the peer's operation.
    pub fn done(&mut self, common: &mut Common, peer: PeerId, flags: u8, op: u64, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        let mut fields = Fields::new();
        fields.word(op).word(errno);
        self.record(common, peer, (kind::DONE, flags), fields.bytes(), 0, None, |_| {});
    }

    /// Number of credits that such a record must leave unused.
    #[inline]
    fn kept_credits(&self, of: Use) -> usize {
        match of {
            Use::Answer => 0,
            Use::Waited => self.reserve,
            Use::Direct => self.reserve + self.held,
        }
    }

    /// Whether a record may be posted now.
    fn has_credit(&self, common: &Common, of: Use) -> bool {
        // Commands must follow earlier accesses; answers have no order.
        let is_turn = of == Use::Answer || self.accesses_waiting == 0;
        // After this end has asked to close the connection, it still posts answers: a peer that waits for one declines.
        let is_open =
            if of == Use::Answer { self.is_connected() && !self.has_agreed() } else { self.is_open() };
        is_open && is_turn && self.credits > self.kept_credits(of) && self.has_room(common)
    }

    /// Logs which resource queued records wait for, unless they wait for the connection or for accesses.
    #[cold]
    fn starved(&self, common: &Common, of: Use) {
        static LIMIT: Limit = Limit::new();
        let is_turn = of == Use::Answer || self.accesses_waiting == 0;
        if !tracing::enabled!(target: "ofi::verbs::ep_data", tracing::Level::DEBUG)
            || !self.is_open()
            || !is_turn
        {
            return;
        }
        let why = if self.credits <= self.kept_credits(of) {
            "no credits are left until the peer's application takes messages"
        } else if self.requests >= common.adapter.requests {
            "the connection's queue pair is full"
        } else if !common.adapter.has_room() {
            "the completion queue is full"
        } else {
            "all slots for records are in use"
        };
        if let Some(more) = LIMIT.pass() {
            tracing::debug!(
                target: "ofi::verbs::ep_data",
                peer = %self.address, why, credits = self.credits, requests = self.requests, more,
                "records to a peer wait"
            );
        }
    }

    /// Posts the record in a slot; `marks` are those of the other records of a pack.
    fn post(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        slot: u32,
        len: usize,
        mark: Option<u64>,
        marks: Vec<u64>,
    ) {
        let given = u16::try_from(self.owed).unwrap_or(u16::MAX);
        let to = common.adapter.outgoing(slot).wrapping_add(2).cast::<[u8; 2]>();
        // SAFETY: bytes 2 and 3 of the slot's header, which is not posted yet.
        unsafe { to.write(given.to_be_bytes()) };
        let Some(connection) = self.link.open() else { return common.adapter.give_slot(slot) };
        let inline = len <= self.inline;
        let awaited = common.closing
            || self.retiring.is_some()
            || mark.iter().chain(&marks).any(|&mark| mark != DETACHED);
        let quiet =
            !awaited && self.quiet.has_room(common.adapter.requests) && common.adapter.may_be_quiet(inline);
        let number = self.quiet.number();
        let kept = (!inline).then_some(slot);
        let wr = common.adapter.begin_send(Posted::Send { peer, slot: kept, mark, marks, number, quiet });
        let segment = common.adapter.segment(slot, len);
        // The peer's reaction to this record must not change data that an unfinished read of this end returns.
        let how = Post { fence: self.reads_out > 0, inline, quiet };
        // SAFETY: the device owns the slot until the request has ended, or, if it is inline, until the call returns.
        if let Err(error) = unsafe { connection.send(wr.to_wire(), segment, how) } {
            // The connection is unusable: operations that wait for this record end with the peer.
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a send cannot be posted");
            common.adapter.posted.remove(wr);
            common.adapter.end_send(kept, quiet);
            if inline {
                common.adapter.give_slot(slot);
            }
            self.ending.get_or_insert(Errno::EIO);
            return common.hold(&mut self.is_dirty, peer);
        }
        if inline {
            common.adapter.give_slot(slot);
            common.counts.inline += 1;
        }
        if quiet {
            self.quiet.push(number, wr);
            common.counts.quiet += 1;
        }
        self.owed -= usize::from(given);
        self.used -= usize::from(given);
        self.requests += 1;
        self.credits = self.credits.saturating_sub(1);
        self.last_use = common.turn;
        common.counts.sent += 1;
    }

    /// Posts queued records while there are credits and slots. `false`: records are still queued that do not wait for
    /// the peer.
    pub fn flush<H: Upcalls<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) -> bool {
        if !self.is_connected() || self.has_agreed() {
            return true;
        }
        self.fetch(common, peer);
        loop {
            if !self.answers.is_empty() && self.has_credit(common, Use::Answer) {
                if !self.post_answer(common, peer) {
                    return false;
                }
                continue;
            }
            if self.is_read() && self.has_credit(common, Use::Answer) {
                self.serve_reads(common, host, peer);
                continue;
            }
            if !self.has_credit(common, Use::Waited) {
                if self.has_commands() {
                    self.starved(common, Use::Waited);
                }
                break;
            }
            match self.commands.front() {
                None => break,
                Some(Item::Frame(_)) => {
                    if !self.post_pack(common, peer) {
                        return false;
                    }
                }
                Some(Item::Parts { .. }) if !self.has_credit(common, Use::Direct) => break,
                Some(&Item::Parts { id, done, len }) => {
                    self.commands.pop_front();
                    let Some(slot) = common.adapter.take_slot() else {
                        self.commands.push_front(Item::Parts { id, done, len });
                        return false;
                    };
                    let part = PAYLOAD.min(len - done);
                    let Some(Op::Write(payload)) = host.op(peer, id) else {
                        // The application has ended the write midway. The peer cannot interpret later parts, so the
                        // peer ends.
                        common.adapter.give_slot(slot);
                        self.ending.get_or_insert(Errno::ECANCELED);
                        return false;
                    };
                    let mut fields = Fields::new();
                    fields.word(id.to_wire());
                    let to = common.adapter.outgoing(slot);
                    put(to, &header(kind::WRITE_PART, 0), fields.bytes());
                    let at = HEAD + fields.bytes().len();
                    // SAFETY: the slot has room for a payload after header and fields.
                    unsafe { payload.gather_raw(done, to.wrapping_add(at), part) };
                    if done + part < len {
                        self.commands.push_front(Item::Parts { id, done: done + part, len });
                    }
                    self.post(common, peer, slot, at + part, None, Vec::new());
                }
            }
        }
        if self.owes_credits(common) && self.has_room(common) {
            let Some(slot) = common.adapter.take_slot() else { return false };
            put(common.adapter.outgoing(slot), &header(kind::CREDIT, 0), &[]);
            self.credits += 1; // this record needs no credit
            self.post(common, peer, slot, HEAD, None, Vec::new());
        }
        // The peer may have no request in flight whose completion would schedule it again.
        common.adapter.has_room() || !(self.waits() || self.owes_credits(common))
    }

    /// Whether the peer's queue pair and the completion queue have room for another request.
    pub fn has_room(&self, common: &Common) -> bool {
        self.requests < common.adapter.requests && common.adapter.has_room()
    }

    /// Posts the first queued answer. `false`: no slot is free.
    fn post_answer(&mut self, common: &mut Common, peer: PeerId) -> bool {
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

    /// Posts the first queued command, together with those after it that fit into one record. `false`: no slot is free.
    fn post_pack(&mut self, common: &mut Common, peer: PeerId) -> bool {
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
            // SAFETY: `total` includes this prefix, and is at most the length of a slot.
            unsafe { ofi_core::copy::bytes(prefix.as_ptr(), to.wrapping_add(at), PREFIX) };
            at += PREFIX;
            at += self.lay(to.wrapping_add(at), &frame);
            marks.extend(frame.mark);
        }
        common.counts.packs += 1;
        self.post(common, peer, slot, at, None, marks);
        true
    }

    /// Copies a queued frame to a slot that has room for it, and returns its length.
    fn lay(&mut self, to: *mut u8, frame: &Frame) -> usize {
        let len = frame.bytes.len();
        // SAFETY: nothing else uses the slot, and no record is longer than a slot; in a pack, the rest of the slot is
        // long enough.
        unsafe { ofi_core::copy::bytes(frame.bytes.as_ptr(), to, len) };
        self.waiting -= len;
        len
    }

    /// Posts only queued frames, because this end is closing.
    pub fn flush_frames(&mut self, common: &mut Common, peer: PeerId) {
        while !self.answers.is_empty()
            && self.has_credit(common, Use::Answer)
            && self.post_answer(common, peer)
        {}
        while self.has_credit(common, Use::Waited) {
            match self.commands.front() {
                None => return,
                // An incomplete write is useless once this end is closed.
                Some(Item::Parts { .. }) => drop(self.commands.pop_front()),
                Some(Item::Frame(_)) => {
                    if !self.post_pack(common, peer) {
                        return;
                    }
                }
            }
        }
    }

    /// If no completion is due, posts a signaled empty record, whose completion shows that quiet requests have ended.
    pub fn await_quiet(&mut self, common: &mut Common, peer: PeerId) {
        if self.is_open()
            && self.quiet.is_all(self.requests)
            && self.has_room(common)
            && let Some(slot) = common.adapter.take_slot()
        {
            put(common.adapter.outgoing(slot), &header(kind::CREDIT, 0), &[]);
            self.credits += 1; // this record needs no credit
            self.post(common, peer, slot, HEAD, None, Vec::new());
        }
    }

    /// Sends the peer a record about closing the connection, after which nothing is posted. `false`: there is no room
    /// now.
    pub fn post_last(&mut self, common: &mut Common, peer: PeerId, word: u64, then: Retiring) -> bool {
        if !self.answers.is_empty() || !self.has_credit(common, Use::Answer) {
            return false;
        }
        let Some(slot) = common.adapter.take_slot() else { return false };
        let mut fields = Fields::new();
        fields.word(word);
        put(common.adapter.outgoing(slot), &header(kind::RETIRE, 0), fields.bytes());
        self.retiring = Some(then);
        self.post(common, peer, slot, HEAD + fields.bytes().len(), None, Vec::new());
        true
    }

    /// Queues the parts of a long write, after its announcement.
    pub fn push_parts(&mut self, common: &mut Common, peer: PeerId, id: SlotId, len: usize) {
        self.commands.push_back(Item::Parts { id, done: 0, len });
        common.hold(&mut self.is_dirty, peer);
    }
}

/// Writes header and fields of a record.
fn put(to: *mut u8, head: &[u8; HEAD], fields: &[u8]) {
    // SAFETY: every record has room for its header.
    unsafe { ofi_core::copy::bytes(head.as_ptr(), to, HEAD) };
    // SAFETY: and for its fields after the header.
    unsafe { ofi_core::copy::bytes(fields.as_ptr(), to.wrapping_add(HEAD), fields.len()) };
}
