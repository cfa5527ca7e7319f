//! A peer that opens session after session and reads nothing in them: its share of a rail is that of one peer.

use std::time::Duration;

use multirail::engine::{Access, Config, Core, OpId, Plan, RailSpec, Refused, Sink};
use multirail::wire::message::{Body, Fragment};
use multirail::wire::{Message, RailInfo};
use ofi::Errno;

use super::support::kept::random;

/// Operations that the rail takes.
const OPERATIONS: u32 = 256;
const NOW: Duration = Duration::from_secs(1);
/// The addresses of the endpoints.
const HOSTILE: u8 = 66;
const HONEST: u8 = 77;

/// A rail that takes everything. Each message is to an address.
#[derive(Default)]
struct Rail(Vec<(OpId, u64, Vec<u8>)>);

impl Rail {
    /// Takes out the messages to an address, which has read them.
    fn read_by(&mut self, hub: &mut Core<()>, addr: u8) -> Vec<Message> {
        let (read, left) =
            std::mem::take(&mut self.0).into_iter().partition(|sent| sent.1 == u64::from(addr));
        self.0 = left;
        let read: Vec<_> = read;
        let read = read.into_iter().map(|(op, _, bytes)| {
            hub.ended(op, Ok(()), NOW);
            Message::parse(&bytes).unwrap()
        });
        read.collect()
    }

    fn to(&self, addr: u8) -> usize {
        self.0.iter().filter(|sent| sent.1 == u64::from(addr)).count()
    }
}

impl Sink<()> for Rail {
    fn access(&mut self, _: &Access, _: &Plan<()>, _: bool) -> Result<(), Refused> {
        unreachable!("no transfer has data")
    }

    fn send(&mut self, op: OpId, _: usize, addr: u64, bytes: Vec<u8>) -> Result<(), (Refused, Vec<u8>)> {
        self.0.push((op, addr, bytes));
        Ok(())
    }

    fn insert(&mut self, _: usize, _: u32, address: &[u8]) -> Result<u64, Errno> {
        Ok(address[0].into())
    }

    fn remove(&mut self, _: usize, _: u64) {}
}

fn rail_info(addr: u8) -> RailInfo {
    RailInfo { provider: "shared".into(), format: 0, address: vec![addr] }
}

fn hub() -> Core<()> {
    let info = rail_info(0);
    let rail = RailSpec { info, bandwidth: None, wide_data: true, severs: false, operations: OPERATIONS };
    Core::new("hub", vec![rail], Config::default(), Box::new(random(1)))
}

fn perform(hub: &mut Core<()>, rail: &mut Rail) {
    while hub.perform(NOW, rail) {}
}

/// Greets the hub from an address.
fn greet_only(hub: &mut Core<()>, rail: &mut Rail, name: &str, addr: u8, nth: u64) {
    let to = hub.metadata(Vec::new()).incarnation;
    let hello =
        Body::Hello { name: name.into(), incarnation: nth, tag: nth << 32 | 1, rails: vec![rail_info(addr)] };
    hub.message(&Message { to, body: hello }.encode(), NOW);
    perform(hub, rail);
}

/// Greets the hub from an address, and reads the answer: its tag for the session, if there is an answer.
fn greet(hub: &mut Core<()>, rail: &mut Rail, name: &str, addr: u8, nth: u64) -> Option<u64> {
    greet_only(hub, rail, name, addr, nth);
    // The answer is the last message: nothing else of the session can have been sent.
    let is_answer = |bytes: &[u8]| match Message::parse(bytes).unwrap() {
        Message { to, body: Body::Welcome { tag, .. } } if to == nth << 32 | 1 => Some(tag),
        _ => None,
    };
    let at = rail.0.iter().position(|sent| is_answer(&sent.2).is_some())?;
    let (op, _, bytes) = rail.0.remove(at);
    hub.ended(op, Ok(()), NOW);
    is_answer(&bytes)
}

/// Notifies the hub `count` times, which owes an answer to each.
fn notify(hub: &mut Core<()>, rail: &mut Rail, tag: u64, count: u64) {
    for id in 0..count {
        let fragment = Fragment { id, expected: 0, transfer: 0, total: 2, offset: 0, bytes: vec![7, 0] };
        hub.message(&Message { to: tag, body: Body::Notify(fragment) }.encode(), NOW);
        perform(hub, rail);
        while hub.take_notification().is_some() {}
        perform(hub, rail);
    }
}

/// A hostile peer has opened many sessions under the names that `name` gives, and has used up what it may in each.
fn reopened(name: impl Fn(u64) -> String) -> (Core<()>, Rail) {
    const SESSIONS: u64 = 64;
    let (mut hub, mut rail) = (hub(), Rail::default());
    for nth in 1..=SESSIONS {
        let Some(tag) = greet(&mut hub, &mut rail, &name(nth), HOSTILE, nth) else { break };
        notify(&mut hub, &mut rail, tag, u64::from(OPERATIONS) / 2);
    }
    (hub, rail)
}

/// An honest peer is greeted, and its notification is answered.
fn is_served(hub: &mut Core<()>, rail: &mut Rail) {
    let tag = greet(hub, rail, "honest", HONEST, 1).expect("a welcome");
    notify(hub, rail, tag, 1);
    let told = rail.read_by(hub, HONEST);
    assert!(told.iter().any(|message| matches!(message.body, Body::Arrived(_) | Body::Ack(_))), "{told:?}");
}

#[test]
fn sessions_of_one_peer_have_one_share_together() {
    let (mut hub, mut rail) = reopened(|_| "hostile".into());
    let (to, share) = (rail.to(HOSTILE), OPERATIONS as usize / 3);
    assert!((share..=share + 4).contains(&to), "{to} operations, the share is {share}");
    is_served(&mut hub, &mut rail);
}

#[test]
fn names_give_no_further_share() {
    let (mut hub, mut rail) = reopened(|nth| format!("hostile-{nth}"));
    let (to, share) = (rail.to(HOSTILE), OPERATIONS as usize / 3);
    assert!((share..=share + 4).contains(&to), "{to} operations, the share is {share}");
    is_served(&mut hub, &mut rail);
}

/// What a session lacks because of its predecessors it gets when their operations end.
#[test]
fn a_session_goes_on_when_what_its_peer_left_has_ended() {
    let (mut hub, mut rail) = reopened(|_| "hostile".into());
    let left = rail.to(HOSTILE);
    rail.read_by(&mut hub, HOSTILE);
    perform(&mut hub, &mut rail);
    let told = rail.read_by(&mut hub, HOSTILE);
    assert!(!told.is_empty(), "the last session has answers left beside {left}");
    let tag = greet(&mut hub, &mut rail, "hostile", HOSTILE, 1 << 20).expect("a welcome");
    notify(&mut hub, &mut rail, tag, 1);
    assert!(rail.to(HOSTILE) > 0);
}

/// Sessions under many names at one address wait for each other, and each has its turn.
#[test]
fn every_session_that_waits_has_its_turn() {
    const NAMES: u64 = 20;
    let (mut hub, mut rail) = (hub(), Rail::default());
    let open = |hub: &mut Core<()>, rail: &mut Rail, nth| {
        greet(hub, rail, &format!("agent-{nth}"), HOSTILE, nth).expect("a welcome")
    };
    let first = open(&mut hub, &mut rail, 1);
    let tags: Vec<u64> = (2..=NAMES).map(|nth| open(&mut hub, &mut rail, nth)).collect();
    notify(&mut hub, &mut rail, first, u64::from(OPERATIONS));
    let before = rail.to(HOSTILE);
    for &tag in &tags {
        notify(&mut hub, &mut rail, tag, 1);
    }
    assert_eq!(rail.to(HOSTILE), before, "the share is used up");
    let mut told = Vec::new();
    while rail.to(HOSTILE) > 0 {
        // One after the other is read.
        let at = rail.0.iter().position(|sent| sent.1 == u64::from(HOSTILE)).unwrap();
        let (op, _, bytes) = rail.0.remove(at);
        let to = Message::parse(&bytes).unwrap().to >> 32;
        if !told.contains(&to) {
            told.push(to);
        }
        hub.ended(op, Ok(()), NOW);
        perform(&mut hub, &mut rail);
    }
    assert_eq!(told, (1..=NAMES).collect::<Vec<_>>(), "in the order in which they began to wait");
}

/// An agent that closes has 200 ms: a peer that is behind with its messages is told at once.
#[test]
fn a_peer_with_unread_messages_is_told_of_the_end_at_once() {
    let (mut hub, mut rail) = (hub(), Rail::default());
    let tag = greet(&mut hub, &mut rail, "busy", HONEST, 1).expect("a welcome");
    notify(&mut hub, &mut rail, tag, 10);
    assert_eq!(rail.to(HONEST), 10, "unread answers");
    let peer = hub.find("busy").unwrap();
    hub.disconnect(peer, NOW);
    perform(&mut hub, &mut rail);
    let told: Vec<_> = rail.0.iter().map(|sent| Message::parse(&sent.2).unwrap().body).collect();
    assert!(matches!(told.last(), Some(Body::Goodbye)), "{told:?}");
}

/// The share of a peer grows when other peers' operations end. Its sessions look again, also if all of its own
/// operations stay unread.
#[test]
fn a_session_goes_on_when_other_peers_leave_it_a_share() {
    for is_other in [true, false] {
        let (mut hub, mut rail) = (hub(), Rail::default());
        let first = greet(&mut hub, &mut rail, "one", HONEST, 1).expect("a welcome");
        let last =
            if is_other { greet(&mut hub, &mut rail, "two", HONEST, 2).expect("a welcome") } else { first };
        // Each of these peers takes what it may, and reads nothing.
        for nth in 100.. {
            let addr = 100 + (nth - 100) as u8;
            let Some(tag) = greet(&mut hub, &mut rail, &format!("silent-{nth}"), addr, nth) else { break };
            if nth == 103 {
                notify(&mut hub, &mut rail, first, 4); // as many as it may have whatever its share
            }
            let before = rail.0.len();
            notify(&mut hub, &mut rail, tag, u64::from(OPERATIONS));
            if rail.0.len() - before <= 4 {
                break;
            }
        }
        let before = rail.to(HONEST);
        assert_eq!(before, 4);
        notify(&mut hub, &mut rail, last, 8);
        assert_eq!(rail.to(HONEST), before, "there is no share");
        for addr in 100..200 {
            rail.read_by(&mut hub, addr);
        }
        perform(&mut hub, &mut rail);
        assert!(rail.to(HONEST) > before, "other session {is_other}: nothing of what waits is sent");
    }
}

/// Strangers that name another agent's address are not answered before that agent again and again.
#[test]
fn strangers_with_an_address_of_another_delay_its_welcome_little() {
    const STRANGERS: u64 = 40;
    let (mut hub, mut rail) = (hub(), Rail::default());
    for nth in 2..2 + STRANGERS {
        greet_only(&mut hub, &mut rail, &format!("stranger-{nth}"), HONEST, nth);
    }
    assert_eq!(rail.to(HONEST), 4, "unread answers");
    greet_only(&mut hub, &mut rail, "honest", HONEST, 1);
    let mut rounds = 0;
    loop {
        let read = rail.read_by(&mut hub, HONEST);
        if read.iter().any(|message| message.to == 1 << 32 | 1) {
            break;
        }
        rounds += 1;
        assert!(rounds <= STRANGERS / 4, "{rounds} times it has read all that was sent");
        // Others keep coming.
        greet_only(&mut hub, &mut rail, &format!("late-{rounds}"), HONEST, 1000 + rounds);
        perform(&mut hub, &mut rail);
    }
}

/// The program ends sessions with a peer that reads nothing: it is not told of each.
#[test]
fn farewells_to_one_peer_are_few() {
    let (mut hub, mut rail) = (hub(), Rail::default());
    for nth in 1..=64 {
        let Some(tag) = greet(&mut hub, &mut rail, "hostile", HOSTILE, nth) else { break };
        hub.message(&Message { to: tag, body: Body::Confirm }.encode(), NOW);
        let peer = hub.find("hostile").unwrap();
        assert!(hub.is_up(peer));
        hub.disconnect(peer, NOW);
        perform(&mut hub, &mut rail);
    }
    assert!((1..=5).contains(&rail.to(HOSTILE)), "{} messages", rail.to(HOSTILE));
    is_served(&mut hub, &mut rail);
    // The sessions that it was not told of are forgotten in time.
    rail.read_by(&mut hub, HOSTILE);
    for second in 1..60 {
        hub.tick(NOW + Duration::from_secs(second));
        perform(&mut hub, &mut rail);
        rail.read_by(&mut hub, HOSTILE);
        rail.read_by(&mut hub, HONEST);
    }
    assert_eq!(hub.kept().2, 1, "the session of the honest peer");
}
