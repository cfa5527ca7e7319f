//! Many connected peers of one endpoint of provider `verbs`, on the simulated device: the memory of an idle connection,
//! and a message in each direction over each connection while all exist. `OFI_VERBS_PEERS` sets their number. All
//! endpoints are in one process, and each uses five descriptors: a hard limit of 20,000 allows 3,900.
//!
//! So a second test uses no endpoints as peers: one pair of queues has their ends of all connections, each with its own
//! address. `OFI_VERBS_ENDPOINT_PEERS` sets their number.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use ofi::raw::{AddrFormat, EpType, Hints};
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_tests::{limit_descriptors, resident_kib};
use ofi_verbs::rc::{
    Access, CmEventKind, ConnParam, Connection, Device, Opcode, Post, Queues, Region, Segment, Sizes,
};

/// Peers in every check.
const PEERS: usize = 200;
/// Maximum resident memory of one end of an idle connection in KiB, including the simulated device's share.
const MAX_RESIDENT_KIB: u64 = 32;
/// The same for two messages: each may be the first to touch its receive slot, a page.
const MAX_MESSAGES_KIB: u64 = 8;

/// Endpoints over the device of this name.
struct Many(&'static str);

impl Kit for Many {
    fn hints(&self) -> Hints {
        Hints::new().provider("verbs").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn).domain(self.0)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint and its peers, which one after the other exchange a message in each direction, twice.
pub fn hub(line: &mut Line, arguments: &[String]) {
    let count: usize = arguments[0].parse().expect("a number");
    limit_descriptors(0);
    ofi_verbs::rc::add(Arc::new(Handle(SimulatedDevice::new("many0", Plan::default()))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    let kit: &dyn Kit = &Many("many0");
    let hub = kit.side();
    // The parent gives up after a long silence.
    let heartbeat = |line: &mut Line, at: usize| {
        if at.is_multiple_of(PEERS) {
            line.say(at);
        }
    };
    let mut peers = Vec::new();
    for at in 0..count {
        heartbeat(line, at);
        peers.push(kit.side());
    }
    let to: Vec<_> = peers.iter().map(|peer| (hub.insert(peer), peer.insert(&hub))).collect();
    let (sent, got) = (Memory::patterned(64, 1), Memory::new(64));
    let pass =
        |what: &str, sides: &[&TestEndpoint; 2], from: &TestEndpoint, to: FiAddr, into: &TestEndpoint| {
            into.receive(&got).context(1).tag(5).post().unwrap();
            wait::drive(sides, what, || from.out(to, &sent).context(2).tag(5).send().ok());
            wait::drive(sides, what, || into.next_of(1)).done();
            wait::drive(sides, what, || from.next_of(2)).done();
            got.check(64, 1);
        };
    let before = resident_kib();
    let mut connected = before;
    for round in ["a message over a new connection", "a message over an idle connection"] {
        for (at, (peer, &(there, back))) in peers.iter().zip(&to).enumerate() {
            heartbeat(line, at);
            let sides = [&hub, peer];
            pass(round, &sides, &hub, there, peer);
            pass(round, &sides, peer, back, &hub);
        }
        connected = connected.max(resident_kib());
    }
    let kept = hub.statistic("verbs_connections") - hub.statistic("verbs_retired");
    line.say(format!("kept {kept} {}", (connected - before) * 1024 / (2 * count as u64)));
    for (at, peer) in peers.into_iter().enumerate() {
        heartbeat(line, at);
        drop(peer);
    }
    drop(hub);
    line.say("closed");
}

#[test]
fn all_peers_stay_connected_and_an_idle_connection_takes_little_memory() {
    let peers =
        std::env::var("OFI_VERBS_PEERS").map_or(PEERS, |text| text.parse().expect("a number of peers"));
    let text = peers.to_string();
    let mut child = Child::start_with("hub", &[&text], &[("FI_VERBS_MAX_CONNECTIONS", &text)]);
    let found = std::iter::from_fn(|| Some(child.line.hear())).find_map(|line| {
        let (kept, bytes) = line.strip_prefix("kept ")?.split_once(' ')?;
        Some((kept.to_string(), bytes.parse::<u64>().expect("a number of bytes")))
    });
    let (kept, bytes) = found.expect("the lines never end");
    assert_eq!(kept, text, "connections that stand");
    println!("{peers} peers: {bytes} bytes for each end of an idle connection");
    assert!(bytes <= MAX_RESIDENT_KIB * 1024, "{bytes} bytes");
    while child.line.hear() != "closed" {}
    child.finish();
}

/// Number of receives that the ends of all connections share, and the length of each in bytes.
const RECEIVES: usize = 1024;
const LEN: usize = 128;
/// A message of no bytes, and the consent to close an idle connection, as records.
const NOTHING: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const AGREED: [u8; 16] = [RETIRE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The kind of records about closing an idle connection (`crates/ofi-verbs/src/wire.rs`).
const RETIRE: u8 = 22;

/// The ends of many connections to one endpoint. Fields drop in order.
struct Crowd {
    /// `None` while the idle connection is closed.
    ends: Vec<Option<Box<dyn Connection>>>,
    /// The ends by the numbers of their connections, and of their queue pairs.
    numbers: HashMap<usize, usize>,
    pairs: HashMap<u32, usize>,
    /// Number of attempts to connect so far.
    attempts: u32,
    queues: Box<dyn Queues>,
    region: Box<dyn Region>,
    /// The records that all ends send, followed by the receives.
    memory: Memory,
    own: SocketAddr,
    arrived: usize,
}

impl Crowd {
    fn new(device: &Arc<SimulatedDevice>, count: usize) -> Self {
        let device = Handle(Arc::clone(device));
        let sizes = Sizes { requests: 16, receives: RECEIVES, completions: 1 << 16, inline: LEN };
        let memory = Memory::new((1 + RECEIVES) * LEN);
        memory.slice(..32).put(&[NOTHING, AGREED].concat());
        // SAFETY: the region goes before the memory.
        let region = unsafe { device.register(memory.as_ptr(), memory.len(), Access::Local) }.unwrap();
        let own = SocketAddr::new(device.addresses()[0], 0);
        let queues = device.open(sizes).unwrap();
        let ends = std::iter::repeat_with(|| None).take(count).collect();
        let (numbers, pairs) = (HashMap::new(), HashMap::new());
        let made = Self { ends, numbers, pairs, attempts: 0, queues, region, memory, own, arrived: 0 };
        (1..=RECEIVES).for_each(|at| made.receive(at));
        made
    }

    fn segment(&self, offset: usize, len: usize) -> Segment {
        let addr = self.memory.as_ptr().wrapping_add(offset);
        Segment { addr, len: len as u32, lkey: self.region.lkey() }
    }

    fn receive(&self, at: usize) {
        // SAFETY: registered, and read after it has ended.
        unsafe { self.queues.receive(at as u64, self.segment(at * LEN, LEN)) }.unwrap();
    }

    /// Waits for an event of a connection. Meanwhile other connections may be closed.
    fn event(&mut self, side: &TestEndpoint, number: usize, kind: CmEventKind) {
        wait::drive(&[side], "an event", || {
            self.look();
            let event = self.queues.event().unwrap()?;
            if event.id == number {
                assert_eq!(event.kind, kind);
                return Some(());
            }
            self.take(event.id, event.kind);
            None
        });
    }

    fn take(&mut self, number: usize, kind: CmEventKind) {
        if let Some(at) = self.numbers.remove(&number) {
            assert_eq!(kind, CmEventKind::Disconnected);
            self.ends[at] = None;
        }
    }

    /// Connects an end under its address, unless it is connected.
    fn connect(&mut self, side: &TestEndpoint, at: usize) {
        while let Some(event) = self.queues.event().unwrap() {
            self.take(event.id, event.kind);
        }
        if self.ends[at].is_some() {
            return;
        }
        let limit = Duration::from_secs(20);
        let mut end = self.queues.call(self.own, side.name().to_socket_addr().unwrap(), limit).unwrap();
        self.event(side, end.number(), CmEventKind::AddressResolved);
        end.resolve_route(limit).unwrap();
        self.event(side, end.number(), CmEventKind::RouteResolved);
        end.create_qp().unwrap();
        self.attempts += 1;
        let greeting = greeting(self.address(at), self.attempts);
        end.connect(ConnParam { private_data: &greeting, reads: 1, retries: 7, rnr_retries: 7 }).unwrap();
        self.event(side, end.number(), CmEventKind::Established);
        self.numbers.insert(end.number(), at);
        self.pairs.insert(end.qp().unwrap().0, at);
        self.ends[at] = Some(end);
    }

    fn address(&self, at: usize) -> SocketAddr {
        SocketAddr::new(self.own.ip(), 1024 + at as u16)
    }

    /// The peer with this number sends the record at the offset.
    fn send(&self, at: usize, offset: usize, len: usize) {
        let how = Post { inline: true, ..Post::default() };
        let end = self.ends[at].as_ref().expect("a connection");
        // SAFETY: carried by the request.
        unsafe { end.send(1 << 32, self.segment(offset, len), how) }.unwrap();
    }

    /// Processes completions: counts messages, and agrees to close connections.
    fn look(&mut self) {
        let mut entries = VecDeque::new();
        self.queues.poll(&mut entries).unwrap();
        for entry in entries {
            if entry.opcode == Opcode::Receive {
                let slot = entry.id as usize;
                let kind = self.memory.slice(slot * LEN..slot * LEN + 1).bytes()[0];
                self.receive(slot);
                self.arrived += usize::from(kind == NOTHING[0]);
                if kind == RETIRE {
                    self.send(self.pairs[&entry.qp], NOTHING.len(), AGREED.len());
                }
            }
        }
    }
}

/// A greeting (`crates/ofi-verbs/src/endpoint/meeting.rs`).
fn greeting(own: SocketAddr, attempt: u32) -> Vec<u8> {
    let SocketAddr::V4(v4) = own else { panic!("{own}") };
    let mut bytes = b"ofv1".to_vec();
    bytes.extend(v4.ip().to_ipv6_mapped().octets());
    bytes.extend(v4.port().to_be_bytes());
    bytes.extend([0, 0, 0, 0, 0, 64]); // scope, credits
    bytes.extend([0; 8]); // incarnation
    bytes.extend(attempt.to_be_bytes());
    bytes
}

/// One endpoint, and a message in each direction over each of its connections, twice.
pub fn server(line: &mut Line, arguments: &[String]) {
    let count: usize = arguments[0].parse().expect("a number");
    let device = SimulatedDevice::new("many1", Plan::default());
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    let kit: &dyn Kit = &Many("many1");
    let side = kit.side();
    let mut crowd = Crowd::new(&device, count);
    let to: Vec<_> = (0..count).map(|at| side.insert_address(&crowd.address(at).into())).collect();
    let before = resident_kib();
    for at in 0..count {
        if at.is_multiple_of(PEERS) {
            line.say(at); // a parent that hears nothing for long gives up
        }
        crowd.connect(&side, at);
    }
    let connected = resident_kib();
    for _ in 0..2 {
        for (at, &to) in to.iter().enumerate() {
            if at.is_multiple_of(PEERS) {
                line.say(at);
            }
            side.receive(()).context(1).post().unwrap();
            crowd.connect(&side, at);
            crowd.send(at, 0, 8);
            wait::drive(&[&side], "a message", || side.next_of(1)).done();
            wait::drive(&[&side], "room", || side.out(to, ()).context(2).send().ok());
            wait::drive(&[&side], "its end", || side.next_of(2)).done();
            crowd.look();
        }
    }
    wait::drive(&[&side], "all messages", || {
        crowd.look();
        (crowd.arrived == 2 * count).then_some(())
    });
    let used = resident_kib();
    let kept = side.statistic("verbs_connections") - side.statistic("verbs_retired");
    let each = |now: u64| (now - before) * 1024 / count as u64;
    line.say(format!("kept {kept} {} {}", each(connected), each(used)));
    drop(crowd);
    drop(side);
    line.say("closed");
}

/// Connections of one endpoint with a limit of `most`. Returns their final number, and their memory.
fn crowded(peers: usize, most: usize) -> usize {
    let environment = [("FI_VERBS_MAX_CONNECTIONS", &*most.to_string())];
    let mut child = Child::start_with("server", &[&peers.to_string()], &environment);
    let found = std::iter::from_fn(|| Some(child.line.hear()))
        .find_map(|line| Some(line.strip_prefix("kept ")?.to_string()))
        .expect("the lines never end");
    let numbers: Vec<usize> = found.split(' ').map(|word| word.parse().expect("a number")).collect();
    println!(
        "{peers} peers, {} connections: {} bytes each, {} after messages",
        numbers[0], numbers[1], numbers[2]
    );
    let most = 1024 * (MAX_RESIDENT_KIB + MAX_MESSAGES_KIB) as usize;
    assert!(numbers[1] <= 1024 * MAX_RESIDENT_KIB as usize && numbers[2] <= most, "{found}");
    while child.line.hear() != "closed" {}
    child.finish();
    numbers[0]
}

fn peers() -> usize {
    std::env::var("OFI_VERBS_ENDPOINT_PEERS")
        .map_or(PEERS, |text| text.parse().expect("a number of connections"))
}

#[test]
fn one_endpoint_has_more_connections_than_its_host_has_descriptors() {
    assert_eq!(crowded(peers(), peers()), peers());
}

#[test]
fn one_endpoint_serves_more_peers_than_it_keeps_connections() {
    let most = (peers() / 10).max(1);
    // The last asked peers may not have answered.
    let kept = crowded(peers(), most);
    assert!(kept >= most && kept < peers() / 2, "{kept} connections, where {most} are kept");
}
