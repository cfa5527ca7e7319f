//! Peek, claim, discard (fi_tagged(3)) and cancel (fi_endpoint(3)).

use crate::prelude::*;

const PEEK: OpFlags = OpFlags::PEEK;
const CLAIM: OpFlags = OpFlags::CLAIM;
const DISCARD: OpFlags = OpFlags::DISCARD;

/// Sends messages with tags 1, 2, ... and lengths 10, 20, ... and waits for their arrival.
fn three_messages(pair: &Pair) {
    pair.warm_up();
    for number in 1..=3_u8 {
        let from = Memory::patterned(10 * usize::from(number), number);
        let out = pair.a.out(pair.to_b, &from).tag(number.into()).data(u64::from(number) + 100);
        pair.keep(|| out.clone().msg(OpFlags::INJECT).send());
        pair.drive("the send", || pair.a.next());
    }
}

/// Searches with `flags` for any tag, or one tag, and waits for the result.
fn search(pair: &Pair, flags: OpFlags, tag: Option<u64>, context: usize) -> Event {
    let receive = pair.b.receive(()).context(context).msg(flags);
    let receive = match tag {
        Some(tag) => receive.tag(tag),
        None => receive.tag_ignoring(0, u64::MAX),
    };
    receive.post().unwrap();
    pair.drive("the result of a search", || pair.b.next_of(context))
}

/// Receives the next message with `tag`. Returns its tag and length.
fn receive(pair: &Pair, tag: Option<u64>) -> (u64, usize) {
    let into = Memory::new(100);
    let receive = pair.b.receive(&into).context(99);
    match tag {
        Some(tag) => receive.tag(tag),
        None => receive.tag_ignoring(0, u64::MAX),
    }
    .post()
    .unwrap();
    let entry = pair.drive("a receive", || pair.b.next_of(99)).done();
    into.check(entry.len, entry.tag as u8);
    (entry.tag, entry.len)
}

pub fn a_peek_that_finds_nothing_is_an_error_entry(kit: &dyn Kit) {
    let pair = kit.pair();
    for flags in [PEEK, PEEK | CLAIM, PEEK | DISCARD] {
        let error = search(&pair, flags, Some(5), 7).failed();
        assert_eq!((error.err, error.op_context), (Errno::ENOMSG, Context(7)));
    }
    // The search does not stay posted.
    pair.post(|| pair.a.out(pair.to_b, ()).tag(5).inject().send());
    pair.quiet(Duration::from_millis(5));
    assert_eq!(receive(&pair, Some(5)), (5, 0));
}

pub fn a_peek_tells_of_a_message_and_leaves_it(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    for (tag, found) in [(Some(2), 2), (None, 1), (None, 1)] {
        let event = search(&pair, PEEK, tag, 7);
        let Event::Done(entry, source) = event else { panic!("{event:?}") };
        assert_eq!((entry.tag, entry.len, entry.data), (found, 10 * found as usize, found + 100));
        assert!(entry.flags.contains(CompletionFlags::RECV | CompletionFlags::TAGGED), "{:?}", entry.flags);
        assert!(entry.flags.contains(CompletionFlags::REMOTE_CQ_DATA));
        assert_eq!(source, pair.to_a);
    }
    assert_eq!(receive(&pair, None), (1, 10));
    assert_eq!(receive(&pair, None), (2, 20));
    assert_eq!(receive(&pair, None), (3, 30));
}

pub fn a_peek_drives_progress_itself(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).tag(5).inject().send().ok());
    // b's queue was not read since; a shared-memory message is there, others may need a few tries.
    let mut tries = 0;
    pair.drive("a peek that finds the message", || {
        tries += 1;
        match search(&pair, PEEK, Some(5), tries) {
            Event::Done(entry, _) => {
                assert_eq!(entry.tag, 5);
                Some(())
            }
            Event::Failed(error) => {
                assert_eq!(error.err, Errno::ENOMSG);
                None
            }
        }
    });
}

pub fn a_peek_finds_a_large_message(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    let from = Memory::patterned(500_000, 1);
    pair.keep(|| pair.a.out(pair.to_b, &from).context(1).tag(5).send());
    assert_eq!(search(&pair, PEEK, Some(5), 7).done().len, 500_000);
    let into = Memory::new(500_000);
    pair.b.receive(&into).context(8).tag(5).post().unwrap();
    pair.drive("the receive", || pair.b.next_of(8)).done();
    into.check(500_000, 1);
    pair.drive("the send", || pair.a.next_of(1)).done();
}

pub fn a_claimed_message_is_reserved_for_its_context(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    assert_eq!(search(&pair, PEEK | CLAIM, Some(1), 7).done().len, 10);
    // Neither receives nor searches find a claimed message.
    assert_eq!(search(&pair, PEEK, Some(1), 8).failed().err, Errno::ENOMSG);
    assert_eq!(search(&pair, PEEK | CLAIM, Some(1), 8).failed().err, Errno::ENOMSG);
    assert_eq!(receive(&pair, None), (2, 20));
    let into = Memory::new(100);
    pair.b.receive(&into).context(7).tag(1).msg(CLAIM).post().unwrap();
    let entry = pair.drive("the claimed message", || pair.b.next_of(7)).done();
    assert_eq!((entry.tag, entry.len, entry.data), (1, 10, 101));
    into.check(10, 1);
    assert_eq!(receive(&pair, None), (3, 30));
}

pub fn two_claims_keep_their_messages_apart(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    assert_eq!(search(&pair, PEEK | CLAIM, Some(3), 7).done().len, 30);
    assert_eq!(search(&pair, PEEK | CLAIM, Some(1), 8).done().len, 10);
    let into = Memory::new(100);
    pair.b.receive(&into).context(8).tag(1).msg(CLAIM).post().unwrap();
    assert_eq!(pair.drive("the second claim", || pair.b.next_of(8)).done().tag, 1);
    pair.b.receive(&into).context(7).tag(3).msg(CLAIM).post().unwrap();
    assert_eq!(pair.drive("the first claim", || pair.b.next_of(7)).done().tag, 3);
}

pub fn a_claimed_large_message_arrives(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    let from = Memory::patterned(500_000, 1);
    pair.keep(|| pair.a.out(pair.to_b, &from).context(1).tag(5).send());
    assert_eq!(search(&pair, PEEK | CLAIM, Some(5), 7).done().len, 500_000);
    let into = Memory::new(500_000);
    pair.b.receive(&into).context(7).tag(5).msg(CLAIM).post().unwrap();
    pair.drive("the claimed message", || pair.b.next_of(7)).done();
    into.check(500_000, 1);
    pair.drive("the send", || pair.a.next_of(1)).done();
}

pub fn a_claimed_message_can_be_discarded(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    search(&pair, PEEK | CLAIM, Some(1), 7).done();
    let entry = search(&pair, CLAIM | DISCARD, Some(1), 7).done();
    assert_eq!((entry.op_context, entry.len), (Context(7), 10), "a success with the message's length");
    assert_eq!(receive(&pair, None), (2, 20));
}

pub fn a_peek_can_discard(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    let entry = search(&pair, PEEK | DISCARD, Some(2), 7).done();
    assert_eq!((entry.tag, entry.len), (2, 20));
    assert_eq!(search(&pair, PEEK, Some(2), 8).failed().err, Errno::ENOMSG);
    assert_eq!(receive(&pair, None), (1, 10));
    assert_eq!(receive(&pair, None), (3, 30));
}

pub fn a_discarded_large_message_completes_at_its_sender(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    let from = Memory::patterned(500_000, 1);
    for claim in [false, true] {
        for level in [OpFlags::TRANSMIT_COMPLETE, OpFlags::DELIVERY_COMPLETE] {
            pair.keep(|| pair.a.out(pair.to_b, &from).context(1).tag(5).msg(level).send());
            if claim {
                search(&pair, PEEK | CLAIM, Some(5), 7).done();
                assert_eq!(search(&pair, CLAIM | DISCARD, Some(5), 7).done().len, 500_000);
            } else {
                assert_eq!(search(&pair, PEEK | DISCARD, Some(5), 7).done().len, 500_000);
            }
            pair.drive("the send", || pair.a.next_of(1)).done();
        }
    }
}

pub fn a_claim_without_a_peek_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    let into = Memory::new(100);
    for flags in [CLAIM, CLAIM | DISCARD] {
        // Refused at once, or by an error entry; never matched with another message.
        match pair.b.receive(&into).context(7).tag(1).msg(flags).post() {
            Err(error) => assert!(!error.is_again(), "{error}"),
            Ok(()) => {
                pair.drive("an error entry", || pair.b.next_of(7)).failed();
            }
        }
    }
    assert_eq!(receive(&pair, None), (1, 10));
}

pub fn a_claimed_message_is_not_written_to_nowhere(kit: &dyn Kit) {
    let pair = kit.pair();
    three_messages(&pair);
    assert_eq!(search(&pair, PEEK | CLAIM, Some(1), 7).done().len, 10);
    let nowhere = [Piece::new(std::ptr::null_mut(), 10)];
    // SAFETY: the memory is not writable, which the endpoint has to detect.
    let lent = unsafe { Lent::new(&nowhere, &[]) };
    let op = ReceiveOp { flags: CLAIM, call: Call::Msg, ..ReceiveOp::new(lent, Context(7)) };
    let error = pair.b.ep.receive_tagged(&op, TagMatch { tag: 1, ignore: 0 }).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    // The claimant can still receive it.
    let into = Memory::new(100);
    pair.b.receive(&into).context(7).tag(1).msg(CLAIM).post().unwrap();
    assert_eq!(pair.drive("the claimed message", || pair.b.next_of(7)).done().len, 10);
}

pub fn discard_alone_is_refused(kit: &dyn Kit) {
    let pair = kit.pair();
    let error = pair.b.receive(()).context(7).tag(1).msg(DISCARD).post().unwrap_err();
    assert_eq!(error.errno(), Errno::EBADFLAGS, "{error}");
}

pub fn a_cancelled_receive_ends_once(kit: &dyn Kit) {
    let pair = kit.pair();
    for tag in [None, Some(5)] {
        let into = Memory::new(64);
        let receive = pair.b.receive(&into).context(7);
        if let Some(tag) = tag { receive.tag(tag) } else { receive }.post().unwrap();
        pair.b.cancel(7).unwrap();
        let error = pair.drive("the cancellation", || pair.b.next_of(7)).failed();
        assert_eq!((error.err, error.op_context), (Errno::ECANCELED, Context(7)));
        let kind = if tag.is_some() { CompletionFlags::TAGGED } else { CompletionFlags::MSG };
        assert_eq!(error.flags, CompletionFlags::RECV | kind);
        pair.quiet(Duration::from_millis(5));
        // The message goes to the next receive.
        let next = pair.b.receive(&into).context(8);
        if let Some(tag) = tag { next.tag(tag) } else { next }.post().unwrap();
        let from = Memory::patterned(64, 5);
        let out = pair.a.out(pair.to_b, &from).inject();
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        pair.post(|| out.send());
        assert_eq!(pair.done(&pair.b).op_context, Context(8));
        into.check(64, 5);
    }
}

pub fn a_cancelled_receive_gives_its_room_back(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.rx_size(8)));
    for round in 0..40 {
        pair.post(|| pair.b.receive(()).context(round + 1).post());
        pair.b.cancel(round + 1).unwrap();
        assert_eq!(pair.failed(&pair.b).err, Errno::ECANCELED);
    }
}

pub fn of_two_receives_with_one_context_one_is_cancelled(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.b.receive(()).context(7).post().unwrap();
    pair.b.receive(()).context(7).post().unwrap();
    pair.b.cancel(7).unwrap();
    assert_eq!(pair.drive("the cancellation", || pair.b.next_of(7)).failed().err, Errno::ECANCELED);
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    pair.drive("the message", || pair.b.next_of(7)).done();
}

pub fn cancelling_what_is_over_changes_nothing(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.b.receive(()).context(7).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(pair.done(&pair.b).op_context, Context(7));
    let _ = pair.b.cancel(7); // may return an error: fi_endpoint(3) leaves it open
    let _ = pair.b.cancel(12_345);
    pair.quiet(Duration::from_millis(5));
}

pub fn a_cancel_races_with_its_message_and_one_wins(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.warm_up();
    for len in [8, 300_000] {
        for round in 0..20 {
            let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
            let context = 1_000 + round;
            pair.post(|| pair.b.receive(&into).context(context).post());
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
            for _ in 0..round % 4 {
                pair.poll();
            }
            let _ = pair.b.cancel(context);
            match pair.drive("one end", || pair.b.next_of(context)) {
                Event::Done(entry, _) => assert_eq!(entry.len, len),
                Event::Failed(error) => {
                    assert_eq!(error.err, Errno::ECANCELED);
                    pair.post(|| pair.b.receive(&into).context(9).post());
                    pair.drive("the message", || pair.b.next_of(9)).done();
                }
            }
            into.check(len, 5);
            pair.drive("the send", || pair.a.next_of(1)).done();
            assert!(pair.b.next_of(context).is_none(), "it ended twice");
        }
    }
}
