//! Message matching (fi_msg(3), fi_tagged(3)): a message goes to the first posted receive that matches, across all
//! kinds.

use crate::prelude::*;

/// Three endpoints, two of which send to `b`.
struct Three {
    pair: Pair,
    c: TestEndpoint,
    c_to_b: FiAddr,
    from_c: FiAddr,
}

impl Three {
    fn new(kit: &dyn Kit) -> Self {
        let pair = kit.pair();
        let c = kit.side();
        let (c_to_b, from_c) = (c.insert(&pair.b), pair.b.insert(&c));
        Self { pair, c, c_to_b, from_c }
    }

    /// Sends an empty message from `a` (or `c`) with `data` to identify it.
    fn send(&self, from_c: bool, tag: Option<u64>, data: u64) {
        let (side, to) = if from_c { (&self.c, self.c_to_b) } else { (&self.pair.a, self.pair.to_b) };
        let out = side.out(to, ()).data(data).inject();
        let out = if let Some(tag) = tag { out.tag(tag) } else { out };
        wait::drive(&[side, &self.pair.b], "room", || out.send().ok());
    }

    /// The message (its data) that each receive (its context) got.
    fn matches(&self, count: usize) -> Vec<(usize, u64)> {
        let mut all: Vec<(usize, u64)> = (0..count)
            .map(|_| {
                let sides = [&self.pair.a, &self.c, &self.pair.b];
                let entry = wait::drive(&sides, "a match", || self.pair.b.next()).done();
                (entry.op_context.0, entry.data)
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// Sends in the same way, and waits until the statistic `name` of `b` shows it.
    fn send_until(&self, name: &str, from_c: bool, tag: Option<u64>, data: u64) {
        let sides = [&self.pair.a, &self.c, &self.pair.b];
        wait::until_counted(&sides, &self.pair.b, name, || self.send(from_c, tag, data));
    }

    /// Sends a message without a receive, and waits until it is unexpected at `b`.
    fn keep(&self, from_c: bool, tag: Option<u64>, data: u64) {
        self.send_until("rx_unexpected_now", from_c, tag, data);
    }
}

/// Posts an any-source and a directed receive in both orders, before and after the message arrives.
fn any_and_directed(kit: &dyn Kit, tag: Option<u64>) {
    for any_first in [true, false] {
        for expected in [true, false] {
            let three = Three::new(kit);
            let b = &three.pair.b;
            let post = |directed: bool, context: usize| {
                let receive = b.receive(()).context(context);
                let receive = if directed { receive.from(three.pair.to_a) } else { receive };
                let receive = if let Some(tag) = tag { receive.tag(tag) } else { receive };
                receive.post().unwrap();
            };
            if !expected {
                three.keep(false, tag, 1);
                three.keep(false, tag, 2);
            }
            post(!any_first, 1);
            post(any_first, 2);
            if expected {
                three.send(false, tag, 1);
                three.send(false, tag, 2);
            }
            assert_eq!(three.matches(2), [(1, 1), (2, 2)], "any first {any_first}, expected {expected}");
        }
    }
}

pub fn any_source_and_directed_receives_match_in_posted_order(kit: &dyn Kit) {
    any_and_directed(kit, None);
}

pub fn any_source_and_directed_tagged_receives_match_in_posted_order(kit: &dyn Kit) {
    any_and_directed(kit, Some(5));
}

pub fn a_directed_receive_takes_only_its_source(kit: &dyn Kit) {
    for tag in [None, Some(5)] {
        let three = Three::new(kit);
        let b = &three.pair.b;
        let tagged = |receive: crate::post::In<'_>| {
            if let Some(tag) = tag { receive.tag(tag) } else { receive }.post()
        };
        tagged(b.receive(()).context(1).from(three.from_c)).unwrap();
        tagged(b.receive(()).context(2).from(three.pair.to_a)).unwrap();
        tagged(b.receive(()).context(3)).unwrap();
        for data in [10, 11] {
            three.send_until("rx_messages", false, tag, data);
        }
        three.send(true, tag, 12);
        assert_eq!(three.matches(3), [(1, 12), (2, 10), (3, 11)]);
    }
}

pub fn a_directed_receive_finds_an_unexpected_message_of_its_source(kit: &dyn Kit) {
    for tag in [None, Some(5)] {
        let three = Three::new(kit);
        let b = &three.pair.b;
        three.keep(false, tag, 10);
        three.keep(true, tag, 12);
        let tagged = |receive: crate::post::In<'_>| {
            if let Some(tag) = tag { receive.tag(tag) } else { receive }.post()
        };
        tagged(b.receive(()).context(1).from(three.from_c)).unwrap();
        tagged(b.receive(()).context(2)).unwrap();
        assert_eq!(three.matches(2), [(1, 12), (2, 10)]);
    }
}

pub fn without_directed_receive_the_source_argument_is_ignored(kit: &dyn Kit) {
    let a = kit.opening().hints(|hints| hints.caps(Caps::MSG | Caps::TAGGED)).open();
    let b = kit.opening().hints(|hints| hints.caps(Caps::MSG | Caps::TAGGED)).open();
    let other = kit.side();
    let pair = Pair::of(a, b);
    let somebody_else = pair.b.insert(&other);
    pair.post(|| pair.b.receive(()).context(1).from(somebody_else).post());
    pair.post(|| pair.b.receive(()).context(2).tag(5).from(somebody_else).post());
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    pair.post(|| pair.a.out(pair.to_b, ()).tag(5).inject().send());
    pair.drive("the message", || pair.b.next_of(1)).done();
    pair.drive("the tagged message", || pair.b.next_of(2)).done();
}

pub fn tagged_and_untagged_messages_never_meet(kit: &dyn Kit) {
    let pair = kit.pair();
    pair.b.receive(()).context(1).post().unwrap();
    pair.b.receive(()).context(2).tag_ignoring(0, u64::MAX).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, ()).tag(5).inject().send());
    assert_eq!(pair.done(&pair.b).op_context, Context(2));
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    assert_eq!(pair.done(&pair.b).op_context, Context(1));
    // And for an unexpected message.
    pair.post(|| pair.a.out(pair.to_b, ()).tag(5).inject().send());
    pair.post(|| pair.a.out(pair.to_b, ()).inject().send());
    wait::drive_through(Duration::from_millis(2), &[&pair.a, &pair.b]);
    pair.b.receive(()).context(3).post().unwrap();
    let entry = pair.done(&pair.b);
    assert_eq!((entry.op_context, entry.flags.contains(CompletionFlags::TAGGED)), (Context(3), false));
    pair.b.receive(()).context(4).tag(5).post().unwrap();
    assert_eq!(pair.done(&pair.b).op_context, Context(4));
}

pub fn ignored_bits_of_a_tag_do_not_count(kit: &dyn Kit) {
    let pair = kit.pair();
    // (posted tag, ignored bits, sent tag, whether they match)
    let table = [
        (5, 0, 5, true),
        (5, 0, 4, false),
        (0xF0, 0x0F, 0xFA, true),
        (0xFA, 0x0F, 0xF0, true),
        (0xF0, 0x0F, 0xE0, false),
        (0, u64::MAX, 0x8000_0000_0000_0001, true),
        (0x8000_0000_0000_0000, 0, 0, false),
        (1 << 63, 1, 1 << 63 | 1, true),
    ];
    for expected in [true, false] {
        for (tag, ignore, sent, matches) in table {
            let send = || pair.post(|| pair.a.out(pair.to_b, ()).tag(sent).inject().send());
            let receive = || pair.b.receive(()).context(1).tag_ignoring(tag, ignore).post().unwrap();
            if expected {
                receive();
                send();
            } else {
                send();
                wait::drive_through(Duration::from_millis(1), &[&pair.a, &pair.b]);
                receive();
            }
            if !matches {
                pair.quiet(Duration::from_millis(2));
                // Remove the receive and the message.
                pair.post(|| pair.a.out(pair.to_b, ()).tag(tag).inject().send());
            }
            let entry = pair.done(&pair.b);
            assert_eq!(entry.tag, if matches { sent } else { tag });
            if !matches {
                pair.b.receive(()).context(2).tag(sent).post().unwrap();
                pair.done(&pair.b);
            }
        }
    }
}

pub fn the_first_posted_receive_wins_whatever_its_mask(kit: &dyn Kit) {
    let pair = kit.pair();
    let masks = [u64::MAX, 0, 0xFF, 0, u64::MAX];
    for (number, ignore) in masks.into_iter().enumerate() {
        pair.b.receive(()).context(number + 1).tag_ignoring(7, ignore).post().unwrap();
    }
    for number in 0..masks.len() {
        pair.post(|| pair.a.out(pair.to_b, ()).tag(7).data(number as u64).inject().send());
    }
    for number in 0..masks.len() {
        let entry = pair.done(&pair.b);
        assert_eq!((entry.op_context, entry.data), (Context(number + 1), number as u64));
    }
}

pub fn the_first_sent_message_wins_whatever_the_mask(kit: &dyn Kit) {
    let pair = kit.pair();
    for number in 0..6 {
        pair.post(|| pair.a.out(pair.to_b, ()).tag(7 + number % 2).data(number).inject().send());
    }
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    for (tag, ignore, wanted) in [(8, 0, 1), (7, 1, 0), (7, u64::MAX, 2), (7, 0, 4), (8, 0, 3), (8, 0, 5)] {
        pair.b.receive(()).context(1).tag_ignoring(tag, ignore).post().unwrap();
        assert_eq!(pair.done(&pair.b).data, wanted);
    }
}

pub fn messages_keep_their_order(kit: &dyn Kit) {
    let pair = kit.pair();
    // Sizes that take different paths through a transport, mixed, so that one could overtake another.
    let lengths = [8, 300_000, 8, 9_000, 4_096, 100_000, 8, 8_200, 16_400, 8];
    for posted in [true, false] {
        let into: Vec<Memory> = lengths.iter().map(|&len| Memory::new(len)).collect();
        let receive = || {
            for (number, memory) in into.iter().enumerate() {
                pair.b.receive(memory).context(100 + number).post().unwrap();
            }
        };
        if posted {
            receive();
        }
        for (number, &len) in lengths.iter().enumerate() {
            let from = Memory::patterned(len, number as u8);
            pair.post(|| pair.a.out(pair.to_b, &from).context(1).data(number as u64).send());
        }
        if !posted {
            wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
            receive();
        }
        for (number, &len) in lengths.iter().enumerate() {
            let entry = pair.drive("a receive", || pair.b.next_of(100 + number)).done();
            assert_eq!((entry.data, entry.len), (number as u64, len), "posted {posted}");
            into[number].check(len, number as u8);
        }
        pair.all_done(&pair.a, 1, lengths.len());
    }
}
