//! Notifications that the receiver's program does not take for long, and what goes on beside them.

use std::sync::Arc;
use std::time::Duration;

use multirail::Way;
use multirail::engine::{Audience, Awaited, Config, Core, Outcome, PeerId, Plan, RailSpec, TransferId};
use multirail::wire::RailInfo;
use ofi::Errno;

use super::support::kept::{Kept, random};

const NOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(1000);

fn engine(name: &str, seed: u64, config: Config) -> Core<()> {
    let info = RailInfo { provider: "kept".into(), format: 0, address: vec![1; 32] };
    let rail = RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: 1024 };
    Core::new(name, vec![rail], config, Box::new(random(seed)))
}

/// Delivers messages until there are none.
fn speak(one: &mut Core<()>, two: &mut Core<()>, now: Duration) {
    let (mut there, mut back) = (Kept::default(), Kept::default());
    while one.perform(now, &mut there) | two.perform(now, &mut back) {
        for (op, bytes) in there.0.drain(..) {
            one.ended(op, Ok(()), now);
            two.message(&bytes, now);
        }
        for (op, bytes) in back.0.drain(..) {
            two.ended(op, Ok(()), now);
            one.message(&bytes, now);
        }
    }
}

struct Pair {
    sender: Core<()>,
    receiver: Core<()>,
    to: PeerId,
    now: Duration,
}

impl Pair {
    fn new(config: Config) -> Self {
        let (mut sender, receiver) =
            (engine("sender", 1, Config::default()), engine("receiver", 1 << 40, config));
        let to = sender.load(&receiver.metadata(Vec::new())).unwrap();
        Self { sender, receiver, to, now: NOW }
    }

    fn notify(&mut self, audience: Audience, bytes: Vec<u8>) -> TransferId {
        self.notify_by(audience, bytes, LONG)
    }

    fn notify_by(&mut self, audience: Audience, bytes: Vec<u8>, deadline: Duration) -> TransferId {
        let (pieces, regions) = (Vec::new(), Vec::new());
        let plan = Plan {
            way: Way::Write,
            pieces,
            regions,
            near: Vec::new(),
            incarnation: 0,
            total: 0,
            guard: (),
            uses: Default::default(),
        };
        self.sender.post_to(audience, self.to, Arc::new(plan), Some(bytes), deadline, self.now).unwrap()
    }

    fn speak(&mut self) {
        speak(&mut self.sender, &mut self.receiver, self.now);
    }

    fn is_done(&self, id: TransferId) -> bool {
        self.sender.progress(id).unwrap().outcome.is_some()
    }
}

/// All that the sender may have unacknowledged is done as it arrives. The rest waits for the receiver's program, which
/// then gets everything, in order.
fn those_that_fit_are_done(count: usize, len: usize, fit: usize) {
    let mut pair = Pair::new(Config { acknowledge_taken: false, ..Config::default() });
    let bytes = |nth: usize| [&(nth as u16).to_le_bytes()[..], &vec![7; len - 2]].concat();
    let ids: Vec<_> = (0..count).map(|nth| pair.notify(Audience::Program, bytes(nth))).collect();
    pair.speak();
    let done: Vec<_> = ids.iter().map(|&id| pair.is_done(id)).collect();
    assert!(done[..fit].iter().all(|&done| done) && !done[fit..].contains(&true), "{done:?}");
    assert_eq!(pair.sender.awaited(ids[fit]), Some(Awaited::Room));
    for nth in 0..count {
        let taken = pair.receiver.take_notification().map(|notification| notification.bytes);
        assert!(taken == Some(bytes(nth)), "notification {nth}");
        pair.speak();
        // One that is taken makes room for another.
        let done = ids.iter().filter(|&&id| pair.is_done(id)).count();
        assert_eq!(done, count.min(fit + nth + 1));
    }
    assert_eq!((pair.receiver.counts().refused, pair.sender.counts().malformed), (0, 0));
}

#[test]
fn transfers_are_done_while_the_peer_takes_nothing_and_then_they_wait() {
    those_that_fit_are_done(600, 8, 512);
    those_that_fit_are_done(20, (1 << 20) - 1, 8);
}

/// One that waits for room ends by its deadline, and says what it waited for. What was done stays done, and the
/// receiver's program gets it although the session ends.
#[test]
fn a_transfer_without_room_ends_by_its_deadline_with_the_reason() {
    for acknowledge_taken in [true, false] {
        let mut pair = Pair::new(Config { acknowledge_taken, ..Config::default() });
        let ids: Vec<_> =
            (0..514_u16).map(|nth| pair.notify(Audience::Program, nth.to_le_bytes().to_vec())).collect();
        pair.speak();
        pair.now = LONG + NOW;
        pair.sender.tick(pair.now);
        pair.speak();
        let failed = Some(Outcome::Failed(Errno::ETIMEDOUT));
        let outcome = |at: usize| pair.sender.progress(ids[at]).unwrap().outcome;
        let awaited = |at: usize| pair.sender.awaited(ids[at]);
        assert_eq!((outcome(512), awaited(512)), (failed, Some(Awaited::Room)));
        let first =
            if acknowledge_taken { (failed, Some(Awaited::Answer)) } else { (Some(Outcome::Done), None) };
        assert_eq!((outcome(0), awaited(0)), first);
        pair.sender.disconnect(pair.to, pair.now);
        pair.speak();
        let taken: Vec<_> =
            std::iter::from_fn(|| pair.receiver.take_notification()).map(|it| it.bytes).collect();
        let wanted: Vec<_> = (0..512_u16).map(|nth| nth.to_le_bytes().to_vec()).collect();
        assert!(taken == if acknowledge_taken { Vec::new() } else { wanted }, "{} are taken", taken.len());
        // There is room again, in a new session.
        let again = pair.notify_by(Audience::Program, b"again".to_vec(), LONG * 2);
        pair.speak();
        assert_eq!(pair.receiver.take_notification().unwrap().bytes, b"again");
        pair.speak();
        assert!(pair.is_done(again));
    }
}

/// What was told in earlier sessions and is unread leaves no room for more to be told, and none is lost.
#[test]
fn sessions_that_follow_each_other_share_the_bound() {
    let mut pair = Pair::new(Config { acknowledge_taken: false, ..Config::default() });
    let mut done = 0;
    for _ in 0..3 {
        let ids: Vec<_> = (0..300).map(|_| pair.notify(Audience::Program, vec![1; 100])).collect();
        pair.speak();
        done += ids.iter().filter(|&&id| pair.is_done(id)).count();
        pair.sender.disconnect(pair.to, NOW);
        pair.speak();
        assert!(ids.iter().all(|&id| pair.is_done(id)), "the end of the session ends the others");
    }
    assert_eq!(done, 512);
    assert_eq!(std::iter::from_fn(|| pair.receiver.take_notification()).count(), 512);
    let id = pair.notify(Audience::Program, vec![1; 100]);
    pair.speak();
    assert!(pair.is_done(id), "all of it is free again");
}

/// A notification that its sender cancels before it hears of the arrival is not handed out, and takes no room.
#[test]
fn one_that_is_cancelled_as_it_arrives_leaves_nothing() {
    let mut pair = Pair::new(Config { acknowledge_taken: false, ..Config::default() });
    pair.notify(Audience::Program, b"first".to_vec());
    pair.speak();
    assert!(pair.receiver.take_notification().is_some());
    for _ in 0..2000 {
        let id = pair.notify(Audience::Program, vec![1; 5000]);
        // It arrives, and the answer does not.
        let mut rails = Kept::default();
        while pair.sender.perform(NOW, &mut rails) {}
        for (op, bytes) in rails.0.drain(..) {
            pair.sender.ended(op, Ok(()), NOW);
            pair.receiver.message(&bytes, NOW);
        }
        pair.sender.cancel(id);
        pair.speak();
        assert_eq!(pair.receiver.take_notification(), None);
    }
    assert_eq!(pair.receiver.counts().refused, 0);
}

/// Programs that wait for device memory take no notifications meanwhile.
fn orders_go_on(unread: impl IntoIterator<Item = usize>) {
    let mut pair = Pair::new(Config::default());
    for len in unread {
        pair.notify(Audience::Program, vec![1; len]);
    }
    pair.speak();
    // Far more than may be unacknowledged at a time.
    for nth in 0..3000_usize {
        let bytes = vec![nth as u8; 41];
        let id = pair.notify(Audience::Memory, bytes.clone());
        pair.speak();
        assert_eq!(pair.receiver.take_order().map(|order| order.1), Some(bytes), "order {nth}");
        assert!(pair.is_done(id), "it is acknowledged as it arrives");
    }
    assert_eq!(pair.receiver.counts().refused, 0);
}

#[test]
fn orders_go_on_beside_many_unread_notifications() {
    orders_go_on(std::iter::repeat_n(8, 600));
}

#[test]
fn orders_go_on_beside_long_unread_notifications() {
    orders_go_on([(2 << 20) - 1; 5]);
    orders_go_on([16 << 20]);
}

/// What was told to have arrived is not lost for another greeter.
#[test]
fn a_greeter_with_unread_notifications_is_not_forgotten() {
    let config = Config { acknowledge_taken: false, most_greeters: 1, ..Config::default() };
    let mut pair = Pair::new(config);
    let id = pair.notify(Audience::Program, b"new".to_vec());
    pair.speak();
    assert!(pair.is_done(id));
    pair.sender.disconnect(pair.to, NOW);
    pair.speak();
    let mut other = engine("other", 1 << 50, Config::default());
    let to = other.load(&pair.receiver.metadata(Vec::new())).unwrap();
    let mut greets = |hub: &mut Core<()>| {
        other.connect(to, NOW);
        speak(&mut other, hub, NOW);
        hub.find("other").is_some()
    };
    assert!(!greets(&mut pair.receiver), "there is no room for another");
    assert_eq!(pair.receiver.take_notification().unwrap().bytes, b"new");
    assert!(greets(&mut pair.receiver) && pair.receiver.find("sender").is_none());
}
