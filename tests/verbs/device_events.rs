//! Asynchronous events of a device: operations on an object that it reports as failed end, without any other sign of
//! the failure.

use std::sync::Arc;

use ofi_testkit::connect::{Listener, connect, event_of, outcome, try_outcome};
use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Plan, SimulatedDevice};
use ofi_verbs::rc::AsyncEvent;

use super::{CONNECTED, device, hints};

const LEN: usize = 1 << 20;

/// A device of its own for a test.
struct Own(&'static str, Arc<SimulatedDevice>);

impl Own {
    fn new(name: &'static str) -> Self {
        Self(name, device(name, Plan::default()))
    }
}

impl Kit for Own {
    fn hints(&self) -> Hints {
        hints(self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// Its connected endpoints.
struct OwnConnected<'a>(&'a Own);

impl Kit for OwnConnected<'_> {
    fn hints(&self) -> Hints {
        self.0.hints().ep_type(EpType::Msg).mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        CONNECTED
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }
}

fn socket(side: &TestEndpoint) -> std::net::SocketAddr {
    side.name().to_socket_addr().unwrap()
}

fn connected(kit: &Own) -> (TestEndpoint, TestEndpoint) {
    let kit: &dyn Kit = &OwnConnected(kit);
    let a = kit.opening().open_disabled().unwrap();
    let b = connect(&a, kit.opening()).unwrap();
    (a, b)
}

#[track_caller]
fn fails(sides: &[&TestEndpoint], side: &TestEndpoint, context: usize, errno: Errno) {
    let error = wait::drive(sides, "an operation over what has failed", || side.next_of(context)).failed();
    assert_eq!(error.err, errno, "{context}: {error:?}");
}

#[test]
fn a_port_that_goes_down_and_up_is_counted_and_ends_nothing() {
    let own = Own::new("flaps0");
    let pair = (&own as &dyn Kit).pair();
    pair.warm_up();
    let (a, b) = connected(&own);
    let memory = Memory::patterned(64, 1);
    let all = [&pair.a, &pair.b, &a, &b];
    for event in [
        AsyncEvent::PortError(1),
        AsyncEvent::PortActive(1),
        AsyncEvent::GidsChanged(1),
        AsyncEvent::PathMigrated(1),
        AsyncEvent::SharedLimit(1),
        AsyncEvent::Other(4),
        // A queue pair of another process, or of a closed endpoint.
        AsyncEvent::PairFatal(u32::MAX),
        AsyncEvent::QueueError(usize::MAX),
        AsyncEvent::SharedError(usize::MAX),
    ] {
        own.1.raise(event);
    }
    for side in all {
        for name in ["verbs_port_errors", "verbs_port_active", "verbs_port_changes"] {
            wait::drive(&all, name, || (side.statistic(name) == 1).then_some(()));
        }
        assert_eq!(side.statistic("verbs_device_failures"), 0);
    }
    pair.warm_up();
    b.receive(&Memory::new(64)).context(1).post().unwrap();
    a.out(FiAddr::UNSPEC, &memory).context(2).send().unwrap();
    wait::drive(&all, "a message", || b.next_of(1)).done();
    wait::drive(&all, "its end", || a.next_of(2)).done();
    assert_eq!(pair.a.statistic("verbs_connections"), 1, "the same connection");
}

#[test]
fn everything_ends_when_the_device_dies_without_another_word() {
    let own = Own::new("dies0");
    let kit: &dyn Kit = &own;
    let pair = kit.pair();
    pair.warm_up();
    let region = pair.b.register(&Memory::new(LEN), MrAccess::REMOTE_READ).unwrap();
    let (from, back, into) = (Memory::patterned(LEN, 1), Memory::new(LEN), Memory::new(64));
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]));
    pair.b.receive(&into).context(3).tag(9).post().unwrap();
    own.1.die();
    let sides = [&pair.a, &pair.b];
    for context in [1, 2] {
        fails(&sides, &pair.a, context, Errno::ENODEV);
    }
    pair.quiet(Duration::from_millis(5));
    for (side, to) in [(&pair.a, pair.to_b), (&pair.b, pair.to_a)] {
        let error = side.out(to, &into).context(4).send().unwrap_err();
        assert_eq!(error.errno(), Errno::ENODEV, "{error}");
        assert!(error.to_string().contains("getinfo"), "{error}");
        assert_eq!(side.statistic("verbs_device_failures"), 1);
    }
    pair.quiet(Duration::from_millis(5));
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "each has ended once, and the receive waits");
    let error = kit.opening().try_open().err().expect("an endpoint of a device that is gone");
    assert_eq!(error.errno(), Errno::ENODEV, "{error}");
}

/// A thread that sleeps for the end of an operation is woken by the event.
#[test]
fn a_sleeper_hears_of_the_device_s_end() {
    let own = Own::new("dies1");
    let kit: &dyn Kit = &own;
    let pair = kit.pair_with(|opening| opening.wait_obj(WaitObj::Fd));
    pair.warm_up();
    let region = pair.b.register(&Memory::new(LEN), MrAccess::REMOTE_READ).unwrap();
    let back = Memory::new(LEN);
    // The owner must execute the first access, but does not poll.
    pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]).unwrap();
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let mut entry = [CqTaggedEntry::EMPTY];
            let start = Instant::now();
            loop {
                match pair.a.tx.read_wait(&mut CqBuffer::new(&mut entry), Some(wait::BOUND)) {
                    Err(error) if error.is_again() && start.elapsed() < wait::BOUND => {}
                    other => return (other.unwrap_err().errno(), start.elapsed()),
                }
            }
        });
        std::thread::sleep(Duration::from_millis(100)); // most likely it sleeps
        own.1.die();
        let (errno, took) = sleeper.join().unwrap();
        assert_eq!(errno, Errno::EAVAIL);
        assert!(took < wait::BOUND);
    });
    fails(&[&pair.a], &pair.a, 2, Errno::ENODEV);
}

#[test]
fn a_queue_pair_that_fails_ends_its_connection_alone() {
    let own = Own::new("breaks0");
    let kit: &dyn Kit = &own;
    let pair = kit.pair();
    pair.warm_up();
    let other = kit.side();
    let to_other = pair.a.insert(&other);
    let into = Memory::new(64);
    let says = |from: &TestEndpoint, to: FiAddr, side: &TestEndpoint, context: usize| {
        side.receive(&into).context(context).post().unwrap();
        wait::drive(&[from, side], "room", || from.out(to, &into).context(context).send().ok());
        wait::drive(&[from, side], "a message", || side.next_of(context)).done();
        wait::drive(&[from, side], "its end", || from.next_of(context)).done();
    };
    says(&pair.a, to_other, &other, 3);
    let connections = pair.a.statistic("verbs_connections");
    own.1.break_pairs(socket(&pair.a), Some(socket(&pair.b)));
    pair.a.out(pair.to_b, &into).context(1).send().unwrap();
    fails(&[&pair.a, &pair.b], &pair.a, 1, Errno::EIO);
    says(&pair.a, to_other, &other, 4);
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "the other connection went on");
    says(&pair.a, pair.to_b, &pair.b, 5);
    assert_eq!(pair.a.statistic("verbs_connections"), connections + 1, "the next use connects anew");
    assert_eq!([&pair.a, &pair.b].map(|side| side.statistic("verbs_device_failures")), [1, 0]);
}

#[test]
fn a_completion_queue_that_fails_ends_its_endpoint_alone() {
    let own = Own::new("breaks1");
    let pair = (&own as &dyn Kit).pair();
    pair.warm_up();
    let region = pair.b.register(&Memory::new(LEN), MrAccess::REMOTE_READ).unwrap();
    let back = Memory::new(LEN);
    pair.post(|| pair.a.out(pair.to_b, &back).context(1).read(&[remote(&region)]));
    own.1.break_queue(socket(&pair.a));
    fails(&[&pair.a, &pair.b], &pair.a, 1, Errno::EIO);
    let error = pair.a.out(pair.to_b, ()).context(2).send().unwrap_err();
    assert_eq!(error.errno(), Errno::EIO, "{error}");
    assert_eq!([&pair.a, &pair.b].map(|side| side.statistic("verbs_device_failures")), [1, 0]);
    let again = (&own as &dyn Kit).side();
    let to_again = pair.b.insert(&again);
    again.receive(()).context(3).post().unwrap();
    wait::drive(&[&pair.b, &again], "room", || pair.b.out(to_again, ()).context(4).send().ok());
    wait::drive(&[&pair.b, &again], "a message to another", || again.next_of(3)).done();
}

/// The object of a connected endpoint that fails.
#[test]
fn a_connection_ends_with_its_queue_pair_its_queue_or_its_device() {
    for (which, name) in ["breaks2", "breaks3", "dies2"].into_iter().enumerate() {
        let own = Own::new(name);
        let (a, b) = connected(&own);
        let (from, into) = (Memory::patterned(LEN, 1), Memory::new(64));
        // The other end has no receive for it, so it stays in flight.
        a.out(FiAddr::UNSPEC, &from).context(1).send().unwrap();
        a.receive(&into).context(2).post().unwrap();
        match which {
            0 => own.1.break_pairs(socket(&a), None),
            1 => own.1.break_queue(socket(&a)),
            _ => own.1.die(),
        }
        let errno = if which == 2 { Errno::ENODEV } else { Errno::ECANCELED };
        for context in [1, 2] {
            fails(&[&a, &b], &a, context, errno);
        }
        event_of(&a, EventKind::Shutdown, &[&a, &b]);
        a.out(FiAddr::UNSPEC, &from).context(3).send().unwrap_err();
        assert_eq!(a.statistic("verbs_device_failures"), 1, "{name}");
        // The other end learns of the failure from its connection or from the device, in any order.
        event_of(&b, EventKind::Shutdown, &[&a, &b]);
        let failures = u64::from(which == 2);
        let heard = || (b.statistic("verbs_device_failures") == failures).then_some(());
        wait::drive(&[&b], "what the device reports", heard);
    }
}

#[test]
fn a_call_ends_with_its_device() {
    let own = Own::new("dies3");
    let kit: &dyn Kit = &OwnConnected(&own);
    let a = kit.opening().open_disabled().unwrap();
    let listener = Listener::open(&kit.opening().first_info().unwrap()).unwrap();
    a.ep.connect(&listener.pep.name().unwrap(), b"hello").unwrap();
    let request = listener.request(&[&a]);
    own.1.die();
    let error = outcome(a.eq(), &[&a]).expect_err("the call cannot succeed");
    assert_eq!(error.err, Errno::ENODEV, "{error:?}");
    drop(request);
}

/// The event comes before the call.
#[test]
fn a_call_over_a_device_that_is_gone_fails_at_once() {
    let own = Own::new("dies6");
    let kit: &dyn Kit = &OwnConnected(&own);
    let a = kit.opening().open_disabled().unwrap();
    a.ep.enable().unwrap();
    own.1.die();
    wait::drive(&[&a], "the event", || (a.statistic("verbs_device_failures") == 1).then_some(()));
    a.ep.connect(&a.name(), b"hello").unwrap();
    let error = outcome(a.eq(), &[&a]).expect_err("the call cannot succeed");
    assert_eq!(error.err, Errno::ENODEV, "{error:?}");
}

/// The event is reported once: a listening thread continues to sleep, and the application closes the endpoint.
#[test]
fn a_passive_endpoint_reports_the_end_of_its_device_once() {
    let own = Own::new("dies8");
    let kit: &dyn Kit = &OwnConnected(&own);
    let listener = Listener::open(&kit.opening().first_info().unwrap()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(50)); // most likely it sleeps
            own.1.remove();
        });
        let error = listener.eq.read_wait(Some(wait::BOUND)).unwrap_err();
        assert_eq!(error.errno(), Errno::EAVAIL, "{error}");
    });
    let error = listener.eq.read_error().unwrap();
    assert_eq!((error.fid, error.err), (listener.pep.fid(), Errno::ENODEV), "{error:?}");
    assert!(try_outcome(&listener.eq).is_none());
    listener.eq.trywait().unwrap();
    let fd = listener.eq.wait_fd().unwrap();
    assert!(!wait::readable(fd, Duration::from_millis(20)), "nothing keeps its reader awake");
    let refused = listener.pep.listen().unwrap_err();
    assert_eq!(refused.errno(), Errno::ENODEV, "{refused}");
    assert!(refused.to_string().contains("getinfo"), "{refused}");
    assert!(try_outcome(&listener.eq).is_none());
}
