//! Peek, claim and discard (fi_tagged(3)) in a receive context that endpoints share. The result is reported by the
//! endpoint at which the message arrived, or by the first endpoint if there is no message.

use super::sharing::Group;
use crate::prelude::*;

const PEEK: OpFlags = OpFlags::PEEK;
const CLAIM: OpFlags = OpFlags::CLAIM;
const DISCARD: OpFlags = OpFlags::DISCARD;

/// The lengths of a message that is sent at once, and of one whose payload waits at its sender.
const LENGTHS: [usize; 2] = [60, 300_000];

/// Leaves a message with tag `tag` unexpected that arrived at member `at`.
fn keep(group: &Group, at: usize, tag: u64, memory: &Memory) {
    group.keep(at, Some(tag), tag + 100, memory);
}

/// Searches with `flags` for a tag; member `at` reports the result.
fn search(group: &Group, at: usize, flags: OpFlags, tag: u64, context: usize) -> Event {
    group.srx.receive(()).context(context).tag(tag).msg(flags).post().unwrap();
    group.drive("the result of a search", || group.members[at].b.next_of(context))
}

pub fn a_shared_peek_is_told_by_the_endpoint_of_its_message(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    for len in LENGTHS {
        let sent = [Memory::patterned(len, 1), Memory::patterned(len, 2)];
        keep(&group, 1, 1, &sent[0]);
        keep(&group, 0, 2, &sent[1]);
        for (at, tag) in [(0, 2), (1, 1), (1, 1)] {
            let entry = search(&group, at, PEEK, tag, 7).done();
            assert_eq!((entry.tag, entry.len, entry.data), (tag, len, tag + 100));
            assert!(entry.flags.contains(CompletionFlags::RECV | CompletionFlags::TAGGED));
            assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA));
        }
        for (at, tag) in [(1, 1), (0, 2)] {
            let got = Memory::new(len);
            group.srx.receive(&got).tag(tag).context(8).post().unwrap();
            let entry = group.drive("the message itself", || group.members[at].b.next_of(8)).done();
            assert_eq!((entry.tag, entry.len), (tag, len));
            got.check(len, tag as u8);
        }
    }
}

pub fn a_shared_peek_that_finds_nothing_ends_at_the_first_endpoint(kit: &dyn Kit) {
    let mut group = Group::open(kit, 2, |opening| opening);
    for flags in [PEEK, PEEK | CLAIM, PEEK | DISCARD] {
        let error = search(&group, 0, flags, 5, 7).failed();
        assert_eq!((error.err, error.op_context, error.tag), (Errno::ENOMSG, Context(7), 5));
    }
    // It does not stay posted, and after the first endpoint has closed, the next one reports.
    drop(group.members.remove(0));
    assert_eq!(search(&group, 0, PEEK, 5, 8).failed().err, Errno::ENOMSG);
    keep(&group, 0, 5, &Memory::new(10));
    assert_eq!(search(&group, 0, PEEK, 5, 9).done().len, 10);
}

pub fn a_shared_peek_drives_the_endpoints(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    // Connect the second one first, so that the message below is in flight as soon as it is sent.
    keep(&group, 1, 1, &Memory::new(4));
    group.send(1, Some(5), 5, &Memory::new(4));
    // The members' queues are not read: only searches drive them. The test reads a queue only where the result is
    // expected.
    let give_up = Instant::now() + Duration::from_secs(10);
    for context in 1.. {
        assert!(Instant::now() < give_up, "no search finds the message");
        group.members[1].a.poll();
        group.srx.receive(()).context(context).tag(5).msg(PEEK).post().unwrap();
        match group.drive("the result", || group.members.iter().find_map(|pair| pair.b.next_of(context))) {
            Event::Done(entry, _) => return assert_eq!(entry.tag, 5),
            Event::Failed(error) => assert_eq!(error.err, Errno::ENOMSG),
        }
    }
}

pub fn a_message_claimed_in_a_shared_context_is_for_its_claimer(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    for len in LENGTHS {
        let sent: Vec<Memory> = (0..3).map(|seed| Memory::patterned(len, seed)).collect();
        // All have the same tag: the first two are claimed.
        for (at, sent) in [1, 0, 1].into_iter().zip(&sent) {
            keep(&group, at, 4, sent);
        }
        assert_eq!(search(&group, 1, PEEK | CLAIM, 4, 7).done().len, len);
        assert_eq!(search(&group, 0, PEEK | CLAIM, 4, 8).done().len, len);
        let got = Memory::new(len);
        group.srx.receive(&got).tag(4).context(9).post().unwrap();
        group.drive("what is not claimed", || group.members[1].b.next_of(9)).done();
        got.check(len, 2);
        assert_eq!(search(&group, 0, PEEK, 4, 10).failed().err, Errno::ENOMSG);
        for (context, at, seed) in [(8, 0, 1), (7, 1, 0)] {
            let got = Memory::new(len);
            group.srx.receive(&got).tag(4).context(context).msg(CLAIM).post().unwrap();
            let entry = group.drive("what was claimed", || group.members[at].b.next_of(context)).done();
            assert_eq!((entry.tag, entry.len, entry.data), (4, len, 104));
            got.check(len, seed);
        }
    }
}

pub fn a_message_in_a_shared_context_can_be_discarded(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    for len in LENGTHS {
        let sent = Memory::patterned(len, 1);
        for at in [1, 0] {
            for claim in [false, true] {
                let pair = &group.members[at];
                let out = pair.a.out(pair.to_b, &sent).tag(5).context(1).msg(OpFlags::DELIVERY_COMPLETE);
                group.drive("room", || out.clone().send().ok());
                group.drive("a message that waits", || {
                    (group.srx.statistic("rx_unexpected_now") == 1).then_some(())
                });
                if claim {
                    search(&group, at, PEEK | CLAIM, 5, 7).done();
                    assert_eq!(search(&group, at, CLAIM | DISCARD, 5, 7).done().len, len);
                } else {
                    assert_eq!(search(&group, at, PEEK | DISCARD, 5, 7).done().len, len);
                }
                assert_eq!(group.srx.statistic("rx_unexpected_now"), 0);
                group.drive("the end of what nobody wanted", || pair.a.next_of(1)).done();
            }
        }
    }
}

pub fn claims_in_a_shared_context_end_with_their_endpoint(kit: &dyn Kit) {
    let mut group = Group::sized(kit, 2, 4, |opening| opening);
    let sent = Memory::new(300_000);
    keep(&group, 1, 1, &sent);
    search(&group, 1, PEEK | CLAIM, 1, 7).done();
    // An unread result: its room is returned when the endpoint closes.
    group.srx.receive(()).context(9).tag(1).msg(CLAIM | DISCARD).post().unwrap();
    keep(&group, 1, 2, &Memory::new(10));
    search(&group, 1, PEEK | CLAIM, 2, 8).done();
    drop(group.members.remove(1));
    let got = Memory::new(10);
    let error = group.srx.receive(&got).tag(2).context(8).msg(CLAIM).post().unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    for context in 0..4 {
        group.srx.receive(&got).context(context).post().unwrap();
    }
    assert!(group.srx.receive(&got).post().unwrap_err().is_again());
}

pub fn searches_of_a_shared_context_give_their_room_back(kit: &dyn Kit) {
    let group = Group::sized(kit, 2, 4, |opening| opening);
    keep(&group, 1, 1, &Memory::new(10));
    for round in 0..40 {
        // As many as there is room for; only then are the results read.
        for context in 0..4 {
            let tag = u64::from(context % 2 == round % 2);
            group.srx.receive(()).context(context).tag(tag).msg(PEEK).post().unwrap();
        }
        assert!(group.srx.receive(()).tag(1).msg(PEEK).post().unwrap_err().is_again());
        for context in 0..4 {
            let at = usize::from(context % 2 == round % 2);
            let event = group.drive("a result", || group.members[at].b.next_of(context));
            assert_eq!(matches!(event, Event::Done(..)), at == 1, "{event:?}");
        }
    }
}

pub fn a_shared_peek_may_be_directed(kit: &dyn Kit) {
    let group = Group::open(kit, 2, |opening| opening);
    let [first, second] = &group.members[..] else { panic!("two members") };
    keep(&group, 0, 1, &Memory::new(10));
    keep(&group, 1, 1, &Memory::new(20));
    for (at, from, len) in [(1, second.to_a, 20), (0, first.to_a, 10)] {
        group.srx.receive(()).from(from).context(7).tag(1).msg(PEEK).post().unwrap();
        let event = group.drive("the result of a search", || group.members[at].b.next_of(7));
        let Event::Done(entry, source) = event else { panic!("{event:?}") };
        assert_eq!((entry.len, source), (len, from));
    }
}

pub fn wrong_searches_of_a_shared_context_are_refused(kit: &dyn Kit) {
    let group = Group::open(kit, 1, |opening| opening);
    keep(&group, 0, 1, &Memory::new(10));
    let refused = |post: Result<()>| post.unwrap_err().errno();
    let (srx, got) = (&group.srx, Memory::new(10));
    assert_eq!(refused(srx.receive(()).tag(1).msg(DISCARD).post()), Errno::EBADFLAGS);
    assert_eq!(refused(srx.receive(()).tag(1).msg(PEEK | CLAIM | DISCARD).post()), Errno::EBADFLAGS);
    assert_eq!(refused(srx.receive(()).msg(PEEK).post()), Errno::EBADFLAGS, "untagged");
    assert_eq!(refused(srx.receive(&got).tag(1).context(3).msg(CLAIM).post()), Errno::EINVAL, "no claim");
    // Without an endpoint, no queue can report the result.
    let alone = kit.opening().open_disabled().unwrap();
    let context = alone.domain.open_shared_receive(&alone.info.rx_attr).unwrap();
    let lone = alone.context(context);
    assert_eq!(refused(lone.receive(()).tag(1).msg(PEEK).post()), Errno::EOPBADSTATE);
}
