//! Greetings, from inside an initiator.

use std::net::UdpSocket;

use mxl::{BatchHints, FlowDefinition, Rational};
use ofi::Address;

use super::*;
use crate::Target;
use crate::folder::Folder;

const ANY: (Option<&str>, Option<&str>) = (None, None);
/// Fewer than the places that an endpoint has for greetings, but more than a quarter of them.
const HUNG: u64 = 80;
/// Longer than any operation takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);

/// Regression test: each hung target had up to four greetings under way, in places that those of others need.
#[test]
fn hung_targets_leave_places_to_the_greetings_of_others() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Udp, ANY, None).unwrap();
    let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Udp, ANY).unwrap();
    let ports: Vec<_> = (1..=HUNG).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    for (port, id) in ports.iter().zip(1..) {
        let address = Address::from(port.local_addr().unwrap()).bytes().to_vec();
        initiator.add(&TargetInfo { id, address, ..target.info().clone() }).unwrap();
    }
    let begin = Instant::now();
    while begin.elapsed() < 6 * GREET_EVERY {
        initiator.poll().unwrap();
        let most = initiator.peers.iter().map(|peer| peer.flights.len()).max();
        assert!(most <= Some(1), "{most:?} under way to one, after {:?}", begin.elapsed());
    }
    // Nor are greetings transfers to wait for.
    assert!(initiator.link.is_sending() && initiator.flush(Duration::ZERO).unwrap());
    let id = target.info().id;
    initiator.add(target.info()).unwrap();
    let begin = Instant::now();
    while initiator.target(id).unwrap().0 != PeerState::Connected {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
}

/// A target, an initiator that is connected to it, and their folders.
fn connected() -> ((Folder, Folder, Box<dyn std::any::Any>), Target, Initiator) {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap();
    let source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let mut initiator = Initiator::open(&near.domain(), camera.id, Provider::Shm, ANY).unwrap();
    initiator.add(target.info()).unwrap();
    let begin = Instant::now();
    while initiator.target(target.info().id).unwrap().0 != PeerState::Connected {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
    while initiator.event().is_some() {}
    ((near, far, Box::new(source)), target, initiator)
}

/// The target's clock goes on by `seconds`, with a check of the initiator every second. Returns whether it was dropped.
fn is_dropped_within(initiator: &mut Initiator, now: &mut Instant, seconds: u64) -> bool {
    (0..seconds).any(|_| {
        *now += Duration::from_secs(1);
        let at = *now;
        let is_silent = initiator.peers[0].is_silent(|| at);
        if is_silent {
            initiator.part(0);
        }
        is_silent
    })
}

/// An idle initiator noticed a dead target only at its next commit.
#[test]
fn a_target_that_stops_repeating_its_reports_is_dropped() {
    let (_source, target, mut initiator) = connected();
    let id = target.info().id;
    let keepalive = crate::message::KEEPALIVE.as_secs();
    let mut now = Instant::now();
    for _ in 0..10 {
        assert!(!is_dropped_within(&mut initiator, &mut now, keepalive));
        initiator.peers[0].heard.repeated(now);
    }
    // With an operation under way its silence does not count, and nothing is due: a wait would not end otherwise.
    assert!(initiator.peers[0].silence_due().is_some());
    initiator.peers[0].flights.insert(u64::MAX, None);
    assert_eq!(initiator.peers[0].silence_due(), None);
    initiator.peers[0].flights.remove(&u64::MAX);
    // It was not driven for an hour.
    now += Duration::from_secs(3600);
    assert!(!is_dropped_within(&mut initiator, &mut now, 3 * keepalive));
    initiator.peers[0].heard.repeated(now);
    let silence = super::silence::SILENCE.as_secs();
    assert!(!is_dropped_within(&mut initiator, &mut now, silence));
    assert!(is_dropped_within(&mut initiator, &mut now, 1));
    assert_eq!(initiator.target(id).unwrap().0, PeerState::Connecting);
    assert_eq!(initiator.event(), Some(Transfer::Disconnected { target: id }));
    assert!(!is_dropped_within(&mut initiator, &mut now, silence), "once");
}

/// Targets of older builds report each sixteenth commit, and repeat nothing.
#[test]
fn a_target_that_never_repeats_its_reports_is_not_dropped() {
    let (_source, _target, mut initiator) = connected();
    let mut now = Instant::now();
    initiator.peers[0].heard.sign(now);
    assert!(!is_dropped_within(&mut initiator, &mut now, 3600));
    // A report that was sent twice within a moment is no repetition of an idle target's.
    initiator.peers[0].heard.sign(now);
    initiator.peers[0].heard.repeated(now + Duration::from_millis(5));
    assert!(!is_dropped_within(&mut initiator, &mut now, 3600));
}

/// Over a real transport, in real time: a target repeats its reports, and then nobody drives it any more.
#[test]
fn an_idle_initiator_notices_a_target_that_is_not_driven_any_more() {
    let (_source, mut target, mut initiator) = connected();
    let id = target.info().id;
    let keepalive = crate::message::KEEPALIVE;
    let begin = Instant::now();
    while initiator.peers[0].silence_due().is_none() {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < 2 * keepalive, "the target repeats its report");
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = Instant::now();
    while initiator.target(id).unwrap().0 == PeerState::Connected {
        initiator.poll().unwrap();
        assert!(stopped.elapsed() < super::silence::SILENCE + keepalive, "it is noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(stopped.elapsed() > 3 * keepalive, "not before reports are missing");
    assert_eq!(initiator.event(), Some(Transfer::Disconnected { target: id }));
    // It lives, and is connected again.
    while initiator.target(id).unwrap().0 != PeerState::Connected {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(stopped.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
}
