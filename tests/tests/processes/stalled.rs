//! Peers whose messages an endpoint cannot take for now, because its application posts no receives: a blocked reader
//! sleeps meanwhile, and goes on by itself when another thread has posted some.

use ofi_testkit::prelude::*;
use ofi_tests::{Naming, opening};

/// How long a reader sleeps.
const SLEEP: Duration = Duration::from_secs(1);
/// The processor time and the wake-ups that it may take meanwhile. A reader that spins takes most of the time, and one
/// that is woken continually wakes thousands of times.
const MAX_USE: (Duration, i64) = (Duration::from_millis(100), 250);
/// Messages, of which the receiver keeps a few.
const COUNT: u64 = 100;

/// The processor time of this thread so far, and how often it has blocked.
fn used() -> (Duration, i64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: fills the structure.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeroes are a valid structure too.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, 1000 * time.tv_usec as u32);
    (time(usage.ru_utime) + time(usage.ru_stime), usage.ru_nvcsw)
}

fn read(side: &TestEndpoint, limit: Duration) -> Result<usize, Error> {
    let mut entry = [CqTaggedEntry::EMPTY];
    let read = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(limit));
    read.map(|_| entry[0].op_context.0)
}

/// Two endpoints, of which the second one keeps 16 messages and has more of the first one's.
fn flooded(naming: Naming) -> Pair {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var("FI_UNEXPECTED_MESSAGES", "16") };
    let open = || opening(naming).wait_obj(WaitObj::Unspec).open();
    let pair = Pair::of(open(), open());
    for number in 0..COUNT {
        pair.post(|| pair.a.out(pair.to_b, ()).tag(number).inject().send());
    }
    pair.drive("what is kept", || (pair.b.statistic("rx_stopped") > 0).then_some(()));
    wait::drive_through(Duration::from_millis(200), &[&pair.a, &pair.b]);
    pair
}

#[test]
fn a_blocked_reader_sleeps_while_messages_wait_for_receives_and_gets_them_on_every_transport() {
    for naming in
        [Naming::Names, Naming::Udp, Naming::Nearby, Naming::Crossed, Naming::Tcp, Naming::NearbyTcp]
    {
        let pair = flooded(naming);
        let side = &pair.b;
        let before = used();
        let none = read(side, SLEEP);
        assert!(none.as_ref().is_err_and(Error::is_again), "{naming:?}: {none:?}\n{}", side.report());
        let after = used();
        let (time, woken) = (after.0 - before.0, after.1 - before.1);
        assert!(
            time < MAX_USE.0 && woken < MAX_USE.1,
            "{naming:?}: {time:?}, woken {woken} times\n{}",
            side.report()
        );
        // Another thread posts the receives, and never polls.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    std::thread::sleep(Duration::from_millis(1));
                    side.receive(()).tag(number).context(1).post().expect("a receive");
                }
            });
            for _ in 0..COUNT {
                assert_eq!(read(side, wait::BOUND).expect("a completion"), 1, "{naming:?}");
            }
        });
    }
}

/// Peers beyond those that every poll visits are left to their hints when they are quiet. A stopped one sends none.
#[test]
fn a_blocked_reader_takes_on_a_stopped_peer_s_messages_among_many_quiet_peers() {
    const QUIET: usize = 17;
    const POLLS: usize = 4000;
    const LEN: usize = 256 << 10;
    const COUNT: u64 = 40;
    for naming in [Naming::Names, Naming::Nearby, Naming::NearbyTcp] {
        // SAFETY: as in `ofi_tests::tcp_atomics`.
        unsafe { std::env::set_var("FI_UNEXPECTED_MESSAGES", "16") };
        let open = || opening(naming).wait_obj(WaitObj::Unspec).open();
        let pair = Pair::of(open(), open());
        let (side, from) = (&pair.b, Memory::new(LEN));
        // Announced, because they are long.
        for number in 0..COUNT {
            pair.post(|| pair.a.out(pair.to_b, &from).tag(number).context(3).send());
        }
        pair.drive("what is kept", || (side.statistic("rx_stopped") > 0).then_some(()));
        // They come after it, so it is quiet for as long as any of them when there are too many.
        let quiet: Vec<TestEndpoint> = (0..QUIET).map(|_| open()).collect();
        for other in &quiet {
            let to = other.insert_address(&side.name());
            side.receive(()).tag(1000).context(2).post().expect("a receive");
            wait::drive(&[other, side], "a message", || other.out(to, ()).tag(1000).inject().send().ok());
            wait::drive(&[other, side], "its receive", || side.next_of(2)).done();
        }
        (0..POLLS).for_each(|_| side.poll());
        let into = Memory::new(LEN);
        std::thread::scope(|scope| {
            let (done, ended) = std::sync::mpsc::channel::<()>();
            let other = &pair.a;
            scope.spawn(move || {
                // The sender goes on, and the receives of what was not kept are posted when the reader is asleep.
                std::thread::sleep(Duration::from_millis(100));
                for number in 16..COUNT {
                    side.receive(&into).tag(number).context(1).post().expect("a receive");
                }
                while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    other.poll();
                    std::thread::sleep(Duration::from_micros(100));
                }
            });
            for number in 16..COUNT {
                assert_eq!(read(side, wait::BOUND).expect("a completion"), 1, "{naming:?}, {number}");
            }
            drop(done);
        });
    }
}
