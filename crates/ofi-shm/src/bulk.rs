//! Large payloads. They are streamed in parts through a separate ring, so that the sender's copy in and the receiver's
//! copy out overlap.
//!
//! Up to 1 MiB, two copies are faster here than one call of process_vm_readv at every size (17 GB/s against 8 for 1 MiB
//! of ordinary pages): a system call that walks page tables costs more than a second pass through the cache (measured
//! on a Zen 3 in a virtual machine; `docs/design-choices.md`). The ring is created for the first large payload.

use std::os::fd::AsFd;
use std::sync::Arc;

use ofi_api::{Errno, MrAccess, Result};

use ofi_core::transport::Upcalls;
use ofi_ring::crash_point;
use ofi_ring::record::{Consumer, Producer, ReserveError};

use crate::Shm;
use crate::command::{CommandWriter, PART_HEADER, Words, kind};
use crate::common::Common;
use crate::control::ControlMessage;
use crate::layout::{LINE, pair};
use crate::op::Op;
use crate::pair::lines;
use crate::peer::bulk::{BulkIn, BulkOut, BulkStream, Streamed};
use crate::peer::link::Up;
use crate::peer::{Broken, Peer};
use crate::settings::BULK_LINES;
use crate::stores::Reading;
use crate::sys::{self, Mapping};

/// The maximum number of parts that one poll takes or adds. Without a limit, two ends that keep pace would never stop,
/// while the application and the other peers wait.
const TURN: usize = 64;

impl Peer {
    /// Creates the ring for large payloads and announces it to the peer.
    fn open_bulk(&mut self, common: &Common) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        let Some(up) = &link.up else { return Ok(()) };
        let count = BULK_LINES.get().next_power_of_two();
        let fd = sys::memfd(c"ofi-shm bulk", count * LINE)?;
        let memory = Mapping::new(fd.as_fd(), count * LINE, true)?;
        sys::seal(&fd, sys::Writers::Any)?; // as the ring of commands: see `pair.rs`
        // SAFETY: the peer keeps `memory` beside the producer, which is the only one.
        let lines = unsafe { lines(&memory, 0, count)? };
        // SAFETY: the lines lie in `memory` and the word in the peer's pair memory, both kept with the peer; this is
        // the only producer.
        let producer = unsafe { Producer::new(lines, up.parts.pair.word(pair::BULK_READ)) };
        let message = ControlMessage::Bulk { incarnation: common.shared.incarnation, lines: count as u32 };
        crash_point!("bulk.open");
        common.helper.post(&common.shared, &self.socket, message, Some(Arc::new(fd)));
        crash_point!("bulk.opened");
        self.bulk.out = Some(BulkOut::new(producer, memory));
        Ok(())
    }

    /// Attaches the peer's ring for large payloads.
    ///
    /// # Errors
    /// `FI_EINVAL` for a ring of impossible size.
    pub fn attach_bulk(&mut self, memory: Mapping, count: u32) -> Result<()> {
        let Some(link) = &self.link else { return Ok(()) };
        // SAFETY: the peer keeps `memory` beside the consumer, which is the only one.
        let lines = unsafe { lines(&memory, 0, count as usize)? };
        // SAFETY: the lines lie in `memory` and the word in this end's pair memory, both kept with the peer; this is
        // the only consumer.
        let consumer = unsafe { Consumer::new(lines, link.own.memory.word(pair::BULK_READ)) };
        crash_point!("bulk.attach");
        self.bulk.input = Some(BulkIn::new(consumer, memory));
        Ok(())
    }

    /// Copies streamed payloads into the ring while there is room.
    ///
    /// # Errors
    /// [`Broken`] if the peer claims to have read data that was never written.
    pub fn pump<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        if self.bulk.streams.is_empty() {
            return Ok(());
        }
        if self.bulk.out.is_none() && self.open_bulk(common).is_err() {
            return Ok(()); // out of memory or descriptors now; tried again at the next poll
        }
        let mut sent = false;
        for _ in 0..TURN {
            let (Some(stream), Some(bulk)) = (self.bulk.streams.front_mut(), &mut self.bulk.out) else {
                break;
            };
            let part = stream.next_part();
            let reserved = self.stores.reserve(common.streaming, &mut bulk.producer, PART_HEADER + part);
            let mut slot = match reserved {
                Ok(slot) => slot,
                Err(ReserveError::Full) => break,
                Err(_) => return Err(Broken),
            };
            // SAFETY: a header and a part were reserved.
            let mut body = unsafe { CommandWriter::new(slot.body()) };
            let to = slot.body().wrapping_add(PART_HEADER);
            body.word(stream.id);
            body.word(stream.sent as u64);
            let plan = self.stores.plan(common.streaming, true, PART_HEADER + part);
            // SAFETY: `part` bytes were reserved behind the header.
            let filled = unsafe { stream.fill(self.peer, common, host, plan.stores, (to, part)) };
            if let Err(errno) = filled {
                drop(slot);
                self.break_off(common, errno);
                continue;
            }
            crash_point!("part.filled");
            slot.publish(stream.kind() | plan.flags());
            let peer = self.link.as_ref().and_then(|link| link.up.as_ref()).map(Up::pair);
            self.stores.written(common, plan, PART_HEADER + part, peer);
            sent = true;
            common.counts.bulk_bytes += part as u64;
            stream.sent += part;
            let over = stream.sent == stream.len;
            self.ring(common);
            if over && let Some(stream) = self.bulk.streams.pop_front() {
                crash_point!("stream.ended");
                self.streamed(common, host, &stream);
            }
        }
        if sent {
            self.ring(common);
        }
        Ok(())
    }

    /// Handles the end of a stream, whose last byte is in the ring.
    fn streamed<H: Upcalls<Shm>>(&mut self, common: &Common, host: &mut H, stream: &BulkStream) {
        match &stream.source {
            &Streamed::Message(op) => {
                // Transmit-complete: the bytes no longer depend on this process. With confirmation, the peer's answer
                // completes it.
                if !matches!(host.op(self.peer, op), Some(Op::Message { confirm: true, .. })) {
                    self.finish(host, op, Ok(()));
                }
            }
            Streamed::Read(remote) => {
                self.served.serving -= 1;
                host.accessed(&common.shared.domain.regions, MrAccess::REMOTE_READ, remote);
            }
            Streamed::Kept(_) | Streamed::Write(_) => {}
        }
    }

    /// Ends a stream whose memory is gone, because its registration was closed or its operation has ended.
    fn break_off(&mut self, common: &mut Common, errno: Errno) {
        let Some(stream) = self.bulk.streams.pop_front() else { return };
        if let Streamed::Read(_) = stream.source {
            self.served.serving -= 1;
            self.done(common, stream.id, Err(errno));
        }
    }

    /// Takes the parts that have arrived.
    ///
    /// # Errors
    /// [`Broken`] for a part that was not requested.
    pub fn take_parts<H: Upcalls<Shm>>(&mut self, common: &mut Common, host: &mut H) -> Result<(), Broken> {
        let mut taken = false;
        for _ in 0..TURN {
            let Some(bulk) = &mut self.bulk.input else { return Ok(()) };
            let Some(record) = bulk.consumer.peek()? else { break };
            let reading = Reading::begin(&record);
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
            reading.end(record.body_len, self.link.as_ref().map(|link| &*link.own));
            taken = true;
            crash_point!("part.taken");
            if let Some(bulk) = &mut self.bulk.input {
                bulk.consumer.advance(&record);
            }
        }
        if taken {
            if let Some(bulk) = &mut self.bulk.input {
                bulk.consumer.flush();
            }
            self.ring(common); // the peer may sleep until there is room
        }
        Ok(())
    }
}
