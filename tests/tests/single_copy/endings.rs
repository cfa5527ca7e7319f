//! Two processes, one of which exits, loses permission, or refuses single copies in the middle of copies.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::denied::deny_process_vm;
use ofi_tests::{Naming, open, parse};

use super::missing;

/// Many chunks, and larger than any ring.
const LARGE: usize = 24 << 20;
/// How long an operation with a dead peer may take to end, with a margin for the scheduler of a busy machine.
pub const BOUND: Duration = Duration::from_secs(3);

pub fn meet(line: &mut Line) -> (TestEndpoint, FiAddr) {
    let side = open(Naming::Names);
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    greet(&side, to);
    (side, to)
}

pub fn start(role: &str, environment: &[(&str, &str)]) -> (Child, TestEndpoint, FiAddr) {
    let mut child = Child::start_with(role, &[], environment);
    let side = open(Naming::Names);
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    be_greeted(&side, to);
    (child, side, to)
}

/// Sends an empty message and waits for an answer: memory is not lent for messages announced before the two
/// ends have met.
fn greet(side: &TestEndpoint, to: FiAddr) {
    side.receive(()).context(90).post().unwrap();
    wait::drive(&[side], "room", || side.out(to, ()).context(91).send().ok());
    wait::drive(&[side], "a greeting", || side.next_of(90)).done();
    wait::drive(&[side], "the send", || side.next_of(91)).done();
}

/// The other half of [`greet`].
fn be_greeted(side: &TestEndpoint, to: FiAddr) {
    side.receive(()).context(90).post().unwrap();
    wait::drive(&[side], "a greeting", || side.next_of(90)).done();
    wait::drive(&[side], "room", || side.out(to, ()).context(91).send().ok());
    wait::drive(&[side], "the send", || side.next_of(91)).done();
}

/// Sends large messages until the peer is gone, and then to the next peer given on the line.
pub fn pusher(line: &mut Line, _arguments: &[String]) {
    let from = Memory::patterned(LARGE, 1);
    loop {
        let side = open(Naming::Names);
        line.say(side.name());
        let text = line.hear();
        if text == "end" {
            return;
        }
        let to = side.insert_address(&parse(&text));
        greet(&side, to);
        let mut written = 0;
        loop {
            let out = side.out(to, &from).context(1);
            if wait::drive(&[&side], "room, or an error", || match out.send() {
                Ok(()) => Some(true),
                Err(error) if error.is_again() => side.next_of(1).map(|_| false),
                Err(_) => Some(false),
            }) {
                let event = wait::drive(&[&side], "the completion", || side.next_of(1));
                written = side.statistic("shm_single_written_bytes");
                if matches!(event, Event::Done(..)) {
                    continue;
                }
            }
            break;
        }
        line.say(written);
    }
}

/// Executes commands, receives a message and reports whether it was right. `deny` forbids this process to
/// copy.
pub fn sink(line: &mut Line, _arguments: &[String]) {
    let (side, _) = meet(line);
    let into = Memory::new(LARGE);
    loop {
        let text = line.hear();
        match text.as_str() {
            "end" => return,
            "deny" => deny_process_vm(),
            seed => {
                into.fill(0);
                side.receive(&into).context(1).post().unwrap();
                let len = wait::drive(&[&side], "a message", || side.next_of(1)).done().len;
                into.check(len, seed.parse().unwrap());
                line.say(format!(
                    "{} {}",
                    side.statistic("shm_single_messages"),
                    side.statistic("shm_single_read_bytes")
                ));
            }
        }
    }
}

/// Sends messages of the given length and seed; `deny` as above.
pub fn source(line: &mut Line, _arguments: &[String]) {
    let (side, to) = meet(line);
    loop {
        let text = line.hear();
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["end"] => return,
            ["deny"] => deny_process_vm(),
            [len, seed] => {
                let from = Memory::patterned(len.parse().unwrap(), seed.parse().unwrap());
                let out = side.out(to, &from).context(1);
                wait::drive(&[&side], "room", || out.send().ok());
                wait::drive(&[&side], "the send", || side.next_of(1)).done();
                line.say(side.statistic("shm_single_written_bytes"));
            }
            _ => unreachable!("{text}"),
        }
    }
}

/// A new endpoint as the target of a `pusher`.
fn push(child: &mut Child) -> (TestEndpoint, FiAddr) {
    let side = open(Naming::Names);
    let to = side.insert_address(&parse(&child.line.hear()));
    child.line.say(side.name());
    be_greeted(&side, to);
    (side, to)
}

#[test]
fn nobody_writes_into_memory_whose_endpoint_was_closed() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let mut child = Child::start("pusher", &[]);
    let into = Memory::new(LARGE);
    let mut interrupted = 0;
    for round in 0..40_u32 {
        let (side, _) = push(&mut child);
        side.receive(&into).context(1).post().unwrap();
        side.receive(&into).context(1).post().unwrap();
        // Lets the sender copy for a while, which differs in each round.
        let begin = wait::drive(&[&side], "the first bytes", || {
            (side.statistic("shm_single_read_bytes") > 0).then(Instant::now)
        });
        while begin.elapsed() < Duration::from_micros(u64::from(round) * 137) {
            side.poll();
        }
        interrupted += u32::from(side.next_of(1).is_none());
        drop(side);
        into.fill(7);
        let copy = into.bytes();
        std::thread::sleep(Duration::from_millis(3));
        assert!(into.bytes() == copy, "round {round}: written after the endpoint was closed");
        let _: u64 = child.line.hear().parse().unwrap();
    }
    assert!(interrupted > 10, "only {interrupted} of 40 were closed in the middle");
    child.line.hear();
    child.line.say("end");
    child.finish();
}

#[test]
fn a_receiver_whose_sender_is_killed_in_the_middle_gets_an_error_and_no_more_bytes() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    for round in 0..6_u32 {
        let mut child = Child::start("pusher", &[]);
        let (side, _) = push(&mut child);
        let into = Memory::new(LARGE);
        side.receive(&into).context(1).post().unwrap();
        let begin = wait::drive(&[&side], "the first bytes", || {
            (side.statistic("shm_single_read_bytes") > 0).then(Instant::now)
        });
        while begin.elapsed() < Duration::from_micros(u64::from(round) * 400) {
            side.poll();
        }
        child.kill();
        let killed = Instant::now();
        let event = wait::drive(&[&side], "the completion", || side.next_of(1));
        assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
        match event {
            Event::Done(entry, _) => into.check(entry.len, 1), // it completed before the kill
            failed => assert_eq!(failed.failed().err, Errno::ECONNRESET),
        }
        let copy = into.bytes();
        std::thread::sleep(Duration::from_millis(2));
        assert!(into.bytes() == copy);
    }
}

#[test]
fn a_sender_whose_receiver_is_killed_in_the_middle_gets_an_error() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    for round in 0..6_u32 {
        let (mut child, side, to) = start("sink", &[]);
        let from = Memory::patterned(LARGE, 2);
        child.line.say(2);
        let out = side.out(to, &from).context(1);
        wait::drive(&[&side], "room", || out.send().ok());
        // If this process is not scheduled in time, the receiver reads everything before the kill.
        let mut end = None;
        let begin = wait::drive(&[&side], "the first bytes, or the end", || {
            end = side.next_of(1);
            (end.is_some() || side.statistic("shm_single_written_bytes") > 0).then(Instant::now)
        });
        while begin.elapsed() < Duration::from_micros(u64::from(round) * 400) {
            side.poll();
        }
        child.kill();
        let killed = Instant::now();
        match wait::drive(&[&side], "the completion", || end.take().or_else(|| side.next_of(1))) {
            Event::Done(..) => {} // it completed before the kill
            failed => assert_eq!(failed.failed().err, Errno::ECONNRESET),
        }
        assert!(killed.elapsed() < BOUND, "{:?}", killed.elapsed());
    }
}

/// Has `sink` receive one message. Returns its counts of single-copy messages and of the bytes it read for
/// them.
fn sent(child: &mut Child, side: &TestEndpoint, to: FiAddr, len: usize, seed: u8) -> (u64, u64) {
    child.line.say(seed);
    let from = Memory::patterned(len, seed);
    let out = side.out(to, &from).context(1);
    wait::drive(&[side], "room", || out.send().ok());
    wait::drive(&[side], "the send", || side.next_of(1)).done();
    let text = child.line.hear();
    let (messages, read) = text.split_once(' ').unwrap();
    (messages.parse().unwrap(), read.parse().unwrap())
}

#[test]
fn a_receiver_that_may_not_read_is_written_to() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("sink", &[]);
    child.line.say("deny");
    let (before, _) = sent(&mut child, &side, to, 20_000, 2);
    let (messages, read) = sent(&mut child, &side, to, LARGE, 3);
    assert_eq!((messages, read), (before + 1, 0), "the sender may copy, and copies everything");
    assert!(side.statistic("shm_single_written_bytes") >= LARGE as u64);
    child.line.say("end");
    child.finish();
}

#[test]
fn a_right_that_is_taken_away_is_done_without() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("sink", &[]);
    sent(&mut child, &side, to, 9_000, 1);
    let (_, read) = sent(&mut child, &side, to, LARGE, 2);
    assert!(read > 0);
    child.line.say("deny");
    let (messages, after) = sent(&mut child, &side, to, LARGE, 3);
    assert_eq!(after, read, "bytes were read after the denial");
    let (again, _) = sent(&mut child, &side, to, LARGE, 4);
    assert_eq!(again, messages + 1);
    child.line.say("end");
    child.finish();
}

#[test]
fn a_sender_that_may_not_write_is_read_from() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, _) = start("source", &[]);
    let into = Memory::new(LARGE);
    let receive = |child: &mut Child, len: usize, seed: u8| -> u64 {
        side.receive(&into).context(1).post().unwrap();
        child.line.say(format!("{len} {seed}"));
        wait::drive(&[&side], "a message", || side.next_of(1)).done();
        into.check(len, seed);
        wait::drive(&[&side], "the report of the send", || child.line.has_news().then(|| child.line.hear()))
            .parse()
            .unwrap()
    };
    receive(&mut child, 9_000, 1);
    receive(&mut child, LARGE, 2);
    child.line.say("deny");
    let before = side.statistic("shm_single_read_bytes");
    let first = receive(&mut child, LARGE, 3);
    let written = receive(&mut child, LARGE, 4);
    assert_eq!(written, first, "bytes were written after the denial");
    assert!(side.statistic("shm_single_read_bytes") - before >= 2 * LARGE as u64);
    child.line.say("end");
    child.finish();
}

#[test]
fn a_peer_that_does_not_want_it_is_left_alone() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("sink", &[("FI_SHM_SINGLE_COPY", "never")]);
    for seed in 1..4 {
        assert_eq!(sent(&mut child, &side, to, 1 << 20, seed), (0, 0));
    }
    assert_eq!(side.statistic("shm_single_written_bytes"), 0);
    assert!(side.statistic("shm_bulk_bytes") >= 3 << 20);
    child.line.say("end");
    child.finish();
}

#[test]
fn left_to_itself_a_pair_tries_both_ways() {
    if let Some(reason) = missing() {
        return println!("skipped: {reason}");
    }
    let (mut child, side, to) = start("sink", &[("FI_SHM_SINGLE_COPY", "auto")]);
    let mut straight = 0;
    for seed in 0..40 {
        (straight, _) = sent(&mut child, &side, to, 300_000, seed);
    }
    assert!(straight >= 3, "{straight}");
    assert!(side.statistic("shm_bulk_bytes") >= 3 * 300_000, "{}", side.report());
    child.line.say("end");
    child.finish();
}
