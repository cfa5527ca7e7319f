//! A process performs a valid handshake and then writes random bytes to all memory that it may write, while
//! its victims work.

use std::time::{Duration, Instant};

use ofi_shm::fuzz::{Hostile, HostileTarget, KINDS, Ring};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::mesh::Mesh;
use ofi_tests::{Naming, open, parse};

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below
    }

    /// Words that are typical of protocols: small ones, nearly all ones, and random ones.
    fn words(&mut self, count: usize) -> Vec<u8> {
        let word = |random: &mut Self| match random.below(5) {
            0 => 0,
            1 => random.below(64) as u64,
            2 => u64::MAX - random.below(64) as u64,
            3 => (random.below(4) as u64) << 32 | random.below(8) as u64, // a slot
            _ => random.0,
        };
        (0..count).flat_map(|_| word(self).to_ne_bytes()).collect()
    }
}

/// Performs one random protocol violation.
fn vandalise(hostile: &mut Hostile, random: &mut Random) {
    match random.below(8) {
        0..3 => {
            let ring = [Ring::Commands, Ring::Replies, Ring::Bulk][random.below(3)];
            let high = KINDS[random.below(KINDS.len())] | (random.below(1 << 16) as u32) << 8;
            let count = random.below(20);
            let body = random.words(count);
            hostile.record(ring, high, &body);
        }
        3 => {
            let count = random.below(10);
            hostile.datagram(&random.words(count));
        }
        _ => {
            let place = HostileTarget::ALL[random.below(HostileTarget::ALL.len())];
            // The important fields are near the beginning.
            let offset = if random.below(2) == 0 { random.below(160) * 4 } else { random.below(1 << 16) };
            let count = 1 + random.below(9);
            let bytes = random.words(count);
            hostile.deface(place, offset, &bytes);
        }
    }
}

/// Attacks the given addresses until it is told to end. If the key is valid, also the memory of that
/// registration.
pub fn vandal(line: &mut Line, arguments: &[String]) {
    let mut random = Random(0x1234_5678_9ABC_DEF1 ^ u64::from(std::process::id()) << 32);
    let key: u64 = arguments[0].parse().unwrap();
    let addresses: Vec<Address> = arguments[1..].iter().map(|text| parse(text)).collect();
    let mut visits = 0_u64;
    while !line.has_news() {
        for address in &addresses {
            let Ok(mut hostile) = Hostile::new(address) else { continue };
            hostile.tempt();
            if hostile.greet().is_err() {
                continue; // the victim was not scheduled for a second
            }
            let _ = hostile.seize(key);
            for _ in 0..3_000 {
                vandalise(&mut hostile, &mut random);
            }
            hostile.drain();
            visits += 1;
        }
    }
    line.say(visits);
}

#[test]
fn processes_work_on_while_another_scribbles_over_all_that_it_may_write() {
    let mut mesh = Mesh::start(3, &[("FI_SHM_SINGLE_COPY", "always"), ("FI_SHM_SINGLE_COPY_SIZE", "1")]);
    mesh.seats.iter_mut().for_each(|seat| seat.child.line.say("beware"));
    let names: Vec<String> = mesh.seats.iter().map(|seat| seat.address().to_string()).collect();
    let arguments: Vec<&str> = std::iter::once("7").chain(names.iter().map(String::as_str)).collect();
    let mut vandal = Child::start("vandal", &arguments);
    let start = Instant::now();
    let time = std::env::var("OFI_SOAK_SECONDS").map_or(3, |text| text.parse().expect("a number of seconds"));
    while start.elapsed() < Duration::from_secs(time) {
        mesh.expect_progress();
    }
    vandal.line.say("end");
    let visits: u64 = vandal.line.hear().parse().unwrap();
    assert!(visits > 0, "the vandal attacked no victim");
    vandal.finish();
    mesh.expect_progress();
    mesh.end();
}

/// "Close until it succeeds, then free" must not free memory under a writer.
#[test]
fn a_registration_stays_busy_until_the_last_copy_has_ended() {
    let side = open(Naming::Names);
    let memory = Memory::library(&side.domain, 65_536);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let key = region.key();
    let mut hostile = Hostile::new(&side.name()).unwrap();
    hostile.greet().unwrap();
    assert!(hostile.seize(key).unwrap());
    hostile.claim(Some(key));
    for attempt in 0..2 {
        let error = region.close().expect_err("a copy is in progress");
        assert_eq!(error.errno(), Errno::EBUSY, "attempt {attempt}: {error}");
    }
    assert!(!hostile.seize(key).unwrap_or(false), "the key still works after the close");
    hostile.claim(None);
    region.close().unwrap();
    region.close().unwrap();
}

/// Opens endpoints that receive until they are told to close, and prints the duration of the close in microseconds.
pub fn closer(line: &mut Line, _: &[String]) {
    for _ in 0..2 {
        let side = open(Naming::Names);
        let into = Memory::new(1 << 20);
        side.receive(&into).context(1).post().unwrap();
        line.say(side.name());
        wait::drive(&[&side], "the order to close", || {
            assert!(side.next().is_none(), "nobody has sent a whole message");
            line.has_news().then_some(())
        });
        line.expect("close");
        let start = Instant::now();
        drop(side);
        line.say(start.elapsed().as_micros());
    }
}

/// S1 of `ofi-shm/single`: an operation's memory is not returned while a peer writes it, but a lying peer is waited for
/// only once.
#[test]
fn a_peer_that_claims_to_write_for_ever_is_waited_for_once() {
    let mut child = Child::start_with("closer", &[], &[("FI_SHM_SINGLE_COPY", "always")]);
    let closed: [u64; 2] = std::array::from_fn(|_| {
        let mut hostile = Hostile::new(&parse(&child.line.hear())).unwrap();
        hostile.tempt();
        hostile.greet().unwrap();
        hostile.write_for_ever(1 << 20);
        // The receiver opens its memory at one of its next polls.
        std::thread::sleep(Duration::from_millis(300));
        child.line.say("close");
        child.line.hear().parse().unwrap()
    });
    assert!(closed[0] > 1_000_000, "the endpoint was closed under a writer, after {closed:?} us");
    assert!(closed[1] < closed[0], "another liar was trusted: {closed:?} us");
    child.finish();
}

#[test]
fn memory_granted_to_a_vandal_is_all_that_it_changes() {
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    // Granted memory, between two blocks of the same kind that are not granted.
    let [left, granted, right] = [0; 3].map(|_| Memory::library(&pair.b.domain, 65_536));
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let region = pair.b.register(&granted, rights).unwrap();
    for memory in [&left, &right] {
        memory.fill(9);
    }
    let mut vandal = Child::start("vandal", &[&region.key().to_string(), &pair.b.name().to_string()]);
    let (from, into) = (Memory::patterned(20_000, 5), Memory::new(20_000));
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(2) || rounds < 10 {
        pair.b.receive(&into).context(2).from(pair.to_a).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        pair.drive("a message", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(20_000, 5);
        into.fill(0);
        rounds += 1;
    }
    assert!(granted.bytes().iter().any(|&byte| byte != 0), "the vandal never wrote to the granted memory");
    vandal.line.say("end");
    assert!(vandal.line.hear().parse::<u64>().unwrap() > 0);
    vandal.finish();
    left.check(65_536, 9);
    right.check(65_536, 9);
    region.close().unwrap();
}
