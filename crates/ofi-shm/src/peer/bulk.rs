//! The rings for large payloads, and the payloads that are streamed through them.

use std::collections::VecDeque;

use ofi_api::{Errno, RemotePiece};
use ofi_core::copy::Stores;
use ofi_core::slots::SlotId;
use ofi_core::transport::Upcalls;
use ofi_ring::record::{Consumer, Producer};

use crate::Shm;
use crate::command::{PART_HEADER, kind};
use crate::common::{Common, accessor};
use crate::layout::LINE;
use crate::op::Op;
use crate::sys::Mapping;

/// Payload bytes of a part: with 16 KiB in a ring of 512 KiB both copies overlap well, and each part stays in the
/// second-level cache.
pub const PART: usize = 16 << 10;

/// Shorter payloads go in parts of at least this length.
const SHORT_PART: usize = 4 << 10;

/// Bytes of each part of a payload of `len` bytes: a quarter, so that both copies of a short one overlap, too.
const fn part_of(len: usize) -> usize {
    match len.div_ceil(4) {
        quarter if quarter < SHORT_PART => SHORT_PART,
        quarter if quarter < PART => quarter.next_multiple_of(LINE),
        _ => PART,
    }
}

/// The ring to the peer.
pub struct BulkOut {
    pub producer: Producer,
    /// Keeps the lines mapped; after the producer, which is dropped first.
    _memory: Mapping,
}

/// The ring from the peer.
pub struct BulkIn {
    pub consumer: Consumer,
    _memory: Mapping,
}

impl BulkOut {
    /// Of lines that lie in `memory`.
    pub const fn new(producer: Producer, memory: Mapping) -> Self {
        Self { producer, _memory: memory }
    }

    /// Whether a part of this length fits.
    pub fn has_room(&mut self, part: usize) -> bool {
        self.producer.reserve(PART_HEADER + part).is_ok()
    }
}

impl BulkIn {
    /// Of lines that lie in `memory`.
    pub const fn new(consumer: Consumer, memory: Mapping) -> Self {
        Self { consumer, _memory: memory }
    }

    /// Whether a part waits.
    pub fn has_input(&mut self) -> bool {
        !matches!(self.consumer.peek(), Ok(None))
    }
}

/// The source of a streamed payload.
pub enum Streamed {
    /// The payload of a message.
    Message(SlotId),
    /// A message that the library kept.
    Kept(Box<[u8]>),
    /// The bytes of a remote write.
    Write(SlotId),
    /// Registered memory here, which the peer reads.
    Read(Box<[RemotePiece]>),
}

/// A payload that is being streamed to the peer.
pub struct BulkStream {
    pub source: Streamed,
    /// The name by which the peer knows it.
    pub id: u64,
    pub sent: usize,
    pub len: usize,
}

impl BulkStream {
    pub fn message(op: SlotId, into: u64, len: usize) -> Self {
        Self { source: Streamed::Message(op), id: into, sent: 0, len }
    }

    pub fn kept(bytes: Box<[u8]>, into: u64, len: usize) -> Self {
        Self { source: Streamed::Kept(bytes), id: into, sent: 0, len }
    }

    pub fn write(op: SlotId, into: u64, len: usize) -> Self {
        Self { source: Streamed::Write(op), id: into, sent: 0, len }
    }

    pub fn read(remote: Box<[RemotePiece]>, op: u64, len: usize) -> Self {
        Self { source: Streamed::Read(remote), id: op, sent: 0, len }
    }

    /// Bytes of the part that is sent next.
    pub fn next_part(&self) -> usize {
        (self.len - self.sent).min(part_of(self.len))
    }

    pub const fn kind(&self) -> u32 {
        match self.source {
            Streamed::Message(_) | Streamed::Kept(_) => kind::MESSAGE_PART,
            Streamed::Write(_) => kind::WRITE_PART,
            Streamed::Read(_) => kind::READ_PART,
        }
    }

    /// Copies the next `len` bytes to `to` by these stores.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    pub unsafe fn fill<H: Upcalls<Shm>>(
        &self,
        peer: u32,
        common: &Common,
        host: &mut H,
        stores: Stores,
        (to, len): (*mut u8, usize),
    ) -> Result<(), Errno> {
        let copied = match &self.source {
            Streamed::Message(op) | Streamed::Write(op) => match host.op(peer, *op) {
                Some(Op::Message { payload, .. } | Op::Write(payload, _)) => {
                    // SAFETY: the caller's promise.
                    unsafe { payload.gather_by(stores, self.sent, to, len) }
                }
                _ => return Err(Errno::ECANCELED),
            },
            Streamed::Kept(bytes) => {
                let part = bytes.get(self.sent..).unwrap_or_default();
                // SAFETY: `part` is memory of ours; `min` keeps inside it.
                unsafe { stores.copy(part.as_ptr(), to, len.min(part.len())) };
                len.min(part.len())
            }
            Streamed::Read(remote) => {
                let (who, regions) = (accessor(common, host, peer), &common.shared.domain.regions);
                // SAFETY: the caller's promise.
                unsafe { regions.read_raw_as(who, remote, self.sent, stores, to, len)? }
            }
        };
        if copied == len { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

/// A peer's state for large payloads.
#[derive(Default)]
pub struct Bulk {
    pub out: Option<BulkOut>,
    pub input: Option<BulkIn>,
    /// Payloads that are being streamed to the peer, in order.
    pub streams: VecDeque<BulkStream>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_goes_in_four_parts_unless_they_would_be_too_short_or_too_long() {
        let parts =
            [(1, SHORT_PART), (16 << 10, 4 << 10), (40_001, 10_048), (64 << 10, PART), (1 << 30, PART)];
        for (len, part) in parts {
            assert_eq!(part_of(len), part, "{len}");
        }
        for len in 4 * SHORT_PART..=4 * PART {
            assert!(len.div_ceil(part_of(len)) <= 4, "{len}");
        }
    }
}
