//! Operations that are one request of the device: an access with one piece at either end, and a message of fabric
//! `efa-direct`.
//!
//! Memory that the application has registered is used in place. Other memory is copied through a slot if it fits into
//! one, and otherwise registered for the operation.

use ofi_api::{Errno, Error, OpFlags, Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, OutAccess, OutRma, Payload, Peer, Posted, RemoteData, Ticket};

use crate::Efa;
use crate::adapter::Single;
use crate::common::Common;
use crate::held::InUse;
use crate::lane::Lane;
use crate::native::Native;
use crate::op::{Op, Work};
use crate::srd::{Action, Remote, Segment, Status};

/// An access of one request, as its owner would have to be asked for it; or a message.
pub struct Alone {
    access: Option<Access>,
}

struct Access {
    write: bool,
    piece: Piece,
    remote: RemotePiece,
    told: Option<RemoteData>,
}

/// Memory of an operation: what the device is told, the slot if it is one, the registration if it is the application's.
struct Memory {
    segment: Segment,
    slot: Option<u32>,
    region: Option<InUse>,
}

impl Lane {
    /// Has the device do an access as most are, at once: of registered memory. `false` says that nothing happened, and
    /// that [`Lane::rma`] knows why or does what else it takes. With `alone`, the device is told of it.
    #[inline(always)]
    pub fn access_now<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        alone: bool,
        &OutAccess { write, piece, remote, peer, ticket }: &OutAccess,
    ) -> bool {
        let can = if write { self.native.write } else { self.native.read };
        let fits = piece.len <= common.rdma.longest && remote.key <= u64::from(u32::MAX);
        if !can || !fits || !self.may_send_now() || !self.singles.is_empty() || !common.adapter.has_room() {
            return false;
        }
        if remote.addr.checked_add(remote.len as u64).is_none() {
            return false;
        }
        // SAFETY: lent until the operation ends, which it does after the device's request (`Lane::is_busy`,
        // `settle_receives`).
        let found = unsafe { common.regions.find(&common.domain.transport, piece.addr, piece.len) };
        let Some((lkey, held)) = found else { return false };
        let segment = Segment { addr: piece.addr, len: piece.len, lkey };
        let at = Remote { addr: remote.addr, rkey: remote.key as u32 };
        let action = match write {
            true => Action::Write { from: segment, at, data: None },
            false => Action::Read { into: segment, at },
        };
        self.outstanding += 1;
        self.transfers += 1;
        // Over `efa-direct` nobody else is asked.
        let direct = common.direct;
        let op = host.open_with(peer, ticket, || {
            let access = (!direct).then_some(Access { write, piece, remote, told: None });
            Op { work: Work::Alone(Alone { access }), unacked: 0, making: false, awaits: true, id: 0 }
        });
        let single = Single { peer, op, action, slot: None, region: Some(held) };
        if alone {
            // SAFETY: its memory is registered, as the request holds it, and lent until it has ended.
            unsafe { common.adapter.single_now(self.to, single) };
        } else {
            // SAFETY: as above.
            unsafe { common.adapter.single(self.to, single) };
        }
        match write {
            true => common.counts.native_writes += 1,
            false => common.counts.native_reads += 1,
        }
        true
    }

    /// Memory that the device reads, or writes if `fills`. `None`: it cannot be registered.
    fn memory(common: &mut Common, piece: &Piece, fills: bool, injected: bool) -> Result<Option<Memory>> {
        let &Piece { addr, len, .. } = piece;
        if len == 0 {
            return Ok(Some(Memory { segment: common.adapter.lend(0, 0), slot: None, region: None }));
        }
        let short = len <= common.adapter.mtu;
        let domain = &common.domain.transport;
        if !injected {
            // SAFETY: lent until the operation ends, which it does after the device's request (`Lane::is_busy`,
            // `settle_receives`).
            if let Some((lkey, region)) = unsafe { common.regions.find(domain, addr, len) } {
                let segment = Segment { addr, len, lkey };
                return Ok(Some(Memory { segment, slot: None, region: Some(region) }));
            }
        }
        if short {
            let slot = common.adapter.take_slot().ok_or(Error::AGAIN)?;
            let segment = common.adapter.lend(slot, len);
            if !fills {
                // SAFETY: the piece is lent during the call; a slot has room for a packet.
                unsafe { copy::bytes(addr, segment.addr, len) };
            }
            return Ok(Some(Memory { segment, slot: Some(slot), region: None }));
        }
        // SAFETY: as above.
        match unsafe { domain.local(addr, len) } {
            Ok(region) => {
                let segment = Segment { addr, len, lkey: region.lkey() };
                Ok(Some(Memory { segment, slot: None, region: Some(common.regions.hold(region)) }))
            }
            Err(error) => {
                tracing::debug!(target: "ofi::efa::ep_data", %error, "an access goes through the peer");
                Ok(None)
            }
        }
    }

    /// Has the device do an access in one request. `None`: it cannot.
    pub fn access_alone<H: Host<Efa>>(
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
        if !common.adapter.has_room() {
            return Err(Error::AGAIN);
        }
        let injected = out.flags.contains(OpFlags::INJECT);
        let Some(memory) = Self::memory(common, piece, !out.write, injected)? else { return Ok(None) };
        let at = Remote { addr: remote.addr, rkey };
        let action = match out.write {
            true => Action::Write { from: memory.segment, at, data },
            false => Action::Read { into: memory.segment, at },
        };
        let access = Access { write: out.write, piece: *piece, remote: *remote, told: out.remote_data() };
        let alone = Alone { access: Some(access) };
        self.post_alone(common, host, (out.peer, out.ticket), alone, action, (memory.slot, memory.region));
        match out.write {
            true => common.counts.native_writes += 1,
            false => common.counts.native_reads += 1,
        }
        Ok(Some(Posted::Pending))
    }

    /// Sends a message from where it lies. `false`: the application has not registered its memory, or there is no room
    /// for a request.
    pub fn send_alone<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, ticket): (Peer, Ticket),
        &Piece { addr, len, .. }: &Piece,
        data: Option<u32>,
    ) -> bool {
        if !common.adapter.has_room() {
            return false;
        }
        // SAFETY: lent until the operation ends, which it does after the device's request (`Lane::is_busy`).
        let found = unsafe { common.regions.find(&common.domain.transport, addr, len) };
        let Some((lkey, region)) = found else { return false };
        let action = Action::Send { from: Segment { addr, len, lkey }, inline: false, data };
        self.post_alone(common, host, (peer, ticket), Alone { access: None }, action, (None, Some(region)));
        common.counts.sent += 1;
        true
    }

    fn post_alone<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, ticket): (Peer, Ticket),
        alone: Alone,
        action: Action,
        (slot, region): (Option<u32>, Option<InUse>),
    ) {
        self.outstanding += 1;
        let op = Op { work: Work::Alone(alone), unacked: 0, making: false, awaits: true, id: 0 };
        let single = Single { peer, op: host.open(peer, ticket, op), action, slot, region };
        self.transfers += 1;
        if self.may_flush() {
            // SAFETY: its memory is registered, as the request holds it, and lent until it has ended.
            unsafe { common.adapter.single(self.to, single) };
        } else {
            self.singles.push_back(single);
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Posts what waits. `false`: there is no room.
    pub fn flush_singles(&mut self, common: &mut Common) -> bool {
        while let Some(single) = self.singles.pop_front() {
            if !common.adapter.has_room() {
                self.singles.push_front(single);
                return false;
            }
            // SAFETY: as in `post_alone`.
            unsafe { common.adapter.single(self.to, single) };
        }
        true
    }

    /// A request has ended.
    pub fn single_ended<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        single: Single,
        status: Status,
    ) {
        let peer = single.peer;
        match status {
            // A message, or a write with data, whose peer has no receive.
            Status::NotReady if self.ending.is_none() && self.dead.is_none() => {
                self.rest(common, peer);
                // Memory of an operation that is gone is lent no more.
                if host.op(peer, single.op).is_some() {
                    self.singles.push_back(single);
                    return common.hold(&mut self.is_dirty, peer);
                }
            }
            Status::NoDestination | Status::Unresponsive | Status::Flushed | Status::NotReady => self.lost(),
            Status::Done => self.took(),
            Status::BadAddress | Status::Refused(_) | Status::Failed(_) => {}
        }
        self.finish_alone(common, host, single, status);
        if self.ending.is_some() || self.dead.is_some() {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Ends what is not posted: the lane is lost.
    pub fn stop_singles<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H) {
        for single in std::mem::take(&mut self.singles) {
            self.finish_alone(common, host, single, Status::Flushed);
        }
    }

    /// Ends what is not posted of operations that are gone: their memory is lent no more.
    pub fn drop_singles<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H) {
        for single in std::mem::take(&mut self.singles) {
            match host.op(single.peer, single.op) {
                Some(_) => self.singles.push_back(single),
                None => self.finish_alone(common, host, single, Status::Flushed),
            }
        }
    }

    /// A request is the device's no more: its operation ends, if it is there.
    fn finish_alone<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        Single { peer, op, slot, region, .. }: Single,
        status: Status,
    ) {
        self.transfers -= 1;
        // Before the application has its memory back.
        if let Some(region) = region {
            common.regions.release(region);
        }
        self.end_alone(common, host, (peer, op), slot, status);
        if let Some(slot) = slot {
            common.adapter.give_slot(slot);
        }
    }

    fn end_alone<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (Peer, SlotId),
        slot: Option<u32>,
        status: Status,
    ) {
        let Some(Op { work: Work::Alone(alone), .. }) = host.op(peer, id) else {
            // Its context was closed.
            self.outstanding = self.outstanding.saturating_sub(1);
            return;
        };
        let bytes = slot.map(|slot| common.adapter.outgoing(slot).cast_const());
        if status == Status::Done
            && let Some(from) = bytes
            && let Some(Access { write: false, piece, .. }) = &alone.access
        {
            // SAFETY: the device has read as many bytes into the slot; the piece is lent until the read ends.
            unsafe { copy::bytes(from, piece.addr, piece.len) };
        }
        let result = match status {
            Status::Done => Ok(()),
            Status::BadAddress if self.ending.is_none() && self.is_own() == Some(true) => {
                if let Some(access) = alone.access.take() {
                    return self.ask_instead(common, host, (peer, id), access, bytes);
                }
                Err(Errno::EIO)
            }
            status => Err(self.failure(status)),
        };
        self.finish(common, host, peer, id, result);
    }

    fn ask_instead<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, id): (Peer, SlotId),
        Access { write, piece, remote, told }: Access,
        slot: Option<*const u8>,
    ) {
        let len = piece.len;
        let bytes = slot.filter(|_| write).map(|from| {
            let mut bytes = vec![0u8; len];
            // SAFETY: both have `len` bytes; the slot is this access's.
            unsafe { copy::bytes(from, bytes.as_mut_ptr(), len) };
            Payload::owned(bytes.into())
        });
        let native = Native { write, pieces: [piece].into(), remote: [remote].into(), len, told };
        self.ask_owner(common, host, peer, id, native, bytes);
    }
}
