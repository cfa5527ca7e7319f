//! What many peers together make an agent keep: the one that keeps the most goes, and the others go on.
//!
//! It measures the memory of the whole process: run it with nextest, which gives each test one of its own.

use std::sync::Arc;
use std::time::Duration;

use multirail::engine::{Audience, Config, Core, Event, Outcome, Plan, RailSpec};
use multirail::wire::message::{Body, FRAGMENT, Fragment};
use multirail::wire::{Message, RailInfo};
use multirail::{Notification, Way};
use ofi::Errno;

use super::support::kept::{Kept, random};
use super::support::resident;

const NOW: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(1000);
/// Hostile sessions, and what they may cost together.
const HOSTILE: usize = 40;
const MAX_COST: usize = 64 << 20;
/// Messages or writes of each of them.
const MANY: u64 = 1200;

fn rail() -> RailInfo {
    RailInfo { provider: "kept".into(), format: 0, address: vec![1; 32] }
}

fn engine(name: &str, config: Config) -> Core<()> {
    let spec =
        RailSpec { info: rail(), bandwidth: None, wide_data: true, severs: false, operations: 1 << 20 };
    let seed = name.bytes().fold(7, |seed, byte| seed * 31 + u64::from(byte));
    Core::new(name, vec![spec], config, Box::new(random(seed)))
}

/// Hands the engine's messages over, as if all of them arrived.
fn drain(hub: &mut Core<()>) -> Vec<Message> {
    let mut rails = Kept::default();
    let mut messages = Vec::new();
    while hub.perform(NOW, &mut rails) {
        for (op, bytes) in rails.0.drain(..) {
            hub.ended(op, Ok(()), NOW);
            messages.push(Message::parse(&bytes).unwrap());
        }
    }
    messages
}

/// Opens a session of a peer of this name, whose own tag is `theirs`. Returns the engine's tag.
fn greet(hub: &mut Core<()>, name: &str, theirs: u64) -> u64 {
    let to = hub.metadata(Vec::new()).incarnation;
    let hello = Body::Hello { name: name.into(), incarnation: 99, tag: theirs, rails: vec![rail()] };
    hub.message(&Message { to, body: hello }.encode(), NOW);
    let tag = drain(hub).into_iter().find_map(|message| match message.body {
        Body::Welcome { tag, .. } if message.to == theirs => Some(tag),
        _ => None,
    });
    let tag = tag.expect("a welcome");
    hub.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
    drain(hub);
    tag
}

fn part(id: u64, total: usize, offset: usize, expected: u32) -> Body {
    // The last byte says that it is for the program.
    let bytes = vec![0; FRAGMENT.min(total - offset)];
    let (total, offset, transfer) = (total as u32, offset as u32, id as u16);
    Body::Notify(Fragment { id, expected, transfer, total, offset, bytes })
}

/// What a hostile peer does for the `nth` time.
type Flood = fn(&mut Core<()>, tag: u64, nth: u64);

fn say(hub: &mut Core<()>, to: u64, body: Body) {
    hub.message(&Message { to, body }.encode(), NOW);
}

/// The kinds of what peers can make the engine keep.
const FLOODS: [(&str, Flood); 6] = [
    ("unfinished notifications", |hub, tag, nth| say(hub, tag, part(nth, 2 * FRAGMENT, 0, 0))),
    ("a long unfinished notification", |hub, tag, nth| {
        say(
            hub,
            tag,
            part(0, 16 << 20, (nth as usize * FRAGMENT).min((16 << 20) - FRAGMENT) / FRAGMENT * FRAGMENT, 0),
        );
    }),
    ("notifications that nobody takes", |hub, tag, nth| say(hub, tag, part(nth, FRAGMENT, 0, 0))),
    ("notifications that wait for writes", |hub, tag, nth| say(hub, tag, part(nth, FRAGMENT, 0, 1))),
    ("marks of writes", |hub, tag, nth| hub.arrived(tag & !0xFFFF_FFFF | (nth & 0xFFFF) << 16 | 0xFFFF)),
    ("numbers", |hub, tag, nth| {
        say(hub, tag, Body::Void(nth * 1000));
        say(hub, tag, Body::Lease(nth));
    }),
];

/// A notification of the honest peer arrives, and the program gets it.
fn honest(hub: &mut Core<()>, tag: u64, id: u64) {
    say(hub, tag, part(id, 100, 0, 0));
    let taken: Vec<Notification> = (0..=HOSTILE).map_while(|_| hub.take_notification()).collect();
    let found = taken.iter().filter(|notification| &*notification.peer == "honest");
    assert_eq!(found.count(), 1, "notification {id}");
    let acknowledged = drain(hub).into_iter().any(|message| match message.body {
        Body::Ack(ids) => message.to == HONEST && ids.contains(&id),
        _ => false,
    });
    assert!(acknowledged, "notification {id}");
}

/// The honest peer's tag.
const HONEST: u64 = 0xAA << 32;

/// The cost was 24 MiB for each session.
#[test]
fn many_hostile_sessions_cost_a_budget_and_an_honest_one_goes_on() {
    for (what, flood) in FLOODS {
        for acknowledge_taken in [true, false] {
            let mut hub = engine("hub", Config { acknowledge_taken, ..Config::default() });
            let honest_tag = greet(&mut hub, "honest", HONEST);
            let mut greeted = 0;
            let mut open = |hub: &mut Core<()>, at: usize| {
                greeted += 1;
                greet(hub, &format!("hostile-{at}"), greeted << 40)
            };
            let mut tags: Vec<u64> = (0..HOSTILE).map(|at| open(&mut hub, at)).collect();
            hub.take_events();
            let before = resident();
            for nth in 0..MANY {
                for tag in &tags {
                    flood(&mut hub, *tag, nth);
                }
                if nth % 100 == 0 {
                    honest(&mut hub, honest_tag, nth / 100);
                    // Those that were ended come back.
                    for event in hub.take_events() {
                        let Event::Down(name, errno) = event else { continue };
                        assert_eq!(errno, Errno::ENOBUFS, "{what}");
                        let at: usize =
                            name.strip_prefix("hostile-").expect("a hostile one").parse().unwrap();
                        tags[at] = open(&mut hub, at);
                    }
                    hub.take_events();
                }
            }
            let cost = resident().saturating_sub(before);
            println!("{what}, {acknowledge_taken}: {cost} bytes, {:?}", hub.counts());
            assert!(cost < MAX_COST, "{what}: {cost} bytes");
        }
    }
}

/// The sender whose session is ended hears it: its transfers fail at once.
#[test]
fn the_sender_whose_session_is_ended_is_told() {
    let config = Config { most_kept: 1 << 20, longest_notification: 1 << 19, ..Config::default() };
    let mut hub = engine("hub", config);
    let mut senders = ["small", "large"].map(|name| engine(name, Config::default()));
    let to = senders.each_mut().map(|sender| sender.load(&hub.metadata(Vec::new())).unwrap());
    let post = |sender: &mut Core<()>, to, len: usize| {
        let (pieces, regions) = (Vec::new(), Vec::new());
        let near = Vec::new();
        let plan = Plan {
            way: Way::Write,
            pieces,
            regions,
            near,
            incarnation: 0,
            total: 0,
            guard: (),
            uses: Default::default(),
        };
        sender.post_to(Audience::Program, to, Arc::new(plan), Some(vec![1; len]), LATER, NOW).unwrap()
    };
    let speak = |hub: &mut Core<()>, senders: &mut [Core<()>; 2]| {
        let (mut mine, mut idle) = (Kept::default(), false);
        while !idle {
            idle = !hub.perform(NOW, &mut mine);
            for (op, bytes) in mine.0.drain(..) {
                hub.ended(op, Ok(()), NOW);
                // Each takes what has its tag.
                senders.iter_mut().for_each(|sender| sender.message(&bytes, NOW));
            }
            for sender in senders.iter_mut() {
                let mut theirs = Kept::default();
                idle &= !sender.perform(NOW, &mut theirs);
                for (op, bytes) in theirs.0.drain(..) {
                    sender.ended(op, Ok(()), NOW);
                    hub.message(&bytes, NOW);
                }
            }
        }
    };
    let small: Vec<_> = (0..2).map(|_| post(&mut senders[0], to[0], 100_000)).collect();
    let large: Vec<_> = (0..3).map(|_| post(&mut senders[1], to[1], 300_000)).collect();
    speak(&mut hub, &mut senders);
    let outcome = |core: &Core<()>, id| core.progress(id).unwrap().outcome;
    for id in large {
        assert_eq!(outcome(&senders[1], id), Some(Outcome::Failed(Errno::ESHUTDOWN)));
    }
    assert_eq!(hub.counts().evicted, 1);
    let ended =
        hub.take_events().into_iter().any(|event| event == Event::Down("large".into(), Errno::ENOBUFS));
    assert!(ended);
    let taken: Vec<_> =
        std::iter::from_fn(|| hub.take_notification()).map(|taken| taken.bytes.len()).collect();
    assert_eq!(taken, [100_000; 2], "those of the other are taken");
    speak(&mut hub, &mut senders);
    assert!(small.into_iter().all(|id| outcome(&senders[0], id) == Some(Outcome::Done)));
    // The one that was ended may come again.
    let again = post(&mut senders[1], to[1], 300_000);
    speak(&mut hub, &mut senders);
    assert_eq!(hub.take_notification().unwrap().bytes.len(), 300_000);
    speak(&mut hub, &mut senders);
    assert_eq!(outcome(&senders[1], again), Some(Outcome::Done));
}
