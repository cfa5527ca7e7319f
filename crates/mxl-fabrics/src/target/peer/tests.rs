//! Greetings, farewells and what they leave behind, from inside a target.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, Rational};
use ofi::raw::{BindFlags, Counter, Desc, Endpoint, Fid, MemoryRegion, Piece};
use ofi::{Address, Errno};

use super::*;
use crate::folder::Folder;
use crate::link::{Link, LinkEnd};
use crate::message::VERSION;
use crate::rest::WaitFor;
use crate::{Initiator, Options, PeerState, Provider};

/// Memory in which an access does not end.
struct Busy(Arc<AtomicBool>);

impl MemoryRegion for Busy {
    fn fid(&self) -> Fid {
        unreachable!("no event names it")
    }
    fn key(&self) -> u64 {
        1
    }
    fn desc(&self) -> Desc {
        unreachable!("no operation uses it")
    }
    fn base(&self) -> u64 {
        0
    }
    fn len(&self) -> usize {
        4096
    }
    fn bind_counter(&self, _: &Arc<dyn Counter>, _: BindFlags) -> ofi::Result<()> {
        Ok(())
    }
    fn bind_endpoint(&self, _: &Arc<dyn Endpoint>) -> ofi::Result<()> {
        Ok(())
    }
    fn enable(&self) -> ofi::Result<()> {
        Ok(())
    }
    fn refresh(&self, _: &[Piece]) -> ofi::Result<()> {
        Ok(())
    }
    fn close(&self) -> ofi::Result<()> {
        if self.0.load(Ordering::Relaxed) { Err(ofi::Error::new(Errno::EBUSY)) } else { Ok(()) }
    }
}

/// Regression test: memory of an old initiator in which a write was still running was only reported, and the next
/// initiator accepted: the late write could land in its data.
#[test]
fn no_initiator_is_accepted_while_an_access_of_the_last_one_is_running() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let id = target.info().id;
    let _old = connect(&near, &camera, &mut target);
    let is_busy = Arc::new(AtomicBool::new(true));
    let window = Window(Arc::new(Busy(is_busy.clone())));
    target.peer.as_mut().unwrap().windows.insert(7, window);
    let mut new = Initiator::open(&near.domain(), camera.id, Provider::Shm, ANY).unwrap();
    new.add(target.info()).unwrap();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(800) {
        new.poll().unwrap();
        target.poll().unwrap();
    }
    assert!(!target.is_connected() && target.stats().taken == 1 && target.stats().refused > 0);
    assert_ne!(new.target(id).unwrap().0, PeerState::Connected);
    is_busy.store(false, Ordering::Relaxed);
    until(&mut new, &mut target, |new, _| new.is_idle());
    assert_eq!(target.stats().taken, 2);
}

const ANY: (Option<&str>, Option<&str>) = (None, None);
/// Enough for one greeting in a build for debugging, and for few that nest.
const STACK: usize = 256 << 10;
/// Longer than any operation takes on a loaded machine.
const LONG: Duration = Duration::from_secs(40);

fn camera() -> FlowDefinition {
    FlowDefinition::video("camera", 192, 40, Rational::new(50, 1)).unwrap()
}

fn until(initiator: &mut Initiator, target: &mut Target, is_done: impl Fn(&Initiator, &Target) -> bool) {
    let begin = Instant::now();
    while !is_done(initiator, target) {
        initiator.poll().unwrap();
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "timeout: {:?}", target.stats());
    }
}

/// A new initiator, which is connected.
fn connect(near: &Folder, definition: &FlowDefinition, target: &mut Target) -> Initiator {
    let provider = target.info().provider;
    let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
    initiator.add(target.info()).unwrap();
    until(&mut initiator, target, |initiator, _| initiator.is_idle());
    initiator
}

#[test]
fn the_late_failure_of_a_message_to_an_old_initiator_does_not_part_the_new_one() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let id = target.info().id;
    let old = connect(&near, &camera, &mut target);
    let of_old = target.link.newest();
    let mut new = connect(&near, &camera, &mut target);
    assert!(target.link.newest() > of_old, "the target has welcomed the new one");
    target.handle(Happened::Ended(of_old, Err(Errno::ECONNABORTED))).unwrap();
    assert!(target.is_connected());
    // A failure of its own messages ends it, and it is told: it sends nothing that could fail.
    target.handle(Happened::Ended(target.link.newest(), Err(Errno::ECONNABORTED))).unwrap();
    assert!(!target.is_connected());
    assert_eq!(target.stats().parted, 2);
    until(&mut new, &mut target, |new, _| new.target(id).unwrap().1.parted == 1);
    assert_eq!(new.target(id).unwrap().0, PeerState::Parted(Why::Failed));
    until(&mut new, &mut target, |new, target| new.is_idle() && target.is_connected());
    let stats = new.target(id).unwrap().1;
    assert_eq!((stats.connected, stats.failed, new.nonsense()), (2, 0, 0));
    drop(old);
}

/// Repeated greetings may arrive after the one of the initiator that replaced theirs: each would replace the other
/// again, and neither would write.
#[test]
fn a_repeated_greeting_of_a_replaced_initiator_does_not_replace_the_new_one() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let stranger = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
    let (format, address) = stranger.name.clone();
    target.hello(77, (format, &address), false, None).unwrap();
    assert_eq!(target.stats().taken, 1);
    let mut new = connect(&near, &camera, &mut target);
    let nonce = target.peer.as_ref().unwrap().nonce;
    for _ in 0..3 {
        target.hello(77, (format, &address), false, None).unwrap();
    }
    assert_eq!((target.stats().taken, target.peer.as_ref().unwrap().nonce), (2, nonce));
    for _ in 0..100 {
        new.poll().unwrap();
        target.poll().unwrap();
    }
    assert!(new.check().is_ok() && new.is_idle());
    // Another attempt of it counts.
    target.hello(78, (format, &address), false, None).unwrap();
    assert_eq!(target.stats().taken, 3);
}

/// A stranger that reads nothing and greets without end costs a limited number of operations, and keeps nobody out.
#[test]
fn greetings_without_end_are_answered_a_limited_number_of_times() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let open = || Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
    let strangers = [open(), open()];
    // An eighth of the endpoint.
    const UNREAD: usize = 128;
    let wrong = 2 * (UNREAD + DISMISSED) as u64;
    for nonce in 1..=wrong {
        let (format, address) = strangers[nonce as usize % 2].name.clone();
        target.hello(nonce, (format, &address), false, Some(Why::Target)).unwrap();
        assert!(target.dismissed.awaited.len() <= DISMISSED);
        assert!(target.dismissed.given_up.len() <= UNREAD);
    }
    let (stats, unread) = (target.stats(), target.dismissed.given_up.len());
    assert!(unread >= UNREAD - DISMISSED, "{unread} unread, {stats:?}");
    assert_eq!(stats.refused + stats.nonsense, wrong);
    assert!(stats.nonsense > 0, "{stats:?}");
    let initiator = connect(&near, &camera, &mut target);
    assert!(target.is_connected());
    // The end of a message that nobody awaits is no end of the initiator.
    let given_up = *target.dismissed.given_up.iter().next().unwrap();
    target.handle(Happened::Ended(given_up, Err(Errno::ECONNABORTED))).unwrap();
    assert!(target.is_connected() && target.dismissed.given_up.len() == unread - 1);
    drop((initiator, strangers));
    // What the strangers did not read has failed.
    let begin = Instant::now();
    while !(target.dismissed.given_up.is_empty() && target.dismissed.awaited.is_empty()) {
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "{} left", target.dismissed.given_up.len());
    }
}

/// Regression test: the next initiator got the number of the one before it in the address vector, and with it the
/// operations that this one had left under way. With no place left for its welcome, it waited for ever.
#[test]
fn an_initiator_is_welcomed_after_one_that_read_nothing() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let silent = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
    let (format, address) = silent.name.clone();
    target.hello(77, (format, &address), false, None).unwrap();
    let owe = |peer: &mut InitiatorPeer| {
        let token = peer.token;
        let unread = (1..UNHEARD as u64).map(|number| Message::Published { token, number });
        peer.outbox.extend(unread);
    };
    owe(target.peer.as_mut().unwrap());
    target.poll().unwrap();
    let peer = target.peer.as_mut().expect("no more wait than may");
    assert!(!peer.outbox.is_empty(), "it has its whole share of the endpoint");
    let number = peer.addr;
    owe(peer);
    owe(peer);
    let begin = Instant::now();
    while target.peer.is_some() || !target.dismissed.awaited.is_empty() {
        target.poll().unwrap();
        assert!(begin.elapsed() < LONG, "it is not parted: {:?}", target.stats());
    }
    assert_eq!(target.stats().parted, 1);
    let next = connect(&near, &camera, &mut target);
    assert_eq!(target.peer.as_ref().map(|peer| peer.addr), Some(number), "the number is used again");
    assert!(target.link.is_sending(), "the messages to the first one are still under way");
    drop((next, silent));
}

/// Regression test: an accepted greeting led to the next one that waited within its own call, so strangers could
/// make a target use any amount of stack.
#[test]
fn greetings_that_wait_are_handled_one_after_the_other() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Shm, ANY, None).unwrap();
    let mut stranger = Link::open(Provider::Shm, ANY, LinkEnd::Initiator, &Options::default()).unwrap();
    let (format, address) = stranger.name.clone();
    let to = stranger.insert(target.info().format, &target.info().address).unwrap();
    let (id, geometry) = (target.info().id, crate::shape::numbers(&camera.geometry()));
    let stop = AtomicBool::new(false);
    let mut target = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let (mut nonce, mut answers) = (1, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                let address = address.clone();
                let version = VERSION;
                let hello =
                    Message::Hello { version, target: id, nonce, geometry, messages: 0, format, address };
                nonce += u64::from(stranger.send(to, &hello).unwrap().is_some());
                stranger.poll(&mut answers).unwrap();
                answers.clear();
            }
        });
        let small = std::thread::Builder::new().stack_size(STACK);
        let turns = small.spawn_scoped(scope, || {
            let begin = Instant::now();
            while target.stats().taken < 2000 {
                target.poll().unwrap();
                assert!(target.greetings.len() <= GREETINGS, "{} wait", target.greetings.len());
                assert!(begin.elapsed() < LONG, "{:?}", target.stats());
            }
            target
        });
        let target = turns.unwrap().join();
        stop.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        target.unwrap()
    });
    // A greeting that comes then is heard.
    drop(stranger);
    let initiator = connect(&near, &camera, &mut target);
    assert!(initiator.is_idle() && target.is_connected());
}

/// Regression test: when a target parted an initiator that sends payloads in messages, and its farewell was lost,
/// the initiator stood still for ever once the window of commits was full, since nothing of it failed.
#[test]
fn an_initiator_whose_window_stays_full_connects_again() {
    let (near, far) = (Folder::new(), Folder::new());
    let sound = FlowDefinition::audio("microphone", 2, Rational::new(48_000, 1)).unwrap();
    let mut source = near.domain().create_samples(&sound, &BatchHints::default()).unwrap().writer;
    let options = Options { messages_only: true, ..Options::default() };
    let mut target = Target::open_with(&far.domain(), &sound, Provider::Shm, ANY, None, &options).unwrap();
    let id = target.info().id;
    let mut initiator = connect(&near, &sound, &mut target);
    let mut index = 48_000;
    let mut send = |initiator: &mut Initiator| {
        index += 48;
        source.open(index, 48).unwrap().commit().unwrap();
        initiator.send_samples(index, 48).unwrap();
    };
    send(&mut initiator);
    until(&mut initiator, &mut target, |_, target| target.stats().published == 1);
    // The farewell is lost.
    let peer = target.peer.take().unwrap();
    target.link.remove(peer.addr);
    for _ in 0..crate::message::WINDOW + 6 {
        send(&mut initiator);
    }
    until(&mut initiator, &mut target, |initiator, _| initiator.target(id).unwrap().1.connected == 2);
}

/// A peer that leaves and returns has what is left of its share, although its number in the address vector was another
/// one's meanwhile. With a new share each time, a stranger took all operations of the endpoint by greeting again.
#[test]
fn an_initiator_that_returns_again_and_again_has_one_share() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let _source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap();
    let mut target = Target::open(&far.domain(), &camera, Provider::Udp, ANY, None).unwrap();
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = Address::from(silent.local_addr().unwrap());
    for nonce in 1..=20 {
        target.hello(nonce, (address.format().as_c(), address.bytes()), false, None).unwrap();
        let peer = target.peer.as_mut().expect("it is accepted");
        let token = peer.token;
        peer.outbox.extend((1..UNHEARD as u64).map(|number| Message::Published { token, number }));
        target.poll().unwrap();
        // As it says goodbye.
        target.part(None);
        assert!(!target.link.is_full(), "with {nonce} connections");
    }
    let initiator = connect(&near, &camera, &mut target);
    assert!(initiator.is_idle() && target.is_connected());
    assert!(target.link.is_sending(), "the messages to the silent one are still under way");
    drop(silent);
}

/// Regression test: each of many ports at which nobody read had places of the endpoint, until none was left.
#[test]
fn silent_ports_leave_the_endpoint_to_an_initiator_that_was_there() {
    let (near, far) = (Folder::new(), Folder::new());
    let camera = camera();
    let source = near.domain().create_grains(&camera, &BatchHints::default()).unwrap().writer;
    let mut target = Target::open(&far.domain(), &camera, Provider::Udp, ANY, None).unwrap();
    let id = target.info().id;
    let mut known = connect(&near, &camera, &mut target);
    let send = |initiator: &mut Initiator, target: &mut Target, index| {
        source.open(index).unwrap().commit().unwrap();
        initiator.send(index).unwrap();
        let before = target.stats().published;
        until(initiator, target, |_, target| target.stats().published > before);
    };
    send(&mut known, &mut target, 100);
    let mut ports = Vec::new();
    while !target.link.is_full_of_greetings() {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = Address::from(port.local_addr().unwrap());
        let nonce = 1000 + ports.len() as u64;
        let greeting = (address.format().as_c(), address.bytes());
        target.hello(nonce, greeting, false, nonce.is_multiple_of(3).then_some(Why::Target)).unwrap();
        target.flush();
        ports.push(port);
        assert!(ports.len() < 2000 && !target.link.is_full());
    }
    // The last of them took its place.
    known.remove(id).unwrap();
    known.add(target.info()).unwrap();
    until(&mut known, &mut target, |known, _| known.is_idle());
    send(&mut known, &mut target, 101);
    // Its connection breaks at its end, and it greets again from the place that it still has. Others have displaced it
    // among the former initiators meanwhile.
    target.proven.clear();
    let refused = Message::Refused { nonce: 1, why: Why::Target };
    loop {
        let port = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = Address::from(port.local_addr().unwrap());
        let addr = target.link.insert(address.format().as_c(), address.bytes()).unwrap();
        if !target.link.takes_answer(addr) {
            // Only an end of theirs makes room, which the queue announces.
            assert_eq!(target.link.wait_for_room(addr, MessageKind::Greeting), WaitFor::Announced);
            assert_eq!(target.link.wait_for_room(addr, MessageKind::Connected), WaitFor::Room);
            break;
        }
        target.link.send(addr, &refused).unwrap();
        ports.push(port);
        assert!(ports.len() < 3000);
    }
    let (taken, refused) = (target.stats().taken, target.stats().refused);
    known.part(0);
    until(&mut known, &mut target, |known, target| known.is_idle() && target.stats().taken > taken);
    assert_eq!(target.stats().refused, refused, "it is no stranger");
    send(&mut known, &mut target, 102);
    drop(ports);
}
