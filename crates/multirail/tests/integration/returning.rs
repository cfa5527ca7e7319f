//! Rails of devices that are gone for a while, at the start of the agents or later: two agents with a rail on each of
//! four simulated devices, each of which is a network of its own.

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use multirail::{Agent, Config, Region, Transfer, Way};
use ofi_testkit::srd;

use super::support::{holds, whole};

const LONG: Duration = Duration::from_secs(60);
const LEN: usize = 4 << 20;
const DEVICES: usize = 4;

fn devices(name: &str) -> Vec<Arc<srd::SimulatedDevice>> {
    static PROVIDER: Once = Once::new();
    // A build with every provider has it already.
    PROVIDER.call_once(|| drop(ofi::register_provider(Arc::new(ofi_efa::EfaProvider))));
    let device = |nth| {
        let device = srd::SimulatedDevice::new(&format!("{name}{nth}"), srd::Plan::default());
        ofi_efa::srd::add(Arc::new(srd::Handle(Arc::clone(&device))));
        device
    };
    (0..DEVICES).map(device).collect()
}

/// An agent with a rail on each of the devices that open.
fn agent(name: &str, devices: &str) -> Agent {
    let config = Config {
        largest_access: 256 << 10,
        reopen_interval: Duration::from_millis(100),
        stall_timeout: Duration::from_secs(5),
        ..Config::default()
    };
    let rails = format!("efa/{devices}?-rdm").parse().unwrap();
    let builder = Agent::builder(name).rails(rails).config(config).shared_memory(false).progress_thread(true);
    builder.open().unwrap()
}

struct Pair {
    alice: Agent,
    bob: Agent,
    source: Region<Vec<u8>>,
    sink: Region<Vec<u8>>,
    target: Region<Vec<u8>>,
    origin: Region<Vec<u8>>,
}

impl Pair {
    fn new(devices: &str) -> Self {
        let (alice, bob) = (agent("alice", devices), agent("bob", devices));
        let [source, sink] = [1, 0].map(|byte| alice.register(vec![byte; LEN]).unwrap());
        let [target, origin] = [0, 2].map(|byte| bob.register(vec![byte; LEN]).unwrap());
        alice.load(&bob.metadata().unwrap()).unwrap();
        Self { alice, bob, source, sink, target, origin }
    }

    fn write(&self) -> multirail::Prepared {
        self.alice.prepare("bob", Way::Write, &[whole(&self.source).0], &[whole(&self.target).1]).unwrap()
    }

    fn read(&self) -> multirail::Prepared {
        self.alice.prepare("bob", Way::Read, &[whole(&self.sink).0], &[whole(&self.origin).1]).unwrap()
    }

    /// Plans that were prepared before a rail came are used after it, too.
    fn plans(&self) -> [multirail::Prepared; 2] {
        [self.write(), self.read()]
    }

    /// The numbers of alice's rails of the paths that work, and the bytes that these have moved.
    fn paths(&self) -> Vec<(usize, usize, u64)> {
        let paths = self.alice.paths("bob").unwrap();
        paths.iter().filter(|path| path.up).map(|path| (path.rail, path.remote, path.moved)).collect()
    }

    /// Writes, reads, or both until this many paths work and each has moved more than before.
    #[track_caller]
    fn until_paths(&self, plans: &[multirail::Prepared], count: usize) {
        let (began, before) = (Instant::now(), self.paths());
        let moved =
            |at: (usize, usize)| before.iter().find(|path| (path.0, path.1) == at).map_or(0, |path| path.2);
        loop {
            let posted: Vec<Transfer> = plans.iter().map(|plan| plan.post(LONG).unwrap()).collect();
            posted.iter().for_each(|transfer| transfer.wait().unwrap());
            let paths = self.paths();
            let is_used = |path: &(usize, usize, u64)| path.2 > moved((path.0, path.1));
            if paths.len() == count && paths.iter().all(is_used) {
                return;
            }
            assert!(began.elapsed() < LONG, "{count} paths: {:?}", self.alice.paths("bob").unwrap());
        }
    }
}

/// Three of four devices open at the start. The fourth is used as soon as it is there, by plans of before, in both
/// directions.
#[test]
fn a_device_that_is_there_later_is_used() {
    let devices = devices("late");
    devices[3].die();
    let pair = Pair::new("late");
    assert_eq!((pair.alice.rails().len(), pair.bob.rails().len()), (3, 3));
    let plans = pair.plans();
    pair.until_paths(&plans, 3);
    devices[3].revive();
    pair.until_paths(&plans[..1], 4);
    pair.until_paths(&plans[1..], 4);
    assert!(holds(&pair.target, 1) && holds(&pair.sink, 2));
    assert_eq!((pair.alice.rails().len(), pair.bob.rails().len()), (4, 4));
}

/// A device goes away in the midst of transfers, which all succeed, and is used again when it is back.
#[test]
fn a_device_that_goes_and_comes_back_costs_no_transfer() {
    let devices = devices("back");
    let pair = Pair::new("back");
    let plans = pair.plans();
    pair.until_paths(&plans, 4);
    for (byte, device) in [(3, &devices[1]), (4, &devices[2]), (5, &devices[1])] {
        pair.source.write_from(0, &vec![byte; LEN]).unwrap();
        let writes: Vec<Transfer> = (0..20).map(|_| plans[0].post(LONG).unwrap()).collect();
        let reads: Vec<Transfer> = (0..20).map(|_| plans[1].post(LONG).unwrap()).collect();
        writes[2].wait().unwrap();
        device.die();
        for transfer in writes.iter().chain(&reads) {
            transfer.wait().unwrap();
        }
        assert!(holds(&pair.target, byte) && holds(&pair.sink, 2));
        pair.until_paths(&plans, 3);
        device.revive();
        pair.until_paths(&plans, 4);
    }
    assert_eq!(pair.alice.counts().malformed + pair.bob.counts().malformed, 0);
}
