//! A process that is not an agent sends an agent's rails invalid or foreign data. The data is dropped and counted, and
//! transfers continue.

use std::time::{Duration, Instant};

use multirail::engine::Counts;
use multirail::wire::message::{Body, Fragment, Reason};
use multirail::wire::{MESSAGE, Message, Metadata, RailInfo, RegionInfo, VERSION};
use multirail::{Agent, Remote, Way};
use ofi::{AddrFormat, Address, FiAddr, Hints, Node, RemoteWindow, RmaMsg};

const LONG: Duration = Duration::from_secs(30);
/// More than the receives of an agent.
const MANY: u64 = 200;

/// An endpoint that does not belong to an agent.
struct Stranger {
    node: Node,
    agent: FiAddr,
}

impl Stranger {
    /// Creates one that knows the metadata of an agent.
    fn to(metadata: &Metadata) -> Self {
        let RailInfo { provider, format, address } = &metadata.rails[0];
        let node = Node::open(&Hints::new().provider(&**provider)).unwrap();
        let agent = node.insert(&Address::new(AddrFormat::from_c(*format).unwrap(), address)).unwrap();
        Self { node, agent }
    }

    /// Sends bytes, whatever happens to them.
    fn say(&self, mut bytes: Vec<u8>) {
        let began = Instant::now();
        while let Err(refused) = self.node.send(bytes, self.agent) {
            // The agent has not taken what was said before.
            assert!(refused.is_again() && began.elapsed() < LONG, "{refused}");
            bytes = refused.buffer;
            std::thread::yield_now();
        }
        self.node.wait(LONG).unwrap().expect("an end of the send");
    }

    /// Greets as an agent of this name would, with that intended incarnation. Returns the answer.
    fn greet(&self, to: u64, name: &str, provider: &str) -> Body {
        let own = self.node.name().unwrap();
        let rails = vec![RailInfo {
            provider: provider.into(),
            format: own.format().as_c(),
            address: own.bytes().to_vec(),
        }];
        let hello = Body::Hello { name: name.into(), incarnation: 99, tag: 7 << 32, rails };
        self.node.recv(vec![0; MESSAGE]).unwrap();
        self.node.send(Message { to, body: hello }.encode(), self.agent).unwrap();
        for _ in 0..2 {
            let ended = self.node.wait(LONG).unwrap().expect("an answer").into_result().unwrap();
            if ended.kind() == ofi::CompletionKind::Receive {
                return Message::parse(ended.bytes()).unwrap().body;
            }
        }
        panic!("two sends have ended, and no receive");
    }

    /// Writes into a region, like an access of a transfer that the agent does not know.
    fn write(&self, region: &RegionInfo, data: u64) {
        let key = region.keys[0];
        let window = RemoteWindow { key: key.key, base: key.base, len: region.len };
        self.node
            .write_message(RmaMsg::new(vec![9_u8; region.len as usize], self.agent, window).data(data))
            .unwrap();
        self.node.wait(LONG).unwrap().expect("an end of the write").into_result().unwrap();
    }
}

/// Waits until the agent's counters have these values.
fn counted(agent: &Agent, counts: Counts) {
    let began = Instant::now();
    while agent.counts() != counts && began.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(agent.counts(), counts);
}

fn strangers_change_nothing(provider: &str) {
    let open = |name: &str| {
        let builder = Agent::builder(name).progress_thread(true).shared_memory(false);
        builder.rail(Hints::new().provider(provider)).open().unwrap()
    };
    let (alice, bob) = (open("alice"), open("bob"));
    let source = alice.register(vec![1_u8; 1000]).unwrap();
    let (target, open_to_all) =
        (bob.register(vec![0_u8; 1000]).unwrap(), bob.register(vec![0_u8; 64]).unwrap());
    let blob = bob.metadata().unwrap();
    alice.load(&blob).unwrap();
    bob.load(&alice.metadata().unwrap()).unwrap();
    bob.load(&blob).unwrap(); // it is also a peer of its own
    let there = Remote { region: target.id(), offset: 0, len: 1000 };
    let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
    let mut round = 0_u8;
    let mut works = || {
        round += 1;
        source.write_from(0, &[round; 1000]).unwrap();
        let transfer = plan.post_notify(&[round], LONG).unwrap();
        let told = bob.wait_notification(LONG).unwrap().expect("a notification");
        assert_eq!((&*told.peer, &told.bytes[..]), ("alice", &[round][..]));
        transfer.wait().unwrap();
        let mut found = [0; 1000];
        target.read_into(0, &mut found).unwrap();
        assert_eq!(found, [round; 1000]);
        let transfer = bob.notify("bob", b"to myself", LONG).unwrap();
        assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, b"to myself");
        transfer.wait().unwrap();
    };
    works();
    let (metadata, mut counts) = (Metadata::parse(&blob).unwrap(), Counts::default());
    let stranger = Stranger::to(&metadata);

    // Not a message, or of another version, or with bytes after its end, or truncated.
    let said = |body| Message { to: 1 << 32, body }.encode();
    let fragment =
        || Fragment { id: 0, expected: 0, transfer: 0, total: 3, offset: 0, bytes: b"abc".to_vec() };
    let mut malformed = vec![vec![], vec![0], b"MR".to_vec(), vec![b'M'; 200], vec![0xFF; MESSAGE]];
    let other_version = said(Body::Goodbye);
    assert_eq!(other_version[2], VERSION);
    malformed.push([&other_version[..2], &[VERSION + 1], &other_version[3..]].concat());
    malformed.push([&said(Body::Confirm)[..], b"!"].concat());
    let notify = said(Body::Notify(fragment()));
    malformed.extend((0..notify.len()).map(|cut| notify[..cut].to_vec()));
    counts.malformed = malformed.len() as u64;
    malformed.into_iter().for_each(|bytes| stranger.say(bytes));
    counted(&bob, counts);
    works();

    // Longer than any message: each ends a receive, which is posted again.
    let failed = |agent: &Agent| agent.rails()[0].1.failed;
    let before = failed(&bob);
    (0..MANY).for_each(|_| stranger.say(vec![b'M'; MESSAGE + 1]));
    counted(&bob, counts);
    let began = Instant::now();
    while failed(&bob) - before < MANY {
        assert!(began.elapsed() < LONG, "{} of {MANY} have ended a receive", failed(&bob) - before);
        std::thread::sleep(Duration::from_millis(1));
    }
    works();

    // Without a session, or from an agent that cannot be answered.
    let elsewhere = RailInfo { provider: "elsewhere".into(), ..metadata.rails[0].clone() };
    let strays = [
        Body::Welcome { incarnation: metadata.incarnation, tag: 3 },
        Body::Confirm,
        Body::Ready,
        Body::Reject(Reason::Stale),
        Body::Notify(fragment()),
        Body::Ack(vec![0, 1, 2]),
        Body::Goodbye,
        Body::Void(0),
        Body::Hello { name: "unreachable".into(), incarnation: 1, tag: 1, rails: vec![elsewhere] },
    ];
    counts.strays += strays.len() as u64;
    strays.into_iter().for_each(|body| stranger.say(said(body)));
    let region = metadata.regions.iter().find(|region| region.id == open_to_all.id()).unwrap();
    stranger.write(region, 1 << 32);
    counts.strays += 1;
    counted(&bob, counts);
    works();

    // Rejected greetings: for another incarnation, and by the name of the greeted agent.
    let to = metadata.incarnation;
    let greet = |to, name| Stranger::to(&metadata).greet(to, name, provider);
    assert_eq!(greet(to ^ 1, "carol"), Body::Reject(Reason::Stale));
    assert_eq!(greet(to, "bob"), Body::Reject(Reason::Taken));
    works();
    assert_eq!(bob.counts(), counts);
    assert_eq!(alice.counts(), Counts::default());
}

#[test]
fn strangers_change_nothing_over_shared_memory() {
    strangers_change_nothing("shm");
}

#[test]
fn strangers_change_nothing_over_sockets() {
    strangers_change_nothing("udp");
}
