//! Waiting for several flows where the kernel has no `futex_waitv` (before 5.16), or a container forbids it.
#![allow(unsafe_code)]

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use mxl::{BatchHints, Domain, Error, GrainWriter, Wait, wait_any};

use super::common::{Folder, SOON, camera, other_process, role};

const LONG: Duration = Duration::from_secs(20);

/// The error of the system call: `ENOSYS` from a kernel without it, or what a filter returns.
fn answer() -> Option<i32> {
    // SAFETY: without words there is nothing that the call reads or writes.
    let status = unsafe { libc::syscall(libc::SYS_futex_waitv, 0_usize, 0_usize, 0, 0_usize, 0) };
    (status < 0).then(|| std::io::Error::last_os_error().raw_os_error()).flatten()
}

/// From now on the system call fails in this thread and in those that it starts. False if the kernel has no filters.
fn forbid(error: i32) -> bool {
    let step = |code: u32, jump_if_not: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: jump_if_not,
        k,
    };
    let mut steps = [
        // The number of the call is the first field of `struct seccomp_data`.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, libc::SYS_futex_waitv as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | error as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: it only takes rights away from this process, which is the test's own.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) } != 0 {
        return false;
    }
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the program and its steps are valid for reads during the call, which copies them.
    unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program, 0_u64, 0_u64) == 0 }
}

/// How often this thread has slept.
fn sleeps() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the structure is valid for a write.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) }, 0);
    // SAFETY: zeros are a valid value, and the call has filled it in.
    unsafe { usage.assume_init() }.ru_nvcsw
}

#[test]
fn many_flows_are_waited_for_without_the_system_call() {
    const TEST: &str = "old_kernel::many_flows_are_waited_for_without_the_system_call";
    if let Some((role, path)) = role() {
        let error: i32 = role.parse().unwrap();
        if !forbid(error) {
            println!("NOT RUN: {TEST}: no seccomp filters: {}", std::io::Error::last_os_error());
            return;
        }
        assert_eq!(answer(), Some(error));
        let domain = Domain::open(path).unwrap();
        let cameras = [camera(), camera(), camera()];
        let writers = cameras
            .each_ref()
            .map(|camera| domain.create_grains(camera, &BatchHints::default()).unwrap().writer);
        let readers = cameras.each_ref().map(|camera| domain.read_grains(camera.id).unwrap());
        let watches = readers.each_ref().map(|reader| reader.watch());
        let before = sleeps();
        assert!(!wait_any(&watches, Wait::For(Duration::from_millis(20))));
        assert!(sleeps() > before, "it asks again and again without a sleep");
        std::thread::scope(|scope| {
            let waited = scope.spawn(|| wait_any(&watches, SOON));
            std::thread::sleep(Duration::from_millis(20));
            writers[1].open(1).unwrap().commit().unwrap();
            assert!(waited.join().unwrap());
        });
        assert_eq!(watches.each_ref().map(|watch| watch.changed()), [false, true, false]);
        // One flow is waited for by another call.
        assert!(
            readers[1].read(1, Wait::Not).is_ok()
                && readers[0].read(1, Wait::For(Duration::from_millis(5))).is_err()
        );
        let writer = domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer;
        streams_without_a_waiting_task_cost_nothing(&domain, writer);
        return;
    }
    for error in [libc::ENOSYS, libc::EPERM] {
        let folder = Folder::new();
        assert!(other_process(TEST, &error.to_string(), folder.path()).wait().unwrap().success(), "{error}");
    }
}

/// How often each thread that waits for streams has slept.
fn sleeps_of_stream_threads() -> Vec<u64> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let status = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok());
    let threads = status.filter(|status| status.starts_with("Name:\tmxl-streams\n"));
    let sleeps = |status: String| {
        status
            .lines()
            .find_map(|line| Some(line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().unwrap()))
    };
    threads.filter_map(sleeps).collect()
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

#[track_caller]
fn until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < LONG, "timeout");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn streams_without_a_waiting_task_cost_nothing(domain: &Domain, writer: GrainWriter) {
    let mut stream = Arc::new(domain.read_grains(writer.id()).unwrap()).stream(1);
    let mut poll = || {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        (Pin::new(&mut stream).poll_next(&mut Context::from_waker(&waker)), woken)
    };
    let (item, woken) = poll();
    assert!(item.is_pending());
    writer.open(1).unwrap().commit().unwrap();
    until(|| woken.0.load(Ordering::Acquire));
    assert!(matches!(poll().0, Poll::Ready(Some(Ok(_)))));
    // Nobody waits for the next grain.
    let before = sleeps_of_stream_threads();
    std::thread::sleep(Duration::from_millis(200));
    let after = sleeps_of_stream_threads();
    assert!(before.len() == 1 && after.len() == 1, "{before:?} {after:?}");
    assert!(after[0] - before[0] < 20, "an idle stream is polled: {} times", after[0] - before[0]);
    // A task waits again, and a stream that is over leaves its thread.
    let (item, woken) = poll();
    assert!(item.is_pending());
    drop(writer);
    until(|| woken.0.load(Ordering::Acquire));
    until(|| matches!(poll().0, Poll::Ready(Some(Err(Error::FlowInvalid)))));
    until(|| sleeps_of_stream_threads().is_empty());
    drop(stream);
}
