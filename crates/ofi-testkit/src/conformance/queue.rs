//! Reading completion queues (fi_cq(3)).

use std::sync::Arc;

use crate::prelude::*;

/// Sends `count` empty messages with remote CQ data 0, 1, ... from `a`, to receives with contexts 1, 2, ...
fn messages(pair: &Pair, count: usize) {
    for number in 0..count {
        pair.b.receive(()).context(number + 1).post().unwrap();
        wait::drive(&[&pair.a], "room", || {
            pair.a.out(pair.to_b, ()).data(number as u64).inject().send().ok()
        });
    }
}

/// Reads `queue` with entries of type `E`.
fn read_as<E: CqFormatEntry>(pair: &Pair, empty: E) -> E {
    let mut entry = [empty];
    wait::drive(&[&pair.a], "an entry", || match pair.b.rx.read(&mut CqBuffer::new(&mut entry)) {
        Ok(1) => Some(()),
        Ok(other) => panic!("{other} entries"),
        Err(error) if error.is_again() => None,
        Err(error) => panic!("{error}"),
    });
    entry[0]
}

fn pair_in_format(kit: &dyn Kit, format: CqFormat) -> Pair {
    let pair = Pair::of(kit.side(), kit.opening().format(format).open());
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    assert_eq!(pair.b.rx.format(), format);
    pair.b.receive(&into).context(2).tag(9).post().unwrap();
    wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, &from).tag(9).data(3).inject().send().ok());
    pair
}

pub fn format_context(kit: &dyn Kit) {
    let pair = pair_in_format(kit, CqFormat::Context);
    assert_eq!(read_as(&pair, CqEntry { op_context: Context::NULL }), CqEntry { op_context: Context(2) });
}

pub fn format_msg(kit: &dyn Kit) {
    let pair = pair_in_format(kit, CqFormat::Msg);
    let empty = CqMsgEntry { op_context: Context::NULL, flags: CompletionFlags::empty(), len: 0 };
    let entry = read_as(&pair, empty);
    assert_eq!((entry.op_context, entry.len), (Context(2), 64));
    assert!(entry.flags.contains(CompletionFlags::RECV | CompletionFlags::TAGGED));
}

pub fn format_data(kit: &dyn Kit) {
    let pair = pair_in_format(kit, CqFormat::Data);
    let flags = CompletionFlags::empty();
    let empty = CqDataEntry { op_context: Context::NULL, flags, len: 0, buf: std::ptr::null_mut(), data: 0 };
    let entry = read_as(&pair, empty);
    assert_eq!((entry.op_context, entry.len, entry.data), (Context(2), 64, 3));
}

pub fn format_tagged(kit: &dyn Kit) {
    let pair = pair_in_format(kit, CqFormat::Tagged);
    let entry = read_as(&pair, CqTaggedEntry::EMPTY);
    assert_eq!((entry.op_context, entry.len, entry.data, entry.tag), (Context(2), 64, 3, 9));
}

pub fn an_unspecified_format_is_chosen_and_told(kit: &dyn Kit) {
    let side = kit.opening().format(CqFormat::Unspec).open();
    assert_ne!(side.rx.format(), CqFormat::Unspec);
}

pub fn a_read_in_another_format_is_refused(kit: &dyn Kit) {
    let side = kit.opening().format(CqFormat::Msg).open();
    let error = side.rx.read(&mut CqBuffer::new(&mut [CqTaggedEntry::EMPTY])).unwrap_err();
    assert_eq!(error.errno(), Errno::EINVAL);
    assert!(error.detail().is_some(), "{error}");
}

pub fn a_read_of_nothing_is_again(kit: &dyn Kit) {
    let side = kit.side();
    let mut entries = [CqTaggedEntry::EMPTY; 4];
    assert_eq!(side.rx.read(&mut CqBuffer::new(&mut entries)).unwrap_err().errno(), Errno::EAGAIN);
    assert_eq!(side.rx.read_error().unwrap_err().errno(), Errno::EAGAIN);
}

pub fn a_read_of_none_says_whether_there_is_something(kit: &dyn Kit) {
    let pair = kit.pair();
    let mut none: [CqTaggedEntry; 0] = [];
    let mut probe = || pair.b.rx.read(&mut CqBuffer::new(&mut none));
    assert_eq!(probe(), Err(Error::AGAIN));
    messages(&pair, 1);
    // And it drives progress: b's queue is not read otherwise.
    wait::drive(&[&pair.a], "a read of none to find the message", || (probe() == Ok(0)).then_some(()));
    assert_eq!(probe(), Ok(0), "it takes nothing");
    assert_eq!(pair.done(&pair.b).op_context, Context(1));
    assert_eq!(probe(), Err(Error::AGAIN));
}

pub fn reads_of_any_size_keep_the_order(kit: &dyn Kit) {
    const COUNT: usize = 200;
    for capacity in [1, 3, 64, 500] {
        let pair = kit.pair();
        messages(&pair, COUNT);
        let mut got = Vec::new();
        wait::drive(&[&pair.a], "all entries", || {
            let mut entries = vec![CqTaggedEntry::EMPTY; capacity];
            if let Ok(count) = pair.b.rx.read(&mut CqBuffer::new(&mut entries)) {
                assert!((1..=capacity).contains(&count));
                got.extend(entries[..count].iter().map(|entry| (entry.op_context.0, entry.data)));
            }
            (got.len() >= COUNT).then_some(())
        });
        assert_eq!(got, (0..COUNT).map(|number| (number + 1, number as u64)).collect::<Vec<_>>());
    }
}

pub fn the_source_is_told(kit: &dyn Kit) {
    let pair = kit.pair();
    let other = kit.side();
    let (to_b, from_other) = (other.insert(&pair.b), pair.b.insert(&other));
    for (side, to, source) in [(&pair.a, pair.to_b, pair.to_a), (&other, to_b, from_other)] {
        for len in [0, 64, 100_000] {
            let (from, into) = (Memory::new(len), Memory::new(len));
            pair.b.receive(&into).context(1).post().unwrap();
            wait::drive(&[side, &pair.b], "room", || side.out(to, &from).send().ok());
            let event = wait::drive(&[side, &pair.b], "the message", || pair.b.next());
            let Event::Done(_, found) = event else { panic!("{event:?}") };
            assert_eq!(found, source, "{len} bytes");
        }
    }
}

pub fn an_unknown_source_is_not_available_until_inserted(kit: &dyn Kit) {
    let (a, b) = (kit.side(), kit.side());
    let to_b = a.insert(&b);
    let exchange = || {
        b.receive(()).context(1).post().unwrap();
        wait::drive(&[&a, &b], "room", || a.out(to_b, ()).inject().send().ok());
        match wait::drive(&[&a, &b], "the message", || b.next()) {
            Event::Done(_, source) => source,
            Event::Failed(error) => panic!("{error:?}"),
        }
    };
    assert_eq!(exchange(), FiAddr::NOTAVAIL);
    let known = b.insert(&a);
    assert_eq!(exchange(), known);
    b.av.remove(&[known]).unwrap();
    assert_eq!(exchange(), FiAddr::NOTAVAIL);
}

pub fn the_source_is_not_told_without_the_capability(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.caps(Caps::MSG)));
    if pair.b.info.caps.contains(Caps::SOURCE) {
        return; // granted without a request, which is allowed
    }
    pair.b.receive(()).context(1).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(pair.done_from(&pair.b).1, FiAddr::NOTAVAIL);
}

pub fn an_unknown_source_is_an_error_with_its_address_on_request(kit: &dyn Kit) {
    let a = kit.side();
    let b = kit.opening().hints(|hints| hints.caps(Caps::MSG | Caps::SOURCE | Caps::SOURCE_ERR)).open();
    let to_b = a.insert(&b);
    for len in [0, 64, 100_000] {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        b.receive(&into).context(2).post().unwrap();
        wait::drive(&[&a, &b], "room", || a.out(to_b, &from).data(4).send().ok());
        let error = wait::drive(&[&a, &b], "the message", || b.next()).failed();
        assert_eq!((error.err, error.op_context), (Errno::EADDRNOTAVAIL, Context(2)));
        assert_eq!((error.len, error.data), (len, 4), "the data was received");
        into.check(len, 5);
        // The address can be inserted into the address vector directly.
        let address = Address::new(b.info.addr_format, &error.err_data);
        let known = b.insert_address(&address);
        b.receive(&into).context(3).post().unwrap();
        wait::drive(&[&a, &b], "room", || a.out(to_b, &from).send().ok());
        let event = wait::drive(&[&a, &b], "the message", || b.next_of(3));
        let Event::Done(_, source) = event else { panic!("{event:?}") };
        assert_eq!(source, known);
        b.av.remove(&[known]).unwrap();
    }
    // Also for a message that does not fit, in that error.
    let (from, into) = (Memory::patterned(64, 5), Memory::new(16));
    b.receive(&into).context(4).post().unwrap();
    wait::drive(&[&a, &b], "room", || a.out(to_b, &from).send().ok());
    let error = wait::drive(&[&a, &b], "the message", || b.next_of(4)).failed();
    assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, 16, 48));
    b.insert_address(&Address::new(b.info.addr_format, &error.err_data));
}

pub fn one_queue_serves_many_endpoints(kit: &dyn Kit) {
    let hub = kit.side();
    let others: Vec<TestEndpoint> =
        (0..3).map(|_| kit.opening().beside(&hub).queue(&hub.rx).open()).collect();
    let sender = kit.side();
    for (number, side) in others.iter().chain([&hub]).enumerate() {
        side.receive(()).context(number + 1).post().unwrap();
        let to = sender.insert(side);
        wait::drive(&[&sender], "room", || sender.out(to, ()).inject().send().ok());
    }
    let mut seen = Vec::new();
    wait::drive(&[&sender, &hub], "one message for each endpoint", || {
        seen.extend(hub.next().map(|event| event.done().op_context.0));
        (seen.len() == 4).then_some(())
    });
    seen.sort_unstable();
    assert_eq!(seen, [1, 2, 3, 4]);
}

pub fn an_error_of_one_endpoint_follows_what_the_others_have(kit: &dyn Kit) {
    let hub = kit.side();
    let other = kit.opening().beside(&hub).queue(&hub.rx).open();
    let sender = kit.side();
    let got = Memory::new(4);
    // The first endpoint of the queue has an error, the second one messages.
    hub.receive(&got).context(1).post().unwrap();
    let to = [sender.insert(&hub), sender.insert(&other)];
    let sent = [Memory::new(8), Memory::new(4)];
    let again = || {
        other.receive(&got).context(2).post().unwrap();
        wait::drive(&[&sender], "room", || sender.out(to[1], &sent[1]).inject().send().ok());
    };
    wait::drive(&[&sender], "room", || sender.out(to[0], &sent[0]).inject().send().ok());
    (0..8).for_each(|_| again());
    let mut entry = [CqTaggedEntry::EMPTY];
    // There is always another message, so this ends only if the error is reported eventually.
    let error = wait::drive(&[&sender], "the error", || match hub.rx.read(&mut CqBuffer::new(&mut entry)) {
        Ok(_) => {
            assert_eq!(entry[0].op_context, Context(2));
            again();
            None
        }
        Err(error) if error.is_again() => None,
        Err(error) => {
            assert_eq!(error.errno(), Errno::EAVAIL);
            Some(hub.rx.read_error().unwrap())
        }
    });
    assert_eq!((error.err, error.op_context), (Errno::ETRUNC, Context(1)));
}

pub fn two_queues_keep_the_directions_apart(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.two_queues());
    pair.b.receive(()).context(2).post().unwrap();
    wait::drive(&[], "room", || pair.a.out(pair.to_b, ()).context(1).send().ok());
    let mut entries = [CqTaggedEntry::EMPTY; 2];
    let mut read = |queue: &Arc<dyn CompletionQueue>, what: &str| {
        wait::drive(&[], what, || {
            assert!(pair.a.rx.read(&mut CqBuffer::new(&mut entries)).is_err(), "nothing was received at a");
            assert!(pair.b.tx.read(&mut CqBuffer::new(&mut entries)).is_err(), "nothing was sent by b");
            queue.read(&mut CqBuffer::new(&mut entries)).ok()
        });
        entries[0].op_context
    };
    assert_eq!(read(&pair.b.rx, "the receive"), Context(2));
    assert_eq!(read(&pair.a.tx, "the send"), Context(1));
}

pub fn reading_the_transmit_queue_alone_drives_a_send(kit: &dyn Kit) {
    // fi_cq(3): any read of a queue of the endpoint makes progress.
    let pair = kit.pair_with(|opening| opening.two_queues());
    let (from, into) = (Memory::patterned(300_000, 5), Memory::new(300_000));
    pair.b.receive(&into).context(2).post().unwrap();
    wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).context(1).send().ok());
    let mut entries = [CqTaggedEntry::EMPTY; 2];
    let (mut sent, mut received) = (false, false);
    wait::drive(&[], "both ends", || {
        sent |= pair.a.tx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        received |= pair.b.rx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        (sent && received).then_some(())
    });
    into.check(300_000, 5);
}

pub fn unread_receives_do_not_hold_up_sends(kit: &dyn Kit) {
    // a's receive queue holds as many unread completions as receives may be posted. What a's send waits for comes after
    // them.
    let pair = kit.pair_with(|opening| opening.two_queues().hints(|hints| hints.rx_size(80)));
    let mut entries = [CqTaggedEntry::EMPTY; 8];
    let size = pair.a.info.rx_attr.size;
    for context in 0..size {
        wait::drive(&[], "room", || pair.a.receive(()).context(context).post().ok());
    }
    let (mut posted, mut ended) = (0, 0);
    wait::drive(&[], "messages to a", || {
        posted += usize::from(posted < size && pair.b.out(pair.to_a, ()).send().is_ok());
        assert!(pair.a.tx.read(&mut CqBuffer::new(&mut entries)).is_err(), "a has sent nothing");
        ended += pair.b.tx.read(&mut CqBuffer::new(&mut entries)).unwrap_or(0);
        (ended == size).then_some(())
    });
    let (from, into) = (Memory::patterned(300_000, 5), Memory::new(300_000));
    pair.b.receive(&into).post().unwrap();
    let flags = OpFlags::DELIVERY_COMPLETE;
    wait::drive(&[], "room", || pair.a.out(pair.to_b, &from).msg(flags).send().ok());
    let (mut sent, mut received) = (false, false);
    wait::drive(&[], "the long message", || {
        sent |= pair.a.tx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        received |= pair.b.rx.read(&mut CqBuffer::new(&mut entries)).is_ok();
        (sent && received).then_some(())
    });
    into.check(300_000, 5);
    let mut read = 0;
    wait::drive(&[], "the receives of a", || {
        read += pair.a.rx.read(&mut CqBuffer::new(&mut entries)).unwrap_or(0);
        (read == size).then_some(())
    });
}

pub fn a_queue_outlives_its_endpoint_and_is_empty_then(kit: &dyn Kit) {
    let pair = kit.pair();
    messages(&pair, 3);
    let queue = Arc::clone(&pair.b.rx);
    drop(pair);
    let mut entries = [CqTaggedEntry::EMPTY; 4];
    assert_eq!(queue.read(&mut CqBuffer::new(&mut entries)), Err(Error::AGAIN), "no entries after fi_close");
}
