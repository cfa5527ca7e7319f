//! The effects of a process that knows an engine's incarnation and greets under one name after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Access, Config, Core, OpId, Plan, RailSpec, Refused, Sink};
use multirail::wire::message::{Body, Reason};
use multirail::wire::{Message, Metadata, RailInfo, RegionInfo};
use ofi::Errno;

/// Maximum peers that are known by their greeting alone.
const MAX_GREETERS: usize = 50;

/// Rails that keep the messages they are given.
#[derive(Default)]
struct Kept(VecDeque<(OpId, Vec<u8>)>);

impl Sink<()> for Kept {
    fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        unreachable!("no transfer was posted")
    }

    fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.0.push_back((op, bytes));
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
        Ok(7)
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

fn rail() -> RailInfo {
    RailInfo { provider: "kept".into(), format: 0, address: vec![1; 32] }
}

fn hub() -> Core<()> {
    hub_with(Config { most_greeters: MAX_GREETERS, ..Config::default() })
}

fn hub_with(config: Config) -> Core<()> {
    let rail = RailSpec { info: rail(), bandwidth: None, wide_data: true, severs: false, operations: 1024 };
    let mut state = 0x1234_5678_u64;
    let random = move || {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    Core::new("hub", vec![rail], config, Box::new(random))
}

/// Greets by a name, and confirms a welcome if `confirm` is set. Returns the answers.
fn greet(hub: &mut Core<()>, name: &str, confirm: bool, now: Duration) -> Vec<Body> {
    greet_as(hub, name, 99, confirm, now)
}

/// As `greet`, from this incarnation.
fn greet_as(hub: &mut Core<()>, name: &str, incarnation: u64, confirm: bool, now: Duration) -> Vec<Body> {
    let to = hub.metadata(Vec::new()).incarnation;
    let hello = Body::Hello { name: name.into(), incarnation, tag: 7 << 32, rails: vec![rail()] };
    hub.message(&Message { to, body: hello }.encode(), now);
    let mut answers = Vec::new();
    let mut kept = Kept::default();
    hub.perform(now, &mut kept);
    while let Some((op, bytes)) = kept.0.pop_front() {
        hub.ended(op, Ok(()), now);
        let body = Message::parse(&bytes).unwrap().body;
        if let (Body::Welcome { tag, .. }, true) = (&body, confirm) {
            hub.message(&Message { to: *tag, body: Body::Confirm }.encode(), now);
        }
        answers.push(body);
        hub.perform(now, &mut kept);
    }
    answers
}

fn metadata(name: &str) -> Metadata {
    Metadata { name: name.into(), incarnation: 99, rails: vec![rail()], regions: Vec::new() }
}

#[test]
fn greeters_are_few_and_those_who_are_loaded_stay() {
    let (mut hub, mut now) = (hub(), Duration::from_secs(1));
    let loaded = hub.load(&metadata("loaded")).unwrap();
    // One peer has a session; another greeted first and was then loaded.
    assert!(matches!(greet(&mut hub, "open", true, now)[..], [Body::Welcome { .. }, Body::Ready]));
    let open = hub.find("open").unwrap();
    assert!(hub.is_up(open));
    greet(&mut hub, "greeted and loaded", true, now);
    let both = hub.load(&metadata("greeted and loaded")).unwrap();
    for round in 0..40 {
        for number in 0..MAX_GREETERS {
            greet(&mut hub, &format!("nobody-{round}-{number}"), false, now);
            assert!(hub.peers().len() <= MAX_GREETERS + 2, "{} peers", hub.peers().len());
        }
        // The offers have expired.
        now += Duration::from_secs(20);
        hub.tick(now);
        hub.perform(now, &mut Kept::default());
    }
    assert!(hub.is_up(open) && hub.is_up(both));
    for (name, peer) in [("loaded", loaded), ("open", open), ("greeted and loaded", both)] {
        assert_eq!(hub.find(name), Some(peer), "{name}");
    }
    // A new peer can still greet.
    assert!(matches!(greet(&mut hub, "late", true, now)[..], [Body::Welcome { .. }, Body::Ready]));
    assert!(hub.is_up(hub.find("late").unwrap()));
}

#[test]
fn a_greeter_too_many_is_refused_while_all_have_sessions() {
    let (mut hub, now) = (hub(), Duration::from_secs(1));
    for number in 0..MAX_GREETERS {
        greet(&mut hub, &format!("peer-{number}"), true, now);
    }
    assert_eq!(greet(&mut hub, "one too many", true, now), [Body::Reject(Reason::Full)]);
    assert_eq!((hub.peers().len(), hub.find("one too many")), (MAX_GREETERS, None));
    // A known peer is accepted, a loaded peer is not a greeter, and a departed peer makes room.
    assert!(hub.load(&metadata("loaded")).is_ok());
    hub.disconnect(hub.find("peer-3").unwrap(), now);
    let mut farewell = Kept::default();
    hub.perform(now, &mut farewell);
    farewell.0.into_iter().for_each(|(op, _)| hub.ended(op, Ok(()), now));
    assert!(matches!(greet(&mut hub, "peer-4", true, now)[..], []));
    assert!(matches!(greet(&mut hub, "next", true, now)[..], [Body::Welcome { .. }, ..]));
    assert_eq!((hub.peers().len(), hub.find("peer-3")), (MAX_GREETERS + 1, None));
}

/// Greetings that nobody confirms do not keep others out, not even for the time in which they are answered.
#[test]
fn a_flood_of_greetings_takes_no_place_from_those_who_confirm() {
    let (mut hub, now) = (hub(), Duration::from_secs(1));
    greet(&mut hub, "open", true, now);
    // The program waits for this peer, which has not confirmed yet.
    greet(&mut hub, "awaited", false, now);
    let plan = Plan {
        way: multirail::Way::Write,
        pieces: Vec::new(),
        regions: Vec::new(),
        near: Vec::new(),
        incarnation: 99,
        total: 0,
        guard: (),
        uses: Default::default(),
    };
    let awaited = hub.find("awaited").unwrap();
    hub.post(awaited, plan.into(), Some(b"hello".to_vec()), Duration::from_secs(50), now).unwrap();
    for number in 0..10 * MAX_GREETERS {
        let name = format!("nobody-{number}");
        assert!(matches!(greet(&mut hub, &name, false, now)[..], [Body::Welcome { .. }]), "{name}");
        assert!(hub.peers().len() <= MAX_GREETERS);
    }
    assert!(matches!(greet(&mut hub, "late", true, now)[..], [Body::Welcome { .. }, Body::Ready]));
    assert!(hub.is_up(hub.find("late").unwrap()) && hub.is_up(hub.find("open").unwrap()));
    assert_eq!(hub.find("awaited"), Some(awaited));
    let (_, _, sessions) = hub.kept();
    assert!(sessions <= MAX_GREETERS, "{sessions} sessions");
}

/// The limit of all peers counts those who are loaded and those who greet.
#[test]
fn a_peer_too_many_is_refused_until_another_is_forgotten() {
    let (mut hub, now) = (hub_with(Config { most_peers: 2, ..Config::default() }), Duration::from_secs(1));
    let first = hub.load(&metadata("first")).unwrap();
    assert!(matches!(greet(&mut hub, "second", true, now)[..], [Body::Welcome { .. }, Body::Ready]));
    let (errno, why) = hub.load(&metadata("third")).unwrap_err();
    assert_eq!(errno, Errno::ENOSPC);
    assert!(why.contains("most_peers"), "{why}");
    assert_eq!(greet(&mut hub, "third", true, now), [Body::Reject(Reason::Full)]);
    assert_eq!(hub.load(&metadata("first")), Ok(first), "a known one is no further one");
    assert!(hub.is_up(hub.find("second").unwrap()));
    hub.forget(first, now);
    hub.load(&metadata("third")).unwrap();
}

/// Those who only greet do not keep out whom the program loads.
#[test]
fn a_peer_that_is_loaded_takes_the_place_of_one_that_greets() {
    let (mut hub, now) = (hub_with(Config { most_peers: 2, ..Config::default() }), Duration::from_secs(1));
    greet(&mut hub, "first", false, now);
    greet(&mut hub, "second", false, now);
    assert_eq!(greet(&mut hub, "third", true, now), [Body::Reject(Reason::Full)]);
    let third = hub.load(&metadata("third")).unwrap();
    assert_eq!((hub.find("first"), hub.find("third")), (None, Some(third)));
    hub.load(&metadata("fourth")).unwrap();
    assert_eq!(hub.find("second"), None);
    assert_eq!(hub.load(&metadata("fifth")).unwrap_err().0, Errno::ENOSPC, "all are loaded");
}

/// Metadata of an earlier life comes late, from a store or over a slow channel.
#[test]
fn metadata_of_an_earlier_life_ends_no_living_session() {
    const BORN: u32 = 1_790_000_000;
    let life = |seconds: u32| u64::from(seconds) << 32 | 0x1234;
    let (mut hub, now) = (hub(), Duration::from_secs(1));
    hub.born_at(BORN);
    assert_eq!(hub.metadata(Vec::new()).incarnation >> 32, u64::from(BORN));
    let of = |incarnation, regions| Metadata { incarnation, regions, ..metadata("peer") };
    let region = |id| RegionInfo { id, len: 10, keys: Vec::new(), is_staged: false, export: None };
    let peer = hub.load(&of(life(BORN - 1000), vec![region(1)])).unwrap();
    // The peer restarts and greets.
    greet_as(&mut hub, "peer", life(BORN - 10), true, now);
    assert!(hub.is_up(peer) && hub.regions(peer).is_empty());
    hub.take_events();
    let (errno, why) = hub.load(&of(life(BORN - 1000), vec![region(1)])).unwrap_err();
    assert_eq!(errno, Errno::ECONNRESET);
    assert!(why.contains("earlier life"), "{why}");
    assert!(hub.is_up(peer) && hub.regions(peer).is_empty() && hub.take_events().is_empty());
    // Its own metadata adds regions, and the program may forget one.
    hub.load(&of(life(BORN - 10), vec![region(1), region(2)])).unwrap();
    assert!(hub.is_up(peer) && hub.forget_region(peer, 1) && !hub.forget_region(peer, 1));
    assert_eq!(hub.regions(peer).iter().map(|region| region.id).collect::<Vec<_>>(), [2]);
    // That of a later life ends it, and so does that of an older version, whose incarnation is no time.
    for incarnation in [life(BORN + 60), u64::MAX - 7, life(BORN + 50)] {
        let peer = hub.load(&of(incarnation, vec![region(3)])).unwrap();
        assert!(!hub.is_up(peer));
        greet_as(&mut hub, "peer", incarnation, true, now);
        assert!(hub.is_up(peer), "{incarnation:#x}");
    }
    hub.forget(peer, now);
    hub.load(&of(life(BORN - 1000), vec![region(1)])).unwrap();
}

#[test]
fn the_regions_of_a_peer_are_bounded() {
    let mut hub = hub_with(Config { most_regions: 3, ..Config::default() });
    let region = |id| RegionInfo { id, len: 10, keys: Vec::new(), is_staged: false, export: None };
    let with =
        |ids: &[u64]| Metadata { regions: ids.iter().map(|&id| region(id)).collect(), ..metadata("peer") };
    assert_eq!(hub.load(&with(&[1, 2, 3, 4])).unwrap_err().0, Errno::ENOSPC);
    assert_eq!(hub.find("peer"), None);
    let peer = hub.load(&with(&[1, 2])).unwrap();
    hub.load(&with(&[1, 2, 3])).unwrap();
    let (errno, why) = hub.load(&with(&[3, 4])).unwrap_err();
    assert_eq!(errno, Errno::ENOSPC);
    assert!(why.contains("most_regions"), "{why}");
    assert!(hub.forget_region(peer, 1));
    hub.load(&with(&[3, 4])).unwrap();
    assert_eq!(hub.regions(peer).iter().map(|region| region.id).collect::<Vec<_>>(), [2, 3, 4]);
}

/// Whoever prepares a transfer looks the regions up without the agent's lock, however many there are.
#[test]
fn the_regions_of_a_peer_are_shared_with_those_who_prepare() {
    let mut hub = hub();
    let region = |id| RegionInfo { id, len: 10, keys: Vec::new(), is_staged: false, export: None };
    let of = |incarnation, ids: &[u64]| Metadata {
        incarnation,
        regions: ids.iter().map(|&id| region(id)).collect(),
        ..metadata("peer")
    };
    let peer = hub.load(&of(99, &[1, 2])).unwrap();
    let (before, incarnation) = hub.known_regions(peer);
    assert!(Arc::ptr_eq(&before, &hub.known_regions(peer).0), "nothing is copied");
    assert_eq!((before.len(), incarnation), (2, 99));
    // What changes meanwhile is seen by the next one.
    hub.load(&of(99, &[3])).unwrap();
    assert!(hub.forget_region(peer, 1));
    let (after, _) = hub.known_regions(peer);
    assert!(before.contains_key(&1) && !before.contains_key(&3));
    assert!(!after.contains_key(&1) && after.contains_key(&3) && Arc::ptr_eq(&before[&2], &after[&2]));
    hub.load(&of(100, &[])).unwrap();
    let (none, incarnation) = hub.known_regions(peer);
    assert_eq!((none.len(), incarnation), (0, 100));
}
