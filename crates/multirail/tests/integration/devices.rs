//! Rails of devices that go mute: two agents with two rails each on a simulated device, whose links lose and report
//! nothing, but deliver held packets only when they are repaired. By then the transfers have ended over the other rail,
//! and the memory was rewritten.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use multirail::engine::Counts;
use multirail::wire::Metadata;
use multirail::{Agent, Config, Region, Way};
use ofi::{Errno, Hints};
use ofi_testkit::{rc, srd};

use super::support::{holds, whole};

const LONG: Duration = Duration::from_secs(60);
/// A transfer of two rails, in many parts.
const LEN: usize = 4 << 20;
/// After this time without an end, a path is severed or fenced.
const STALL: Duration = Duration::from_secs(1);
/// The rail that goes mute, at both ends.
const MUTE: usize = 1;

fn verbs(name: &'static str) -> (Arc<rc::SimulatedDevice>, Hints) {
    static PROVIDER: Once = Once::new();
    // A build with every provider has it already.
    PROVIDER.call_once(|| drop(ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider))));
    let device = rc::SimulatedDevice::new(name, rc::Plan::default());
    ofi_verbs::rc::add(Arc::new(rc::Handle(Arc::clone(&device))));
    (device, Hints::new().provider("verbs").addr_format(ofi::AddrFormat::SockaddrIn).domain(name))
}

fn agent(name: &str, hints: &Hints, config: Config) -> Agent {
    let config = Config { stall_timeout: STALL, largest_access: 256 << 10, ..config };
    let builder = Agent::builder(name).config(config).shared_memory(false).progress_thread(true);
    builder.rail(hints.clone()).rail(hints.clone()).open().unwrap()
}

/// The address of a rail, in its provider's format.
fn address(agent: &Agent, rail: usize) -> Vec<u8> {
    Metadata::parse(&agent.metadata().unwrap()).unwrap().rails[rail].address.clone()
}

fn socket(agent: &Agent, rail: usize) -> SocketAddr {
    match address(agent, rail)[..] {
        [_, _, high, low, a, b, c, d, ..] => {
            (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low])).into()
        }
        ref other => panic!("an address of verbs: {other:?}"),
    }
}

fn least_moved(agent: &Agent) -> u64 {
    agent.paths("bob").unwrap().iter().map(|path| path.moved).min().unwrap()
}

/// Transfers of two agents, one of whose rails goes mute.
struct Cut {
    alice: Agent,
    bob: Agent,
    source: Region<Vec<u8>>,
    sink: Region<Vec<u8>>,
    target: Region<Vec<u8>>,
    origin: Region<Vec<u8>>,
}

impl Cut {
    fn new(alice: Agent, bob: Agent) -> Self {
        let [source, sink] = [1, 0].map(|byte| alice.register(vec![byte; LEN]).unwrap());
        let [target, origin] = [0, 2].map(|byte| bob.register(vec![byte; LEN]).unwrap());
        alice.load(&bob.metadata().unwrap()).unwrap();
        let cut = Self { alice, bob, source, sink, target, origin };
        // Both rails are measured, and the keys are leased.
        for _ in 0..4 {
            cut.write().post(LONG).unwrap().wait().unwrap();
            cut.read().post(LONG).unwrap().wait().unwrap();
        }
        assert!(least_moved(&cut.alice) > 0, "both rails are used");
        cut
    }

    fn write(&self) -> multirail::Prepared {
        self.alice.prepare("bob", Way::Write, &[whole(&self.source).0], &[whole(&self.target).1]).unwrap()
    }

    fn read(&self) -> multirail::Prepared {
        self.alice.prepare("bob", Way::Read, &[whole(&self.sink).0], &[whole(&self.origin).1]).unwrap()
    }

    /// A write whose parts move while one rail is mute. Then the memory is written anew.
    fn written(&self, is_quiet: bool) {
        self.source.write_from(0, &vec![3; LEN]).unwrap();
        let writing = self.write().post_notify(b"written", LONG).unwrap();
        assert_eq!(self.bob.wait_notification(LONG).unwrap().unwrap().bytes, b"written");
        writing.wait().unwrap();
        assert!(holds(&self.target, 3));
        assert!(!is_quiet || writing.wait_quiet(LONG).unwrap(), "no rail uses it");
        // By the other rail, and by the programs.
        self.source.write_from(0, &vec![5; LEN]).unwrap();
        self.write().post(LONG).unwrap().wait().unwrap();
        assert!(holds(&self.target, 5));
        self.target.write_from(0, &vec![7; LEN]).unwrap();
        self.source.write_from(0, &vec![9; LEN]).unwrap();
    }

    /// The same of a read.
    fn read_back(&self) {
        self.origin.write_from(0, &vec![4; LEN]).unwrap();
        self.sink.write_from(0, &vec![0; LEN]).unwrap();
        let reading = self.read().post(LONG).unwrap();
        reading.wait().unwrap();
        assert!(holds(&self.sink, 4) && reading.wait_quiet(LONG).unwrap());
        self.sink.write_from(0, &vec![8; LEN]).unwrap();
        self.origin.write_from(0, &vec![6; LEN]).unwrap();
    }

    fn counts(&self) -> Counts {
        let counts = self.alice.counts();
        assert!(counts.fenced > 0 && counts.moved > 0, "{counts:?}");
        counts
    }

    /// After the link was mended: nothing comes late, and both rails work again.
    fn mended(&self) {
        let mended = Instant::now();
        while self.alice.under_way().0 > 0 {
            assert!(mended.elapsed() < LONG, "{:?} under way", self.alice.under_way());
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(100)); // a late write would be made by the device's thread
        assert!(holds(&self.target, 7), "no write came late");
        let before = least_moved(&self.alice);
        while least_moved(&self.alice) == before {
            assert!(mended.elapsed() < LONG, "{:?}", self.alice.paths("bob").unwrap());
            self.write().post(LONG).unwrap().wait().unwrap();
        }
        assert!(holds(&self.target, 9));
    }
}

#[test]
fn the_parts_on_a_mute_rail_of_verbs_move_and_come_to_nothing_late() {
    let (device, hints) = verbs("mute0");
    let cut = Cut::new(agent("alice", &hints, Config::default()), agent("bob", &hints, Config::default()));
    device.mute(&[socket(&cut.alice, MUTE), socket(&cut.bob, MUTE)]);
    cut.written(true);
    assert!(device.late() > 0, "writes have left the device");
    let counts = cut.counts();
    assert_eq!(device.mend(), 0, "bob has ended the connection that they are for");
    cut.mended();
    println!("write {counts:?}");

    device.mute(&[socket(&cut.alice, MUTE), socket(&cut.bob, MUTE)]);
    cut.read_back();
    assert!(cut.counts().fenced > counts.fenced);
    device.mend();
    std::thread::sleep(Duration::from_millis(100));
    assert!(holds(&cut.sink, 8), "no read came late");
}

fn efa(name: &'static str) -> (Arc<srd::SimulatedDevice>, Hints) {
    static PROVIDER: Once = Once::new();
    // A build with every provider has it already.
    PROVIDER.call_once(|| drop(ofi::register_provider(Arc::new(ofi_efa::EfaProvider))));
    let device = srd::SimulatedDevice::new(name, srd::Plan::default());
    ofi_efa::srd::add(Arc::new(srd::Handle(Arc::clone(&device))));
    (device, Hints::new().provider("efa").domain(format!("{name}-rdm")))
}

fn queue_pair(agent: &Agent, rail: usize) -> u16 {
    let address = address(agent, rail);
    u16::from_le_bytes([address[16], address[17]])
}

#[test]
fn the_parts_on_a_mute_rail_of_efa_move_and_come_to_nothing_late() {
    let (device, hints) = efa("mute2");
    let cut = Cut::new(agent("alice", &hints, Config::default()), agent("bob", &hints, Config::default()));
    let rails = [&cut.alice, &cut.bob].map(|agent| queue_pair(agent, MUTE));
    device.mute(&rails);
    cut.written(false);
    let counts = cut.counts();
    assert!(device.flying() > 0, "the device has them still");
    device.mend();
    cut.mended();
    println!("write {counts:?}");

    device.mute(&rails);
    cut.read_back();
    assert!(cut.counts().fenced > counts.fenced);
    assert!(device.flying() > 0, "the device has them still");
    device.mend();
    while device.flying() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(holds(&cut.sink, 8), "no read came late");
}

/// A transfer of `from` to `to`, under the keys that `from` has by then.
fn wrote(from: &Agent, source: &Region<Vec<u8>>, to: &Region<Vec<u8>>) {
    from.prepare("bob", Way::Write, &[whole(source).0], &[whole(to).1])
        .and_then(|plan| plan.post(LONG)?.wait())
        .unwrap();
}

/// More than may be registered again for a session: the sessions share a second registration. It is closed for both
/// when one of them is shut out, and the other asks for new keys.
#[test]
fn the_parts_on_a_mute_rail_of_efa_move_under_keys_that_peers_share() {
    let (device, hints) = efa("mute3");
    let bob = agent("bob", &hints, Config { most_leased: LEN as u64 - 1, ..Config::default() });
    let registered = device.registrations();
    let cut = Cut::new(agent("alice", &hints, Config::default()), bob);
    let shared = device.registrations();
    assert!(shared > registered);
    let carol = agent("carol", &hints, Config::default());
    let other = carol.register(vec![1; LEN]).unwrap();
    carol.load(&cut.bob.metadata().unwrap()).unwrap();
    for _ in 0..4 {
        wrote(&carol, &other, &cut.target);
    }
    let rails = [&cut.alice, &cut.bob].map(|agent| queue_pair(agent, MUTE));
    device.mute(&rails);
    cut.written(false);
    let counts = cut.counts();
    assert!(device.flying() > 0, "the device has them still");
    device.mend();
    cut.mended();
    println!("{counts:?}");
    other.write_from(0, &vec![11; LEN]).unwrap();
    wrote(&carol, &other, &cut.target);
    assert!(holds(&cut.target, 11));
    let carols = carol.counts();
    assert_eq!((carols.fenced, carols.moved), (0, 0), "carol has been refused once, and is told new keys");
}

/// Nothing may be registered again: regions are written under their own keys, which no fence closes.
#[test]
fn what_is_not_leased_on_a_mute_rail_of_efa_fails() {
    let (device, hints) = efa("mute4");
    let bob = agent("bob", &hints, Config { most_leased: 0, ..Config::default() });
    let cut = Cut::new(agent("alice", &hints, Config::default()), bob);
    device.mute(&[&cut.alice, &cut.bob].map(|agent| queue_pair(agent, MUTE)));
    let error = cut.write().post(LONG).unwrap().wait().unwrap_err();
    assert_eq!(error.errno(), Errno::ETIMEDOUT, "{error}");
    assert_eq!(cut.alice.counts().moved, 0);
    device.mend();
}
