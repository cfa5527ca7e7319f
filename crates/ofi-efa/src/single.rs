//! Operations that are one request of the device: an access with one piece at both ends, and a message of fabric
//! `efa-direct`.
//!
//! Memory that the application has registered is used in place. Other memory is copied through a slot if it fits into
//! one, and otherwise registered for the operation.

use ofi_api::{Errno, OpFlags, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    CompletionInfo, OutAccess, OutPlain, OutRma, Payload, PeerId, Posted, RemoteData, RxName, Upcalls,
};

use crate::Efa;
use crate::common::Common;
use crate::op::{HeldMemory, Native, Op, SingleKind, SingleWr, Work};
use crate::peer::Peer;
use crate::srd::{Action, Remote, Segment, Status};

impl SingleWr {
    /// The request.
    #[inline(always)]
    fn action(&self, common: &Common) -> Action {
        let Self { kind, piece: Piece { addr, len, .. }, lkey, at, data, .. } = *self;
        let local = match self.memory {
            HeldMemory::Slot(slot) => common.adapter.lend(slot, len),
            HeldMemory::Nothing => common.adapter.lend(0, 0),
            HeldMemory::Region(_) => Segment { addr, len, lkey },
        };
        match kind {
            SingleKind::Send => Action::Send { from: local, inline: false, data },
            SingleKind::Read => Action::Read { into: local, at },
            SingleKind::Write => Action::Write { from: local, at, data },
        }
    }
}

impl Peer {
    /// Posts an access to registered memory on the fast path. `false`: nothing was posted, and [`Peer::rma`] must
    /// handle the access. With `alone`, also rings the doorbell.
    #[inline(always)]
    pub fn access_now<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        alone: bool,
        &OutAccess { write, piece, remote, peer, ticket }: &OutAccess,
    ) -> bool {
        let can = if write { self.native.write } else { self.native.read };
        let fits = piece.len <= common.rdma.longest && remote.key <= u64::from(u32::MAX);
        if !can || !fits || !self.may_send_now() || !self.singles.is_empty() || !self.has_room(common) {
            return false;
        }
        if remote.addr.checked_add(remote.len as u64).is_none() {
            return false;
        }
        // SAFETY: the memory is lent until the operation ends, which it does after the device's request
        // (`Peer::is_busy`, `settle_receives`).
        let found = unsafe { common.regions.find(&common.domain.transport, piece.addr, piece.len) };
        let Some((lkey, held)) = found else { return false };
        let segment = Segment { addr: piece.addr, len: piece.len, lkey };
        let at = Remote { addr: remote.addr, rkey: remote.key as u32 };
        let (kind, action) = match write {
            true => (SingleKind::Write, Action::Write { from: segment, at, data: None }),
            false => (SingleKind::Read, Action::Read { into: segment, at }),
        };
        self.outstanding += 1;
        self.transfers += 1;
        self.requests += 1;
        let id = host.open_with(peer, ticket, || {
            let memory = HeldMemory::Region(held);
            Op::alone(SingleWr { peer, kind, piece, lkey, at, data: None, memory, given_up: false })
        });
        if alone {
            // SAFETY: the memory is registered, because the operation holds the registration, and lent until it has
            // ended.
            unsafe { common.adapter.alone_now(self.to, id, action) };
        } else {
            // SAFETY: as above.
            unsafe { common.adapter.alone(self.to, id, action) };
        }
        match write {
            true => common.counts.native_writes += 1,
            false => common.counts.native_reads += 1,
        }
        true
    }

    /// Posts a message of fabric `efa-direct` on the fast path, from registered memory and too long to be inline.
    /// `false`: nothing was posted, and [`Peer::send`] must handle the message.
    #[inline(always)]
    pub fn send_alone_now<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        &OutPlain { piece, peer, ticket, .. }: &OutPlain,
    ) -> bool {
        let fits = piece.len > common.adapter.inline() && piece.len <= common.adapter.mtu;
        if !fits || !self.may_send_now() || !self.singles.is_empty() || !self.has_room(common) {
            return false;
        }
        // SAFETY: as in `access_now`.
        let found = unsafe { common.regions.find(&common.domain.transport, piece.addr, piece.len) };
        let Some((lkey, held)) = found else { return false };
        self.outstanding += 1;
        self.transfers += 1;
        self.requests += 1;
        let id = host.open_with(peer, ticket, || {
            let (kind, at, memory) =
                (SingleKind::Send, Remote { addr: 0, rkey: 0 }, HeldMemory::Region(held));
            Op::alone(SingleWr { peer, kind, piece, lkey, at, data: None, memory, given_up: false })
        });
        let from = Segment { addr: piece.addr, len: piece.len, lkey };
        let action = Action::Send { from, inline: false, data: None };
        // SAFETY: the memory is registered, because the operation holds the registration, and lent until it has ended.
        unsafe { common.adapter.alone_now(self.to, id, action) };
        common.counts.sent += 1;
        common.counts.eager += 1;
        true
    }

    /// Memory that the device reads, or writes if `fills`, and its key. `None`: the memory cannot be registered.
    fn memory(
        &mut self,
        common: &mut Common,
        piece: &Piece,
        fills: bool,
        injected: bool,
    ) -> Result<Option<(u32, HeldMemory)>> {
        let &Piece { addr, len, .. } = piece;
        if len == 0 {
            return Ok(Some((0, HeldMemory::Nothing)));
        }
        let short = len <= common.adapter.mtu;
        let domain = &common.domain.transport;
        if !injected {
            // SAFETY: the memory is lent until the operation ends, which it does after the device's request
            // (`Peer::is_busy`, `settle_receives`).
            if let Some((lkey, region)) = unsafe { common.regions.find(domain, addr, len) } {
                return Ok(Some((lkey, HeldMemory::Region(region))));
            }
        }
        domain.refuse_dmabufs(std::slice::from_ref(piece))?;
        if short {
            let slot = self.borrow_slot(common)?;
            if !fills {
                // SAFETY: the piece is lent during the call; a slot has room for a packet.
                unsafe { copy::bytes(addr, common.adapter.outgoing(slot), len) };
            }
            return Ok(Some((0, HeldMemory::Slot(slot))));
        }
        // SAFETY: as above.
        match unsafe { domain.local(addr, len) } {
            Ok(region) => Ok(Some((region.lkey(), HeldMemory::Region(common.regions.hold(region))))),
            Err(error) => {
                tracing::debug!(target: "ofi::efa::ep_data", %error, "an access goes through the peer");
                Ok(None)
            }
        }
    }

    /// Posts an access as one request of the device. `None`: the device cannot do it in one.
    pub fn access_alone<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        out: &OutRma<'_>,
        (piece, remote): (&Piece, &RemotePiece),
        data: Option<u32>,
    ) -> Result<Option<Posted>> {
        let Ok(rkey) = u32::try_from(remote.key) else { return Ok(None) };
        if remote.addr.checked_add(remote.len as u64).is_none() {
            return Ok(None);
        }
        if !self.has_room(common) {
            return Err(common.adapter.full());
        }
        let injected = out.flags.contains(OpFlags::INJECT);
        let Some((lkey, memory)) = self.memory(common, piece, !out.write, injected)? else {
            return Ok(None);
        };
        let kind = if out.write { SingleKind::Write } else { SingleKind::Read };
        let (peer, at) = (out.peer, Remote { addr: remote.addr, rkey });
        let alone = SingleWr { peer, kind, piece: *piece, lkey, at, data, memory, given_up: false };
        self.post_alone(common, host, out.ticket, alone);
        match out.write {
            true => common.counts.native_writes += 1,
            false => common.counts.native_reads += 1,
        }
        Ok(Some(Posted::Pending))
    }

    /// Sends a message from the application's memory. `false`: the memory is not registered, or there is no room for a
    /// request.
    pub fn send_alone<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, ticket): (PeerId, CompletionInfo),
        &Piece { addr, len, .. }: &Piece,
        data: Option<u32>,
    ) -> bool {
        if !self.has_room(common) {
            return false;
        }
        // SAFETY: the memory is lent until the operation ends, which it does after the device's request
        // (`Peer::is_busy`).
        let found = unsafe { common.regions.find(&common.domain.transport, addr, len) };
        let Some((lkey, region)) = found else { return false };
        let (kind, at, memory) = (SingleKind::Send, Remote { addr: 0, rkey: 0 }, HeldMemory::Region(region));
        let alone =
            SingleWr { peer, kind, piece: Piece::new(addr, len), lkey, at, data, memory, given_up: false };
        self.post_alone(common, host, ticket, alone);
        common.counts.sent += 1;
        true
    }

    fn post_alone<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        ticket: CompletionInfo,
        alone: SingleWr,
    ) {
        self.outstanding += 1;
        self.transfers += 1;
        let (peer, action) = (alone.peer, alone.action(common));
        let id = host.open(peer, ticket, Op::alone(alone));
        if self.may_flush() {
            self.requests += 1;
            // SAFETY: the memory is registered, because the operation holds the registration, and lent until it has
            // ended.
            unsafe { common.adapter.alone(self.to, id, action) };
        } else {
            self.singles.push_back((id, action));
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Whether there is room for another request to the peer, other than a packet.
    #[inline(always)]
    pub fn has_room(&self, common: &Common) -> bool {
        common.adapter.has_room(self.requests)
    }

    /// Posts queued requests. `false`: there is no room.
    pub fn flush_singles(&mut self, common: &mut Common) -> bool {
        while let Some(&(id, action)) = self.singles.front() {
            if !self.has_room(common) {
                return false;
            }
            self.requests += 1;
            // SAFETY: as in `post_alone`.
            unsafe { common.adapter.alone(self.to, id, action) };
            self.singles.pop_front();
        }
        true
    }

    /// Handles the completion of a request of the peer.
    pub fn single_ended<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (PeerId, SlotId),
        status: Status,
    ) {
        self.requests = self.requests.saturating_sub(1);
        match status {
            Status::NotReady if common.gives_up => common.counts.not_ready += 1,
            // The peer has no receive for a message, or for a write with data.
            Status::NotReady if self.ending.is_none() && self.dead.is_none() => {
                self.rest(common, peer);
                // The memory of an operation that was discarded or given up is no longer lent.
                if let Some(Op { work: Work::SingleWr(alone), .. }) = host.op(peer, id)
                    && !alone.given_up
                {
                    self.singles.push_back((id, alone.action(common)));
                    return common.hold(&mut self.is_dirty, peer);
                }
            }
            // This end's queue pair has failed, and nothing reaches any peer.
            Status::Flushed if !common.direct => self.lost(),
            Status::Done => self.took(),
            // Whether a request was executed is unknown if nobody has answered. To repeat it could undo what the peer's
            // program did since, so it ends with an error, and nothing else does.
            _ => {}
        }
        self.finish_alone(common, host, (peer, id), status);
        let waits = !self.singles.is_empty() || !self.accessing.is_empty();
        if self.ending.is_some() || self.dead.is_some() || waits {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Ends the unposted operations: the peer is lost.
    pub fn stop_singles<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        for (id, _) in std::mem::take(&mut self.singles) {
            self.finish_alone(common, host, (peer, id), Status::Flushed);
        }
    }

    /// Drops unposted requests of discarded operations, because their memory is no longer lent.
    pub fn drop_singles<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        for (id, action) in std::mem::take(&mut self.singles) {
            match host.op(peer, id) {
                Some(_) => self.singles.push_back((id, action)),
                None => self.finish_alone(common, host, (peer, id), Status::Flushed),
            }
        }
    }

    /// Handles the completion of a request, and ends its operation if that still exists.
    fn finish_alone<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (PeerId, SlotId),
        status: Status,
    ) {
        // The loss of the device has set it to zero while some were posted.
        self.transfers = self.transfers.saturating_sub(1);
        let Some(Op { work: Work::SingleWr(alone), .. }) = host.op(peer, id) else {
            // The context of the operation was closed.
            self.outstanding = self.outstanding.saturating_sub(1);
            if let Some(alone) = common.orphans.remove(&id) {
                self.let_go(common, alone.memory);
            }
            return;
        };
        let memory = std::mem::replace(&mut alone.memory, HeldMemory::Nothing);
        let slot = match memory {
            HeldMemory::Slot(slot) => Some(common.adapter.outgoing(slot).cast_const()),
            HeldMemory::Nothing | HeldMemory::Region(_) => None,
        };
        let SingleWr { kind, piece, at, data, given_up, .. } = *alone;
        if status == Status::Done
            && kind == SingleKind::Read
            && let Some(from) = slot
        {
            // SAFETY: the device has read `piece.len` bytes into the slot; the piece is lent until the read ends.
            unsafe { copy::bytes(from, piece.addr, piece.len) };
        }
        let bytes = match status {
            Status::BadAddress if !given_up && self.ending.is_none() && self.is_own() == Some(true) => {
                let bytes = slot.filter(|_| kind == SingleKind::Write).map(|from| {
                    let mut bytes = vec![0u8; piece.len];
                    // SAFETY: both have `len` bytes; the slot belongs to this access.
                    unsafe { copy::bytes(from, bytes.as_mut_ptr(), piece.len) };
                    Payload::owned(bytes.into())
                });
                Some(bytes)
            }
            _ => None,
        };
        if given_up && let HeldMemory::Region(region) = &memory {
            common.regions.stays(region);
        }
        // Before the application gets its memory back.
        self.let_go(common, memory);
        if let Some(bytes) = bytes {
            let told = data.map(|value| RemoteData { value: value.into(), rx: RxName::ANY });
            let remote = [RemotePiece { addr: at.addr, len: piece.len, key: at.rkey.into() }].into();
            let (write, pieces) = (kind == SingleKind::Write, [piece].into());
            let native = Native { write, pieces, remote, len: piece.len, told };
            return self.ask_owner(common, host, peer, id, native, bytes);
        }
        let result = match status {
            Status::Done => Ok(()),
            Status::NotReady if common.gives_up => Err(Errno::ENORX),
            status => Err(self.failure(status)),
        };
        self.finish(common, host, peer, id, result);
    }

    /// A request has ended, or was never posted: its memory is not used any more.
    pub fn let_go(&mut self, common: &mut Common, memory: HeldMemory) {
        match memory {
            HeldMemory::Nothing => {}
            HeldMemory::Slot(slot) => self.return_slot(common, slot),
            HeldMemory::Region(region) => common.regions.release(region),
        }
    }

    /// Gives back a slot of [`Peer::borrow_slot`].
    pub fn return_slot(&mut self, common: &mut Common, slot: u32) {
        self.lent = self.lent.saturating_sub(1);
        common.adapter.give_slot(slot);
    }
}
