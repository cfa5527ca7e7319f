//! Keys beyond those of a region's near rails.
//!
//! A region's metadata has keys on the rails near it alone. If a chunk has failed on the paths to those, or they rest,
//! while another path works, we ask the owner for keys on all its rails: it registers the region there, and the chunk
//! goes on. An owner of an older version has given all its keys already, and drops the request.

use ofi_core::slots::SlotId;

use super::fence::Lease;
use super::session::{Outgoing, Session};
use super::transfer::{Chunk, Transfer};
use super::{Core, Piece, Plan, Sink, Time};
use crate::near::RailSet;
use crate::wire::RegionKey;
use crate::wire::message::Body;

impl<G> Plan<G> {
    /// The rails near a piece's local memory.
    #[inline]
    pub(super) fn near(&self, piece: &Piece) -> RailSet {
        self.near.get(piece.region as usize).copied().unwrap_or(RailSet::MAX)
    }
}

impl Session {
    /// The keys of a chunk's remote region beside those in its metadata, if the peer has given them: on all rails, or
    /// else on those near the region with rails that were opened later.
    pub(super) fn wide_keys<G>(&self, transfer: &Transfer<G>, chunk: &Chunk) -> &[RegionKey] {
        if self.wide.is_empty() && self.later.is_none() {
            return &[];
        }
        let Some(region) = transfer.region_of(chunk) else { return &[] };
        let renewed = || self.later.as_ref().and_then(|later| later.keys.get(&region));
        match (self.wide.get(&region), renewed()) {
            (Some(Lease::Held(keys)), _) | (_, Some(Lease::Held(keys))) => keys,
            _ => &[],
        }
    }
}

impl<G> Core<G> {
    /// Asks for keys on all rails of a chunk's remote region, unless that was done. Returns the time when the chunk is
    /// looked at again; `None` if the peer has answered, or has not in time.
    pub(super) fn ask_to_widen(
        &mut self,
        id: SlotId,
        transfer: SlotId,
        chunk: &Chunk,
        now: Time,
    ) -> Option<Time> {
        let region = self.transfers.get(transfer)?.region_of(chunk)?;
        let until = now + self.config.stall_timeout; // registrations take time
        let session = self.sessions.get_mut(id)?;
        match session.wide.get(&region) {
            Some(&Lease::Asked(until)) if now < until => return Some(until),
            // An owner of an older version, one that is not driven, or one with too many requests does not answer.
            Some(_) => return None,
            None => {}
        }
        session.wide.insert(region, Lease::Asked(until));
        session.outbox.push_back(Outgoing::new(Body::Widen(region), None));
        self.wake(id);
        Some(until)
    }

    /// Handles the peer's keys on all its rails.
    pub(super) fn widened(&mut self, id: SlotId, region: u64, keys: Vec<RegionKey>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        // Only one answer to a request is taken: the table is no larger than the peer's metadata, and each answer lets
        // this end ask for leases once more.
        if let Some(wide @ Lease::Asked(_)) = session.wide.get_mut(&region) {
            *wide = Lease::Held(keys);
            session.leases.remove(&region); // the next write asks for leases on all rails
        }
        self.wake(id);
    }

    /// Carries out [`Command::Widen`](super::Command::Widen).
    pub(super) fn widen(&mut self, id: SlotId, region: u64, is_all: bool, sink: &mut impl Sink<G>) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        let body = match is_all {
            true => Body::Widened { region, keys: sink.widen(region) },
            false => Body::Renewed { region, keys: sink.renew(region) },
        };
        session.outbox.push_back(Outgoing::new(body, None));
        self.wake(id);
    }
}
