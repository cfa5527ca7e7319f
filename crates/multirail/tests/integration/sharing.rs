//! Peers that do not answer, and the work for the others on the same rail. The rail is simulated: it takes a number of
//! operations, and a test decides which of them end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use multirail::Way;
use multirail::engine::{
    Access, Config, Core, OpId, PeerId, Piece, Plan, RailSpec, Refused, Sink, TransferId,
};
use multirail::wire::message::Body;
use multirail::wire::{Message, RailInfo, RegionInfo, RegionKey};
use ofi::Errno;

/// Operations that the rail takes.
const OPERATIONS: u32 = 256;
/// The length of each descriptor.
const LEN: u64 = 64;
const MANY: u64 = 100_000;
const NOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(1000);

/// The hub's rail.
#[derive(Default)]
struct Rail {
    /// Accesses and messages that it has, with their peers.
    accesses: Vec<(OpId, u64)>,
    messages: Vec<(OpId, u64, Vec<u8>)>,
    /// Peers for which it has no room.
    refuses: Vec<u64>,
    /// Times that it was offered something for which it had no room.
    refusals: u32,
}

impl Rail {
    fn take(&mut self, addr: u64) -> Result<(), Refused> {
        let has_room = self.accesses.len() + self.messages.len() < OPERATIONS as usize;
        if has_room && !self.refuses.contains(&addr) {
            return Ok(());
        }
        self.refusals += 1;
        Err(Refused::Full)
    }

    fn accesses_to(&self, addr: u64) -> usize {
        self.accesses.iter().filter(|access| access.1 == addr).count()
    }
}

impl Sink<()> for Rail {
    fn access(&mut self, access: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        self.take(access.addr)?;
        self.accesses.push((access.op, access.addr));
        Ok(())
    }

    fn send(&mut self, op: OpId, _: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        match self.take(addr) {
            Ok(()) => self.messages.push((op, addr, bytes)),
            Err(refused) => return Err((refused, bytes)),
        }
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
        Ok(u64::from_le_bytes(address.try_into().unwrap()))
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

fn engine(number: u64) -> Core<()> {
    let rail = RailSpec {
        info: RailInfo { provider: "shared".into(), format: 0, address: number.to_le_bytes().to_vec() },
        bandwidth: Some(1e12),
        wide_data: true,
        severs: false,
        operations: OPERATIONS,
    };
    let mut state = number << 20 | 1;
    let random = move || {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    Core::new(&format!("agent-{number}"), vec![rail], Config::default(), Box::new(random))
}

/// An agent and its peers, numbered from 1.
struct Hub {
    core: Core<()>,
    rail: Rail,
    peers: HashMap<u64, Core<()>>,
}

impl Hub {
    fn new(peers: u64) -> Self {
        let peers = (1..=peers).map(|number| (number, engine(number))).collect();
        let mut hub = Self { core: engine(0), rail: Rail::default(), peers };
        for number in 1..=hub.peers.len() as u64 {
            let key = RegionKey { rail: 0, key: 1, base: 0 };
            let region =
                RegionInfo { id: 1, len: MANY * LEN, keys: vec![key], is_staged: false, export: None };
            let metadata = hub.peers[&number].metadata(vec![region]);
            let id = hub.core.load(&metadata).unwrap();
            hub.core.connect(id, NOW);
            while hub.speak() {}
            assert!(hub.core.is_up(id), "the session with peer {number} is open");
        }
        hub
    }

    fn peer(&self, number: u64) -> PeerId {
        self.core.find(&format!("agent-{number}")).unwrap()
    }

    /// Delivers the messages of the hub, and the answers to them. Returns whether there were any.
    fn speak(&mut self) -> bool {
        self.core.perform(NOW, &mut self.rail);
        let messages = std::mem::take(&mut self.rail.messages);
        for (op, addr, bytes) in &messages {
            self.core.ended(*op, Ok(()), NOW);
            let peer = self.peers.get_mut(addr).unwrap();
            peer.message(bytes, NOW);
            let mut answers = Rail::default();
            while peer.perform(NOW, &mut answers) {
                for (op, _, bytes) in answers.messages.drain(..) {
                    peer.ended(op, Ok(()), NOW);
                    self.core.message(&bytes, NOW);
                }
            }
        }
        !messages.is_empty()
    }

    fn perform(&mut self) {
        while self.core.perform(NOW, &mut self.rail) {}
    }

    fn post(&mut self, number: u64, count: u64) -> TransferId {
        let peer = self.peer(number);
        let (region, incarnation) = self.core.region(peer, 1).unwrap();
        let piece =
            |nth| Piece { region: 0, local: nth * LEN, remote_region: 0, remote: nth * LEN, len: LEN };
        let plan = Plan {
            way: Way::Read,
            pieces: (0..count).map(piece).collect(),
            regions: vec![region],
            near: Vec::new(),
            incarnation,
            total: count * LEN,
            guard: (),
            uses: Default::default(),
        };
        self.core.post(peer, Arc::new(plan), None, LONG, NOW).unwrap()
    }

    /// All accesses to a peer end.
    fn end(&mut self, number: u64) {
        let (ended, left) = self.rail.accesses.drain(..).partition(|access| access.1 == number);
        self.rail.accesses = left;
        let ended: Vec<_> = ended;
        ended.into_iter().for_each(|(op, _)| self.core.ended(op, Ok(()), NOW));
    }

    /// Silent peers, numbered from 1, take all places, the last of them one. Returns their number.
    fn fill(&mut self) -> u64 {
        let mut silent = 0;
        while self.rail.accesses.len() < OPERATIONS as usize {
            silent += 1;
            self.post(silent, MANY);
            self.perform();
        }
        silent
    }

    /// A peer notifies the hub, whose program takes the notification.
    fn notified_by(&mut self, number: u64) {
        let peer = self.peers.get_mut(&number).unwrap();
        let hub = peer.find("agent-0").unwrap();
        let incarnation = self.core.metadata(Vec::new()).incarnation;
        let plan = Plan {
            way: Way::Write,
            pieces: Vec::new(),
            regions: Vec::new(),
            near: Vec::new(),
            incarnation,
            total: 0,
            guard: (),
            uses: Default::default(),
        };
        peer.post(hub, Arc::new(plan), Some(b"new".to_vec()), LONG, NOW).unwrap();
        let mut rail = Rail::default();
        while peer.perform(NOW, &mut rail) {
            for (op, _, bytes) in rail.messages.drain(..) {
                peer.ended(op, Ok(()), NOW);
                self.core.message(&bytes, NOW);
            }
        }
        assert_eq!(self.core.take_notification().unwrap().bytes, b"new");
    }

    fn is_done(&self, id: TransferId) -> bool {
        self.core.progress(id).unwrap().outcome.is_some()
    }
}

#[test]
fn silent_peers_leave_places_to_the_others() {
    const SILENT: u64 = 8;
    let mut hub = Hub::new(SILENT + 1);
    for number in 1..=SILENT {
        let before = hub.rail.accesses.len();
        hub.post(number, MANY);
        hub.perform();
        let (took, free) = (hub.rail.accesses_to(number), OPERATIONS as usize - before);
        assert!(took >= 1 && took <= free / 3 + 1, "silent peer {number} has {took} of {free} free places");
        let id = hub.post(SILENT + 1, 1);
        hub.perform();
        assert_eq!(hub.rail.accesses_to(SILENT + 1), 1, "beside {number} silent peers");
        hub.end(SILENT + 1);
        hub.perform();
        assert!(hub.is_done(id));
    }
    assert_eq!(hub.rail.refusals, 0, "the rail is offered no more than it takes");
    assert!(!hub.core.is_stalled(), "ends of operations make room, and are reported");
}

/// One peer alone is not held back: as operations end, others are posted.
#[test]
fn a_peer_alone_goes_on() {
    let mut hub = Hub::new(1);
    let id = hub.post(1, MANY);
    let mut rounds = 0;
    while !hub.is_done(id) {
        hub.perform();
        hub.end(1);
        rounds += 1;
        assert!(rounds <= MANY / u64::from(OPERATIONS / 4), "{rounds} rounds");
    }
    assert_eq!(hub.rail.refusals, 0);
}

#[test]
fn what_the_rail_refuses_for_one_peer_stands_before_no_other() {
    let mut hub = Hub::new(2);
    hub.rail.refuses = vec![1];
    let refused = hub.post(1, 10);
    hub.perform();
    assert!(hub.rail.refusals > 0 && hub.core.is_stalled());
    let id = hub.post(2, 1);
    hub.perform();
    assert_eq!(hub.rail.accesses_to(2), 1);
    hub.end(2);
    hub.perform();
    assert!(hub.is_done(id) && hub.core.is_stalled());
    // There is room for the first again: everything goes, in order.
    hub.rail.refuses.clear();
    hub.perform();
    assert_eq!(hub.rail.accesses_to(1), 10);
    hub.end(1);
    hub.perform();
    assert!(hub.is_done(refused) && !hub.core.is_stalled());
}

/// A rail without room for many peers is not offered the work of each in each call, and every peer has its turn.
#[test]
fn refusals_cost_the_same_with_many_peers() {
    const PEERS: u64 = 300;
    let mut hub = Hub::new(PEERS);
    hub.rail.refuses = (1..PEERS).collect();
    let ids: Vec<_> = (1..PEERS).map(|number| hub.post(number, 1)).collect();
    hub.perform();
    let healthy = hub.post(PEERS, 1);
    for _ in 0..PEERS {
        let before = hub.rail.refusals;
        hub.core.perform(NOW, &mut hub.rail);
        let refusals = hub.rail.refusals - before;
        assert!(refusals <= 8, "{refusals} refusals in one call");
    }
    assert_eq!(hub.rail.accesses_to(PEERS), 1, "the healthy peer has had its turn");
    hub.rail.refuses.clear();
    for _ in 0..3 {
        hub.perform();
        (1..=PEERS).for_each(|number| hub.end(number));
    }
    hub.perform();
    assert!(!hub.core.is_stalled() && ids.iter().all(|&id| hub.is_done(id)) && hub.is_done(healthy));
}

/// All places are taken. Whoever waits gets a place as soon as one is free.
#[test]
fn those_without_a_place_get_the_next_one() {
    const PEERS: u64 = 60;
    let mut hub = Hub::new(PEERS);
    let silent = hub.fill();
    assert_eq!(hub.rail.accesses_to(silent), 1, "the last place");
    let waiting = [silent + 1, silent + 2].map(|number| hub.post(number, 1));
    hub.perform();
    assert_eq!(hub.rail.accesses.len(), OPERATIONS as usize);
    hub.end(silent);
    hub.perform();
    assert_eq!((hub.rail.accesses_to(silent + 1), hub.rail.accesses_to(silent + 2)), (1, 0));
    hub.end(silent + 1);
    hub.perform();
    hub.end(silent + 2);
    hub.perform();
    assert!(waiting.iter().all(|&id| hub.is_done(id)));
    assert_eq!(hub.rail.refusals, 0);
}

/// A session that owes its peer no more than an acknowledgement waits for a place too.
#[test]
fn an_acknowledgement_gets_the_next_place() {
    let mut hub = Hub::new(60);
    let silent = hub.fill();
    hub.notified_by(silent + 1);
    hub.perform();
    assert!(hub.rail.messages.is_empty(), "there is no place");
    hub.end(silent);
    hub.perform();
    let to: Vec<_> = hub.rail.messages.iter().map(|message| message.1).collect();
    assert_eq!(to, [silent + 1]);
    assert_eq!(hub.rail.refusals, 0);
}

/// The place of a session's own access, too, although none of its transfers has anything left to post.
#[test]
fn an_acknowledgement_gets_the_place_of_its_session() {
    let mut hub = Hub::new(60);
    hub.post(60, 2);
    hub.fill();
    hub.notified_by(60);
    hub.perform();
    assert!(hub.rail.messages.is_empty(), "there is no place");
    let own = hub.rail.accesses.iter().position(|access| access.1 == 60).unwrap();
    let (op, _) = hub.rail.accesses.remove(own);
    hub.core.ended(op, Ok(()), NOW);
    hub.perform();
    let to: Vec<_> = hub.rail.messages.iter().map(|message| message.1).collect();
    assert_eq!(to, [60]);
}

#[test]
fn those_with_nothing_left_to_do_use_up_no_turn() {
    let mut hub = Hub::new(60);
    let silent = hub.fill();
    let [cancelled, other] = [silent + 1, silent + 2].map(|number| hub.post(number, 1));
    hub.perform();
    hub.core.cancel(cancelled);
    hub.perform();
    hub.end(silent);
    hub.perform();
    assert_eq!((hub.rail.accesses_to(silent + 1), hub.rail.accesses_to(silent + 2)), (0, 1));
    hub.end(silent + 2);
    hub.perform();
    assert!(hub.is_done(other));
}

/// Strangers that read no answers have their quarter of the places. One more that waits cannot use a place that is
/// free, and is not offered it.
#[test]
fn a_stranger_that_may_not_be_answered_takes_nobodys_turn() {
    let mut hub = Hub::new(60);
    let to = hub.core.metadata(Vec::new()).incarnation;
    let strangers = 1000..1000 + u64::from(OPERATIONS / 4) + 1;
    for number in strangers {
        let rail = RailInfo { provider: "shared".into(), format: 0, address: number.to_le_bytes().to_vec() };
        let (name, tag) = (format!("stranger-{number}"), number << 32);
        let hello = Body::Hello { name, incarnation: number, tag, rails: vec![rail] };
        hub.core.message(&Message { to, body: hello }.encode(), NOW);
    }
    hub.perform();
    assert_eq!(hub.rail.messages.len(), OPERATIONS as usize / 4, "one waits");
    let mut silent = 0;
    while hub.rail.accesses.len() + hub.rail.messages.len() < OPERATIONS as usize {
        silent += 1;
        hub.post(silent, MANY);
        hub.perform();
    }
    let other = hub.post(silent + 1, 1);
    hub.perform();
    hub.end(silent);
    hub.perform();
    assert_eq!(hub.rail.accesses_to(silent + 1), 1);
    hub.end(silent + 1);
    hub.perform();
    assert!(hub.is_done(other));
    // Once a stranger has read its answer, the one that waits gets its own.
    let (op, ..) = hub.rail.messages.remove(0);
    hub.core.ended(op, Ok(()), NOW);
    hub.perform();
    assert_eq!(hub.rail.messages.last().map(|message| message.1), Some(1000 + u64::from(OPERATIONS / 4)));
}

#[test]
fn refused_work_of_an_ended_transfer_is_not_posted() {
    let mut hub = Hub::new(1);
    hub.rail.refuses = vec![1];
    let id = hub.post(1, 10);
    hub.perform();
    assert!(hub.core.is_stalled());
    hub.rail.refuses.clear();
    hub.core.cancel(id);
    hub.perform();
    assert_eq!(hub.rail.accesses_to(1), 0);
    assert!(hub.core.progress(id).unwrap().is_quiet && !hub.core.is_stalled());
}
