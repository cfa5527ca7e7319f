//! Devices that appear after the agents: they become rails, peers are told, and transfers use them.

use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use multirail::wire::Metadata;
use multirail::{Agent, Config, RailList, Region, Way};
use ofi::Result;
use ofi::raw::{Dmabuf, Nic};
use ofi_efa::srd::{Access, Device, DeviceLimits, Gid, QueuePair, Region as MemoryKey, Sizes};
use ofi_testkit::srd;

use super::support::{holds, whole};

const LONG: Duration = Duration::from_secs(30);
const LEN: usize = 8 << 20;

/// One of several devices in a network.
struct Port {
    name: String,
    network: Mutex<Arc<srd::SimulatedDevice>>,
}

impl Port {
    fn new(name: &str, network: &Arc<srd::SimulatedDevice>) -> Arc<Self> {
        let port = Arc::new(Self { name: name.into(), network: Mutex::new(Arc::clone(network)) });
        ofi_efa::srd::add(Arc::clone(&port) as Arc<dyn Device>);
        port
    }

    fn network(&self) -> srd::Handle {
        srd::Handle(Arc::clone(&self.network.lock().unwrap()))
    }
}

// SAFETY: as the network's.
unsafe impl Device for Port {
    fn name(&self) -> &str {
        &self.name
    }

    fn gid(&self) -> Gid {
        self.network().gid()
    }

    fn limits(&self) -> DeviceLimits {
        self.network().limits()
    }

    fn nic(&self) -> Nic {
        self.network().nic()
    }

    unsafe fn register(&self, addr: *mut u8, len: usize, access: Access) -> Result<Box<dyn MemoryKey>> {
        // SAFETY: the caller's promise.
        unsafe { self.network().register(addr, len, access) }
    }

    fn register_dmabuf(
        &self,
        dmabuf: Dmabuf<'_>,
        len: usize,
        iova: u64,
        access: Access,
    ) -> Result<Box<dyn MemoryKey>> {
        self.network().register_dmabuf(dmabuf, len, iova, access)
    }

    fn asks_again(&self) -> bool {
        self.network().asks_again()
    }

    fn open(&self, sizes: Sizes, rnr_retry: Option<u8>) -> Result<Box<dyn QueuePair>> {
        self.network().open(sizes, rnr_retry)
    }
}

/// A network of simulated EFA devices, with the first device.
struct Network(String, Arc<srd::SimulatedDevice>);

impl Network {
    fn new(name: &str) -> Self {
        static PROVIDER: Once = Once::new();
        // A build with every provider has it already.
        PROVIDER.call_once(|| drop(ofi::register_provider(Arc::new(ofi_efa::EfaProvider))));
        let network = Self(name.into(), srd::SimulatedDevice::new(name, srd::Plan::default()));
        network.add(0);
        network
    }

    /// Adds a device.
    fn add(&self, nth: usize) {
        Port::new(&format!("{}{nth}", self.0), &self.1);
    }
}

fn agent(name: &str, rails: &str, interval: Duration) -> Agent {
    with(name, rails, Config { rails_interval: interval, ..Config::default() })
}

fn with(name: &str, rails: &str, config: Config) -> Agent {
    let rails: RailList = rails.parse().unwrap();
    let builder = Agent::builder(name).rails(rails).config(config);
    builder.shared_memory(false).progress_thread(true).open().unwrap()
}

/// Bytes that each path of `agent` has carried.
fn moved(agent: &Agent) -> Vec<(usize, usize, u64)> {
    let paths = agent.paths("bob").unwrap();
    paths.iter().filter(|path| path.up).map(|path| (path.rail, path.remote, path.moved)).collect()
}

struct Pair {
    alice: Agent,
    bob: Agent,
    source: Region<Vec<u8>>,
    target: Region<Vec<u8>>,
}

impl Pair {
    fn new(alice: Agent, bob: Agent) -> Self {
        let (source, target) = (alice.register(vec![0; LEN]).unwrap(), bob.register(vec![0; LEN]).unwrap());
        alice.load(&bob.metadata().unwrap()).unwrap();
        let pair = Self { alice, bob, source, target };
        pair.moves(Way::Write, 1);
        pair
    }

    fn plan(&self, way: Way) -> multirail::Prepared {
        self.alice.prepare("bob", way, &[whole(&self.source).0], &[whole(&self.target).1]).unwrap()
    }

    /// Moves this byte everywhere.
    #[track_caller]
    fn moves(&self, way: Way, byte: u8) {
        let (from, to) =
            if way == Way::Write { (&self.source, &self.target) } else { (&self.target, &self.source) };
        from.write_from(0, &vec![byte; LEN]).unwrap();
        self.plan(way).post(LONG).unwrap().wait().unwrap();
        assert!(holds(to, byte));
    }

    /// Transfers go on until these are alice's paths to bob. Each of them then carries a share, of reads too.
    #[track_caller]
    fn come_to(&self, wanted: &[(usize, usize)]) {
        let plan = self.plan(Way::Write); // one that was prepared before
        let began = Instant::now();
        loop {
            let posted: Vec<_> = (0..4).map(|_| plan.post(LONG).unwrap()).collect();
            posted.iter().for_each(|transfer| transfer.wait().unwrap());
            let mut paths: Vec<_> = moved(&self.alice).iter().map(|path| (path.0, path.1)).collect();
            paths.sort_unstable();
            if paths == wanted {
                break;
            }
            assert!(began.elapsed() < LONG, "{paths:?} instead of {wanted:?}");
        }
        self.share(wanted.len());
        assert_eq!(self.alice.counts().fenced + self.bob.counts().fenced, 0, "every path works");
    }

    /// This number of paths carries transfers, each at least half of an equal share.
    #[track_caller]
    fn share(&self, count: usize) {
        for (way, byte) in [(Way::Write, 2), (Way::Read, 3)] {
            let before = moved(&self.alice);
            let plan = self.plan(way);
            for _ in 0..10 {
                plan.post(LONG).unwrap().wait().unwrap();
            }
            let after = moved(&self.alice);
            let shares: Vec<u64> =
                after.iter().zip(&before).map(|(after, before)| after.2 - before.2).collect();
            let least = 10 * LEN as u64 / count as u64 / 2;
            assert!(
                shares.len() == count && shares.iter().all(|&share| share > least),
                "{way:?}: {shares:?} of {after:?}, {:?}",
                self.alice.paths("bob")
            );
            self.moves(way, byte);
        }
        assert_eq!(self.alice.counts().malformed + self.bob.counts().malformed, 0);
        assert_eq!(self.alice.counts().refused + self.bob.counts().refused, 0);
    }
}

const SOON: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::ZERO;

#[test]
fn a_device_that_appears_at_both_ends_is_used_in_the_sessions_that_are_open() {
    let network = Network::new("both");
    let pair = Pair::new(agent("alice", "efa/both*", SOON), agent("bob", "efa/both*", SOON));
    assert_eq!(moved(&pair.alice).len(), 1);
    network.add(1);
    pair.come_to(&[(0, 0), (1, 1)]);
    network.add(2);
    pair.come_to(&[(0, 0), (1, 1), (2, 2)]);
    assert_eq!((pair.alice.rails().len(), pair.bob.rails().len()), (3, 3), "each once");
}

#[test]
fn a_device_that_appears_at_one_end_is_used() {
    for (alice, bob, wanted) in [(SOON, NEVER, [(0, 0), (1, 0)]), (NEVER, SOON, [(0, 0), (0, 1)])] {
        let name = if alice.is_zero() { "bobs" } else { "alices" };
        let network = Network::new(name);
        let list = format!("efa/{name}*");
        let pair = Pair::new(agent("alice", &list, alice), agent("bob", &list, bob));
        network.add(1);
        pair.come_to(&wanted);
    }
}

/// A session that opens after the rail has it, whatever the metadata says that was loaded before.
#[test]
fn a_session_that_opens_later_uses_it_too() {
    let network = Network::new("then");
    let (alice, bob) = (agent("alice", "efa/then*", SOON), agent("bob", "efa/then*", SOON));
    let (source, target) = (alice.register(vec![0; LEN]).unwrap(), bob.register(vec![0; LEN]).unwrap());
    alice.load(&bob.metadata().unwrap()).unwrap();
    network.add(1);
    let began = Instant::now();
    while alice.rails().len() + bob.rails().len() < 4 {
        assert!(began.elapsed() < LONG, "the rails are opened");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pair = Pair { alice, bob, source, target };
    pair.moves(Way::Write, 1);
    pair.come_to(&[(0, 0), (1, 1)]);
}

/// The number of an agent's queue pair on a rail.
fn queue_pair(agent: &Agent, rail: usize) -> u16 {
    let address = &Metadata::parse(&agent.metadata().unwrap()).unwrap().rails[rail].address;
    u16::from_le_bytes([address[16], address[17]])
}

/// Four rails of which one is taken away in the middle of transfers and brought back.
#[test]
fn three_of_four_rails_lose_nothing_and_the_fourth_carries_again() {
    const GONE: usize = 2;
    let network = Network::new("four");
    (1..4).for_each(|nth| network.add(nth));
    let config = || Config { stall_timeout: Duration::from_secs(1), ..Config::default() };
    let pair = Pair::new(with("alice", "efa/four*", config()), with("bob", "efa/four*", config()));
    let all = [(0, 0), (1, 1), (2, 2), (3, 3)];
    pair.come_to(&all);
    let sources: Vec<_> = (0..8).map(|nth| pair.alice.register(vec![nth + 10; LEN]).unwrap()).collect();
    let targets: Vec<_> = sources.iter().map(|_| pair.bob.register(vec![0; LEN]).unwrap()).collect();
    pair.alice.load(&pair.bob.metadata().unwrap()).unwrap();
    let of_gone = || {
        let paths = pair.alice.paths("bob").unwrap();
        paths.iter().find(|path| path.rail == GONE).map_or(0, |path| path.moved)
    };
    let before = of_gone();
    let post = |(source, target): (&Region<Vec<u8>>, &Region<Vec<u8>>)| {
        let plan = pair.alice.prepare("bob", Way::Write, &[whole(source).0], &[whole(target).1]).unwrap();
        plan.post_notify(&target.id().to_le_bytes(), LONG).unwrap()
    };
    let (first, rest) = (sources.iter().zip(&targets).next().unwrap(), sources.iter().zip(&targets).skip(1));
    let mut transfers = vec![post(first)];
    let posted = Instant::now();
    while of_gone() == before {
        assert!(posted.elapsed() < LONG, "the rail carries a part");
        std::thread::yield_now();
    }
    transfers.extend(rest.map(post));
    network.1.mute(&[&pair.alice, &pair.bob].map(|agent| queue_pair(agent, GONE)));
    let mut told: Vec<_> = targets
        .iter()
        .map(|_| pair.bob.wait_notification(LONG).unwrap().expect("a notification").bytes)
        .collect();
    transfers.iter().for_each(|transfer| transfer.wait().unwrap());
    told.sort_unstable();
    let mut wanted: Vec<_> = targets.iter().map(|target| target.id().to_le_bytes().to_vec()).collect();
    wanted.sort_unstable();
    assert_eq!(told, wanted, "each once");
    assert!((10..18).zip(&targets).all(|(byte, target)| holds(target, byte)), "nothing is lost");
    assert!(pair.alice.counts().fenced > 0, "{:?}", pair.alice.counts());
    pair.share(3);
    network.1.mend();
    let mended = Instant::now();
    while moved(&pair.alice).len() < 4 {
        assert!(mended.elapsed() < LONG, "{:?}", pair.alice.paths("bob"));
        pair.moves(Way::Write, 4);
    }
    pair.share(4);
    assert!((10..18).zip(&targets).all(|(byte, target)| holds(target, byte)), "no write came late");
}

/// A device that is removed in the middle of transfers takes its rail for good; once it is back, it has a new one.
#[test]
fn a_device_that_was_removed_is_used_again_when_it_is_back() {
    for (name, list) in [("back", "efa/back*"), ("home", "efa/home0-rdm,efa/home1-rdm")] {
        let _network = Network::new(name);
        let second = format!("{name}1");
        let simulated = || srd::SimulatedDevice::new(&second, srd::Plan::default());
        let port = Port::new(&second, &simulated());
        let pair = Pair::new(agent("alice", list, SOON), agent("bob", list, SOON));
        pair.come_to(&[(0, 0), (1, 1)]);
        port.network().0.die();
        let removed = Instant::now();
        while moved(&pair.alice).len() > 1 || removed.elapsed() < 4 * SOON {
            assert!(removed.elapsed() < LONG, "{:?}", pair.alice.paths("bob"));
            pair.moves(Way::Write, 4);
        }
        assert_eq!((pair.alice.rails().len(), pair.bob.rails().len()), (2, 2), "it is not back yet");
        *port.network.lock().unwrap() = simulated();
        let back = Instant::now();
        let carries = |path: &(usize, usize, u64)| (path.0, path.1) == (2, 2) && path.2 > 0;
        while !moved(&pair.alice).iter().any(carries) {
            assert!(back.elapsed() < LONG, "{:?}", pair.alice.paths("bob"));
            pair.moves(Way::Write, 5);
        }
        pair.share(2);
        assert_eq!((pair.alice.rails().len(), pair.bob.rails().len()), (3, 3), "it is opened once");
    }
}

/// Nobody looks for what a list of names does not name.
#[test]
fn names_and_an_interval_of_zero_open_nothing_later() {
    let network = Network::new("only");
    let named = agent("alice", "efa/only0-rdm", SOON);
    let never = agent("bob", "efa/only*", NEVER);
    network.add(1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!((named.rails().len(), never.rails().len()), (1, 1));
}

/// What a device costs that does not open is bounded, and dropping the agent waits for nothing.
#[test]
fn an_agent_that_looks_for_devices_closes_at_once() {
    let _network = Network::new("gone");
    let agent = agent("alice", "efa/gone*", Duration::from_secs(3600));
    let began = Instant::now();
    drop(agent);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}
