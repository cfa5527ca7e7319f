//! Payloads that stay with the driver: parts of one packet each, whose bytes are fetched when the packet is made.

use crate::wire::record::{self, HEAD};

/// Fetches bytes of a payload: token, offset in the payload, where to.
pub type Fill<'a> = dyn FnMut(u64, u64, &mut [u8]) + 'a;

/// Bytes of a part before its payload: the record's head, an id, an offset.
pub const PART_HEAD: usize = HEAD + 16;

/// A part of a payload, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind of record.
    pub kind: u8,
    /// Whose payload it is.
    pub id: u64,
    /// Where in the payload it begins.
    pub at: u64,
    /// Bytes of it.
    pub len: usize,
}

/// Parts of one payload, one behind the other and all of one length.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    /// What comes before the bytes of the first.
    pub(super) head: [u8; PART_HEAD],
    pub(super) token: u64,
    /// Where in the payload the first begins.
    pub(super) at: u64,
    /// Bytes of payload in each.
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

    /// Bytes of the stream that each takes.
    pub(super) fn stride(&self) -> u64 {
        PART_HEAD as u64 + self.part
    }

    /// What comes before the bytes of part `index`.
    pub(super) fn head(&self, index: u64) -> [u8; PART_HEAD] {
        let mut head = self.head;
        head[HEAD + 8..].copy_from_slice(&(self.at + index * self.part).to_be_bytes());
        head
    }

    /// Whether `next` is what follows after `len` bytes of the stream.
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

    /// Writes bytes from `skip` on.
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

/// Parts of a payload that were just put into the stream, each for a packet of its own.
#[derive(Debug)]
pub(crate) struct Train {
    pub(super) parts: Parts,
    /// Where in the stream the first begins.
    pub start: u64,
    pub count: u64,
}

impl Train {
    /// Parts that begin at byte `start` of a stream, which do not name whose payload they are.
    pub fn expected(part: &Part, start: u64) -> Self {
        let Part { kind, id, at, len } = *part;
        Self { parts: Parts::new((kind, 0, id), 0, at, len as u64), start, count: 0 }
    }

    /// Whose payload it is, where in it the first part begins, and bytes of it in each.
    pub fn payload(&self) -> (u64, u64, usize) {
        (self.parts.token, self.parts.at, self.parts.part as usize)
    }

    /// Bytes of the stream in each packet.
    pub fn stride(&self) -> u64 {
        self.parts.stride()
    }

    /// What comes before the payload in the stream's bytes of packet `index`.
    pub fn head(&self, index: u64) -> [u8; PART_HEAD] {
        self.parts.head(index)
    }
}
