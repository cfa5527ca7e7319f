//! Outgoing datagrams. They are built in buffers, with gaps for bytes of lent memory, and passed to the kernel as
//! messages of one or more datagrams.

use std::net::SocketAddr;
use std::ops::Range;

use ofi_api::{Piece, Result};
use ofi_core::copy;
use ofi_rdm::Transmit;

use super::local::{Control, Locals};
use super::segments;
use crate::sockaddr::{empty_storage, to_storage};
use ofi_core::pages::Pages;

/// Number of datagrams at which a batch is full: three messages of the datagrams that fit for an MTU of 1,500 bytes.
const SEND: usize = 132;
/// Maximum number of datagrams of a batch, because the last row may have any length.
const SLOTS: usize = SEND + segments::MAX_GSO_SEGMENTS;
/// Maximum bytes of a batch: three of the longest datagrams. Between two batches the peer reads the first one while it
/// is in the caches, and sends its own. With 64 of the longest datagrams, writes in both directions took 1.25 times as
/// long (`fi_rma_bw` of 1 MiB in both directions over loopback).
const ROOM: usize = 3 * DATAGRAM;
/// Size in bytes of a buffer that any datagram fits into. Unused pages are never touched.
const DATAGRAM: usize = 65_536;
/// Maximum number of gaps in one datagram, and of the memory pieces that fill them.
const GAPS: usize = 4;
/// Minimum length in bytes of a gap. Shorter runs are copied at both ends: two more vectors cost the kernel more
/// (`docs/design-choices.md`).
pub const LEAST_GAP: usize = 4096;
/// Parts of one datagram: gaps, and the bytes before, between and after them.
const PARTS: usize = 2 * GAPS + 1;
/// Bytes of a datagram that are not in its buffer.
#[derive(Clone, Copy)]
struct Gap {
    at: usize,
    len: usize,
    from: *const u8,
}

/// The gaps of one datagram, by offset.
#[derive(Clone)]
pub struct Gaps {
    base: *mut u8,
    gaps: [Gap; GAPS],
    count: usize,
}

impl Gaps {
    const NONE: Self = Self {
        base: std::ptr::null_mut(),
        gaps: [Gap { at: 0, len: 0, from: std::ptr::null() }; GAPS],
        count: 0,
    };

    /// Makes `to`, a part of the datagram's buffer, a gap for the bytes of `pieces` from `skip`. Returns whether that
    /// is possible; if not, the caller must copy them.
    pub fn leave(&mut self, pieces: &[Piece], mut skip: usize, to: &mut [u8]) -> bool {
        let Some(mut at) = (to.as_ptr() as usize).checked_sub(self.base as usize) else { return false };
        let before = self.count;
        let mut left = to.len();
        for piece in pieces {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            if left == 0 {
                break;
            }
            let len = (piece.len - skip).min(left);
            if len < LEAST_GAP || self.count == GAPS {
                break;
            }
            self.gaps[self.count] = Gap { at, len, from: piece.addr.wrapping_add(skip) };
            self.count += 1;
            (at, left, skip) = (at + len, left - len, 0);
        }
        if left > 0 {
            self.count = before;
        }
        left == 0
    }
}

/// A row: consecutive datagrams of equal length to one peer.
#[derive(Clone)]
struct Slot {
    /// Its offset in the pages: the end of the previous row, so that rows are contiguous.
    at: usize,
    to: SocketAddr,
    peer: Option<u32>,
    /// Bytes of each datagram.
    len: usize,
    count: usize,
    /// Gaps of the first datagram. The others are built together, with copied payloads (`Driver::fill_row`).
    gaps: Gaps,
}

/// The buffers and headers of sendmmsg(2). The pointers in `headers` lead to the other fields' heap memory and to lent
/// memory; [`Outgoing::describe`] rewrites them before each call that uses them.
pub struct Outgoing {
    pages: Pages,
    slots: Box<[Slot]>,
    /// Rows that are built but not sent.
    waiting: Range<usize>,
    /// Number of datagrams of the batch, including sent ones.
    made: usize,
    names: Box<[libc::sockaddr_storage]>,
    controls: Box<[Control]>,
    vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// Rows of each message.
    runs: [usize; SLOTS],
    /// Whether messages may have many datagrams.
    pub joins: bool,
    /// Whether sending the first queued datagram reported an error that may be another's.
    again: bool,
    /// Rows before this one have one datagram each and are sent alone, because the kernel rejected them together.
    alone: usize,
}

// SAFETY: the pointers lead to memory of this value, or to lent memory, which belongs to no thread.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// An empty batch.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(joins: bool) -> Result<Self> {
        let nobody = SocketAddr::from(([0, 0, 0, 0], 0));
        Ok(Self {
            pages: Pages::new(ROOM, false)?,
            slots: vec![Slot { at: 0, to: nobody, peer: None, len: 0, count: 0, gaps: Gaps::NONE }; SLOTS]
                .into(),
            waiting: 0..0,
            made: 0,
            names: (0..SLOTS).map(|_| empty_storage()).collect(),
            controls: vec![Control::EMPTY; SLOTS].into(),
            vectors: vec![libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; SLOTS * PARTS].into(),
            headers: (0..SLOTS).map(|_| super::empty_header()).collect(),
            runs: [0; SLOTS],
            joins,
            again: false,
            alone: 0,
        })
    }

    /// The buffer of the next row of datagrams, which ends within the limits of one message, and the list of gaps of a
    /// single datagram. `None` if the batch is full.
    #[inline]
    pub fn next(&mut self) -> Option<(&mut [u8], &mut Gaps)> {
        if self.waiting.is_empty() {
            (self.waiting, self.made, self.alone) = (0..0, 0, 0);
        }
        let index = self.waiting.end;
        let end = |slot: &Slot| slot.at + slot.len * slot.count;
        let at = index.checked_sub(1).map_or(0, |before| end(&self.slots[before]));
        if at + DATAGRAM > ROOM || self.made >= SEND {
            return None;
        }
        let slot = self.slots.get_mut(index)?;
        let base = self.pages.base().wrapping_add(at);
        (slot.at, slot.gaps.base, slot.gaps.count) = (at, base, 0);
        // SAFETY: inside the mapping, which is borrowed mutably along with `self`; no call uses it meanwhile.
        let buffer = unsafe { std::slice::from_raw_parts_mut(base, DATAGRAM) };
        Some((buffer, &mut slot.gaps))
    }

    /// Maximum number of datagrams of a row: one if the kernel lacks segmentation offload.
    #[inline]
    pub fn longest_row(&self) -> usize {
        if self.joins { segments::MAX_GSO_SEGMENTS } else { 1 }
    }

    /// Queues the datagram, or the row of them, in the buffer of [`Outgoing::next`].
    #[inline]
    pub fn push(&mut self, transmit: &Transmit) {
        let slot = &mut self.slots[self.waiting.end];
        (slot.to, slot.peer, slot.len) = (transmit.to, transmit.peer, transmit.len);
        slot.count = transmit.count;
        self.made += slot.count;
        self.waiting.end += 1;
    }

    /// Whether datagrams are queued.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Fills the headers of sendmmsg(2) for the queued datagrams, with the source addresses of `locals`. The headers
    /// are valid until the next call on `self`.
    pub fn describe(&mut self, locals: Option<&Locals>) -> &mut [libc::mmsghdr] {
        let (mut at, mut message, mut vector) = (self.waiting.start, 0, 0);
        while at < self.waiting.end {
            let run = if self.joins && at >= self.alone {
                let slots = &self.slots[at..self.waiting.end];
                segments::run(slots.len(), |index| (slots[index].to, slots[index].len, slots[index].count))
            } else {
                1
            };
            let first = vector;
            for index in at..at + run {
                vector = self.parts(index, first, vector);
            }
            let name_len = to_storage(self.slots[at].to, &mut self.names[message]);
            let header = &mut self.headers[message].msg_hdr;
            header.msg_name = std::ptr::from_mut(&mut self.names[message]).cast();
            header.msg_namelen = name_len;
            header.msg_iov = &mut self.vectors[first];
            header.msg_iovlen = vector - first;
            let (control, mut len) = (&mut self.controls[message], 0);
            if run > 1 || self.slots[at].count > 1 {
                len = control.put_segment(0, self.slots[at].len as u16);
            }
            if let Some(local) = locals.and_then(|locals| locals.of(self.slots[at].to)) {
                len = control.put_local(len, local);
            }
            (header.msg_control, header.msg_controllen) = match len {
                0 => (std::ptr::null_mut(), 0),
                len => (control.0.as_mut_ptr().cast(), len),
            };
            self.runs[message] = run;
            (at, message) = (at + run, message + 1);
        }
        &mut self.headers[..message]
    }

    /// Writes the parts of row `index` to the vectors from `next` on. The message's vectors start at `first`;
    /// contiguous bytes extend the last one. Returns the next free vector.
    fn parts(&mut self, index: usize, first: usize, mut next: usize) -> usize {
        let slot = &self.slots[index];
        let base = self.pages.base().wrapping_add(slot.at);
        let mut at = 0;
        let mut add = |from: *mut u8, len: usize| {
            if len == 0 {
                return;
            }
            if next > first {
                let last = &mut self.vectors[next - 1];
                if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == from {
                    last.iov_len += len;
                    return;
                }
            }
            self.vectors[next] = libc::iovec { iov_base: from.cast(), iov_len: len };
            next += 1;
        };
        for gap in &slot.gaps.gaps[..slot.gaps.count] {
            add(base.wrapping_add(at), gap.at - at);
            add(gap.from.cast_mut(), gap.len);
            at = gap.at + gap.len;
        }
        add(base.wrapping_add(at), slot.len * slot.count - at);
        next
    }

    /// Removes the first `messages` after they were sent. Returns their number of datagrams.
    pub fn sent(&mut self, messages: usize) -> usize {
        let rows: usize = self.runs[..messages].iter().sum();
        let gone = self.waiting.start..self.waiting.start + rows;
        self.waiting.start = gone.end;
        self.again = false;
        self.slots[gone].iter().map(|slot| slot.count).sum()
    }

    /// Handles the kernel's rejection of the first message. If the message had many datagrams, each is sent alone from
    /// now on, and `None` is returned. Otherwise it is removed from the batch, and its peer and length are returned.
    pub fn refused(&mut self) -> Option<(Option<u32>, usize)> {
        self.again = false;
        let first = self.waiting.start..self.waiting.start + self.runs[0];
        let datagrams: usize = self.slots[first].iter().map(|slot| slot.count).sum();
        if datagrams > 1 {
            self.take_apart();
            self.alone = datagrams;
            return None;
        }
        let slot = &self.slots[self.waiting.start];
        self.waiting.start += 1;
        Some((slot.peer, slot.len))
    }

    /// Splits the queued rows into rows of one datagram, from the first slot on.
    #[cold]
    fn take_apart(&mut self) {
        let rows = self.slots[self.waiting.clone()].to_vec();
        let each = rows.iter().flat_map(|row| {
            (0..row.count).map(|index| Slot {
                at: row.at + index * row.len,
                count: 1,
                gaps: if index == 0 { row.gaps.clone() } else { Gaps::NONE },
                ..*row
            })
        });
        let mut count = 0;
        for (slot, datagram) in self.slots.iter_mut().zip(each) {
            *slot = datagram;
            count += 1;
        }
        self.waiting = 0..count;
    }

    /// Records that sending the first queued datagram reported an error that may be another's. Returns whether that had
    /// happened before.
    pub fn is_again(&mut self) -> bool {
        std::mem::replace(&mut self.again, true)
    }

    /// Copies lent memory into the gaps of queued datagrams, because the loan may end before they are sent.
    #[cold]
    pub fn settle(&mut self) {
        for index in self.waiting.clone() {
            let base = self.pages.base().wrapping_add(self.slots[index].at);
            let gaps = &mut self.slots[index].gaps;
            for gap in &gaps.gaps[..gaps.count] {
                // SAFETY: the memory is lent until the call of the core ends in which the gap was left, and the gap
                // lies within the datagram's buffer.
                unsafe { copy::bytes(gap.from, base.wrapping_add(gap.at), gap.len) };
            }
            gaps.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: [usize; 4] = [1_472, 1_472, 1_472, 700];

    /// The bytes of each message, and its number of vectors.
    fn described(batch: &mut Outgoing) -> Vec<(Vec<u8>, usize)> {
        let headers = batch.describe(None);
        let read = |header: &libc::mmsghdr| {
            let count = header.msg_hdr.msg_iovlen;
            // SAFETY: as many vectors as the description says, of the batch's own memory.
            let vectors = unsafe { std::slice::from_raw_parts(header.msg_hdr.msg_iov, count) };
            let mut bytes = Vec::new();
            for vector in vectors {
                // SAFETY: memory of the batch, or of this test, which both live.
                bytes.extend_from_slice(unsafe {
                    std::slice::from_raw_parts(vector.iov_base.cast::<u8>(), vector.iov_len)
                });
            }
            (bytes, count)
        };
        headers.iter().map(read).collect()
    }

    fn push(batch: &mut Outgoing, len: usize, value: u8, lent: Option<&[u8]>) {
        let (buffer, gaps) = batch.next().expect("room");
        buffer[..len].fill(value);
        if let Some(lent) = lent {
            let piece = Piece::new(lent.as_ptr().cast_mut(), lent.len());
            assert!(gaps.leave(&[piece], 0, &mut buffer[40..40 + lent.len()]));
        }
        batch.push(&Transmit { to: ([127, 0, 0, 1], 9).into(), len, count: 1, peer: Some(0) });
    }

    #[test]
    fn a_row_is_one_message_and_is_taken_apart_if_the_kernel_does_not_take_it() {
        let mut batch = Outgoing::new(true).unwrap();
        push(&mut batch, 1_000, 0, None);
        let (buffer, _) = batch.next().expect("room");
        for (value, datagram) in (1..).zip(buffer[..5_000].chunks_exact_mut(1_000)) {
            datagram.fill(value);
        }
        batch.push(&Transmit { to: ([127, 0, 0, 1], 9).into(), len: 1_000, count: 5, peer: Some(0) });
        push(&mut batch, 700, 6, None);
        push(&mut batch, 1_000, 7, None);
        let bytes = |value: u8, len| vec![value; len];
        let whole = (0..6).flat_map(|value| bytes(value, 1_000)).chain(bytes(6, 700)).collect();
        assert_eq!(described(&mut batch), [(whole, 1), (bytes(7, 1_000), 1)]);
        assert_eq!(batch.refused(), None);
        let each: Vec<_> = described(&mut batch).into_iter().map(|(bytes, _)| bytes).collect();
        let lengths = [1_000, 1_000, 1_000, 1_000, 1_000, 1_000, 700, 1_000];
        assert_eq!(each, (0..).zip(lengths).map(|(value, len)| bytes(value, len)).collect::<Vec<_>>());
        assert_eq!(batch.refused(), Some((Some(0), 1_000)), "one that is refused alone");
        assert_eq!(described(&mut batch).len(), 7);
        assert_eq!(batch.sent(7), 7);
        assert!(batch.is_empty());
    }

    /// As with an MTU of 9,000 bytes: the first datagram was built alone, with a gap, and the others together.
    #[test]
    fn a_row_of_long_datagrams_has_gaps_in_the_first_alone() {
        const LEN: usize = LEAST_GAP + 72;
        let mut batch = Outgoing::new(true).unwrap();
        let lent = vec![200u8; LEAST_GAP];
        let (buffer, gaps) = batch.next().expect("room");
        for (value, datagram) in (0..).zip(buffer[..3 * LEN].chunks_exact_mut(LEN)) {
            datagram.fill(value);
        }
        let piece = Piece::new(lent.as_ptr().cast_mut(), lent.len());
        assert!(gaps.leave(&[piece], 0, &mut buffer[40..40 + LEAST_GAP]));
        batch.push(&Transmit { to: ([127, 0, 0, 1], 9).into(), len: LEN, count: 3, peer: Some(0) });
        let first = [vec![0; 40], lent.clone(), vec![0; 32]].concat();
        let each = [first, vec![1; LEN], vec![2; LEN]];
        assert_eq!(described(&mut batch), [(each.concat(), 3)]);
        assert_eq!(batch.refused(), None);
        let apart: Vec<_> = described(&mut batch).into_iter().map(|(bytes, _)| bytes).collect();
        assert_eq!(apart, each);
    }

    #[test]
    fn a_batch_of_rows_is_full_after_so_many_datagrams() {
        let mut batch = Outgoing::new(true).unwrap();
        let mut rows = 0;
        while batch.next().is_some() {
            batch.push(&Transmit { to: ([127, 0, 0, 1], 9).into(), len: 1_000, count: 64, peer: Some(0) });
            rows += 1;
        }
        assert_eq!(rows, SEND.div_ceil(64));
        assert_eq!(described(&mut batch).len(), rows);
        assert_eq!(batch.refused(), None);
        assert_eq!(described(&mut batch).len(), 64 + rows - 1, "the refused one alone, the others together");
    }

    #[test]
    fn a_row_without_gaps_is_one_stretch_of_memory() {
        let mut batch = Outgoing::new(true).unwrap();
        for (value, len) in LENGTHS.into_iter().enumerate() {
            push(&mut batch, len, value as u8, None);
        }
        let wanted: Vec<u8> =
            LENGTHS.iter().enumerate().flat_map(|(value, &len)| vec![value as u8; len]).collect();
        assert_eq!(described(&mut batch), [(wanted, 1)]);
        assert_eq!(batch.sent(1), LENGTHS.len());
    }

    #[test]
    fn lent_memory_goes_where_its_gap_is_and_stays_there_once_settled() {
        let mut batch = Outgoing::new(true).unwrap();
        let lent = vec![200u8; LEAST_GAP];
        for value in 0..3 {
            push(&mut batch, LEAST_GAP + 72, value, Some(&lent));
        }
        let wanted: Vec<u8> =
            (0..3u8).flat_map(|value| [vec![value; 40], lent.clone(), vec![value; 32]].concat()).collect();
        // The bytes between two gaps are contiguous.
        assert_eq!(described(&mut batch), [(wanted.clone(), 7)]);
        batch.settle();
        drop(lent);
        assert_eq!(described(&mut batch), [(wanted, 1)]);
    }

    #[test]
    fn a_batch_ends_with_its_datagrams_or_its_bytes() {
        for (len, most) in [(100, SEND), (DATAGRAM - 1, ROOM / DATAGRAM)] {
            let mut batch = Outgoing::new(true).unwrap();
            for _ in 0..most {
                push(&mut batch, len, 1, None);
            }
            assert!(batch.next().is_none(), "{len}");
            let messages = described(&mut batch).len();
            batch.sent(messages);
            assert!(batch.is_empty() && batch.next().is_some(), "{len}");
        }
    }
}
