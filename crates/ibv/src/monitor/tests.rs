use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::cache::{Cache, CacheLimits, KeptAs, Purpose, RegisterError, is_shortage};

/// The monitor of this process; `None` where the host permits none, such as in a container with a seccomp filter.
fn monitor() -> Option<&'static dyn Watch> {
    match by_name("") {
        Ok(found) => found,
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn map(len: usize, flags: libc::c_int) -> usize {
    let flags = flags | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.addr()
}

fn unmap(span: &Range<usize>) {
    // SAFETY: the tests map this memory and have no reference to it.
    assert_eq!(unsafe { libc::munmap(span.start as *mut c_void, span.len()) }, 0);
}

/// The changes of `within` that `act` causes. Other tests of the process change memory, too.
fn seen(watch: &dyn Watch, within: &Range<usize>, act: impl FnOnce()) -> Vec<Change> {
    let (from, mut seen) = (watch.published(), Vec::new());
    act();
    while !watch.is_settled() {
        std::thread::yield_now();
    }
    watch.changes(from, &mut |change| {
        if change.span().start < within.end && within.start < change.span().end {
            seen.push(change);
        }
    });
    seen
}

#[test]
fn munmap_mmap_mremap_and_madvise_are_reported() {
    let Some(watch) = monitor() else { return };
    let (page, len) = (page_size(), 4 * page_size());
    let start = map(len, libc::MAP_PRIVATE);
    let span = start..start + len;
    let part = |nth: usize| start + nth * page..start + (nth + 1) * page;
    assert!(watch.watch(&span));
    let advise = |nth: usize, advice| {
        // SAFETY: as `unmap`.
        assert_eq!(unsafe { libc::madvise(part(nth).start as *mut c_void, page, advice) }, 0);
    };
    assert_eq!(seen(watch, &span, || advise(0, libc::MADV_DONTNEED)), [Change::Emptied(part(0))]);
    assert_eq!(seen(watch, &span, || advise(0, libc::MADV_FREE)), [Change::Emptied(part(0))]);
    assert_eq!(seen(watch, &span, || unmap(&part(0))), [Change::Unmapped(part(0))]);
    let over = || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let at = part(1).start as *mut c_void;
        // SAFETY: over memory of this test.
        let made = unsafe { libc::mmap(at, page, libc::PROT_READ, flags, -1, 0) };
        assert_eq!(made, at);
    };
    assert_eq!(seen(watch, &span, over), [Change::Unmapped(part(1))]);
    let mut to = 0;
    let moves = || {
        let at = part(2).start as *mut c_void;
        // SAFETY: as `unmap`.
        let made = unsafe { libc::mremap(at, page, 2 * page, libc::MREMAP_MAYMOVE) };
        assert_ne!(made, libc::MAP_FAILED);
        to = made.addr();
    };
    let moved = seen(watch, &span, moves);
    assert!(moved.contains(&Change::Unmapped(part(2))), "{moved:?}");
    watch.unwatch(&span, Some(&(start..part(3).start)));
    assert_eq!(seen(watch, &span, || unmap(&part(3))), [], "it is not watched any more");
    unmap(&(to..to + 2 * page));
    unmap(&part(1));
}

#[test]
fn memory_of_files_and_shared_memory_is_not_watched() {
    let Some(watch) = monitor() else { return };
    let len = 4 * page_size();
    let shared = map(len, libc::MAP_SHARED);
    assert!(!watch.watch(&(shared..shared + len)));
    unmap(&(shared..shared + len));
    let both = map(2 * len, libc::MAP_PRIVATE);
    unmap(&(both + len..both + 2 * len));
    assert!(watch.watch(&(both..both + len)));
    assert!(!watch.watch(&(both..both + 2 * len)), "half of it is not mapped");
    watch.unwatch(&(both..both + len), None);
    unmap(&(both..both + len));
}

#[test]
fn kernels_are_told_by_their_release() {
    for (release, wanted) in [
        ("5.15.0-1-amd64", true),
        ("6.1.0", true),
        ("10.0", true),
        ("6", true),
        ("5.14.21-default", false),
        ("4.18.0-553.el8", false),
        ("nonsense", false),
        ("", false),
    ] {
        assert_eq!(is_since(release, SINCE), wanted, "{release}");
    }
    assert!(kernel_release().contains('.'));
}

/// The thread of a monitor has neither the processors nor the policy of the thread that opened it.
#[test]
fn the_thread_runs_on_any_processor() {
    let cpus = || {
        // SAFETY: any bits are a set.
        let mut set = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: room for the set.
        assert!(unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } == 0);
        // SAFETY: a set.
        unsafe { libc::CPU_COUNT(&set) }
    };
    let all = cpus();
    let found = std::thread::spawn(move || {
        // SAFETY: any bits are a set.
        let mut one = unsafe { std::mem::zeroed::<libc::cpu_set_t>() };
        // SAFETY: no memory is involved.
        let here = unsafe { libc::sched_getcpu() };
        // SAFETY: a processor of the set.
        unsafe { libc::CPU_SET(here as usize, &mut one) };
        // SAFETY: the set is read.
        assert_eq!(unsafe { libc::sched_setaffinity(0, size_of_val(&one), &raw const one) }, 0);
        assert_eq!(cpus(), 1);
        std::thread::spawn(move || {
            run_anywhere();
            cpus()
        })
        .join()
        .unwrap()
    });
    assert!(found.join().unwrap() >= all);
}

/// A program may close all descriptors, or put others in their places.
#[test]
fn a_monitor_whose_descriptor_has_gone_says_so() {
    if monitor().is_none() {
        return;
    }
    let fresh = Userfault::start().unwrap();
    let len = 4 * page_size();
    let start = map(len, libc::MAP_PRIVATE);
    let span = start..start + len;
    assert!(fresh.is_settled() && fresh.watch(&span));
    let [from, _to] = pipe(page_size()).unwrap();
    // SAFETY: this test's descriptors. The monitor stays for ever and does not close its own.
    assert!(unsafe { libc::dup2(from.as_raw_fd(), fresh.fd.as_raw_fd()) } >= 0);
    assert!(!fresh.is_settled() && !fresh.watch(&span));
    fresh.unwatch(&span, None);
    unmap(&span); // no event is waited for
    assert!(!fresh.is_settled());
}

/// A child's calls leave the watches of its parent as they are.
#[test]
fn a_forked_child_does_not_unwatch_its_parents_memory() {
    let Some(watch) = monitor() else { return };
    let len = page_size();
    let start = map(len, libc::MAP_PRIVATE);
    let span = start..start + len;
    assert!(watch.watch(&span));
    // SAFETY: the child calls functions that neither allocate nor lock, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_idle = !watch.is_here() && !watch.is_settled() && !watch.watch(&span);
        watch.unwatch(&span, None);
        // SAFETY: it ends the child at once.
        unsafe { libc::_exit(i32::from(!is_idle)) };
    }
    let mut status = -1;
    // SAFETY: room for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    assert!(watch.is_here());
    assert_eq!(seen(watch, &span, || unmap(&span)), [Change::Unmapped(span.clone())]);
    watch.unwatch(&span, Some(&span));
}

#[test]
fn a_monitor_has_a_name_or_a_reason_why_not() {
    assert!(by_name("disabled").is_ok_and(|found| found.is_none()));
    for (name, word) in [("memhooks", "system calls"), ("kdreg2", "kernel module"), ("nonsense", "nonsense")]
    {
        let why = by_name(name).err().expect("it is refused");
        assert!(why.contains(word) && why.contains("use userfaultfd"), "{why}");
    }
}

/// The pages of a span, held as a device holds them: a pipe keeps those that were there when it got them.
struct Pin {
    start: usize,
    len: usize,
    pipe: [OwnedFd; 2],
}

fn pipe(room: usize) -> io::Result<[OwnedFd; 2]> {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: new descriptors.
    let made = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    // SAFETY: no memory is involved.
    match unsafe { libc::fcntl(ends[0], libc::F_SETPIPE_SZ, room as libc::c_int) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(made),
    }
}

impl RegisterError for io::Error {
    fn is_shortage(&self) -> bool {
        self.raw_os_error().is_some_and(is_shortage)
    }
}

impl Pin {
    fn new(start: usize, len: usize, _: KeptAs) -> io::Result<Self> {
        // A slot of the pipe for each page.
        let pipe = pipe((len / page_size() + 2).next_power_of_two() * page_size())?;
        let vector = libc::iovec { iov_base: start as *mut c_void, iov_len: len };
        // SAFETY: the tests own the memory; a wrong address is an error.
        let got = unsafe { libc::vmsplice(pipe[1].as_raw_fd(), &raw const vector, 1, 0) };
        if got == len as isize { Ok(Self { start, len, pipe }) } else { Err(io::Error::last_os_error()) }
    }

    /// Reads as a device does: from the pages, whatever is mapped at the addresses now.
    fn read(&self, start: usize, into: &mut [u8]) {
        let copy = pipe((self.len / page_size() + 2).next_power_of_two() * page_size()).unwrap();
        // SAFETY: no memory is involved.
        let got = unsafe { libc::tee(self.pipe[0].as_raw_fd(), copy[1].as_raw_fd(), self.len, 0) };
        assert_eq!(got, self.len as isize, "{}", io::Error::last_os_error());
        let [from, _] = copy;
        let mut from = File::from(from);
        let mut all = vec![0; start - self.start + into.len()];
        from.read_exact(&mut all).unwrap();
        into.copy_from_slice(&all[start - self.start..]);
    }
}

/// Threads map, fill, send and replace memory, at addresses that they take from each other. Each message has the bytes
/// that its memory held when it was sent.
#[test]
fn registrations_reach_the_pages_that_are_mapped_now() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 1500;
    let Some(watch) = monitor() else { return };
    let page = page_size();
    let limits = CacheLimits { count: 12, bytes: 96 * page };
    let cache = Arc::new(Cache::with(CacheLimits { count: 0, bytes: 0 }, Some((watch, limits))));
    let stamps = AtomicU64::new(1);
    let send = &|span: &Range<usize>| {
        let stamp = stamps.fetch_add(1, Ordering::Relaxed);
        for at in span.clone().step_by(page / 2) {
            // SAFETY: this thread's memory, which is mapped, writable and aligned.
            unsafe { (at as *mut u64).write_volatile(stamp) };
        }
        let purpose = if stamp.is_multiple_of(2) { Purpose::Local } else { Purpose::Exposed };
        let pin = cache.get(purpose, span.start, span.len(), Pin::new).unwrap();
        let mut got = vec![0; span.len()];
        pin.read(span.start, &mut got);
        for word in got.chunks(page / 2) {
            assert_eq!(u64::from_ne_bytes(word[..8].try_into().unwrap()), stamp, "pages of another mapping");
        }
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = thread + 1;
                let mut below = |most: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random % most) as usize
                };
                for _ in 0..ROUNDS {
                    let len = (1 + below(6)) * page;
                    let start = map(len, libc::MAP_PRIVATE);
                    let mut span = start..start + len;
                    for _ in 0..below(4) {
                        send(&span);
                    }
                    match below(4) {
                        0 => {
                            // SAFETY: this thread's memory.
                            let done = unsafe {
                                libc::madvise(span.start as *mut c_void, page, libc::MADV_DONTNEED)
                            };
                            assert_eq!(done, 0);
                        }
                        1 => {
                            let longer = len + page * (1 + below(3));
                            let at = span.start as *mut c_void;
                            // SAFETY: this thread's memory.
                            let made = unsafe { libc::mremap(at, len, longer, libc::MREMAP_MAYMOVE) };
                            assert_ne!(made, libc::MAP_FAILED);
                            span = made.addr()..made.addr() + longer;
                        }
                        2 => {
                            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
                            let protection = libc::PROT_READ | libc::PROT_WRITE;
                            let at = span.start as *mut c_void;
                            // SAFETY: over this thread's memory.
                            let made = unsafe { libc::mmap(at, page, protection, flags, -1, 0) };
                            assert_eq!(made, at);
                        }
                        _ => {}
                    }
                    send(&span);
                    send(&span);
                    unmap(&span);
                }
            });
        }
    });
    let counts = cache.counts();
    println!("{counts:?}");
    assert!(counts.hits > 0 && counts.invalidations > 0 && counts.kept <= limits.count, "{counts:?}");
}
