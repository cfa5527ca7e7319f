//! A request that fails once: an error for what was lost, and what follows is right (`ofi-efa/lane/parting.rs`).

use ofi_efa::srd::Status;
use ofi_efa::wire::RawAddress;
use ofi_testkit::prelude::*;

use super::EfaPair;
use super::direct::direct_pair;
use super::native::{DEVICE, alone, on_own_device};

const CONTEXT: usize = 100;
const RECEIVE: usize = 200;

fn qpn(side: &Side) -> u16 {
    RawAddress::from_bytes(side.name().bytes()).unwrap().qpn
}

fn pair() -> Pair {
    let kit: &dyn Kit = &EfaPair;
    let pair = kit.pair_with(|opening| opening.hints(on_own_device));
    pair.warm_up();
    pair
}

/// Every status that a device reports but success, and "receiver not ready", after which a request is repeated.
fn statuses() -> Vec<Status> {
    let named = [
        Status::NoDestination,
        Status::Unresponsive,
        Status::BadAddress,
        Status::UnknownPeer,
        Status::Flushed,
        Status::Refused(Errno::ENOMEM),
    ];
    let numbered = [2, 3, 4, 5, 6, 8, 11, 12, 16, 17, 18, 31].map(Status::Failed);
    named.into_iter().chain(numbered).collect()
}

/// Sends a message, and returns whether it was reported as sent.
fn send(pair: &Pair, len: usize, nth: usize) -> bool {
    let from = Memory::patterned(len, nth as u8 + 1);
    pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT + nth).data(nth as u64).send());
    match pair.drive("the end of a message", || pair.a.next_of(CONTEXT + nth)) {
        Event::Done(..) => true,
        Event::Failed(error) => {
            assert_ne!(error.err, Errno::EAGAIN, "{error:?}");
            false
        }
    }
}

/// Waits for a message at the receiver, and returns which one it is.
fn receive(pair: &Pair, len: usize) -> usize {
    loop {
        let into = Memory::new(len);
        pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
        match pair.drive("a message", || pair.b.next_of(RECEIVE)) {
            Event::Done(entry, _) => {
                assert_eq!(entry.len, len);
                into.check(len, entry.data as u8 + 1);
                return entry.data as usize;
            }
            // It had begun when the rest was lost.
            Event::Failed(error) => assert_eq!(error.err, Errno::ECONNRESET, "{error:?}"),
        }
    }
}

/// Cancels the receives that no message has taken.
fn withdraw(pair: &Pair) {
    while pair.b.cancel(RECEIVE).is_ok() {
        pair.drive("the end of a receive", || pair.b.next_of(RECEIVE));
    }
}

/// Ten messages, of which the fifth fails so. Others arrive, in order.
fn ten(pair: &Pair, len: usize, status: Status) {
    let sent: Vec<usize> = (0..10)
        .filter(|&nth| {
            if nth == 4 {
                DEVICE.fail(qpn(&pair.a), qpn(&pair.b), status);
            }
            send(pair, len, nth)
        })
        .collect();
    assert!(sent.len() >= 9, "{status:?}, {len} bytes: only {sent:?} were sent");
    let came: Vec<usize> = sent.iter().map(|_| receive(pair, len)).collect();
    assert_eq!(came, sent, "{status:?}, {len} bytes");
    assert_eq!((pair.a.pending(), pair.b.pending()), (0, 0), "{status:?}, {len} bytes");
}

#[test]
fn one_of_ten_messages_fails_whatever_the_device_reports() {
    let _alone = alone();
    let pair = pair();
    for status in statuses() {
        for len in [16, 4000] {
            ten(&pair, len, status);
        }
    }
}

#[test]
fn a_lost_part_of_a_longer_message_ends_it_and_no_other() {
    let _alone = alone();
    let pair = pair();
    for status in [Status::Unresponsive, Status::Failed(18)] {
        for len in [60_000, 300_000, 2 << 20] {
            let all: Vec<usize> = (0..10).collect();
            let receives: Vec<Memory> = all.iter().map(|_| Memory::new(len)).collect();
            let mut ended = Vec::new();
            for &nth in &all {
                pair.post(|| pair.b.receive(&receives[nth]).context(RECEIVE).post());
                if nth == 4 {
                    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), status);
                }
                ended.push(send(&pair, len, nth));
                if nth == 4 && !ended[4] {
                    // The receiver waits for the next message, or was told that it lacks a part.
                    continue;
                }
                match pair.drive("the end of a receive", || pair.b.next_of(RECEIVE)) {
                    Event::Done(entry, _) => assert_eq!(entry.len, len),
                    Event::Failed(error) => assert_eq!(error.err, Errno::ECONNRESET, "{error:?}"),
                }
            }
            let good = ended.iter().filter(|good| **good).count();
            assert!(good >= 9, "{status:?}, {len} bytes: {ended:?}");
            pair.drive("nothing left", || {
                let open = ["efa_numbers_now", "efa_open_now"].map(|name| pair.a.statistic(name));
                (open == [0, 0]).then_some(())
            });
            // A receive may be left of the message that was lost.
            while pair.b.statistic("efa_numbers_now") > 0 {
                pair.b.poll();
            }
            withdraw(&pair);
        }
    }
}

#[test]
fn a_loss_at_the_receiver_ends_what_waits_for_it_and_no_later_message() {
    let _alone = alone();
    let pair = pair();
    for round in 0..4 {
        // Its clear to send, its receipt, or its report that it has read.
        for len in [64, 300_000, 2 << 20] {
            let (from, into) = (Memory::patterned(len, 1), Memory::new(len));
            pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
            DEVICE.fail(qpn(&pair.b), qpn(&pair.a), Status::Unresponsive);
            let flags = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
            pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT).msg(flags).send());
            if let Event::Failed(error) = pair.drive("its end", || pair.a.next_of(CONTEXT)) {
                assert_eq!(error.err, Errno::ECONNRESET, "round {round}, {len} bytes: {error:?}");
            }
            pair.drive("the end of the receive", || pair.b.next_of(RECEIVE));
            let both = [&pair.a, &pair.b];
            pair.drive("rest", || {
                let open =
                    |side: &&Side| side.statistic("efa_packets_now") + side.statistic("efa_numbers_now");
                (both.iter().map(open).sum::<u64>() == 0).then_some(())
            });
            pair.warm_up();
        }
    }
}

#[test]
fn a_direct_request_fails_alone_whatever_the_device_reports() {
    let _alone = alone();
    let pair = direct_pair(Caps::MSG | Caps::RMA);
    let memory = Memory::new(4096);
    let rights = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    let region = pair.b.register(&memory, rights).unwrap();
    for status in statuses() {
        for len in [16, 4000] {
            let mut sent = Vec::new();
            for nth in 0..10 {
                let into = Memory::new(len);
                pair.post(|| pair.b.receive(&into).context(RECEIVE).post());
                if nth == 4 {
                    DEVICE.fail(qpn(&pair.a), qpn(&pair.b), status);
                }
                if send(&pair, len, nth) {
                    sent.push(nth);
                    pair.drive("a message", || pair.b.next_of(RECEIVE)).done();
                } else {
                    withdraw(&pair);
                }
            }
            assert_eq!(sent, [0, 1, 2, 3, 5, 6, 7, 8, 9], "{status:?}, {len} bytes");
        }
        for nth in 0..3 {
            if nth == 1 {
                DEVICE.fail(qpn(&pair.a), qpn(&pair.b), status);
            }
            let from = Memory::patterned(4096, nth);
            pair.post(|| pair.a.out(pair.to_b, &from).context(CONTEXT).write(&[remote(&region)]));
            let ended = pair.drive("the end of a write", || pair.a.next_of(CONTEXT));
            assert_eq!(matches!(ended, Event::Failed(_)), nth == 1, "{status:?}: {ended:?}");
        }
        memory.check(4096, 2);
    }
}

#[test]
fn a_silent_peer_costs_an_error_for_each_message_and_is_reached_when_it_answers() {
    let _alone = alone();
    let pair = pair();
    let (a, b) = (qpn(&pair.a), qpn(&pair.b));
    for round in 0..3 {
        for nth in 0..5 {
            DEVICE.fail(a, b, Status::Unresponsive);
            assert!(!send(&pair, 64, nth), "round {round}");
        }
        if round == 1 {
            // The address is inserted again: it is the same peer.
            pair.a.av.remove(&[pair.to_b]).unwrap();
            let again = pair.a.insert(&pair.b);
            assert_eq!(again, pair.to_b);
        }
        for nth in 0..5 {
            assert!(send(&pair, 64, nth), "round {round}");
            assert_eq!(receive(&pair, 64), nth);
        }
    }
}
