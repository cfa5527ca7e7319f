//! The transmit queue of one connection: copied bytes, application memory, and registered memory that a peer reads. It
//! is written by vectors without further copies, as much at a time as the kernel accepts.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use ofi_api::{Errno, MrAccess, Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::domain::{RegionData, Regions};
use ofi_core::keys::{Accessor, Grant};
use ofi_core::slots::SlotId;
use ofi_core::transport::Payload;

use crate::bulk::StripedAnswer;
use crate::wire::{Order, Packet};

/// Bytes of one item of copies. Longer data is split into several items, so that sent ones can be freed.
const CHUNK: usize = 64 << 10;
/// The room of a new one: a short message and its header, in a piece of memory that allocators have at hand.
const ROOM: usize = 256;
/// Vectors in one call.
const VECTORS: usize = 64;
/// Bytes of a device's memory in one call. They are copied again if the kernel does not accept them.
const COPIED: usize = 256 << 10;
/// The maximum bytes that one flush passes to the kernel, so that neither other peers wait for one, nor what this one
/// sends: half a mebibyte, and what is queued before it. (Two ends that write a mebibyte to each other at once take
/// 202 µs for it; with a share of 1 MiB 322, of 256 KiB 250. One that writes alone takes 131, 128 and 148. Loopback.)
pub const SHARE: usize = (512 << 10) + (32 << 10);

/// One part of the queue.
enum Item {
    /// Headers, and payloads that were copied.
    Copied { bytes: Vec<u8>, at: usize },
    /// Bytes `at` to `len` of an operation's payload in application memory; none if it was copied into the item before.
    Lent { op: SlotId, at: usize, len: usize },
    /// Registered memory that the peer reads.
    Read(Box<Reading>),
}

/// A long read of the peer that is being answered.
struct Reading {
    remote: Vec<RemotePiece>,
    at: usize,
    len: usize,
    /// What other stripes of the answer hold too.
    answer: Option<Arc<StripedAnswer>>,
}

/// What protects the memory that is being sent to a reading peer.
#[derive(Default)]
struct Held {
    /// Its registrations.
    grants: Vec<Grant<RegionData>>,
    /// A copy of it, if it is a device's.
    copy: Vec<u8>,
}

/// The owner of the memory that is sent.
pub trait Lender {
    /// The payload of an operation, while that is open.
    fn payload(&mut self, op: SlotId) -> Option<&Payload>;
    /// The kernel has all bytes of an operation's payload.
    fn sent(&mut self, op: SlotId);
    /// The kernel has all bytes of the answer to a peer's read.
    fn answered(&mut self, remote: &[RemotePiece]);
    /// The registrations, and the peer that reads from them.
    fn regions(&self) -> (&Regions, Accessor<'_>);
}

/// The reason why no more can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Everything is sent.
    Empty,
    /// The kernel accepts no more for now.
    Full,
    /// The peer has got its share for now.
    Share,
    /// The connection has failed.
    Failed(Errno),
}

/// The transmit queue of one connection.
#[derive(Default)]
pub struct Outgoing {
    items: VecDeque<Item>,
    /// Bytes of copies.
    copied: usize,
    /// Long reads that are being answered.
    reads: usize,
    /// Payloads in application memory.
    lent: usize,
    /// Packets that were put into the queue, modulo 256.
    count: u8,
    /// Bytes that the kernel has accepted.
    sent: u64,
}

impl Outgoing {
    /// Bytes that the kernel has accepted so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Bytes of copies that wait.
    pub fn copied(&self) -> usize {
        self.copied
    }

    /// Whether only copies wait.
    pub fn is_copied(&self) -> bool {
        self.lent == 0 && self.reads == 0
    }

    /// Whether a payload in application memory waits, which ends with its operation: nothing behind it is sent for
    /// sure.
    pub fn has_lent(&self) -> bool {
        self.lent > 0
    }

    /// Reads of the peer that wait for their answers, apart from copied ones.
    pub fn reads(&self) -> usize {
        self.reads
    }

    /// The bytes at the end of the queue, to append to.
    fn tail(&mut self) -> &mut Vec<u8> {
        if !matches!(self.items.back(), Some(Item::Copied { bytes, .. }) if bytes.len() < CHUNK) {
            self.items.push_back(Item::Copied { bytes: Vec::with_capacity(ROOM), at: 0 });
        }
        match self.items.back_mut() {
            Some(Item::Copied { bytes, .. }) => bytes,
            _ => unreachable!("it was just put there"),
        }
    }

    /// Appends a header. Its payload must follow.
    pub fn header(&mut self, packet: &Packet, order: Order) {
        let count = self.count;
        let tail = self.tail();
        let before = tail.len();
        packet.encode(order, count, tail);
        self.copied += tail.len() - before;
        self.count = count.wrapping_add(1);
    }

    /// Appends a copy of a payload of `len` bytes.
    ///
    /// # Safety
    /// The pieces are lent for reading during the call.
    pub unsafe fn copy(&mut self, pieces: &[Piece], len: usize) {
        let tail = self.tail();
        let start = tail.len();
        tail.resize(start + len, 0);
        let to = tail[start..].as_mut_ptr();
        // SAFETY: `to` has `len` bytes; the rest is the caller's promise.
        unsafe { copy::gather(pieces, 0, to, len) };
        self.copied += len;
    }

    /// Appends `len` bytes that `fill` writes.
    ///
    /// # Errors
    /// The errors of `fill`; then nothing is appended.
    pub fn fill<E>(&mut self, len: usize, fill: impl FnOnce(&mut [u8]) -> Result<(), E>) -> Result<(), E> {
        let tail = self.tail();
        let start = tail.len();
        tail.resize(start + len, 0);
        if let Err(error) = fill(&mut tail[start..]) {
            tail.truncate(start);
            return Err(error);
        }
        self.copied += len;
        Ok(())
    }

    /// Appends a copy of `bytes`.
    pub fn append(&mut self, bytes: &[u8]) {
        self.tail().extend_from_slice(bytes);
        self.copied += bytes.len();
    }

    /// Appends a part of an operation's payload, or all of it, by reference.
    pub fn lend_range(&mut self, op: SlotId, range: Range<usize>) {
        if !range.is_empty() {
            self.lent += 1;
            self.items.push_back(Item::Lent { op, at: range.start, len: range.end });
        }
    }

    /// Marks the end of an operation that has no bytes, or whose bytes were copied: it ends when the kernel has them.
    pub fn mark(&mut self, op: SlotId) {
        self.items.push_back(Item::Lent { op, at: 0, len: 0 });
    }

    /// Appends registered memory, or a part of it. The answer is sent when no part holds `answer` any more.
    pub fn read_range(
        &mut self,
        remote: Vec<RemotePiece>,
        range: Range<usize>,
        answer: Option<Arc<StripedAnswer>>,
    ) {
        self.reads += 1;
        let Range { start: at, end: len } = range;
        self.items.push_back(Item::Read(Box::new(Reading { remote, at, len, answer })));
    }

    /// Gives up the first payload that is lent, and everything behind it, because the application takes its memory
    /// back. Returns the operations whose copies remain, and whether everything does.
    pub fn give_up_lent(&mut self) -> (Vec<SlotId>, bool) {
        let is_lent = |item: &Item| matches!(item, Item::Lent { len: 1.., .. });
        let first = self.items.iter().position(is_lent);
        let rest = first.map_or(VecDeque::new(), |first| self.items.split_off(first));
        for item in rest {
            match item {
                Item::Copied { bytes, at } => self.copied -= bytes.len() - at,
                Item::Read(_) => self.reads -= 1,
                Item::Lent { .. } => {}
            }
        }
        self.lent = 0;
        let copies = self.items.iter().filter_map(|item| match item {
            Item::Lent { op, .. } => Some(*op),
            _ => None,
        });
        (copies.collect(), first.is_none())
    }

    /// Sends up to [`SHARE`] bytes by `write`, which gets vectors of memory that may be read while it runs, and returns
    /// how many bytes it accepted.
    pub fn flush(
        &mut self,
        lender: &mut impl Lender,
        vectors: &mut Vec<libc::iovec>,
        mut write: impl FnMut(&[libc::iovec]) -> Result<usize, Errno>,
    ) -> Stop {
        let mut left = SHARE;
        while !self.items.is_empty() {
            if left == 0 {
                return Stop::Share;
            }
            vectors.clear();
            let (held, offered) = match self.collect(lender, vectors, left) {
                Ok(collected) => collected,
                Err(errno) => return Stop::Failed(errno),
            };
            let wrote = write(vectors);
            drop(held);
            match wrote {
                Ok(len) => {
                    self.sent += len as u64;
                    left = left.saturating_sub(len);
                    self.advance(lender, len);
                    if len < offered {
                        return Stop::Full;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Stop::Full,
                Err(errno) => return Stop::Failed(errno),
            }
        }
        Stop::Empty
    }

    /// Collects the memory of the first items, up to `most` bytes, and its length. What is returned with it must be
    /// held while the memory is read.
    fn collect(
        &self,
        lender: &mut impl Lender,
        vectors: &mut Vec<libc::iovec>,
        most: usize,
    ) -> Result<(Held, usize), Errno> {
        let (mut held, mut offered) = (Held::default(), 0);
        for item in &self.items {
            let room = most - offered;
            if vectors.len() >= VECTORS || room == 0 {
                break;
            }
            match item {
                Item::Copied { bytes, at } => {
                    push(vectors, &mut offered, bytes[*at..].as_ptr(), room.min(bytes.len() - at))
                }
                Item::Lent { len: 0, .. } => {}
                &Item::Lent { op, at, len } => {
                    // Without its operation the stream cannot continue: the peer waits for bytes that no longer exist.
                    let payload = lender.payload(op).ok_or(Errno::ECANCELED)?;
                    match payload.pieces() {
                        Ok(pieces) => {
                            for (addr, run) in copy::runs(pieces, at, room.min(len - at)) {
                                if vectors.len() >= VECTORS {
                                    break;
                                }
                                push(vectors, &mut offered, addr, run);
                            }
                        }
                        Err(bytes) => {
                            let rest = bytes.get(at..len).ok_or(Errno::ECANCELED)?;
                            push(vectors, &mut offered, rest.as_ptr(), room.min(rest.len()));
                        }
                    }
                }
                Item::Read(reading) => {
                    let (regions, who) = lender.regions();
                    let left = room.min(reading.len - reading.at);
                    if regions.is_of_device(&reading.remote) {
                        held.copy = vec![0; left.min(COPIED)];
                        let read = regions.read_as(who, &reading.remote, reading.at, &mut held.copy);
                        read.map_err(|_| Errno::ECONNRESET)?;
                        push(vectors, &mut offered, held.copy.as_ptr(), held.copy.len());
                        break;
                    }
                    let range = (reading.at, left);
                    let grants = regions.grants_as(who, &reading.remote, range, MrAccess::REMOTE_READ);
                    // The error of the peer's access, and not of this end's operations.
                    held.grants = grants.map_err(|_| Errno::ECONNRESET)?;
                    let pieces = held.grants.iter().flat_map(Grant::pieces);
                    pieces.for_each(|piece| push(vectors, &mut offered, piece.addr, piece.len));
                    break; // what follows would have to wait for all of it
                }
            }
        }
        Ok((held, offered))
    }

    /// The first `len` bytes are sent.
    fn advance(&mut self, lender: &mut impl Lender, mut len: usize) {
        while let Some(item) = self.items.front_mut() {
            let left = match item {
                Item::Copied { bytes, at } => bytes.len() - *at,
                Item::Lent { at, len, .. } => *len - *at,
                Item::Read(reading) => reading.len - reading.at,
            };
            let part = left.min(len);
            match item {
                Item::Copied { at, .. } => {
                    *at += part;
                    self.copied -= part;
                }
                Item::Lent { at, .. } => *at += part,
                Item::Read(reading) => reading.at += part,
            }
            len -= part;
            if part < left {
                return;
            }
            match self.items.pop_front() {
                Some(Item::Lent { op, len, .. }) => {
                    self.lent -= usize::from(len > 0);
                    lender.sent(op);
                }
                Some(Item::Read(reading)) => {
                    self.reads -= 1;
                    if reading.answer.is_none_or(|answer| Arc::into_inner(answer).is_some()) {
                        lender.answered(&reading.remote);
                    }
                }
                _ => {}
            }
        }
    }
}

fn push(vectors: &mut Vec<libc::iovec>, offered: &mut usize, from: *const u8, len: usize) {
    if len > 0 {
        vectors.push(libc::iovec { iov_base: from.cast_mut().cast(), iov_len: len });
        *offered += len;
    }
}

#[cfg(test)]
mod tests {
    use ofi_core::keys::{Addressing, RegionTable};
    use proptest::prelude::*;

    use super::*;

    /// Operations with a payload each, under the slots of a table.
    struct Ops {
        ops: ofi_core::slots::Slots<Payload>,
        sent: Vec<SlotId>,
        regions: Regions,
    }

    impl Lender for Ops {
        fn payload(&mut self, op: SlotId) -> Option<&Payload> {
            self.ops.get(op)
        }
        fn sent(&mut self, op: SlotId) {
            self.ops.remove(op);
            self.sent.push(op);
        }
        fn answered(&mut self, _remote: &[RemotePiece]) {}
        fn regions(&self) -> (&Regions, Accessor<'_>) {
            (&self.regions, Accessor::ANYBODY)
        }
    }

    fn ops() -> Ops {
        Ops { ops: Default::default(), sent: Vec::new(), regions: RegionTable::new(Addressing::Offset, 1) }
    }

    proptest! {
        /// However little the kernel takes at a time, the bytes are those that were queued, in order.
        #[test]
        fn bytes_leave_in_order_whatever_is_taken(
            parts in prop::collection::vec(
                (any::<bool>(), prop_oneof![9 => 0usize..5000, 1 => SHARE / 2..2 * SHARE]),
                1..30,
            ),
            takes in prop::collection::vec(prop_oneof![9 => 1usize..9000, 1 => SHARE..5 * SHARE], 1..20),
        ) {
            let (mut outgoing, mut ops, mut wanted) = (Outgoing::default(), ops(), Vec::<u8>::new());
            let (mut lent, mut next) = (Vec::new(), 0u8);
            for (is_lent, len) in parts {
                let bytes: Vec<u8> = (0..len).map(|_| { next = next.wrapping_add(1); next }).collect();
                wanted.extend(&bytes);
                if is_lent {
                    let id = ops.ops.insert(Payload::owned(bytes.into()));
                    outgoing.lend_range(id, 0..len);
                    lent.extend((len > 0).then_some(id));
                } else {
                    outgoing.fill(len, |to| { to.copy_from_slice(&bytes); Ok::<_, ()>(()) }).unwrap();
                }
            }
            let (mut got, mut vectors) = (Vec::<u8>::new(), Vec::new());
            let mut takes = takes.into_iter().cycle();
            while !outgoing.is_empty() {
                let mut most = takes.next().unwrap();
                let mut accepted = 0;
                let stop = outgoing.flush(&mut ops, &mut vectors, |vectors| {
                    if most == 0 {
                        return Err(Errno::EAGAIN);
                    }
                    let before = got.len();
                    for vector in vectors {
                        let len = vector.iov_len.min(most);
                        // SAFETY: the queue lends the memory during the call.
                        got.extend(unsafe { std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), len) });
                        most -= len;
                    }
                    accepted += got.len() - before;
                    Ok(got.len() - before)
                });
                prop_assert!(accepted <= SHARE && (stop == Stop::Share) == (accepted == SHARE && !outgoing.is_empty()));
            }
            prop_assert_eq!(got, wanted);
            prop_assert_eq!((ops.sent, outgoing.copied()), (lent, 0));
        }
    }

    #[test]
    fn a_payload_whose_operation_is_gone_ends_the_connection() {
        let (mut outgoing, mut ops) = (Outgoing::default(), ops());
        let id = ops.ops.insert(Payload::owned(vec![1; 10].into()));
        outgoing.header(&Packet::Message { tag: None, data: None, confirm: false, len: 10 }, Order::Own);
        outgoing.lend_range(id, 0..10);
        ops.ops.remove(id);
        let stop = outgoing.flush(&mut ops, &mut Vec::new(), |_| panic!("nothing may be written"));
        assert_eq!(stop, Stop::Failed(Errno::ECANCELED));
    }
}
