//! Messages without receives, under small budgets: senders wait, nothing is lost, and no order of receives deadlocks.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{Naming, open, parse};

/// For steps of 100,000 round trips between processes, each of which may have to wait for a core on a busy
/// machine.
const LONG: Duration = Duration::from_secs(110);

/// The receiver's budget is small; the sender has the default settings.
const BYTES: (&str, &str) = ("FI_UNEXPECTED_BYTES", "1M");

/// Receives tags in reverse, once the sender has posted all of its sends.
pub fn reverse(line: &mut Line, arguments: &[String]) {
    let count: u64 = arguments[0].parse().unwrap();
    let len: usize = arguments[1].parse().unwrap();
    let side = open(Naming::Names);
    line.say(side.name());
    let into = Memory::new(len);
    // No receive is posted until all messages are at least announced, since the last one is received first.
    wait::drive_for(LONG, &[&side], "all messages", || line.has_news().then_some(()));
    line.expect("sent");
    let held = side.statistic("rx_unexpected_bytes");
    for tag in (0..count).rev() {
        side.receive(&into).context(1).tag(tag).post().unwrap();
        let entry = wait::drive(&[&side], "a message", || side.next_of(1)).done();
        assert_eq!((entry.tag, entry.len), (tag, len));
        into.check(len, tag as u8);
    }
    line.say(held);
}

fn in_reverse(count: u64, len: usize) {
    let (count_text, len_text) = (count.to_string(), len.to_string());
    let mut child = Child::start_with("reverse", &[&count_text, &len_text], &[BYTES]);
    let side = open(Naming::Names);
    let to = side.insert_address(&parse(&child.line.hear()));
    let (mut done, mut sent) = (0, 0);
    let mut seeds = Vec::new();
    for seed in 0..=255 {
        seeds.push(Memory::patterned(len, seed));
    }
    wait::drive_for(LONG, &[&side], "all sends to be accepted", || {
        while sent < count {
            match side.out(to, &seeds[sent as usize % 256]).tag(sent).context(1).send() {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert!(error.is_again(), "{error}");
                    break;
                }
            }
        }
        while let Some(event) = side.next() {
            event.done();
            done += 1;
        }
        (sent == count).then_some(())
    });
    child.line.say("sent");
    wait::drive_for(LONG, &[&side], "the receiver", || {
        while let Some(event) = side.next() {
            event.done();
            done += 1;
        }
        (child.line.has_news() && done == count).then_some(())
    });
    let held: u64 = child.line.hear().parse().unwrap();
    println!(
        "{count} messages of {len} bytes received in reverse; {held} bytes were held in a budget of 1 MiB"
    );
    // The budget, and at most a ring's worth that was in flight.
    assert!(held <= (1 << 20) + (64 << 10), "{held} bytes held");
    child.finish();
}

#[test]
fn a_hundred_thousand_tags_in_reverse_under_one_mebibyte() {
    in_reverse(100_000, 64);
}

#[test]
fn large_messages_in_reverse_under_one_mebibyte() {
    in_reverse(1_000, 20_000);
}

/// Posts no receives until told to. Its envelope budget is small.
pub fn sleepy(line: &mut Line, arguments: &[String]) {
    let count: usize = arguments[0].parse().unwrap();
    let side = open(Naming::Names);
    line.say(side.name());
    wait::drive_for(LONG, &[&side], "the start command", || line.has_news().then_some(()));
    line.expect("receive");
    line.say(side.statistic("rx_unexpected_now"));
    let into = Memory::new(8);
    for number in 0..count {
        side.receive(&into).context(1).tag_ignoring(1, 0).post().unwrap();
        wait::drive(&[&side], "a message", || side.next_of(1)).done();
        assert_eq!(into.bytes(), number.to_ne_bytes(), "in order, each once");
    }
    side.receive(()).context(2).tag(2).post().unwrap();
    wait::drive(&[&side], "the other sender's message", || side.next_of(2)).done();
    line.say("received");
}

#[test]
fn a_full_envelope_budget_stops_a_sender_and_loses_nothing() {
    const COUNT: usize = 10_000;
    const ENVELOPES: u64 = 500;
    let envelopes = ENVELOPES.to_string();
    let environment = [("FI_UNEXPECTED_MESSAGES", envelopes.as_str())];
    let mut child = Child::start_with("sleepy", &[&COUNT.to_string()], &environment);
    let address = parse(&child.line.hear());
    let (side, other) = (open(Naming::Names), open(Naming::Names));
    let (to, other_to) = (side.insert_address(&address), other.insert_address(&address));
    let from = Memory::new(8);
    let mut sent = 0;
    let mut send = |limit: usize| {
        while sent < limit {
            from.slice(..).put(&sent.to_ne_bytes());
            match side.out(to, &from).tag(1).msg(OpFlags::INJECT).send() {
                Ok(()) => sent += 1,
                Err(error) => {
                    assert!(error.is_again(), "{error}");
                    break;
                }
            }
        }
        sent
    };
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) {
        send(COUNT);
        side.poll();
        while let Some(event) = side.next() {
            event.done();
        }
    }
    let stopped = send(COUNT);
    assert!(stopped < COUNT, "a sender of {COUNT} messages was never stopped");
    // Another sender still gets through.
    wait::drive(&[&other], "room", || other.out(other_to, ()).tag(2).context(1).send().ok());
    wait::drive(&[&other], "the other sender's message", || other.next_of(1)).done();
    child.line.say("receive");
    let held: u64 = child.line.hear().parse().unwrap();
    assert!(held <= ENVELOPES + 32, "{held} envelopes in a budget of {ENVELOPES}");
    wait::drive_for(LONG, &[&side, &other], "the rest", || {
        let sent = send(COUNT);
        while let Some(event) = side.next() {
            event.done();
        }
        (sent == COUNT && child.line.has_news()).then_some(())
    });
    child.line.expect("received");
    child.finish();
}
