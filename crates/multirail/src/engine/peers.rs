//! Peers: their metadata, and the session with each.

use std::collections::HashMap;
use std::sync::Arc;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::session::{Session, State};
use super::unread::Unread;
use super::{Core, Event, PathState, PeerId, Time, path};
use crate::wire::{Metadata, RailInfo, RegionInfo, RegionKey};

/// Seconds of a day, by which clocks may differ, and of a year, after which an earlier incarnation is not looked for.
const DAY: u64 = 86_400;
const YEAR: u64 = 365 * DAY;

const TOO_MANY_REGIONS: (Errno, &str) =
    (Errno::ENOSPC, "the limit of a peer's regions is reached (Config::most_regions); forget some first");

/// A peer's regions by number.
pub type RemoteRegions = HashMap<u64, Arc<RegionInfo>>;

/// A peer, as its metadata or its greeting describes it.
pub(super) struct KnownPeer {
    pub(super) name: Arc<str>,
    pub(super) incarnation: u64,
    pub(super) rails: Arc<[RailInfo]>,
    /// The rails that the program has loaded. A confirmed greeting replaces the others, not these.
    pub(super) loaded: Option<Arc<[RailInfo]>>,
    /// Shared with those who prepare transfers, without the agent's lock.
    pub(super) regions: Arc<RemoteRegions>,
    pub(super) current: Option<SlotId>,
    /// A session for a greeting of the peer that was answered but is not confirmed yet.
    pub(super) offered: Option<SlotId>,
    /// Notifications that the program has not taken.
    pub(super) unread: Option<Box<Unread>>,
    /// The peer is known by its greeting alone: the program has not loaded its metadata.
    is_greeter: bool,
    /// The peer is in [`Core::idle_greeters`].
    is_listed: bool,
}

impl KnownPeer {
    /// The number of these rails that the program has loaded as the peer's; 0 if they contradict those. The peer may
    /// have added others behind them. A name in a greeting proves nothing, but an answer that goes to a loaded address
    /// is of no use to anybody else.
    pub(super) fn loaded_among(&self, rails: &[RailInfo]) -> usize {
        self.loaded.as_deref().filter(|loaded| rails.starts_with(loaded)).map_or(0, <[RailInfo]>::len)
    }

    /// Takes the rails of the same incarnation, if they are those that are known and more: an incarnation only adds
    /// rails. `is_proven`: the peer that has named them was reached at the loaded addresses.
    pub(super) fn has_added(&mut self, rails: &[RailInfo], is_proven: bool) {
        if rails.len() > self.rails.len() && rails.starts_with(&self.rails) {
            self.rails = rails.into();
        }
        if is_proven && self.loaded_among(rails) > 0 {
            self.load(rails);
        }
    }

    /// Takes rails that are certainly the peer's, unless more are known.
    fn load(&mut self, rails: &[RailInfo]) {
        let is_more = |loaded: &[RailInfo]| loaded.starts_with(rails) && self.rails.starts_with(loaded);
        if self.loaded.as_deref().is_some_and(is_more) {
            return; // older metadata of the same incarnation
        }
        let is_same = *self.rails == *rails;
        self.loaded = Some(if is_same { Arc::clone(&self.rails) } else { rails.into() });
    }
}

impl<G> Core<G> {
    /// The agent's metadata, with these regions.
    pub fn metadata(&self, regions: Vec<RegionInfo>) -> Metadata {
        let rails = self.rails.iter().map(|rail| rail.info.clone()).collect();
        Metadata { name: self.name.to_string(), incarnation: self.incarnation, rails, regions }
    }

    /// Loads a peer's metadata. If a known peer of this name has another incarnation, it has restarted: its session
    /// ends, and the regions given now replace its regions. Otherwise regions are added.
    ///
    /// # Errors
    /// `FI_EADDRINUSE` for our own name, `FI_ENOSPC` for too many peers or regions, `FI_EHOSTUNREACH` if none of the
    /// peer's rails reaches one of ours, `FI_ECONNRESET` if the metadata is of an earlier life of the known peer.
    pub fn load(&mut self, metadata: &Metadata) -> Result<PeerId, (Errno, &'static str)> {
        if *metadata.name == *self.name && metadata.incarnation != self.incarnation {
            return Err((Errno::EADDRINUSE, "the name is this agent's own"));
        }
        if path::pair(&self.rails, &metadata.rails).is_empty() {
            return Err((
                Errno::EHOSTUNREACH,
                "no rail of the peer has the provider and address format of a rail of this agent",
            ));
        }
        if let Some(known) = self.names.get(&*metadata.name).and_then(|&id| self.peers.get(id)) {
            if self.is_earlier(metadata.incarnation, known.incarnation) {
                return Err((
                    Errno::ECONNRESET,
                    "the metadata is of an earlier life of the peer; load its newest, or forget the peer first",
                ));
            }
            let is_new = |region: &&RegionInfo| !known.regions.contains_key(&region.id);
            let before = if known.incarnation == metadata.incarnation { known.regions.len() } else { 0 };
            let more = if before == 0 {
                metadata.regions.len()
            } else {
                metadata.regions.iter().filter(is_new).count()
            };
            if before + more > self.config.most_regions {
                return Err(TOO_MANY_REGIONS);
            }
        } else if metadata.regions.len() > self.config.most_regions {
            return Err(TOO_MANY_REGIONS);
        }
        if self.peers.len() >= self.config.most_peers && !self.names.contains_key(&*metadata.name) {
            self.forget_greeter(); // those who only greet make room for those who are loaded
        }
        let id = self.peer(&metadata.name, metadata.incarnation, &metadata.rails)?;
        let Some(peer) = self.peers.get_mut(id) else { return Err((Errno::ENOENT, "no such peer")) };
        if peer.incarnation != metadata.incarnation {
            let (old, name) = (peer.current.take(), Arc::clone(&peer.name));
            peer.regions = Arc::clone(&self.no_regions);
            (peer.incarnation, peer.rails) = (metadata.incarnation, metadata.rails.as_slice().into());
            peer.loaded = None;
            self.tell(Event::Restarted(name));
            if let Some(old) = old {
                self.end_session(old, Errno::ECONNRESET);
            }
        }
        if let Some(peer) = self.peers.get_mut(id) {
            self.greeters -= usize::from(std::mem::take(&mut peer.is_greeter));
            peer.has_added(&metadata.rails, false);
            peer.load(&metadata.rails);
            if !metadata.regions.is_empty() {
                let more = metadata.regions.iter().map(|region| (region.id, Arc::new(region.clone())));
                Arc::make_mut(&mut peer.regions).extend(more);
            }
        }
        Ok(PeerId(id))
    }

    /// Whether an incarnation is certainly of an earlier life than another: both carry a time ([`Core::born_at`]).
    /// Those of older versions are random, and mostly carry none that may be.
    fn is_earlier(&self, one: u64, other: u64) -> bool {
        let Some(born) = self.born else { return false };
        let latest = u64::from(born).saturating_add(self.now.as_secs()).saturating_add(DAY);
        let times = u64::from(born).saturating_sub(YEAR)..latest;
        let [one, other] = [one, other].map(|incarnation| incarnation >> 32);
        times.contains(&one) && times.contains(&other) && one < other
    }

    /// Forgets a region of a peer. Plans that were prepared with it remain valid. Returns whether it was known.
    pub fn forget_region(&mut self, peer: PeerId, region: u64) -> bool {
        let known = self.peers.get_mut(peer.0).filter(|peer| peer.regions.contains_key(&region));
        known.is_some_and(|peer| Arc::make_mut(&mut peer.regions).remove(&region).is_some())
    }

    /// The peer with this name, created if it is unknown.
    pub(super) fn peer(
        &mut self,
        name: &str,
        incarnation: u64,
        rails: &[RailInfo],
    ) -> Result<SlotId, (Errno, &'static str)> {
        if let Some(&id) = self.names.get(name) {
            return Ok(id);
        }
        if self.peers.len() >= self.config.most_peers {
            return Err((Errno::ENOSPC, "the limit of known peers is reached (Config::most_peers)"));
        }
        let name: Arc<str> = name.into();
        let peer = KnownPeer {
            name: Arc::clone(&name),
            incarnation,
            rails: rails.into(),
            loaded: None,
            regions: Arc::clone(&self.no_regions),
            current: None,
            offered: None,
            unread: None,
            is_greeter: false,
            is_listed: false,
        };
        let id = self.peers.insert(peer);
        self.names.insert(name, id);
        Ok(id)
    }

    /// The peer that greets under this name. If too many peers are known by their greeting alone, the one longest
    /// without an open session is forgotten, even while its greeting is being answered: otherwise unconfirmed greetings
    /// would lock others out.
    pub(super) fn greeter(
        &mut self,
        name: &str,
        incarnation: u64,
        rails: &[RailInfo],
    ) -> Result<SlotId, (Errno, &'static str)> {
        if self.names.contains_key(name) {
            return self.peer(name, incarnation, rails);
        }
        if self.greeters >= self.config.most_greeters {
            self.forget_greeter();
        }
        if self.greeters >= self.config.most_greeters {
            return Err((Errno::ENOSPC, "the limit of greeting peers is reached (Config::most_greeters)"));
        }
        let id = self.peer(name, incarnation, rails)?;
        if let Some(peer) = self.peers.get_mut(id) {
            peer.is_greeter = true;
            self.greeters += 1;
        }
        self.list_if_idle(id);
        Ok(id)
    }

    /// Forgets the greeter that has been without an open session for longest, unless transfers wait for its session, or
    /// the program has not taken its notifications.
    fn forget_greeter(&mut self) {
        while let Some(id) = self.idle_greeters.pop_front() {
            let Some(peer) = self.peers.get_mut(id) else { continue };
            peer.is_listed = false;
            let offered = peer.offered;
            let is_awaited = |id| self.sessions.get(id).is_some_and(|session| !session.transfers.is_empty());
            if !peer.is_greeter || peer.current.is_some() || offered.is_some_and(is_awaited) {
                continue; // listed again when its session ends
            }
            if peer.unread.as_ref().is_some_and(|unread| !unread.is_empty()) {
                continue; // their senders count them as done: listed again when the program has taken them
            }
            if let Some(peer) = self.peers.remove(id) {
                self.names.remove(&peer.name);
                self.greeters -= 1;
            }
            if let Some(offered) = offered {
                self.end_session(offered, Errno::ECONNABORTED);
                self.settle(offered);
            }
            return;
        }
    }

    /// Lists a greeter without an open session, so that it may be forgotten for another.
    pub(super) fn list_if_idle(&mut self, id: SlotId) {
        if let Some(peer) = self.peers.get_mut(id)
            && peer.is_greeter
            && peer.current.is_none()
            && !std::mem::replace(&mut peer.is_listed, true)
        {
            self.idle_greeters.push_back(id);
        }
    }

    /// The peer with this name.
    pub fn find(&self, name: &str) -> Option<PeerId> {
        self.names.get(name).copied().map(PeerId)
    }

    /// A region of a peer, and the peer's incarnation.
    pub fn region(&self, peer: PeerId, id: u64) -> Option<(Arc<RegionInfo>, u64)> {
        let peer = self.peers.get(peer.0)?;
        Some((Arc::clone(peer.regions.get(&id)?), peer.incarnation))
    }

    /// All regions of a peer as they are now, and the peer's incarnation. It takes the same for any number of them.
    pub fn known_regions(&self, peer: PeerId) -> (Arc<RemoteRegions>, u64) {
        let peer = self.peers.get(peer.0);
        peer.map_or_else(Default::default, |peer| (Arc::clone(&peer.regions), peer.incarnation))
    }

    /// Regions of a peer.
    pub fn regions(&self, peer: PeerId) -> Vec<Arc<RegionInfo>> {
        let mut regions: Vec<_> =
            self.peers.get(peer.0).map_or_else(Vec::new, |peer| peer.regions.values().cloned().collect());
        regions.sort_by_key(|region| region.id);
        regions
    }

    /// Starts to open a session with the peer, unless there is one.
    pub fn connect(&mut self, peer: PeerId, now: Time) {
        self.session_for(peer.0, now);
    }

    /// Whether a session with the peer is open.
    pub fn is_up(&self, peer: PeerId) -> bool {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        session.is_some_and(|session| session.state == State::Up)
    }

    /// The paths to a peer.
    pub fn paths(&self, peer: PeerId, now: Time) -> Vec<PathState> {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        let paths = session.map_or(&[][..], |session| &session.paths);
        let state = |path: &path::Path| PathState {
            rail: path.rail,
            remote: path.remote,
            up: path.is_up(now),
            bandwidth: path.bandwidth(),
            moved: path.moved,
            failures: path.failures,
            in_flight: path.in_flight,
        };
        paths.iter().map(state).collect()
    }

    /// Whether a path leads to a rail of the peer for which one of these keys is valid.
    pub fn leads_to(&self, peer: PeerId, keys: &[RegionKey]) -> bool {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        let is_its = |path: &path::Path| keys.iter().any(|key| usize::from(key.rail) == path.remote);
        session.is_some_and(|session| session.paths.iter().any(is_its))
    }

    /// Our rails that have a path to a peer.
    pub fn rails_to(&self, peer: PeerId) -> Vec<usize> {
        let session = self.peers.get(peer.0).and_then(|peer| self.sessions.get(peer.current?));
        session.into_iter().flat_map(|session| session.paths.iter().map(|path| path.rail)).collect()
    }

    /// Tells a peer that its session ends, and ends the session. Operations in flight fail with `FI_ECANCELED`.
    pub fn disconnect(&mut self, peer: PeerId, now: Time) {
        let Some(peer) = self.peers.get_mut(peer.0) else { return };
        for id in [peer.current.take(), peer.offered.take()].into_iter().flatten() {
            self.part(id, Errno::ECANCELED, now);
        }
    }

    /// Forgets a peer's metadata, and ends its session as [`Core::disconnect`] does.
    pub fn forget(&mut self, peer: PeerId, now: Time) {
        self.disconnect(peer, now);
        if let Some(peer) = self.peers.remove(peer.0) {
            self.names.remove(&peer.name);
            self.greeters -= usize::from(peer.is_greeter);
            peer.unread.iter().flat_map(|unread| unread.told()).for_each(|len| self.budget.taken(len));
        }
    }

    /// All peers.
    pub fn peers(&self) -> Vec<(Arc<str>, PeerId)> {
        self.names.iter().map(|(name, &id)| (Arc::clone(name), PeerId(id))).collect()
    }

    /// The session for posts to a peer: the existing one, the one that the peer is opening, or a new one.
    pub(super) fn session_for(&mut self, peer: SlotId, now: Time) -> Option<SlotId> {
        let found = self.peers.get(peer)?;
        let answered = found.offered.filter(|&offered| {
            let is_peers = |session: &Session| {
                session.state == State::Offered
                    && session.incarnation == found.incarnation
                    && session.incarnation != self.incarnation
            };
            self.sessions.get(offered).is_some_and(is_peers)
        });
        let session = found.current.or(answered);
        Some(session.unwrap_or_else(|| self.greet(peer, now)))
    }
}
