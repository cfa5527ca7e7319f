//! Remote reads and writes that the memory's owner executes. The owner checks key, bounds and rights on every copy.

use ofi_api::{RemotePiece, Result};
use ofi_core::copy;
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::served::{Progress, ReadInParts, WriteInParts};
use ofi_core::transport::{OutRma, Payload, PeerId, Posted, RemoteData, Upcalls};

use crate::Verbs;
use crate::op::Op;
use crate::peer::{Common, NextStep, Peer};
use crate::wire::{PAYLOAD, kind};

/// An access that the memory's owner executes.
pub struct OwnerAccess<'a> {
    pub write: bool,
    pub remote: &'a [RemotePiece],
    pub data: Option<RemoteData>,
    pub len: usize,
}

impl OwnerAccess<'_> {
    /// Whether it is a write whose bytes are in its record.
    pub fn is_short(&self) -> bool {
        self.write && self.len <= PAYLOAD
    }
}

impl Peer {
    /// Reads or writes the peer's memory.
    pub fn rma<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        if let Some(posted) = self.native(common, host, out)? {
            return Ok(posted);
        }
        let asked =
            OwnerAccess { write: out.write, remote: out.remote, data: out.remote_data(), len: out.len };
        let op = match (out.write, asked.is_short()) {
            (true, true) => Op::Access,
            // SAFETY: the core lends the pieces of the operations that it posts.
            (true, false) => Op::Write(unsafe { Payload::new(out.pieces, out.len, out.flags) }),
            (false, _) => Op::Read { pieces: out.pieces.into(), got: 0, len: out.len },
        };
        let id = host.open(out.peer, out.ticket, op);
        self.ask(common, out.peer, id, &asked, |body, len| {
            // SAFETY: the pieces are lent, and `body` has `len` bytes.
            unsafe { copy::gather(out.pieces, 0, body, len) };
        });
        Ok(Posted::Pending)
    }

    /// Sends the owner the access of operation `id`; `fill` writes the bytes of a short write.
    pub fn ask(
        &mut self,
        common: &mut Common,
        peer: PeerId,
        id: SlotId,
        asked: &OwnerAccess<'_>,
        fill: impl FnOnce(*mut u8, usize),
    ) {
        self.outstanding += 1;
        self.executed += 1;
        let mut fields = Fields::new();
        fields.word(id.to_wire()).pieces(asked.remote);
        let flags = fields.remote_data(asked.data);
        let (what, len) = match (asked.write, asked.is_short()) {
            (true, true) => (kind::WRITE, asked.len),
            (true, false) => (kind::WRITE_LONG, 0),
            (false, _) => (kind::READ, 0),
        };
        self.record(common, peer, (what, flags), fields.bytes(), len, None, |body| fill(body, len));
        if what == kind::WRITE_LONG {
            self.push_parts(common, peer, id, asked.len);
        }
    }

    /// Executes a short write of the peer.
    pub fn take_write<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        let bytes = words.0;
        let (owner, regions) = (common.owner(), &common.domain.regions);
        let copy = |who: Accessor<'_>| regions.write_as(who, &remote, 0, bytes.len(), [bytes]);
        let Progress::Ended(result) = owner.write(host, peer, (&remote, data), bytes.len(), copy)? else {
            return Ok(NextStep::Stop);
        };
        self.done(common, peer, 0, op, result);
        if result.is_ok() {
            self.give_keys(common, peer, &remote);
        }
        Ok(NextStep::Next)
    }

    /// Starts a long write of the peer.
    pub fn take_long_write<H: Upcalls<Verbs>>(
        &mut self,
        common: &Common,
        host: &H,
        peer: PeerId,
        flags: u8,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        let data = words.remote_data(flags)?;
        if self.write.is_some() {
            return Err(Broken);
        }
        let write = WriteInParts::begin(common.owner(), host, peer, (op, remote.into(), data))?;
        self.write = Some(Box::new(write));
        Ok(NextStep::Next)
    }

    /// Executes the next part of a long write.
    pub fn take_write_part<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let op = words.word()?;
        let bytes = words.0;
        let write = self.write.as_mut().ok_or(Broken)?;
        if op != write.op || bytes.is_empty() {
            return Err(Broken);
        }
        let (owner, regions) = (common.owner(), &common.domain.regions);
        let progress = write.part(owner, host, peer, bytes.len(), |who, remote, skip| {
            regions.write_as(who, remote, skip, bytes.len(), [bytes])
        })?;
        match progress {
            Progress::Wait => return Ok(NextStep::Stop),
            Progress::More => {}
            Progress::Ended(result) => {
                let write = self.write.take();
                self.done(common, peer, 0, op, result);
                if let Some(write) = write.filter(|_| result.is_ok()) {
                    self.give_keys(common, peer, write.remote());
                }
            }
        }
        Ok(NextStep::Next)
    }

    /// Starts a read of the peer.
    pub fn take_read<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<NextStep, Broken> {
        let mut words = Words(body);
        let (op, remote) = (words.word()?, words.pieces()?);
        match ReadInParts::begin(common.owner(), host, peer, (op, remote)) {
            Err(errno) => self.done(common, peer, 0, op, Err(errno)),
            Ok(None) => self.done(common, peer, 0, op, Ok(())),
            Ok(Some(read)) => {
                self.reads.push_back(read);
                common.hold(&mut self.is_dirty, peer);
            }
        }
        Ok(NextStep::Next)
    }

    /// Sends the next part of the oldest read. The bytes are copied now: later commands of the peer, which may change
    /// the memory, wait until all reads are answered.
    pub fn serve_reads<H: Upcalls<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        let Some(mut read) = self.reads.pop_front() else { return };
        let part = PAYLOAD.min(read.left());
        let mut bytes = vec![0u8; part];
        let (owner, regions) = (common.owner(), &common.domain.regions);
        let ended = read.part(owner, host, peer, part, |who, remote, skip| {
            regions.read_as(who, remote, skip, &mut bytes).map(drop)
        });
        let is_over = match ended {
            Ok(is_over) => is_over,
            Err(errno) => return self.done(common, peer, 0, read.op, Err(errno)),
        };
        let mut fields = Fields::new();
        fields.word(read.op);
        self.record(common, peer, (kind::READ_PART, 0), fields.bytes(), part, None, |body| {
            // SAFETY: both have `part` bytes.
            unsafe { copy::bytes(bytes.as_ptr(), body, part) };
        });
        if is_over {
            self.give_keys(common, peer, read.remote());
        } else {
            self.reads.push_front(read);
        }
    }

    /// Processes the next bytes of a read of this end.
    pub fn take_read_part<H: Upcalls<Verbs>>(
        &mut self,
        host: &mut H,
        peer: PeerId,
        body: &[u8],
    ) -> Result<(), Broken> {
        let mut words = Words(body);
        let id = SlotId::from_wire(words.word()?);
        let bytes = words.0;
        let Some(Op::Read { pieces, got, len }) = host.op(peer, id) else { return Err(Broken) };
        if bytes.len() > *len - *got {
            return Err(Broken);
        }
        // SAFETY: `bytes` is readable; the pieces are lent until the read ends.
        unsafe { copy::scatter(bytes.as_ptr(), bytes.len(), pieces, *got) };
        *got += bytes.len();
        if got == len {
            self.finish(host, peer, id, Ok(()));
        }
        Ok(())
    }
}
