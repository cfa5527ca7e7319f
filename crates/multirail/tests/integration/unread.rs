//! Notifications that the receiver's program does not take for long, and what goes on beside them.

use std::sync::Arc;
use std::time::Duration;

use multirail::Way;
use multirail::engine::{Audience, Config, Core, PeerId, Plan, RailSpec, TransferId};
use multirail::wire::RailInfo;

use super::support::kept::{Kept, random};

const NOW: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(1000);

fn engine(name: &str, seed: u64, config: Config) -> Core<()> {
    let info = RailInfo { provider: "kept".into(), format: 0, address: vec![1; 32] };
    let rail = RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: 1024 };
    Core::new(name, vec![rail], config, Box::new(random(seed)))
}

/// Delivers messages until there are none.
fn speak(one: &mut Core<()>, two: &mut Core<()>) {
    let (mut there, mut back) = (Kept::default(), Kept::default());
    while one.perform(NOW, &mut there) | two.perform(NOW, &mut back) {
        for (op, bytes) in there.0.drain(..) {
            one.ended(op, Ok(()), NOW);
            two.message(&bytes, NOW);
        }
        for (op, bytes) in back.0.drain(..) {
            two.ended(op, Ok(()), NOW);
            one.message(&bytes, NOW);
        }
    }
}

struct Pair {
    sender: Core<()>,
    receiver: Core<()>,
    to: PeerId,
}

impl Pair {
    fn new(config: Config) -> Self {
        let (mut sender, receiver) =
            (engine("sender", 1, Config::default()), engine("receiver", 1 << 40, config));
        let to = sender.load(&receiver.metadata(Vec::new())).unwrap();
        Self { sender, receiver, to }
    }

    fn notify(&mut self, audience: Audience, bytes: Vec<u8>) -> TransferId {
        let (pieces, regions) = (Vec::new(), Vec::new());
        let plan =
            Plan { way: Way::Write, pieces, regions, near: Vec::new(), incarnation: 0, total: 0, guard: () };
        self.sender.post_to(audience, self.to, Arc::new(plan), Some(bytes), LONG, NOW).unwrap()
    }

    fn speak(&mut self) {
        speak(&mut self.sender, &mut self.receiver);
    }

    fn is_done(&self, id: TransferId) -> bool {
        self.sender.progress(id).unwrap().outcome.is_some()
    }
}

/// The sender counts what is not acknowledged alone. So the receiver has room for that beside what it has acknowledged.
#[test]
fn what_is_acknowledged_unread_takes_no_room_from_the_rest() {
    const COUNT: u8 = 20;
    let mut pair = Pair::new(Config { acknowledge_taken: false, ..Config::default() });
    let ids: Vec<_> =
        (0..COUNT).map(|nth| pair.notify(Audience::Program, vec![nth; (1 << 20) - 1])).collect();
    pair.speak();
    let done = ids.iter().filter(|&&id| pair.is_done(id)).count();
    assert_eq!(done, 4, "4 MiB are acknowledged unread");
    let mut taken = Vec::new();
    while let Some(notification) = pair.receiver.take_notification() {
        taken.push(notification.bytes[0]);
        pair.speak();
    }
    assert_eq!(taken, (0..COUNT).collect::<Vec<_>>());
    assert!(ids.iter().all(|&id| pair.is_done(id)));
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

/// What was acknowledged unread is not lost for another greeter.
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
        speak(&mut other, hub);
        hub.find("other").is_some()
    };
    assert!(!greets(&mut pair.receiver), "there is no room for another");
    assert_eq!(pair.receiver.take_notification().unwrap().bytes, b"new");
    assert!(greets(&mut pair.receiver) && pair.receiver.find("sender").is_none());
}
