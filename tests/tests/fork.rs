//! fork(2) in a program with live endpoints and threads: the child's old objects refuse, closing them harms nobody, new
//! ones work, and the parent does not notice.

use ofi::raw::{AddrFormat, EpType};
use testkit::Kit;
use testkit::prelude::*;

struct Shm;

impl Kit for Shm {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm).addr_format(AddrFormat::Str)
    }
}

const KIT: &dyn Kit = &Shm;

/// Whether `result` is what a child gets from an object of its parent.
fn is_refused<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| error.errno() == Errno::EINVAL && error.to_string().contains("fork"))
}

/// What is wrong in the child, 0 for nothing. It prints nothing: locks of the output may be held for ever.
fn in_the_child(
    pair: Pair,
    counter: std::sync::Arc<dyn Counter>,
    region: std::sync::Arc<dyn MemoryRegion>,
) -> i32 {
    let Pair { a, to_b, .. } = &pair;
    let mut entry = [CqTaggedEntry::EMPTY];
    let address = Address::from_text("fi_shm://nobody");
    let refused = [
        is_refused(a.out(*to_b, ()).send()),
        is_refused(a.out(*to_b, ()).tag(1).send()),
        is_refused(a.receive(()).post()),
        is_refused(a.cancel(1)),
        is_refused(a.ep.name()),
        is_refused(a.ep.option(EpOption::MaxMsgSize)),
        is_refused(a.tx.read(&mut CqBuffer::new(&mut entry))),
        is_refused(a.tx.read_wait(&mut CqBuffer::new(&mut entry), Some(Duration::from_secs(1)))),
        is_refused(a.tx.trywait()),
        is_refused(a.av.insert(&[address]).remove(0)),
        is_refused(a.av.lookup(*to_b)),
        is_refused(a.domain.open_cq(&CqAttr::default())),
        is_refused(a.domain.open_endpoint(&a.info)),
        is_refused(a.domain.alloc(64, Placement::default())),
        is_refused(counter.add(1)),
        is_refused(counter.wait(1, None)),
        is_refused(region.refresh(&[])),
        region.close().is_ok(),
    ];
    if let Some(at) = refused.iter().position(|refused| !refused) {
        return at as i32 + 1;
    }
    drop((pair, counter, region));
    // The child has a life of its own.
    let pair = KIT.pair();
    let (from, into) = (Memory::patterned(100_000, 3), Memory::new(100_000));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.all_done(&pair.b, 2, 1);
    pair.all_done(&pair.a, 1, 1);
    into.check(100_000, 3);
    0
}

fn exchange(pair: &Pair) {
    let (from, into) = (Memory::patterned(100_000, 7), Memory::new(100_000));
    pair.b.receive(&into).context(2).post().unwrap();
    pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
    pair.all_done(&pair.b, 2, 1);
    pair.all_done(&pair.a, 1, 1);
    into.check(100_000, 7);
}

fn a_child_is_kept_apart(progress: Progress) {
    let pair = KIT.pair_with(|opening| opening.wait_obj(WaitObj::Fd).hints(|hints| hints.progress(progress)));
    pair.warm_up();
    exchange(&pair);
    let attr = CntrAttr { wait_obj: WaitObj::Fd, ..CntrAttr::default() };
    let counter = pair.a.domain.open_counter(&attr).unwrap();
    let memory = Memory::library(&pair.b.domain, 4096);
    let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
    // SAFETY: the child calls the library and ends by `_exit`; what it needs of the runtime (memory) survives a fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork");
    if child == 0 {
        let code =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| in_the_child(pair, counter, region)));
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(code.unwrap_or(99)) };
    }
    // The parent goes on meanwhile, and afterwards.
    let start = Instant::now();
    let mut status = 0;
    loop {
        exchange(&pair);
        // SAFETY: `status` is writable, and `child` is ours.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        if ended == child {
            break;
        }
        if start.elapsed() > Duration::from_secs(30) {
            // SAFETY: our own child.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child hangs");
        }
    }
    assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
    assert_eq!(libc::WEXITSTATUS(status), 0, "the first check that failed in the child");
    exchange(&pair);
    let there = [remote(&region)];
    let back = Memory::new(4096);
    pair.post(|| pair.a.out(pair.to_b, &back).context(5).read(&there));
    pair.all_done(&pair.a, 5, 1);
    counter.add(1).unwrap();
    counter.wait(1, Some(Duration::from_secs(5))).unwrap();
}

#[test]
fn a_child_is_kept_apart_under_manual_progress() {
    a_child_is_kept_apart(Progress::Manual);
}

#[test]
fn a_child_is_kept_apart_under_automatic_progress() {
    a_child_is_kept_apart(Progress::Auto);
}
