//! Many ends of flows that one thread drives.

use std::fs;
use std::time::{Duration, Instant};

use mxl::{BatchHints, GrainWriter, Wait};
use mxl_fabrics::{Driven, Engine, Initiator, PeerState, Provider, Received, Target, Transfer};

use super::common::{ANY, Folder, LONG, byte_of, camera, microphone};

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Tcp];

struct Pair {
    initiator: Driven<Initiator>,
    target: Driven<Target>,
    writer: GrainWriter,
}

impl Pair {
    fn open((near, far): (&Folder, &Folder), engine: &Engine, provider: Provider) -> Self {
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(target.info()).unwrap();
        let target = Driven::start_on(engine, target).unwrap();
        Self { initiator: Driven::start_on(engine, initiator).unwrap(), target, writer }
    }

    /// Waits until both ends are connected: a grain that is sent before is lost.
    fn connected(&self) {
        assert_eq!(self.target.wait(LONG).unwrap(), Some(Received::Connected));
        let is_connected = |initiator: &mut Initiator| {
            initiator.targets().all(|(_, state, _)| state == PeerState::Connected)
        };
        let begin = Instant::now();
        while !self.initiator.with(is_connected) {
            assert!(begin.elapsed() < LONG, "the initiator is not connected");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn send(&self, index: u64) {
        let mut grain = self.writer.open(index).unwrap();
        let bytes = vec![byte_of(index); grain.len()];
        grain.write(0, &bytes).unwrap();
        grain.commit().unwrap();
        self.initiator.with(|initiator| initiator.send(index)).unwrap();
    }

    /// Waits for the grain at both ends.
    fn arrived(&self, far: &Folder, index: u64) {
        let begin = Instant::now();
        while self.target.wait(LONG).unwrap() != Some(Received::Grain { index, slices: 40, invalid: false }) {
            assert!(begin.elapsed() < LONG, "grain {index}");
        }
        let reader = far.domain().read_grains(self.writer.id()).unwrap();
        let bytes = reader.read(index, Wait::Not).unwrap().to_vec().unwrap();
        assert!(bytes.iter().all(|&byte| byte == byte_of(index)), "grain {index}");
        while !matches!(self.initiator.wait(LONG).unwrap(), Some(Transfer::Published { index: of, .. }) if of == index)
        {
            assert!(begin.elapsed() < LONG, "grain {index}");
        }
    }
}

/// The processor time of each thread of this name, in ticks.
fn threads(name: &str) -> Vec<u64> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats
        .filter_map(|stat| {
            let (head, rest) = stat.rsplit_once(')')?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
            head.ends_with(&format!("({name}")).then_some(ticks)
        })
        .collect()
}

#[test]
fn one_thread_carries_many_flows() {
    let (near, far) = (Folder::new(), Folder::new());
    let engine = Engine::start().unwrap();
    let open = |at: usize| Pair::open((&near, &far), &engine, PROVIDERS[at % 2]);
    let mut pairs: Vec<_> = (0..12).map(open).collect();
    pairs.iter().for_each(Pair::connected);
    for index in 100..110 {
        pairs.iter().for_each(|pair| pair.send(index));
        pairs.iter().for_each(|pair| pair.arrived(&far, index));
    }
    assert_eq!((threads("mxl-engine").len(), threads("mxl-fabrics").len()), (1, 0));
    // Ends go away and come back, and the others do not notice.
    let Pair { initiator, target, writer } = pairs.swap_remove(0);
    let (mut initiator, target) = (initiator.stop(), target.stop());
    assert!(initiator.poll().is_ok());
    let begin = Instant::now();
    drop(pairs.swap_remove(0));
    pairs.iter().for_each(|pair| pair.send(110));
    pairs.iter().for_each(|pair| pair.arrived(&far, 110));
    let back = Pair {
        initiator: Driven::start_on(&engine, initiator).unwrap(),
        target: Driven::start(target).unwrap(),
        writer,
    };
    back.send(111);
    back.arrived(&far, 111);
    assert!(begin.elapsed() < LONG);
    // The thread ends with the last of its ends.
    drop(engine);
    pairs.iter().for_each(|pair| pair.send(112));
    pairs.iter().for_each(|pair| pair.arrived(&far, 112));
    drop((pairs, back));
    assert_eq!(threads("mxl-engine").len(), 0);
}

/// An end that nobody drives otherwise finds its peer, and notices its end.
#[test]
fn an_end_that_sleeps_for_long_notices_its_peer() {
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let engine = Engine::start().unwrap();
        let pair = Pair::open((&near, &far), &engine, provider);
        pair.connected();
        // Long enough for sleeps of seconds, which an event ends at once.
        std::thread::sleep(Duration::from_millis(2600));
        let begin = Instant::now();
        pair.send(7);
        pair.arrived(&far, 7);
        let taken = begin.elapsed();
        assert!(taken < Duration::from_millis(1500), "{provider}: {taken:?}"); // a lost wake-up takes 2.5 s
        let Pair { initiator, target, .. } = pair;
        drop(target);
        while !matches!(initiator.wait(LONG).unwrap().unwrap(), Transfer::Disconnected { .. }) {}
    }
}

/// Resident memory of this process.
fn resident() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Regression test: an idle end took 155 KiB: most of it for events that never come, and, in programs that had closed
/// an end before, 128 KiB of its receives. It measures the whole process: run it with nextest.
#[test]
fn an_idle_end_takes_little_memory() {
    const ENDS: usize = 200;
    const EACH: usize = 64 << 10;
    let far = Folder::new();
    let open = |_| Target::open(&far.domain(), &microphone(2), Provider::Shm, ANY, None).unwrap();
    drop((0..5).map(open).collect::<Vec<_>>());
    let before = resident();
    let ends: Vec<_> = (0..ENDS).map(open).collect();
    let each = (resident() - before) / ENDS;
    println!("{each} bytes for each of {} idle ends", ends.len());
    assert!(each <= EACH, "{each} bytes for each");
}

/// Regression test: each end had a thread of its own that woke up fifty times in a second.
#[test]
fn idle_ends_cost_next_to_nothing() {
    let far = Folder::new();
    let engine = Engine::start().unwrap();
    let open = |_| {
        let target = Target::open(&far.domain(), &camera(), Provider::Shm, ANY, None).unwrap();
        Driven::start_on(&engine, target).unwrap()
    };
    let ends: Vec<_> = (0..100).map(open).collect();
    // Their sleeps grow, on a busy machine later: one window of four seconds has to cost a hundredth of a core, in
    // ticks of 10 ms, where a hundred threads took a tenth and more.
    let mut before = threads("mxl-engine");
    let windows: Vec<_> = (0..8)
        .map(|_| {
            std::thread::sleep(Duration::from_secs(4));
            let after = threads("mxl-engine");
            let cost = after[0] - before[0];
            before = after;
            cost
        })
        .take_while(|cost| *cost > 4)
        .collect();
    assert!(windows.len() < 8, "ticks in each of eight windows: {windows:?}");
    assert_eq!(ends.len(), 100);
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

/// Each idle end took 7 descriptors, and 5 mappings beside its grains: 10,000 need at most 6 of each, under a limit of
/// 65,536 descriptors and the default of 65,530 mappings. It counts those of the process: run it with nextest.
#[test]
fn ten_thousand_idle_ends_fit_into_65536_descriptors_and_the_default_of_mappings() {
    const ENDS: usize = 50;
    let (near, far) = (Folder::new(), Folder::new());
    let engine = Engine::start().unwrap();
    let (picture, sound) = (camera(), microphone(2));
    let _writers = (
        near.domain().create_grains(&picture, &BatchHints::default()).unwrap(),
        near.domain().create_samples(&sound, &BatchHints::default()).unwrap(),
    );
    for definition in [&picture, &sound] {
        let target = |_| {
            let target = Target::open(&far.domain(), definition, Provider::Shm, ANY, None).unwrap();
            Driven::start_on(&engine, target).unwrap()
        };
        let initiator = |_| {
            let initiator = Initiator::open(&near.domain(), definition.id, Provider::Shm, ANY).unwrap();
            Driven::start_on(&engine, initiator).unwrap()
        };
        let _first = (target(0), initiator(0));
        let counts = || [descriptors(), mappings()];
        let before = counts();
        let targets: Vec<_> = (0..ENDS).map(target).collect();
        let between = counts();
        let initiators: Vec<_> = (0..ENDS).map(initiator).collect();
        let after = counts();
        // The process has allocated memory meanwhile.
        let each = |at: usize, from: [usize; 2], to: [usize; 2]| {
            (to[at] - from[at]).saturating_sub(10).div_ceil(ENDS)
        };
        for (what, from, to) in [("a target", before, between), ("an initiator", between, after)] {
            let (descriptors, mappings) = (each(0, from, to), each(1, from, to));
            println!("{what} of {}: {descriptors} descriptors, {mappings} mappings", definition.label);
            assert!(
                descriptors <= 5 && mappings <= 5,
                "{what}: {descriptors} descriptors, {mappings} mappings"
            );
        }
        drop((targets, initiators));
    }
}
