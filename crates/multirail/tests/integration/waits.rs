//! A waiting thread uses no processor time, several threads may wait on one agent, and futures are woken.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use multirail::{Agent, Remote, Way};
use ofi::{Errno, Hints};

const LONG: Duration = Duration::from_secs(30);

fn agent(name: &str, rails: &[&str], thread: bool) -> Agent {
    let builder = Agent::builder(name).progress_thread(thread).shared_memory(false);
    let builder = rails.iter().fold(builder, |builder, rail| builder.rail(Hints::new().provider(*rail)));
    builder.open().unwrap()
}

/// Processor time of the calling thread.
fn processor() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec in this frame.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn a_blocked_wait_costs_no_processor_and_is_woken_by_what_it_waits_for() {
    for rails in [&["shm"][..], &["udp"], &["udp", "shm"]] {
        let (alice, bob) = (agent("alice", rails, false), agent("bob", rails, false));
        alice.load(&bob.metadata().unwrap()).unwrap();
        bob.load(&alice.metadata().unwrap()).unwrap();
        let before = processor();
        assert!(bob.wait_notification(Duration::from_secs(1)).unwrap().is_none());
        let spent = processor() - before;
        // A poll each 50 us took some 50 ms of processor time; a sleep takes less than 1 ms, and the spin before it 0.2
        // ms.
        assert!(spent < Duration::from_millis(15), "{rails:?}: {spent:?} of a second asleep");
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300)); // bob sleeps
                alice.notify("bob", b"wake up", LONG).unwrap().wait().unwrap();
            });
            let began = Instant::now();
            assert_eq!(bob.wait_notification(LONG).unwrap().unwrap().bytes, b"wake up");
            // Bob answers from now on only while he waits.
            while !sender.is_finished() && began.elapsed() < LONG {
                bob.progress().unwrap();
            }
            sender.join().unwrap();
        });
    }
}

/// How often the thread of this name has gone to sleep.
fn sleeps(name: &str) -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let mut its = tasks
        .filter(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|found| found.trim() == name));
    let status = std::fs::read_to_string(its.next().expect("the thread is there").join("status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

/// The metadata server sleeps until a visitor connects or it is dropped.
#[test]
fn a_server_of_metadata_sleeps_until_a_visit_and_until_its_end() {
    let (alice, bob) = (agent("alice", &["shm"], false), agent("bob", &["shm"], false));
    let server = bob.serve("127.0.0.1:0").unwrap();
    std::thread::sleep(Duration::from_millis(100)); // the thread starts
    let before = sleeps("multirail-meta");
    std::thread::sleep(Duration::from_secs(1));
    let slept = sleeps("multirail-meta") - before;
    assert!(slept <= 3, "it looked for visitors {slept} times in a second");
    assert_eq!(&*alice.visit(server.address(), LONG).unwrap(), "bob");
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < Duration::from_millis(800), "{:?}", began.elapsed());
}

#[test]
fn threads_wait_beside_each_other_and_beside_one_that_polls() {
    let rails = ["udp", "shm"];
    let (alice, bob) = (agent("alice", &rails, false), agent("bob", &rails, true));
    let target = bob.register(vec![0_u8; 1 << 16]).unwrap();
    alice.load(&bob.metadata().unwrap()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (alice, target) = (&alice, &target);
            scope.spawn(move || {
                let source = alice.register(vec![thread as u8; 1 << 12]).unwrap();
                let there = Remote { region: target.id(), offset: thread << 12, len: 1 << 12 };
                let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
                for _ in 0..50 {
                    plan.post(LONG).unwrap().wait().unwrap();
                    // This call sleeps beside the others, until its time is up.
                    assert!(alice.wait_notification(Duration::from_millis(2)).unwrap().is_none());
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(200) {
            alice.progress().unwrap();
        }
    });
}

#[test]
fn a_cancel_and_a_deadline_wake_whoever_sleeps() {
    let (alice, bob) = (agent("alice", &["udp"], false), agent("bob", &["udp"], false));
    alice.load(&bob.address()).unwrap();
    // Bob never answers: no thread drives him.
    let late = alice.notify("bob", b"late", Duration::from_millis(400)).unwrap();
    let cancelled = alice.notify("bob", b"cancelled", LONG).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            cancelled.cancel();
        });
        let began = Instant::now();
        assert_eq!(cancelled.wait().unwrap_err(), Errno::ECANCELED);
        assert_eq!(late.wait().unwrap_err(), Errno::ETIMEDOUT);
        assert!(began.elapsed() < LONG / 2);
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transfers_and_notifications_are_futures() {
    for thread in [true, false] {
        let (alice, bob) = (agent("alice", &["shm"], thread), agent("bob", &["shm"], true));
        let target = bob.register(vec![0_u8; 4096]).unwrap();
        let source = alice.register(vec![9_u8; 4096]).unwrap();
        alice.load(&bob.metadata().unwrap()).unwrap();
        let there = Remote { region: target.id(), offset: 0, len: 4096 };
        let plan = alice.prepare("bob", Way::Write, &[source.slice(..).unwrap()], &[there]).unwrap();
        let receiver = bob.clone();
        let heard = tokio::spawn(async move { receiver.next_notification().await });
        let transfer = plan.post_notify(b"there", LONG).unwrap();
        tokio::time::timeout(LONG, transfer.ended()).await.unwrap().unwrap();
        let heard = tokio::time::timeout(LONG, heard).await.unwrap().unwrap().unwrap();
        assert_eq!((&*heard.peer, &heard.bytes[..]), ("alice", &b"there"[..]));
        let mut found = [0; 4096];
        target.read_into(0, &mut found).unwrap();
        assert_eq!(found, [9; 4096]);
        // No thread drives Carol: a message to Bob may arrive before it is cancelled.
        let carol = agent("carol", &["shm"], false);
        alice.load(&carol.address()).unwrap();
        let cancelled = alice.notify("carol", b"x", LONG).unwrap();
        cancelled.cancel();
        assert_eq!(cancelled.ended().await.unwrap_err(), Errno::ECANCELED);
    }
}

/// A waker of a program's executor that calls the agent.
struct Calling {
    agent: Arc<Agent>,
    woken: AtomicBool,
}

impl Wake for Calling {
    fn wake(self: Arc<Self>) {
        self.agent.progress().unwrap();
        self.woken.store(true, Ordering::Relaxed);
    }
}

/// The calls that wake futures: each runs the wakers without the agent's lock, with and without a progress thread.
#[test]
fn a_waker_may_call_the_agent() {
    for thread in [true, false] {
        let (alice, bob) = (Arc::new(agent("alice", &["shm"], thread)), agent("bob", &["shm"], false));
        let region = alice.register(vec![0_u8; 4096]).unwrap();
        alice.load(&bob.metadata().unwrap()).unwrap();
        let calls: [&(dyn Fn(&Agent) + Sync); 4] = [
            &|alice| alice.connect("bob").unwrap(),
            &|alice| alice.disconnect("bob").unwrap(),
            &|alice| alice.revoke(&region, LONG).unwrap(),
            &|alice| alice.forget("bob").unwrap(),
        ];
        for (number, call) in calls.into_iter().enumerate() {
            let calling = Arc::new(Calling { agent: Arc::clone(&alice), woken: AtomicBool::new(false) });
            let (ended, end) = std::sync::mpsc::channel();
            let waker = Waker::from(Arc::clone(&calling));
            std::thread::scope(|scope| {
                let alice = &alice;
                scope.spawn(move || {
                    let mut future = std::pin::pin!(alice.next_notification());
                    assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                    call(alice);
                    let _ = ended.send(());
                });
                // A deadlock would never end: the process ends here instead.
                if end.recv_timeout(LONG).is_err() {
                    eprintln!("call {number} with a thread: {thread}: the waker waits for its caller's lock");
                    std::process::abort();
                }
            });
            assert!(calling.woken.load(Ordering::Relaxed), "call {number}, with a thread: {thread}");
        }
    }
}
