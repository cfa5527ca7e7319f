//! UDP on real sockets: processes, losses, deaths, sleep, and many peers.

use std::net::Ipv4Addr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use ofi_testkit::prelude::*;
use ofi_testkit::process::Line;
use ofi_tests::mesh::{Mesh, NAMING, Report, Seat};
use ofi_tests::udp::{Echo, Relay, Weather, any_port, local, open, socket};
use ofi_tests::{Naming, opening, parse, resident_kib};

/// Everything sent to a dead peer fails within this bound: `FI_UDP_PEER_TIMEOUT_MS`, plus 3 s for a busy
/// machine.
const BOUND: Duration = Duration::from_secs(5 + 3);

fn number(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().map_or(usual, |text| text.parse().expect("a number"))
}

fn with_echo() -> (Echo, TestEndpoint, FiAddr) {
    let mut echo = Echo::start(&[], any_port(Ipv4Addr::LOCALHOST));
    let side = local();
    echo.meet(&side.name());
    let to = side.insert_address(&echo.address);
    (echo, side, to)
}

#[test]
fn two_processes_converse() {
    let (echo, side, to) = with_echo();
    echo.converse(&side, to, 3);
    assert!(side.statistic("udp_tx_datagrams") > 20, "{}", side.report());
    echo.end(&side, to);
}

#[test]
fn a_relay_that_loses_repeats_and_reorders_is_not_noticed() {
    let mut repaired = 0;
    for (loss, longest) in [(30, 65_536), (50, 1_472), (10, 4_000)] {
        let mut echo = Echo::start(&[], any_port(Ipv4Addr::LOCALHOST));
        let side = local();
        let peers = [socket(&side.name()), socket(&echo.address)];
        let relay = Relay::between(peers, Weather { loss, duplicate: 20, reorder: 20, longest, forge: 0 });
        // Each end addresses its side of the relay.
        echo.meet(&relay.sides[1].into());
        let to = side.insert_address(&relay.sides[0].into());
        echo.converse(&side, to, 2);
        repaired += side.statistic("udp_lost") + side.statistic("udp_probes");
        assert!(relay.lost() > 0, "the relay lost no packets");
        echo.end(&side, to);
    }
    assert!(repaired > 0);
}

#[test]
fn a_killed_peer_s_operations_fail_and_a_successor_under_its_address_is_met() {
    let mut victim = Echo::start(&[], any_port(Ipv4Addr::LOCALHOST));
    let (other, side, to_other) = with_echo();
    victim.meet(&side.name());
    let to = side.insert_address(&victim.address);
    victim.converse(&side, to, 1);
    // Under load: with messages in flight, announced, and not yet polled for.
    let load: Vec<Memory> = (0..20).map(|number| Memory::patterned(number * 20_000, 1)).collect();
    for (number, memory) in load.iter().enumerate() {
        let out = side.out(to, memory).context(100 + number).tag(1);
        wait::drive(&[&side], "room", || out.send().ok());
    }
    victim.child.kill();
    let begin = Instant::now();
    let late = Memory::patterned(64, 1);
    side.out(to, &late).context(120).tag(1).send().expect("a send to a peer whose death is not yet known");
    for context in 100..=120 {
        let ended = wait::drive_for(BOUND, &[&side], "the end of a send", || side.next_of(context));
        if let Event::Failed(error) = ended {
            assert!([Errno::ETIMEDOUT, Errno::ECONNRESET].contains(&error.err), "{error:?}");
        }
    }
    assert!(begin.elapsed() < BOUND, "{:?}", begin.elapsed());
    other.converse(&side, to_other, 1);
    // Echoes of the load that were in flight when the victim died arrive as unexpected messages, and are
    // ignored.
    let mut successor = Echo::start(&[], socket(&victim.address));
    successor.meet(&side.name());
    successor.converse(&side, to, 1);
    successor.end(&side, to);
    other.end(&side, to_other);
}

/// Posts receives, and then makes no calls for the given number of seconds.
pub(crate) fn sleeper(line: &mut Line, arguments: &[String]) {
    let side = local();
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let short: Vec<Memory> = (0..SHORT).map(|_| Memory::new(64)).collect();
    let long = Memory::new(LONG);
    for (number, memory) in short.iter().enumerate() {
        side.receive(memory).context(number).tag(number as u64).post().expect("a receive");
    }
    side.receive(&long).context(SHORT).tag(SHORT as u64).post().expect("a receive");
    // The first message establishes the session.
    wait::drive(&[&side], "the first message", || side.next_of(0)).done();
    line.say("asleep");
    std::thread::sleep(Duration::from_secs(arguments[0].parse().expect("seconds")));
    for number in 1..=SHORT {
        wait::drive(&[&side], "a message", || side.next_of(number)).done();
    }
    for (number, memory) in short.iter().enumerate() {
        memory.check(64, number as u8);
    }
    long.check(LONG, 77);
    wait::drive(&[&side], "room", || side.out(to, ()).context(9_999).tag(1).send().ok());
    wait::drive(&[&side], "the answer", || side.next_of(9_999)).done();
}

/// Opens an endpoint and makes no calls for the given number of seconds; then receives a message and answers
/// it.
pub(crate) fn late(line: &mut Line, arguments: &[String]) {
    let side = local();
    line.say(side.name());
    std::thread::sleep(Duration::from_secs(arguments[0].parse().expect("seconds")));
    let to = side.insert_address(&parse(&line.hear()));
    let memory = Memory::new(64);
    side.receive(&memory).context(1).post().expect("a receive");
    wait::drive(&[&side], "the first message", || side.next_of(1)).done();
    memory.check(64, 5);
    wait::drive(&[&side], "room", || side.out(to, ()).context(2).tag(1).send().ok());
    wait::drive(&[&side], "the answer", || side.next_of(2)).done();
}

/// A live process does not count as dead, even before it has a session.
#[test]
fn a_first_message_to_a_process_that_does_not_look_for_eight_seconds_arrives() {
    let mut child = ofi_testkit::process::Child::start("late", &["8"]);
    let side = local();
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    let memory = Memory::patterned(64, 5);
    side.receive(()).context(2).tag(1).post().expect("a receive");
    wait::drive(&[&side], "room", || side.out(to, &memory).context(1).send().ok());
    wait::drive(&[&side], "the message", || side.next_of(1)).done();
    wait::drive(&[&side], "the answer", || side.next_of(2)).done();
    child.finish();
}

const SHORT: usize = 300;
const LONG: usize = 1 << 20;

/// The sleep is longer than the timeout of a dead peer; `OFI_UDP_SLEEP` sets another number of seconds.
#[test]
fn a_peer_that_does_not_look_for_long_gets_everything() {
    let seconds = number("OFI_UDP_SLEEP", 7);
    let mut child = ofi_testkit::process::Child::start("sleeper", &[&seconds.to_string()]);
    let side = local();
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    let memory: Vec<Memory> = (0..SHORT).map(|number| Memory::patterned(64, number as u8)).collect();
    let long = Memory::patterned(LONG, 77);
    let send = |number: usize, memory: &Memory| {
        let out = side.out(to, memory).context(number).tag(number as u64);
        wait::drive(&[&side], "room", || out.send().ok());
    };
    send(0, &memory[0]);
    wait::drive(&[&side], "the child to report that it sleeps", || child.line.has_news().then_some(()));
    child.line.expect("asleep");
    (1..SHORT).for_each(|number| send(number, &memory[number]));
    send(SHORT, &long);
    side.receive(()).context(5_000).tag(1).post().expect("a receive");
    let bound = Duration::from_secs(seconds + 40);
    for context in (0..=SHORT).chain([5_000]) {
        wait::drive_for(bound, &[&side], "messages that the child slept through", || side.next_of(context))
            .done();
    }
    child.finish();
}

/// Raises the descriptor limit to `wanted`. Returns whether it could: root may exceed its limit.
fn descriptors(wanted: u64) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: writes the structure that it is given.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_max = limit.rlim_max.max(wanted);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: reads the structure that it is given.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}

/// `OFI_UDP_PEERS` sets the number of peers (default: 1,000; `cargo xtask nightly` uses 10,000).
#[test]
fn a_thousand_peers_talk_to_one_endpoint() {
    let count = number("OFI_UDP_PEERS", 1_000) as usize;
    if !descriptors(6 * count as u64) {
        println!("NOT RUN: a_thousand_peers_talk_to_one_endpoint: too few descriptors are allowed");
        return;
    }
    let (start, before) = (Instant::now(), resident_kib());
    let hub = opening(Naming::Udp).hints(|hints| hints.rx_size(4 * count).tx_size(4 * count)).open();
    let peers: Vec<TestEndpoint> = (0..count).map(|_| opening(Naming::Udp).beside(&hub).open()).collect();
    let memory: Vec<Memory> = (0..count).map(|number| Memory::patterned(64, number as u8)).collect();
    let echoes: Vec<Memory> = (0..count).map(|_| Memory::new(64)).collect();
    let to: Vec<FiAddr> = peers.iter().map(|peer| hub.insert(peer)).collect();
    let back: Vec<FiAddr> = peers.iter().map(|peer| peer.insert(&hub)).collect();
    // All endpoints are polled now and then: one that does not answer a session request for five seconds
    // counts as dead.
    let mut looked = Instant::now();
    let mut look = || {
        if looked.elapsed() > Duration::from_millis(200) {
            peers.iter().for_each(TestEndpoint::poll);
            hub.poll();
            looked = Instant::now();
        }
    };
    for round in 0..2 {
        for number in 0..count {
            look();
            peers[number].receive(&echoes[number]).context(number).post().expect("a receive");
            hub.receive(&memory[number]).context(number).tag(number as u64).post().expect("a receive");
            let from = Memory::patterned(64, (number + round) as u8);
            let out = hub.out(to[number], &from).context(count + number).inject();
            wait::drive(&[&hub], "room", || out.send().ok());
        }
        for number in 0..count {
            look();
            wait::drive(&[&hub, &peers[number]], "the message", || peers[number].next_of(number)).done();
            echoes[number].check(64, (number + round) as u8);
            let out = peers[number].out(back[number], &echoes[number]).tag(number as u64).inject();
            wait::drive(&[&hub, &peers[number]], "room", || out.send().ok());
        }
        for number in 0..count {
            look();
            wait::drive(&[&hub, &peers[number]], "the answer", || hub.next_of(number)).done();
            memory[number].check(64, (number + round) as u8);
        }
    }
    assert_eq!(hub.statistic("udp_sessions"), count as u64);
    let (after, seconds) = (resident_kib(), start.elapsed().as_secs_f64());
    println!(
        "{count} peers: {seconds:.1} s; {before} KiB before, {after} KiB with all endpoints of this process"
    );
}

/// The environment of mesh members: UDP, with a timeout as short as the mesh expects.
const ENVIRONMENT: [(&str, &str); 2] = [(NAMING, "udp"), ("FI_UDP_PEER_TIMEOUT_MS", "900")];

#[test]
fn processes_are_killed_at_random_under_load() {
    let mut mesh = Mesh::start(4, &ENVIRONMENT);
    for kill in 0..number("OFI_UDP_KILLS", 6) {
        std::thread::sleep(Duration::from_millis(100 + 37 * kill % 200));
        mesh.replace(kill as usize % 4);
    }
    mesh.expect_progress();
    assert!(mesh.end().iter().all(|Report { done, .. }| *done > 0));
}

/// The limit on growth of resident memory, in KiB, as in `soak.rs`.
const GROWTH: u64 = 8 << 10;

#[test]
fn memory_stays_flat_under_load() {
    let time = Duration::from_secs(number("OFI_SOAK_SECONDS", 6));
    let mut mesh = Mesh::start(4, &ENVIRONMENT[..1]);
    let sample = |mesh: &mut Mesh| mesh.seats.iter_mut().map(Seat::report).collect::<Vec<Report>>();
    std::thread::sleep(time / 3);
    let first = sample(&mut mesh);
    std::thread::sleep(time / 3 * 2);
    let last = sample(&mut mesh);
    for (before, after) in first.iter().zip(&last) {
        assert!(after.done > before.done, "a member made no progress: {before:?}, {after:?}");
        assert!(after.resident < before.resident + GROWTH, "{before:?}, {after:?}");
        assert!(after.files < before.files + 4, "{before:?}, {after:?}");
    }
    mesh.end();
}

/// Sets the flag when dropped.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Strangers send datagrams faster than they are read: nonsense, and session requests of other versions.
/// Known peers are still served, and no state is kept for strangers.
#[test]
fn a_flood_of_strangers_leaves_live_sessions_alone() {
    let (echo, side, to) = with_echo();
    echo.converse(&side, to, 1);
    let target = socket(&side.name());
    let over = AtomicBool::new(false);
    let peers = side.statistic("udp_peers");
    std::thread::scope(|scope| {
        // Also when an assertion fails: a flood that goes on would keep the scope open, and the failure would
        // not be reported.
        let _end = Raise(&over);
        scope.spawn(|| {
            let stranger = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
            let mut datagram = [0x55_u8; 1_200];
            for count in 0_u64.. {
                // Versions that do not exist; every second datagram requests a session.
                (datagram[0], datagram[1]) = (200 + (count % 7) as u8, (count % 2) as u8);
                let _ = stranger.send_to(&datagram, target);
                // In bursts: a socket queue that is always full also drops datagrams of peers, however fast
                // it is read.
                if count % 128 == 127 {
                    std::thread::sleep(Duration::from_micros(200));
                }
                if over.load(Relaxed) {
                    break;
                }
            }
        });
        wait::until("a flood", || {
            echo.converse(&side, to, 1);
            side.statistic("udp_versions") > 2_000
        });
    });
    assert_eq!((side.statistic("udp_peers"), side.statistic("udp_sessions_lost")), (peers, 0));
    echo.end(&side, to);
}

/// A peer that comes and goes leaves nothing behind at an endpoint that stays.
#[test]
fn sessions_that_end_leave_nothing_behind() {
    let hub = local();
    let message = Memory::patterned(64, 1);
    let mut before = 0;
    for round in 0..60 {
        let peer = open(any_port(Ipv4Addr::LOCALHOST));
        let (to, into) = (peer.insert(&hub), Memory::new(64));
        hub.receive(&into).context(1).post().expect("a receive");
        let out = peer.out(to, &message).context(2);
        wait::drive(&[&hub, &peer], "room", || out.send().ok());
        wait::drive(&[&hub, &peer], "the message", || hub.next_of(1)).done();
        wait::drive(&[&hub, &peer], "the send", || peer.next_of(2)).done();
        drop(peer);
        wait::drive(&[&hub], "the end of the session", || (hub.statistic("udp_sessions") == 0).then_some(()));
        if round == 20 {
            before = resident_kib();
        }
    }
    assert!(resident_kib() < before + 4_096, "{before} KiB, then {}", resident_kib());
}
