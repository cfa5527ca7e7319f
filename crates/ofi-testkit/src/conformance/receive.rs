//! Receives of every size and shape, before and after the message (fi_msg(3), fi_tagged(3)).

use crate::prelude::*;

/// Sizes around every threshold that a transport may have: a cache line, a page, injected sizes, ring records, parts.
pub(super) const SIZES: [usize; 34] = [
    0, 1, 7, 8, 9, 63, 64, 65, 127, 128, 255, 256, 1_023, 1_024, 4_095, 4_096, 4_097, 8_100, 8_151, 8_152,
    8_160, 8_168, 8_176, 8_191, 8_192, 8_193, 16_383, 16_384, 16_385, 32_769, 65_536, 262_145, 1_048_577,
    8_388_608,
];

fn sweep(kit: &dyn Kit, tag: Option<u64>, expected: bool) {
    let pair = kit.pair();
    for (number, len) in SIZES.into_iter().enumerate() {
        let (from, into) = (Memory::patterned(len, number as u8), Memory::new(len + 1));
        let receive = || {
            let receive = pair.b.receive(into.slice(..len)).context(2);
            if let Some(tag) = tag { receive.tag(tag) } else { receive }.post()
        };
        if expected {
            pair.post(receive);
        }
        let out = pair.a.out(pair.to_b, &from).context(1);
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        pair.post(|| out.send());
        if !expected {
            wait::drive_through(Duration::from_micros(300), &[&pair.a, &pair.b]);
            pair.post(receive);
        }
        let entry = pair.drive("the receive", || pair.b.next_of(2)).done();
        assert_eq!(entry.len, len);
        into.check(len, number as u8);
        assert_eq!(into.bytes()[len], 0, "a byte behind the buffer of {len} bytes was written");
        pair.drive("the send", || pair.a.next_of(1)).done();
    }
}

pub fn every_size_arrives(kit: &dyn Kit) {
    sweep(kit, None, true);
}

pub fn every_size_arrives_unexpectedly(kit: &dyn Kit) {
    sweep(kit, None, false);
}

pub fn every_tagged_size_arrives(kit: &dyn Kit) {
    sweep(kit, Some(77), true);
}

pub fn every_tagged_size_arrives_unexpectedly(kit: &dyn Kit) {
    sweep(kit, Some(77), false);
}

pub fn a_message_of_several_pieces_is_one(kit: &dyn Kit) {
    let pair = kit.pair();
    let limit = pair.a.info.tx_attr.iov_limit.min(pair.b.info.rx_attr.iov_limit);
    for len in [10, 1_000, 7_000, 20_000, 300_000] {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(len));
        // Uneven cuts, including an empty piece if enough pieces are allowed.
        let cut = |memory: &Memory, first: usize| -> Vec<Slice> {
            let mut cuts = vec![0, first, first];
            cuts.extend((1..limit.saturating_sub(3)).map(|piece| first + (len - first) * piece / limit));
            cuts.truncate(limit);
            cuts.push(len);
            cuts.windows(2).map(|ends| memory.slice(ends[0]..ends[1])).collect()
        };
        pair.post(|| pair.b.receive(cut(&into, 3)).context(2).post());
        pair.post(|| pair.a.out(pair.to_b, cut(&from, 5)).context(1).send());
        assert_eq!(pair.done(&pair.b).len, len);
        into.check(len, 3);
        pair.done(&pair.a);
    }
}

pub fn a_receive_of_several_pieces_is_filled_from_the_front(kit: &dyn Kit) {
    let pair = kit.pair();
    if pair.b.info.rx_attr.iov_limit < 2 {
        return;
    }
    for len in [10, 9_000, 200_000] {
        let (from, into) = (Memory::patterned(len, 3), Memory::new(2 * len));
        let pieces = vec![into.slice(..len / 2), into.slice(len..2 * len)];
        pair.post(|| pair.b.receive(pieces.clone()).post());
        pair.post(|| pair.a.out(pair.to_b, &from).send());
        assert_eq!(pair.done(&pair.b).len, len);
        into.slice(..len / 2).check(3);
        into.slice(len..len + len - len / 2).check_from(3, len / 2);
        assert!(into.slice(len / 2..len).bytes().iter().all(|&byte| byte == 0), "between the pieces");
        pair.done(&pair.a);
    }
}

pub fn an_empty_message_needs_no_memory(kit: &dyn Kit) {
    let pair = kit.pair();
    for tag in [None, Some(1)] {
        let receive = pair.b.receive(()).context(2);
        let receive = if let Some(tag) = tag { receive.tag(tag) } else { receive };
        let out = pair.a.out(pair.to_b, ()).context(1);
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        pair.post(|| receive.post());
        pair.post(|| out.send());
        assert_eq!(pair.done(&pair.b).len, 0);
        pair.done(&pair.a);
    }
}

pub fn unexpected_messages_are_kept_in_order(kit: &dyn Kit) {
    const COUNT: usize = 300;
    let pair = kit.pair();
    for number in 0..COUNT {
        let from = Memory::patterned(number % 90, number as u8);
        pair.post(|| pair.a.out(pair.to_b, &from).data(number as u64).msg(OpFlags::INJECT).send());
    }
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    for number in 0..COUNT {
        let into = Memory::new(90);
        pair.post(|| pair.b.receive(&into).context(2).post());
        let entry = pair.drive("a receive", || pair.b.next_of(2)).done();
        assert_eq!((entry.data, entry.len), (number as u64, number % 90));
        into.check(number % 90, number as u8);
    }
}

pub fn both_directions_at_once(kit: &dyn Kit) {
    let pair = kit.pair();
    let len = 700_000;
    let ends = [(&pair.a, pair.to_b), (&pair.b, pair.to_a)];
    let into: Vec<Memory> = (0..8).map(|_| Memory::new(len)).collect();
    for (number, memory) in into.iter().enumerate() {
        pair.post(|| ends[number % 2].0.receive(memory).context(10 + number).post());
    }
    for number in 0..8 {
        let (side, to) = ends[(number + 1) % 2];
        let from = Memory::patterned(len, number as u8);
        pair.post(|| side.out(to, &from).context(1).send());
    }
    for (number, memory) in into.iter().enumerate() {
        pair.drive("a receive", || ends[number % 2].0.next_of(10 + number)).done();
        memory.check(len, number as u8);
    }
}

pub fn an_endpoint_can_send_to_itself(kit: &dyn Kit) {
    let side = kit.side();
    let to_self = side.insert_address(&side.name());
    for len in [0, 64, 6_000, 300_000] {
        let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
        side.receive(&into).context(2).post().unwrap();
        wait::drive(&[&side], "room", || side.out(to_self, &from).context(1).send().ok());
        wait::drive(&[&side], "the receive", || side.next_of(2)).done();
        wait::drive(&[&side], "the send", || side.next_of(1)).done();
        into.check(len, 5);
    }
}

pub fn receives_reach_the_limit_and_go_on(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.rx_size(16)));
    let limit = pair.b.info.rx_attr.size;
    assert_eq!(limit, 16);
    let mut posted = 0;
    let refused = loop {
        match pair.b.receive(()).context(posted + 1).post() {
            Ok(()) => posted += 1,
            Err(error) => break error,
        }
        assert!(posted < 100_000, "no limit");
    };
    assert!(posted >= limit, "{posted} of {limit}");
    assert_eq!(refused.errno(), Errno::EAGAIN);
    for number in 0..posted {
        pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
        assert_eq!(pair.done(&pair.b).op_context, Context(number + 1));
    }
    pair.b.receive(()).post().unwrap();
}

pub fn library_memory_is_sent_and_received_like_any_other(kit: &dyn Kit) {
    let pair = kit.pair();
    for len in [1, 4_096, 8_193, 100_000, 3_000_000] {
        let from = Memory::library(&pair.a.domain, len);
        let region = pair.a.register(&from, MrAccess::SEND).unwrap();
        let into = Memory::library(&pair.b.domain, len);
        for seed in 0..3 {
            from.fill(seed);
            pair.post(|| pair.b.receive(&into).context(2).post());
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
            pair.drive("the receive", || pair.b.next_of(2)).done();
            pair.drive("the send", || pair.a.next_of(1)).done();
            into.check(len, seed);
        }
        region.close().unwrap();
    }
}

pub fn unregistered_library_memory_can_be_sent(kit: &dyn Kit) {
    let pair = kit.pair();
    let len = 1 << 20;
    let from = Memory::library(&pair.a.domain, len);
    let into = Memory::new(len);
    from.fill(9);
    pair.post(|| pair.b.receive(&into).context(2).post());
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.drive("the receive", || pair.b.next_of(2)).done();
    into.check(len, 9);
}
