//! Registrations with the device in the steady state: none for memory that the application has registered, and none
//! for other memory while its pages stay (`ibv/cache.rs`).

use ofi_testkit::fork::Forked;
use ofi_testkit::prelude::*;

/// Number of messages of each test.
const COUNT: u64 = 1000;
const LEN: usize = 1 << 20;

/// Whether this process may watch its memory. Some containers forbid it.
fn is_watched() -> bool {
    let found = ibv::monitor::by_name("");
    if let Err(why) = &found {
        println!("skipped: {why}");
    }
    found.is_ok()
}

/// The registrations that both ends have made so far, the hits of their caches, and what these have invalidated.
pub fn counts(pair: &Pair, provider: &str) -> [u64; 3] {
    ["misses", "hits", "invalidations"].map(|what| {
        let name: &'static str = Box::leak(format!("{provider}_mr_cache_{what}").into_boxed_str());
        pair.a.statistic(name) + pair.b.statistic(name)
    })
}

/// Sends `count` messages from `from` to `into`.
pub fn messages(pair: &Pair, from: &Memory, into: &Memory, count: u64) {
    for nth in 0..count {
        from.fill(nth as u8);
        pair.b.receive(into).context(1).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, from).context(2).send());
        pair.drive("a message", || pair.b.next_of(1)).done();
        pair.drive("its end", || pair.a.next_of(2)).done();
        into.check(into.len(), nth as u8);
    }
}

/// Sends [`COUNT`] messages, and returns how many registrations they took: all of them, and those after the first.
fn taken(pair: &Pair, provider: &str, (from, into): (&Memory, &Memory)) -> [u64; 2] {
    let before = counts(pair, provider);
    messages(pair, from, into, 1);
    let first = counts(pair, provider);
    messages(pair, from, into, COUNT - 1);
    let after = counts(pair, provider);
    assert!(after[1] - before[1] >= COUNT, "{before:?} {after:?}");
    [after[0] - before[0], after[0] - first[0]]
}

pub fn registered_memory_is_registered_once(pair: &Pair, provider: &str) {
    let (from, into) = (Memory::new(LEN), Memory::new(LEN));
    let send = pair.a.register(&from, MrAccess::SEND).unwrap();
    let receive = pair.b.register(&into, MrAccess::RECV).unwrap();
    assert_eq!(taken(pair, provider, (&from, &into)), [2, 0], "one at each end");
    send.close().unwrap();
    receive.close().unwrap();
}

pub fn other_memory_is_registered_once_while_it_is_watched(pair: &Pair, provider: &str) {
    if !is_watched() {
        return;
    }
    let (from, into) = (Memory::new(LEN), Memory::new(LEN));
    // One at each end. While another thread of this process changes memory that is watched, an operation may register
    // its own: tests in a process of their own take no further one.
    let [all, later] = taken(pair, provider, (&from, &into));
    assert!(
        (2..=2 + COUNT / 50).contains(&all) && later <= COUNT / 50,
        "{all}, {later} after the first message"
    );
}

/// Pages that the test maps itself, so that an address is mapped again and again.
struct Pages(*mut libc::c_void);

impl Pages {
    const LEN: usize = 2 << 20;

    fn new() -> Self {
        Self(Self::map(std::ptr::null_mut(), 0))
    }

    fn map(at: *mut libc::c_void, flags: libc::c_int) -> *mut libc::c_void {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping, or one over pages of this test that nothing uses.
        let made = unsafe { libc::mmap(at, Self::LEN, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        assert_ne!(made, libc::MAP_FAILED);
        made
    }

    /// Maps other pages at the same address.
    fn map_again(&self) {
        assert_eq!(Self::map(self.0, libc::MAP_FIXED), self.0);
    }

    fn fill(&self, with: u8) {
        // SAFETY: this test's pages.
        unsafe { self.0.cast::<u8>().write_bytes(with, Self::LEN) };
    }

    fn holds(&self, byte: u8) -> bool {
        // SAFETY: this test's pages, which nothing writes to now.
        let bytes = unsafe { std::slice::from_raw_parts(self.0.cast::<u8>(), Self::LEN) };
        bytes.iter().all(|found| *found == byte)
    }

    fn piece(&self) -> Piece {
        Piece::new(self.0.cast(), Self::LEN)
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this test's pages, and nothing uses them.
        unsafe { libc::munmap(self.0, Self::LEN) };
    }
}

/// Sends pages that are filled with `byte`.
fn exchange(pair: &Pair, from: &Pages, into: &Pages, byte: u8) {
    from.fill(byte);
    into.fill(0);
    let (source, target) = ([from.piece()], [into.piece()]);
    // SAFETY: the pages stay until the message has been received, and nothing else uses them until then.
    let lend = |pieces| unsafe { Lent::new(pieces, &[]) };
    pair.b.ep.receive(&ReceiveOp::new(lend(&target), Context(1))).unwrap();
    pair.post(|| pair.a.ep.send(&SendOp::new(lend(&source), pair.to_b, Context(2))));
    pair.drive("a message", || pair.b.next_of(1)).done();
    pair.drive("its end", || pair.a.next_of(2)).done();
    assert!(into.holds(byte), "message {byte} went to or from pages that are not mapped here any more");
}

/// Memory that was unmapped and mapped again, at the same address, is never reached by an old registration.
pub fn replaced_memory_is_registered_anew(pair: &Pair, provider: &str) {
    if !is_watched() {
        return;
    }
    let (from, into) = (Pages::new(), Pages::new());
    let before = counts(pair, provider);
    for nth in 0..60_u8 {
        match nth {
            _ if nth % 2 == 0 => {}
            0..40 => {
                from.map_again();
                into.map_again();
            }
            _ => {
                for pages in [&from, &into] {
                    // SAFETY: this test's pages, which lose their bytes.
                    assert_eq!(unsafe { libc::madvise(pages.0, Pages::LEN, libc::MADV_DONTNEED) }, 0);
                }
            }
        }
        exchange(pair, &from, &into, nth + 1);
    }
    let after = counts(pair, provider);
    assert!(after[2] - before[2] >= 40, "{before:?} {after:?}");
}

/// A forked child that changes its copy of registered memory changes no message of its parent, whose device has the
/// pages of the parent.
pub fn a_child_that_writes_changes_no_message(pair: &Pair) {
    let (from, into) = (Pages::new(), Pages::new());
    let register = |side: &TestEndpoint, pages: &Pages, access| {
        let pieces = [pages.piece()];
        // SAFETY: the pages stay until the registration is closed.
        side.domain.register(&unsafe { MrAttr::new(&pieces, access) }).unwrap()
    };
    let send = register(&pair.a, &from, MrAccess::SEND);
    let receive = register(&pair.b, &into, MrAccess::RECV);
    exchange(pair, &from, &into, 1);
    for nth in 2..6 {
        let child = Forked::start(|| {
            from.fill(0xCC);
            into.fill(0xDD);
            // While the parent goes on.
            std::thread::sleep(Duration::from_millis(20));
            i32::from(!from.holds(0xCC) || !into.holds(0xDD))
        });
        exchange(pair, &from, &into, nth);
        child.finish(|| ());
        exchange(pair, &from, &into, nth + 100);
    }
    send.close().unwrap();
    receive.close().unwrap();
}
