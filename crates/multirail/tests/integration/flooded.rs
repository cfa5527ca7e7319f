//! A peer that has a session and breaks the rules: it sends what it likes and reads nothing. What it makes the engine
//! keep is bounded, and it holds back nobody else.
//!
//! It measures the memory of the whole process: run it with nextest, which gives each test one of its own.

use std::cell::Cell;
use std::time::Duration;

use multirail::engine::{Access, Config, Core, OpId, Plan, RailSpec, Refused, Sink};
use multirail::wire::message::{Body, FRAGMENT, Fragment, Reason};
use multirail::wire::{Message, RailInfo, RegionKey};
use ofi::Errno;

use super::support::resident;

const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(1000);
/// Messages of each kind.
const MANY: u64 = 200_000;
/// Bytes that the engine may keep for one peer.
const MAX_KEPT: usize = 12 << 20;

/// Rails that keep messages for ever, after those of the handshake.
#[derive(Default)]
struct Rails {
    messages: Vec<(OpId, Vec<u8>)>,
    kept: usize,
}

impl Sink<()> for Rails {
    fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        unreachable!("no transfer has data")
    }

    fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.kept += bytes.len();
        self.messages.push((op, bytes));
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
        Ok(7)
    }

    fn remove(&mut self, _: usize, _: u64) {}

    fn lease(&mut self, _: u64, _: u64) -> Vec<RegionKey> {
        vec![RegionKey { rail: 0, key: 1, base: 0 }]
    }

    fn close_leased(
        &mut self,
        _: u64,
        _: &[multirail::wire::message::LeasedKey],
        _: &[(usize, u64)],
    ) -> bool {
        true
    }
}

fn rail() -> RailInfo {
    RailInfo { provider: "kept".into(), format: 0, address: vec![1; 32] }
}

fn engine(name: &str, config: Config) -> Core<()> {
    let rail = RailSpec { info: rail(), bandwidth: None, wide_data: true, severs: false, operations: 1024 };
    let mut state = name.len() as u64;
    let random = move || {
        // splitmix64
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    };
    Core::new(name, vec![rail], config, Box::new(random))
}

/// Opens a session of a peer of this name. Returns the engine's tag.
fn greet(hub: &mut Core<()>, rails: &mut Rails, name: &str) -> u64 {
    let to = hub.metadata(Vec::new()).incarnation;
    let hello = Body::Hello { name: name.into(), incarnation: 99, tag: 7 << 32, rails: vec![rail()] };
    hub.message(&Message { to, body: hello }.encode(), NOW);
    while hub.perform(NOW, rails) {}
    let mut tag = None;
    for (op, bytes) in rails.messages.drain(..) {
        hub.ended(op, Ok(()), NOW);
        if let Body::Welcome { tag: told, .. } = Message::parse(&bytes).unwrap().body {
            tag = Some(told);
        }
    }
    let tag = tag.expect("a welcome");
    hub.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
    tag
}

fn fragment(id: u64, len: usize) -> Body {
    let total = len as u32;
    Body::Notify(Fragment {
        id,
        expected: 0,
        transfer: 0,
        total,
        offset: 0,
        bytes: vec![0; len.min(FRAGMENT)],
    })
}

/// A notification whose transfer has more writes than arrive.
fn waiting(id: u64) -> Body {
    let Body::Notify(whole) = fragment(id, 100) else { unreachable!("a fragment") };
    Body::Notify(Fragment { expected: 9, transfer: id as u16, ..whole })
}

#[test]
fn what_one_peer_makes_the_engine_keep_is_bounded() {
    let key = |rail| RegionKey { rail, key: 1, base: 0 };
    let kinds: [(&str, &dyn Fn(u64) -> Body); 25] = [
        ("confirmations", &|_| Body::Confirm),
        ("requests for keys", &Body::Lease),
        ("requests for keys of one region", &|_| Body::Lease(1)),
        ("voids", &Body::Void),
        ("notifications that nobody takes", &|id| fragment(id, 1000)),
        ("notifications of many parts", &|id| fragment(id, 2 * FRAGMENT)),
        ("notifications of any length", &|id| fragment(id, u32::MAX as usize - id as usize)),
        ("notifications that were taken", &|_| fragment(0, 1000)),
        ("requests to fence", &|serial| Body::Fence {
            serial: serial + 1,
            keys: Vec::new(),
            notices: (0..256).collect(),
        }),
        ("acknowledgements", &|id| Body::Ack((0..512).map(|nth| id + nth).collect())),
        ("arrivals", &|id| Body::Arrived((0..512).map(|nth| id + nth).collect())),
        ("notifications that wait for writes", &|id| waiting(id)),
        ("requests for keys on all rails", &Body::Widen),
        ("keys that nobody asked for", &|region| Body::Leased { region, keys: vec![key(0), key(1)] }),
        ("keys on all rails that nobody asked for", &|region| Body::Widened { region, keys: vec![key(0)] }),
        ("answers to no request to fence", &|serial| Body::Fenced { serial, out: (0..256).collect() }),
        ("rails", &|nth| Body::Rails {
            first: (nth % 31) as u8 + 1,
            rails: vec![RailInfo { address: vec![nth as u8; 32], ..rail() }],
        }),
        ("numbers of rails", &|nth| Body::Taken((nth % 32) as u8 + 1)),
        ("requests for keys on later rails", &Body::Renew),
        ("keys on later rails that nobody asked for", &|region| Body::Renewed { region, keys: vec![key(0)] }),
        ("releases", &Body::Release),
        ("abilities", &|_| Body::Able),
        ("answers to no confirmation", &|_| Body::Ready),
        ("welcomes", &|tag| Body::Welcome { incarnation: 99, tag }),
        ("rejections", &|_| Body::Reject(Reason::Full)),
    ];
    for (what, kind) in kinds {
        let (mut hub, mut rails) = (engine("hub", Config::default()), Rails::default());
        let tag = greet(&mut hub, &mut rails, "hostile");
        if what.ends_with("taken") {
            hub.message(&Message { to: tag, body: fragment(0, 1000) }.encode(), NOW);
            hub.take_notification().expect("the first");
        }
        let before = resident();
        for nth in 0..MANY {
            hub.message(&Message { to: tag, body: kind(nth) }.encode(), NOW);
            while hub.perform(NOW, &mut rails) {}
        }
        let kept = resident().saturating_sub(before);
        println!("{what}: {kept} bytes, of them {} in {} messages", rails.kept, rails.messages.len());
        assert!(kept < MAX_KEPT, "{what}: {kept} bytes are kept");
    }
}

/// Greetings as fast as they come: in each case the engine keeps what it keeps for a few. Nothing of a session that has
/// ended waits for a time to pass.
#[test]
fn greetings_without_end_are_forgotten() {
    type Greeting<'a> = &'a dyn Fn(u64, u64) -> (u64, String, u64);
    let cases: [(&str, Greeting); 4] = [
        ("sessions that follow each other", &|own, nth| (own, "hostile".into(), nth)),
        ("names", &|own, nth| (own, format!("hostile-{nth}"), nth)),
        ("stale greetings", &|own, nth| (own ^ 1, "hostile".into(), nth)),
        ("the hub's name", &|own, nth| (own, "hub".into(), nth)),
    ];
    for (what, case) in cases {
        for is_confirmed in [true, false] {
            let config = Config { most_greeters: 100, ..Config::default() };
            let (mut hub, mut rails) = (engine("hub", config), Rails::default());
            let own = hub.metadata(Vec::new()).incarnation;
            let before = resident();
            for nth in 1..=MANY / 2 {
                let (to, name, tag) = case(own, nth);
                let hello = Body::Hello { name, incarnation: 99, tag: tag << 32, rails: vec![rail()] };
                hub.message(&Message { to, body: hello }.encode(), NOW);
                while hub.perform(NOW, &mut rails) {}
                for (op, bytes) in std::mem::take(&mut rails.messages) {
                    hub.ended(op, Ok(()), NOW);
                    if let (true, Body::Welcome { tag, .. }) =
                        (is_confirmed, Message::parse(&bytes).unwrap().body)
                    {
                        hub.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
                        let goodbye = Message { to: tag, body: Body::Goodbye }.encode();
                        let is_ended = nth % 2 == 0;
                        is_ended.then(|| hub.message(&goodbye, NOW));
                    }
                }
                drop((hub.take_events(), hub.take_gone()));
            }
            let kept = resident().saturating_sub(before);
            println!("{what}, confirmed {is_confirmed}: {kept} bytes, {:?}", hub.kept());
            assert!(kept < MAX_KEPT, "{what}, confirmed {is_confirmed}: {kept} bytes are kept");
        }
    }
}

/// Notifications of one peer that the program does not take are not acknowledged, and delay those of no other peer.
#[test]
fn unread_notifications_hold_back_their_sender_alone() {
    for acknowledge_taken in [true, false] {
        let config = Config { acknowledge_taken, ..Config::default() };
        let (mut hub, mut rails) = (engine("hub", config), Rails::default());
        let [busy, other] = ["busy", "other"].map(|name| greet(&mut hub, &mut rails, name));
        let arrived = Cell::new(0);
        let acknowledged = |hub: &mut Core<()>, rails: &mut Rails| {
            while hub.perform(NOW, rails) {}
            let mut count = 0;
            for (op, bytes) in std::mem::take(&mut rails.messages) {
                hub.ended(op, Ok(()), NOW);
                match Message::parse(&bytes).unwrap().body {
                    Body::Ack(ids) => count += ids.len(),
                    Body::Arrived(ids) => {
                        assert!(!acknowledge_taken);
                        arrived.set(arrived.get() + ids.len());
                    }
                    _ => {}
                }
            }
            count
        };
        acknowledged(&mut hub, &mut rails);
        let mut told = 0;
        for id in 0..500 {
            hub.message(&Message { to: busy, body: fragment(id, 100) }.encode(), NOW);
            told += acknowledged(&mut hub, &mut rails);
        }
        assert_eq!((told, arrived.get()), (0, if acknowledge_taken { 0 } else { 500 }));
        hub.message(&Message { to: other, body: fragment(0, 100) }.encode(), NOW);
        let first: Vec<_> = (0..2).map(|_| hub.take_notification().unwrap().peer.to_string()).collect();
        assert_eq!(first, ["busy", "other"], "peers take turns");
        told += acknowledged(&mut hub, &mut rails);
        while hub.take_notification().is_some() {
            told += acknowledged(&mut hub, &mut rails);
        }
        assert_eq!(told, 501, "each is acknowledged once");
        // A repetition of what was taken is acknowledged again.
        hub.message(&Message { to: busy, body: fragment(3, 100) }.encode(), NOW);
        assert_eq!(acknowledged(&mut hub, &mut rails), 1);
        // What its sender has given up, or whose session has ended, is not handed out.
        for id in 500..503 {
            hub.message(&Message { to: busy, body: fragment(id, 100) }.encode(), NOW);
        }
        if acknowledge_taken {
            hub.message(&Message { to: busy, body: Body::Void(501) }.encode(), NOW);
            assert_eq!(acknowledged(&mut hub, &mut rails), 1);
            assert!(hub.take_notification().is_some() && hub.take_notification().is_some());
            assert_eq!(hub.take_notification(), None);
            hub.message(&Message { to: busy, body: fragment(503, 100) }.encode(), NOW);
        }
        hub.message(&Message { to: busy, body: Body::Goodbye }.encode(), LATER);
        let left = std::iter::from_fn(|| hub.take_notification()).count();
        assert_eq!(left, if acknowledge_taken { 0 } else { 3 });
    }
}
