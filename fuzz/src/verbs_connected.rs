//! Connected endpoints of provider `verbs` on a simulated device. The hostile peer at their other ends requests,
//! accepts and rejects connections with the input's private data, sends messages of any length, and accesses memory by
//! known and invented keys. Nothing is written outside of lent memory, every posted operation ends, and two other
//! endpoints keep working.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ofi::raw::{
    AddrFormat, Caps, EpType, Event as EqEvent, FiAddr, Hints, Info, MemoryRegion, Mode, MrAccess,
};
use ofi_testkit::connect::{Listener, connect, try_outcome};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_testkit::side::remote_at;
use ofi_testkit::{Event, Kit, Memory, Opening, TestEndpoint};
use ofi_verbs::rc::msg::{Channel, Completions, Connects, Identifier, PairAttr, Receives};
use ofi_verbs::rc::{
    Access, CmEventKind, ConnParam, Device, Post, Region, Remote, Segment, Work, WorkCompletion,
};

use super::Input;
use super::two::{POLLS, STEPS};
use super::verbs_lane::device;

/// Length of the stranger's longest message.
const RECORD: usize = 9000;
/// Requests of the stranger, and receives of each of its connections.
const REQUESTS: usize = 64;
const RECEIVES: usize = 16;
/// Maximum number of connections of the stranger, and of endpoints that it may connect to.
const MAX_CONNECTIONS: usize = 3;
const MAX_VICTIMS: usize = 3;
/// Length of the registered part of each buffer, its middle third.
const SHARED: usize = 3 * 512;
/// The seed of the guard bytes around lent memory, and their number after it.
const BESIDE: u8 = 0xCC;
const AROUND: usize = 16;
/// Length of private data.
const PRIVATE: usize = 56;

struct Driven;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Msg).domain("fuzzed0");
        hints.addr_format(AddrFormat::SockaddrIn).mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::RMA | Caps::ATOMIC
    }

    fn connected_caps(&self) -> Caps {
        self.usual_caps()
    }
}

fn opening() -> Opening {
    static INFO: OnceLock<Info> = OnceLock::new();
    let kit: &dyn Kit = &Driven;
    let opening = kit.opening();
    // Asking all providers would take longer than the rest of the run.
    let info = INFO.get_or_init(|| opening.first_info().expect("an endpoint of the device"));
    opening.info(info.clone())
}

/// An endpoint whose peer is the stranger. Fields drop in order.
struct Victim {
    side: TestEndpoint,
    /// The region that a peer may write, and the one that it may read.
    regions: [Arc<dyn MemoryRegion>; 2],
    memory: [Memory; 2],
    /// Operations in flight: memory, and the number of its bytes that the operation may access.
    open: BTreeMap<usize, (Memory, usize)>,
    begun: usize,
}

impl Victim {
    fn new(side: TestEndpoint) -> Self {
        let memory = [4, 5].map(|seed| Memory::patterned(SHARED, seed));
        let rights = [MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE, MrAccess::REMOTE_READ];
        let third = SHARED / 3;
        let regions = [0, 1].map(|at: usize| {
            side.register(memory[at].slice(third..2 * third), rights[at]).expect("a registration")
        });
        Self { side, regions, memory, open: BTreeMap::new(), begun: 0 }
    }

    fn post(&mut self, kind: u8, len: usize, at: Remote) {
        let (number, memory) = (self.begun, Memory::patterned(len + AROUND, BESIDE));
        let lent = memory.slice(..len);
        let (out, there) = (self.side.out(FiAddr::UNSPEC, lent.clone()).context(number), at);
        let remote = [ofi::raw::RemotePiece { addr: there.addr, len, key: there.rkey.into() }];
        let posted = match kind {
            0 | 1 => self.side.receive(lent).context(number).post(),
            2 => out.send(),
            3 => out.data(u64::from(there.rkey)).write(&remote),
            _ => out.read(&remote),
        };
        // The queue is full, or the connection has ended.
        if posted.is_ok() {
            self.open.insert(number, (memory, len));
            self.begun += 1;
        }
    }

    fn poll(&mut self) {
        self.side.poll();
        while let Some(event) = self.side.next() {
            let (memory, len) = self.open.remove(&event.context()).expect("an end of what is open");
            let before = Memory::patterned(len + AROUND, BESIDE);
            assert_eq!(memory.slice(len..).bytes(), before.slice(len..).bytes(), "{event:?}");
        }
        while try_outcome(self.side.eq()).is_some() {}
    }

    /// Checks that nothing was written outside of lent memory.
    fn check(&self) {
        let third = SHARED / 3;
        for (memory, seed) in self.memory.iter().zip([4, 5]) {
            let (now, before) = (memory.bytes(), Memory::patterned(SHARED, seed).bytes());
            // All of the second, and the outer thirds of the first.
            let kept = if seed == 5 { [0..SHARED, 0..0] } else { [0..third, 2 * third..SHARED] };
            kept.into_iter().for_each(|range| assert_eq!(now[range.clone()], before[range]));
        }
    }
}

/// A connection of the stranger.
struct Line {
    id: Box<dyn Identifier>,
    greeting: Vec<u8>,
    is_open: bool,
}

/// Fields drop in order: the device accesses the memory until the connections are destroyed.
struct Stranger {
    lines: VecDeque<Line>,
    listener: Box<dyn Identifier>,
    ends: Arc<dyn Completions>,
    channel: Arc<dyn Channel>,
    region: Box<dyn Region>,
    /// A slot for each request, and one for all receives.
    memory: Vec<u8>,
    free: Vec<usize>,
    device: Handle,
    /// How the next call is answered.
    answer: (bool, Vec<u8>),
}

impl Stranger {
    fn new(device: Arc<SimulatedDevice>) -> Self {
        let device = Handle(device);
        let channel = device.channel().expect("a channel");
        let ip = device.addresses()[0];
        let listener = Arc::clone(&channel).bind(SocketAddr::new(ip, 0)).expect("a name");
        listener.listen(8).expect("a listener");
        let ends = device.completions(4096).expect("a completion queue");
        let mut memory = vec![0; (REQUESTS + 1) * RECORD];
        // SAFETY: the region is dropped before the memory.
        let region = unsafe { device.register(memory.as_mut_ptr(), memory.len(), Access::RemoteReadWrite) };
        let (region, free) = (region.expect("a registration"), (0..REQUESTS).collect());
        let (lines, answer) = (VecDeque::new(), (true, Vec::new()));
        Self { lines, listener, ends, channel, region, memory, free, device, answer }
    }

    fn name(&self) -> SocketAddr {
        self.listener.local_address().expect("a name")
    }

    fn segment(&mut self, at: usize, len: usize) -> Segment {
        let addr = self.memory[at * RECORD..][..RECORD].as_mut_ptr();
        Segment { addr, len: len as u32, lkey: self.region.lkey() }
    }

    /// Gives an identifier a queue pair with receives.
    fn prepare(&mut self, id: &mut dyn Identifier) -> bool {
        let (completions, receives) = (Arc::clone(&self.ends), Receives::Own(RECEIVES));
        let [pieces, receive_pieces] = [1; 2];
        let attr = PairAttr { completions, receives, size: REQUESTS, pieces, receive_pieces, inline: 0 };
        let into = self.segment(REQUESTS, RECORD);
        let made = self.device.create_pair(id, &attr).is_ok();
        // SAFETY: registered, and not accessed otherwise.
        let post = |pair: &dyn ofi_verbs::rc::msg::Pair| unsafe { pair.receive(REQUESTS as u64, &[into]) };
        made && (0..RECEIVES).all(|_| id.pair().is_some_and(|pair| post(pair).is_ok()))
    }

    fn call(&mut self, to: SocketAddr, greeting: &[u8]) {
        if self.lines.len() == MAX_CONNECTIONS {
            self.lines.pop_front();
        }
        let own = SocketAddr::new(self.name().ip(), 0);
        let id = Arc::clone(&self.channel).bind(own).expect("a name");
        id.resolve_address(to, Duration::from_secs(1)).expect("a call");
        self.lines.push_back(Line { id, greeting: greeting.to_vec(), is_open: false });
    }

    fn poll(&mut self) {
        while let Some(event) = Arc::clone(&self.channel).next().expect("a device that works") {
            if let Some(id) = event.request {
                self.answer(id);
                continue;
            }
            let Some(at) = self.lines.iter().position(|line| line.id.number() == event.id) else { continue };
            let Some(mut line) = self.lines.remove(at) else { continue };
            let goes_on = match event.kind {
                CmEventKind::AddressResolved => line.id.resolve_route(Duration::from_secs(1)).is_ok(),
                CmEventKind::RouteResolved => {
                    self.prepare(&mut *line.id) && line.id.connect(param(&line.greeting)).is_ok()
                }
                CmEventKind::Established => {
                    line.is_open = true;
                    true
                }
                _ => false,
            };
            if goes_on {
                self.lines.insert(at, line);
            }
        }
        let free = &mut self.free;
        let mut take =
            |entry: WorkCompletion| free.extend((entry.id < REQUESTS as u64).then_some(entry.id as usize));
        self.ends.poll(&mut take).expect("a device that works");
    }

    /// One of the endpoints requests a connection.
    fn answer(&mut self, mut id: Box<dyn Identifier>) {
        let (grants, data) = self.answer.clone();
        if !grants {
            let _ = id.reject(&data); // who asked may have gone
        } else if self.prepare(&mut *id) && id.accept(param(&data)).is_ok() {
            self.lines.push_back(Line { id, greeting: Vec::new(), is_open: false });
            self.lines.truncate(MAX_CONNECTIONS);
        }
    }

    fn post(&mut self, which: usize, bytes: &[u8], work: Work) {
        let Some(place) = self.free.pop() else { return };
        let len = bytes.len().min(RECORD);
        self.memory[place * RECORD..][..len].copy_from_slice(&bytes[..len]);
        let segment = self.segment(place, len);
        let open = self.lines.iter().filter(|line| line.is_open).count();
        let line = self.lines.iter().filter(|line| line.is_open).nth(which % open.max(1));
        let posted = line.and_then(|line| line.id.pair()).is_some_and(|pair| {
            // SAFETY: registered, and not accessed until the request has completed.
            unsafe { pair.work(place as u64, &[segment], work, Post::default()) }.is_ok()
        });
        if !posted {
            self.free.push(place);
        }
    }
}

fn param(private_data: &[u8]) -> ConnParam<'_> {
    ConnParam { private_data, reads: 1, retries: 7, rnr_retries: 7 }
}

/// Two endpoints that the stranger never contacts.
struct Friends {
    a: TestEndpoint,
    b: TestEndpoint,
    /// Messages in flight, and their receives.
    sent: VecDeque<(usize, Memory, Memory)>,
    begun: usize,
    ended: usize,
}

impl Friends {
    fn begin(&mut self, len: usize) {
        let number = self.begun;
        let (from, into) = (Memory::patterned(len, number as u8), Memory::new(len));
        if self.sent.len() < 16 {
            self.b.receive(&into).context(number).post().expect("a receive");
            self.a.out(FiAddr::UNSPEC, &from).context(number).send().expect("room for a message");
            self.sent.push_back((number, from, into));
            self.begun += 1;
        }
    }

    fn poll(&mut self) {
        self.a.poll();
        self.b.poll();
        self.ended += std::iter::from_fn(|| self.a.next()).map(Event::done).count();
        while let Some(event) = self.b.next() {
            let (number, from, into) = self.sent.pop_front().expect("a message that was sent");
            assert_eq!((event.context(), event.done().len), (number, from.len()));
            into.check(from.len(), number as u8);
            self.ended += 1;
        }
    }
}

/// All of them. Fields drop in order.
struct All {
    stranger: Option<Stranger>,
    victims: VecDeque<Victim>,
    friends: Friends,
    listener: Listener,
    asked: VecDeque<Box<EqEvent>>,
    connections: usize,
}

impl All {
    fn poll(&mut self) {
        self.stranger.iter_mut().for_each(Stranger::poll);
        self.victims.iter_mut().for_each(Victim::poll);
        self.friends.poll();
        if let Some(Ok(event)) = try_outcome(&self.listener.eq) {
            assert!(event.conn_data.len() < PRIVATE, "{} bytes of private data", event.conn_data.len());
            self.asked.push_back(Box::new(event));
        }
    }

    fn add(&mut self, victim: Victim) {
        if self.victims.len() == MAX_VICTIMS {
            self.victims.pop_front().iter().for_each(Victim::check);
        }
        self.connections += 1;
        self.victims.push_back(victim);
    }

    /// Accepts or rejects the oldest request.
    fn settle(&mut self, grants: bool) {
        let Some(info) = self.asked.pop_front().and_then(|event| event.info) else { return };
        if !grants {
            let handle = info.handle.as_ref().expect("a request");
            let _ = self.listener.pep.reject(handle, b"no"); // who asked may have gone
            return;
        }
        // Nor can a request be accepted then.
        if let Ok(side) = opening().info(*info).open_disabled()
            && side.ep.accept(b"yes").is_ok()
        {
            self.add(Victim::new(side));
        }
    }
}

/// Runs an input. Returns how many messages between the two endpoints have completed, and how many connections were
/// requested.
pub fn verbs_connected(input: &[u8]) -> usize {
    let mut input = Input(input);
    let (device, _alone) = device();
    let flags = input.byte();
    device.begin(Plan {
        seed: u64::from(input.byte()) + 1,
        not_ready: if flags & 1 == 0 { 0 } else { 30 },
        late: if flags & 2 == 0 { 0 } else { 50 },
        slow: if flags & 4 == 0 { 0 } else { 50 },
        inline: if flags & 8 == 0 { 256 } else { 0 },
        cleans: flags & 16 != 0,
        requests: if flags & 32 == 0 { 1024 } else { 64 },
        overtaken: if flags & 64 == 0 { 0 } else { 50 },
        ..Plan::default()
    });
    let a = opening().open_disabled().expect("an endpoint");
    let b = connect(&a, opening()).expect("a connection");
    let friends = Friends { a, b, sent: VecDeque::new(), begun: 0, ended: 0 };
    let listener = Listener::open(&opening().first_info().expect("an info")).expect("a listener");
    let to = listener.pep.name().expect("a name").to_socket_addr().expect("an address");
    let stranger = Stranger::new(device);
    let (own, rkey) = (stranger.name(), stranger.region.rkey());
    let addr = stranger.memory.as_ptr().expose_provenance() as u64;
    let (victims, asked) = (VecDeque::new(), VecDeque::new());
    let mut all = All { stranger: Some(stranger), victims, friends, listener, asked, connections: 0 };
    for _ in 0..STEPS {
        if input.0.is_empty() {
            break;
        }
        let (what, how) = (input.byte(), input.byte());
        let Some(stranger) = &mut all.stranger else { break };
        match what % 8 {
            0 => stranger.call(to, input.bytes(usize::from(how) % (PRIVATE + 1))),
            1 => (0..=how).for_each(|_| all.poll()),
            2 => {
                let len = input.short() % (RECORD + 1);
                let bytes = input.bytes(len.min(64)).iter().copied().cycle().take(len).collect::<Vec<_>>();
                stranger.post(
                    usize::from(what / 8),
                    &bytes,
                    Work::Send((how & 1 == 0).then_some(how.into())),
                );
            }
            3 => {
                let (key, offset, len) = (input.byte(), input.short(), input.short() % (SHARED + 1));
                let region = all.victims.get(usize::from(key / 2) % MAX_VICTIMS);
                let region = region.map(|victim| &victim.regions[usize::from(key % 2)]);
                let base = region.map_or(0, |region| remote_at(region, 0, 1).addr);
                let known = region.filter(|_| key < 128).map(|region| region.key() as u32);
                let at = Remote {
                    addr: base.wrapping_add(offset as u64).wrapping_sub(256),
                    rkey: known.unwrap_or(key.into()),
                };
                let (work, len) = match how % 8 {
                    0 | 1 => (Work::Write(at, None), len),
                    2 => (Work::Write(at, Some(how.into())), len),
                    3 | 4 => (Work::Read(at), len),
                    5 => (Work::FetchAdd(at, how.into()), 8),
                    6 => (Work::CompareSwap { at, expected: 0, new: how.into() }, 8),
                    _ => (Work::Write(at, Some(0)), 0),
                };
                stranger.post(usize::from(what / 8), &vec![how; len], work);
            }
            4 => {
                let len = input.short() % (RECORD + 1);
                let at = Remote { addr: addr + u64::from(how) * 8, rkey: rkey + u32::from(how == 255) };
                let count = all.victims.len().max(1);
                let victim = all.victims.get_mut(usize::from(what / 8) % count);
                victim.into_iter().for_each(|victim| victim.post(how % 5, len, at));
            }
            5 => match how % 4 {
                0 => drop(stranger.lines.pop_front()),
                1 => drop(stranger.lines.pop_back()),
                2 => stranger.lines.iter().take(1).for_each(|line| drop(line.id.disconnect())),
                _ => all.victims.iter().take(1).for_each(|victim| drop(victim.side.ep.shutdown())),
            },
            6 if how & 1 == 0 => all.settle(how & 2 == 0),
            6 => {
                let data = input.bytes(usize::from(how) % (PRIVATE + 1)).to_vec();
                stranger.answer = (how & 2 == 0, data);
                let side = opening().open_disabled().expect("an endpoint");
                if side.ep.connect(&own.into(), b"hello").is_ok() {
                    all.add(Victim::new(side));
                }
            }
            _ => all.friends.begin(usize::from(how) * 17),
        }
    }
    (0..64).for_each(|_| all.poll());
    all.stranger = None;
    for _ in 0..POLLS {
        if all.friends.ended == 2 * all.friends.begun
            && all.victims.iter().all(|victim| victim.open.is_empty())
        {
            break;
        }
        all.poll();
    }
    let open: Vec<usize> = all.victims.iter().map(|victim| victim.open.len()).collect();
    assert!(open.iter().all(|&open| open == 0), "{open:?} operations have not ended");
    assert_eq!(all.friends.ended, 2 * all.friends.begun, "the friends' messages");
    all.victims.iter().for_each(Victim::check);
    all.friends.ended + all.connections
}
