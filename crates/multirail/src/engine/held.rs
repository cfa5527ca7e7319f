//! Notifications that are due, and wait for room in the window of their peer (`receipts.rs`).
//!
//! They wait in the order in which they fell due; orders for device memory wait apart from the others, because they
//! have a window of their own. None is sent before one of its kind that waits: a long one would wait for ever behind
//! short ones. An acknowledgement looks at those for which it makes room, and at the first one for which there is none.

use std::collections::BTreeMap;

use ofi_core::slots::SlotId;

use super::Core;
use super::session::Session;

/// The notifications of one session that wait, by transfer.
#[derive(Debug, Default)]
pub(super) struct Held {
    turn: u64,
    others: BTreeMap<Turn, SlotId>,
    orders: BTreeMap<Turn, SlotId>,
}

/// The number under which a notification waits: twice its place in the order, and one more for an order for device
/// memory. Not zero.
pub(super) type Turn = u64;

impl Held {
    fn list(&mut self, is_order: bool) -> &mut BTreeMap<Turn, SlotId> {
        if is_order { &mut self.orders } else { &mut self.others }
    }
}

impl Session {
    /// The transfer whose notification of this kind waits longest.
    pub(super) fn first_held(&self, is_order: bool) -> Option<SlotId> {
        let held = self.held.as_ref()?;
        let list = if is_order { &held.orders } else { &held.others };
        list.first_key_value().map(|(_, &id)| id)
    }

    /// Lets a notification wait.
    pub(super) fn hold(&mut self, transfer: SlotId, is_order: bool) -> Turn {
        let held = self.held.get_or_insert_default();
        held.turn += 1;
        let turn = held.turn << 1 | u64::from(is_order);
        held.list(is_order).insert(turn, transfer);
        turn
    }

    /// A notification waits no more.
    pub(super) fn unhold(&mut self, turn: Turn) {
        if let Some(held) = &mut self.held {
            held.list(turn & 1 == 1).remove(&turn);
        }
    }
}

impl<G> Core<G> {
    /// Sends the notifications of a session that have waited for room, as far as there is some.
    pub(super) fn send_held(&mut self, id: SlotId) {
        for is_order in [true, false] {
            let first = |core: &Self| core.sessions.get(id).and_then(|session| session.first_held(is_order));
            while let Some(transfer) = first(self) {
                self.send_notice(transfer);
                if first(self) == Some(transfer) {
                    break; // there is no room
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use ofi::Errno;

    use super::super::receipts::{UNACKED, UNACKED_BYTES};
    use super::super::{
        Access, Config, OpId, Outcome, PeerId, Plan, RailSpec, Refused, Sink, TransferId, Way,
    };
    use super::*;
    use crate::wire::message::Body;
    use crate::wire::{Message, Metadata, RailInfo};

    const NOW: Duration = Duration::from_secs(1);
    const LATER: Duration = Duration::from_secs(1000);
    /// The peer's incarnation, and its tag for the session.
    const PEER: u64 = 5;
    const THEIRS: u64 = 9 << 32 | 1;
    /// Notifications that wait.
    const WAITING: u64 = 2000;

    /// A rail on which everything ends at once. It keeps the messages.
    #[derive(Default)]
    struct Rail(Vec<(OpId, Body)>);

    impl Sink<()> for Rail {
        fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
            unreachable!("no transfer has data")
        }

        fn send(&mut self, op: OpId, _: usize, _: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
            self.0.push((op, Message::parse(&bytes).unwrap().body));
            Ok(())
        }

        fn insert(&mut self, _: usize, _: u32, _: &[u8]) -> Result<u64, Errno> {
            Ok(7)
        }

        fn remove(&mut self, _: usize, _: u64) {}
    }

    struct Agent {
        core: Core<()>,
        peer: PeerId,
        tag: u64,
    }

    impl Agent {
        /// One with an open session.
        fn new() -> Self {
            let info = RailInfo { provider: "none".into(), format: 0, address: vec![1] };
            let spec = RailSpec {
                info: info.clone(),
                bandwidth: None,
                wide_data: true,
                severs: false,
                operations: 1 << 20,
            };
            let mut next = 0_u64;
            let random = move || {
                next += 1;
                next << 32 | 1
            };
            let mut core = Core::new("agent", vec![spec], Config::default(), Box::new(random));
            let metadata =
                Metadata { name: "peer".into(), incarnation: PEER, rails: vec![info], regions: Vec::new() };
            let peer = core.load(&metadata).unwrap();
            core.connect(peer, NOW);
            let mut agent = Self { core, peer, tag: 0 };
            let said = agent.said();
            let [Body::Hello { tag, .. }] = said[..] else { panic!("a greeting: {said:?}") };
            agent.tag = tag;
            agent.hears(Body::Welcome { incarnation: PEER, tag: THEIRS });
            agent.hears(Body::Ready);
            assert!(agent.core.is_up(peer));
            agent
        }

        fn hears(&mut self, body: Body) -> Vec<Body> {
            self.core.message(&Message { to: self.tag, body }.encode(), NOW);
            self.said()
        }

        /// What it has to say.
        fn said(&mut self) -> Vec<Body> {
            let (mut rail, mut said) = (Rail::default(), Vec::new());
            while self.core.perform(NOW, &mut rail) {
                for (op, body) in rail.0.drain(..) {
                    self.core.ended(op, Ok(()), NOW);
                    said.push(body);
                }
            }
            said
        }

        /// The notifications that it sends: the first byte of each.
        fn notifies(&mut self, body: Body) -> Vec<u8> {
            let is_first = |body| match body {
                Body::Notify(fragment) if fragment.offset == 0 => Some(fragment.bytes[0]),
                _ => None,
            };
            self.hears(body).into_iter().filter_map(is_first).collect()
        }

        fn post(&mut self, bytes: Vec<u8>) -> TransferId {
            let plan = Plan {
                way: Way::Write,
                pieces: Vec::new(),
                regions: Vec::new(),
                near: Vec::new(),
                incarnation: PEER,
                total: 0,
                guard: (),
                uses: Default::default(),
            };
            self.core.post(self.peer, Arc::new(plan), Some(bytes), LATER, NOW).unwrap()
        }

        fn is_done(&self, id: TransferId) -> bool {
            self.core.progress(id).unwrap().outcome == Some(Outcome::Done)
        }
    }

    /// Each acknowledgement looked at all notifications that waited.
    #[test]
    fn an_acknowledgement_looks_only_at_what_it_makes_room_for() {
        let mut agent = Agent::new();
        let posted: Vec<_> = (0..UNACKED + WAITING).map(|nth| agent.post(vec![nth as u8])).collect();
        agent.said();
        for nth in 0..WAITING {
            let before = agent.core.looks;
            let sent = agent.notifies(Body::Ack(vec![nth]));
            assert_eq!(sent, [(UNACKED + nth) as u8], "the one that has waited longest");
            let looks = agent.core.looks - before;
            assert!(looks <= 2, "{looks} notifications are looked at");
        }
        agent.notifies(Body::Ack((WAITING..WAITING + UNACKED).collect()));
        assert!(posted.into_iter().all(|id| agent.is_done(id)));
    }

    #[test]
    fn a_long_notification_has_its_turn_before_short_ones_that_came_later() {
        let mut agent = Agent::new();
        agent.post(vec![0; UNACKED_BYTES / 2]);
        let long = agent.post(vec![1; UNACKED_BYTES]);
        agent.said();
        agent.post(vec![2]);
        assert!(agent.notifies(Body::Confirm).is_empty(), "the short one waits behind the long one");
        assert_eq!(agent.notifies(Body::Ack(vec![0])), [1]);
        assert_eq!(agent.notifies(Body::Ack(vec![1])), [2]);
        assert!(agent.is_done(long));
    }

    #[test]
    fn those_behind_a_cancelled_notification_go_on() {
        let mut agent = Agent::new();
        agent.post(vec![0; UNACKED_BYTES / 2]);
        let long = agent.post(vec![1; UNACKED_BYTES]);
        agent.post(vec![2]);
        agent.said();
        agent.core.cancel(long);
        assert_eq!(agent.notifies(Body::Confirm), [2]);
    }
}
