//! Two engines in one process, called as by the shim.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use crate::border::{Bytes, status};
use crate::engine::*;
use crate::memory::*;
use crate::request::*;

/// The arguments of sinks.
type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const LEN: usize = 300_000;
const LONG: Duration = Duration::from_secs(30);

unsafe extern "C" fn collect(to: *mut c_void, first: Bytes, second: Bytes) {
    // SAFETY: `to` is the vector of the caller below, and the bytes are valid for the call.
    let (list, pair) = unsafe { (&mut *to.cast::<Pairs>(), (first.get(), second.get())) };
    list.push((pair.0.to_vec(), pair.1.to_vec()));
}

/// The pairs that a call passes to its sink.
fn gathered(call: impl FnOnce(crate::Sink, *mut c_void) -> c_int) -> Pairs {
    let mut list = Pairs::new();
    assert_eq!(call(collect, (&raw mut list).cast()), status::SUCCESS);
    list
}

struct Side {
    name: &'static str,
    engine: *mut Engine,
    memory: *mut u8,
    region: *mut Registered,
}

impl Side {
    fn open(name: &'static str, rails: &str) -> Self {
        Self::open_with(name, rails, true)
    }

    fn open_with(name: &'static str, rails: &str, shared_memory: bool) -> Self {
        let shared_memory = if shared_memory { "1" } else { "0" };
        Self::open_by(name, &["rails", rails, "shared_memory", shared_memory], false)
    }

    /// Opens an engine with options and their values, and maybe a progress thread.
    fn open_by(name: &'static str, options: &[&str], progress: bool) -> Self {
        let options: Vec<_> = options.iter().map(|text| Bytes::of(text.as_bytes())).collect();
        let (mut engine, mut region) = (null_mut(), null_mut());
        let memory = Box::into_raw(vec![0_u8; LEN].into_boxed_slice()).cast::<u8>();
        // SAFETY: borrowed arguments outlive the calls; the memory stays until `close`.
        unsafe {
            let name = Bytes::of(name.as_bytes());
            let count = options.len() / 2;
            let opened = ofi_nixl_open(name, options.as_ptr(), count, progress, &raw mut engine);
            assert_eq!(opened, status::SUCCESS);
            assert_eq!(ofi_nixl_register(engine, memory, LEN, &raw mut region), status::SUCCESS);
        }
        Self { name, engine, memory, region }
    }

    /// Loads the other's region as a target.
    fn load(&self, other: &Self) -> *mut Target {
        // SAFETY: both are open.
        let (conn, info) = unsafe {
            (
                gathered(|sink, to| ofi_nixl_conn_info(other.engine, sink, to)),
                gathered(|sink, to| ofi_nixl_region_info(other.engine, other.region, sink, to)),
            )
        };
        let (name, mut target) = (Bytes::of(other.name.as_bytes()), null_mut());
        // SAFETY: as above.
        unsafe {
            assert_eq!(ofi_nixl_load_peer(self.engine, name, Bytes::of(&conn[0].1)), status::SUCCESS);
            assert_eq!(
                ofi_nixl_load_region(
                    self.engine,
                    name,
                    Bytes::of(&info[0].1),
                    other.addr(),
                    LEN as u64,
                    &raw mut target
                ),
                status::SUCCESS
            );
        }
        target
    }

    fn addr(&self) -> u64 {
        self.memory.addr() as u64
    }

    fn fill(&self, with: impl Fn(usize) -> u8) {
        // SAFETY: no transfer is in flight.
        (0..LEN).for_each(|at| unsafe { self.memory.add(at).write(with(at)) });
    }

    fn holds(&self, what: impl Fn(usize) -> u8) -> bool {
        // SAFETY: no transfer is in flight.
        (0..LEN).all(|at| unsafe { self.memory.add(at).read() } == what(at))
    }

    fn prepare(
        &self,
        write: bool,
        peer: &Self,
        target: *const Target,
        at: u64,
        len: u64,
    ) -> Result<*mut Request, c_int> {
        let descriptor = Descriptor::new(
            self.region,
            self.addr().wrapping_add(at),
            target,
            peer.addr().wrapping_add(at),
            len,
        );
        let mut request = null_mut();
        let name = Bytes::of(peer.name.as_bytes());
        // SAFETY: all handles are open.
        match unsafe {
            ofi_nixl_prepare(self.engine, write, name, &raw const descriptor, 1, &raw mut request)
        } {
            status::SUCCESS => Ok(request),
            other => Err(other),
        }
    }

    fn close(self) {
        // SAFETY: each is released once, and the memory after its registration.
        unsafe {
            assert_eq!(ofi_nixl_deregister(self.engine, self.region), status::SUCCESS);
            ofi_nixl_close(self.engine);
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.memory, LEN)));
        }
    }
}

/// Posts, and polls both sides to the end. Returns the notifications of the other side.
fn run(side: &Side, other: &Side, request: *const Request, message: &[u8]) -> (c_int, Pairs) {
    let (began, mut heard) = (Instant::now(), Vec::new());
    // SAFETY: the request is open.
    let mut state = unsafe { ofi_nixl_post(request, true, Bytes::of(message)) };
    while state == status::IN_PROGRESS || (state == status::SUCCESS && heard.is_empty()) {
        assert!(began.elapsed() < LONG);
        // SAFETY: both are open.
        unsafe {
            heard.extend(gathered(|sink, to| ofi_nixl_notifications(other.engine, sink, to)));
            heard.extend(gathered(|sink, to| ofi_nixl_notifications(side.engine, sink, to)));
            state = ofi_nixl_check(request);
        }
    }
    (state, heard)
}

fn exchange(rails: &str) {
    let (here, there) = (Side::open("here", rails), Side::open("there", rails));
    let target = here.load(&there);
    there.load(&here);
    here.fill(|at| (at * 7 + at / 251) as u8);
    // SAFETY: the engine is open.
    assert_eq!(unsafe { ofi_nixl_connect(here.engine, Bytes::of(b"there")) }, status::SUCCESS);
    let request = here.prepare(true, &there, target, 0, LEN as u64).unwrap();
    for round in 0..3_u8 {
        let (state, heard) = run(&here, &there, request, &[round]);
        assert_eq!((state, heard), (status::SUCCESS, vec![(b"here".to_vec(), vec![round])]));
        assert!(there.holds(|at| (at * 7 + at / 251) as u8));
        there.fill(|_| 0);
    }
    there.fill(|at| (at * 3) as u8);
    let read = here.prepare(false, &there, target, 0, LEN as u64).unwrap();
    assert_eq!(run(&here, &there, read, b"read").0, status::SUCCESS);
    assert!(here.holds(|at| (at * 3) as u8));
    let mut seconds = 0.0;
    // SAFETY: the handles are open, and released once.
    unsafe {
        assert_eq!(ofi_nixl_estimate(read, &raw mut seconds), status::SUCCESS);
        assert!(seconds > 0.0);
        assert_eq!(ofi_nixl_release(read), status::SUCCESS);
        // The peer is disconnected before its request is released, as in NIXL's programs.
        assert_eq!(ofi_nixl_disconnect(here.engine, Bytes::of(b"there")), status::SUCCESS);
        assert_eq!(ofi_nixl_post(request, false, Bytes::of(&[])), status::NOT_FOUND);
        assert_eq!(ofi_nixl_release(request), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
    }
    here.close();
    there.close();
}

#[test]
fn two_engines_exchange_over_shared_memory() {
    exchange("shm");
}

#[test]
fn two_engines_exchange_over_two_rails() {
    exchange("udp,udp");
}

/// A child releases its copies of everything, also of a transfer in flight: those of its parent go on.
#[test]
fn a_child_that_releases_everything_leaves_it_to_its_parent() {
    let (here, there) = (Side::open("here", "shm"), Side::open("there", "shm"));
    let target = here.load(&there);
    there.load(&here);
    here.fill(|at| at as u8);
    let request = here.prepare(true, &there, target, 0, LEN as u64).unwrap();
    assert_eq!(run(&here, &there, request, b"before").0, status::SUCCESS);
    // SAFETY: the request is open.
    assert_eq!(unsafe { ofi_nixl_post(request, true, Bytes::of(b"open")) }, status::IN_PROGRESS);
    // SAFETY: the child calls the library, which allocates; the C library's allocator works in a forked child.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        // SAFETY: the handles are open, and released once in this process, which then ends.
        unsafe {
            libc::alarm(20);
            let released = [
                ofi_nixl_release(request),
                ofi_nixl_unload(here.engine, target),
                ofi_nixl_deregister(here.engine, here.region),
            ];
            ofi_nixl_close(here.engine);
            ofi_nixl_close(there.engine);
            libc::_exit(i32::from(released != [status::SUCCESS; 3]));
        }
    }
    let mut ended = 0;
    // SAFETY: `ended` is writable, and `child` is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut ended, 0) }, child);
    assert_eq!(ended, 0, "how the child ended");
    let (began, mut heard) = (Instant::now(), Vec::new());
    // SAFETY: all are open.
    while unsafe { ofi_nixl_check(request) } == status::IN_PROGRESS {
        assert!(began.elapsed() < LONG);
        // SAFETY: as above.
        heard.extend(unsafe { gathered(|sink, to| ofi_nixl_notifications(there.engine, sink, to)) });
    }
    assert_eq!(heard, [(b"here".to_vec(), b"open".to_vec())]);
    assert_eq!(run(&here, &there, request, b"after").0, status::SUCCESS);
    // SAFETY: each is released once.
    unsafe {
        assert_eq!(ofi_nixl_release(request), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
    }
    here.close();
    there.close();
}

/// No call drives the receiver after it has its notification, as in NIXL's `test_agent`.
#[test]
fn a_notification_that_was_taken_ends_its_transfer_although_its_receiver_is_not_polled() {
    for (rails, shared_memory) in [("shm", true), ("udp", true), ("udp", false)] {
        let open = |name| Side::open_with(name, rails, shared_memory);
        let (here, there) = (open("here"), open("there"));
        let target = here.load(&there);
        there.load(&here);
        let request = here.prepare(true, &there, target, 0, 8).unwrap();
        let (began, mut heard) = (Instant::now(), Pairs::new());
        // SAFETY: the handles are open, and released once.
        unsafe {
            let mut state = ofi_nixl_post(request, true, Bytes::of(b"done"));
            while state == status::IN_PROGRESS || heard.is_empty() {
                assert!(began.elapsed() < LONG, "{rails}, {shared_memory}: {state}, heard {heard:?}");
                state = ofi_nixl_check(request);
                if heard.is_empty() {
                    heard = gathered(|sink, to| ofi_nixl_notifications(there.engine, sink, to));
                }
            }
            assert_eq!(state, status::SUCCESS);
            assert_eq!(ofi_nixl_release(request), status::SUCCESS);
            assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
        }
        here.close();
        there.close();
    }
}

/// The peer's program never asks for notifications: as many transfers are done as may be unread there. The next one
/// fails by its time limit, and is done once they are taken.
#[test]
fn transfers_are_done_although_their_notifications_are_not_taken() {
    const MOST: usize = 512;
    for rails in ["shm", "udp"] {
        let shared_memory = if rails == "shm" { "1" } else { "0" };
        let options = |timeout| ["rails", rails, "shared_memory", shared_memory, "timeout_s", timeout];
        let here = Side::open_by("here", &options("2"), false);
        // Its thread drives it, as in NIXL.
        let there = Side::open_by("there", &options("600"), true);
        let target = here.load(&there);
        there.load(&here);
        let request = here.prepare(true, &there, target, 0, 8).unwrap();
        let post = |message: &[u8]| {
            let began = Instant::now();
            // SAFETY: the request is open.
            let mut state = unsafe { ofi_nixl_post(request, true, Bytes::of(message)) };
            while state == status::IN_PROGRESS {
                assert!(began.elapsed() < LONG);
                // SAFETY: as above.
                state = unsafe { ofi_nixl_check(request) };
            }
            state
        };
        for nth in 0..MOST {
            assert_eq!(post(nth.to_string().as_bytes()), status::SUCCESS, "{rails}: {nth}");
        }
        let began = Instant::now();
        assert_eq!(post(b"one too many"), status::BACKEND, "{rails}");
        assert!(began.elapsed() >= Duration::from_secs(2));
        // SAFETY: the engine is open.
        let take = || unsafe { gathered(|sink, to| ofi_nixl_notifications(there.engine, sink, to)) };
        let wanted: Pairs = (0..MOST).map(|nth| (b"here".to_vec(), nth.to_string().into_bytes())).collect();
        assert!(take() == wanted, "{rails}: what was done is there, and what failed is not");
        assert_eq!(post(b"more"), status::SUCCESS, "{rails}");
        assert_eq!(take(), [(b"here".to_vec(), b"more".to_vec())]);
        // SAFETY: released once.
        unsafe {
            assert_eq!(ofi_nixl_release(request), status::SUCCESS);
            assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
        }
        here.close();
        there.close();
    }
}

/// No call drives the sender between its notifications, or after them, as in NIXL's `EmptyNotificationPayload`.
#[test]
fn notifications_leave_although_their_sender_is_not_polled() {
    const MANY: usize = 50;
    let (here, there) = (Side::open("here", "udp"), Side::open("there", "udp"));
    let target = here.load(&there);
    there.load(&here);
    let to = there.engine.expose_provenance();
    let mut heard = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut heard = Pairs::new();
            let began = Instant::now();
            while heard.len() < MANY && began.elapsed() < LONG {
                let engine = std::ptr::with_exposed_provenance(to);
                // SAFETY: the engine is open until the thread has ended.
                heard.extend(gathered(|sink, to| unsafe { ofi_nixl_notifications(engine, sink, to) }));
                std::thread::yield_now();
            }
            heard
        });
        for nth in 0..MANY {
            // SAFETY: the engine is open.
            let sent = unsafe { ofi_nixl_notify(here.engine, Bytes::of(b"there"), Bytes::of(&[nth as u8])) };
            assert_eq!(sent, status::SUCCESS);
        }
        receiver.join().unwrap()
    });
    let wanted: Pairs = (0..MANY).map(|nth| (b"here".to_vec(), vec![nth as u8])).collect();
    heard.sort();
    assert_eq!(heard, wanted);
    // SAFETY: released once.
    assert_eq!(unsafe { ofi_nixl_unload(here.engine, target) }, status::SUCCESS);
    here.close();
    there.close();
}

#[test]
fn an_agent_is_its_own_target() {
    let side = Side::open("alone", "shm");
    let mut target = null_mut();
    // SAFETY: the handles are open.
    unsafe {
        assert_eq!(ofi_nixl_connect(side.engine, Bytes::of(b"alone")), status::SUCCESS);
        assert_eq!(ofi_nixl_load_own(side.engine, side.region, &raw mut target), status::SUCCESS);
    }
    side.fill(|at| if at < 1000 { 7 } else { 0 });
    let descriptor = Descriptor::new(side.region, side.addr(), target, side.addr() + 5000, 1000);
    let mut request = null_mut();
    let name = Bytes::of(b"alone");
    // SAFETY: as above.
    let made =
        unsafe { ofi_nixl_prepare(side.engine, true, name, &raw const descriptor, 1, &raw mut request) };
    assert_eq!(made, status::SUCCESS);
    let (state, heard) = run(&side, &side, request, b"me");
    assert_eq!((state, heard), (status::SUCCESS, vec![(b"alone".to_vec(), b"me".to_vec())]));
    assert!(side.holds(|at| if at < 1000 || (5000..6000).contains(&at) { 7 } else { 0 }));
    // SAFETY: released once.
    unsafe {
        assert_eq!(ofi_nixl_release(request), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(side.engine, target), status::SUCCESS);
    }
    side.close();
}

#[test]
fn misuse_is_answered_by_a_status_and_changes_nothing() {
    let (here, there) = (Side::open("here", "shm"), Side::open("there", "shm"));
    let target = here.load(&there);
    let refused = |at: u64, len: u64| here.prepare(true, &there, target, at, len).unwrap_err();
    assert_eq!(refused(0, 0), status::INVALID_PARAM);
    assert_eq!(refused(1, LEN as u64), status::INVALID_PARAM);
    assert_eq!(refused(0_u64.wrapping_sub(8), 8), status::INVALID_PARAM);
    assert_eq!(refused(8, u64::MAX), status::INVALID_PARAM);
    let name = Bytes::of(b"there");
    let mut request = null_mut();
    // SAFETY: the handles are open; null handles are the subject of the test.
    unsafe {
        let lost = Descriptor::new(null(), 0, target, 0, 8);
        let made = ofi_nixl_prepare(here.engine, true, name, &raw const lost, 1, &raw mut request);
        assert_eq!(made, status::INVALID_PARAM);
        let other = Bytes::of(b"stranger");
        assert_eq!(ofi_nixl_connect(here.engine, other), status::NOT_FOUND);
        assert_eq!(ofi_nixl_disconnect(here.engine, other), status::NOT_FOUND);
        assert_eq!(ofi_nixl_notify(here.engine, other, Bytes::of(b"?")), status::NOT_FOUND);
        assert_eq!(ofi_nixl_load_peer(here.engine, name, Bytes::of(b"rubbish")), status::INVALID_PARAM);
        // Memory of a peer whose connection info was not loaded, as in NIXL's `GetLocalPartialWithErrors`.
        let info = gathered(|sink, to| ofi_nixl_region_info(here.engine, here.region, sink, to));
        let (info, mut unknown) = (Bytes::of(&info[0].1), null_mut());
        let (peer, len) = (Bytes::of(b"here"), LEN as u64);
        let loaded = ofi_nixl_load_region(there.engine, peer, info, here.addr(), len, &raw mut unknown);
        assert_eq!(loaded, status::NOT_FOUND);
        let conn = gathered(|sink, to| ofi_nixl_conn_info(there.engine, sink, to));
        assert_eq!(ofi_nixl_load_peer(here.engine, other, Bytes::of(&conn[0].1)), status::INVALID_PARAM);
        let mut engine = null_mut();
        let options = [Bytes::of(b"rails"), Bytes::of(b"no-such-provider")];
        assert!(ofi_nixl_open(name, options.as_ptr(), 1, false, &raw mut engine) < 0);
        assert!(ofi_nixl_open(Bytes::of(b"\xff"), null(), 0, false, &raw mut engine) < 0);
        let request = here.prepare(true, &there, target, 0, 8).unwrap();
        assert_eq!(ofi_nixl_check(request), status::NOT_POSTED);
        assert_eq!(ofi_nixl_post(request, false, Bytes::of(&[])), status::IN_PROGRESS, "no peer answers yet");
        assert_eq!(ofi_nixl_post(request, false, Bytes::of(&[])), status::REPOST_ACTIVE);
        assert_eq!(ofi_nixl_release(request), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
    }
    here.close();
    there.close();
}

#[test]
fn a_request_that_is_released_under_way_disturbs_no_other() {
    let open = |name| Side::open_with(name, "udp,udp", false);
    let (here, there) = (open("here"), open("there"));
    let target = here.load(&there);
    there.load(&here);
    here.fill(|at| (at * 5 + at / 253) as u8);
    let prepare = || here.prepare(true, &there, target, 0, LEN as u64).unwrap();
    let kept = prepare();
    for round in 0..20_u8 {
        let released = prepare();
        // SAFETY: the request is open, and released once.
        unsafe {
            let posted = ofi_nixl_post(released, false, Bytes::of(&[]));
            assert_eq!(posted, status::IN_PROGRESS, "nobody polls the peer");
            assert_eq!(ofi_nixl_release(released), status::SUCCESS);
        }
        let (state, heard) = run(&here, &there, kept, &[round]);
        assert_eq!((state, heard), (status::SUCCESS, vec![(b"here".to_vec(), vec![round])]));
        assert!(there.holds(|at| (at * 5 + at / 253) as u8));
    }
    // What was released may still be under way, and `close` polls only one side.
    for _ in 0..2000 {
        for side in [&here, &there] {
            // SAFETY: the engine is open.
            let heard = gathered(|sink, to| unsafe { ofi_nixl_notifications(side.engine, sink, to) });
            assert!(heard.is_empty(), "{heard:?}");
        }
    }
    // SAFETY: released once.
    unsafe {
        assert_eq!(ofi_nixl_release(kept), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
    }
    here.close();
    there.close();
}

#[test]
fn memory_that_was_given_back_is_used_no_more() {
    let (here, there) = (Side::open("here", "shm"), Side::open("there", "shm"));
    let target = here.load(&there);
    let request = here.prepare(true, &there, target, 0, 4096).unwrap();
    // SAFETY: the handles are open, and released once; the memory is freed below.
    unsafe {
        assert_eq!(
            ofi_nixl_deregister(here.engine, here.region),
            status::SUCCESS,
            "although a plan names it"
        );
        let mut state = ofi_nixl_post(request, false, Bytes::of(&[]));
        let began = Instant::now();
        while state == status::IN_PROGRESS {
            assert!(began.elapsed() < LONG);
            gathered(|sink, to| ofi_nixl_notifications(there.engine, sink, to));
            state = ofi_nixl_check(request);
        }
        assert_eq!(state, status::BACKEND);
        assert_eq!(ofi_nixl_release(request), status::SUCCESS);
        assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
        ofi_nixl_close(here.engine);
        drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(here.memory, LEN)));
    }
    assert!(there.holds(|_| 0));
    there.close();
}

/// The memory is the program's as soon as the release has succeeded, although the peer has not answered.
#[test]
fn nothing_is_read_into_memory_after_its_request_was_released() {
    for rails in ["shm", "udp"] {
        let (here, there) =
            (Side::open_with("here", rails, rails == "shm"), Side::open_with("there", rails, rails == "shm"));
        let target = here.load(&there);
        there.load(&here);
        there.fill(|_| 2);
        let request = here.prepare(false, &there, target, 0, LEN as u64).unwrap();
        assert_eq!(run(&here, &there, request, b"first").0, status::SUCCESS);
        assert!(here.holds(|_| 2));
        here.fill(|_| 3);
        // Nobody polls the peer.
        // SAFETY: the handles are open, and released once.
        unsafe {
            let mut state = ofi_nixl_post(request, false, Bytes::of(&[]));
            for _ in 0..100 {
                assert_eq!(state, status::IN_PROGRESS);
                state = ofi_nixl_check(request);
            }
            assert_eq!(ofi_nixl_release(request), status::SUCCESS);
            assert_eq!(ofi_nixl_unload(here.engine, target), status::SUCCESS);
        }
        here.fill(|_| 77);
        for _ in 0..2000 {
            for side in [&here, &there] {
                // SAFETY: the engine is open.
                gathered(|sink, to| unsafe { ofi_nixl_notifications(side.engine, sink, to) });
            }
        }
        assert!(here.holds(|_| 77), "nothing comes late over {rails}");
        here.close();
        there.close();
    }
}

/// Metadata does not grow: a region is forgotten with its last target, and comes back with the next.
#[test]
fn a_region_of_a_peer_is_forgotten_with_its_last_target() {
    let (here, there) = (Side::open("here", "shm"), Side::open("there", "shm"));
    // SAFETY: the engine is open.
    let known = || unsafe { &*here.engine }.agent.regions("there").unwrap().len();
    for _ in 0..3 {
        let targets = [here.load(&there), here.load(&there)];
        assert_eq!(known(), 1);
        let request = here.prepare(true, &there, targets[0], 0, 64).unwrap();
        for (target, left) in targets.into_iter().zip([1, 0]) {
            // SAFETY: released once.
            assert_eq!(unsafe { ofi_nixl_unload(here.engine, target) }, status::SUCCESS);
            assert_eq!(known(), left);
        }
        // What was prepared remains valid.
        assert_eq!(run(&here, &there, request, b"still").0, status::SUCCESS);
        // SAFETY: released once.
        assert_eq!(unsafe { ofi_nixl_release(request) }, status::SUCCESS);
    }
    here.close();
    there.close();
}
