//! A peer that does not poll, with more work than its rail takes, beside a peer that does: over real transports.

use std::time::{Duration, Instant};

use multirail::{Agent, Region, Remote, Way};
use ofi::Hints;

const LONG: Duration = Duration::from_secs(30);
/// Descriptors to the silent peer, and their length.
const MANY: usize = 100_000;
const LEN: usize = 64;
/// Notifications that are measured.
const TIMES: usize = 51;

fn open(name: &str, provider: &str, has_thread: bool) -> Agent {
    let builder = Agent::builder(name).progress_thread(has_thread).shared_memory(provider == "shm");
    builder.rail(Hints::new().provider(provider)).open().unwrap()
}

/// The least time of 64 bytes to carol, with a notification: others interrupt some of them.
fn usual(alice: &Agent, source: &Region<Vec<u8>>, target: &Region<Vec<u8>>, carol: &Agent) -> Duration {
    let remote = Remote { region: target.id(), offset: 0, len: LEN as u64 };
    let plan = alice.prepare("carol", Way::Write, &[source.slice(..64).unwrap()], &[remote]).unwrap();
    let once = || {
        let began = Instant::now();
        let transfer = plan.post_notify(b"new", LONG).unwrap();
        while carol.take_notification().is_none() {
            alice.progress().unwrap();
            assert!(began.elapsed() < LONG, "carol is there");
        }
        transfer.wait().unwrap();
        began.elapsed()
    };
    std::iter::repeat_with(once).take(TIMES).min().unwrap()
}

fn one_silent_peer(provider: &str) {
    let (alice, bob) = (open("alice", provider, false), open("bob", provider, false));
    let carol = open("carol", provider, true);
    let source = alice.register(vec![1_u8; MANY * LEN]).unwrap();
    let at_bob = bob.register(vec![0_u8; MANY * LEN]).unwrap();
    let at_carol = carol.register(vec![0_u8; LEN]).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    alice.load(&carol.metadata().unwrap()).unwrap();
    alice.connect("bob").unwrap();
    while !alice.is_connected("bob").unwrap() {
        alice.progress().unwrap();
        bob.progress().unwrap();
    }
    let before = usual(&alice, &source, &at_carol, &carol);
    // Bob is silent from here on.
    for way in [Way::Write, Way::Read] {
        let range = |nth: usize| (nth * LEN) as u64..((nth + 1) * LEN) as u64;
        let local: Vec<_> = (0..MANY).map(|nth| source.slice(range(nth)).unwrap()).collect();
        let remote = |nth| Remote { region: at_bob.id(), offset: range(nth).start, len: LEN as u64 };
        let remote: Vec<_> = (0..MANY).map(remote).collect();
        let transfer = alice.prepare("bob", way, &local, &remote).unwrap().post(LONG).unwrap();
        let after = usual(&alice, &source, &at_carol, &carol);
        println!("{provider}, {way:?}: {before:?} alone, {after:?} beside a silent peer");
        assert!(transfer.progress().outcome.is_none(), "bob is silent");
        assert!(
            after < 2 * before + Duration::from_millis(10),
            "{after:?} beside a silent peer, {before:?} alone"
        );
        drop(transfer);
    }
}

#[test]
fn one_silent_peer_holds_up_nobody_over_shared_memory() {
    one_silent_peer("shm");
}

#[test]
fn one_silent_peer_holds_up_nobody_over_sockets() {
    one_silent_peer("udp");
}
