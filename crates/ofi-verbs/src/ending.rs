//! The end of a peer's connection: which state is dropped, and which outlives it.

use std::collections::VecDeque;

use ofi_api::Errno;
use ofi_core::transport::{PeerId, Upcalls};

use crate::Verbs;
use crate::adapter::Posted;
use crate::op::Op;
use crate::peer::{Common, Item, Link, Peer, RecordPart};
use crate::transfer::{End, Transfer};
use crate::wire::kind;

impl Peer {
    /// Resets the peer and returns its old state. The queue pair is dropped first, so that the device no longer writes
    /// to memory.
    pub fn disconnected(&mut self, common: &mut Common, peer: PeerId) -> Self {
        let mut old = std::mem::replace(self, Self::new(self.address));
        self.attempt = old.attempt;
        (self.is_dirty, self.is_live) = (old.is_dirty, old.is_live);
        (self.last_use, self.wanted) = (old.last_use, old.wanted);
        old.link = Link::Closed;
        old.mirror = None;
        for wr in common.adapter.posted.ids(|posted| posted.peer() == peer) {
            match common.adapter.posted.remove(wr) {
                Some(Posted::Send { slot, quiet, .. }) => common.adapter.end_send(slot, quiet),
                Some(Posted::Step { reads, .. }) => common.adapter.reads -= usize::from(reads),
                Some(Posted::Single { op, reads, held, .. }) => {
                    common.adapter.reads -= usize::from(reads);
                    old.transfers.insert(held.into_transfer(op));
                }
                None => {}
            }
        }
        self.stalled = orphans(common, std::mem::take(&mut old.stalled));
        common.stalled.retain(|&other| other != peer);
        if !self.stalled.is_empty() {
            common.stalled.push(peer);
        }
        old
    }

    /// Ends the connection: clears the peer's state, except its messages that the application had no room for.
    pub fn lose<H: Upcalls<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId, errno: Errno) {
        let old = self.disconnected(common, peer);
        for id in old.kept.ids(|_| true) {
            common.kept -= old.kept.get(id).map_or(0, |(_, len)| *len);
        }
        common.wishing.retain(|&other| other != peer);
        let mut receives = Vec::new();
        let mut slots = old.transfers;
        let ids = slots.ids(|_| true);
        let mut transfers: Vec<Transfer> = ids.into_iter().filter_map(|id| slots.remove(id)).collect();
        let spared = match old.refused {
            Some(refused) => Self::spare(common, host, peer, refused, &mut transfers),
            None => Vec::new(),
        };
        for Transfer { end, slot, .. } in transfers {
            // This also drops the registrations.
            if let Some(slot) = slot {
                common.adapter.give_slot(slot);
            }
            if let End::Receive { into, .. } = end {
                receives.push(into);
            }
        }
        for into in receives {
            host.received(into, Err(errno));
        }
        host.fail_peer_where(peer, errno, Op::is_lost, |_| true);
        self.ask_again(common, host, peer, spared);
    }

    /// Closes the idle connection. Queued work and unprocessed records stay.
    pub fn close_idle(&mut self, common: &mut Common, peer: PeerId) {
        self.reset_connection(common, peer);
        common.counts.retired += 1;
    }

    /// Ends a connection over which nothing is under way. Queued work and unprocessed records stay.
    pub fn reset_connection(&mut self, common: &mut Common, peer: PeerId) {
        let old = self.disconnected(common, peer);
        self.commands = old.commands;
        let len = |item: &Item| if let Item::Frame(frame) = item { frame.len() } else { 0 };
        self.waiting = self.commands.iter().map(len).sum();
        (self.outstanding, self.executed) = (old.outstanding, old.executed);
        (self.transfers, self.fetching) = (old.transfers, old.fetching);
        (self.wished, self.announced) = (old.wished, old.announced);
        // Waiting operations keep their deadline.
        if self.has_work(common.turn) {
            self.reach_by = old.reach_by;
        }
    }
}

/// The records that outlive their connection: messages, whose arrival was acknowledged to the peer's device. Requests
/// that expect an answer have failed at the peer.
fn orphans(common: &Common, stalled: VecDeque<RecordPart>) -> VecDeque<RecordPart> {
    let mut kept = VecDeque::<RecordPart>::new();
    for part in stalled {
        if matches!(
            common.adapter.record(part.slot, part.at, part.len).first(),
            Some(&(kind::MESSAGE | kind::NOTE))
        ) {
            kept.push_back(RecordPart { orphan: true, ..part });
        } else if part.last {
            // The kept records of a pack may precede this one.
            match kept.back_mut().filter(|before| before.slot == part.slot) {
                Some(before) => before.last = true,
                None => common.adapter.receive(part.slot),
            }
        }
    }
    kept
}
