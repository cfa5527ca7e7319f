//! Receives that several connections share, by a shared receive queue of the device (`ofi-verbs/connected/shared.rs`).

use std::sync::Arc;

use ofi_testkit::connect::{Listener, connect, event_of};
use ofi_testkit::prelude::*;

use super::ConnectedPair;

const ANY: FiAddr = FiAddr::UNSPEC;

fn kit() -> &'static dyn Kit {
    &ConnectedPair
}

/// A context, its endpoints, and the peer of each.
struct Group {
    members: Vec<TestEndpoint>,
    callers: Vec<TestEndpoint>,
    srx: TestEndpoint,
}

impl Group {
    fn open(count: usize, size: usize) -> Self {
        let host = kit().opening().open_disabled().unwrap();
        let mut attr = host.info.rx_attr.clone();
        attr.size = size;
        let srx = host.context(host.domain.open_shared_receive(&attr).unwrap());
        let (mut members, mut callers) = (Vec::new(), Vec::new());
        for _ in 0..count {
            let caller = kit().opening().open_disabled().unwrap();
            members.push(connect(&caller, kit().opening().shared_receive(&srx.ep).beside(&host)).unwrap());
            callers.push(caller);
        }
        Self { members, callers, srx }
    }

    fn sides(&self) -> Vec<&TestEndpoint> {
        self.members.iter().chain(&self.callers).collect()
    }

    /// Sends from the caller `at`, and waits for the completion.
    fn send(&self, at: usize, from: &Memory) {
        self.callers[at].out(ANY, from).context(99).send().unwrap();
        wait::drive(&self.sides(), "the end of a send", || self.callers[at].next_of(99)).done();
    }

    #[track_caller]
    fn end(&self, at: usize, context: usize) -> Event {
        wait::drive(&self.sides(), "the end of a receive", || self.members[at].next_of(context))
    }
}

#[test]
fn messages_of_every_connection_take_the_oldest_receive() {
    let group = Group::open(3, 64);
    let into: Vec<Memory> = (0..12).map(|_| Memory::new(3000)).collect();
    for (context, into) in into.iter().enumerate() {
        group.srx.receive(vec![into.slice(..1000), into.slice(1000..)]).context(context).post().unwrap();
    }
    assert_eq!(group.srx.statistic("rx_posted"), 12);
    for (context, into) in into.iter().enumerate() {
        let (at, len) = (context * 7 % 3, context * 250);
        group.send(at, &Memory::patterned(len, context as u8));
        assert_eq!(group.end(at, context).done().len, len);
        into.check(len, context as u8);
    }
    assert_eq!(group.srx.statistic("rx_posted"), 0);
    // A message waits for a receive, and consumes it as soon as it is posted.
    group.callers[1].out(ANY, &into[0]).context(5).send().unwrap();
    wait::drive_through(Duration::from_millis(50), &group.sides());
    group.srx.receive(&into[1]).context(77).post().unwrap();
    group.end(1, 77).done();
    wait::drive(&group.sides(), "the end of a send", || group.callers[1].next_of(5)).done();
}

#[test]
fn a_write_with_data_takes_a_receive_of_the_context() {
    let group = Group::open(2, 8);
    let (from, there, unused) = (Memory::patterned(100, 3), Memory::new(100), Memory::new(10));
    let region = group.members[1].register(&there, MrAccess::REMOTE_WRITE).unwrap();
    group.srx.receive(&unused).context(1).post().unwrap();
    let target = RemotePiece { addr: region.base(), len: 100, key: region.key() };
    group.callers[1].out(ANY, &from).context(2).data(0xFEED).write(&[target]).unwrap();
    let entry = group.end(1, 1).done();
    assert_eq!((entry.data, entry.len), (0xFEED, 100));
    wait::drive(&group.sides(), "the end of a write", || group.callers[1].next_of(2)).done();
    there.check(100, 3);
}

#[test]
fn there_is_room_for_as_many_as_were_asked_for() {
    let group = Group::open(1, 2);
    let into = Memory::new(64);
    for context in 1..=2 {
        group.srx.receive(&into).context(context).post().unwrap();
    }
    assert!(group.srx.receive(&into).context(3).post().unwrap_err().is_again());
    for round in 0..5 {
        group.send(0, &Memory::patterned(64, 1));
        group.end(0, 1 + round % 2).done();
        group.srx.receive(&into).context(1 + round % 2).post().unwrap();
        assert!(group.srx.receive(&into).context(3).post().unwrap_err().is_again());
    }
}

#[test]
fn what_ends_one_connection_leaves_the_receives_of_the_others() {
    let mut group = Group::open(4, 16);
    let into = Memory::new(64);
    for context in 1..=3 {
        group.srx.receive(&into).context(context).post().unwrap();
    }
    // A message that is too long ends its connection and its receive.
    group.callers[0].out(ANY, &Memory::patterned(65, 1)).context(9).send().unwrap();
    assert_eq!(group.end(0, 1).failed().err, Errno::EIO);
    event_of(&group.members[0], EventKind::Shutdown, &group.sides());
    // A message that is not read before its endpoint closes returns its receive.
    group.callers[1].out(ANY, &Memory::patterned(10, 2)).context(9).send().unwrap();
    wait::drive(&[&group.callers[1]], "the end of a send", || group.callers[1].next_of(9)).done();
    drop(group.members.remove(1));
    // A peer that disconnects consumes no receive.
    drop(group.callers.remove(2));
    let (left, caller) = (&group.members[2], &group.callers[2]);
    let mut ends = Vec::new();
    for round in 0..2 {
        caller.out(ANY, &Memory::patterned(20, round)).context(9).send().unwrap();
        wait::drive(&group.sides(), "the end of a send", || caller.next_of(9)).done();
        ends.push(wait::drive(&group.sides(), "the end of a receive", || {
            (2..=3).find_map(|context| left.next_of(context))
        }));
    }
    let mut contexts: Vec<usize> = ends.iter().map(Event::context).collect();
    contexts.sort_unstable();
    assert_eq!(contexts, [2, 3]);
    ends.into_iter().for_each(|end| assert_eq!(end.done().len, 20));
}

#[test]
fn memory_of_a_context_that_closed_is_the_application_s_again() {
    let group = Group::open(1, 8);
    let Group { members, callers, srx } = group;
    let into = Memory::patterned(64, 5);
    srx.receive(&into).context(1).post().unwrap();
    let member = &members[0];
    // The member holds the context; only its owner closes it.
    let sides = [member, &callers[0]];
    let weak = Arc::downgrade(&srx.ep);
    drop(srx);
    assert!(weak.upgrade().is_none(), "the test's was the last one");
    let _ = callers[0].out(ANY, &Memory::patterned(64, 1)).context(2).send();
    event_of(&callers[0], EventKind::Shutdown, &sides);
    into.check(64, 5);
    assert!(member.next_of(1).is_none(), "nothing is reported of a context that closed");
}

#[test]
fn receives_that_no_device_knows_are_refused() {
    let host = kit().opening().open_disabled().unwrap();
    let mut attr = host.info.rx_attr.clone();
    attr.caps = Caps::MSG | Caps::TAGGED | Caps::MULTI_RECV;
    let srx = host.context(host.domain.open_shared_receive(&attr).unwrap());
    let into = Memory::new(8);
    assert_eq!(srx.receive(&into).tag(1).post().unwrap_err().errno(), Errno::EOPNOTSUPP);
    let multi = srx.receive(&into).msg(OpFlags::MULTI_RECV | OpFlags::COMPLETION).post();
    assert_eq!(multi.unwrap_err().errno(), Errno::EBADFLAGS);
    assert_eq!(srx.statistic("rx_posted"), 0);
}

#[test]
fn a_context_of_other_endpoints_is_refused() {
    let reliable: &dyn Kit = &super::VerbsPair;
    let reliable = reliable.opening().open();
    let srx = reliable.domain.open_shared_receive(&reliable.info.rx_attr).unwrap();
    let opening = kit().opening_for(kit().usual().caps(Caps::MSG)).shared_receive(&srx).beside(&reliable);
    let listener = Listener::open(&opening.first_info().unwrap()).unwrap();
    let side = opening.open_disabled().unwrap();
    let refused = side.ep.connect(&listener.pep.name().unwrap(), b"").unwrap_err();
    assert_eq!(refused.errno(), Errno::EINVAL);
}
