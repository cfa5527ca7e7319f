//! Remote reads and writes that the memory's owner executes. The owner checks key, bounds and rights on every copy.

use ofi_api::{Caps, Errno, MrAccess, Piece, Result};
use ofi_core::keys::Accessor;
use ofi_core::slots::SlotId;
use ofi_core::transport::served::{Progress, total_len};
use ofi_core::transport::{OutRma, Payload, PeerId, Posted, RemoteData, RxName, Upcalls};

use crate::Efa;
use crate::adapter::Mark;
use crate::common::{Common, Entry};
use crate::moving::{Answering, Incoming, Target, iovs, pieces};
use crate::op::{Op, Work};
use crate::peer::{Broken, NextStep, PacketStream, Peer};
use crate::ranges::Ranges;
use crate::transfer::grant;
use crate::wire::{Control, Iovs, Own, Read, Write, WriteForm};

/// Maximum number of remote pieces in one operation (`rma_iov_limit`).
pub const IOV_LIMIT: usize = Iovs::MAX_PIECES;

impl Peer {
    /// Reads or writes the peer's memory.
    pub fn rma<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
    ) -> Result<Posted> {
        self.may_post(out.flags)?;
        if let Some(posted) = self.native(common, host, out)? {
            return Ok(posted);
        }
        if common.direct {
            return Err(crate::direct::unfit(common, out));
        }
        common.domain.transport.refuse_dmabufs(out.pieces)?;
        let remote = iovs(out.remote).ok_or_else(|| ofi_api::Error::new(Errno::EINVAL))?;
        if out.write { self.write(common, host, out, remote) } else { self.read(common, host, out, remote) }
    }

    fn write<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
        remote: Iovs,
    ) -> Result<Posted> {
        // SAFETY: the core lends the pieces of the operations that it posts.
        let payload = unsafe { Payload::new(out.pieces, out.len, out.flags) };
        let op = Op { work: Work::Packed, unacked: 0, making: true, awaits: true, id: 0 };
        self.outstanding += 1;
        let id = host.open(out.peer, out.ticket, op);
        let at = (out.peer, id);
        if self.ask_write(common, host, at, payload, out.len, remote, out.remote_data()).is_err() {
            self.outstanding -= 1;
            host.abandon(id);
            return Err(ofi_api::Error::AGAIN);
        }
        Ok(Posted::Pending)
    }

    /// Sends the owner the write of an open operation.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there are too many operations.
    #[expect(clippy::too_many_arguments, reason = "a write has these parts")]
    pub fn ask_write<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (PeerId, SlotId),
        payload: Payload,
        len: usize,
        remote: Iovs,
        told: Option<RemoteData>,
    ) -> Result<(), Errno> {
        let number = common.ids.insert(Entry::Op(peer, id)).ok_or(Errno::EAGAIN)?;
        let own = Own { rx: told.map_or(0, |told| told.rx.to_wire()) };
        let own = if self.is_own() == Some(true) { own } else { Own::default() };
        // The write always requests a receipt, because only a receipt confirms that the bytes are in place.
        let mut write = Write {
            remote,
            data: told.map(|told| told.value),
            confirm: true,
            send_id: number,
            own,
            number: self.next_number(),
            form: WriteForm::Eager(&[]),
        };
        if len > common.adapter.mtu - write.encode(self.origin(common)).bytes().len() {
            let credits = common.settings.min_credits as u32;
            write.form = WriteForm::LongCts { len, credits, payload: &[] };
        }
        let header = write.encode(self.origin(common));
        let first = len.min(common.adapter.mtu - header.bytes().len());
        self.packet(common, peer, &header, first, Mark::Op(id), |body| {
            // SAFETY: the payload's pieces are lent, and `body` has `first` bytes.
            unsafe { payload.gather_raw(0, body, first) };
        });
        if let Some(op) = host.op(peer, id) {
            (op.id, op.unacked, op.making, op.awaits) = (number, 1, first < len, true);
            op.work = if first < len { Work::Out { payload, len, done: first } } else { Work::Packed };
        }
        Ok(())
    }

    fn read<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
        remote: Iovs,
    ) -> Result<Posted> {
        self.outstanding += 1;
        let id = host.open(out.peer, out.ticket, Op::packed(true));
        if self.ask_read(common, host, (out.peer, id), out.pieces.into(), out.len, remote).is_err() {
            self.outstanding -= 1;
            host.abandon(id);
            return Err(ofi_api::Error::AGAIN);
        }
        Ok(Posted::Pending)
    }

    /// Sends the owner the read of an open operation.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there are too many operations.
    pub fn ask_read<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (PeerId, SlotId),
        pieces: Box<[Piece]>,
        len: usize,
        remote: Iovs,
    ) -> Result<(), Errno> {
        let recv_id = common.ids.insert(Entry::Op(peer, id)).ok_or(Errno::EAGAIN)?;
        let cleared = grant(common).min(len);
        if let Some(op) = host.op(peer, id) {
            let arrived = Ranges::default();
            let work = Work::In { pieces, len, got: 0, arrived, cleared, peer_id: None };
            *op = Op { work, id: recv_id, ..Op::packed(true) };
        }
        // Maximum bytes of an answer in one packet. The largest header before its data has 24 bytes.
        let short = len <= common.adapter.mtu - 24;
        let cleared = (!short).then_some(cleared as u32);
        let read = Read { remote, len, recv_id, cleared, number: self.next_number() };
        self.packet(common, peer, &read.encode(self.origin(common)), 0, Mark::Op(id), |_| {});
        Ok(())
    }

    /// The number of the next access, for a peer that understands it.
    fn next_number(&mut self) -> u64 {
        if !self.knows_repeats() {
            return 0;
        }
        self.next_access += 1;
        self.next_access
    }

    /// Whether an access of the peer was executed already, and its packet was repeated.
    ///
    /// # Errors
    /// If the peer left out too many numbers.
    pub fn is_repeated(&mut self, number: u64) -> Result<bool, Broken> {
        let Some(before) = number.checked_sub(1) else { return Ok(false) };
        let number = usize::try_from(before).map_err(|_| Broken)?;
        Ok(!self.accesses.add(number, number + 1).map_err(|_| Broken)?)
    }

    /// Executes a write of the peer, or starts to.
    pub fn take_write<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        write: &Write<'_>,
    ) -> Result<NextStep, Broken> {
        let remote = pieces(&write.remote);
        let (send_id, receipt) = (write.send_id, write.confirm.then_some(0));
        if remote.is_empty() && write.data.is_none() && !write.confirm {
            return Ok(NextStep::Next); // such a write only requests a handshake
        }
        let rx = RxName::from_wire(write.own.rx);
        let data = write.data.map(|value| RemoteData { value, rx });
        if let WriteForm::Eager(bytes) = write.form {
            // C's endpoints check this at neither end.
            if total_len(&remote)? != bytes.len() {
                self.refuse(common, peer, send_id, Errno::EINVAL);
                return Ok(NextStep::Next);
            }
            let (owner, regions) = (common.owner(), &common.domain.regions);
            let copy = |who: Accessor<'_>| regions.write_as(who, &remote, 0, bytes.len(), [bytes]);
            let Progress::Ended(result) = owner.write(host, peer, (&remote, data), bytes.len(), copy)? else {
                return Ok(NextStep::Stop);
            };
            match (result, receipt) {
                (Ok(()), Some(msg_id)) => self.control(common, peer, Control::Receipt { send_id, msg_id }),
                (Ok(()), None) => {}
                (Err(errno), _) => self.refuse(common, peer, send_id, errno),
            }
            return Ok(NextStep::Next);
        }
        let allowed = common.owner().check(host, peer, &remote, Caps::RMA, MrAccess::REMOTE_WRITE);
        if let Err(errno) = allowed {
            self.refuse(common, peer, send_id, errno);
            return Ok(NextStep::Next);
        }
        let target = Target::Region { remote, data };
        match write.form {
            WriteForm::Eager(_) => {} // executed above
            WriteForm::LongCts { len, payload, .. } => {
                let incoming = Incoming { target, receipt, ..Incoming::new(peer, len, send_id) };
                self.begin(common, host, incoming, payload);
            }
            WriteForm::LongRead { len, from } => {
                self.fetch(common, host, Incoming { target, ..Incoming::new(peer, len, send_id) }, &from);
            }
        }
        Ok(NextStep::Next)
    }

    /// Starts to answer a read of the peer.
    pub fn take_read<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        read: &Read,
    ) -> Result<(), Broken> {
        let remote = pieces(&read.remote);
        let (len, recv_id) = (read.len, read.recv_id);
        let allowed = common.owner().check(host, peer, &remote, Caps::RMA, MrAccess::REMOTE_READ);
        if let Err(errno) = allowed {
            self.refuse(common, peer, recv_id, errno);
            return Ok(());
        }
        let cleared = read.cleared.map_or(len, |cleared| (cleared as usize).min(len));
        if cleared == 0 && len > 0 {
            return Err(Broken);
        }
        let answering = Answering { peer, remote, len, done: 0, cleared, recv_id, begun: false };
        let Some(id) = common.ids.insert(Entry::Answering(answering)) else {
            self.refuse(common, peer, recv_id, Errno::ENOMEM);
            return Ok(());
        };
        self.streams.push_back(PacketStream::Answer { id });
        common.hold(&mut self.is_dirty, peer);
        Ok(())
    }
}
