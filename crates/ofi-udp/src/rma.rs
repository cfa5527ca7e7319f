//! Remote reads and writes. The memory's owner executes them, and checks key, bounds and rights at each copy.

use ofi_api::{Caps, Errno, Error, MrAccess, OpFlags, Result};
use ofi_core::copy;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::{Host, OutRma, Payload, Peer, Posted};
use ofi_rdm::{Flow, Sender};

use crate::Udp;
use crate::answer::{Answers, CHUNK, COPIED, READ_AHEAD};
use crate::command::{STREAM_LIMIT, kind};
use crate::lane::common::{Common, accessor};
use crate::lane::served::{ServedRead, ServedWrite};
use crate::lane::{Lane, Long};
use crate::lent::Lent;
use crate::op::Op;
use crate::parts::Parts;

impl ServedRead {
    /// Sends the next `part` bytes directly from their memory.
    fn lend<H: Host<Udp>>(
        &self,
        common: &Common,
        host: &H,
        peer: Peer,
        sender: &mut Sender,
        answers: &mut Answers,
        part: usize,
    ) -> Result<(), Errno> {
        let who = accessor(common, host, peer);
        let lent = Lent::new(&common.domain.regions, who, &self.remote, (self.done, part))?;
        let at = self.done as u64;
        let token = answers.lend(lent, at);
        sender.bulk.part_of_payload(kind::READ_PART, 0, self.op, token, at..at + part as u64);
        Ok(())
    }

    /// Copies the next `part` bytes.
    fn copy<H: Host<Udp>>(
        &self,
        common: &mut Common,
        host: &H,
        peer: Peer,
        sender: &mut Sender,
        answers: &mut Answers,
        part: usize,
    ) -> Result<(), Errno> {
        let mut bytes = common.spare.take(part);
        let who = accessor(common, host, peer);
        let read = common.domain.regions.read_as(who, &self.remote, self.done, &mut bytes);
        let at = self.done as u64;
        if read.is_ok() && part > SHORT_ANSWER {
            let token = answers.keep(bytes, at);
            sender.bulk.part_of_payload(kind::READ_PART, 0, self.op, token, at..at + part as u64);
            return Ok(());
        }
        if read.is_ok() {
            let mut fields = Fields::new();
            fields.word(self.op).word(at);
            let body = sender.bulk.record(kind::READ_PART, 0, fields.bytes(), part, None);
            body.copy_from_slice(&bytes);
        }
        common.spare.give_back(bytes);
        read.map(|_| ())
    }
}

/// Length of the next answer to a read with `left` missing bytes, at most `most`. The answer ends with a whole packet,
/// so that it can be received in place, and it leaves no rest of [`SHORT_ANSWER`] or less, which would overtake it.
fn piece(left: usize, most: usize, whole: impl Fn(usize) -> usize) -> usize {
    if left <= most {
        return left;
    }
    let part = whole(most).min(left);
    if left - part > SHORT_ANSWER { part } else { part - SHORT_ANSWER }
}

/// Maximum length in bytes of an answer that is an ordinary record. Longer ones are payloads, which are split at
/// packets, so that each part is copied from the packet to its destination.
const SHORT_ANSWER: usize = 4 << 10;

impl Lane {
    /// Reads or writes the peer's memory.
    pub fn rma<H: Host<Udp>>(
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
    pub fn take_write<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: Peer,
        flags: u8,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        let bytes = words.0;
        let result =
            match common.check(accessor(common, host, peer), &remote, Caps::RMA, MrAccess::REMOTE_WRITE) {
                Ok(total) if total != bytes.len() => return Err(Broken),
                Ok(_) => {
                    // The report comes first, because it may have to wait. The application cannot see it before the
                    // bytes.
                    if let Some(data) = data
                        && !host.remote_write(peer, data, bytes.len())
                    {
                        return Ok(Flow::Stop);
                    }
                    let who = accessor(common, host, peer);
                    let written = common.domain.regions.write_as(who, &remote, 0, bytes.len(), [bytes]);
                    if written.is_ok() {
                        host.accessed(&common.domain.regions, MrAccess::REMOTE_WRITE, &remote);
                    }
                    written
                }
                Err(errno) => Err(errno),
            };
        Self::done(sender, 0, op, result);
        Ok(Flow::Next)
    }

    /// Starts a long write of the peer.
    pub fn take_long_write(
        &mut self,
        common: &Common,
        who: Accessor<'_>,
        flags: u8,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        let len = remote.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.len)).ok_or(Broken)?;
        if len == 0 || self.is_written() {
            return Err(Broken);
        }
        let failed = common.check(who, &remote, Caps::RMA, MrAccess::REMOTE_WRITE).err();
        self.long().write = Some(Box::new(ServedWrite { op, remote, got: 0, len, data, failed }));
        Ok(Flow::Next)
    }

    /// Executes parts of a long write.
    pub fn take_write_parts<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: Peer,
        parts: &Parts<'_>,
    ) -> Result<Flow, Broken> {
        let write = self.long().write.as_mut().ok_or(Broken)?;
        if parts.id != write.op || parts.at != write.got as u64 || parts.len > write.len - write.got {
            return Err(Broken);
        }
        let last = write.got + parts.len == write.len;
        if last
            && write.failed.is_none()
            && let Some(data) = write.data
        {
            // Check first whether the last bytes may be written: a reported write must have happened.
            let who = accessor(common, host, peer);
            if let Err(errno) = common.check(who, &write.remote, Caps::RMA, MrAccess::REMOTE_WRITE) {
                write.failed = Some(errno);
            } else if !host.remote_write(peer, data, write.len) {
                return Ok(Flow::Stop);
            }
        }
        if write.failed.is_none() {
            let who = accessor(common, host, peer);
            let written =
                common.domain.regions.write_as(who, &write.remote, write.got, parts.len, parts.bytes());
            write.failed = written.err();
        }
        write.got += parts.len;
        if last && let Some(write) = self.long().write.take() {
            if write.failed.is_none() {
                host.accessed(&common.domain.regions, MrAccess::REMOTE_WRITE, &write.remote);
            }
            Self::done(sender, 0, parts.id, write.failed.map_or(Ok(()), Err));
        }
        Ok(Flow::Next)
    }

    /// Starts a read of the peer.
    pub fn take_read<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: Peer,
        body: &[u8],
    ) -> Result<Flow, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        match common.check(accessor(common, host, peer), &remote, Caps::RMA, MrAccess::REMOTE_READ) {
            Err(errno) => Self::done(sender, 0, op, Err(errno)),
            Ok(0) => {
                host.accessed(&common.domain.regions, MrAccess::REMOTE_READ, &remote);
                Self::done(sender, 0, op, Ok(()));
            }
            Ok(len) => {
                self.long().reads.push_back(ServedRead { op, remote, done: 0, len });
                self.serve_reads(common, sender, host, peer);
                if self.is_read() {
                    self.await_service(common, peer);
                }
            }
        }
        Ok(Flow::Next)
    }

    /// Sends answers to reads, up to the limit of answers in flight.
    pub fn serve_reads<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        sender: &mut Sender,
        host: &mut H,
        peer: Peer,
    ) {
        let Some(Long { reads, answers, .. }) = self.long.as_deref_mut() else { return };
        // An application that counts reads may change the memory from now on, because the read is counted here.
        let lends = !host.counts_reads(&common.domain.regions);
        while let Some(read) = reads.front_mut() {
            if answers.bytes() + sender.bulk.records() > READ_AHEAD {
                return;
            }
            let left = read.len - read.done;
            let lends =
                lends && CHUNK.min(left) > SHORT_ANSWER && common.domain.regions.may_lend(&read.remote);
            let part = piece(left, if lends { CHUNK } else { COPIED }, |most| sender.bulk.whole_parts(most));
            // The whole range is checked before anything is sent: a region may have been closed since the read began.
            let who = accessor(common, host, peer);
            let allowed = common.check(who, &read.remote, Caps::RMA, MrAccess::REMOTE_READ);
            let result = allowed.and_then(|_| match lends {
                true => read.lend(common, host, peer, sender, answers, part),
                false => read.copy(common, host, peer, sender, answers, part),
            });
            read.done += part;
            if let Err(errno) = result {
                Self::done(sender, 0, read.op, Err(errno));
                reads.pop_front();
            } else if read.done == read.len {
                host.accessed(&common.domain.regions, MrAccess::REMOTE_READ, &read.remote);
                reads.pop_front();
            }
        }
    }

    /// Processes the bytes of a read of this end. Returns whether the read is complete.
    pub fn take_read_parts<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        parts: &Parts<'_>,
    ) -> Result<bool, Broken> {
        let id = SlotId::from_wire(parts.id);
        // A failed read ends as soon as the peer reports it, which overtakes earlier answers.
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
