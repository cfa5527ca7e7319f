//! One test for each rule of matching, named after it.

use super::SourceFilter::{Any, From};
use super::*;

#[derive(Debug, PartialEq, Eq)]
struct Recv {
    context: usize,
    multi: bool,
}

impl PostedReceive for Recv {
    fn context(&self) -> usize {
        self.context
    }

    fn memory(&self) -> usize {
        0
    }
}

type Subject = Matcher<Recv, &'static str>;

fn subject() -> Subject {
    Matcher::new(&MatcherConfig::default())
}

fn plain(context: usize) -> Recv {
    Recv { context, multi: false }
}

fn message(peer: u32) -> Envelope {
    Envelope { space: Space::Untagged, peer: SourceId(peer), tag: 0, len: 8, data: None }
}

fn tagged(peer: u32, tag: u64) -> Envelope {
    Envelope { space: Space::Tagged, tag, ..message(peer) }
}

fn queue(matcher: &mut Subject, want: Want, context: usize) -> RecvId {
    match matcher.post(want, plain(context)) {
        PostOutcome::Queued(id) => id,
        other => panic!("{other:?}"),
    }
}

fn store(matcher: &mut Subject, envelope: Envelope, content: &'static str) {
    assert!(matcher.arrive(&envelope).is_none());
    matcher.store(&envelope, content, 0).expect("within the budget");
}

/// The content of the message that a new receive gets.
fn receive(matcher: &mut Subject, want: Want) -> Option<&'static str> {
    match matcher.post(want, plain(0)) {
        PostOutcome::Matched { message, .. } => Some(message.content),
        PostOutcome::Queued(id) => matcher.take(id).and(None),
    }
}

/// The contexts of the receives that messages go to.
fn taken(matcher: &mut Subject, envelopes: &[Envelope]) -> Vec<Option<usize>> {
    let mut context = |envelope: &Envelope| {
        let mut found = matcher.arrive(envelope)?;
        match found.recv() {
            Recv { context, multi: true } => Some(*context),
            Recv { multi: false, .. } => Some(found.take().context),
        }
    };
    envelopes.iter().map(&mut context).collect()
}

#[test]
fn untagged_receives_match_in_the_order_of_posting() {
    let mut m = subject();
    (1..=3).for_each(|context| _ = queue(&mut m, Want::untagged(Any), context));
    assert_eq!(
        taken(&mut m, &[message(5), message(0), message(5), message(5)]),
        [Some(1), Some(2), Some(3), None]
    );
}

/// C libfabric's util_srx follows a wild pointer in this case.
#[test]
fn an_untagged_any_source_receive_posted_first_wins_over_a_directed_one() {
    let mut m = subject();
    queue(&mut m, Want::untagged(Any), 1);
    queue(&mut m, Want::untagged(From(SourceId(4))), 2);
    assert_eq!(taken(&mut m, &[message(4), message(4), message(4)]), [Some(1), Some(2), None]);
}

#[test]
fn an_untagged_directed_receive_posted_first_wins_over_an_any_source_one() {
    let mut m = subject();
    queue(&mut m, Want::untagged(From(SourceId(4))), 1);
    queue(&mut m, Want::untagged(Any), 2);
    assert_eq!(taken(&mut m, &[message(4), message(4), message(4)]), [Some(1), Some(2), None]);
}

/// C libfabric's util_srx lets the directed one win.
#[test]
fn a_tagged_directed_receive_posted_second_does_not_win() {
    let mut m = subject();
    queue(&mut m, Want::tagged(Any, 7, 0), 1);
    queue(&mut m, Want::tagged(From(SourceId(4)), 7, 0), 2);
    assert_eq!(taken(&mut m, &[tagged(4, 7), tagged(4, 7), tagged(4, 7)]), [Some(1), Some(2), None]);
}

#[test]
fn the_first_posted_of_exact_directed_and_wildcard_receives_wins() {
    let wants = [
        Want::tagged(Any, 7, 0),
        Want::tagged(From(SourceId(4)), 7, 0),
        Want::tagged(Any, 0, !0),
        Want::tagged(From(SourceId(4)), 5, 2),
    ];
    for first in 0..4 {
        for step in [1, 3] {
            let mut m = subject();
            let order: Vec<usize> = (0..4).map(|n| (first + n * step) % 4).collect();
            order.iter().for_each(|&n| _ = queue(&mut m, wants[n], n));
            let expected: Vec<_> = order.into_iter().map(Some).collect();
            assert_eq!(taken(&mut m, &[tagged(4, 7); 4]), expected);
        }
    }
}

#[test]
fn a_directed_receive_takes_nothing_from_others() {
    let mut m = subject();
    queue(&mut m, Want::untagged(From(SourceId(1))), 1);
    queue(&mut m, Want::tagged(From(SourceId(1)), 7, 0), 2);
    queue(&mut m, Want::tagged(From(SourceId(1)), 0, !0), 3);
    assert_eq!(taken(&mut m, &[message(0), message(2), tagged(0, 7), tagged(9, 7)]), [None; 4]);
    assert_eq!(taken(&mut m, &[tagged(1, 7), tagged(1, 7), message(1)]), [Some(2), Some(3), Some(1)]);
}

#[test]
fn tags_match_in_the_bits_that_are_not_ignored() {
    let mut m = subject();
    queue(&mut m, Want::tagged(Any, 0xab00, 0xff), 1);
    queue(&mut m, Want::tagged(Any, 0xcd12, 0xff), 2); // the ignored bits of the receive do not matter either
    assert_eq!(taken(&mut m, &[tagged(0, 0xac00), tagged(0, 0x1_ab00)]), [None, None]);
    assert_eq!(taken(&mut m, &[tagged(0, 0xcd00), tagged(0, 0xab34)]), [Some(2), Some(1)]);
}

#[test]
fn tagged_and_untagged_messages_do_not_meet() {
    let mut m = subject();
    queue(&mut m, Want::untagged(Any), 1);
    assert_eq!(taken(&mut m, &[tagged(0, 0)]), [None]);
    store(&mut m, tagged(0, 0), "tagged");
    assert_eq!(taken(&mut m, &[message(0)]), [Some(1)]);
    store(&mut m, message(0), "untagged");
    assert_eq!(receive(&mut m, Want::tagged(Any, 9, !0)), Some("tagged"));
    assert_eq!(receive(&mut m, Want::tagged(Any, 0, 0)), None);
    assert_eq!(receive(&mut m, Want::untagged(Any)), Some("untagged"));
}

#[test]
fn the_oldest_unexpected_message_that_matches_is_received() {
    let mut m = subject();
    for (peer, tag, content) in [(1, 5, "a"), (2, 5, "b"), (1, 6, "c"), (2, 6, "d"), (1, 5, "e")] {
        store(&mut m, tagged(peer, tag), content);
    }
    assert_eq!(receive(&mut m, Want::tagged(From(SourceId(2)), 6, 0)), Some("d"));
    assert_eq!(receive(&mut m, Want::tagged(From(SourceId(3)), 5, 0)), None);
    assert_eq!(receive(&mut m, Want::tagged(Any, 5, 0)), Some("a"));
    assert_eq!(receive(&mut m, Want::tagged(From(SourceId(1)), 0, !0)), Some("c"));
    assert_eq!(receive(&mut m, Want::tagged(Any, 4, 1)), Some("b"));
    assert_eq!(receive(&mut m, Want::tagged(From(SourceId(1)), 4, 1)), Some("e"));
    assert_eq!(m.unexpected_len(), 0);
}

#[test]
fn untagged_unexpected_messages_are_received_in_order_by_source() {
    let mut m = subject();
    for (peer, content) in [(1, "a"), (2, "b"), (1, "c"), (2, "d")] {
        store(&mut m, message(peer), content);
    }
    assert_eq!(receive(&mut m, Want::untagged(From(SourceId(2)))), Some("b"));
    assert_eq!(receive(&mut m, Want::untagged(Any)), Some("a"));
    assert_eq!(receive(&mut m, Want::untagged(From(SourceId(9)))), None);
    assert_eq!(receive(&mut m, Want::untagged(Any)), Some("c"));
    assert_eq!(receive(&mut m, Want::untagged(Any)), Some("d"));
}

#[test]
fn a_multi_receive_buffer_keeps_its_place_until_it_is_taken() {
    let mut m = subject();
    queue(&mut m, Want::untagged(Any), 1);
    let multi = Recv { context: 2, multi: true };
    let PostOutcome::Queued(id) = m.post(Want::untagged(Any), multi) else { panic!("matched") };
    queue(&mut m, Want::untagged(Any), 3);
    assert_eq!(taken(&mut m, &[message(0), message(1), message(0)]), [Some(1), Some(2), Some(2)]);
    assert_eq!(m.arrive(&message(0)).map(|found| found.id()), Some(id));
    assert_eq!(m.take(id).map(|recv| recv.context), Some(2));
    assert_eq!(taken(&mut m, &[message(0), message(0)]), [Some(3), None]);
}

#[test]
fn an_id_names_nothing_once_its_receive_was_taken() {
    let mut m = subject();
    let old = queue(&mut m, Want::untagged(Any), 1);
    assert_eq!(m.get(old), Some(&plain(1)));
    assert_eq!(m.take(old), Some(plain(1)));
    let new = queue(&mut m, Want::untagged(Any), 2);
    assert!(m.get(old).is_none() && m.get_mut(old).is_none() && m.take(old).is_none());
    assert_eq!(m.get_mut(new), Some(&mut plain(2)));
}

#[test]
fn cancel_takes_the_oldest_receive_with_the_context() {
    let mut m = subject();
    queue(&mut m, Want::tagged(Any, 1, 0), 9);
    queue(&mut m, Want::untagged(From(SourceId(3))), 8);
    assert_eq!(taken(&mut m, &[tagged(0, 1)]), [Some(9)], "frees the first slot: slots are not in order now");
    queue(&mut m, Want::tagged(Any, 0, !0), 8);
    queue(&mut m, Want::tagged(Any, 7, 0), 7);
    assert_eq!(m.cancel_by_context(5).map(|(_, recv)| recv), None);
    assert_eq!(m.cancel_by_context(8).map(|(_, recv)| recv), Some(plain(8)));
    assert_eq!(taken(&mut m, &[message(3)]), [None], "the untagged one was posted first");
    assert_eq!(m.cancel_by_context(8).map(|(_, recv)| recv), Some(plain(8)));
    assert_eq!(m.cancel_by_context(8).map(|(_, recv)| recv), None);
    assert_eq!(taken(&mut m, &[tagged(3, 7)]), [Some(7)]);
}

#[test]
fn a_row_of_cancels_sees_what_was_taken_and_posted_in_between() {
    let mut m = subject();
    (0..6).for_each(|tag| _ = queue(&mut m, Want::tagged(Any, tag, 0), tag as usize % 2));
    assert_eq!(m.cancel_by_context(1).map(|(_, recv)| recv), Some(plain(1)));
    assert_eq!(m.cancel_by_context(0).map(|(_, recv)| recv), Some(plain(0)));
    assert_eq!(taken(&mut m, &[tagged(0, 0), tagged(0, 1)]), [None, None]);
    assert_eq!(taken(&mut m, &[tagged(0, 3)]), [Some(1)]);
    assert_eq!(m.cancel_by_context(1).map(|(_, recv)| recv), Some(plain(1)));
    assert_eq!(
        (taken(&mut m, &[tagged(0, 5)]), m.cancel_by_context(1).map(|(_, recv)| recv)),
        (vec![None], None)
    );
    queue(&mut m, Want::tagged(Any, 9, 0), 1);
    assert_eq!(m.cancel_by_context(1).map(|(_, recv)| recv), Some(plain(1)));
    assert_eq!((m.cancel_by_context(1).map(|(_, recv)| recv), m.posted_len()), (None, 2));
}

#[test]
fn cancel_inside_a_list_of_equal_receives_leaves_the_others_in_order() {
    for want in [Want::tagged(Any, 1, 0), Want::tagged(From(SourceId(0)), 1, 0), Want::tagged(Any, 1, 2)] {
        for gone in 1..=3 {
            let mut m = subject();
            (1..=3).for_each(|context| _ = queue(&mut m, want, context));
            assert_eq!(m.cancel_by_context(gone).map(|(_, recv)| recv), Some(plain(gone)));
            queue(&mut m, want, 4);
            let rest: Vec<_> = (1..=4).filter(|&n| n != gone).map(Some).collect();
            assert_eq!(taken(&mut m, &[tagged(0, 1); 3]), rest);
        }
    }
}

#[test]
fn peek_leaves_the_message() {
    let mut m = subject();
    store(&mut m, Envelope { len: 44, data: Some(3), ..tagged(2, 6) }, "a");
    assert!(m.peek(&Want::tagged(Any, 7, 0)).is_none());
    let seen = m.peek(&Want::tagged(Any, 0, !0)).expect("matches").envelope;
    assert_eq!((seen.len, seen.data, seen.peer, seen.tag), (44, Some(3), SourceId(2), 6));
    assert_eq!(receive(&mut m, Want::tagged(Any, 6, 0)), Some("a"));
}

#[test]
fn nothing_else_matches_a_claimed_message() {
    let mut m = subject();
    store(&mut m, tagged(0, 1), "a");
    store(&mut m, tagged(0, 1), "b");
    assert_eq!(m.claim(&Want::tagged(Any, 1, 0), 77).map(|message| message.content), Some("a"));
    assert_eq!(m.peek(&Want::tagged(Any, 1, 0)).map(|message| message.content), Some("b"));
    assert_eq!(receive(&mut m, Want::tagged(From(SourceId(0)), 0, !0)), Some("b"));
    assert_eq!(receive(&mut m, Want::tagged(Any, 1, 0)), None);
    assert_eq!((m.take_claimed(78), m.unexpected_len()), (None, 1));
    assert_eq!(m.take_claimed(77).map(|message| message.content), Some("a"));
    assert_eq!((m.take_claimed(77), m.unexpected_len()), (None, 0));
}

#[test]
fn discard_removes_the_message_and_frees_its_budget() {
    let mut m: Subject = Matcher::new(&MatcherConfig { bytes: 100, ..MatcherConfig::default() });
    m.store(&message(0), "a", 60).expect("fits");
    assert_eq!(m.bytes_held(), 60);
    assert_eq!(m.discard(&Want::untagged(Any)).map(|message| message.content), Some("a"));
    assert_eq!((m.bytes_held(), m.envelopes_of(SourceId(0)), m.discard(&Want::untagged(Any))), (0, 0, None));
}

#[test]
fn without_room_for_bytes_the_envelope_is_stored_alone() {
    let mut m: Subject = Matcher::new(&MatcherConfig { bytes: 100, ..MatcherConfig::default() });
    assert!(!m.may_hold_bytes(SourceId(0), 101));
    assert_eq!(m.store(&message(0), "a", 101), Err(Refused { limit: Limit::Bytes, content: "a" }));
    m.store(&message(0), "token", 0).expect("an envelope is free");
    assert_eq!(receive(&mut m, Want::untagged(Any)), Some("token"));
}

#[test]
fn without_room_for_envelopes_that_sender_alone_stops_until_messages_are_received() {
    let mut m: Subject = Matcher::new(&MatcherConfig { envelopes: 90, ..MatcherConfig::default() });
    let mut sent = 0;
    while m.store(&message(3), "a", 0).is_ok() {
        sent += 1;
    }
    assert_eq!((sent, m.stopped_len(), m.stops()), (60, 1, 1));
    assert!(!m.may_hold_envelope(SourceId(3)) && m.may_hold_envelope(SourceId(4)));
    assert_eq!(m.poll_resume(), None);
    let mut received = 0;
    while m.poll_resume() != Some(SourceId(3)) {
        receive(&mut m, Want::untagged(Any)).expect("still some");
        received += 1;
    }
    assert!(m.may_hold_envelope(SourceId(3)) && (1..30).contains(&received), "{received}");
}

#[test]
fn a_dead_peer_takes_with_it_only_what_it_held_itself() {
    let mut m = subject();
    for (peer, content) in [(1, "here"), (1, "there"), (2, "there")] {
        store(&mut m, message(peer), content);
        store(&mut m, tagged(peer, 5), content);
    }
    store(&mut m, tagged(1, 6), "there");
    m.claim(&Want::tagged(Any, 6, 0), 99);
    let mut claims = Vec::new();
    let removed = m.drop_peer(SourceId(1), |content, claim| {
        claims.extend(claim);
        if claim.is_some() {
            *content = "lost"; // the paired receive will report it
        }
        *content == "there"
    });
    assert_eq!((removed.len(), claims), (2, vec![99]));
    assert!(removed.iter().all(|message| message.envelope.peer == SourceId(1)));
    assert_eq!(m.take_claimed(99).map(|message| message.content), Some("lost"));
    assert_eq!((m.unexpected_len(), m.envelopes_of(SourceId(1))), (4, 2));
    assert_eq!(receive(&mut m, Want::tagged(Any, 5, 0)), Some("here"));
}

#[test]
fn draining_yields_all_receives_in_order_and_all_messages() {
    let mut m = subject();
    let wants =
        [Want::tagged(Any, 1, 0), Want::untagged(Any), Want::tagged(Any, 4, 3), Want::tagged(Any, 1, 0)];
    wants.into_iter().enumerate().for_each(|(context, want)| _ = queue(&mut m, want, context));
    store(&mut m, tagged(0, 9), "a");
    store(&mut m, tagged(1, 9), "b");
    m.claim(&Want::tagged(Any, 9, 0), 1);
    let (receives, messages) = m.drain();
    assert_eq!(receives, (0..4).map(plain).collect::<Vec<_>>());
    assert_eq!(messages.iter().map(|message| message.content).collect::<Vec<_>>(), ["b", "a"]);
    assert_eq!((m.posted_len(), m.unexpected_len(), m.envelopes_of(SourceId(0))), (0, 0, 0));
    assert_eq!(receive(&mut m, Want::tagged(Any, 9, 0)), None);
}

#[test]
fn receives_of_one_source_can_be_extracted() {
    let mut m = subject();
    queue(&mut m, Want::tagged(From(SourceId(1)), 1, 0), 1);
    queue(&mut m, Want::tagged(Any, 1, 0), 2);
    queue(&mut m, Want::untagged(From(SourceId(1))), 3);
    let gone = m.extract_posted(|want, _| want.source == From(SourceId(1)));
    assert_eq!(gone, [plain(1), plain(3)]);
    assert_eq!(m.posted_len(), 1);
}

#[test]
fn a_slot_and_a_table_are_used_again_not_added_to() {
    let mut m = subject();
    (0..100).for_each(|tag| _ = queue(&mut m, Want::tagged(Any, tag, 0), 0));
    for n in 0..10_000u64 {
        let tag = n * 37 % 100;
        m.arrive(&tagged(0, tag)).expect("posted").take();
        queue(&mut m, Want::tagged(Any, tag, 0), 0);
    }
    assert_eq!(m.posted.capacity(), 100);
    m.posted.check();
}

/// A match reads one line with all that it compares.
#[test]
fn slots_fill_few_cache_lines() {
    assert_eq!(PostedReceives::<[u64; 4]>::SLOT_BYTES, 64);
    assert_eq!(UnexpectedMessages::<[u64; 3]>::SLOT_BYTES, 128);
}
