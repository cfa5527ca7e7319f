//! Rails with one connection per peer: both ends close a mute path's connection before its chunks move.

use std::time::Duration;

use multirail::Outcome;
use ofi::Errno;

use super::pair::{OWN, Pair};

/// Posts writes on both rails, of which the first is mute from then on, and waits until it is severed. The other rail's
/// writes have ended. Returns the transfer.
fn mute(pair: &mut Pair, notice: &[u8]) -> multirail::engine::TransferId {
    let transfer = pair.post(4, Some(notice));
    pair.run();
    pair.muted = vec![0];
    let mut working = pair.writes_on(1);
    assert!(!working.is_empty(), "both rails are used");
    // The other rail shows that the peer is alive.
    while pair.cores[0].counts().fenced == 0 {
        if let Some(write) = working.pop() {
            pair.land(vec![write]);
        }
        working.extend(pair.writes_on(1));
        pair.wait(Duration::from_secs(3));
        assert!(pair.now < Duration::from_secs(60), "the mute path is severed");
        if working.is_empty() && pair.cores[0].counts().fenced == 0 {
            // An exchange on the other rail.
            let other = pair.post(1, None);
            pair.run();
            let writes = pair.writes_on(1);
            pair.land(writes);
            pair.cores[0].release(other);
        }
    }
    transfer
}

#[test]
fn a_mute_connection_is_ended_at_both_ends_before_its_writes_move() {
    let mut pair = Pair::with(true);
    let transfer = mute(&mut pair, b"told");
    assert_eq!(pair.rails[0].severed, [0], "alice ends it first");
    assert_eq!(pair.rails[1].severed, [0], "and bob has ended it");
    assert_eq!(pair.notified(), None, "the copies are under way");
    let copies = pair.writes();
    assert!(!copies.is_empty() && copies.iter().all(|copy| copy.rail == 1 && copy.key == OWN));
    pair.land(copies);
    // The mute path is tried again meanwhile; a message that it swallows is repeated on the other.
    pair.wait(Duration::from_secs(2));
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
    assert!(pair.cores[0].counts().moved > 0);
}

/// Nobody says that the peer's device is done with the writes: they do not move.
#[test]
fn writes_of_a_mute_connection_stay_where_they_are_without_an_answer() {
    let mut pair = Pair::with(true);
    let transfer = pair.post(2, Some(b"told"));
    pair.run();
    let mute = pair.writes_on(0);
    assert!(!mute.is_empty());
    pair.rails[0].accesses.extend(mute);
    let working = pair.writes_on(1);
    pair.land(working);
    pair.muted = vec![0];
    let mut other = None;
    while pair.cores[0].counts().fenced == 0 {
        // The other rail works until the path is severed.
        if pair.now > Duration::from_secs(9) && other.is_none() {
            other = Some(pair.post(1, None));
            pair.run();
            let writes = pair.writes_on(1);
            pair.land(writes);
        }
        // Messages stop with the severing: the request to end the connection is not answered.
        pair.wait(Duration::from_millis(500));
        if pair.now > Duration::from_secs(10) {
            pair.muted = vec![0, 1];
        }
        assert!(pair.now < Duration::from_secs(60), "the mute path is severed");
    }
    assert_eq!(pair.rails[0].severed, [0]);
    assert!(pair.rails[1].severed.is_empty(), "bob has not heard of it");
    for _ in 0..8 {
        pair.wait(Duration::from_millis(600));
        assert!(pair.writes_on(1).is_empty(), "a write that may still arrive is not written again");
    }
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Failed(Errno::ETIMEDOUT)));
    assert!(pair.writes_on(1).is_empty());
}

/// A rail that reports the failure itself: bob ends the connection all the same, at once.
#[test]
fn a_connection_that_has_failed_is_ended_by_its_other_end_too() {
    let mut pair = Pair::with(true);
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let [first] = pair.writes()[..] else { panic!("one write") };
    pair.cores[0].ended(first.op, Err(Errno::ECONNABORTED), pair.now);
    pair.run();
    assert_eq!((&pair.rails[0].severed[..], &pair.rails[1].severed[..]), (&[][..], &[first.rail][..]));
    let [second] = pair.writes()[..] else { panic!("one copy, without any delay") };
    assert!(second.rail != first.rail);
    pair.land(vec![second]);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Done));
}
