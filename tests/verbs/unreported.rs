//! Unsignaled requests of connected endpoints (`ofi-verbs/connected/requests.rs`): their failures are reported, and
//! they delay no other operations. `costs.rs` has their costs.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use ofi_testkit::connect::{connect, event_of};
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};
use ofi_verbs::rc::CmEventKind;

use super::{ConnectedOver, ConnectedPair, device, hints};

const ANY: FiAddr = FiAddr::UNSPEC;

/// A device that retries unacknowledged requests for longer than these tests run.
fn patient() -> Hints {
    static ADDED: LazyLock<()> = LazyLock::new(|| {
        device("patient0", Plan { patience: u64::MAX, ..Plan::default() });
    });
    LazyLock::force(&ADDED);
    hints("patient0")
}

/// The same, for tests that raise events.
static UNBOUND: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("unbound0", Plan { patience: u64::MAX, ..Plan::default() }));

fn unbound() -> Hints {
    LazyLock::force(&UNBOUND);
    hints("unbound0")
}

fn pair() -> (TestEndpoint, TestEndpoint) {
    pair_of(&ConnectedPair)
}

fn pair_of(kit: &dyn Kit) -> (TestEndpoint, TestEndpoint) {
    let a = kit.opening().open_disabled().unwrap();
    let b = connect(&a, kit.opening()).unwrap();
    (a, b)
}

/// Injects messages of `len` bytes that arrive, and returns the number of unreported requests.
fn inject(a: &TestEndpoint, b: &TestEndpoint, len: usize, count: usize) -> u64 {
    let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
    let before = a.statistic("verbs_quiet");
    for _ in 0..count {
        b.receive(&into).context(1).post().unwrap();
        a.out(ANY, &from).inject().send().unwrap();
        wait::drive(&[a, b], "a message", || b.next_of(1)).done();
    }
    into.check(len, 5);
    a.statistic("verbs_quiet") - before
}

#[test]
fn a_failure_is_told_though_no_success_is() {
    for len in [64, 1024] {
        let (a, b) = pair();
        assert_eq!(inject(&a, &b, len, 3), 3);
        b.receive(&Memory::new(8)).context(1).post().unwrap();
        a.out(ANY, &Memory::patterned(len, 5)).context(2).inject().send().unwrap();
        assert_eq!(a.statistic("verbs_quiet"), 4);
        let error = wait::drive(&[&a, &b], "the failure", || a.next()).failed();
        assert!(error.err == Errno::EIO && matches!(error.prov_errno, 9 | 11), "{error:?}");
        wait::drive(&[&a, &b], "its end", || b.next_of(1)).failed();
        event_of(&a, EventKind::Shutdown, &[&a, &b]);
        assert_eq!(a.pending(), 0, "what came before it has succeeded");
    }
}

/// The peer closes before any completion; its device has acknowledged what it received.
#[test]
fn what_the_peer_took_is_no_failure_when_it_goes() {
    let (a, b) = pair();
    assert_eq!(inject(&a, &b, 1024, 3), 3);
    drop(b);
    event_of(&a, EventKind::Shutdown, &[&a]);
    assert_eq!(a.pending(), 0);
}

/// The same if this end closes, which must not wait for missing reports.
#[test]
fn nothing_waits_for_requests_that_have_ended() {
    for shutdown in [true, false] {
        let (a, b) = pair();
        assert_eq!(inject(&a, &b, 64, 3) + inject(&a, &b, 1024, 3), 6);
        let begin = Instant::now();
        if shutdown {
            a.ep.shutdown().unwrap();
            assert_eq!(a.next().map(|event| event.context()), None);
        }
        drop(a);
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(500), "FI_VERBS_LINGER_MS is 1000, and it took {took:?}");
        event_of(&b, EventKind::Shutdown, &[&b]);
    }
}

/// Closing does not wait for a peer that has exited and acknowledges nothing.
#[test]
fn nothing_waits_for_a_peer_that_has_gone() {
    for shutdown in [true, false] {
        let (a, b) = pair_of(&ConnectedOver(patient));
        assert_eq!(inject(&a, &b, 64, 3), 3);
        drop(b);
        let begin = Instant::now();
        if shutdown {
            a.ep.shutdown().unwrap();
            assert_eq!(a.next().map(|event| event.context()), None, "the peer took all of them");
        }
        drop(a);
        let took = begin.elapsed();
        assert!(took < Duration::from_millis(600), "FI_VERBS_LINGER_MS is 1000, and it took {took:?}");
    }
}

/// A bond's change of address does not end the connection: closing still waits for the peer's receive.
#[test]
fn an_event_that_ends_nothing_does_not_shorten_the_wait() {
    for shutdown in [true, false] {
        let (a, b) = pair_of(&ConnectedOver(unbound));
        let into = Memory::new(64);
        a.out(ANY, &Memory::patterned(64, 5)).inject().send().unwrap();
        UNBOUND.tell(a.name().to_socket_addr().unwrap(), CmEventKind::Other);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(250)); // five times what an ended connection has
                b.receive(&into).context(1).post().unwrap();
                wait::drive(&[&b], "a message", || b.next_of(1)).done();
            });
            if shutdown {
                a.ep.shutdown().unwrap();
            }
            drop(a);
            late.join().unwrap();
        });
        into.check(64, 5);
    }
}

/// The outcome does not matter.
#[test]
fn every_end_of_a_connection_shortens_the_wait() {
    for kind in
        [CmEventKind::Disconnected, CmEventKind::Rejected, CmEventKind::Failed, CmEventKind::DeviceRemoved]
    {
        let (a, _b) = pair_of(&ConnectedOver(unbound));
        a.out(ANY, &Memory::patterned(64, 5)).inject().send().unwrap();
        UNBOUND.tell(a.name().to_socket_addr().unwrap(), kind);
        let begin = Instant::now();
        drop(a);
        let took = begin.elapsed();
        assert!(
            took < Duration::from_millis(600),
            "{kind:?}: FI_VERBS_LINGER_MS is 1000, and it took {took:?}"
        );
    }
}

/// Most of the queue and of the slots stays free for others.
#[test]
fn an_idle_end_keeps_most_of_its_room() {
    let (a, b) = pair();
    for len in [64, 1024] {
        let quiet = inject(&a, &b, len, 1000);
        assert!((500..1000).contains(&quiet), "{quiet} of 1000 messages of {len} bytes are not reported");
    }
    let memory = Memory::patterned(1024, 5);
    let room = (0..200).take_while(|_| a.out(ANY, &memory).inject().send().is_ok()).count();
    assert!(room >= 96, "{room} of 128 slots are free, without a receive of the peer");
}
