//! Remote reads and writes. The owner of the memory executes them, and checks key, bounds and rights before each copy.

use std::sync::Arc;

use ofi_api::{Errno, Error, OpFlags, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::served::{Owner, Progress, ReadInParts, WriteInParts};
use ofi_core::transport::{OutRma, Payload, PeerId, Posted, Regions, Upcalls};
use ofi_rdm::{Flow, Sender};

use crate::Udp;
use crate::answer::{Answers, BufPool, CHUNK, COPIED, READ_AHEAD};
use crate::command::{STREAM_LIMIT, kind};
use crate::lent::AnswerMemory;
use crate::op::Op;
use crate::parts::Parts;
use crate::peer::common::Common;
use crate::peer::{Long, Peer};

/// Answers a read with its next `part` bytes, sent directly from registered memory.
fn lend_part(
    regions: &Arc<Regions>,
    sender: &mut Sender,
    answers: &mut Answers,
    who: Accessor<'_>,
    (op, remote, at): (u64, &[RemotePiece], usize),
    part: usize,
) -> Result<(), Errno> {
    let lent = AnswerMemory::new(regions, who, remote, (at, part))?;
    let at = at as u64;
    let token = answers.lend(lent, at);
    sender.bulk.part_of_payload(kind::READ_PART, 0, op, token, at..at + part as u64);
    Ok(())
}

/// Answers a read with a copy of its next `part` bytes, in memory from `spare`.
fn copy_part(
    regions: &Regions,
    spare: &mut BufPool,
    sender: &mut Sender,
    answers: &mut Answers,
    who: Accessor<'_>,
    (op, remote, at): (u64, &[RemotePiece], usize),
    part: usize,
) -> Result<(), Errno> {
    let mut bytes = spare.take(part);
    let read = regions.read_as(who, remote, at, &mut bytes);
    let at = at as u64;
    if read.is_ok() && part > SHORT_ANSWER {
        let token = answers.keep(bytes, at);
        sender.bulk.part_of_payload(kind::READ_PART, 0, op, token, at..at + part as u64);
        return Ok(());
    }
    if read.is_ok() {
        let mut fields = Fields::new();
        fields.word(op).word(at);
        let body = sender.bulk.record(kind::READ_PART, 0, fields.bytes(), part, None);
        body.copy_from_slice(&bytes);
    }
    spare.give_back(bytes);
    read.map(|_| ())
}

/// Length of the next answer to a read of which `left` bytes are missing: at most `most`, in whole packets, so that it
/// can be received in place. It is shorter if it would leave [`SHORT_ANSWER`] or less, which would overtake it.
fn piece(left: usize, most: usize, whole: impl Fn(usize) -> usize) -> usize {
    if left <= most {
        return left;
    }
    let part = whole(most);
    if left - part > SHORT_ANSWER { part } else { part - SHORT_ANSWER }
}

/// Maximum length in bytes of an answer inside a record. Longer ones are payloads, whose parts each fit a packet and
/// are copied from it to their destination.
const SHORT_ANSWER: usize = 4 << 10;

impl Peer {
    /// Posts a read or write of the peer's memory.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the stream is full, or a fence waits for earlier operations.
    pub fn rma<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Posted> {
        if (out.flags.contains(OpFlags::FENCE) && self.outstanding > 0)
            || sender.commands.records() > STREAM_LIMIT
        {
            return Err(Error::AGAIN);
        }
        let data = out.remote_data();
        let short = out.write && out.len <= common.eager;
        let op = match (out.write, short) {
            (true, true) => Op::Confirm,
            // SAFETY: the core lends the pieces of what it posts.
            (true, false) => Op::Write(unsafe { Payload::new(out.pieces, out.len, out.flags) }),
            (false, _) => Op::Read { pieces: out.pieces.into(), got: 0, len: out.len, in_order: true },
        };
        self.begin(common, out.peer);
        let id = host.open(out.peer, out.ticket, op).to_wire();
        let mut fields = Fields::new();
        fields.word(id).pieces(out.remote);
        let flags = fields.remote_data(data);
        let fields = fields.bytes();
        if short {
            let body = sender.commands.record(kind::WRITE, flags, fields, out.len, None);
            // SAFETY: the pieces are lent, and `body` has as many bytes as they together.
            unsafe { copy::gather(out.pieces, 0, body.as_mut_ptr(), out.len) };
        } else if out.write {
            sender.commands.record(kind::WRITE_LONG, flags, fields, 0, None);
            sender.commands.payload(kind::WRITE_PART, 0, id, id, out.len as u64);
        } else {
            sender.commands.record(kind::READ, flags, fields, 0, None);
            if out.len > 0 {
                self.long().asked.push(kind::READ_PART, id);
                common.expect(out.peer, kind::READ_PART, id);
            }
        }
        Ok(Posted::Pending)
    }

    /// Executes a short write of the peer.
    pub fn take_write<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        let bytes = words.0;
        let (owner, regions) = (common.owner(), &common.domain.regions);
        let copy = |who: Accessor<'_>| regions.write_as(who, &remote, 0, bytes.len(), [bytes]);
        match owner.write(host, peer, (&remote, data), bytes.len(), copy)? {
            Progress::Ended(result) => Self::done(sender, 0, op, result),
            Progress::More | Progress::Wait => return Ok(Flow::Stop),
        }
        Ok(Flow::Next)
    }

    /// Starts a long write of the peer.
    pub fn take_long_write<H: Upcalls<Udp>>(
        &mut self,
        common: &Common,
        host: &H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        if self.is_written() {
            return Err(Broken);
        }
        let write = WriteInParts::begin(common.owner(), host, peer, (op, remote.into(), data))?;
        self.long().write = Some(Box::new(write));
        Ok(Flow::Next)
    }

    /// Executes parts of a long write.
    pub fn take_write_parts<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        parts: &Parts<'_>,
    ) -> Result<Flow, Broken> {
        let write = self.long().write.as_mut().ok_or(Broken)?;
        if parts.id != write.op || parts.at != write.got() as u64 {
            return Err(Broken);
        }
        let (owner, regions) = (common.owner(), &common.domain.regions);
        let progress = write.part(owner, host, peer, parts.len, |who, remote, skip| {
            regions.write_as(who, remote, skip, parts.len, parts.bytes())
        })?;
        match progress {
            Progress::Wait => return Ok(Flow::Stop),
            Progress::More => {}
            Progress::Ended(result) => {
                self.long().write = None;
                Self::done(sender, 0, parts.id, result);
            }
        }
        Ok(Flow::Next)
    }

    /// Starts a read of the peer.
    pub fn take_read<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        match ReadInParts::begin(common.owner(), host, peer, (op, remote)) {
            Err(errno) => Self::done(sender, 0, op, Err(errno)),
            Ok(None) => Self::done(sender, 0, op, Ok(())),
            Ok(Some(read)) => {
                self.long().reads.push_back(read);
                self.serve_reads(common, sender, host, peer);
                if self.is_read() {
                    self.await_service(common, peer);
                }
            }
        }
        Ok(Flow::Next)
    }

    /// Queues answers to reads, up to [`READ_AHEAD`] bytes in flight.
    pub fn serve_reads<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: PeerId,
    ) {
        let Some(Long { reads, answers, .. }) = self.long.as_deref_mut() else { return };
        // The read is counted here. An application that counts reads may change the memory after that, so copy it.
        let lends = !host.counts_reads(&common.domain.regions);
        while let Some(read) = reads.front_mut() {
            if answers.bytes() + sender.bulk.records() > READ_AHEAD {
                return;
            }
            let left = read.left();
            let lends =
                lends && CHUNK.min(left) > SHORT_ANSWER && common.domain.regions.may_lend(read.remote());
            let part = piece(left, if lends { CHUNK } else { COPIED }, |most| sender.bulk.whole_parts(most));
            let op = read.op;
            // Not `common.owner()`, because the copy takes memory from `common`.
            let Common { domain, caps, auth, spare, .. } = &mut *common;
            let owner = Owner { regions: &domain.regions, caps: *caps, auth };
            let ended = read.part(owner, host, peer, part, |who, remote, at| match lends {
                true => lend_part(&domain.regions, sender, answers, who, (op, remote, at), part),
                false => copy_part(&domain.regions, spare, sender, answers, who, (op, remote, at), part),
            });
            if let Err(errno) = ended {
                Self::done(sender, 0, op, Err(errno));
            }
            if ended != Ok(false) {
                reads.pop_front();
            }
        }
    }

    /// Takes bytes of a read of this end. Returns whether the read has ended.
    pub fn take_read_parts<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        parts: &Parts<'_>,
    ) -> Result<bool, Broken> {
        let id = SlotId::from_wire(parts.id);
        // A read that failed has ended: the peer's report overtakes earlier answers.
        let Some(op) = host.op(peer, id) else { return Ok(true) };
        let Op::Read { pieces, got, len, in_order } = op else { return Err(Broken) };
        // Parts arrive in any order, and each byte once. A peer that repeats bytes damages only its own transfer.
        let at = usize::try_from(parts.at).map_err(|_| Broken)?;
        at.checked_add(parts.len).filter(|end| end <= len).ok_or(Broken)?;
        if parts.len > *len - *got {
            return Err(Broken);
        }
        *in_order &= at == *got;
        // SAFETY: the pieces are lent until the read ends, and have as many bytes.
        unsafe { parts.scatter(pieces, *len) };
        *got += parts.len;
        let ended = got == len;
        if ended {
            self.long().asked.remove(kind::READ_PART, parts.id);
            self.finish(common, host, peer, id, Ok(()));
        }
        Ok(ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_end_with_whole_packets_and_leave_nothing_short() {
        let pieces = |mut left: usize, packet: usize| {
            let mut pieces = Vec::new();
            while left > 0 {
                pieces.push(piece(left, CHUNK, |most| most / packet * packet));
                left -= pieces[pieces.len() - 1];
            }
            pieces
        };
        let full = 17 * 60_000;
        assert_eq!(pieces(CHUNK, 60_000), [CHUNK]);
        assert_eq!(pieces(2 * CHUNK, 60_000), [full, full, 2 * (CHUNK - full)]);
        assert_eq!(pieces(2 * full + 100_000, 60_000), [full, full, 100_000]);
        let full = 16 * 65_500;
        assert_eq!(pieces(full + 2_000, 65_500), [full - SHORT_ANSWER, 2_000 + SHORT_ANSWER]);
    }
}
