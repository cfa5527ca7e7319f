//! Peers that die before a session with them is open.

use std::time::{Duration, Instant};

use multirail::{Agent, Config, Remote, Way};
use ofi::{Errno, Hints};

const LONG: Duration = Duration::from_secs(60);

/// Shared memory reports at once that the peer is gone.
#[test]
fn a_peer_that_is_gone_is_given_up_at_once() {
    gone("shm", true, Duration::from_secs(20));
}

/// Over sockets the host reports that the port is closed. The report counts only after two seconds, because a process
/// may be about to start there.
#[test]
fn a_peer_that_is_gone_is_given_up_over_udp() {
    gone("udp", true, Duration::from_secs(15));
}

/// As above, without shared memory between the agents.
#[test]
fn a_peer_that_is_gone_is_given_up_over_sockets_alone() {
    gone("udp", false, Duration::from_secs(15));
}

fn gone(provider: &str, shared_memory: bool, bound: Duration) {
    let config = Config { connect_timeout: LONG, ..Config::default() };
    let open = |name: &str| {
        let builder = Agent::builder(name).progress_thread(true).config(config.clone());
        let builder = builder.shared_memory(shared_memory);
        // Two rails: each of them must report it.
        builder.rail(Hints::new().provider(provider)).rail(Hints::new().provider(provider)).open().unwrap()
    };
    let (alice, bob) = (open("alice"), open("bob"));
    let (source, target) = (alice.register(vec![1_u8; 64]).unwrap(), bob.register(vec![0_u8; 64]).unwrap());
    alice.load(&bob.metadata().unwrap()).unwrap();
    let there = Remote { region: target.id(), offset: 0, len: 64 };
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
    drop((target, bob));
    // The second transfer greets again, and finds no peer either.
    for _ in 0..2 {
        let begin = Instant::now();
        let error = plan.post(LONG).unwrap().wait().unwrap_err();
        assert_eq!(error.errno(), Errno::ECONNREFUSED, "{error}");
        assert!(begin.elapsed() < bound, "{:?}", begin.elapsed());
    }
    // The peer comes back under its name.
    let bob = open("bob");
    let target = bob.register(vec![0_u8; 64]).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    let there = Remote { region: target.id(), offset: 0, len: 64 };
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
    plan.post(LONG).unwrap().wait().unwrap();
}
