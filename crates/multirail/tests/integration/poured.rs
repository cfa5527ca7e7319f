//! A peer that has a session over shared memory or sockets, and sends each kind of message without end: what the agent
//! keeps is bounded, and another peer goes on.
//!
//! It measures the memory of the whole process, the hostile peer's included: run it with nextest, which gives each test
//! one of its own.

use std::time::Duration;

use multirail::wire::message::{Body, FRAGMENT, Fragment, Reason};
use multirail::wire::{MESSAGE, Message, Metadata, RailInfo, RegionKey};
use multirail::{Agent, Config};
use ofi::{AddrFormat, Address, CompletionKind, FiAddr, Hints, Node};
use ofi_testkit::wait::drive_for;

use super::support::resident;

const LONG: Duration = Duration::from_secs(30);
/// Messages of each kind: more than an agent keeps of any.
const MANY: u64 = 5000;
/// Messages of the hostile peer that are under way at a time.
const UNDER_WAY: usize = 16;
/// Bytes that one peer may cost: its notifications (8 MiB), and the answers to it.
const MAX_COST: usize = 16 << 20;

/// An endpoint that speaks as a peer.
struct Peer {
    node: Node,
    agent: FiAddr,
    own: RailInfo,
    /// The agent's tag of the session.
    tag: u64,
    under_way: usize,
}

impl Peer {
    fn open(metadata: &Metadata) -> Self {
        let RailInfo { provider, format, address } = &metadata.rails[0];
        let node = Node::open(&Hints::new().provider(&**provider)).unwrap();
        let agent = node.insert(&Address::new(AddrFormat::from_c(*format).unwrap(), address)).unwrap();
        let name = node.name().unwrap();
        let (format, address) = (name.format().as_c(), name.bytes().to_vec());
        let own = RailInfo { provider: provider.clone(), format, address };
        Self { node, agent, own, tag: 0, under_way: 0 }
    }

    /// Takes what has ended. Returns a received message, if there is one.
    fn turn(&mut self) -> Option<Message> {
        while let Some(ended) = self.node.poll().unwrap() {
            if ended.kind() == CompletionKind::Receive {
                return Some(Message::parse(ended.into_result().unwrap().bytes()).unwrap());
            }
            ended.into_result().expect("the agent reads what is sent to it");
            self.under_way -= 1;
        }
        None
    }

    /// Sends a message as soon as there is room for it.
    fn say(&mut self, to: u64, body: Body) {
        let bytes = Message { to, body }.encode();
        drive_for(LONG, &[], "room for a message", || {
            self.turn();
            if self.under_way == UNDER_WAY {
                return None;
            }
            match self.node.send(bytes.clone(), self.agent) {
                Ok(_) => self.under_way += 1,
                Err(refused) if refused.is_again() => return None,
                Err(refused) => panic!("{}", refused.error),
            }
            Some(())
        });
    }

    /// Waits until all that it said has arrived.
    fn was_heard(&mut self) {
        drive_for(LONG, &[], "the ends of the sends", || {
            self.turn();
            (self.under_way == 0).then_some(())
        });
    }

    fn hello(&self, nth: u64) -> Body {
        let rails = vec![self.own.clone()];
        Body::Hello { name: "hostile".into(), incarnation: 99, tag: (7 + nth) << 32, rails }
    }

    /// Opens a session.
    fn greet(&mut self, metadata: &Metadata) {
        self.node.recv(vec![0; MESSAGE]).unwrap();
        self.say(metadata.incarnation, self.hello(0));
        let welcome = drive_for(LONG, &[], "a welcome", || self.turn());
        let Body::Welcome { tag, .. } = welcome.body else { panic!("{welcome:?}") };
        self.tag = tag;
        self.say(self.tag, Body::Confirm);
        self.was_heard();
    }
}

fn fragment(id: u64, expected: u32, total: usize) -> Body {
    let (bytes, total, transfer) = (vec![0; total.min(FRAGMENT)], total as u32, id as u16);
    Body::Notify(Fragment { id, expected, transfer, total, offset: 0, bytes })
}

fn floods(provider: &str, acknowledge_taken: bool) {
    let key = RegionKey { rail: 0, key: 1, base: 0 };
    let ids = |first: u64, count: u64| (first..first + count).collect::<Vec<_>>();
    let kinds: [(&str, &dyn Fn(u64) -> Body); 25] = [
        ("confirmations", &|_| Body::Confirm),
        ("welcomes", &|tag| Body::Welcome { incarnation: 99, tag }),
        ("answers to no confirmation", &|_| Body::Ready),
        ("rejections", &|_| Body::Reject(Reason::Stale)),
        ("notifications that nobody takes", &|id| fragment(id, 0, 1000)),
        ("long notifications that nobody takes", &|id| fragment(id, 0, FRAGMENT)),
        ("unfinished notifications", &|id| fragment(id, 0, 2 * FRAGMENT)),
        ("notifications that wait for writes", &|id| fragment(id, 1, 1000)),
        ("notifications of any length", &|id| fragment(id, 0, u32::MAX as usize)),
        ("acknowledgements", &|id| Body::Ack(ids(id, 512))),
        ("arrivals", &|id| Body::Arrived(ids(id, 512))),
        ("voids", &|id| Body::Void(2 * id)),
        ("abilities", &|_| Body::Able),
        ("requests for keys", &Body::Lease),
        ("keys", &|region| Body::Leased { region, keys: vec![key] }),
        ("requests to fence", &|id| Body::Fence { serial: id + 1, keys: Vec::new(), notices: ids(id, 256) }),
        ("answers to no request to fence", &|serial| Body::Fenced { serial, out: ids(0, 256) }),
        ("rails", &|nth| Body::Rails {
            first: (nth % 31) as u8 + 1,
            rails: vec![RailInfo { provider: provider.into(), format: 0, address: vec![nth as u8; 8] }],
        }),
        ("numbers of rails", &|nth| Body::Taken((nth % 32) as u8 + 1)),
        ("requests for keys on later rails", &Body::Renew),
        ("keys on later rails", &|region| Body::Renewed { region, keys: vec![key] }),
        ("releases", &Body::Release),
        ("requests for keys on all rails", &Body::Widen),
        ("keys on all rails", &|region| Body::Widened { region, keys: vec![key] }),
        ("greetings", &|_| Body::Goodbye),
    ];
    let config = Config { acknowledge_taken, ..Config::default() };
    let open = |name: &str| {
        let builder = Agent::builder(name).progress_thread(true).shared_memory(false).config(config.clone());
        builder.rail(Hints::new().provider(provider)).open().unwrap()
    };
    for (what, kind) in kinds {
        let (agent, other) = (open("agent"), open("other"));
        let metadata = agent.metadata().unwrap();
        other.load(&metadata).unwrap();
        let metadata = Metadata::parse(&metadata).unwrap();
        let works = || {
            let transfer = other.notify("agent", b"honest", LONG).unwrap();
            // The hostile peer's come between.
            let is_honest = || agent.take_notification().filter(|taken| taken.peer == "other".into());
            drive_for(LONG, &[], &format!("{what}: an honest notification"), is_honest);
            transfer.wait().unwrap();
        };
        works();
        let mut hostile = Peer::open(&metadata);
        hostile.greet(&metadata);
        let before = resident();
        for nth in 0..MANY {
            match what {
                "greetings" => hostile.say(metadata.incarnation, hostile.hello(nth)),
                _ => hostile.say(hostile.tag, kind(nth)),
            }
        }
        hostile.was_heard();
        let cost = resident().saturating_sub(before);
        println!("{provider}, {what}: {cost} bytes, {:?}", agent.counts());
        assert!(cost < MAX_COST, "{provider}, {what}: {cost} bytes");
        works();
    }
}

#[test]
fn floods_over_shared_memory_cost_what_is_promised() {
    floods("shm", true);
}

#[test]
fn floods_over_shared_memory_cost_no_more_if_arrivals_are_told() {
    floods("shm", false);
}

#[test]
fn floods_over_sockets_cost_what_is_promised() {
    floods("udp", true);
}

#[test]
fn floods_over_sockets_cost_no_more_if_arrivals_are_told() {
    floods("udp", false);
}
