//! Transfers by the device: payloads that it reads from their sender, and reads and writes of a peer's memory.

use ibv::transfer::{MAX_REQUEST_LEN, Source, plan};
use ofi_api::Errno;
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::record::{Broken, flag};
use ofi_core::transport::{PeerId, Upcalls};

use crate::Verbs;
use crate::adapter::{Posted, READS};
use crate::op::{Op, Token};
use crate::peer::{Common, Peer};
use crate::rc::{Post, Remote};
use crate::transfer::{End, Refused, Transfer};

impl Peer {
    /// Fetches an announced payload into the open receive `into`.
    pub fn pull<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        token: Token,
        into: SlotId,
    ) {
        self.pull_later(common, host, peer, token, into);
        if self.link.open().is_some() {
            self.fetch(common, peer);
        }
    }

    /// As [`Peer::pull`], but posts the requests after all received records were processed: the payload may have moved.
    pub fn pull_later<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        token: Token,
        into: SlotId,
    ) {
        let Some(receiving) = host.receiving(into) else { return self.discard(common, peer, &token) };
        let (mut regions, mut runs) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (addr, len) in copy::runs(receiving.pieces, 0, receiving.len) {
            // SAFETY: the memory is lent until the receive ends; `settle_receives` stops the device before that.
            match unsafe { common.domain.transport.local(addr, len) } {
                Ok(region) => {
                    runs.push((addr, len, region.lkey()));
                    regions.push(region);
                }
                Err(error) => {
                    tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive cannot be registered");
                    failure = Some(Errno::from_raw(error.errno));
                }
            }
        }
        if failure.is_some() || runs.is_empty() {
            host.received(into, failure.map_or(Ok(()), Err));
            return self.discard(common, peer, &token);
        }
        let moved = self.moved(&token);
        let todo =
            plan(false, &runs, moved.as_ref().map_or(&token.sources, std::slice::from_ref), MAX_REQUEST_LEN);
        let end = End::Receive { into, token };
        self.begin(Transfer { todo, regions, ..Transfer::of(end) });
        common.hold(&mut self.is_dirty, peer);
    }

    /// Handles the move of an announced payload: reads the rest from its new address.
    pub fn move_transfers(&mut self, op: u64, to: &Source) {
        let is_of = |end: &End| match end {
            End::Receive { token, .. } => token.op == op && token.flags & flag::KEPT == 0,
            End::Access(_) | End::Told(..) => false,
        };
        for id in self.transfers.ids(|transfer| is_of(&transfer.end)) {
            let Some(Transfer { end: End::Receive { token, .. }, todo, .. }) = self.transfers.get_mut(id)
            else {
                continue;
            };
            for step in todo {
                let mut before = 0;
                for source in &token.sources {
                    let offset = step.remote.addr.wrapping_sub(source.addr);
                    if step.remote.rkey == source.rkey && offset < source.len as u64 {
                        step.remote = Remote { addr: to.addr + before + offset, rkey: to.rkey };
                        break;
                    }
                    before += source.len as u64;
                }
            }
        }
    }

    /// Begins a transfer.
    pub fn transfer(&mut self, common: &mut Common, peer: PeerId, transfer: Transfer) {
        self.begin(transfer);
        if self.link.open().is_none() {
            return common.hold(&mut self.is_dirty, peer); // the peer's connection was closed as idle
        }
        self.fetch(common, peer);
    }

    fn begin(&mut self, transfer: Transfer) {
        let is_access = !matches!(transfer.end, End::Receive { .. });
        let id = self.transfers.insert(transfer);
        self.fetching.push_back(id);
        self.accesses_waiting += usize::from(is_access);
    }

    /// Posts requests of transfers while there is room.
    pub fn fetch(&mut self, common: &mut Common, peer: PeerId) {
        while let Some(&id) = self.fetching.front() {
            let Some(transfer) = self.transfers.get_mut(id) else {
                self.fetching.pop_front();
                continue;
            };
            let is_access = !matches!(transfer.end, End::Receive { .. });
            while let Some(&step) = transfer.todo.front() {
                let Some(connection) = self.link.open() else { return };
                let has_room = self.requests < common.adapter.requests && common.adapter.has_room();
                if !has_room || (!step.write && common.adapter.reads >= READS) {
                    return common.hold(&mut self.is_dirty, peer);
                }
                let reads = !step.write;
                let number = self.quiet.number();
                let step_of = Posted::Step { peer, transfer: id, number, reads, is_access };
                let wr = common.adapter.posted.insert(step_of);
                // A write must not change data that an earlier read of this end still returns.
                let fence = step.write && self.reads_out > 0;
                let inline = step.write && step.local.len as usize <= self.inline;
                let how = Post { fence, inline, quiet: false };
                let posted = if step.write {
                    // SAFETY: the memory is registered, and lent until the access ends, or it is a slot that nothing
                    // else uses.
                    unsafe { connection.write(wr.to_wire(), step.local, step.remote, how) }
                } else {
                    // SAFETY: as above, for the receive or the access; a peer is lost before either ends early.
                    unsafe { connection.read(wr.to_wire(), step.local, step.remote) }
                };
                if let Err(error) = posted {
                    tracing::warn!(target: "ofi::verbs::ep_data", %error, "a request cannot be posted");
                    common.adapter.posted.remove(wr);
                    self.ending.get_or_insert(Errno::EIO);
                    return common.hold(&mut self.is_dirty, peer);
                }
                transfer.todo.pop_front();
                transfer.posted += 1;
                self.requests += 1;
                common.adapter.reads += usize::from(reads);
                self.reads_out += usize::from(reads && is_access);
                match (is_access, reads) {
                    (false, _) => common.counts.reads += 1,
                    (true, true) => common.counts.native_reads += 1,
                    (true, false) => common.counts.native_writes += 1,
                }
            }
            self.fetching.pop_front();
            self.accesses_waiting -= usize::from(is_access);
        }
    }

    /// Handles the peer's report that an access has ended. `true`: the device still has requests of it, and uses its
    /// memory until they complete.
    ///
    /// # Errors
    /// If the peer never reports such an access.
    pub fn is_with_device(&mut self, op: SlotId, result: Result<(), Errno>) -> Result<bool, Broken> {
        let is_of = |end: &End| matches!(*end, End::Access(of) | End::Told(of, _) if of == op);
        let found = self.transfers.ids(|transfer| is_of(&transfer.end)).pop();
        match found.and_then(|id| self.transfers.get_mut(id)).map(|transfer| &mut transfer.end) {
            Some(End::Told(_, said)) => {
                said.get_or_insert(result);
                Ok(true)
            }
            Some(_) => Err(Broken),
            None => Ok(false),
        }
    }

    /// Handles the completion of a request of a transfer.
    pub fn fetched<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        let Some(transfer) = self.transfers.get_mut(id) else { return };
        transfer.posted -= 1;
        if let Err(errno) = result {
            transfer.failed.get_or_insert(errno);
        }
        if transfer.posted > 0 || !transfer.todo.is_empty() {
            return;
        }
        // The registrations are dropped before the application gets its memory back.
        let Some(Transfer { end, failed, slot, regions, .. }) = self.transfers.remove(id) else { return };
        drop(regions);
        if let End::Told(op, Some(said)) = end {
            self.finish(host, peer, op, said);
        } else if failed.is_some()
            && let Some(refused) = &mut self.refused
            && let Some(one) = Refused::of(&end, slot)
        {
            return refused.push(one);
        }
        let result = failed.map_or(Ok(()), Err);
        match end {
            End::Receive { into, token } => {
                host.received(into, result);
                self.discard(common, peer, &token);
            }
            End::Access(op) => {
                if let (Ok(()), Some(slot)) = (result, slot)
                    && let Some(Op::Native(native)) = host.op(peer, op)
                    && let Some((pieces, len)) = native.read_into()
                {
                    let from = common.adapter.outgoing(slot);
                    // SAFETY: the device has read `len` bytes into the slot; the pieces are lent until the read ends.
                    unsafe { copy::scatter(from, len, pieces, 0) };
                }
                self.finish(host, peer, op, result);
            }
            End::Told(..) => {}
        }
        if let Some(slot) = slot {
            common.adapter.give_slot(slot);
        }
    }
}
