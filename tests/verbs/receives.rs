//! The receives that all peers of an endpoint share: none is lost, and there are enough.

use std::sync::Arc;
use std::time::Duration;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

use super::hints;

/// Number of receives that an endpoint posts at first.
const RECEIVES: usize = 512;
/// Credits of a peer.
const CREDITS: usize = 32;

/// A connection that ends in mid-message has taken a receive, which some devices return long after the disconnect, and
/// not at all once the queue pair is destroyed.
#[test]
fn a_device_that_returns_receives_late_loses_none() {
    for (name, late_flush, untold, ends) in
        [("late0", 200, false, 20), ("late1", 1_000_000, true, 20), ("late2", 5, true, 20)]
    {
        let device = SimulatedDevice::driven(name, Plan { late_flush, untold, ..Plan::default() });
        ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
        let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
        let kit: &dyn Kit = &Late(name);
        let side = kit.side();
        let at = side.name().to_socket_addr().unwrap();
        let mut last = Duration::ZERO;
        for _ in 0..ends {
            let peer = kit.side();
            let to = peer.insert(&side);
            let into = Memory::new(8);
            side.receive(&into).context(1).post().unwrap();
            wait::drive(&[&side, &peer], "room", || peer.out(to, ()).context(2).send().ok());
            wait::drive(&[&side, &peer], "a message", || side.next_of(1)).done();
            let of = peer.name().to_socket_addr().unwrap();
            device.fail(at, of);
            drop(peer);
            let before = device.clock();
            wait::drive(&[&side], "the end of the connection", || {
                (side.statistic("verbs_connections_now") == 0).then_some(())
            });
            last = device.clock() - before;
        }
        let left = device.receives(at);
        if untold {
            // What a device neither returns nor reports is lost, but each end does not wait for it for ever.
            assert!(last < Duration::from_millis(50), "{name}: the last end took {last:?}");
            assert!(left >= RECEIVES - ends, "{name}: {left}");
        } else {
            assert_eq!(left, RECEIVES, "{name}");
        }
    }
}

/// Endpoints on the device of this name.
struct Late(&'static str);

impl Kit for Late {
    fn hints(&self) -> Hints {
        hints(self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn open(name: &'static str, plan: Plan) -> (Arc<SimulatedDevice>, Late) {
    let device = SimulatedDevice::driven(name, plan);
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    (device, Late(name))
}

/// Opens an endpoint and so many peers, and connects them after `act`: each has sent one message.
fn connect(kit: &dyn Kit, count: usize, act: impl FnOnce()) -> (TestEndpoint, Vec<(TestEndpoint, FiAddr)>) {
    let hub = kit.side();
    let peers: Vec<TestEndpoint> = (0..count).map(|_| kit.side()).collect();
    act();
    let meet = |peer: TestEndpoint| {
        let to = peer.insert(&hub);
        hub.receive(()).context(1).post().unwrap();
        wait::drive(&[&hub, &peer], "room", || peer.out(to, ()).context(2).send().ok());
        wait::drive(&[&hub, &peer], "a message", || hub.next_of(1)).done();
        wait::drive(&[&hub, &peer], "its end", || peer.next_of(2)).done();
        (peer, to)
    };
    let peers = peers.into_iter().map(meet).collect();
    (hub, peers)
}

#[test]
fn many_senders_to_one_silent_endpoint_each_find_their_receives() {
    const PEERS: usize = 40;
    const EACH: usize = CREDITS / 2;
    let (device, kit) = open("many2", Plan::default());
    let (hub, peers) = connect(&kit, PEERS, || ());
    assert!(device.receives(hub.name().to_socket_addr().unwrap()) >= PEERS * CREDITS);
    // The hub does not poll meanwhile. Each message is too long to share a record with another.
    let (from, into) = (Memory::patterned(4096, 3), Memory::new(4096));
    for (peer, to) in &peers {
        for _ in 0..EACH {
            wait::drive(&[peer], "room", || peer.out(*to, &from).context(2).send().ok());
        }
    }
    for (peer, _) in &peers {
        for _ in 0..EACH {
            wait::drive(&[peer], "the end of a send", || peer.next_of(2)).done();
        }
    }
    let all: Vec<&TestEndpoint> = peers.iter().map(|(peer, _)| peer).chain([&hub]).collect();
    for _ in 0..PEERS * EACH {
        hub.receive(&into).context(1).post().unwrap();
        wait::drive(&all, "a message", || hub.next_of(1)).done();
        into.check(4096, 3);
    }
}

#[test]
fn without_room_for_more_receives_peers_share_those_that_there_are() {
    const PEERS: usize = 40;
    let plans =
        [("many3", Plan { receives: RECEIVES, ..Plan::default() }, false), ("many4", Plan::default(), true)];
    for (name, plan, is_locked) in plans {
        let (device, kit) = open(name, plan);
        let (hub, peers) = connect(&kit, PEERS, || {
            if is_locked {
                device.limit_locked(0);
            }
        });
        assert_eq!(device.receives(hub.name().to_socket_addr().unwrap()), RECEIVES, "{name}");
        let (from, into) = (Memory::patterned(4096, 3), Memory::new(4096));
        for (peer, to) in &peers {
            for _ in 0..CREDITS / 2 {
                wait::drive(&[peer], "room", || peer.out(*to, &from).context(2).send().ok());
            }
        }
        let all: Vec<&TestEndpoint> = peers.iter().map(|(peer, _)| peer).chain([&hub]).collect();
        for _ in 0..PEERS * CREDITS / 2 {
            hub.receive(&into).context(1).post().unwrap();
            wait::drive(&all, "a message", || hub.next_of(1)).done();
            into.check(4096, 3);
        }
    }
}
