//! Rails that are opened after the agent: one that did not open at its start, or whose device was gone.
//!
//! Peers keep keys by the numbers of rails, for as long as they like. So a rail has its number for the agent's life,
//! and one that is opened again is another one, with the next number. Peers with a session are told its address
//! ([`Body::Rails`]): both ends add a path for each rail that has none. A peer of an older version, which would not
//! understand it, is asked before ([`Body::Offer`]) and does not answer. Metadata and greetings have the rails of their
//! time.
//!
//! A peer asks for the keys on a new rail, region by region, when it next uses the region ([`Body::Renew`]); until the
//! answer it uses the other rails. The owner registers the region for the answer.

use std::collections::{BTreeSet, HashMap};

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::fence::Lease;
use super::session::{Outgoing, Session};
use super::transfer::{Chunk, Transfer};
use super::{Command, Core, PathId, RailSpec, Sink, Time, path};
use crate::near::{RailSet, bit};
use crate::wire::message::{Body, LaterRail};
use crate::wire::{MAX_RAIL_NUMBERS, MAX_RAILS, RailInfo, RegionKey};

/// What a session knows of rails that were opened after it, or after the agents.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// The peer was asked whether it takes the addresses of our later rails.
    has_offered: bool,
    /// It does.
    is_accepted: bool,
    /// The peer's rails that are gone, a bit each.
    closed: RailSet,
    /// The peer's rails that were opened in the place of others.
    heirs: Vec<(u8, u8)>,
    /// The peer has later rails: regions have keys that its metadata lacks.
    has_more: bool,
    /// Keys of the peer's regions with those on its later rails.
    keys: HashMap<u64, Lease>,
    /// Regions whose keys the peer has asked for.
    pub(super) asked: BTreeSet<u64>,
}

impl Session {
    /// The keys of a chunk's remote region with those on later rails, if the peer has given them.
    #[inline]
    pub(super) fn renewed_keys<G>(&self, transfer: &Transfer<G>, chunk: &Chunk) -> &[RegionKey] {
        let Some(later) = &self.later else { return &[] };
        let known = transfer.region_of(chunk).and_then(|region| later.keys.get(&region));
        match known {
            Some(Lease::Held(keys)) => keys,
            Some(Lease::Asked(_)) | None => &[],
        }
    }

    /// Asks for the keys of a chunk's remote region on the peer's later rails, unless that was done. Returns whether
    /// there is a message to send.
    #[inline]
    pub(super) fn renews<G>(&mut self, transfer: &Transfer<G>, chunk: &Chunk, now: Time) -> bool {
        let Some(later) = self.later.as_mut().filter(|later| later.has_more) else { return false };
        let Some(region) = transfer.region_of(chunk).filter(|region| !later.keys.contains_key(region)) else {
            return false;
        };
        later.keys.insert(region, Lease::Asked(now));
        self.outbox.push_back(Outgoing::new(Body::Renew(region), None));
        true
    }

    /// Leaves out keys on rails whose numbers a peer of an older version does not expect.
    pub(super) fn leave_out_later(&self, keys: &mut Vec<RegionKey>) {
        if self.later.as_ref().is_none_or(|later| !later.is_accepted) {
            keys.retain(|key| usize::from(key.rail) < MAX_RAILS);
        }
    }
}

impl<G> Core<G> {
    /// Adds a rail that was opened now, in the place of this one if there was one, and tells the peers. Returns its
    /// number; `None` if the agent has had as many rails as it may have.
    pub fn add_rail(&mut self, spec: RailSpec, instead: Option<usize>, now: Time) -> Option<usize> {
        let number = self.rails.len();
        if number >= MAX_RAIL_NUMBERS || number - self.first_rails >= MAX_RAILS {
            return None;
        }
        self.now = now;
        self.places.add_rail(&spec);
        self.stalled.add_rail();
        self.latencies.push(Default::default());
        self.rails.push(spec);
        self.heirs.extend(instead.map(|instead| (instead as u8, number as u8)));
        for id in self.sessions.ids(Session::is_up) {
            self.grow(id, now);
        }
        Some(number)
    }

    /// A rail's device is gone: nothing uses the rail any more, and peers are told. What it has under way ends as the
    /// rail reports.
    pub fn lose_rail(&mut self, rail: usize, now: Time) {
        if self.closed & bit(rail) != 0 {
            return;
        }
        self.now = now;
        self.closed |= bit(rail);
        for id in self.sessions.ids(|_| true) {
            self.close_paths(id, |path| path.rail == rail);
            self.check_paths(id, Errno::ENODEV, now);
            self.grow(id, now);
        }
    }

    /// The paths to these rails of a peer.
    pub(super) fn pair(&self, theirs: &[RailInfo]) -> Vec<path::Path> {
        path::pair((&self.rails, path::Ends { closed: self.closed, heirs: &self.heirs }), theirs)
    }

    /// Closes paths of a session. What they have under way ends as the rails report.
    fn close_paths(&mut self, id: SlotId, is_gone: impl Fn(&path::Path) -> bool) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        session.paths.iter_mut().filter(|path| is_gone(path)).for_each(|path| path.is_closed = true);
        self.wake(id);
    }

    /// Whether a rail has nothing under way.
    pub fn is_idle(&self, rail: usize) -> bool {
        self.places.is_idle(rail)
    }

    /// Adds the paths that the rails of both ends of an open session lack, and tells the peer of our later rails.
    pub(super) fn grow(&mut self, id: SlotId, now: Time) {
        let able_until = now + self.patience();
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        let is_known = self.rails.len() == self.first_rails && self.closed == 0;
        if is_known && session.later.is_none() {
            return self.wake(id);
        }
        let later = session.later.get_or_insert_default();
        let here = path::Ends { closed: self.closed, heirs: &self.heirs };
        let there = path::Ends { closed: later.closed, heirs: &later.heirs };
        let mut more = path::more((&self.rails, here), (&session.rails, there), &session.paths, now);
        let is_wide = |path: &path::Path| self.rails[path.rail].wide_data;
        if session.paths.iter().all(is_wide) {
            more.retain(is_wide); // the writes of a counted transfer may use any path
        }
        let before = session.paths.len();
        for path in more {
            let RailInfo { format, address, .. } = session.rails[path.remote].clone();
            let (index, rail) = (session.paths.len(), path.rail);
            session.paths.push(path);
            session.inserting += 1;
            let path = PathId { session: id, path: index };
            self.commands.push_back(Command::Insert { path, rail, format, address });
        }
        let body = if is_known {
            None
        } else if later.is_accepted {
            let first = self.first_rails;
            let rail = |(number, spec): (usize, &RailSpec)| LaterRail {
                instead: self.heirs.iter().find(|heir| usize::from(heir.1) == number).map(|heir| heir.0),
                info: spec.info.clone(),
            };
            let rails = self.rails.iter().enumerate().skip(first).map(rail).collect();
            Some(Body::Rails { first: first as u8, closed: self.closed, rails })
        } else if !std::mem::replace(&mut later.has_offered, true) {
            Some(Body::Offer)
        } else {
            None
        };
        session.outbox.extend(body.map(|body| Outgoing::new(body, None)));
        if before == 1 && session.paths.len() > 1 {
            session.introduce(able_until);
        }
        self.wake(id);
    }

    /// The peer takes the addresses of later rails.
    pub(super) fn accepted(&mut self, id: SlotId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(later) = session.later.as_mut().filter(|later| later.has_offered) else { return };
        if !std::mem::replace(&mut later.is_accepted, true) {
            self.grow(id, now);
        }
    }

    /// Handles the addresses of the peer's later rails.
    pub(super) fn told_rails(
        &mut self,
        id: SlotId,
        first: u8,
        closed: RailSet,
        rails: &[LaterRail],
        now: Time,
    ) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(known) = session.rails.len().checked_sub(first.into()) else {
            self.counts.refused += 1;
            return;
        };
        let later = session.later.get_or_insert_default();
        for (number, rail) in (first..).zip(rails) {
            if let Some(instead) = rail.instead
                && !later.heirs.contains(&(instead, number))
            {
                later.heirs.push((instead, number));
            }
        }
        later.heirs.truncate(MAX_RAIL_NUMBERS);
        later.heirs.sort_unstable_by_key(|heir| heir.1);
        later.closed |= closed; // a rail does not come back under its number
        let new = rails.get(known..).unwrap_or_default();
        if !new.is_empty() {
            session.rails.extend(new.iter().map(|rail| rail.info.clone()));
            later.has_more = true;
            later.keys.clear();
        }
        let (incarnation, closed) = (session.incarnation, later.closed);
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get_mut(peer))
            && peer.incarnation == incarnation
            && peer.rails.len() < session.rails.len()
        {
            peer.rails.clone_from(&session.rails); // for the next session
        }
        self.close_paths(id, |path| closed & bit(path.remote) != 0);
        self.grow(id, now);
        if self.sessions.get(id).is_some_and(|session| session.inserting == 0) {
            self.check_paths(id, Errno::ENODEV, now);
        }
    }

    /// Handles a region's keys with those on later rails.
    pub(super) fn renewed(&mut self, id: SlotId, region: u64, keys: Vec<RegionKey>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let Some(known) = session.later.as_mut().and_then(|later| later.keys.get_mut(&region)) else {
            return;
        };
        // An answer with no more keys lets this end ask for no lease again.
        let has_more = match known {
            Lease::Asked(_) => true,
            Lease::Held(held) => held.len() < keys.len(),
        };
        if has_more {
            *known = Lease::Held(keys);
            session.leases.remove(&region); // the next write asks for leases on these rails too
        }
        self.wake(id);
    }

    /// Carries out [`Command::Renew`].
    pub(super) fn renew(&mut self, id: SlotId, region: u64, sink: &mut impl Sink<G>) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        let keys = sink.renew(region);
        session.outbox.push_back(Outgoing::new(Body::Renewed { region, keys }, None));
        self.wake(id);
    }
}
