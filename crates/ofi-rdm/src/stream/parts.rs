//! Payloads that stay in the driver's memory. They are sent in parts of one packet each, whose bytes are fetched when
//! the packet is made.

use crate::wire::record::{self, HEAD};

/// Fetches bytes of a payload: token, offset in the payload, destination.
pub type Fill<'a> = dyn FnMut(u64, u64, &mut [u8]) + 'a;

/// Bytes of a part before its payload: the record's head, an id, an offset.
pub const PART_HEAD: usize = HEAD + 16;

/// A part of a payload, as described by its record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind of record.
    pub kind: u8,
    /// The id of the payload.
    pub id: u64,
    /// The offset of the part in the payload.
    pub at: u64,
    /// Bytes of the part.
    pub len: usize,
}

/// Consecutive parts of one payload, all of one length.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// The bytes before the payload bytes of the first part.
    pub(super) head: [u8; PART_HEAD],
    pub(super) token: u64,
    /// The offset of the first part in the payload.
    pub(super) at: u64,
    /// Bytes of payload in each part.
    pub(super) part: u64,
}

impl Parts {
    pub(super) fn new((kind, flags, id): (u8, u8, u64), token: u64, at: u64, part: u64) -> Self {
        let mut head = [0u8; PART_HEAD];
        head[..HEAD].copy_from_slice(&record::head(kind, flags, 16 + part as usize));
        head[HEAD..HEAD + 8].copy_from_slice(&id.to_be_bytes());
        head[HEAD + 8..].copy_from_slice(&at.to_be_bytes());
        Self { head, token, at, part }
    }

    /// Stream bytes of each part.
    pub(super) fn stride(&self) -> u64 {
        PART_HEAD as u64 + self.part
    }

    /// The bytes before the payload bytes of part `index`.
    pub(super) fn head(&self, index: u64) -> [u8; PART_HEAD] {
        let mut head = self.head;
        head[HEAD + 8..].copy_from_slice(&(self.at + index * self.part).to_be_bytes());
        head
    }

    /// Whether `next` continues these parts after `len` bytes of the stream.
    pub(super) fn go_on_with(&self, len: u64, next: &Self) -> bool {
        let same = |head: &[u8; PART_HEAD]| {
            let (front, _) = head.split_at(HEAD + 8);
            front.iter().eq(&next.head[..HEAD + 8])
        };
        self.part == next.part
            && self.token == next.token
            && self.at + len / self.stride() * self.part == next.at
            && same(&self.head)
    }

    /// Copies bytes from `skip` on.
    pub(super) fn copy(&self, skip: usize, mut to: &mut [u8], fill: &mut Fill<'_>) {
        let stride = self.stride() as usize;
        let (mut index, mut skip) = (skip / stride, skip % stride);
        while !to.is_empty() {
            let (here, rest) = to.split_at_mut((stride - skip).min(to.len()));
            let of_head = PART_HEAD.saturating_sub(skip).min(here.len());
            let (front, back) = here.split_at_mut(of_head);
            front.copy_from_slice(&self.head(index as u64)[skip.min(PART_HEAD)..][..of_head]);
            if !back.is_empty() {
                let at = self.at + index as u64 * self.part;
                fill(self.token, at + (skip + of_head - PART_HEAD) as u64, back);
            }
            (index, skip, to) = (index + 1, 0, rest);
        }
    }
}

/// Parts of a payload that were just added to the stream, each for a packet of its own.
#[derive(Debug)]
pub(crate) struct Train {
    pub(super) parts: Parts,
    /// The stream offset of the first part.
    pub start: u64,
    pub count: u64,
}

impl Train {
    /// The parts that are expected to begin at stream offset `start`. They do not identify a payload.
    pub fn expected(part: &Part, start: u64) -> Self {
        let Part { kind, id, at, len } = *part;
        Self { parts: Parts::new((kind, 0, id), 0, at, len as u64), start, count: 0 }
    }

    /// The payload's token, the offset of the first part in the payload, and the bytes of payload in each part.
    pub fn payload(&self) -> (u64, u64, usize) {
        (self.parts.token, self.parts.at, self.parts.part as usize)
    }

    /// Stream bytes in each packet.
    pub fn stride(&self) -> u64 {
        self.parts.stride()
    }

    /// The stream bytes before the payload in packet `index`.
    pub fn head(&self, index: u64) -> [u8; PART_HEAD] {
        self.parts.head(index)
    }
}
