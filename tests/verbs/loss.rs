//! Peers that are killed: operations to them fail within the bound, and the next use connects again.

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_tests::{parse, parse_region, region_text};

use super::VerbsPair;

/// Timeout of an operation to a dead peer. A device resends packets six times before it gives up a peer, and an
/// emulated guest is slow relative to its clock.
const BOUND: Duration = Duration::from_secs(30);

fn open() -> TestEndpoint {
    let kit: &dyn ofi_testkit::Kit = &VerbsPair;
    kit.side()
}

/// A peer that exposes its memory, sends a message and answers none, under the given name if there is one.
pub fn victim(line: &mut Line, arguments: &[String]) {
    let kit: &dyn ofi_testkit::Kit = &VerbsPair;
    let side = match &arguments[0][..] {
        "" => kit.side(),
        name => wait::drive(&[], "the name of an endpoint that was killed", || {
            kit.opening().name(&parse(name)).try_open().ok()
        }),
    };
    line.say(side.name());
    let to = side.insert_address(&parse(&line.hear()));
    let memory = Memory::new(1 << 20);
    let region = side.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    line.say(region_text(&region));
    wait::drive(&[&side], "room", || side.out(to, ()).tag(5).inject().send().ok());
    while !line.has_news() {
        side.poll();
        std::thread::yield_now();
    }
}

/// Starts such a peer, and receives its message.
fn start(side: &TestEndpoint, name: &str) -> (Child, FiAddr, RemotePiece, String) {
    let mut child = Child::start("victim", &[name]);
    let name = child.line.hear();
    let to = side.insert_address(&parse(&name));
    child.line.say(side.name());
    let there = parse_region(&child.line.hear());
    side.receive(()).context(9).tag(5).post().unwrap();
    wait::drive(&[side], "a message", || side.next_of(9)).done();
    (child, to, there, name)
}

/// Drives `side` until the operation `context` has failed.
fn failed(side: &TestEndpoint, context: usize) {
    let end =
        wait::drive_for(BOUND, &[side], "an operation to a peer that is gone", || side.next_of(context));
    assert!(matches!(end, Event::Failed(_)), "{end:?}");
}

#[test]
fn what_is_for_a_killed_peer_fails_and_one_that_comes_in_its_place_is_reached() {
    let side = open();
    let (mut child, to, there, name) = start(&side, "");
    let (mut other, to_other, there_other, _) = start(&side, "");
    let from = Memory::patterned(1 << 20, 3);
    // By the owner first, then by the device.
    for _ in 0..2 {
        wait::drive(&[&side], "room", || side.out(to, &from).context(1).write(&[there]).ok());
        wait::drive(&[&side], "a write", || side.next_of(1)).done();
    }
    child.kill();
    let mut posted = Vec::new();
    wait::drive(&[&side], "room", || side.out(to, &from).context(2).write(&[there]).ok());
    posted.push(2);
    // If the end of the connection is already known, this is the first operation of the next connection, which is never
    // accepted.
    wait::drive(&[&side], "room", || side.out(to, &from).context(3).send().ok());
    posted.push(3);
    wait::drive(&[&side], "room", || side.out(to, &from).context(4).read(&[there]).ok());
    posted.push(4);
    for context in posted {
        failed(&side, context);
    }
    wait::drive(&[&side], "room", || side.out(to_other, &from).context(5).write(&[there_other]).ok());
    wait::drive(&[&side], "a write to a peer that lives", || side.next_of(5)).done();
    let (mut again, to, there, _) = start(&side, &name);
    wait::drive(&[&side], "room", || side.out(to, &from).context(6).write(&[there]).ok());
    wait::drive(&[&side], "a write to the one that came after", || side.next_of(6)).done();
    for child in [&mut other, &mut again] {
        child.line.try_say("end");
    }
}
