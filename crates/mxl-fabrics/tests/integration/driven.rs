//! Ends of a flow that are driven by their own threads.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::DirEntry;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::{Duration, Instant};

use mxl::{BatchHints, FlowDefinition, GrainWriter, Rational, Wait};
use mxl_fabrics::{Driven, Initiator, Provider, Received, Target, Transfer};

use super::common::{Folder, LONG, byte_of, camera};

const PROVIDERS: [Provider; 2] = [Provider::Shm, Provider::Tcp];
const ANY: (Option<&str>, Option<&str>) = (None, None);

/// Both ends, driven, and the source flow.
struct Ends {
    initiator: Driven<Initiator>,
    target: Driven<Target>,
    writer: GrainWriter,
    near: Folder,
    far: Folder,
}

impl Ends {
    fn connected(provider: Provider) -> Self {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = camera();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let target = Driven::start(target).unwrap();
        let initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        let initiator = Driven::start(initiator).unwrap();
        let info = target.with(|target| target.info().clone());
        initiator.with(|initiator| initiator.add(&info)).unwrap();
        assert_eq!(target.wait(LONG).unwrap(), Some(Received::Connected), "{provider}");
        let connected = initiator.wait(LONG).unwrap();
        assert!(matches!(connected, Some(Transfer::Connected { .. })), "{provider}: {connected:?}");
        Self { initiator, target, writer, near, far }
    }

    fn send(&self, index: u64) {
        let mut grain = self.writer.open(index).unwrap();
        let bytes = vec![byte_of(index); grain.len()];
        grain.write(0, &bytes).unwrap();
        grain.commit().unwrap();
        self.initiator.with(|initiator| initiator.send(index)).unwrap();
    }

    fn check(&self, index: u64) {
        let reader = self.far.domain().read_grains(self.writer.id()).unwrap();
        let bytes = reader.read(index, Wait::Not).unwrap().to_vec().unwrap();
        assert!(bytes.iter().all(|&byte| byte == byte_of(index)), "grain {index}");
    }
}

/// One test at a time: one of them measures the processor time of the process's threads.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The index of a whole grain.
fn grain(event: Received) -> u64 {
    let Received::Grain { index, invalid: false, .. } = event else { panic!("{event:?}") };
    index
}

/// Lines are committed by a thread that is faster than the target's. However far it is ahead, no commit is mistaken for
/// another.
#[test]
fn every_line_of_a_hasty_initiator_arrives() {
    let _alone = alone();
    const LINES: u16 = 2000;
    for provider in PROVIDERS {
        let (near, far) = (Folder::new(), Folder::new());
        let definition = FlowDefinition::video("camera", 192, LINES.into(), Rational::new(50, 1)).unwrap();
        let writer = near.domain().create_grains(&definition, &BatchHints::default()).unwrap().writer;
        let target = Target::open(&far.domain(), &definition, provider, ANY, None).unwrap();
        let target = Driven::start(target).unwrap();
        let mut initiator = Initiator::open(&near.domain(), definition.id, provider, ANY).unwrap();
        initiator.add(&target.with(|target| target.info().clone())).unwrap();
        assert!(initiator.connect(LONG).unwrap());
        let reader = far.domain().read_grains(definition.id).unwrap();
        for index in 7000..7005 {
            let mut grain = writer.open(index).unwrap();
            let line = grain.len() / usize::from(LINES);
            for at in 0..LINES {
                let bytes = vec![byte_of(index + u64::from(at)); line];
                grain.write(usize::from(at) * line, &bytes).unwrap();
                grain.commit_slices(at + 1).unwrap();
                initiator.send_slices(index, at, at + 1).unwrap();
                initiator.poll().unwrap();
            }
            assert!(
                initiator.settle(LONG).unwrap(),
                "{provider}: {:?}",
                target.with(|target| target.stats())
            );
            let grain = reader.read(index, Wait::For(LONG)).unwrap().to_vec().unwrap();
            for (at, bytes) in (0..).zip(grain.chunks(line)) {
                let byte = byte_of(index + at);
                assert!(bytes.iter().all(|found| *found == byte), "{provider}: line {at} of grain {index}");
            }
        }
        let stats = target.with(|target| target.stats());
        assert_eq!((stats.nonsense, stats.lost), (0, 0), "{provider}");
    }
}

#[test]
fn grains_arrive_though_nobody_polls() {
    let _alone = alone();
    for provider in PROVIDERS {
        let ends = Ends::connected(provider);
        for index in 1000..1030 {
            ends.send(index);
            assert_eq!(grain(ends.target.wait(LONG).unwrap().unwrap()), index, "{provider}");
            ends.check(index);
            let event = || ends.initiator.wait(LONG).unwrap();
            let done = event();
            assert!(
                matches!(done, Some(Transfer::Done { index: of, .. }) if of == index),
                "{provider}: {done:?}"
            );
            let published = event();
            assert!(
                matches!(published, Some(Transfer::Published { index: of, .. }) if of == index),
                "{provider}: {published:?}"
            );
        }
        assert_eq!(ends.target.wait(Duration::from_millis(1)).unwrap(), None, "{provider}");
        assert_eq!(ends.near.domain().definition(ends.writer.id()).unwrap().id, ends.writer.id());
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls a future only when it is woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let (mut future, begin) = (pin!(future), Instant::now());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park_timeout(LONG),
        }
        assert!(begin.elapsed() < LONG, "the task was not woken");
    }
}

#[test]
fn events_are_awaited() {
    let _alone = alone();
    for provider in PROVIDERS {
        let ends = Ends::connected(provider);
        std::thread::scope(|scope| {
            let heard = scope.spawn(|| {
                let events = async { [ends.target.next().await, ends.target.next().await] };
                block_on(events).map(|event| grain(event.unwrap()))
            });
            std::thread::sleep(Duration::from_millis(20));
            ends.send(7);
            ends.send(8);
            assert_eq!(heard.join().unwrap(), [7, 8], "{provider}");
        });
    }
}

/// The processor time of each thread of this process, in nanoseconds.
fn used() -> HashMap<OsString, u64> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let used = |thread: DirEntry| {
        let stat = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        Some((thread.file_name(), stat.split(' ').next()?.parse().ok()?))
    };
    threads.filter_map(|thread| used(thread.ok()?)).collect()
}

/// The processor time of those threads since.
fn used_since(before: &HashMap<OsString, u64>) -> Duration {
    let after = used();
    let since = |(thread, then): (&OsString, &u64)| Some(after.get(thread)?.saturating_sub(*then));
    Duration::from_nanos(before.iter().filter_map(since).sum())
}

#[test]
fn threads_sleep_while_nothing_happens() {
    let _alone = alone();
    for provider in PROVIDERS {
        let ends = Ends::connected(provider);
        ends.send(1);
        assert_eq!(grain(ends.target.wait(LONG).unwrap().unwrap()), 1);
        std::thread::sleep(Duration::from_millis(50));
        let before = used();
        std::thread::sleep(Duration::from_millis(1000));
        let idle = used_since(&before);
        assert!(idle < Duration::from_millis(100), "{provider}: {idle:?} of a second");
    }
}

/// How often threads of this process went to sleep, the calling one included.
fn sleeps() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let sleeps = |thread: DirEntry| {
        let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
        line.trim().parse::<u64>().ok()
    };
    threads.filter_map(|thread| sleeps(thread.ok()?)).sum()
}

/// What ends or arrives is announced, so nobody looks for it every 50 us (10,000 times in what is waited here, by each
/// of three threads).
#[test]
fn threads_sleep_while_transfers_are_in_flight_and_reads_wait() {
    let _alone = alone();
    let (wait, few) = (Duration::from_millis(500), 1000);
    for provider in PROVIDERS {
        let ends = Ends::connected(provider);
        // A target that does not run leaves the transfer in flight.
        let mut target = ends.target.stop();
        let mut grain = ends.writer.open(5).unwrap();
        grain.write(0, &[1; 16]).unwrap();
        grain.commit().unwrap();
        ends.initiator.with(|initiator| initiator.send(5)).unwrap();
        let before = sleeps();
        std::thread::sleep(wait);
        let slept = sleeps() - before;
        assert!(slept < few, "{provider}: {slept} sleeps of an initiator with a transfer in flight");
        assert!(!ends.initiator.with(|initiator| initiator.is_idle()), "{provider}");

        let received = target.read(LONG).unwrap();
        assert!(matches!(received, Some(Received::Grain { index: 5, .. })), "{provider}: {received:?}");
        let before = sleeps();
        assert_eq!(target.read(wait).unwrap(), None, "{provider}");
        let slept = sleeps() - before;
        assert!(slept < few, "{provider}: {slept} sleeps of a target that reads nothing");

        let mut initiator = ends.initiator.stop();
        assert!(initiator.flush(LONG).unwrap());
        let mut grain = ends.writer.open(6).unwrap();
        grain.write(0, &[1; 16]).unwrap();
        grain.commit().unwrap();
        initiator.send(6).unwrap();
        let before = sleeps();
        assert!(!initiator.flush(wait).unwrap(), "{provider}");
        let slept = sleeps() - before;
        assert!(slept < few, "{provider}: {slept} sleeps of a flush");
    }
}

#[test]
fn an_end_that_is_stopped_is_polled_by_hand_again() {
    let _alone = alone();
    let ends = Ends::connected(Provider::Shm);
    let mut target = ends.target.stop();
    let mut grain = ends.writer.open(5).unwrap();
    grain.write(0, &[1; 16]).unwrap();
    grain.commit().unwrap();
    ends.initiator.with(|initiator| initiator.send(5)).unwrap();
    let received = target.read(LONG).unwrap();
    assert!(matches!(received, Some(Received::Grain { index: 5, .. })), "{received:?}");
    let mut initiator = ends.initiator.stop();
    assert!(initiator.poll().is_ok());
}
