//! Connections of provider `tcp` whose packets cannot be processed for now: a blocked reader sleeps meanwhile, and goes
//! on by itself when the peer, or another thread, has made room.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use ofi_tcp::wire::Packet;
use ofi_testkit::connect::Listener;
use ofi_testkit::prelude::*;

use crate::tcp_raw::{Raw, message, pieces, side, sleeper};

/// How long a reader sleeps.
const SLEEP: Duration = Duration::from_secs(1);
/// The processor time and the wake-ups that it may take meanwhile. A reader that spins takes most of the time, and one
/// that is woken continually wakes thousands of times.
const MAX_USE: (Duration, i64) = (Duration::from_millis(100), 250);

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

/// Checks that a call that blocks for [`SLEEP`] costs next to nothing.
fn costs_nothing<T>(call: impl FnOnce() -> T) -> T {
    let before = used();
    let result = call();
    let after = used();
    let (time, woken) = (after.0 - before.0, after.1 - before.1);
    assert!(time < MAX_USE.0 && woken < MAX_USE.1, "asleep for {SLEEP:?}: {time:?}, woken {woken} times");
    result
}

/// Blocks on the side's queue, to which nothing is reported meanwhile, and checks that this costs next to nothing.
fn sleeps(side: &TestEndpoint) {
    let mut entry = [CqTaggedEntry::EMPTY];
    let read = costs_nothing(|| side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(SLEEP)));
    let is_again = read.as_ref().is_err_and(|error| error.is_again());
    assert!(is_again, "{read:?}\n{}", side.report());
}

/// Blocks on the side's queue until there is a completion of `context`.
fn sleeps_until(side: &TestEndpoint, context: usize) {
    let mut entry = [CqTaggedEntry::EMPTY];
    let read = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(wait::BOUND));
    assert_eq!((read.expect("a completion"), entry[0].op_context.0), (1, context));
}

/// The peer asks for more answers than are kept for it. When it reads, it gets all of them from an endpoint whose only
/// thread is blocked all the time.
#[test]
fn a_blocked_reader_sleeps_while_a_peer_does_not_read_its_answers() {
    const LEN: usize = 4096;
    const COUNT: usize = 70_000;
    let side = sleeper();
    let memory = Memory::patterned(LEN, 1);
    let region = side.register(&memory, MrAccess::REMOTE_READ).expect("a region");
    let (own, into) = (remote(&region), Memory::new(8));
    let mut raw = Raw::meet(&side);
    let read = Packet::Read { remote: pieces(&[(own.addr, LEN as u64, own.key)]) };
    for _ in 0..COUNT / 100 {
        (0..100).for_each(|_| raw.send(&read, &[]));
        wait::drive_through(Duration::from_micros(100), &[&side]);
    }
    raw.send(&message(8), &[7; 8]);
    side.receive(&into).context(1).post().expect("a receive");
    wait::drive_through(Duration::from_millis(300), &[&side]);
    assert!(side.next_of(1).is_none(), "the message is behind reads that cannot be answered yet");
    sleeps(&side);
    let reader = std::thread::spawn(move || {
        raw.stream.set_nonblocking(false).expect("a socket that blocks");
        let mut answer = vec![0; 16 + LEN];
        for _ in 0..COUNT {
            raw.stream.read_exact(&mut answer).expect("an answer");
        }
    });
    sleeps_until(&side, 1);
    // Answers leave while it sleeps.
    while !reader.is_finished() {
        let mut entry = [CqTaggedEntry::EMPTY];
        let _nothing = side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_millis(100)));
    }
    reader.join().expect("all answers");
}

/// Neither end takes the other's answers while it waits for its own to be read, so neither may stop for that.
#[test]
fn two_ends_that_read_from_each_other_both_finish() {
    const LEN: usize = 60_000;
    const COUNT: usize = 1000;
    let Pair { a, b, to_a, to_b } = Pair::of(sleeper(), sleeper());
    let from = [Memory::patterned(LEN, 1), Memory::patterned(LEN, 2)];
    let into = [Memory::new(LEN), Memory::new(LEN)];
    let ours = a.register(&from[0], MrAccess::REMOTE_READ).expect("a region");
    let theirs = b.register(&from[1], MrAccess::REMOTE_READ).expect("a region");
    for context in 1..=COUNT {
        a.out(to_b, &into[0]).context(context).read(&[remote(&theirs)]).expect("a read");
        b.out(to_a, &into[1]).context(context).read(&[remote(&ours)]).expect("a read");
    }
    for context in 1..=COUNT {
        for side in [&a, &b] {
            wait::drive(&[&a, &b], "a read", || side.next_of(context)).done();
        }
    }
    into[0].check(LEN, 2);
    into[1].check(LEN, 1);
}

/// Sends messages without receives, more than the endpoint keeps, and returns their number and the peer.
fn flood(side: &TestEndpoint) -> (usize, Raw) {
    const COUNT: usize = 100;
    let mut raw = Raw::meet(side);
    for _ in 0..COUNT {
        raw.send(&message(8), &[7; 8]);
    }
    wait::drive(&[side], "what is kept", || (side.statistic("rx_stopped") > 0).then_some(()));
    (COUNT, raw)
}

/// An endpoint that keeps 16 messages.
fn forgetful() -> TestEndpoint {
    // SAFETY: as in `ofi_tests::tcp_atomics`.
    unsafe { std::env::set_var("FI_UNEXPECTED_MESSAGES", "16") };
    sleeper()
}

/// Another thread posts the receives, and never polls.
#[test]
fn a_blocked_reader_sleeps_while_messages_wait_for_receives_and_gets_them() {
    let side = forgetful();
    let (count, _raw) = flood(&side);
    sleeps(&side);
    let into = Memory::new(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..count {
                std::thread::sleep(Duration::from_millis(1));
                side.receive(&into).context(1).post().expect("a receive");
            }
        });
        for _ in 0..count {
            sleeps_until(&side, 1);
        }
    });
}

/// What it has sent before is not lost.
#[test]
fn a_blocked_reader_sleeps_although_the_peer_of_waiting_messages_has_ended() {
    let side = forgetful();
    let (_, raw) = flood(&side);
    raw.reset();
    sleeps(&side);
    let (lost, into) = (side.statistic("connections_lost"), Memory::new(8));
    side.receive(&into).context(1).post().expect("a receive");
    sleeps_until(&side, 1);
    assert_eq!(lost, 0);
}

/// Descriptors beyond those that the process has when a test begins to take the rest.
const SPARE: usize = 16;

/// All descriptors that the process may have. Dropped, it frees them and restores the limit.
struct Held {
    files: Vec<File>,
    limit: libc::rlimit,
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: reads the structure.
        let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const self.limit) };
        assert!(set == 0 || std::thread::panicking(), "the limit of descriptors is restored");
    }
}

/// A caller whose connection waits while the process has no descriptor left. Returned with it: what holds them.
fn call_without_descriptors(name: &Address) -> (TcpStream, Held) {
    let null = || File::open("/dev/null");
    let first = null().expect("a descriptor");
    // A soft limit, which can be raised again.
    let limit = std::os::fd::AsRawFd::as_raw_fd(&first) as u64 + SPARE as u64;
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills the structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut before) };
    let soft = libc::rlimit { rlim_cur: limit, ..before };
    // SAFETY: reads the structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const soft) }, 0);
    drop(first);
    let mut held = Held { files: std::iter::from_fn(|| null().ok()).collect(), limit: before };
    held.files.pop();
    let mut caller =
        TcpStream::connect(name.to_socket_addr().expect("an address of IP")).expect("a listener");
    caller.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("room");
    assert!(null().is_err(), "all descriptors are taken");
    (caller, held)
}

/// Whether the caller's connection was accepted: what it says makes the other end close it.
fn is_answered(mut caller: &TcpStream) -> bool {
    caller.set_nonblocking(true).expect("a socket");
    let answer = caller.read(&mut [0; 64]);
    !answer.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
}

#[test]
fn a_blocked_reader_sleeps_while_there_is_no_descriptor_for_a_caller() {
    let side = sleeper();
    let (caller, held) = call_without_descriptors(&side.name());
    sleeps(&side);
    drop(held);
    sleeps(&side);
    assert!(is_answered(&caller), "{}", side.report());
}

#[test]
fn a_blocked_reader_of_events_sleeps_while_there_is_no_descriptor_for_a_caller() {
    let loopback = Address::from(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
    let hints =
        Hints::new().provider("tcp").ep_type(EpType::Msg).mr_mode(MrMode::PROV_KEY).src_addr(loopback);
    let listener = Listener::open(&Opening::new(hints).first_info().expect("tcp")).expect("a listener");
    let (caller, held) = call_without_descriptors(&listener.pep.name().expect("a name"));
    let sleeps = || {
        let read = costs_nothing(|| listener.eq.read_wait(Some(SLEEP)));
        assert!(read.as_ref().is_err_and(|error| error.is_again()), "{read:?}");
    };
    sleeps();
    drop(held);
    sleeps();
    assert!(is_answered(&caller));
}

/// The thread that polls takes what would have woken the other one, and stops.
#[test]
fn a_blocked_reader_accepts_a_caller_for_whom_another_thread_had_no_descriptor() {
    let side = sleeper();
    let is_polling = AtomicBool::new(true);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut entry = [CqTaggedEntry::EMPTY];
            side.rx.read_wait(&mut CqBuffer::new(&mut entry), Some(3 * wait::BOUND))
        });
        std::thread::sleep(Duration::from_millis(300)); // it sleeps
        let poller = scope.spawn(|| {
            let start = Instant::now();
            while is_polling.load(Ordering::Relaxed) && start.elapsed() < wait::BOUND {
                side.poll();
            }
        });
        let (caller, held) = call_without_descriptors(&side.name());
        std::thread::sleep(Duration::from_millis(250));
        is_polling.store(false, Ordering::Relaxed);
        poller.join().expect("polls");
        assert!(!is_answered(&caller), "there was no descriptor for it");
        drop(held);
        wait::until("an answer", || is_answered(&caller));
        side.rx.signal().expect("a queue with a wait object");
        let read = reader.join().expect("a reader");
        assert!(read.as_ref().is_err_and(|error| error.is_again()), "{read:?}\n{}", side.report());
    });
}

/// An application that polls rarely never sleeps, so that nothing but its polls ends a rest.
#[test]
fn rare_polls_accept_a_caller_soon_after_there_are_descriptors_again() {
    const PAUSE: Duration = Duration::from_millis(50);
    const POLLS: usize = 40;
    let side = side();
    let (caller, held) = call_without_descriptors(&side.name());
    side.poll();
    assert!(!is_answered(&caller), "there is no descriptor for it");
    drop(held);
    let is_accepted = (0..POLLS).any(|_| {
        std::thread::sleep(PAUSE);
        side.poll();
        is_answered(&caller)
    });
    assert!(is_accepted, "not in {POLLS} polls\n{}", side.report());
}
