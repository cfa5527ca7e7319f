//! Accesses to a peer's memory that are one request of the device, the common case. They bypass the table of transfers
//! (`fetch.rs`).
//!
//! The entry of the request in flight has all state that its completion needs, so such an access allocates nothing. A
//! write that fits inline is copied from the application's memory into the request; other short accesses use a slot;
//! long ones access the application's memory in place.

use ibv::transfer::MAX_REQUEST_LEN;
use ofi_api::{Errno, Piece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{CompletionInfo, PeerId, Upcalls};

use crate::Verbs;
use crate::adapter::{Posted, READS};
use crate::op::{AccessMemory, Native, One, Op};
use crate::peer::{Common, Peer, READ, WRITE};
use crate::rc::{Post, Remote, Segment};
use crate::transfer::{Refused, RequestMemory};
use crate::wire::PAYLOAD;

impl Peer {
    /// Posts an access that the device can execute now. `false`: nothing was posted, and [`Peer::rma`] must handle the
    /// access.
    #[inline]
    pub fn access_now<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, ticket): (PeerId, CompletionInfo),
        one: &One,
    ) -> bool {
        let &One { write, piece: Piece { addr, len, .. }, remote, injected } = one;
        let has_room = self.requests < common.adapter.requests && common.adapter.has_room();
        let waits = !self.fetching.is_empty() || !self.may_go_native(common);
        if waits || !has_room || (!write && common.adapter.reads >= READS) || len > MAX_REQUEST_LEN {
            return false;
        }
        let right = if write { WRITE } else { READ };
        let Some(source) = self.keys.get(&remote.key).and_then(|key| key.source(&remote, right)) else {
            return false;
        };
        let inline = write && len <= self.inline;
        let (held, local, place) = if inline && !injected {
            (RequestMemory::Nothing, Segment { addr, len: len as u32, lkey: 0 }, AccessMemory::Request)
        } else if len <= PAYLOAD {
            let Some(slot) = common.adapter.take_slot() else { return false };
            if write {
                // SAFETY: the piece is lent during the call; a slot has room for a payload.
                unsafe { copy::bytes(addr, common.adapter.outgoing(slot), len) };
            }
            (RequestMemory::Slot(slot), common.adapter.segment(slot, len), AccessMemory::Slot)
        } else if injected {
            return false;
        } else {
            // SAFETY: the memory is lent until the operation ends; `settle_receives` stops the device if that is before
            // its request has ended.
            let Ok(region) = (unsafe { common.domain.transport.local(addr, len) }) else { return false };
            let local = Segment { addr, len: len as u32, lkey: region.lkey() };
            (RequestMemory::Region(region), local, AccessMemory::Memory)
        };
        self.outstanding += 1;
        self.natives += 1;
        let (natives, number, reads) = (self.natives, self.quiet.number(), !write);
        let op = host.open_with(peer, ticket, || Op::Native(Native::single(one, natives, place)));
        let wr = common.adapter.posted.insert(Posted::Single { peer, op, number, reads, held });
        self.requests += 1;
        let at = Remote { addr: source.addr, rkey: source.rkey };
        let posted = match self.link.open() {
            Some(connection) if write => {
                // A write must not change data that an earlier read of this end still returns.
                let how = Post { fence: self.reads_out > 0, inline, quiet: false };
                // SAFETY: the bytes are read during the call, or the memory is registered, and lent until the access
                // ends, or it is a slot that nothing else uses.
                unsafe { connection.write(wr.to_wire(), local, at, how) }
            }
            // SAFETY: as above, for memory that the request uses; a peer is lost before the access ends early.
            Some(connection) => unsafe { connection.read(wr.to_wire(), local, at) },
            None => Ok(()), // there is one, because the device may access the peer's memory
        };
        common.adapter.reads += usize::from(reads);
        self.reads_out += usize::from(reads);
        match write {
            true => common.counts.native_writes += 1,
            false => common.counts.native_reads += 1,
        }
        if let Err(error) = posted {
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a request cannot be posted");
            self.ending.get_or_insert(Errno::EIO); // and so ends the access
            common.hold(&mut self.is_dirty, peer);
        }
        true
    }

    /// Handles the completion of such an access.
    pub fn single_ended<H: Upcalls<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, op): (PeerId, SlotId),
        held: RequestMemory,
        result: Result<(), Errno>,
    ) {
        let slot = held.slot();
        // The registration is dropped before the application gets its memory back.
        drop(held);
        if result.is_err()
            && let Some(refused) = &mut self.refused
        {
            return refused.push(Refused::new(op, slot));
        }
        if let (Ok(()), Some(slot)) = (result, slot)
            && let Some(Op::Native(native)) = host.op(peer, op)
            && let Some((pieces, len)) = native.read_into()
        {
            // SAFETY: the device has read `len` bytes into the slot; the pieces are lent until the read ends.
            unsafe { copy::scatter(common.adapter.outgoing(slot), len, pieces, 0) };
        }
        self.finish(host, peer, op, result);
        if let Some(slot) = slot {
            common.adapter.give_slot(slot);
        }
    }
}
