//! Work that waits for room: credits at a full queue, messages that outlive their connection, transfers whose
//! connection is gone.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Plan, SimulatedDevice};
use ofi_verbs::rc::Access;

use super::raw::{KEY, RAW, RIGHT_TO_WRITE, Raw, record};
use super::{device, hints};

/// Kinds of records (`ofi-verbs/wire.rs`).
const MESSAGE: u8 = 1;
const ANNOUNCE: u8 = 2;
const WRITE: u8 = 3;
const CREDIT: u8 = 19;
const RETIRE: u8 = 22;

/// A device whose queue pairs hold few requests.
struct Short;

const REQUESTS: usize = 8;

static SHORT: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("short0", Plan { requests: REQUESTS, ..Plan::default() }));

impl Kit for Short {
    fn hints(&self) -> Hints {
        LazyLock::force(&SHORT);
        hints("short0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint that owes a peer credits while its queue pair is full returns them as soon as there is room, even if
/// nothing else is posted.
#[test]
fn credits_that_found_a_full_queue_are_given_back_when_it_has_room() {
    const RECORDS: u16 = 16;
    let kit: &dyn Kit = &Short;
    let side = kit.side();
    let mut raw = Raw::over(&SHORT, &side, 1, Access::RemoteRead);
    let to = side.insert_address(&SocketAddr::from(RAW).into());
    let (from, into) = (Memory::patterned(8, 1), Memory::new(8));
    let mut exchange = |count: u16| {
        for _ in 0..count {
            side.receive(&into).context(2).post().unwrap();
            raw.send(&record(MESSAGE, &[5]));
            raw.arrived(1);
            wait::drive(&[&side], "a message", || side.next_of(2)).done();
        }
    };
    exchange(1); // and so the connection is there
    // The peer has no room, so all requests stay at the device.
    for _ in 0..REQUESTS {
        side.out(to, &from).context(1).send().unwrap();
    }
    exchange(RECORDS);
    assert!(raw.next().is_none(), "nothing leaves before there is room");
    raw.make_room(2 * REQUESTS);
    let mut given = 0;
    for _ in 0..REQUESTS {
        wait::drive(&[&side], "the end of a send", || side.next_of(1)).done();
        let came = raw.next().unwrap();
        given += came[3];
        assert_eq!((came[0], given), (MESSAGE, 1), "posted when one was owed");
    }
    let came = wait::drive(&[&side], "the credits", || raw.next());
    assert_eq!((came[0], &came[2..4]), (CREDIT, &RECORDS.to_be_bytes()[..]));
}

/// A payload whose announcement waits for a receive is fetched over a new connection if the first one was closed while
/// idle. Posting the receive establishes the connection.
#[test]
fn a_payload_to_be_fetched_brings_about_the_connection_that_it_needs() {
    let kit: &dyn Kit = &super::VerbsPair;
    let side = kit.side();
    let mut raw = Raw::to(&side, 1);
    let memory = raw.memory();
    raw.make_room(1);
    raw.send(&record(ANNOUNCE, &[1, memory.len() as u64, 1, 0, memory.len() as u64, 1]));
    raw.send(&record(RETIRE, &[0]));
    raw.arrived(2);
    let came = wait::drive(&[&side], "its word", || raw.next());
    assert_eq!((came[0], came[15]), (RETIRE, 1), "it agrees");
    wait::drive(&[&side], "the end of the connection", || {
        (side.statistic("verbs_connections_now") == 0).then_some(())
    });
    let into = Memory::new(memory.len());
    side.receive(&into).context(3).post().unwrap();
    // No endpoint listens at the address that the peer named, so the first connect fails.
    let error = wait::drive(&[&side], "the end of the receive", || side.next_of(3)).failed();
    assert_eq!(error.err, Errno::EHOSTUNREACH, "{error:?}");
}

/// The options of [`room`]: one message may wait for a receive, in addition to those that hold receives of the device.
const SETTINGS: [(&str, &str); 2] = [("FI_UNEXPECTED_MESSAGES", "1"), ("FI_VERBS_PEER_CREDITS", "8")];
const DEVICE: &str = "full0";

/// The endpoint of [`room`].
struct Full;

impl Kit for Full {
    fn hints(&self) -> Hints {
        hints(DEVICE)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint with room for one message, whose peer loses its connection repeatedly.
pub fn room(line: &mut Line, _: &[String]) {
    const RECEIVES: usize = 512;
    let full = device(DEVICE, Plan::default());
    let kit: &dyn Kit = &Full;
    let side = kit.side();
    let there = Memory::patterned(8, 1);
    let region = side.register(&there, MrAccess::REMOTE_WRITE).unwrap();
    let (mut raws, mut number) = (Vec::new(), 0);
    let mut send = |raw: &mut Raw, count: u64| {
        for _ in 0..count {
            raw.send(&record(MESSAGE, &[number]));
            number += 1;
        }
    };
    let received = |count: u64| {
        wait::drive(&[&side], "the records", || (side.statistic("verbs_received") == count).then_some(()));
    };
    // One message fits, and seven records hold receives of the device. Two of them are no messages, and end with the
    // connection, as reported to their sender.
    let mut raw = Raw::over(&full, &side, 1, Access::RemoteRead);
    send(&mut raw, 5);
    raw.send(&record(WRITE, &[1, 1, region.base(), 8, region.key(), 0]));
    raw.send(&record(ANNOUNCE, &[1, 8, 1, 0, 8, 1]));
    send(&mut raw, 1);
    received(8);
    raws.push(raw);
    // Held messages count against the credits of the next connection, which has four.
    for attempt in 2..4 {
        let mut raw = Raw::over(&full, &side, attempt, Access::RemoteRead);
        send(&mut raw, 4);
        received(u64::from(attempt) * 4 + 4);
        raws.push(raw);
    }
    let mut raw = Raw::over(&full, &side, 4, Access::RemoteRead);
    send(&mut raw, 3);
    received(19);
    raw.give(&side, RIGHT_TO_WRITE); // which its device does not know of
    // So the write is sent to the owner over the next connection, which is refused because 16 messages wait.
    let to = side.insert_address(&SocketAddr::from(RAW).into());
    let from = Memory::new(8);
    side.out(to, &from).context(1).write(&[RemotePiece { addr: 0, len: 8, key: KEY }]).unwrap();
    wait::drive_through(Duration::from_millis(20), &[&side]);
    let refused = Raw::try_over(&full, &side, 5, Access::RemoteRead).err().expect("a refusal");
    assert_eq!(refused, "ofv1 later: messages of earlier connections wait for the application");
    wait::drive_through(Duration::from_millis(20), &[&side]);
    assert_eq!((side.statistic("verbs_asked_again"), side.pending()), (1, 0));
    for number in 0..17u64 {
        let into = Memory::new(8);
        side.receive(&into).context(2).post().unwrap();
        wait::drive(&[&side], "a message", || side.next_of(2)).done();
        assert_eq!(into.bytes(), number.to_be_bytes());
    }
    // The write has caused a connection to the address at which the peer claims to listen.
    let error = wait::drive(&[&side], "the end of the write", || side.next_of(1)).failed();
    assert_eq!(error.err, Errno::EHOSTUNREACH, "{error:?}");
    there.check(8, 1);
    assert_eq!(full.receives(side.name().to_socket_addr().unwrap()), RECEIVES);
    line.say("done");
    drop((raw, raws));
}

/// Refused accesses do not end with their connection on a peer that gets no other one.
#[test]
fn messages_without_room_outlive_their_connection() {
    let mut child = Child::start_with("room", &[], &SETTINGS);
    child.line.expect("done");
}
