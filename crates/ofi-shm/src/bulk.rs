//! Large payloads: streamed in parts through a ring of their own, so that the sender's copy in and the receiver's copy
//! out run at the same time.
//!
//! Two copies beat one call of process_vm_readv here at every size up to 1 MiB, and 17 GB/s beat 8 for 1 MiB of
//! ordinary pages: a system call that walks page tables costs more than a second pass through the cache (measured on a
//! Zen 3 in a virtual machine; `docs/hot-path.md`). The ring is made at the first large payload.

use std::os::fd::AsFd;
use std::sync::Arc;

use ofi_api::{Errno, MrAccess, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::Host;
use ofi_ring::crash_point;
use ofi_ring::record::{Consumer, Producer, ReserveError};

use crate::Shm;
use crate::command::{PART_HEADER, Words, Writer, kind};
use crate::control::Message;
use crate::lane::{Broken, Common, Lane, Link};
use crate::layout::{LINE, pair};
use crate::message::Op;
use crate::pair::lines;
use crate::rma::accessor;
use crate::settings::BULK_LINES;
use crate::sys::{self, Mapping};

/// Payload bytes of a part: with 16 KiB in a ring of 512 KiB both copies overlap well, and each part stays in the
/// second-level cache.
const PART: usize = 16 << 10;
/// Parts that one poll takes, or puts in, at most: while both ends keep pace there would be no end of them, and the
/// application and the other peers wait.
const TURN: usize = 64;

/// The ring to the peer.
pub struct BulkOut {
    producer: Producer,
    /// Keeps the lines mapped; after the producer, which is dropped first.
    _memory: Mapping,
}

/// The ring from the peer.
pub struct BulkIn {
    consumer: Consumer,
    _memory: Mapping,
}

impl BulkOut {
    /// Whether another part fits.
    pub fn has_room(&mut self) -> bool {
        self.producer.reserve(PART_HEADER + PART).is_ok()
    }
}

impl BulkIn {
    /// Whether a part waits.
    pub fn has_input(&mut self) -> bool {
        !matches!(self.consumer.peek(), Ok(None))
    }
}

/// What is being streamed.
enum Source {
    /// The payload of a message.
    Message(SlotId),
    /// A message that the library kept.
    Kept(Box<[u8]>),
    /// The bytes of a remote write.
    Write(SlotId),
    /// Registered memory here, which the peer reads.
    Read(Box<[RemotePiece]>),
}

/// One payload on its way to the peer.
pub struct Stream {
    source: Source,
    /// What the peer knows it by.
    id: u64,
    sent: usize,
    len: usize,
}

impl Stream {
    pub fn message(op: SlotId, into: u64, len: usize) -> Self {
        Self { source: Source::Message(op), id: into, sent: 0, len }
    }

    pub fn kept(bytes: Box<[u8]>, into: u64, len: usize) -> Self {
        Self { source: Source::Kept(bytes), id: into, sent: 0, len }
    }

    pub fn write(op: SlotId, into: u64, len: usize) -> Self {
        Self { source: Source::Write(op), id: into, sent: 0, len }
    }

    pub fn read(remote: Box<[RemotePiece]>, op: u64, len: usize) -> Self {
        Self { source: Source::Read(remote), id: op, sent: 0, len }
    }

    const fn kind(&self) -> u32 {
        match self.source {
            Source::Message(_) | Source::Kept(_) => kind::MESSAGE_PART,
            Source::Write(_) => kind::WRITE_PART,
            Source::Read(_) => kind::READ_PART,
        }
    }

    /// Copies the next `len` bytes to `to`.
    ///
    /// # Safety
    /// `to` is writable for `len` bytes.
    unsafe fn fill<H: Host<Shm>>(
        &self,
        lane: u32,
        common: &Common,
        host: &mut H,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Errno> {
        let copied = match &self.source {
            Source::Message(op) | Source::Write(op) => match host.op(lane, *op) {
                Some(Op::Message { payload, .. } | Op::Write(payload, _)) => {
                    // SAFETY: the caller's promise.
                    unsafe { payload.gather_raw(self.sent, to, len) }
                }
                _ => return Err(Errno::ECANCELED),
            },
            Source::Kept(bytes) => {
                let part = bytes.get(self.sent..).unwrap_or_default();
                // SAFETY: `part` is memory of ours; `min` keeps inside it.
                unsafe { copy::bytes(part.as_ptr(), to, len.min(part.len())) };
                len.min(part.len())
            }
            Source::Read(remote) => {
                let (who, regions) = (accessor(common, host, lane), &common.shared.domain.regions);
                // SAFETY: the caller's promise.
                unsafe { regions.read_raw_as(who, remote, self.sent, to, len)? }
            }
        };
        if copied == len { Ok(()) } else { Err(Errno::EINVAL) }
    }
}

impl Lane {
    /// Makes the ring for large payloads and tells the peer.
    fn open_bulk(&mut self, common: &Common) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let Some(up) = &link.up else { return Ok(()) };
        let count = BULK_LINES.get().next_power_of_two();
        let fd = sys::memfd(c"ofi-shm bulk", count * LINE)?;
        let memory = Mapping::new(fd.as_fd(), count * LINE, true)?;
        sys::seal(&fd, sys::Writers::Present)?;
        // SAFETY: the lines lie in `memory` and the word in the peer's pair memory, both kept by the lane; this is the
        // only producer.
        let producer =
            unsafe { Producer::new(lines(&memory, 0, count)?, up.parts.pair.word(pair::BULK_READ)) };
        let message = Message::Bulk { incarnation: common.shared.incarnation, lines: count as u32 };
        crash_point!("bulk.open");
        common.helper.post(&common.shared, &self.socket, message, Some(Arc::new(fd)));
        crash_point!("bulk.opened");
        self.bulk_out = Some(BulkOut { producer, _memory: memory });
        Ok(())
    }

    /// Takes the peer's ring for large payloads into use.
    ///
    /// # Errors
    /// `FI_EINVAL` for a ring of impossible size.
    pub fn attach_bulk(&mut self, memory: Mapping, count: u32) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let lines = lines(&memory, 0, count as usize)?;
        // SAFETY: the lines lie in `memory` and the word in this end's pair memory, both kept by the lane; this is the
        // only consumer.
        let consumer = unsafe { Consumer::new(lines, link.own.memory.word(pair::BULK_READ)) };
        crash_point!("bulk.attach");
        self.bulk_in = Some(BulkIn { consumer, _memory: memory });
        Ok(())
    }

    /// Moves what is being streamed into the ring, as far as there is room.
    ///
    /// # Errors
    /// [`Broken`] if the peer claims to have read what was never written.
    pub fn pump<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        if self.streams.is_empty() {
            return Ok(());
        }
        if self.bulk_out.is_none() && self.open_bulk(common).is_err() {
            return Ok(()); // out of memory or descriptors now; tried again at the next poll
        }
        let mut sent = false;
        for _ in 0..TURN {
            let (Some(stream), Some(bulk)) = (self.streams.front_mut(), &mut self.bulk_out) else { break };
            let part = (stream.len - stream.sent).min(PART);
            let mut slot = match bulk.producer.reserve(PART_HEADER + part) {
                Ok(slot) => slot,
                Err(ReserveError::Full) => break,
                Err(_) => return Err(Broken),
            };
            // SAFETY: a header and a part were reserved.
            let mut body = unsafe { Writer::new(slot.body()) };
            let to = slot.body().wrapping_add(PART_HEADER);
            body.word(stream.id);
            body.word(stream.sent as u64);
            // SAFETY: `part` bytes were reserved behind the header.
            let filled = unsafe { stream.fill(self.peer, common, host, to, part) };
            if let Err(errno) = filled {
                drop(slot);
                self.break_off(common, errno);
                continue;
            }
            crash_point!("part.filled");
            slot.publish(stream.kind());
            sent = true;
            common.counts.bulk_bytes += part as u64;
            stream.sent += part;
            let over = stream.sent == stream.len;
            self.ring(common);
            if over && let Some(stream) = self.streams.pop_front() {
                crash_point!("stream.ended");
                self.streamed(common, host, &stream);
            }
        }
        if sent {
            self.ring(common);
        }
        Ok(())
    }

    /// A stream is in the ring to its last byte.
    fn streamed<H: Host<Shm>>(&mut self, common: &Common, host: &mut H, stream: &Stream) {
        match &stream.source {
            &Source::Message(op) => {
                // Transmit-complete: the bytes no longer depend on this process. With confirmation the peer ends it.
                if !matches!(host.op(self.peer, op), Some(Op::Message { confirm: true, .. })) {
                    self.finish(host, op, Ok(()));
                }
            }
            Source::Read(remote) => {
                self.serving -= 1;
                host.accessed(&common.shared.domain.regions, MrAccess::REMOTE_READ, remote);
            }
            Source::Kept(_) | Source::Write(_) => {}
        }
    }

    /// The memory of a stream is not there any more: its registration was closed, or its operation ended.
    fn break_off(&mut self, common: &mut Common, errno: Errno) {
        let Some(stream) = self.streams.pop_front() else { return };
        if let Source::Read(_) = stream.source {
            self.serving -= 1;
            self.done(common, stream.id, Err(errno));
        }
    }

    /// Takes the parts that have come.
    ///
    /// # Errors
    /// [`Broken`] for a part that was not asked for.
    pub fn take_parts<H: Host<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut taken = false;
        for _ in 0..TURN {
            let Some(bulk) = &mut self.bulk_in else { return Ok(()) };
            let Some(record) = bulk.consumer.peek()? else { break };
            // SAFETY: the record's body is aligned, and readable until `advance`.
            let mut words = unsafe { Words::new(record.body, record.body_len) };
            let (id, offset) = (words.next().ok_or(Broken)?, words.next().ok_or(Broken)?);
            words.skip(PART_HEADER / 8 - 2);
            match record.high & kind::MASK {
                kind::MESSAGE_PART => self.take_message_part(common, host, (id, offset), words)?,
                kind::WRITE_PART => {
                    if !self.take_write_part(common, host, (id, offset), words)? {
                        break;
                    }
                }
                kind::READ_PART => self.take_read_data(common, host, (id, offset), words)?,
                _ => return Err(Broken),
            }
            taken = true;
            crash_point!("part.taken");
            if let Some(bulk) = &mut self.bulk_in {
                bulk.consumer.advance(&record);
            }
        }
        if taken {
            if let Some(bulk) = &mut self.bulk_in {
                bulk.consumer.flush();
            }
            self.ring(common); // the peer may sleep until there is room
        }
        Ok(())
    }

    /// This end's half of the link, for `rma/`.
    pub fn link_mut(&mut self) -> Option<&mut Link> {
        self.link.as_mut()
    }
}
