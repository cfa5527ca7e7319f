//! Flow control: shortage of resources is reported, nothing is lost, and a slow peer does not stop others
//! (fi_domain(3), "resource_mgmt"; fi_endpoint(3)).

use crate::prelude::*;

/// Posts with `post` until it is refused. Returns the number accepted.
#[track_caller]
fn until_again(limit: usize, mut post: impl FnMut(usize) -> Result<()>) -> usize {
    for count in 0..limit {
        match post(count) {
            Ok(()) => {}
            Err(error) if error.is_again() => return count,
            Err(error) => panic!("{error}"),
        }
    }
    panic!("{limit} operations were accepted without a limit");
}

/// The most operations that any transport may accept without being polled.
const PLENTY: usize = 1 << 20;

pub fn a_full_sender_says_again_and_recovers(kit: &dyn Kit) {
    for len in [8, 4_096, 200_000] {
        let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
        let from = Memory::new(len);
        let send = |number: usize| pair.a.out(pair.to_b, &from).data(number as u64).context(1).send();
        let accepted = until_again(PLENTY, send);
        assert!(accepted >= 1, "{len} bytes");
        // After the receiver has taken the messages and the queues are read, there is room again.
        let into = Memory::new(len);
        for number in 0..accepted + 10 {
            pair.post(|| pair.b.receive(&into).context(2).post());
            if number < 10 {
                pair.post(|| send(accepted + number));
            }
            let entry = pair.drive("a receive", || pair.b.next_of(2)).done();
            assert_eq!(entry.data, number as u64, "{len} bytes");
        }
        for _ in 0..accepted + 10 {
            pair.drive("a send", || pair.a.next_of(1)).done();
        }
    }
}

pub fn a_full_transmit_context_says_again(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.tx_size(4).progress(Progress::Manual)));
    let memory = Memory::new(200_000);
    let accepted = until_again(PLENTY, |_| pair.a.out(pair.to_b, &memory).context(1).send());
    assert!(accepted >= 4, "{accepted}");
    for _ in 0..accepted {
        pair.post(|| pair.b.receive(&memory).post());
        pair.drive("a send", || pair.a.next_of(1)).done();
    }
    pair.a.out(pair.to_b, &memory).context(1).send().unwrap();
}

pub fn unread_completions_are_never_lost(kit: &dyn Kit) {
    // A queue of 4 entries, a thousand completions, and no reader.
    const COUNT: usize = 1_000;
    let a = kit.opening().cq_size(4).open();
    let b = kit.opening().cq_size(4).open();
    let pair = Pair::of(a, b);
    let (mut sent, mut posted) = (0, 0);
    let (from, into) = (Memory::new(8), Memory::new(8));
    let mut fill = || {
        while posted < COUNT && pair.b.receive(&into).context(posted + 1).post().is_ok() {
            posted += 1;
        }
        while sent < COUNT && pair.a.out(pair.to_b, &from).context(sent + 1).send().is_ok() {
            sent += 1;
        }
        (sent, posted)
    };
    fill();
    let (mut sends, mut receives) = (Vec::new(), Vec::new());
    pair.drive("all completions", || {
        sends.extend(std::iter::from_fn(|| pair.a.next()).map(|event| event.done().op_context.0));
        receives.extend(std::iter::from_fn(|| pair.b.next()).map(|event| event.done().op_context.0));
        fill();
        (sends.len() >= COUNT && receives.len() >= COUNT).then_some(())
    });
    // If writes may overtake one another, the completions of sends may too.
    if !pair.a.info.tx_attr.msg_order.contains(MsgOrder::RMA_WAW) {
        sends.sort_unstable();
    }
    assert_eq!(sends, (1..=COUNT).collect::<Vec<_>>());
    assert_eq!(receives, (1..=COUNT).collect::<Vec<_>>());
}

pub fn remote_data_without_room_is_held_back_not_lost(kit: &dyn Kit) {
    const COUNT: usize = 3_000;
    for library in [false, true] {
        let pair = kit.pair_with(|opening| opening.cq_size(4).hints(|hints| hints.rx_size(16)));
        let target = if library { Memory::library(&pair.b.domain, 64) } else { Memory::new(64) };
        let region = pair.b.register(&target, MrAccess::REMOTE_WRITE).unwrap();
        let from = Memory::new(8);
        let (mut posted, mut seen) = (0, Vec::new());
        pair.drive("all remote writes", || {
            while posted < COUNT
                && pair.a.out(pair.to_b, &from).data(posted as u64).write(&[remote_at(&region, 0, 8)]).is_ok()
            {
                posted += 1;
            }
            while pair.a.next().is_some() {}
            seen.extend(std::iter::from_fn(|| pair.b.next()).map(|event| event.done().data));
            (seen.len() >= COUNT).then_some(())
        });
        if !pair.a.info.tx_attr.msg_order.contains(MsgOrder::RMA_WAW) {
            seen.sort_unstable();
        }
        assert_eq!(seen, (0..COUNT as u64).collect::<Vec<_>>(), "library {library}");
    }
}

pub fn a_peer_that_does_not_look_stops_nobody_else(kit: &dyn Kit) {
    let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
    let c = kit.side();
    let to_c = pair.a.insert(&c);
    let from = Memory::patterned(64, 5);
    // b's share is used up, as far as the endpoint's own limit permits.
    let half = pair.a.info.tx_attr.size / 2;
    for _ in 0..half {
        if pair.a.out(pair.to_b, &from).inject().send().is_err() {
            break;
        }
    }
    let (into, large) = (Memory::new(64), Memory::patterned(300_000, 6));
    let large_into = Memory::new(300_000);
    for round in 0..10 {
        c.receive(&into).context(2).post().unwrap();
        c.receive(&large_into).context(3).post().unwrap();
        wait::drive(&[&pair.a, &c], "room", || pair.a.out(to_c, &from).inject().send().ok());
        wait::drive(&[&pair.a, &c], "room", || pair.a.out(to_c, &large).context(1).send().ok());
        wait::drive(&[&pair.a, &c], "the message", || c.next_of(2)).done();
        wait::drive(&[&pair.a, &c], "the large message", || c.next_of(3)).done();
        into.check(64, 5);
        large_into.check(300_000, 6);
        wait::drive(&[&pair.a, &c], "the send", || pair.a.next_of(1)).done();
        assert!(round < 10);
    }
}

/// The polls of `a` and `c` until a message of 64 bytes has arrived at `c`.
#[track_caller]
fn polls_of_a_message(a: &TestEndpoint, c: &TestEndpoint, to_c: FiAddr) -> usize {
    let (from, into) = (Memory::patterned(64, 5), Memory::new(64));
    c.receive(&into).context(2).post().unwrap();
    let (mut polls, mut is_sent) = (0, false);
    wait::drive(&[a, c], "64 bytes", || {
        polls += 1;
        is_sent = is_sent || a.out(to_c, &from).context(1).send().is_ok();
        c.next_of(2)
    })
    .done();
    into.check(64, 5);
    wait::drive(&[a, c], "the send", || a.next_of(1)).done();
    polls
}

fn median(values: impl Iterator<Item = usize>) -> usize {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    values[values.len() / 2]
}

pub fn a_full_window_of_one_peer_delays_no_message_to_another(kit: &dyn Kit) {
    const ROUNDS: usize = 30;
    const MEDIUM: usize = 60_000;
    const LARGE: usize = 300_000;
    for kind in ["short messages", "medium messages", "long messages", "writes", "reads"] {
        let pair = kit.pair_with(|opening| opening.hints(|hints| hints.progress(Progress::Manual)));
        let c = kit.side();
        let to_c = pair.a.insert(&c);
        let target = Memory::new(LARGE);
        let region = pair.b.register(&target, MrAccess::REMOTE_WRITE | MrAccess::REMOTE_READ).unwrap();
        pair.warm_up();
        let rounds = || (0..ROUNDS).map(|_| polls_of_a_message(&pair.a, &c, to_c));
        rounds().for_each(drop); // until both know each other
        let usual = median(rounds());
        let (short, medium, long) = (Memory::new(64), Memory::new(MEDIUM), Memory::new(LARGE));
        let there = [remote_at(&region, 0, 64)];
        let post = || match kind {
            "short messages" => pair.a.out(pair.to_b, &short).context(3).send(),
            "medium messages" => pair.a.out(pair.to_b, &medium).context(3).send(),
            "long messages" => pair.a.out(pair.to_b, &long).context(3).send(),
            "writes" => pair.a.out(pair.to_b, &short).context(3).write(&there),
            _ => pair.a.out(pair.to_b, &short).context(3).read(&there),
        };
        // `b` no longer polls, and holds as much as it may; what is left of the endpoint's own limit is for everybody.
        let half = pair.a.info.tx_attr.size / 2;
        let accepted = (0..half).take_while(|_| post().is_ok()).count();
        let beside = median((0..ROUNDS).map(|_| {
            // A refused operation must not hold up those to other peers.
            if accepted < half {
                let _ = post();
            }
            polls_of_a_message(&pair.a, &c, to_c)
        }));
        println!("{kind}: {accepted} accepted, {beside} polls where {usual} are usual");
        assert!(beside <= 2 * usual, "{kind}: {accepted} accepted, {beside} polls where {usual} are usual");
    }
}

pub fn a_receiver_that_lacks_receives_stops_nobody_else(kit: &dyn Kit) {
    // a floods b, which has no receives; b and c continue.
    let pair = kit.pair();
    let c = kit.side();
    let (to_b, from_c) = (c.insert(&pair.b), pair.b.insert(&c));
    let from = Memory::patterned(4_096, 5);
    for _ in 0..500 {
        if pair.a.out(pair.to_b, &from).tag(1).inject().send().is_err() {
            pair.poll();
        }
    }
    let into = Memory::new(4_096);
    for _ in 0..50 {
        pair.b.receive(&into).context(2).tag(2).from(from_c).post().unwrap();
        wait::drive(&[&c, &pair.b, &pair.a], "room", || c.out(to_b, &from).tag(2).inject().send().ok());
        wait::drive(&[&c, &pair.b, &pair.a], "c's message", || pair.b.next_of(2)).done();
        into.check(4_096, 5);
    }
}

pub fn many_outstanding_large_messages_arrive(kit: &dyn Kit) {
    const COUNT: usize = 64;
    const LEN: usize = 100_000;
    let pair = kit.pair();
    for number in 0..COUNT {
        let from = Memory::patterned(LEN, number as u8);
        pair.post(|| pair.a.out(pair.to_b, &from).tag(number as u64).context(1).send());
    }
    // Received in reverse order.
    for number in (0..COUNT).rev() {
        let into = Memory::new(LEN);
        pair.b.receive(&into).context(2).tag(number as u64).post().unwrap();
        pair.drive("a receive", || pair.b.next_of(2)).done();
        into.check(LEN, number as u8);
    }
    pair.all_done(&pair.a, 1, COUNT);
}
