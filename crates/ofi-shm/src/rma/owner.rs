//! The owner's end of remote access: it checks, executes and answers the requests of a peer.

use ofi_api::{Caps, Errno, MrAccess, RemotePiece};
use ofi_core::copy::Stores;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::served::{Progress, WriteInParts};
use ofi_core::transport::{RemoteData, Upcalls};
use ofi_ring::crash_point;

use crate::Shm;
use crate::command::{CommandWriter, RMA_IOV_LIMIT, SHORT_READ, Words, flag, kind, rx_of};
use crate::common::{Common, accessor};
use crate::peer::bulk::BulkStream;
use crate::peer::served::ServedWrite;
use crate::peer::{Broken, NextStep, Peer};
use crate::token::{Sink, Token};

/// The ranges of an access. They are few and short-lived.
pub struct Targets {
    all: [RemotePiece; RMA_IOV_LIMIT],
    count: usize,
}

impl std::ops::Deref for Targets {
    type Target = [RemotePiece];

    #[inline]
    fn deref(&self) -> &[RemotePiece] {
        &self.all[..self.count]
    }
}

impl Targets {
    #[inline]
    fn parse(words: &mut Words) -> Result<Self, Broken> {
        let count = words.next().ok_or(Broken)?;
        if count == 0 || count > RMA_IOV_LIMIT as u64 {
            return Err(Broken);
        }
        let count = count as usize;
        let mut all = [RemotePiece { addr: 0, len: 0, key: 0 }; RMA_IOV_LIMIT];
        for piece in &mut all[..count] {
            let mut next = || words.next().ok_or(Broken);
            let (addr, len, key) = (next()?, next()?, next()?);
            *piece = RemotePiece { addr, len: len as usize, key };
        }
        Ok(Self { all, count })
    }
}

/// The remote CQ data of a command, if it carries any.
fn remote_data(high: u32, words: &mut Words) -> Result<Option<RemoteData>, Broken> {
    if high & flag::DATA == 0 {
        return Ok(None);
    }
    Ok(Some(RemoteData { value: words.next().ok_or(Broken)?, rx: rx_of(high) }))
}

impl Peer {
    /// Takes a notice of a direct write by the peer.
    pub fn take_notice<H: Upcalls<Shm>>(
        &mut self,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let (value, len) = (words.next().ok_or(Broken)?, words.next().ok_or(Broken)?);
        let data = RemoteData { value, rx: rx_of(high) };
        crash_point!("notice.taken");
        Ok(if host.remote_write(self.peer, data, len as usize) { NextStep::Next } else { self.stop() })
    }

    /// The operation and the ranges of an access, all checked. The outer error means that the peer violates the
    /// protocol; the inner one is returned to it.
    #[expect(clippy::type_complexity, reason = "two kinds of error, one local use")]
    pub fn parse_access<H: Upcalls<Shm>>(
        &self,
        common: &Common,
        host: &H,
        words: &mut Words,
        kind: Caps,
        access: MrAccess,
    ) -> Result<(u64, Result<(Targets, usize), Errno>), Broken> {
        let op = words.next().ok_or(Broken)?;
        let remote = Targets::parse(words)?;
        let total = common.owner().check(host, self.peer, &remote, kind, access);
        Ok((op, total.map(|total| (remote, total))))
    }

    /// Executes a short write of the peer.
    pub fn take_write<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let op = words.next().ok_or(Broken)?;
        let remote = Targets::parse(&mut words)?;
        let data = remote_data(high, &mut words)?;
        let (_, len) = words.payload();
        let copy = |who: Accessor<'_>| {
            let written = write_here(common, who, &remote, 0, words);
            crash_point!("write.executed");
            written
        };
        let Progress::Ended(result) = common.owner().write(host, self.peer, (&remote, data), len, copy)?
        else {
            return Ok(self.stop());
        };
        self.done(common, op, result);
        Ok(NextStep::Next)
    }

    /// Starts a long write of the peer.
    pub fn take_long_write<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        high: u32,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let op = words.next().ok_or(Broken)?;
        let remote = Targets::parse(&mut words)?;
        let data = remote_data(high, &mut words)?;
        let lent = high & flag::LENT != 0;
        let mut next = || if lent { words.next().ok_or(Broken) } else { Ok(0) };
        let token = Token { op, high: high & (flag::LENT | flag::WRITES), key: next()?, offset: next()? };
        let whole = remote.count == 1;
        let write = WriteInParts::begin(common.owner(), host, self.peer, (op, (*remote).into(), data));
        let write = write?;
        if let Some(errno) = write.refusal() {
            self.done(common, op, Err(errno));
            return Ok(NextStep::Next);
        }
        let len = write.left();
        let sink = Sink::Write(self.served.writes.insert(ServedWrite { write, is_measured: false }));
        (self.served.serving, self.busy) = (self.served.serving + 1, true);
        crash_point!("write_long.taken");
        if whole {
            self.start_transfer(common, host, token, sink, len);
        } else {
            self.ask(common, host, token, sink, len, false);
        }
        Ok(NextStep::Next)
    }

    /// Executes a part of a long write. Returns `false` if it must wait.
    pub fn take_write_part<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (id, offset): (u64, u64),
        words: Words,
    ) -> Result<bool, Broken> {
        let (_, part) = words.rest();
        let id = SlotId::from_wire(id);
        let served = self.served.writes.get_mut(id).ok_or(Broken)?;
        if offset != served.write.got() as u64 {
            return Err(Broken);
        }
        let progress = served.write.part(common.owner(), host, self.peer, part, |who, remote, skip| {
            write_here(common, who, remote, skip, words)
        });
        let progress = progress?;
        if progress == Progress::Wait {
            return Ok(false);
        }
        crash_point!("write_long.part");
        if let Progress::Ended(result) = progress {
            let (is_measured, len) = (served.is_measured, served.write.got());
            self.end_write(common, id, result);
            if is_measured {
                self.transfer_completed(common, host, Sink::Write(id), len);
            }
        }
        Ok(true)
    }

    /// Answers a long write of the peer, which has ended.
    fn end_write(&mut self, common: &mut Common, id: SlotId, result: Result<(), Errno>) {
        let Some(served) = self.served.writes.remove(id) else { return };
        self.served.serving -= 1;
        self.done(common, served.write.op, result);
    }

    /// Handles the end of a long write by the peer whose bytes were copied from process to process.
    pub fn written<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        let Some(served) = self.served.writes.get(id) else { return };
        if result.is_ok() {
            let regions = &common.shared.domain.regions;
            host.accessed(regions, MrAccess::REMOTE_WRITE, served.write.remote());
        }
        self.end_write(common, id, result);
    }

    /// Executes a read of the peer, or starts to.
    pub fn take_read<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        mut words: Words,
    ) -> Result<NextStep, Broken> {
        let (op, checked) = self.parse_access(common, host, &mut words, Caps::RMA, MrAccess::REMOTE_READ)?;
        match checked {
            Err(errno) => self.done(common, op, Err(errno)),
            Ok((remote, len)) => {
                let offered = len > SHORT_READ && self.offer(common, host, op, &remote);
                if !offered && self.served.serving > 0 {
                    return Ok(NextStep::Stop); // it would overtake offered reads
                }
                if len > SHORT_READ {
                    crash_point!("read_long.taken");
                    (self.served.serving, self.busy) = (self.served.serving + 1, true);
                    if !offered {
                        self.bulk.streams.push_back(BulkStream::read((*remote).into(), op, len));
                    }
                } else {
                    match self.reply_data(common, host, op, &remote, len) {
                        None => return Ok(NextStep::Stop),
                        Some(false) => {}
                        Some(true) => {
                            host.accessed(&common.shared.domain.regions, MrAccess::REMOTE_READ, &remote);
                        }
                    }
                }
            }
        }
        Ok(NextStep::Next)
    }

    /// Sends the bytes of a short read, or an error. Returns whether it sent the bytes; `None` if there is no room.
    fn reply_data<H: Upcalls<Shm>>(
        &mut self,
        common: &mut Common,
        host: &H,
        op: u64,
        remote: &[RemotePiece],
        len: usize,
    ) -> Option<bool> {
        let peer = self.peer;
        let mut slot = self.link_mut()?.replies.reserve(8 + len).ok()?;
        // SAFETY: a word and `len` bytes were reserved.
        let mut body = unsafe { CommandWriter::new(slot.body()) };
        body.word(op);
        let (who, regions) = (accessor(common, host, peer), &common.shared.domain.regions);
        // SAFETY: `len` bytes were reserved behind the word.
        if let Err(errno) = unsafe { regions.read_raw_as(who, remote, 0, Stores::Cached, body.rest(), len) } {
            drop(slot); // nothing of it was published
            self.done(common, op, Err(errno));
            return Some(false);
        }
        crash_point!("read.served");
        slot.publish(kind::DATA);
        self.ring(common);
        Some(true)
    }
}

/// Writes the rest of a body to registered memory, from byte `skip` of `remote` on.
fn write_here(
    common: &Common,
    who: Accessor<'_>,
    remote: &[RemotePiece],
    skip: usize,
    words: Words,
) -> Result<(), Errno> {
    let (body, len) = words.rest();
    // SAFETY: the creator of the reader promised the body.
    unsafe { common.shared.domain.regions.write_raw_as(who, remote, skip, body, len) }
}
