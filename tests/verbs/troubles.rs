//! Regression tests of defects that the model found on the simulated device.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Once};

use ofi_testkit::prelude::*;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_verbs::rc::Access;

use super::raw::{KEY, RAW, RIGHT_TO_READ, RIGHT_TO_WRITE, Raw, record};
use super::{DEVICE, VerbsPair, device, hints};

/// A peer closes while its read is being answered: messages that it sent after the read are still received.
#[test]
fn what_a_reader_sent_before_it_went_is_received() {
    const LEN: usize = 1 << 20;
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let region = pair.b.register(&Memory::patterned(LEN, 1), MrAccess::REMOTE_READ).unwrap();
    let (from, into) = (Memory::patterned(64, 2), Memory::new(64));
    let back = Memory::new(LEN);
    pair.b.receive(&into).context(3).post().unwrap();
    pair.a.out(pair.to_b, &back).context(1).read(&[remote(&region)]).unwrap();
    pair.a.out(pair.to_b, &from).context(2).send().unwrap();
    let before = pair.b.statistic("verbs_received");
    // More parts than the reader has receives, while it does not poll.
    wait::drive(&[&pair.b], "both records", || {
        (pair.b.statistic("verbs_received") == before + 2).then_some(())
    });
    assert_eq!(pair.b.pending(), 0, "the message waits behind the read");
    let Pair { a, b, .. } = pair;
    drop(a);
    wait::drive(&[&b], "the message", || b.next_of(3)).done();
    into.check(64, 2);
    wait::drive(&[&b], "the end of the connection", || {
        (b.statistic("verbs_connections_now") == 0).then_some(())
    });
}

/// A completion queue that overruns is lost, and the endpoint with it.
#[test]
fn a_burst_to_many_peers_fits_into_the_completion_queue() {
    const EACH: usize = 20;
    let kit: &dyn Kit = &VerbsPair;
    let sender = kit.side();
    let peers: Vec<TestEndpoint> = (0..50).map(|_| kit.side()).collect();
    let from = Memory::patterned(64, 1);
    let into: Vec<Memory> = peers.iter().map(|_| Memory::new(64)).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| sender.insert(peer)).collect();
    let all: Vec<&TestEndpoint> = peers.iter().chain([&sender]).collect();
    for (at, &to) in to.iter().enumerate() {
        peers[at].receive(&into[at]).context(1).post().unwrap();
        sender.out(to, &from).context(0).send().unwrap();
        wait::drive(&all, "a connection", || peers[at].next_of(1)).done();
        wait::drive(&all, "a message", || sender.next_of(0)).done();
    }
    // From here on the queue is not read until everything is posted, and as many requests as fit have completed.
    for &to in &to {
        (0..EACH).for_each(|_| sender.out(to, &from).context(2).send().unwrap());
    }
    let others: Vec<&TestEndpoint> = peers.iter().collect();
    wait::drive_through(Duration::from_millis(100), &others);
    for _ in 0..EACH {
        for (peer, into) in peers.iter().zip(&into) {
            peer.receive(into).context(3).post().unwrap();
        }
    }
    for peer in &peers {
        for _ in 0..EACH {
            wait::drive(&all, "a message", || peer.next_of(3)).done();
        }
    }
    for _ in 0..EACH * peers.len() {
        wait::drive(&all, "the end of a send", || sender.next_of(2)).done();
    }
}

/// A peer that exceeds its credits would consume the receives of all others.
#[test]
fn a_peer_that_does_not_keep_to_its_credits_is_given_up() {
    const CREDITS: usize = 32;
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let connections = pair.a.statistic("verbs_connections");
    for (attempt, count, malformed) in [(1, CREDITS, 0), (2, CREDITS + 1, 1)] {
        let before = pair.b.statistic("verbs_malformed");
        let received = pair.b.statistic("verbs_received");
        let mut raw = Raw::to(&pair.b, attempt);
        for _ in 0..count {
            raw.send(&[1, 0, 0, 0, 0, 0, 0, 0]); // a message of no bytes
        }
        raw.arrived(count);
        wait::drive(&[&pair.b], "all records", || {
            (pair.b.statistic("verbs_received") >= received + count as u64).then_some(())
        });
        wait::drive_through(Duration::from_millis(5), &[&pair.b]);
        assert_eq!(pair.b.statistic("verbs_malformed") - before, malformed, "{count} records");
    }
    pair.warm_up();
    assert_eq!(pair.a.statistic("verbs_connections"), connections, "the friend's connection went on");
}

/// The device still writes to the memory of a read that the peer has reported as ended.
#[test]
fn a_peer_does_not_end_a_read_that_the_device_does() {
    const LEN: usize = 64;
    let kit: &dyn Kit = &VerbsPair;
    let side = kit.side();
    let mut raw = Raw::to(&side, 1);
    raw.give(&side, RIGHT_TO_READ);
    // The endpoint's first operation has this number. The report of its end arrives before the device starts.
    raw.send(&record(16, &[1 << 32, 0]));
    raw.arrived(1);
    let to = side.insert_address(&SocketAddr::from(RAW).into());
    let into = Memory::new(LEN);
    side.out(to, &into).context(1).read(&[RemotePiece { addr: 0, len: LEN, key: KEY }]).unwrap();
    let end = wait::drive(&[&side], "the end of the read", || side.next_of(1));
    assert_eq!(side.statistic("verbs_native_reads"), 1);
    assert_eq!(side.statistic("verbs_malformed"), 1, "{end:?}");
    if let Event::Done(..) = end {
        // The device was faster than the end of the connection.
        assert_eq!(into.bytes()[..16], raw.memory()[..16]);
    }
    wait::drive(&[&side], "the end of the connection", || {
        (side.statistic("verbs_connections_now") == 0).then_some(())
    });
}

/// The peer's report of a write may arrive before the refusal of its device.
#[test]
fn a_refused_write_whose_end_was_told_gives_its_slot_back() {
    let kit: &dyn Kit = &VerbsPair;
    let side = kit.side();
    let mut raw = Raw::to(&side, 1);
    raw.give(&side, RIGHT_TO_WRITE); // which its device does not know of
    raw.send(&record(16, &[1 << 32, 0]));
    raw.arrived(1);
    let to = side.insert_address(&SocketAddr::from(RAW).into());
    let from = Memory::patterned(64, 1);
    side.out(to, &from).context(1).data(7).write(&[RemotePiece { addr: 0, len: 64, key: KEY }]).unwrap();
    wait::drive(&[&side], "the end of the write", || side.next_of(1)).done();
    wait::drive(&[&side], "the end of the connection", || {
        (side.statistic("verbs_connections_now") == 0).then_some(())
    });
    assert_eq!((side.statistic("verbs_native_writes"), side.statistic("verbs_malformed")), (1, 0));
    assert_eq!(side.statistic("verbs_slots_now"), 0);
}

/// A device with late completions.
struct Late;

static LATE: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("late0", Plan { late: 100, ..Plan::default() }));

impl Kit for Late {
    fn hints(&self) -> Hints {
        LazyLock::force(&LATE);
        hints("late0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// The device still reads the memory of a write that the peer has reported as ended.
#[test]
fn a_peer_does_not_end_a_write_that_the_device_does() {
    let kit: &dyn Kit = &Late;
    for attempt in 1..=10 {
        let side = kit.side();
        let mut raw = Raw::over(&LATE, &side, attempt, Access::RemoteReadWrite);
        raw.give(&side, RIGHT_TO_WRITE);
        raw.send(&record(16, &[1 << 32, 0]));
        raw.arrived(1);
        let to = side.insert_address(&SocketAddr::from(RAW).into());
        let from = Memory::patterned(64, 1);
        let own = side.name().to_socket_addr().unwrap();
        let _before = LATE.take_log(own);
        side.out(to, &from).context(1).data(7).write(&[RemotePiece { addr: 0, len: 64, key: KEY }]).unwrap();
        wait::drive(&[&side], "the end of the write", || side.next_of(1)).done();
        let (_, reported) = LATE.take_log(own);
        assert!(reported > 0, "the write has ended before its device was done with it");
    }
}

/// Records that arrive between the last poll of a queue pair and its destruction occupy receives that all peers share.
/// These receives are not lost, even if the device drops its completions.
#[test]
fn a_queue_pair_that_goes_takes_no_receives_with_it() {
    const RECEIVES: usize = 512;
    let device = SimulatedDevice::driven("forgets0", Plan { cleans: true, not_ready: 70, ..Plan::default() });
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    struct Forgets;
    impl Kit for Forgets {
        fn hints(&self) -> Hints {
            hints("forgets0")
        }

        fn shared_memory(&self) -> bool {
            false
        }
    }
    let kit: &dyn Kit = &Forgets;
    let side = kit.side();
    for attempt in 1..=20 {
        let mut raw = Raw::over(&device, &side, attempt, Access::RemoteRead);
        // It breaks the protocol, and continues.
        for _ in 0..20 {
            raw.send(&record(99, &[]));
        }
        wait::drive(&[&side], "the end of the connection", || {
            (side.statistic("verbs_connections_now") == 0).then_some(())
        });
        drop(raw);
    }
    assert_eq!(device.receives(side.name().to_socket_addr().unwrap()), RECEIVES);
}

/// A peer lost its connection and does not know it yet: messages that it sent before are still received.
#[test]
fn what_a_peer_sent_before_it_connects_anew_is_received() {
    const LEN: usize = 1 << 20;
    let kit: &dyn Kit = &VerbsPair;
    let side = kit.side();
    let region = side.register(&Memory::patterned(LEN, 1), MrAccess::REMOTE_READ).unwrap();
    let into = Memory::new(64);
    side.receive(&into).context(3).post().unwrap();
    // It receives no answers, so the message waits behind the reads.
    let mut raw = Raw::to(&side, 1);
    for op in [1, 2] {
        raw.send(&record(6, &[op, 1, region.base(), LEN as u64, region.key()]));
    }
    raw.send(&record(1, &[5]));
    wait::drive(&[&side], "all records", || (side.statistic("verbs_received") == 3).then_some(()));
    assert_eq!(side.pending(), 0, "the message waits behind the reads");
    let again = Raw::to(&side, 2);
    let entry = wait::drive(&[&side], "the message", || side.next_of(3)).done();
    assert_eq!(entry.len, 8);
    drop((raw, again));
}

/// Messages that are reported as sent wait for credits of a dead peer. No request is in flight that could fail and show
/// its death.
#[test]
fn a_peer_that_is_gone_while_messages_wait_for_its_credits_is_given_up() {
    let kit: &dyn Kit = &VerbsPair;
    let pair = kit.pair();
    pair.warm_up();
    let from = Memory::patterned(64, 1);
    // More than fit into packs for all credits.
    for _ in 0..4000 {
        pair.a.out(pair.to_b, &from).inject().send().unwrap();
    }
    wait::drive_through(Duration::from_millis(20), &[&pair.a]);
    assert!(pair.a.statistic("verbs_waiting_now") > 0, "the peer does not look, and gives no credits");
    DEVICE.vanish(pair.b.name().to_socket_addr().unwrap());
    wait::drive(&[&pair.a], "the end of the connection", || {
        (pair.a.statistic("verbs_connections_now") == 0).then_some(())
    });
    assert_eq!(pair.a.statistic("verbs_waiting_now"), 0);
}

/// A record without a slot waits, even if no request of its peer is in flight.
#[test]
fn what_was_injected_to_many_peers_arrives_after_the_sender_has_closed() {
    const EACH: usize = 20;
    const LEN: usize = 200;
    let kit: &dyn Kit = &VerbsPair;
    let sender = kit.side();
    let peers: Vec<TestEndpoint> = (0..20).map(|_| kit.side()).collect();
    let from = Memory::patterned(LEN, 1);
    let into: Vec<Memory> = peers.iter().map(|_| Memory::new(LEN)).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| sender.insert(peer)).collect();
    for ((peer, into), &to) in peers.iter().zip(&into).zip(&to) {
        (0..EACH + 1).for_each(|_| peer.receive(into).context(1).post().unwrap());
        sender.out(to, &from).context(0).send().unwrap();
        wait::drive(&[&sender, peer], "a connection", || peer.next_of(1)).done();
        wait::drive(&[&sender, peer], "a message", || sender.next_of(0)).done();
    }
    for &to in &to {
        (0..EACH).for_each(|_| sender.out(to, &from).inject().send().unwrap());
    }
    assert!(sender.statistic("verbs_waiting_now") > 0, "more than there are slots");
    drop(sender);
    let all: Vec<&TestEndpoint> = peers.iter().collect();
    for peer in &peers {
        (0..EACH).for_each(|_| {
            wait::drive(&all, "a message", || peer.next_of(1)).done();
        });
    }
}

/// A device whose completion queues hold fewer entries than an endpoint wants receives.
struct Narrow;

impl Kit for Narrow {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| drop(device("narrow0", Plan { completions: 300, ..Plan::default() })));
        hints("narrow0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

#[test]
fn a_small_completion_queue_has_room_for_requests_beside_receives() {
    let kit: &dyn Kit = &Narrow;
    kit.pair().warm_up();
}

/// A device that is removed.
struct Pulled;

static PULLED: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| device("pulled0", Plan::default()));

impl Kit for Pulled {
    fn hints(&self) -> Hints {
        LazyLock::force(&PULLED);
        hints("pulled0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

#[test]
fn everything_ends_once_when_the_device_goes_away() {
    const LEN: usize = 1 << 20;
    let kit: &dyn Kit = &Pulled;
    let pair = kit.pair();
    pair.warm_up();
    let region = pair.b.register(&Memory::new(LEN), MrAccess::REMOTE_READ).unwrap();
    let (from, back, into) = (Memory::patterned(LEN, 1), Memory::new(LEN), Memory::new(64));
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.post(|| pair.a.out(pair.to_b, &back).context(2).read(&[remote(&region)]));
    pair.b.receive(&into).context(3).tag(9).post().unwrap();
    PULLED.remove();
    for context in [1, 2] {
        let end = pair.drive("an operation over a device that is gone", || pair.a.next_of(context));
        assert!(matches!(end, Event::Failed(_)), "{end:?}");
    }
    // New operations fail with an error.
    pair.quiet(Duration::from_millis(5));
    assert_eq!(pair.a.out(pair.to_b, &into).context(4).send().unwrap_err().errno(), Errno::ENODEV);
    pair.quiet(Duration::from_millis(5));
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "each has ended once, and the receive waits");
}

/// A device that holds fewer connections than an endpoint has peers.
struct Few;

const HELD: u64 = 4;

impl Kit for Few {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| drop(device("few0", Plan { connections: HELD as usize, ..Plan::default() })));
        hints("few0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// With many peers, idle connections are closed, and established again with the next message. Run by hand with
/// `OFI_VERBS_PEERS=10000`.
#[test]
fn an_endpoint_has_more_peers_than_its_device_holds_connections() {
    let count =
        std::env::var("OFI_VERBS_PEERS").map_or(40, |count| count.parse().expect("a number of peers"));
    let kit: &dyn Kit = &Few;
    let hub = kit.side();
    let peers: Vec<TestEndpoint> = (0..count).map(|_| kit.side()).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| hub.insert(peer)).collect();
    let (from, into) = (Memory::patterned(64, 1), Memory::new(64));
    for round in 1..=2 {
        for (peer, &to) in peers.iter().zip(&to) {
            let both = [&hub, peer];
            hub.receive(&into).context(1).post().unwrap();
            let hub_at = peer.insert(&hub);
            wait::drive(&both, "room", || peer.out(hub_at, &from).context(2).send().ok());
            wait::drive(&both, "a message", || hub.next_of(1)).done();
            into.check(64, 1);
            wait::drive(&both, "its end", || peer.next_of(2)).done();
            peer.receive(&into).context(3).post().unwrap();
            wait::drive(&both, "room", || hub.out(to, &from).context(4).send().ok());
            wait::drive(&both, "an answer", || peer.next_of(3)).done();
            wait::drive(&both, "its end", || hub.next_of(4)).done();
        }
        let all: Vec<&TestEndpoint> = peers.iter().chain([&hub]).collect();
        wait::drive(&all, "no more connections than the device holds", || {
            (hub.statistic("verbs_connections_now") <= HELD).then_some(())
        });
        assert!(hub.statistic("verbs_retired") + HELD >= round * count as u64);
    }
}
