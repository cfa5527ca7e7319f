//! Two engines on two rails, step by step: each test decides when a write arrives and when its end is reported.

mod farewell;
mod pair;
mod severed;

use std::collections::VecDeque;
use std::time::Duration;

use multirail::Outcome;
use ofi::Errno;

use pair::{LEN, OWN, Pair};

/// A transfer has parts that were never posted while one of its paths is fenced. The parts on the mute path have
/// arrived and were counted. So the count is complete when the last of the others has arrived, while the second copies
/// of the first ones are still under way: the notification must wait for them.
#[test]
fn the_notification_of_a_half_posted_transfer_waits_for_second_copies() {
    let mut pair = Pair::new();
    let transfer = pair.post(9, Some(b"told"));
    pair.run();
    let mute = pair.writes_on(0);
    assert_eq!(mute.len(), 2);
    assert!(mute.iter().all(|write| write.key != OWN), "the keys are leased");
    assert!(mute.iter().all(|write| pair.arrive(write)));
    pair.muted = vec![0];
    // The other rail is slow: it has not carried everything when the first is fenced.
    let mut slow = VecDeque::from(pair.writes_on(1));
    while pair.cores[0].counts().fenced == 0 {
        pair.wait(Duration::from_secs(3));
        if let Some(write) = slow.pop_front() {
            pair.land(vec![write]);
        }
        slow.extend(pair.writes_on(1));
        assert!(pair.now < Duration::from_secs(30), "the mute path is fenced");
    }
    // One second copy stays under way, while everything else arrives.
    let mut copy = None;
    for _ in 0..20 {
        slow.extend(pair.writes_on(1));
        let at = slow.iter().position(|write| write.local == mute[1].local);
        copy = copy.or(at.and_then(|at| slow.remove(at)));
        let others = slow.drain(..).collect();
        pair.land(others);
    }
    let copy = copy.expect("the part has moved");
    assert_eq!(pair.cores[0].progress(transfer).unwrap().moved, 8 * LEN, "all but one have ended");
    assert_eq!(pair.notified(), None, "a second copy is under way");
    pair.land(vec![copy]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}

/// The first write of a session waits for its keys, although the peer has not said before that it leases any. So its
/// path may go mute at once.
#[test]
fn the_first_write_of_a_session_has_leased_keys() {
    let mut pair = Pair::strangers(false);
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [write] = pair.writes()[..] else { panic!("one write, without any delay") };
    assert_ne!(write.key, OWN);
    pair.land(vec![write]);
    assert_eq!(pair.outcome(transfer), None, "bob's program does not have the notification");
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}

/// The number of an access that was given up is not used again before the access has ended: numbers come back after two
/// billion rows, and a late end would be another's.
#[test]
fn a_number_is_kept_until_its_access_has_ended() {
    let mut pair = Pair::new();
    let slot = |write: &multirail::engine::Access| write.op.to_bits() as u32;
    let given_up = pair.post(3, None);
    pair.run();
    let late = pair.writes();
    assert!(!late.is_empty());
    pair.cores[0].release(given_up);
    pair.run();
    assert_eq!(pair.cores[0].progress(given_up), None, "its memory is free");
    for _ in 0..10 {
        let transfer = pair.post(1, None);
        pair.run();
        let writes = pair.writes();
        assert!(writes.iter().all(|write| late.iter().all(|late| slot(late) != slot(write))));
        pair.land(writes);
        assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
        pair.cores[0].release(transfer);
    }
    assert_eq!(pair.cores[0].kept().0, late.len());
    let stale = pair.cores[0].counts().stale;
    for write in &late {
        pair.cores[0].ended(write.op, Ok(()), pair.now);
    }
    pair.run();
    assert_eq!((pair.cores[0].kept().0, pair.cores[0].counts().stale), (0, stale), "each has its end");
    for write in &late {
        pair.cores[0].ended(write.op, Ok(()), pair.now);
    }
    assert_eq!(pair.cores[0].counts().stale, stale + late.len() as u64);
}

/// An older peer says nothing and leases nothing: writes wait a second after the session has opened, and no more.
#[test]
fn an_older_peer_is_written_under_its_own_keys_after_a_second() {
    let mut pair = Pair::strangers(false);
    pair.is_old = true;
    let transfer = pair.post(1, None);
    pair.run();
    pair.wait(Duration::from_millis(900));
    assert!(pair.writes().is_empty(), "bob may answer");
    pair.wait(Duration::from_millis(100));
    let [write] = pair.writes()[..] else { panic!("one write") };
    assert_eq!(write.key, OWN);
    pair.land(vec![write]);
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
    pair.post(1, None);
    pair.run();
    let [write] = pair.writes()[..] else { panic!("one write, without any delay") };
    assert_eq!(write.key, OWN);
}

/// A rail reports a write as failed. Its first copy is shut out before the second is posted, at once, under a new key.
#[test]
fn a_write_that_failed_is_shut_out_before_it_moves() {
    let mut pair = Pair::new();
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [first] = pair.writes()[..] else { panic!("one write") };
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    let [second] = pair.writes()[..] else { panic!("one copy, without any delay") };
    assert!(second.rail != first.rail && second.key != OWN && second.key != first.key);
    assert!(!pair.arrive(&first), "the first copy is refused");
    assert_eq!(pair.notified(), None);
    pair.land(vec![second]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
    assert_eq!(pair.cores[0].counts().moved, 1);
}

/// The first copy has arrived, is counted, and is reported as failed. The notification waits for the second copy.
#[test]
fn a_write_that_arrived_and_failed_completes_no_notification() {
    let mut pair = Pair::new();
    let transfer = pair.post(2, Some(b"told"));
    pair.run();
    let mut writes = pair.writes();
    assert_eq!(writes.len(), 2);
    let first = writes.remove(0);
    assert!(pair.arrive(&first));
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    pair.land(writes);
    let [second] = pair.writes()[..] else { panic!("one copy") };
    assert_eq!(pair.notified(), None, "a second copy is under way");
    pair.land(vec![second]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}

/// The peer does not answer: the write moves after a second all the same. When the peer carries the request out late,
/// it holds the notification, and is told to release it.
#[test]
fn a_write_that_failed_moves_without_an_answer_too() {
    let mut pair = Pair::new();
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [first] = pair.writes()[..] else { panic!("one write") };
    pair.muted = vec![0, 1];
    pair.cores[0].ended(first.op, Err(Errno::ETIMEDOUT), pair.now);
    pair.run();
    assert!(!pair.held.is_empty(), "the request is under way");
    pair.wait(Duration::from_millis(900));
    assert!(pair.writes().is_empty(), "the first copy may still arrive");
    pair.wait(Duration::from_millis(100));
    let [second] = pair.writes()[..] else { panic!("one copy") };
    pair.muted.clear();
    for (op, bytes) in std::mem::take(&mut pair.held) {
        pair.cores[1].message(&bytes, pair.now);
        pair.cores[0].ended(op, Ok(()), pair.now);
    }
    pair.run();
    assert!(pair.arrive(&second));
    assert_eq!(pair.notified(), None, "bob holds it");
    pair.cores[0].ended(second.op, Ok(()), pair.now);
    pair.run();
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}
