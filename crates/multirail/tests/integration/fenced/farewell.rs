//! A session ends at one end because all its paths rest there, unnoticed by the other end.

use std::time::Duration;

use multirail::{Event, Outcome};
use ofi::Errno;

use super::pair::{LONG, Pair, RAILS};

const ALICE: usize = 0;
const BOB: usize = 1;

/// Alice waits for nothing but an acknowledgement. Bob's rails fail when he sends it, so his end of the session is
/// over.
fn half_ended() -> (Pair, multirail::engine::TransferId) {
    let mut pair = Pair::new();
    pair.failing[BOB] = (0..RAILS).collect();
    let transfer = pair.post(1, Some(b"told"));
    pair.run();
    let writes = pair.writes();
    pair.land(writes);
    assert_eq!(pair.notified(), Some(b"told".to_vec()));
    pair.run();
    let events = pair.cores[BOB].take_events();
    assert!(events.contains(&Event::Down("alice".into(), Errno::ETIMEDOUT)), "{events:?}");
    assert_eq!(pair.outcome(transfer), None);
    (pair, transfer)
}

fn sessions(pair: &Pair, of: usize) -> usize {
    pair.cores[of].kept().2
}

/// Bob tells alice as soon as one of his paths has rested.
#[test]
fn a_session_whose_paths_all_rest_is_over_for_the_peer_too() {
    let (mut pair, transfer) = half_ended();
    pair.failing[BOB] = vec![0];
    pair.wait(Duration::from_secs(1));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Failed(Errno::ESHUTDOWN)), "and not after {LONG:?}");
    pair.cores[ALICE].release(transfer);
    pair.wait(Duration::from_secs(1));
    assert_eq!((pair.cores[ALICE].kept(), pair.cores[BOB].kept()), ((0, 0, 0), (0, 0, 0)), "nothing is left");
}

/// All goodbyes fail: bob gives up after `connect_timeout`, and keeps nothing.
#[test]
fn a_peer_that_cannot_be_told_is_given_up() {
    let (mut pair, transfer) = half_ended();
    pair.wait(Duration::from_secs(9));
    assert_eq!((sessions(&pair, BOB), pair.outcome(transfer)), (1, None), "bob still tries");
    pair.wait(Duration::from_secs(2));
    assert_eq!(sessions(&pair, BOB), 0);
    assert_eq!(pair.cores[BOB].next_timeout(), None, "and no timer is left");
}

/// The peer that was not told opens a session anew: that ends the old one at its end, without a goodbye.
#[test]
fn a_new_session_ends_the_farewell_of_the_old_one() {
    let (mut pair, transfer) = half_ended();
    pair.failing[BOB].clear();
    let alice = pair.cores[BOB].find("alice").unwrap();
    // At once, while the paths of the session that is over rest.
    pair.cores[BOB].connect(alice, pair.now);
    pair.run();
    assert!(pair.cores[BOB].is_up(alice));
    assert_eq!(pair.outcome(transfer), Some(Outcome::Failed(Errno::ECONNRESET)));
    pair.wait(Duration::from_secs(1));
    assert_eq!(sessions(&pair, BOB), 1, "the new one");
    assert_eq!(
        pair.cores[ALICE].counts().strays,
        0,
        "alice got no goodbye of a session that she does not have"
    );
}

/// A goodbye fails on the path that it used first: it goes over the other one at once.
#[test]
fn a_goodbye_that_fails_goes_over_another_path() {
    for broken in 0..RAILS {
        let mut pair = Pair::new();
        pair.failing[ALICE] = vec![broken];
        let transfer = pair.post(1, Some(b"never"));
        pair.run();
        let bob = pair.cores[ALICE].find("bob").unwrap();
        pair.cores[ALICE].disconnect(bob, pair.now);
        pair.run();
        assert_eq!(pair.outcome(transfer), Some(Outcome::Failed(Errno::ECANCELED)));
        let events = pair.cores[BOB].take_events();
        assert!(events.contains(&Event::Down("alice".into(), Errno::ESHUTDOWN)), "{events:?}");
    }
}
