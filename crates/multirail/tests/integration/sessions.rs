//! The cost of an idle session for the engine: sessions with 65,536 peers, each opened by a real handshake. A
//! provider's memory for a peer is not included.
//!
//! It measures the memory of the whole process: run it with nextest, which gives each test one of its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use multirail::engine::{Config, Core, Plan, RailSpec};
use multirail::wire::message::Body;
use multirail::wire::{Message, RailInfo};

use super::support::kept::{Kept, random};
use super::support::resident;

const PEERS: u64 = 65_536;
/// Bytes that a session with two rails may take, including its peer, as `docs/multirail.md` states.
const EACH: usize = 3200;

fn engine(number: u64) -> Core<()> {
    let rails = (0..2).map(|rail| RailSpec {
        info: RailInfo { provider: "kept".into(), format: 0, address: vec![rail; 32] },
        bandwidth: None,
        wide_data: true,
        severs: false,
        operations: 1024,
    });
    Core::new(
        &format!("agent-{number}"),
        rails.collect(),
        Config::default(),
        Box::new(random(number << 20 | 1)),
    )
}

/// Delivers the messages of `from`. Returns whether there were any.
fn speak(from: &mut Core<()>, to: &mut Core<()>, now: Duration) -> bool {
    let mut kept = Kept::default();
    from.perform(now, &mut kept);
    for (op, bytes) in &kept.0 {
        from.ended(*op, Ok(()), now);
        to.message(bytes, now);
    }
    !kept.0.is_empty()
}

/// The least time of a greeting for another incarnation, with its answer: others interrupt some of them.
fn stale_greetings(hub: &mut Core<()>, now: Duration) -> Duration {
    const TIMES: usize = 200;
    let rail = RailInfo { provider: "kept".into(), format: 0, address: vec![0; 32] };
    let body = Body::Hello { name: "stranger".into(), incarnation: 9, tag: 7 << 32, rails: vec![rail] };
    let hello = Message { to: 5, body }.encode();
    let once = || {
        let began = Instant::now();
        hub.message(&hello, now);
        let mut kept = Kept::default();
        while hub.perform(now, &mut kept) {}
        assert_eq!(kept.0.len(), 1, "a rejection");
        kept.0.into_iter().for_each(|(op, _)| hub.ended(op, Ok(()), now));
        hub.perform(now, &mut Kept::default());
        began.elapsed()
    };
    std::iter::repeat_with(once).take(TIMES).min().unwrap()
}

/// The least time of the end of a session with ten transfers, while other sessions have transfers too.
fn end_of_a_session(hub: &mut Core<()>, now: Duration) -> Duration {
    const TIMES: u64 = 50;
    let mut least = Duration::MAX;
    for nth in 0..TIMES {
        let mut peer = engine(1 << 30 | nth);
        let id = hub.load(&peer.metadata(Vec::new())).unwrap();
        hub.connect(id, now);
        while speak(hub, &mut peer, now) || speak(&mut peer, hub, now) {}
        let nothing = || {
            let (pieces, regions) = (Vec::new(), Vec::new());
            let incarnation = peer.metadata(Vec::new()).incarnation;
            Arc::new(Plan {
                way: multirail::Way::Write,
                pieces,
                regions,
                near: Vec::new(),
                incarnation,
                total: 0,
                guard: (),
                uses: Default::default(),
            })
        };
        let deadline = now + Duration::from_secs(1000);
        let posted: Vec<_> =
            (0..10).map(|_| hub.post(id, nothing(), Some(vec![1]), deadline, now).unwrap()).collect();
        let began = Instant::now();
        hub.disconnect(id, now);
        least = least.min(began.elapsed());
        for transfer in posted {
            assert!(hub.progress(transfer).unwrap().outcome.is_some());
            hub.release(transfer);
        }
        while speak(hub, &mut peer, now) {}
        hub.forget(id, now);
    }
    least
}

#[test]
fn an_idle_session_costs_little() {
    let now = Duration::from_secs(1);
    let mut hub = engine(0);
    let few = (stale_greetings(&mut hub, now), end_of_a_session(&mut hub, now));
    let before = resident();
    for number in 1..=PEERS {
        let mut peer = engine(number);
        let id = hub.load(&peer.metadata(Vec::new())).unwrap();
        hub.connect(id, now);
        while speak(&mut hub, &mut peer, now) || speak(&mut peer, &mut hub, now) {}
        assert!(hub.is_up(id), "the handshake with peer {number} is over");
    }
    // The timers of the handshakes expire.
    let later = now + Duration::from_secs(60);
    hub.tick(later);
    assert!(!hub.perform(later, &mut Kept::default()));
    assert_eq!((hub.kept(), hub.next_timeout()), ((0, 0, PEERS as usize), None));
    let each = resident().saturating_sub(before) / PEERS as usize;
    println!("{each} bytes for each idle session");
    let many = (stale_greetings(&mut hub, later), end_of_a_session(&mut hub, later));
    println!("a stale greeting and the end of a session: {few:?}, with {PEERS} sessions {many:?}");
    let slack = Duration::from_micros(50);
    assert!(many.0 < 2 * few.0 + slack && many.1 < 2 * few.1 + slack, "{few:?}, {many:?}");
    assert!((512..=EACH).contains(&each), "{each} bytes for each idle session");
}
