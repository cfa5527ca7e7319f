//! Rails beyond those that a session began with, and keys beyond those of a region's metadata.
//!
//! Peers keep keys by the numbers of rails, so a rail has its number for the agent's life, and one that is opened later
//! has the next number. Each peer with an open session is told its address ([`Body::Rails`]). The peer takes it into
//! its list of this agent's rails, and answers with the length of the list ([`Body::Taken`]). From then on both ends
//! pair all rails, as a new session would: a path that the new pairing lacks is *surplus*, and gets nothing new as long
//! as the paths in its place work. An agent of an older version drops the message as malformed and does not answer, so
//! its session goes on with the paths that it has; its next session has all, since greetings and metadata name all
//! rails.
//!
//! A peer asks for the keys on a new rail, region by region, when it next uses the region ([`Body::Renew`]), and uses
//! the other rails until the answer. The owner registers the region on the rail for the answer.
//!
//! A region's metadata has keys on the rails near it alone. If a chunk has failed on the paths to those, or they rest,
//! while another path works, we ask the owner for keys on all its rails ([`Body::Widen`]): it registers the region
//! there, and the chunk goes on. An owner of an older version has given all its keys already, and drops the request.
//!
//! A peer can make a session know [`MAX_RAILS`](crate::wire::MAX_RAILS) rails, and have [`MAX_PATHS`] paths. What
//! contradicts the rails that are known, or leaves some out, is dropped and counted.

use std::collections::HashMap;

use ofi_core::slots::SlotId;

use super::fence::Lease;
use super::session::{Outgoing, Session};
use super::transfer::{Chunk, Transfer};
use super::{Command, Core, PathId, Piece, Plan, RailSpec, Sink, Time, path, shares};
use crate::near::{RailSet, bit};
use crate::wire::message::Body;
use crate::wire::{MAX_RAILS, RailInfo, RegionKey};

/// Maximum paths of a session to which rails are added: the paths on which a chunk has failed are bits of a word.
const MAX_PATHS: usize = 64;

/// A peer's rails that were opened after the session.
#[derive(Debug, Default)]
pub(super) struct Later {
    /// Those rails.
    rails: RailSet,
    /// Keys of the peer's regions with those on these rails.
    pub(super) keys: HashMap<u64, Lease>,
}

impl Session {
    /// The peer's rails that were opened after the session.
    #[inline]
    pub(super) fn later_rails(&self) -> RailSet {
        self.later.as_ref().map_or(0, |later| later.rails)
    }

    /// Uses surplus paths again on whose rails no other path works, so that a path which does not work costs no rail.
    pub(super) fn use_surplus(&mut self, now: Time) {
        let is_inserting = self.inserting > 0;
        let works = |path: &&path::Path| {
            (path.addr.is_some() || is_inserting) && path.rests_until() <= now && !path.is_shut()
        };
        let (ours, theirs) =
            self.paths.iter().filter(works).fold((0, 0), |(ours, theirs): (RailSet, _), path| {
                (ours | bit(path.rail), theirs | bit(path.remote))
            });
        for path in self.paths.iter_mut().filter(|path| path.is_surplus) {
            path.is_surplus = ours & bit(path.rail) != 0 && theirs & bit(path.remote) != 0;
        }
    }

    /// Asks for the keys of a chunk's remote region on the peer's later rails, unless that was done. Returns whether
    /// there is a message to send.
    #[cold]
    pub(super) fn renews<G>(&mut self, transfer: &Transfer<G>, chunk: &Chunk) -> bool {
        let (Some(later), Some(region)) = (&mut self.later, transfer.region_of(chunk)) else { return false };
        if later.keys.contains_key(&region) {
            return false;
        }
        later.keys.insert(region, Lease::Asked(Time::ZERO)); // without a deadline: other rails serve meanwhile
        self.outbox.push_back(Outgoing::new(Body::Renew(region), None));
        true
    }
}

impl<G> Core<G> {
    /// Adds a rail that was opened now, and tells the peers. Returns its number; `None` if the agent has as many rails
    /// as it may have.
    pub fn add_rail(&mut self, spec: RailSpec) -> Option<usize> {
        let number = self.rails.len();
        if number >= MAX_RAILS {
            return None;
        }
        self.places.add_rail(&spec);
        self.stalled.add_rail();
        self.rests_until.push(Time::ZERO);
        self.latencies.push(Default::default());
        self.rails.push(spec);
        for id in self.sessions.ids(Session::is_up) {
            self.announce(id);
        }
        Some(number)
    }

    /// Tells the peer of an open session of the rails that it may not know.
    pub(super) fn announce(&mut self, id: SlotId) {
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        if usize::from(session.told) == self.rails.len() {
            return;
        }
        session.outbox.retain(|outgoing| !matches!(outgoing.body, Body::Rails { .. }));
        let rails = self.rails[self.first_rails..].iter().map(|rail| rail.info.clone()).collect();
        let body = Body::Rails { first: self.first_rails as u8, rails };
        session.outbox.push_back(Outgoing::new(body, None));
        self.wake(id);
    }

    /// The peer knows this number of our rails.
    pub(super) fn taken(&mut self, id: SlotId, count: u8) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        if usize::from(count) > self.rails.len() {
            self.counts.refused += 1;
            return;
        }
        if count > session.told {
            session.told = count;
            self.pair_again(id);
        }
    }

    /// Handles the addresses of the peer's rails from `first` on.
    pub(super) fn told_rails(&mut self, id: SlotId, first: usize, rails: &[RailInfo]) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let known = session.rails.len();
        let is_consistent =
            session.rails.get(first..).is_some_and(|known| known.iter().zip(rails).all(|(a, b)| a == b));
        if !is_consistent {
            self.counts.refused += 1;
            return;
        }
        session.owes_taken = true; // the answer may have been lost
        let Some(new) = rails.get(known - first..).filter(|new| !new.is_empty()) else {
            self.wake(id);
            return;
        };
        let before = session.rails.clone();
        session.rails.extend_from_slice(new);
        let later = session.later.get_or_insert_default();
        later.rails |= (known..session.rails.len()).fold(0, |set, rail| set | bit(rail));
        later.keys.clear();
        session.wide.clear(); // what was given as keys on all rails lacks these
        let incarnation = session.incarnation;
        if let Some(peer) = session.peer.and_then(|peer| self.peers.get_mut(peer))
            && peer.incarnation == incarnation
        {
            // For the next session. It is answered as that of a loaded peer if this one is at the loaded addresses.
            let is_proven = peer.loaded_among(&before) == before.len();
            peer.has_added(&session.rails, is_proven);
        }
        self.pair_again(id);
    }

    /// Adds the paths that a session of the rails which both ends know now would have.
    fn pair_again(&mut self, id: SlotId) {
        let (able_until, now) = (self.now + self.patience(), self.now);
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_up()) else { return };
        let mut wanted = path::pair(&self.rails[..session.told.into()], &session.rails);
        let pairs = wanted.len();
        let is_wide = |path: &path::Path| self.rails[path.rail].wide_data;
        if session.paths.iter().all(is_wide) {
            wanted.retain(is_wide); // the writes of a counted transfer may use any path
        }
        let before = session.paths.len();
        let same =
            |one: &path::Path, other: &path::Path| (one.rail, one.remote) == (other.rail, other.remote);
        let mut is_whole = wanted.len() == pairs;
        for fresh in &wanted {
            match session.paths.iter().position(|path| same(path, fresh)) {
                Some(at) => shares::adopt(&mut session.paths[at], fresh),
                None if session.paths.len() >= MAX_PATHS => is_whole = false,
                None => {
                    let RailInfo { format, address, .. } = session.rails[fresh.remote].clone();
                    let path = PathId { session: id, path: session.paths.len() };
                    self.commands.push_back(Command::Insert { path, rail: fresh.rail, format, address });
                    session.paths.push(fresh.clone());
                    session.inserting += 1;
                }
            }
        }
        for path in &mut session.paths {
            path.is_surplus = is_whole && !wanted.iter().any(|fresh| same(path, fresh));
        }
        session.use_surplus(now);
        if before == 1 && session.paths.len() > 1 {
            session.introduce(able_until);
        }
        tracing::debug!(
            target: "multirail", paths = session.paths.len(), before, "rails of a session were opened later"
        );
        self.wake(id);
    }

    /// Handles a region's keys with those on later rails.
    pub(super) fn renewed(&mut self, id: SlotId, region: u64, keys: Vec<RegionKey>) {
        let Some(session) = self.sessions.get_mut(id) else { return };
        let known = session.later.as_mut().and_then(|later| later.keys.get_mut(&region));
        if known.is_some_and(|known| known.is_answered(keys)) {
            session.leases.remove(&region); // the next write asks for leases on these rails too
        }
        self.wake(id);
    }
}

impl Lease {
    /// Takes the answer to a request for keys. Returns whether it is news.
    ///
    /// The answer to an earlier request may come after the peer has opened a rail and was asked again: the one that
    /// names more rails is the newer one. So answers without a request are taken [`MAX_RAILS`] times, each of which
    /// lets this end ask for leases once more, and the table is no larger than the peer's metadata.
    fn is_answered(&mut self, keys: Vec<RegionKey>) -> bool {
        let is_news = match self {
            Self::Asked(_) => true,
            Self::Held(held) => keys.len() > held.len(),
        };
        if is_news {
            *self = Self::Held(keys);
        }
        is_news
    }
}

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
        if session.wide.get_mut(&region).is_some_and(|wide| wide.is_answered(keys)) {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ofi::Errno;

    use super::super::{Access, Config, OpId, PeerId, Plan, Refused, Sink};
    use super::*;
    use crate::wire::Message;

    const NOW: Duration = Duration::from_secs(1);

    /// Rails that take everything: the messages of one agent.
    #[derive(Default)]
    struct Sent(Vec<(OpId, Vec<u8>)>);

    impl Sink<()> for Sent {
        fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
            Ok(())
        }

        fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
            self.0.push((op, bytes));
            Ok(())
        }

        fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
            Ok(u64::from(address[0]))
        }

        fn remove(&mut self, _: usize, _: u64) {}
    }

    fn spec(address: u8) -> RailSpec {
        let info = RailInfo { provider: "none".into(), format: 0, address: vec![address] };
        RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: 256 }
    }

    fn agent(name: &str, seed: u64) -> Core<()> {
        agent_of(name, seed, vec![spec(seed as u8)])
    }

    /// Delivers the messages of `from` that `passes`. Returns whether there were any.
    fn speak(from: &mut Core<()>, to: &mut Core<()>, passes: impl Fn(&Body) -> bool) -> bool {
        let mut sent = Sent::default();
        while from.perform(NOW, &mut sent) {}
        for (op, bytes) in &sent.0 {
            from.ended(*op, Ok(()), NOW);
            if passes(&Message::parse(bytes).unwrap().body) {
                to.message(bytes, NOW);
            }
        }
        !sent.0.is_empty()
    }

    fn settle(alice: &mut Core<()>, bob: &mut Core<()>, passes: impl Fn(&Body) -> bool) {
        while speak(alice, bob, &passes) | speak(bob, alice, &passes) {}
    }

    fn connected(passes: impl Fn(&Body) -> bool) -> (Core<()>, Core<()>, [PeerId; 2]) {
        let (mut alice, mut bob) = (agent("alice", 1), agent("bob", 2));
        let peer = alice.load(&bob.metadata(Vec::new())).unwrap();
        alice.connect(peer, NOW);
        settle(&mut alice, &mut bob, passes);
        let other = bob.find("alice").unwrap();
        assert!(alice.is_up(peer) && bob.is_up(other));
        (alice, bob, [peer, other])
    }

    fn pairs(core: &Core<()>, peer: PeerId) -> Vec<(usize, usize)> {
        let mut up: Vec<_> = core.paths(peer, NOW).into_iter().filter(|path| path.up).collect();
        up.sort_unstable_by_key(|path| (path.rail, path.remote));
        up.iter().map(|path| (path.rail, path.remote)).collect()
    }

    #[test]
    fn rails_that_both_ends_open_later_are_paired_with_each_other() {
        let (mut alice, mut bob, [peer, other]) = connected(|_| true);
        alice.add_rail(spec(11)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!((pairs(&alice, peer), pairs(&bob, other)), (vec![(0, 0), (1, 0)], vec![(0, 0), (0, 1)]));
        bob.add_rail(spec(12)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!(pairs(&alice, peer), [(0, 0), (1, 1)]);
        assert_eq!(pairs(&bob, other), [(0, 0), (1, 1)]);
        // At the same time.
        alice.add_rail(spec(13)).unwrap();
        bob.add_rail(spec(14)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!(pairs(&alice, peer), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(pairs(&bob, other), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!(alice.counts(), bob.counts());
        assert_eq!((alice.counts().malformed, alice.counts().refused), (0, 0));
    }

    /// One of the older version drops what it does not know, and never sends it.
    #[test]
    fn a_peer_of_an_older_version_keeps_its_paths_until_its_next_session() {
        let is_known = |body: &Body| !matches!(body, Body::Rails { .. } | Body::Taken(_));
        let (mut alice, mut bob, [peer, other]) = connected(is_known);
        alice.add_rail(spec(11)).unwrap();
        settle(&mut alice, &mut bob, is_known);
        assert_eq!((pairs(&alice, peer), pairs(&bob, other)), (vec![(0, 0)], vec![(0, 0)]));
        alice.disconnect(peer, NOW);
        settle(&mut alice, &mut bob, is_known);
        alice.connect(peer, NOW);
        settle(&mut alice, &mut bob, is_known);
        assert_eq!((pairs(&alice, peer), pairs(&bob, other)), (vec![(0, 0), (1, 0)], vec![(0, 0), (0, 1)]));
    }

    #[test]
    fn an_agent_has_so_many_rails_and_no_more() {
        let (mut alice, mut bob, [peer, other]) = connected(|_| true);
        for nth in 1..MAX_RAILS {
            assert_eq!(alice.add_rail(spec(nth as u8 + 10)), Some(nth));
            settle(&mut alice, &mut bob, |_| true);
        }
        assert_eq!(alice.add_rail(spec(99)), None);
        assert_eq!((pairs(&alice, peer).len(), pairs(&bob, other).len()), (MAX_RAILS, MAX_RAILS));
    }

    #[test]
    fn what_a_hostile_peer_says_of_its_rails_is_bounded_and_counted() {
        let (_, mut bob, [_, other]) = connected(|_| true);
        let id = bob.peers.get(other.0).unwrap().current.unwrap();
        let tag = bob.sessions.get(id).unwrap().tag;
        let say = |bob: &mut Core<()>, body: Body| {
            bob.message(&Message { to: tag, body }.encode(), NOW);
            let mut sent = Sent::default();
            while bob.perform(NOW, &mut sent) {}
            sent.0.iter().for_each(|(op, _)| bob.ended(*op, Ok(()), NOW));
            sent.0.into_iter().map(|(_, bytes)| Message::parse(&bytes).unwrap().body).collect::<Vec<_>>()
        };
        let rails = |first, addresses: &[u8]| {
            let rails = addresses.iter().map(|&address| spec(address).info).collect();
            Body::Rails { first, rails }
        };
        // With a gap; with another address for a known one; of rails that we do not have.
        assert!(say(&mut bob, rails(2, &[9])).is_empty());
        say(&mut bob, rails(1, &[9]));
        assert!(say(&mut bob, rails(1, &[8, 7])).is_empty());
        assert!(say(&mut bob, Body::Taken(2)).is_empty());
        assert_eq!(bob.counts().refused, 3);
        assert_eq!(pairs(&bob, other), [(0, 0), (0, 1)]);
        for nth in 2..MAX_RAILS as u8 {
            say(&mut bob, rails(nth, &[nth + 40]));
        }
        let known = bob.paths(other, NOW).len();
        assert!(known <= MAX_PATHS, "{known} paths");
        for _ in 0..1000 {
            // An answer for each, since the last one may have been lost.
            let answers = say(&mut bob, rails(1, &[9]));
            assert_eq!(answers, [Body::Taken(MAX_RAILS as u8)]);
        }
        assert!(say(&mut bob, Body::Renewed { region: 7, keys: Vec::new() }).is_empty());
        let session = bob.sessions.get(id).unwrap();
        assert_eq!((session.paths.len(), session.rails.len(), session.outbox.len()), (known, MAX_RAILS, 0));
        assert!(session.later.as_ref().unwrap().keys.is_empty());
        // More than an agent may have is no message.
        let mut long = Message { to: tag, body: rails(1, &[9]) }.encode();
        long[16] = MAX_RAILS as u8;
        bob.message(&long, NOW);
        assert_eq!((bob.counts().malformed, bob.counts().refused), (1, 3));
    }

    /// Otherwise whoever answers it would be answered behind strangers in its next session.
    #[test]
    fn a_loaded_peer_with_a_later_rail_is_no_stranger() {
        let (mut alice, mut bob, [peer, _]) = connected(|_| true);
        bob.add_rail(spec(12)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        let rails: Vec<RailInfo> = bob.metadata(Vec::new()).rails;
        assert_eq!(rails.len(), 2);
        assert_eq!(alice.peers.get(peer.0).unwrap().loaded_among(&rails), 2);
    }

    fn kind(provider: &str, address: u8) -> RailSpec {
        let mut spec = spec(address);
        spec.info.provider = provider.into();
        spec
    }

    fn agent_of(name: &str, seed: u64, rails: Vec<RailSpec>) -> Core<()> {
        let mut next = seed << 40;
        let random = move || {
            next += 1 << 32 | 1;
            next
        };
        Core::new(name, rails, Config::default(), Box::new(random))
    }

    /// Regression test: such a greeting was a stray, since the answerer paired the rails of its start alone.
    #[test]
    fn a_peer_that_reaches_only_a_later_rail_is_answered() {
        let mut alice = agent_of("alice", 1, vec![kind("verbs", 1)]);
        let mut bob = agent_of("bob", 2, vec![kind("udp", 2)]);
        bob.add_rail(kind("verbs", 12)).unwrap();
        bob.add_rail(kind("verbs", 13)).unwrap();
        let peer = alice.load(&bob.metadata(Vec::new())).unwrap();
        alice.connect(peer, NOW);
        settle(&mut alice, &mut bob, |_| true);
        assert!(alice.is_up(peer));
        let other = bob.find("alice").unwrap();
        assert_eq!((pairs(&alice, peer), pairs(&bob, other)), (vec![(0, 1), (0, 2)], vec![(1, 0), (2, 0)]));
        assert_eq!(bob.counts().strays, 0);
    }

    /// Regression test: the answer went over the dead rail alone.
    #[test]
    fn a_greeting_is_answered_over_a_later_rail_while_the_first_cannot_be_driven() {
        let mut alice = agent_of("alice", 1, vec![kind("udp", 1), kind("verbs", 3)]);
        let mut bob = agent_of("bob", 2, vec![kind("udp", 2)]);
        bob.add_rail(kind("verbs", 12)).unwrap();
        bob.rail_failed(0, Errno::EIO, NOW + Duration::from_secs(60), NOW);
        let peer = alice.load(&bob.metadata(Vec::new())).unwrap();
        alice.connect(peer, NOW);
        speak(&mut alice, &mut bob, |_| true);
        let other = bob.find("alice").unwrap();
        let offered = bob.peers.get(other.0).unwrap().offered.unwrap();
        let rails: Vec<_> = bob.sessions.get(offered).unwrap().paths.iter().map(|path| path.rail).collect();
        assert_eq!(rails, [0, 1]);
        settle(&mut alice, &mut bob, |_| true);
        assert!(alice.is_up(peer) && bob.is_up(other));
    }

    /// Regression test: a path that the new pairing lacked was given up before the one in its place worked.
    #[test]
    fn a_surplus_path_serves_while_the_one_in_its_place_does_not_work() {
        let (mut alice, mut bob, [peer, _]) = connected(|_| true);
        bob.add_rail(spec(12)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!(pairs(&alice, peer), [(0, 0), (0, 1)]);
        alice.add_rail(spec(11)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!(pairs(&alice, peer), [(0, 0), (1, 1)]);
        let later = NOW + Duration::from_secs(60);
        alice.rail_failed(1, Errno::EIO, later, NOW);
        assert_eq!(pairs(&alice, peer), [(0, 0), (0, 1)], "the peer's second rail is not lost");
        alice.add_rail(spec(13)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert!(pairs(&alice, peer).contains(&(0, 1)), "nor by another pairing");
        // Both paths of the pairing rest.
        let (mut alice, mut bob, [peer, _]) = connected(|_| true);
        alice.add_rail(spec(11)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        bob.add_rail(spec(12)).unwrap();
        settle(&mut alice, &mut bob, |_| true);
        assert_eq!(pairs(&alice, peer), [(0, 0), (1, 1)]);
        let id = alice.peers.get(peer.0).unwrap().current.unwrap();
        let session = alice.sessions.get_mut(id).unwrap();
        session.paths.iter_mut().filter(|path| !path.is_surplus).for_each(|path| path.rest_until(later));
        alice.check_paths(id, Errno::EIO, NOW);
        assert!(alice.is_up(peer));
        assert_eq!(pairs(&alice, peer), [(1, 0)]);
    }

    /// Regression test: the answer to the request before the peer opened a rail was taken for that to the next one.
    #[test]
    fn the_answer_that_names_more_rails_is_taken() {
        let keys = |count: u8| (0..count).map(|rail| RegionKey { rail, key: 7, base: 0 }).collect::<Vec<_>>();
        let (_, mut bob, [_, other]) = connected(|_| true);
        let id = bob.peers.get(other.0).unwrap().current.unwrap();
        let session = bob.sessions.get_mut(id).unwrap();
        session.later.get_or_insert_default().keys.insert(7, Lease::Asked(Time::ZERO));
        session.wide.insert(7, Lease::Asked(Time::ZERO));
        for (count, wanted) in [(1, 1), (3, 3), (2, 3), (3, 3)] {
            bob.renewed(id, 7, keys(count));
            bob.widened(id, 7, keys(count));
            let session = bob.sessions.get(id).unwrap();
            let held = |lease: Option<&Lease>| match lease {
                Some(Lease::Held(keys)) => keys.len(),
                _ => 0,
            };
            let renewed = held(session.later.as_ref().unwrap().keys.get(&7));
            assert_eq!((renewed, held(session.wide.get(&7))), (wanted, wanted));
        }
    }

    /// Regression test: it greeted as a stranger, and its new rail was unknown in the next session.
    #[test]
    fn a_loaded_peer_that_has_added_a_rail_between_sessions_is_known() {
        let (mut alice, mut bob) = (agent("alice", 1), agent("bob", 2));
        let old = bob.metadata(Vec::new());
        let peer = alice.load(&old).unwrap();
        bob.add_rail(spec(12)).unwrap();
        let new = bob.metadata(Vec::new());
        let other = bob.load(&alice.metadata(Vec::new())).unwrap();
        bob.connect(other, NOW);
        speak(&mut bob, &mut alice, |_| true);
        let offered = alice.peers.get(peer.0).unwrap().offered.unwrap();
        assert!(alice.sessions.get(offered).unwrap().is_known, "it is answered before strangers");
        settle(&mut alice, &mut bob, |_| true);
        let known = |alice: &Core<()>| {
            let found = alice.peers.get(peer.0).unwrap();
            (found.rails.len(), found.loaded_among(&new.rails))
        };
        assert_eq!(known(&alice), (2, 2));
        // Older metadata takes nothing away.
        alice.load(&old).unwrap();
        assert_eq!(known(&alice), (2, 2));
        // Newer metadata is taken while there is no session.
        let mut carol = agent("carol", 3);
        let peer = carol.load(&old).unwrap();
        carol.load(&new).unwrap();
        assert_eq!(carol.peers.get(peer.0).unwrap().rails.len(), 2);
        // A name in a greeting proves nothing: only an answer to a loaded address is one to a known peer.
        let mut liar = agent("bob", 9);
        liar.incarnation = bob.incarnation;
        let mut dave = agent("dave", 4);
        let peer = dave.load(&old).unwrap();
        let victim = liar.load(&dave.metadata(Vec::new())).unwrap();
        liar.connect(victim, NOW);
        speak(&mut liar, &mut dave, |_| true);
        let offered = dave.peers.get(peer.0).unwrap().offered.unwrap();
        assert!(!dave.sessions.get(offered).unwrap().is_known);
        settle(&mut dave, &mut liar, |_| true);
        assert_eq!(dave.peers.get(peer.0).unwrap().loaded_among(&old.rails), 1);
    }
}
