//! Several threads and one endpoint: a sleeping thread is not kept awake by the others, and is woken whatever they do
//! (fi_cq(3), fi_cntr(3), fi_poll(3)).

use std::sync::atomic::{AtomicBool, Ordering};

use crate::prelude::*;

/// How long the threads sleep.
const SLEEP: Duration = Duration::from_millis(500);
/// Context switches that a thread may make meanwhile. A thread that is woken continually makes thousands.
const SWITCHES: i64 = 100;
/// No wake-up may take this long.
const LONG: Duration = Duration::from_secs(5);

/// Number of times that this thread blocked.
fn switches() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: fills the structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeroes are a valid structure too.
    unsafe { usage.assume_init() }.ru_nvcsw
}

/// Runs `sleep`, and checks that the thread really sleeps.
fn stays_asleep(what: &str, sleep: impl FnOnce()) {
    let before = switches();
    sleep();
    let switches = switches() - before;
    assert!(switches < SWITCHES, "{what}: woken {switches} times in {SLEEP:?}");
}

/// Sleeps on `queue`, to which nothing is reported.
fn sleep_on(what: &str, queue: &dyn CompletionQueue) {
    stays_asleep(what, || {
        let mut entry = [CqTaggedEntry::EMPTY];
        let read = queue.read_wait(&mut CqBuffer::new(&mut entry), Some(SLEEP));
        assert!(read.unwrap_err().is_again(), "{what}");
    });
}

/// Sleeps on `counter`, which does not change.
fn sleep_for(what: &str, counter: &dyn Counter) {
    stays_asleep(what, || {
        assert_eq!(counter.wait(1_000_000, Some(SLEEP)).unwrap_err().errno(), Errno::ETIMEDOUT, "{what}");
    });
}

/// A pair of sides with two queues and a counter of receives each, which have exchanged a message.
fn pair(kit: &dyn Kit, wait_obj: WaitObj) -> Pair {
    let attr = || CntrAttr { wait_obj, ..CntrAttr::default() };
    let pair =
        kit.pair_with(|opening| opening.two_queues().wait_obj(wait_obj).counter(attr(), BindFlags::RECV));
    pair.warm_up();
    // Finish the work that the warm-up left.
    wait::drive_through(Duration::from_millis(5), &[&pair.a, &pair.b]);
    pair
}

pub fn sleepers_on_two_queues_of_an_endpoint_let_each_other_sleep(kit: &dyn Kit) {
    let pair = pair(kit, WaitObj::Unspec);
    std::thread::scope(|scope| {
        scope.spawn(|| sleep_on("the transmit queue", &*pair.b.tx));
        sleep_on("the receive queue", &*pair.b.rx);
    });
}

pub fn sleepers_on_one_queue_let_each_other_sleep(kit: &dyn Kit) {
    let pair = pair(kit, WaitObj::Unspec);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| sleep_on("one of three", &*pair.b.rx));
        }
        sleep_on("one of three", &*pair.b.rx);
    });
}

pub fn sleepers_on_a_counter_and_a_queue_let_each_other_sleep(kit: &dyn Kit) {
    let pair = pair(kit, WaitObj::Unspec);
    std::thread::scope(|scope| {
        scope.spawn(|| sleep_for("the counter", &*pair.b.counters[0]));
        sleep_on("the queue", &*pair.b.rx);
    });
}

pub fn a_thread_that_polls_lets_the_sleepers_of_another_queue_sleep(kit: &dyn Kit) {
    let pair = pair(kit, WaitObj::Unspec);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sleepers = [
            scope.spawn(|| sleep_for("the counter", &*pair.b.counters[0])),
            scope.spawn(|| sleep_on("the receive queue", &*pair.b.rx)),
        ];
        scope.spawn(|| {
            let mut entry = [CqTaggedEntry::EMPTY];
            while !ended.load(Ordering::Relaxed) {
                let _nothing = pair.b.tx.read(&mut CqBuffer::new(&mut entry));
                std::thread::yield_now();
            }
        });
        let slept = sleepers.map(|sleeper| sleeper.join().is_ok());
        ended.store(true, Ordering::Relaxed);
        assert_eq!(slept, [true; 2]);
    });
}

/// A thread blocks in `sleep` on an object of `b`, another one runs `meanwhile` and does not poll again, then `a`
/// sends: the sleeper must wake.
fn is_woken_after(pair: &Pair, what: &str, sleep: impl Fn() + Sync, meanwhile: impl Fn()) {
    pair.post(|| pair.b.receive(()).context(2).post());
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            let begun = Instant::now();
            sleep();
            assert!(begun.elapsed() < LONG / 2, "not woken after {what}");
        });
        std::thread::sleep(Duration::from_millis(20));
        meanwhile();
        std::thread::sleep(Duration::from_millis(50));
        wait::drive(&[&pair.a], "room", || pair.a.out(pair.to_b, ()).inject().send().ok());
        wait::drive(&[&pair.a], "the sleeper", || sleeper.is_finished().then_some(()));
    });
}

/// Reads until `queue` stays empty for a moment, long enough for a helper thread that polls for sleepers to finish.
fn read(queue: &dyn CompletionQueue) {
    let (mut entry, begun) = ([CqTaggedEntry::EMPTY], Instant::now());
    while begun.elapsed() < Duration::from_millis(30) {
        assert!(queue.read(&mut CqBuffer::new(&mut entry)).unwrap_err().is_again());
        std::thread::yield_now();
    }
}

pub fn whoever_waits_is_woken_after_others_have_polled(kit: &dyn Kit) {
    // Blocking in a call of the library.
    let own = pair(kit, WaitObj::Unspec);
    let mut received = own.b.counters[0].read();
    for (what, queue) in [("a read of the same queue", &own.b.rx), ("a read of the other queue", &own.b.tx)] {
        let sleep = || {
            let mut entry = [CqTaggedEntry::EMPTY];
            assert_eq!(own.b.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(LONG)).unwrap(), 1);
        };
        is_woken_after(&own, what, sleep, || read(&**queue));
        received += 1;
        let count = || own.b.counters[0].wait(received + 1, Some(LONG)).unwrap();
        is_woken_after(&own, &format!("{what}, by a counter"), count, || read(&*own.b.tx));
        received += 1;
        own.drive("the receive", || own.b.next_of(2)).done();
    }
    // Blocking on a descriptor.
    let own = pair(kit, WaitObj::Fd);
    let counter = &own.b.counters[0];
    for (what, queue) in [("a read of the same queue", &own.b.rx), ("a read of the other queue", &own.b.tx)] {
        let by_fd = || {
            let fd = own.b.rx.wait_fd().unwrap();
            let mut entry = [CqTaggedEntry::EMPTY];
            while let Err(error) = own.b.rx.read(&mut CqBuffer::new(&mut entry)) {
                assert!(error.is_again(), "{error}");
                if own.b.rx.trywait().is_ok() && !wait::readable(fd, LONG) {
                    break;
                }
            }
        };
        is_woken_after(&own, what, by_fd, || read(&**queue));
        let count = || {
            let (fd, before) = (counter.wait_fd().unwrap(), counter.read());
            while counter.read() == before {
                if counter.trywait().is_ok() && !wait::readable(fd, LONG) {
                    break;
                }
            }
        };
        is_woken_after(&own, &format!("{what}, by a counter's descriptor"), count, || read(&**queue));
        own.drive("the receive", || own.b.next_of(2)).done();
    }
}
