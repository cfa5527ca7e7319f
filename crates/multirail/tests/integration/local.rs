//! Agents over real rails, in one process.

use std::time::Duration;

use multirail::{Agent, Config, Region, Remote, Way};
use ofi::{Errno, Hints};

const LONG: Duration = Duration::from_secs(30);

fn agent(name: &str, rails: &[&str]) -> Agent {
    agent_with(name, rails, Config::default())
}

fn agent_with(name: &str, rails: &[&str], config: Config) -> Agent {
    let builder = Agent::builder(name).config(config).progress_thread(true).shared_memory(false);
    let builder =
        rails.iter().fold(builder, |builder, provider| builder.rail(Hints::new().provider(*provider)));
    builder.open().unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

fn contents<B>(region: &Region<B>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read_into(0, &mut bytes).unwrap();
    bytes
}

/// Makes two agents load each other's regions.
fn meet<A, B>(here: &Agent, there: &Agent, _: &Region<A>, _: &Region<B>) {
    here.load(&there.metadata().unwrap()).unwrap();
    there.load(&here.metadata().unwrap()).unwrap();
}

fn whole(region: u64, len: usize) -> Remote {
    Remote { region, offset: 0, len: len as u64 }
}

fn write_and_read(rails: &[&str], len: usize) {
    write_and_read_between(rails, rails, len);
}

fn write_and_read_between(rails_of_alice: &[&str], rails_of_bob: &[&str], len: usize) {
    let (alice, bob) = (agent("alice", rails_of_alice), agent("bob", rails_of_bob));
    let source = alice.register(pattern(len, 1)).unwrap();
    let target = bob.register(vec![0_u8; len]).unwrap();
    meet(&alice, &bob, &source, &target);
    let local = [source.slice(..).unwrap()];
    let plan = alice.prepare("bob", Way::Write, &local, &[whole(target.id(), len)]).unwrap();
    for round in 0..4 {
        source.write_from(0, &pattern(len, round)).unwrap();
        let transfer = plan.post_notify(format!("round {round}").as_bytes(), LONG).unwrap();
        let notification = bob.wait_notification(LONG).unwrap().expect("a notification");
        // Before the sender learns of the end: the data is in place when the notification arrives.
        assert_eq!(contents(&target), pattern(len, round));
        assert_eq!(
            (&*notification.peer, notification.bytes),
            ("alice", format!("round {round}").into_bytes())
        );
        transfer.wait().unwrap();
        assert_eq!(transfer.progress().moved, len as u64);
    }
    target.write_from(0, &pattern(len, 9)).unwrap();
    let plan = alice.prepare("bob", Way::Read, &local, &[whole(target.id(), len)]).unwrap();
    let transfer = plan.post_notify(b"read", LONG).unwrap();
    while alice.under_way().0 > 0 || transfer.progress().moved < len as u64 {
        alice.progress().unwrap();
    }
    assert_eq!(transfer.progress().outcome, None, "bob has not taken the notification");
    assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, b"read");
    transfer.wait().unwrap();
    assert_eq!(contents(&source), pattern(len, 9));
    let paths = alice.paths("bob").unwrap();
    assert_eq!(paths.iter().map(|path| path.moved).sum::<u64>(), 5 * len as u64);
    if len >= 1 << 20 {
        assert_eq!(paths.len(), rails_of_alice.len().max(rails_of_bob.len()));
        assert!(paths.iter().all(|path| path.moved > 0), "striped over all rails: {paths:?}");
    }
    assert_eq!((alice.counts(), bob.counts()), Default::default(), "nothing was dropped");
}

#[test]
fn one_rail_of_shared_memory() {
    write_and_read(&["shm"], 3);
    write_and_read(&["shm"], 3 << 20);
}

#[test]
fn two_rails_of_sockets() {
    write_and_read(&["udp", "udp"], 5000);
    write_and_read(&["udp", "udp"], 3 << 20);
}

#[test]
fn rails_of_two_providers_together() {
    write_and_read(&["shm", "udp"], 6 << 20);
}

#[test]
fn one_end_has_more_rails_than_the_other() {
    write_and_read_between(&["udp"], &["udp", "udp", "udp"], 3 << 20);
    write_and_read_between(&["udp", "udp", "udp"], &["udp", "udp"], 3 << 20);
}

fn errno<T: std::fmt::Debug>(result: ofi::Result<T>) -> Errno {
    result.expect_err("an error").errno()
}

#[test]
fn metadata_goes_over_tcp_and_strangers_there_change_nothing() {
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let region = bob.register(vec![5_u8; 100]).unwrap();
    let server = bob.serve("127.0.0.1:0").unwrap();
    for stranger in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"MRX1\xFF\xFF\xFF\xFF", b"MRX1\x04\0\0\0abcd", b""] {
        use std::io::Write;
        let mut stream = std::net::TcpStream::connect(server.address()).unwrap();
        stream.write_all(stranger).unwrap();
    }
    assert_eq!(&*alice.visit(server.address(), LONG).unwrap(), "bob");
    assert_eq!(alice.regions("bob").unwrap(), [(region.id(), 100)]);
    let transfer = bob.notify("alice", b"we know each other", LONG).unwrap();
    assert_eq!(alice.wait_notification(LONG).unwrap().unwrap().bytes, b"we know each other");
    transfer.wait().unwrap();
}

#[test]
fn an_agent_is_its_own_peer() {
    let alice = agent("alice", &["shm"]);
    let (source, target) =
        (alice.register(pattern(70_000, 1)).unwrap(), alice.register(vec![0_u8; 70_000]).unwrap());
    alice.load(&alice.metadata().unwrap()).unwrap();
    let plan = alice
        .prepare("alice", Way::Write, &[source.slice(..).unwrap()], &[whole(target.id(), 70_000)])
        .unwrap();
    for _ in 0..3 {
        let transfer = plan.post_notify(b"to myself", LONG).unwrap();
        assert_eq!(alice.wait_notification(LONG).unwrap().unwrap().bytes, b"to myself");
        assert_eq!(contents(&target), pattern(70_000, 1));
        transfer.wait().unwrap();
    }
}

#[test]
fn bad_input_is_a_named_error_and_disturbs_nothing() {
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let source = alice.register(pattern(1000, 1)).unwrap();
    let target = bob.register(vec![0_u8; 1000]).unwrap();
    let local = [source.slice(..).unwrap()];
    assert_eq!(errno(alice.prepare("bob", Way::Write, &local, &[whole(target.id(), 1000)])), Errno::ENOENT);
    meet(&alice, &bob, &source, &target);

    let prepare = |remote: &[Remote]| alice.prepare("bob", Way::Write, &local, remote);
    assert_eq!(errno(prepare(&[])), Errno::EINVAL, "lists of different lengths");
    assert_eq!(errno(prepare(&[whole(target.id() + 1, 1000)])), Errno::ENOENT, "an unknown region");
    assert_eq!(errno(prepare(&[whole(target.id(), 999)])), Errno::EINVAL, "ranges of different lengths");
    assert_eq!(
        errno(prepare(&[Remote { offset: 1, ..whole(target.id(), 1000) }])),
        Errno::EINVAL,
        "beyond the end"
    );
    assert_eq!(errno(prepare(&[Remote { offset: u64::MAX, ..whole(target.id(), 1000) }])), Errno::EINVAL);
    assert_eq!(errno(prepare(&[whole(target.id(), 0)])), Errno::EINVAL, "no bytes at the peer");
    assert_eq!(errno(source.slice(5..5)), Errno::EINVAL, "no bytes");
    assert_eq!(errno(source.slice(1..1001)), Errno::EINVAL);
    assert_eq!(errno(alice.register(Vec::<u8>::new())), Errno::EINVAL);
    assert_eq!(errno(source.read_into(1, &mut [0; 1000])), Errno::EINVAL);
    assert_eq!(errno(source.write_from(usize::MAX, &[0; 2])), Errno::EINVAL);

    let metadata = bob.metadata().unwrap();
    for cut in 0..metadata.len() {
        assert_eq!(errno(alice.load(&metadata[..cut])), Errno::EINVAL);
    }
    let mut other = metadata.clone();
    other[4] += 1;
    assert!(alice.load(&other).unwrap_err().to_string().contains("version"));
    let namesake = agent("alice", &["shm"]);
    assert_eq!(errno(alice.load(&namesake.metadata().unwrap())), Errno::EADDRINUSE);
    let unreachable = agent("carol", &["udp"]);
    assert_eq!(errno(alice.load(&unreachable.metadata().unwrap())), Errno::EHOSTUNREACH);
    assert_eq!(errno(Agent::builder("").rail(Hints::new()).open()), Errno::EINVAL);
    let long = vec![0; (16 << 20) + 1];
    assert_eq!(errno(alice.notify("bob", &long, LONG)), Errno::EMSGSIZE);

    let of_nobody = [
        alice.regions("nobody").map(drop),
        alice.paths("nobody").map(drop),
        alice.is_connected("nobody").map(drop),
        alice.connect("nobody"),
        alice.disconnect("nobody"),
        alice.forget("nobody"),
        alice.notify("nobody", b"?", LONG).map(drop),
    ];
    of_nobody.into_iter().for_each(|result| assert_eq!(errno(result), Errno::ENOENT));

    let plan = prepare(&[whole(target.id(), 1000)]).unwrap();
    assert_eq!(errno(source.clone().withdraw()), Errno::EBUSY, "a plan names it");
    plan.post(LONG).unwrap().wait().unwrap();
    assert_eq!(contents(&target), pattern(1000, 1));
}

#[test]
fn one_bad_transfer_fails_alone() {
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let source = alice.register(pattern(9000, 1)).unwrap();
    let (gone, stays) = (bob.register(vec![0_u8; 9000]).unwrap(), bob.register(vec![0_u8; 9000]).unwrap());
    meet(&alice, &bob, &source, &stays);
    let local = [source.slice(..).unwrap()];
    let bad = alice.prepare("bob", Way::Write, &local, &[whole(gone.id(), 9000)]).unwrap();
    let good = alice.prepare("bob", Way::Write, &local, &[whole(stays.id(), 9000)]).unwrap();
    good.post(LONG).unwrap().wait().unwrap();
    drop(gone.withdraw().unwrap()); // its key is closed, but alice does not know
    for _ in 0..3 {
        let transfers =
            [good.post(LONG).unwrap(), bad.post_notify(b"never", LONG).unwrap(), good.post(LONG).unwrap()];
        transfers[0].wait().unwrap();
        let error = transfers[1].wait().unwrap_err();
        assert!(![Errno::ETIMEDOUT, Errno::ECONNRESET].contains(&error.errno()), "{error}");
        transfers[2].wait().unwrap();
    }
    assert_eq!(bob.wait_notification(Duration::from_millis(50)).unwrap(), None);
    // The session takes notifications as before: abandoned ones do not block it.
    for round in 0..2000_u32 {
        let transfer = good.post_notify(&round.to_le_bytes(), LONG).unwrap();
        assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, round.to_le_bytes());
        transfer.wait().unwrap();
    }
}

#[test]
fn transfers_that_are_dropped_cancelled_or_late_leave_memory_to_be_withdrawn() {
    let (alice, bob) = (agent("alice", &["udp", "udp"]), agent("bob", &["udp", "udp"]));
    let len = 4 << 20;
    let (source, target) = (alice.register(pattern(len, 1)).unwrap(), bob.register(vec![0_u8; len]).unwrap());
    meet(&alice, &bob, &source, &target);
    let local = [source.slice(..).unwrap()];
    let plan = alice.prepare("bob", Way::Write, &local, &[whole(target.id(), len)]).unwrap();
    for round in 0..20 {
        drop(plan.post_notify(b"dropped", LONG).unwrap());
        let cancelled = plan.post(LONG).unwrap();
        for _ in 0..round {
            alice.progress().unwrap();
        }
        cancelled.cancel();
        let ended = cancelled.wait();
        assert!(ended.is_ok() || errno(ended) == Errno::ECANCELED);
        assert!(cancelled.wait_quiet(LONG).unwrap());
        let late = plan.post(Duration::ZERO).unwrap();
        assert_eq!(errno(late.wait()), Errno::ETIMEDOUT);
    }
    let last = plan.post_notify(b"last", LONG).unwrap();
    while bob.wait_notification(LONG).unwrap().expect("the last notification").bytes != b"last" {}
    last.wait().unwrap();
    drop(last);
    assert_eq!(contents(&target), pattern(len, 1), "and disturb no other");
    drop(plan);
    let began = std::time::Instant::now();
    while alice.under_way() != (0, 0) {
        alice.progress().unwrap(); // operations in flight end by themselves
        assert!(began.elapsed() < LONG);
    }
    drop(local);
    assert_eq!(source.withdraw().unwrap(), pattern(len, 1));
}

#[test]
fn a_disconnected_peer_hears_of_it_and_the_next_transfer_connects_again() {
    let (alice, bob) = (agent("alice", &["shm"]), agent("bob", &["shm"]));
    let (source, target) = (alice.register(pattern(100, 1)).unwrap(), bob.register(vec![0_u8; 100]).unwrap());
    meet(&alice, &bob, &source, &target);
    let plan =
        alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[whole(target.id(), 100)]).unwrap();
    for _ in 0..5 {
        let transfer = plan.post_notify(b"hello", LONG).unwrap();
        bob.wait_notification(LONG).unwrap().unwrap();
        transfer.wait().unwrap();
        assert!(alice.is_connected("bob").unwrap());
        bob.events();
        alice.disconnect("bob").unwrap();
        assert!(!alice.is_connected("bob").unwrap());
        let began = std::time::Instant::now();
        while !bob.events().contains(&multirail::Event::Down("alice".into(), Errno::ESHUTDOWN)) {
            bob.progress().unwrap();
            assert!(began.elapsed() < LONG, "bob learns of it");
        }
        let transfer = bob.notify("alice", b"again", LONG).unwrap();
        assert_eq!(alice.wait_notification(LONG).unwrap().unwrap().bytes, b"again");
        transfer.wait().unwrap();
    }
}

#[test]
fn long_notifications_come_whole() {
    let (alice, bob) = (agent("alice", &["shm", "udp"]), agent("bob", &["shm", "udp"]));
    bob.load(&alice.metadata().unwrap()).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    for len in [0, 1, 7999, 8000, 8001, 100_000, 3_000_000] {
        let transfer = alice.notify("bob", &pattern(len, 3), LONG).unwrap();
        assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, pattern(len, 3));
        transfer.wait().unwrap();
    }
}

#[test]
fn a_threshold_that_was_set_is_the_one_that_holds() {
    for (threshold, is_striped) in [(64 << 10, true), (8 << 20, false)] {
        let config = Config { striping_threshold: threshold, ..Config::default() };
        let (alice, bob) = (agent_with("alice", &["udp", "udp"], config), agent("bob", &["udp", "udp"]));
        let len = 1 << 20;
        let (source, target) =
            (alice.register(pattern(len, 1)).unwrap(), bob.register(vec![0_u8; len]).unwrap());
        meet(&alice, &bob, &source, &target);
        let plan = alice
            .prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[whole(target.id(), len)])
            .unwrap();
        plan.post(LONG).unwrap().wait().unwrap();
        let used = alice.rails().iter().filter(|(_, counts)| counts.accesses > 0).count();
        assert_eq!(used, if is_striped { 2 } else { 1 });
    }
}
