//! Common accesses to a peer's memory: one request of the device, without the table of transfers (`fetch.rs`).
//!
//! The request's entry among those under way has all that its end needs, so that such an access takes no memory. The
//! bytes of a write that fits into its request are copied there from the application's memory; those of other short
//! accesses go through a slot; long ones are read and written in place.

use ibv::transfer::LONGEST;
use ofi_api::{Errno, Piece, RemotePiece};
use ofi_core::copy;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Host, OutAccess, Peer, Ticket};

use crate::Verbs;
use crate::adapter::{Posted, READS};
use crate::domain::Local;
use crate::fetch::{End, Transfer};
use crate::lane::{Common, Lane};
use crate::message::Op;
use crate::native::{READ, WRITE};
use crate::rc::{Post, Remote, Segment};
use crate::refused::{Native, Place, Refused};
use crate::wire::PAYLOAD;

/// The memory of this end that a request uses until it has ended.
pub enum Held {
    /// None: the request has the bytes.
    Nothing,
    /// A slot.
    Slot(u32),
    /// The application's memory.
    Region(Local),
}

impl Held {
    const fn slot(&self) -> Option<u32> {
        match self {
            Self::Slot(slot) => Some(*slot),
            Self::Nothing | Self::Region(_) => None,
        }
    }

    /// A transfer whose requests are posted: for a lane that has lost its connection.
    pub fn into_transfer(self, op: SlotId) -> Transfer {
        let mut transfer = Transfer::of(End::Access(op));
        match self {
            Self::Nothing => {}
            Self::Slot(slot) => transfer.slot = Some(slot),
            Self::Region(region) => transfer.regions.push(region),
        }
        transfer
    }
}

/// An access of one piece at either end.
pub struct One {
    /// A write, or a read.
    pub write: bool,
    /// Local memory.
    pub piece: Piece,
    /// The peer's memory, as long as the piece, which is not empty.
    pub remote: RemotePiece,
    /// Whether the application gets its memory back when the call returns.
    pub injected: bool,
}

impl From<&OutAccess> for One {
    #[inline]
    fn from(out: &OutAccess) -> Self {
        Self { write: out.write, piece: out.piece, remote: out.remote, injected: false }
    }
}

impl Lane {
    /// Posts an access that the device can do now. `false`: nothing was posted, and [`Lane::rma`] must handle the
    /// access.
    #[inline]
    pub fn access_now<H: Host<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, ticket): (Peer, Ticket),
        one: &One,
    ) -> bool {
        let &One { write, piece: Piece { addr, len, .. }, remote, injected } = one;
        let has_room = self.requests < common.adapter.requests && common.adapter.has_room();
        let waits = !self.fetching.is_empty() || !self.may_go_native(common);
        if waits || !has_room || (!write && common.adapter.reads >= READS) || len > LONGEST {
            return false;
        }
        let right = if write { WRITE } else { READ };
        let Some(source) = self.keys.get(&remote.key).and_then(|key| key.source(&remote, right)) else {
            return false;
        };
        let inline = write && len <= self.inline;
        let (held, local, place) = if inline && !injected {
            (Held::Nothing, Segment { addr, len: len as u32, lkey: 0 }, Place::Request)
        } else if len <= PAYLOAD {
            let Some(slot) = common.adapter.take_slot() else { return false };
            if write {
                // SAFETY: the piece is lent during the call; a slot has room for a payload.
                unsafe { copy::bytes(addr, common.adapter.outgoing(slot), len) };
            }
            (Held::Slot(slot), common.adapter.segment(slot, len), Place::Slot)
        } else if injected {
            return false;
        } else {
            // SAFETY: the memory is lent until the operation ends; `settle_receives` stops the device if that is before
            // its request has ended.
            let Ok(region) = (unsafe { common.domain.transport.local(addr, len) }) else { return false };
            let local = Segment { addr, len: len as u32, lkey: region.lkey() };
            (Held::Region(region), local, Place::Memory)
        };
        self.outstanding += 1;
        self.natives += 1;
        let (natives, number, reads) = (self.natives, self.quiet.number(), !write);
        let op = host.open_with(peer, ticket, || Op::Native(Native::alone(one, natives, place)));
        let wr = common.adapter.posted.insert(Posted::Alone { peer, op, number, reads, held });
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
            // SAFETY: as above, for memory that the request uses; a lane is lost before the access ends early.
            Some(connection) => unsafe { connection.read(wr.to_wire(), local, at) },
            None => Ok(()), // there is one, because the lane may go native
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

    /// The request of such an access has ended.
    pub fn alone_ended<H: Host<Verbs>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        (peer, op): (Peer, SlotId),
        held: Held,
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
