//! One buffer for many messages (fi_msg(3), FI_MULTI_RECV).

use crate::prelude::*;

/// A pair whose buffers are released when fewer than `least` bytes are free.
fn pair_with_least(kit: &dyn Kit, least: usize) -> Pair {
    let pair = kit.pair();
    pair.b.ep.set_option(EpOption::MinMultiRecv, least).unwrap();
    assert_eq!(pair.b.ep.option(EpOption::MinMultiRecv), Ok(least));
    pair
}

/// The messages in a multi-receive buffer until its release: offset, length and data of each.
///
/// The release may come with the last message, or in an entry of its own without a buffer.
fn until_released(pair: &Pair, buffer: &Memory, context: usize) -> Vec<(usize, usize, u64)> {
    let mut all = Vec::new();
    loop {
        let entry = pair.drive("a part of the buffer, or its release", || pair.b.next_of(context)).done();
        let released = entry.flags.contains(CompletionFlags::MULTI_RECV);
        if !entry.buf.is_null() {
            let offset = entry.buf.addr() - buffer.as_ptr().addr();
            assert!(offset + entry.len <= buffer.len(), "{offset} + {} in {}", entry.len, buffer.len());
            all.push((offset, entry.len, entry.data));
        } else {
            assert!(released, "an entry without a buffer is a release: {entry:?}");
        }
        if released {
            return all;
        }
    }
}

fn packs(kit: &dyn Kit, tag: Option<u64>) {
    let pair = pair_with_least(kit, 100);
    let buffer = Memory::new(1_000);
    let receive = pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV);
    let receive = if let Some(tag) = tag { receive.tag_ignoring(tag, 0xFF) } else { receive };
    receive.post().unwrap();
    let lengths = [100, 0, 250, 1, 300, 260];
    for (number, &len) in lengths.iter().enumerate() {
        let from = Memory::patterned(len, number as u8);
        let out = pair.a.out(pair.to_b, &from).data(number as u64).msg(OpFlags::INJECT);
        let out = if let Some(tag) = tag { out.tag(tag + number as u64) } else { out };
        pair.post(|| out.send());
    }
    let parts = until_released(&pair, &buffer, 5);
    let mut end = 0;
    assert_eq!(parts.len(), lengths.len());
    for (number, (&len, &(offset, got, data))) in lengths.iter().zip(&parts).enumerate() {
        assert_eq!((got, data), (len, number as u64));
        assert!(offset >= end, "messages are packed one behind the other");
        buffer.slice(offset..offset + len).check(number as u8);
        end = offset + len;
    }
    // The application may use it again: the next message waits for another receive.
    pair.post(|| pair.a.out(pair.to_b, ()).msg(OpFlags::INJECT).data(9).send());
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    assert!(pair.b.next_of(5).is_none());
}

pub fn messages_are_packed_and_the_buffer_is_released(kit: &dyn Kit) {
    packs(kit, None);
}

pub fn tagged_messages_are_packed_and_the_buffer_is_released(kit: &dyn Kit) {
    let hints = kit.usual().caps(Caps::MSG | Caps::TAGGED | Caps::TAGGED_MULTI_RECV);
    if kit.getinfo(&hints).is_ok() {
        packs(kit, Some(0x700));
    }
}

pub fn unexpected_messages_fill_the_buffer(kit: &dyn Kit) {
    let pair = pair_with_least(kit, 64);
    for number in 0..6_u8 {
        let from = Memory::patterned(100, number);
        pair.post(|| pair.a.out(pair.to_b, &from).data(number.into()).msg(OpFlags::INJECT).send());
    }
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    let buffer = Memory::new(450);
    pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
    let parts = until_released(&pair, &buffer, 5);
    assert_eq!(parts.iter().map(|part| part.2).collect::<Vec<_>>(), [0, 1, 2, 3]);
    parts.iter().for_each(|&(offset, len, data)| buffer.slice(offset..offset + len).check(data as u8));
    let rest = Memory::new(100);
    for number in 4..6_u8 {
        pair.b.receive(&rest).context(6).post().unwrap();
        let entry = pair.drive("what did not fit", || pair.b.next_of(6)).done();
        assert_eq!(entry.data, u64::from(number));
        rest.check(100, number);
    }
}

pub fn large_messages_go_into_the_buffer_too(kit: &dyn Kit) {
    let pair = pair_with_least(kit, 100_000);
    for expected in [true, false] {
        let buffer = Memory::new(1_000_000);
        let receive = || pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
        if expected {
            receive();
        }
        let lengths = [300_000, 64, 300_000, 9_000, 300_000];
        for (number, &len) in lengths.iter().enumerate() {
            let from = Memory::patterned(len, number as u8);
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).data(number as u64).send());
        }
        if !expected {
            wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
            receive();
        }
        let mut parts = until_released(&pair, &buffer, 5);
        parts.sort_unstable_by_key(|part| part.2);
        assert_eq!(parts.iter().map(|part| part.1).collect::<Vec<_>>(), lengths, "expected {expected}");
        for &(offset, len, data) in &parts {
            buffer.slice(offset..offset + len).check(data as u8);
        }
        pair.all_done(&pair.a, 1, lengths.len());
    }
}

pub fn buffers_are_used_in_posted_order(kit: &dyn Kit) {
    let pair = pair_with_least(kit, 64);
    let (first, second) = (Memory::new(256), Memory::new(256));
    pair.b.receive(&first).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
    pair.b.receive(&second).context(6).msg(OpFlags::MULTI_RECV).post().unwrap();
    for number in 0..8_u8 {
        let from = Memory::patterned(64, number);
        pair.post(|| pair.a.out(pair.to_b, &from).data(number.into()).msg(OpFlags::INJECT).send());
    }
    let data = |parts: Vec<(usize, usize, u64)>| parts.iter().map(|part| part.2).collect::<Vec<_>>();
    assert_eq!(data(until_released(&pair, &first, 5)), [0, 1, 2, 3]);
    assert_eq!(data(until_released(&pair, &second, 6)), [4, 5, 6, 7]);
}

pub fn a_message_longer_than_what_is_left_is_truncated_and_releases(kit: &dyn Kit) {
    for (len, size) in [(150, 100), (200_000, 150_000)] {
        let pair = pair_with_least(kit, 10);
        let buffer = Memory::new(size);
        pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
        let from = Memory::patterned(len, 1);
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        let event = pair.drive("the truncation", || pair.b.next_of(5));
        let error = event.failed();
        assert_eq!((error.err, error.len, error.olen), (Errno::ETRUNC, size, len - size));
        let released =
            error.flags.contains(CompletionFlags::MULTI_RECV) || until_released(&pair, &buffer, 5).is_empty();
        assert!(released, "the release is reported with errors too (#10721)");
        buffer.check(size, 1);
    }
}

pub fn a_cancelled_buffer_is_released(kit: &dyn Kit) {
    let pair = pair_with_least(kit, 64);
    for used in [0, 1] {
        let buffer = Memory::new(1_000);
        pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
        for _ in 0..used {
            pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
            let entry = pair.drive("a part", || pair.b.next_of(5)).done();
            assert!(!entry.flags.contains(CompletionFlags::MULTI_RECV));
        }
        pair.b.cancel(5).unwrap();
        let error = pair.drive("the cancellation", || pair.b.next_of(5)).failed();
        assert_eq!(error.err, Errno::ECANCELED);
        assert!(error.flags.contains(CompletionFlags::MULTI_RECV), "{:?}", error.flags);
    }
    pair.quiet(Duration::from_millis(5));
}

pub fn a_buffer_cancelled_while_it_is_filled_is_released_once(kit: &dyn Kit) {
    let pair = pair_with_least(kit, 64);
    let buffer = Memory::new(1 << 20);
    pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
    let from = Memory::patterned(800_000, 1);
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    // Cancel as soon as the message may be in flight.
    pair.poll();
    let _ = pair.b.cancel(5);
    let (mut releases, mut cancels, mut placed) = (0, 0, 0);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(200) && (releases == 0 || placed + cancels == 0) {
        pair.poll();
        match pair.b.next_of(5) {
            Some(Event::Done(entry, _)) => {
                releases += usize::from(entry.flags.contains(CompletionFlags::MULTI_RECV));
                placed += usize::from(entry.len > 0);
            }
            Some(Event::Failed(error)) => {
                assert_eq!(error.err, Errno::ECANCELED);
                releases += usize::from(error.flags.contains(CompletionFlags::MULTI_RECV));
                cancels += 1;
            }
            None => {}
        }
    }
    assert_eq!((releases, cancels), (1, 1), "placed {placed}");
    if placed == 1 {
        buffer.check(800_000, 1);
    }
}

pub fn the_release_is_reported_even_if_receives_are_not(kit: &dyn Kit) {
    let a = kit.side();
    let b = kit.opening().selective(BindFlags::RECV).open();
    let pair = Pair::of(a, b);
    pair.b.ep.set_option(EpOption::MinMultiRecv, 64).unwrap();
    let buffer = Memory::new(256);
    pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
    for number in 0..4 {
        let from = Memory::patterned(64, number);
        pair.post(|| pair.a.out(pair.to_b, &from).inject().send());
    }
    let entry = pair.drive("the release", || pair.b.next_of(5)).done();
    assert!(entry.flags.contains(CompletionFlags::MULTI_RECV), "{entry:?}");
    for number in 0..4_u8 {
        buffer.slice(64 * usize::from(number)..64 * usize::from(number) + 64).check(number);
    }
}

pub fn many_small_messages_into_one_buffer_lose_nothing(kit: &dyn Kit) {
    const COUNT: u64 = 20_000;
    let pair = pair_with_least(kit, 8);
    let buffer = Memory::new(8 * COUNT as usize);
    pair.b.receive(&buffer).context(5).msg(OpFlags::MULTI_RECV).post().unwrap();
    let from = Memory::new(8);
    // b is not read while a sends for as long as it can.
    let mut sent = 0;
    while sent < COUNT {
        from.slice(..).put(&sent.to_ne_bytes());
        match pair.a.out(pair.to_b, &from).data(sent).inject().send() {
            Ok(()) => sent += 1,
            Err(error) if error.is_again() => pair.poll(),
            Err(error) => panic!("{error}"),
        }
    }
    let parts = until_released(&pair, &buffer, 5);
    assert_eq!(parts.len() as u64, COUNT);
    for (number, &(offset, len, data)) in parts.iter().enumerate() {
        assert_eq!((offset, len, data), (8 * number, 8, number as u64));
    }
    let bytes = buffer.bytes();
    assert!(bytes.chunks_exact(8).enumerate().all(|(at, word)| word == (at as u64).to_ne_bytes()));
}
