//! Which operations complete, and the contents of their entries (fi_cq(3), fi_endpoint(3), fi_msg(3)).

use crate::connection::is_connected;
use crate::prelude::*;

/// The wait for an entry that must not arrive.
const WATCH: Duration = Duration::from_millis(10);

/// Sends `len` bytes from `a` to a receive with context 2 at `b`, and waits for the receive's completion.
fn deliver(pair: &Pair, send: impl Fn(&Pair, &Memory) -> Result<()>, len: usize) -> CqTaggedEntry {
    let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
    pair.post(|| pair.b.receive(&into).context(2).post());
    pair.post(|| send(pair, &from));
    let entry = pair.drive("the receive", || pair.b.next_of(2)).done();
    into.check(len, 5);
    entry
}

pub fn every_operation_completes_unless_selective(kit: &dyn Kit) {
    let pair = kit.pair();
    for len in [0, 64, 100_000] {
        let entry = deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).send(), len);
        assert_eq!((entry.op_context, entry.len), (Context(2), len));
        assert_eq!(pair.done(&pair.a).op_context, Context(1));
    }
    let (memory, target) = (Memory::new(64), Memory::new(64));
    let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &memory).context(3).write(&[remote(&region)]));
    assert_eq!(pair.done(&pair.a).op_context, Context(3));
    pair.post(|| pair.a.out(pair.to_b, &memory).context(4).read(&[remote(&region)]));
    assert_eq!(pair.done(&pair.a).op_context, Context(4));
    pair.quiet(WATCH);
}

pub fn selective_sends_complete_only_on_request(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.selective(BindFlags::TRANSMIT));
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).send(), 64);
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).msg(OpFlags::empty()).send(), 64);
    pair.quiet(WATCH);
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(6).msg(OpFlags::COMPLETION).send(), 64);
    assert_eq!(pair.done(&pair.a).op_context, Context(6));
}

pub fn selective_large_sends_complete_only_on_request(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.selective(BindFlags::TRANSMIT));
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).send(), 1 << 20);
    pair.quiet(WATCH);
    deliver(
        &pair,
        |pair, from| pair.a.out(pair.to_b, from).context(6).msg(OpFlags::COMPLETION).send(),
        1 << 20,
    );
    assert_eq!(pair.done(&pair.a).op_context, Context(6));
}

pub fn selective_receives_complete_only_on_request(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.selective(BindFlags::RECV));
    let (from, silent, told) = (Memory::patterned(64, 1), Memory::new(64), Memory::new(64));
    pair.post(|| pair.b.receive(&silent).context(1).post());
    pair.post(|| pair.b.receive(&told).context(2).msg(OpFlags::COMPLETION).post());
    pair.post(|| pair.a.out(pair.to_b, &from).send());
    pair.post(|| pair.a.out(pair.to_b, &from).send());
    pair.done(&pair.a);
    pair.done(&pair.a);
    assert_eq!(pair.done(&pair.b).op_context, Context(2));
    silent.check(64, 1);
    pair.quiet(WATCH);
}

pub fn selective_plain_calls_follow_the_endpoint_s_flags(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        opening
            .hints(|hints| hints.tx_op_flags(OpFlags::COMPLETION).rx_op_flags(OpFlags::COMPLETION))
            .selective(BindFlags::TRANSMIT | BindFlags::RECV)
    });
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).send(), 64);
    assert_eq!(pair.done(&pair.a).op_context, Context(1));
}

pub fn selective_msg_calls_replace_the_endpoint_s_flags(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        opening.hints(|hints| hints.tx_op_flags(OpFlags::COMPLETION)).selective(BindFlags::TRANSMIT)
    });
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).msg(OpFlags::empty()).send(), 64);
    pair.quiet(WATCH);
}

/// Levels that an operation may name, as far as the transport has them.
const LEVELS: [OpFlags; 4] = [
    OpFlags::INJECT_COMPLETE,
    OpFlags::TRANSMIT_COMPLETE,
    OpFlags::DELIVERY_COMPLETE,
    OpFlags::MATCH_COMPLETE,
];

/// The levels that getinfo grants as defaults of an endpoint.
fn granted_levels(kit: &dyn Kit) -> impl Iterator<Item = OpFlags> {
    LEVELS.into_iter().filter(|&level| kit.getinfo(&kit.usual().tx_op_flags(level)).is_ok())
}

/// Posts a send, a tagged send, a write and a read of `len` bytes each, with `flags` in the call, or without flags, and
/// waits until a counter of each kind has counted it.
fn post_each_kind(pair: &Pair, len: usize, flags: Option<OpFlags>, counted: &mut u64) {
    let (from, into, back) = (Memory::patterned(len, 5), Memory::new(len), Memory::new(len));
    let region = pair.b.register(&into, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    let there = [remote(&region)];
    let out = || {
        let out = pair.a.out(pair.to_b, &from);
        if let Some(flags) = flags { out.msg(flags) } else { out }
    };
    pair.post(|| pair.b.receive(&into).context(2).post());
    pair.post(|| pair.b.receive(&into).context(2).tag(7).post());
    pair.post(|| out().send());
    pair.post(|| out().tag(7).send());
    pair.all_done(&pair.b, 2, 2);
    // `FI_MATCH_COMPLETE` is a level of messages alone.
    let flags = flags.map(|flags| flags - OpFlags::MATCH_COMPLETE);
    let out = |memory| {
        let out = pair.a.out(pair.to_b, memory);
        if let Some(flags) = flags { out.msg(flags) } else { out }
    };
    pair.post(|| out(&from).write(&there));
    pair.post(|| out(&back).read(&there));
    *counted += 4;
    let count = || pair.a.counters.iter().map(|counter| counter.read()).sum::<u64>();
    pair.drive("the counters", || (count() == *counted).then_some(()));
    into.check(len, 5);
    back.check(len, 5);
}

/// A sender with counters of its operations, whose queue is selective.
fn selective_and_counted(opening: Opening) -> Opening {
    let kinds = [BindFlags::SEND, BindFlags::READ, BindFlags::WRITE];
    let counted = |opening: Opening, kind| opening.counter(CntrAttr::default(), kind);
    kinds.into_iter().fold(opening.selective(BindFlags::TRANSMIT), counted)
}

pub fn selective_a_level_in_a_call_asks_for_no_entry(kit: &dyn Kit) {
    let pair = kit.pair_with(selective_and_counted);
    let mut counted = 0;
    for level in granted_levels(kit) {
        for len in [64, 100_000] {
            post_each_kind(&pair, len, Some(level), &mut counted);
            pair.quiet(WATCH);
        }
        let flags = level | OpFlags::COMPLETION;
        deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(7).msg(flags).send(), 64);
        assert_eq!(pair.done(&pair.a).op_context, Context(7), "{flags}");
        counted += 1;
    }
}

pub fn selective_a_level_of_the_endpoint_asks_for_no_entry(kit: &dyn Kit) {
    for level in granted_levels(kit) {
        let pair =
            kit.pair_with(|opening| selective_and_counted(opening).hints(|hints| hints.tx_op_flags(level)));
        let mut counted = 0;
        for len in [64, 100_000] {
            post_each_kind(&pair, len, None, &mut counted);
            pair.quiet(WATCH);
        }
    }
}

pub fn selective_with_a_shared_context_completes_only_on_request(kit: &dyn Kit) {
    for level in [OpFlags::empty(), OpFlags::DELIVERY_COMPLETE] {
        let host = kit.opening().open_disabled().unwrap();
        let stx = host.domain.open_shared_transmit(&host.info.tx_attr).unwrap();
        let opening = selective_and_counted(kit.opening()).hints(|hints| hints.tx_op_flags(level));
        let Ok(info) = opening.clone().shared_transmit(&stx).first_info() else { continue };
        if is_connected(&info) {
            return; // its ends are made by a listener, without a context of theirs
        }
        let pair = Pair::of(opening.shared_transmit(&stx).beside(&host).open(), kit.side());
        let mut counted = 0;
        for len in [64, 100_000] {
            post_each_kind(&pair, len, None, &mut counted);
            post_each_kind(&pair, len, Some(OpFlags::DELIVERY_COMPLETE), &mut counted);
            pair.quiet(WATCH);
        }
        let flags = OpFlags::COMPLETION;
        deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(7).msg(flags).send(), 64);
        assert_eq!(pair.done(&pair.a).op_context, Context(7));
    }
}

pub fn selective_errors_are_always_reported(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.selective(BindFlags::TRANSMIT | BindFlags::RECV));
    let memory = Memory::new(64);
    let nowhere = RemotePiece { addr: 0, len: 64, key: 0x1234_5678 };
    pair.post(|| pair.a.out(pair.to_b, &memory).context(3).msg(OpFlags::empty()).write(&[nowhere]));
    assert_eq!(pair.failed(&pair.a).op_context, Context(3));
    pair.post(|| pair.b.receive(memory.slice(..16)).context(4).msg(OpFlags::empty()).post());
    pair.post(|| pair.a.out(pair.to_b, &memory).send());
    assert_eq!(pair.failed(&pair.b).err, Errno::ETRUNC);
}

pub fn selective_remote_accesses_complete_only_on_request(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.selective(BindFlags::TRANSMIT));
    for len in [64, 100_000] {
        let (memory, target) = (Memory::patterned(len, 3), Memory::new(len));
        let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &memory).context(1).write(&[remote(&region)]));
        let flags = OpFlags::COMPLETION;
        pair.post(|| pair.a.out(pair.to_b, &memory).context(2).msg(flags).write(&[remote(&region)]));
        assert_eq!(pair.done(&pair.a).op_context, Context(2));
        target.check(len, 3);
        pair.quiet(WATCH);
    }
}

pub fn inject_never_completes(kit: &dyn Kit) {
    let pair = kit.pair();
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).inject().send(), 64);
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).data(1).inject().send(), 64);
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    pair.post(|| pair.b.receive(&into).tag(9).post());
    pair.post(|| pair.a.out(pair.to_b, &from).tag(9).inject().send());
    pair.done(&pair.b);
    pair.quiet(WATCH);
}

pub fn inject_never_completes_even_with_completion_flags(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| {
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
        opening.hints(|hints| hints.tx_op_flags(flags)).selective(BindFlags::TRANSMIT)
    });
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).inject().send(), 64);
    pair.quiet(WATCH);
}

pub fn inject_write_never_completes(kit: &dyn Kit) {
    let pair = kit.pair();
    let (memory, target) = (Memory::patterned(64, 3), Memory::new(64));
    let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
    pair.post(|| pair.a.out(pair.to_b, &memory).inject().write(&[remote(&region)]));
    memory.fill(9); // the application may use the buffer again
    pair.drive("the write", || (target.bytes()[63] != 0).then_some(()));
    target.check(64, 3);
    pair.quiet(WATCH);
}

pub fn inject_lets_go_of_the_buffer_at_once(kit: &dyn Kit) {
    let pair = kit.pair();
    let inject = kit.info(&kit.usual()).tx_attr.inject_size;
    for (round, len) in [1, 64, inject].into_iter().enumerate() {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        // First to a peer that is not connected yet, before any receive is posted.
        pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
        from.fill(77);
        pair.post(|| pair.b.receive(&into).post());
        assert_eq!(pair.done(&pair.b).len, len, "round {round}");
        into.check(len, 5);
    }
}

pub fn a_message_with_the_inject_flag_completes(kit: &dyn Kit) {
    let pair = kit.pair();
    let entry = {
        let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
        pair.post(|| pair.b.receive(&into).context(2).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(8).msg(OpFlags::INJECT).send());
        from.fill(99);
        let entry = pair.drive("the receive", || pair.b.next_of(2)).done();
        into.check(64, 5);
        entry
    };
    assert_eq!(entry.len, 64);
    assert_eq!(pair.done(&pair.a).op_context, Context(8));
}

pub fn fields_of_a_send_say_only_what_it_was(kit: &dyn Kit) {
    let pair = kit.pair();
    deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).context(1).data(77).send(), 64);
    let entry = pair.done(&pair.a);
    assert_eq!((entry.op_context, entry.flags), (Context(1), CompletionFlags::SEND | CompletionFlags::MSG));
}

pub fn fields_of_a_receive(kit: &dyn Kit) {
    let pair = kit.pair();
    let entry = deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).send(), 64);
    assert_eq!(entry.flags, CompletionFlags::RECV | CompletionFlags::MSG);
    assert_eq!((entry.op_context, entry.len), (Context(2), 64));
    let entry = deliver(&pair, |pair, from| pair.a.out(pair.to_b, from).data(u64::MAX - 1).send(), 64);
    assert_eq!(entry.flags, CompletionFlags::RECV | CompletionFlags::MSG | CompletionFlags::REMOTE_CQ_DATA);
    assert_eq!(entry.data, u64::MAX - 1, "host order, all 64 bits");
}

pub fn fields_of_a_tagged_receive(kit: &dyn Kit) {
    let pair = kit.pair();
    let into = Memory::new(100_000);
    for len in [0, 64, 100_000] {
        let from = Memory::patterned(len, 5);
        let tag = 0x1122_3344_5566_7788;
        pair.post(|| pair.b.receive(&into).context(2).tag_ignoring(0, u64::MAX).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).tag(tag).data(3).send());
        let entry = pair.done(&pair.b);
        let flags = CompletionFlags::RECV | CompletionFlags::TAGGED | CompletionFlags::REMOTE_CQ_DATA;
        assert_eq!((entry.flags, entry.tag, entry.data, entry.len), (flags, tag, 3, len));
        let sent = pair.done(&pair.a);
        assert_eq!(sent.flags, CompletionFlags::SEND | CompletionFlags::TAGGED);
    }
}

pub fn fields_of_remote_accesses(kit: &dyn Kit) {
    let pair = kit.pair();
    for len in [64, 100_000] {
        let (memory, target) = (Memory::new(len), Memory::new(len));
        let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &memory).context(1).write(&[remote(&region)]));
        assert_eq!(pair.done(&pair.a).flags, CompletionFlags::RMA | CompletionFlags::WRITE);
        pair.post(|| pair.a.out(pair.to_b, &memory).context(2).read(&[remote(&region)]));
        assert_eq!(pair.done(&pair.a).flags, CompletionFlags::RMA | CompletionFlags::READ);
    }
}

pub fn fields_of_a_remote_write_at_its_target(kit: &dyn Kit) {
    let pair = kit.pair();
    for len in [0, 64, 100_000] {
        let (memory, target) = (Memory::patterned(len, 8), Memory::new(100_000));
        let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &memory).data(55).write(&[remote_at(&region, 0, len)]));
        let entry = pair.done(&pair.b);
        let flags = CompletionFlags::RMA | CompletionFlags::REMOTE_WRITE | CompletionFlags::REMOTE_CQ_DATA;
        assert_eq!((entry.flags, entry.data, entry.op_context), (flags, 55, Context::NULL));
        assert_eq!(entry.len, len, "fi_cq(3), len: also for writes with remote CQ data");
        target.check(len, 8);
        pair.done(&pair.a);
    }
}

pub fn a_truncated_message_says_how_much_was_lost(kit: &dyn Kit) {
    let pair = kit.pair();
    for (len, room) in [(100, 16), (100, 0), (8_000, 7_999), (100_000, 16), (100_000, 50_000), (1 << 20, 0)] {
        for expected in [true, false] {
            let (from, into) = (Memory::patterned(len, 5), Memory::new(room));
            let receive = || pair.b.receive(&into).context(2).tag(7).post();
            if expected {
                pair.post(receive);
                pair.poll();
            }
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).tag(7).data(6).send());
            if !expected {
                wait::drive_through(Duration::from_millis(1), &[&pair.b]);
                pair.post(receive);
            }
            let error = pair.failed(&pair.b);
            assert_eq!((error.err, error.op_context), (Errno::ETRUNC, Context(2)), "{len} into {room}");
            assert_eq!((error.len, error.olen), (room, len - room), "{len} into {room}, expected {expected}");
            assert_eq!((error.tag, error.data), (7, 6));
            assert!(
                error.flags.contains(CompletionFlags::RECV | CompletionFlags::TAGGED),
                "{:?}",
                error.flags
            );
            into.check(room, 5);
            assert_eq!(pair.done(&pair.a).op_context, Context(1), "the sender completes as ever");
        }
    }
}

pub fn errors_are_reported_in_their_place(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    pair.warm_up();
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.b.receive(into.slice(..16)).context(2).post());
    pair.post(|| pair.b.receive(&into).context(3).post());
    (0..3).for_each(|_| pair.post(|| pair.a.out(pair.to_b, &from).inject().send()));
    // `post` may have polled `b`, so collect its entries in the order of reading.
    let first = pair.next(&pair.b);
    let second = pair.next(&pair.b);
    let third = pair.next(&pair.b);
    assert_eq!((first.context(), second.context(), third.context()), (1, 2, 3));
    assert_eq!(second.failed().err, Errno::ETRUNC);
}

pub fn an_error_stops_reads_until_it_is_taken(kit: &dyn Kit) {
    let pair = kit.pair();
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    pair.warm_up();
    pair.post(|| pair.b.receive(&into).context(1).post());
    pair.post(|| pair.b.receive(into.slice(..16)).context(2).post());
    pair.post(|| pair.b.receive(&into).context(3).post());
    (0..3).for_each(|_| pair.a.out(pair.to_b, &from).inject().send().unwrap());
    let mut entries = [CqTaggedEntry::EMPTY; 8];
    let mut read = || {
        let read = pair.b.rx.read(&mut CqBuffer::new(&mut entries));
        read.map(|count| (count, entries[0].op_context))
    };
    let first = pair.a_polls_until(|| read().ok());
    assert_eq!(first, (1, Context(1)), "successes ahead of the error come first, and no more");
    wait::until("the error", || read() == Err(Error::AVAIL));
    assert_eq!(read(), Err(Error::AVAIL), "until it is taken");
    let error = pair.b.rx.read_error().unwrap();
    assert_eq!((error.err, error.op_context), (Errno::ETRUNC, Context(2)));
    assert_eq!(pair.b.rx.read_error().unwrap_err().errno(), Errno::EAGAIN, "there was one");
    assert_eq!(pair.a_polls_until(|| read().ok()), (1, Context(3)));
}

pub fn an_error_has_a_text(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let nowhere = RemotePiece { addr: 0, len: 64, key: 0x1234_5678 };
    pair.post(|| pair.a.out(pair.to_b, &memory).write(&[nowhere]));
    let error = pair.failed(&pair.a);
    assert!(!pair.a.tx.error_text(error.prov_errno).is_empty());
}

pub fn a_failed_inject_is_reported(kit: &dyn Kit) {
    let pair = kit.pair();
    let memory = Memory::new(64);
    let nowhere = RemotePiece { addr: 0, len: 64, key: 0x1234_5678 };
    pair.post(|| pair.a.out(pair.to_b, &memory).inject().write(&[nowhere]));
    let error = pair.failed(&pair.a);
    assert!(error.flags.contains(CompletionFlags::WRITE | CompletionFlags::RMA), "{:?}", error.flags);
}

impl Pair {
    /// Polls only `a` until `ready` returns a value: the case itself reads `b`'s queue.
    #[track_caller]
    fn a_polls_until<T>(&self, ready: impl FnMut() -> Option<T>) -> T {
        wait::drive(&[&self.a], "b's queue", ready)
    }
}
