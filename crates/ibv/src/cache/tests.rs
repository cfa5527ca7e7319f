use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

/// A registration that records its memory.
fn whole(start: usize, len: usize, _: KeptAs) -> Result<(usize, usize), &'static str> {
    Ok((start, len))
}

impl RegisterError for &str {
    fn is_shortage(&self) -> bool {
        *self == "full"
    }
}

const LOCAL: Purpose = Purpose::Local;

#[test]
fn a_range_is_registered_once_and_flushed_when_it_goes() {
    let cache = Cache::new(CacheLimits { count: 4, bytes: 1 << 20 });
    let id = cache.add(1000, 500);
    let first = cache.get(LOCAL, 1100, 50, whole).unwrap();
    assert_eq!(*first, (1000, 500));
    assert!(Arc::ptr_eq(&first, &cache.get(LOCAL, 1000, 500, whole).unwrap()));
    assert_eq!(*cache.get(LOCAL, 1400, 200, whole).unwrap(), (1400, 200), "over its end: for one operation");
    let exposed = cache.get(Purpose::Exposed, 1100, 50, whole).unwrap();
    assert_eq!(*exposed, (1000, 500));
    assert!(!Arc::ptr_eq(&first, &exposed), "peers get a registration of their own");
    assert!(Arc::ptr_eq(&exposed, &cache.get(Purpose::Exposed, 1200, 50, whole).unwrap()));
    cache.remove(id);
    assert_eq!((Arc::strong_count(&first), Arc::strong_count(&exposed)), (1, 1));
    assert_eq!(*cache.get(LOCAL, 1100, 50, whole).unwrap(), (1100, 50));
    assert_eq!(cache.counts(), CacheCounts { hits: 2, misses: 4, ..CacheCounts::default() });
}

#[test]
fn the_least_recently_used_goes_when_there_are_too_many_or_too_long_ones() {
    let cache = Cache::new(CacheLimits { count: 2, bytes: 100 });
    for start in [0, 100, 200] {
        cache.add(start, 40);
    }
    cache.add(1000, 101);
    let kept = |start| cache.get(LOCAL, start, 1, whole).map(|made| Arc::strong_count(&made) == 2).unwrap();
    assert!(kept(0) && kept(100) && kept(0) && kept(200));
    let wanted = CacheCounts { hits: 1, misses: 3, evictions: 1, kept: 2, bytes: 80, ..Default::default() };
    assert_eq!(cache.counts(), wanted);
    let hits = cache.counts().hits;
    assert!(kept(0) && cache.counts().hits == hits + 1, "the one that was used again stayed");
    assert!(!kept(1000), "one that is longer than all may be is not kept");
}

#[test]
fn what_cannot_be_registered_is_not_kept_and_is_tried_once() {
    let cache = Cache::new(CacheLimits { count: 2, bytes: 100 });
    let id = cache.add(0, 10);
    let mut tries = 0;
    for wanted in [Err("no"), Ok(None), Ok(None)] {
        let refuse = |_: usize, _: usize, _: KeptAs| {
            tries += 1;
            Err("no")
        };
        assert_eq!(cache.get_range(LOCAL, 2, 5, refuse), wanted);
    }
    assert_eq!(tries, 1);
    assert_eq!((cache.counts().kept, cache.counts().bytes), (0, 0));
    assert_eq!(*cache.get(LOCAL, 2, 5, whole).unwrap(), (2, 5), "a part of it, for one operation");
    cache.remove(id);
    cache.add(0, 10);
    assert_eq!(*cache.get(LOCAL, 2, 5, whole).unwrap(), (0, 10), "one that is there anew is tried anew");
}

proptest! {
    /// For any sequence of added and removed ranges, a registration covers the requested memory, belongs to one live
    /// range or to exactly that memory, and the cache respects its limits.
    #[test]
    fn registrations_cover_what_was_asked_for(
        steps in prop::collection::vec((0..4u8, 0..64usize, 1..32usize, any::<bool>()), 1..200),
        (count, bytes) in (0..5usize, 0..100usize),
    ) {
        let cache = Cache::new(CacheLimits { count, bytes });
        let mut live: Vec<(RangeId, usize, usize)> = Vec::new();
        for (what, start, len, exposed) in steps {
            match what {
                0 => live.push((cache.add(start, len), start, len)),
                1 if !live.is_empty() => cache.remove(live.swap_remove(start % live.len()).0),
                _ => {
                    let purpose = if exposed { Purpose::Exposed } else { LOCAL };
                    let (from, long) = *cache.get(purpose, start, len, whole).unwrap();
                    prop_assert!(from <= start && from + long >= start + len);
                    let is_live = live.iter().any(|&(_, s, l)| (s, l) == (from, long));
                    prop_assert!(is_live || (from, long) == (start, len));
                }
            }
            let counts = cache.counts();
            prop_assert!(counts.kept <= count && counts.bytes <= bytes);
        }
        for (id, ..) in live {
            cache.remove(id);
        }
        prop_assert_eq!((cache.counts().kept, cache.counts().bytes), (0, 0));
    }
}

/// A device has room for two registrations. Those that are only kept make room for others.
#[test]
fn what_is_not_in_use_makes_room_for_what_is() {
    let cache = watching(PAGES, CacheLimits { count: 8, bytes: 1 << 20 });
    let room = Arc::new(());
    let make = |_: usize, _: usize, _: KeptAs| {
        if Arc::strong_count(&room) > 2 { Err("full") } else { Ok(Arc::clone(&room)) }
    };
    let get = |page: usize| cache.get(LOCAL, page * PAGE, PAGE, make);
    let used = get(0).unwrap();
    drop(get(2).unwrap());
    assert_eq!(cache.counts().kept, 2);
    drop(get(4).unwrap());
    assert_eq!((cache.counts().kept, cache.counts().evictions), (1, 1));
    let id = cache.add(6 * PAGE, PAGE);
    let other = get(6).unwrap();
    assert_eq!(get(8).unwrap_err(), "full", "both are in use");
    drop((used, other));
    assert!(get(8).is_ok(), "for one operation");
    assert!(get(8).is_ok());
    assert_eq!(cache.counts().kept, 2);
    let refused = cache.get(LOCAL, 10 * PAGE, PAGE, |_, _, _| Err("no such memory"));
    assert_eq!((refused, cache.counts().kept), (Err("no such memory"), 2), "room would not help");
    let mut tries = 0;
    let other = cache.with_room(|| {
        tries += 1;
        if tries == 1 { Err("full") } else { Ok(()) }
    });
    assert_eq!(
        (other, tries, cache.counts().kept),
        (Ok(()), 2, 1),
        "nor is another kind of registration refused"
    );
    assert!(!cache.release_unused(), "a range's registration stays");
    cache.remove(id);
}

/// A cache in a simulated process.
fn watching<R>(pages: usize, limits: CacheLimits) -> Cache<R> {
    let process = Process { generations: vec![0; pages], watched: vec![false; pages], ..Process::default() };
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel(Mutex::new(process))));
    let mut cache = Cache::with(limits, Some((kernel, limits)));
    cache.page = PAGE;
    cache
}

/// A device may take seconds to register gigabytes.
#[test]
fn other_memory_is_registered_meanwhile_and_the_range_stays() {
    let cache = Cache::new(CacheLimits { count: 4, bytes: 1 << 20 });
    let (id, _) = (cache.add(1000, 500), cache.add(4000, 500));
    let (begun, begins) = channel::<()>();
    let (release, held) = channel::<()>();
    let removed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (cache, removed) = (&cache, &removed);
        let slow = scope.spawn(move || {
            cache.get(LOCAL, 1100, 50, |start, len, _| {
                begun.send(()).unwrap();
                held.recv_timeout(Duration::from_secs(10)).expect("others waited for this registration");
                assert!(!removed.load(Ordering::SeqCst), "the range was removed meanwhile");
                Ok::<_, &str>((start, len))
            })
        });
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(*cache.get(LOCAL, 4100, 50, whole).unwrap(), (4000, 500));
        assert_eq!(*cache.get(LOCAL, 9000, 50, whole).unwrap(), (9000, 50));
        assert_eq!(*cache.get(Purpose::Exposed, 1100, 50, whole).unwrap(), (1000, 500), "for others");
        let same = scope.spawn(|| cache.get(LOCAL, 1200, 50, whole).unwrap());
        let remover = scope.spawn(|| {
            cache.remove(id);
            removed.store(true, Ordering::SeqCst);
        });
        std::thread::sleep(Duration::from_millis(50));
        assert!(!same.is_finished() && !remover.is_finished());
        release.send(()).unwrap();
        assert_eq!(*slow.join().unwrap().unwrap(), (1000, 500));
        remover.join().unwrap();
        // Either before the removal, by the shared registration, or after it, by one of its own.
        assert!([(1000, 500), (1200, 50)].contains(&*same.join().unwrap()));
    });
    assert_eq!(cache.counts().kept, 1);
}

#[test]
fn a_range_that_could_not_be_registered_is_not_waited_for() {
    let cache = Cache::new(CacheLimits { count: 4, bytes: 1 << 20 });
    let id = cache.add(1000, 500);
    let (begun, begins) = channel::<()>();
    std::thread::scope(|scope| {
        let cache = &cache;
        let refused = scope.spawn(move || {
            cache.get_range(LOCAL, 1100, 50, |_, _, _| {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(50));
                Err::<(usize, usize), _>("no")
            })
        });
        begins.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(*cache.get(LOCAL, 1100, 50, whole).unwrap(), (1100, 50), "for one operation");
        assert_eq!(refused.join().unwrap(), Err("no"));
    });
    cache.remove(id);
}

/// Another thread applies the change of the memory that is being registered.
#[test]
fn what_changes_while_it_is_registered_is_not_kept() {
    let process = Process { generations: vec![0; PAGES], watched: vec![false; PAGES], ..Process::default() };
    let kernel: &'static Kernel = Box::leak(Box::new(Kernel(Mutex::new(process))));
    let limits = CacheLimits { count: 4, bytes: 1 << 20 };
    let mut cache = Cache::with(limits, Some((kernel, limits)));
    cache.page = PAGE;
    let made = cache.get(LOCAL, PAGE, PAGE, |start, len, _| {
        let mut process = kernel.process();
        process.replace(1..2);
        let unread = std::mem::take(&mut process.unread);
        process.published.extend(unread);
        drop(process);
        cache.get(LOCAL, 4 * PAGE, PAGE, whole).unwrap();
        Ok::<_, &str>((start, len))
    });
    assert_eq!(*made.unwrap(), (PAGE, PAGE));
    assert_eq!(cache.counts().kept, 1, "only the other memory");
    assert_eq!(*cache.get(LOCAL, PAGE, PAGE, whole).unwrap(), (PAGE, PAGE));
    assert_eq!(cache.counts().kept, 2);
    assert_eq!(kernel.process().watches.len(), 2);
}

/// Chunks of malloc share a page with their neighbours.
#[test]
fn neighbouring_buffers_are_not_registered_again_with_each_other() {
    const CHUNKS: usize = 64;
    let chunk = 16 * PAGE;
    let cache = watching(CHUNKS * 16 + 1, CacheLimits { count: 1024, bytes: 1 << 30 });
    let mut pinned = 0;
    for nth in 0..CHUNKS {
        let made = cache.get(LOCAL, nth * chunk + 16, chunk - 8, |start, len, _| {
            pinned += len;
            Ok::<_, &str>((start, len))
        });
        assert!(made.is_ok());
    }
    assert!(pinned <= 2 * CHUNKS * (chunk + PAGE), "{pinned} bytes for {}", CHUNKS * chunk);
    let misses = cache.counts().misses;
    for nth in 0..CHUNKS {
        cache.get(LOCAL, nth * chunk + 16, chunk - 8, whole).unwrap();
    }
    assert_eq!(cache.counts().misses, misses, "all are kept");
}

/// Memory may become writable later, which raises no event.
#[test]
fn memory_that_cannot_be_written_is_not_kept_by_watching_it() {
    let cache = watching(PAGES, CacheLimits { count: 8, bytes: 1 << 20 });
    for _ in 0..2 {
        let mut made = Vec::new();
        let got = cache.get(LOCAL, PAGE, PAGE, |_, _, memory| {
            made.push(memory);
            if memory == KeptAs::Watched { Err("cannot be written") } else { Ok(memory) }
        });
        assert_eq!((*got.unwrap(), made), (KeptAs::Lent, vec![KeptAs::Watched, KeptAs::Lent]));
        assert_eq!(cache.counts().kept, 0);
    }
}

#[test]
fn messages_in_guarded_memory_are_registered_for_peers_alone() {
    let cache = watching(PAGES, CacheLimits { count: 8, bytes: 1 << 20 });
    let id = cache.add_guarded(2 * PAGE, 4 * PAGE);
    let get = |purpose, start| *cache.get(purpose, start, 100, whole).unwrap();
    assert_eq!(get(Purpose::Exposed, 3 * PAGE), (3 * PAGE, 100));
    assert_eq!(get(Purpose::Exposed, 2 * PAGE - 1), (2 * PAGE - 1, 100), "a part of it is guarded");
    assert_eq!(cache.counts().kept, 0);
    assert_eq!(get(LOCAL, 3 * PAGE), (2 * PAGE, 4 * PAGE), "requests of this end use the range");
    cache.remove(id);
    assert_eq!(get(Purpose::Exposed, 3 * PAGE), (3 * PAGE, 100));
    assert_eq!(cache.counts().kept, 1);
}

const PAGE: usize = 1 << 12;
/// Number of pages of the simulated process.
const PAGES: usize = 24;

/// A simulated process: its pages by number, and a kernel that reports their replacement late.
struct Kernel(Mutex<Process>);

#[derive(Default)]
struct Process {
    /// How often each page was replaced.
    generations: Vec<usize>,
    /// Pages that are watched, by the process's mapping: a new mapping is not.
    watched: Vec<bool>,
    /// Watches that were begun and not ended.
    watches: Vec<Span<usize>>,
    unread: Vec<Change>,
    published: Vec<Change>,
    /// Changes before this number are lost.
    first: usize,
}

impl Kernel {
    fn process(&self) -> MutexGuard<'_, Process> {
        self.0.lock().unwrap()
    }

    fn generations(&self, start: usize, len: usize) -> Vec<usize> {
        self.process().generations[start / PAGE..(start + len).div_ceil(PAGE)].to_vec()
    }
}

impl Process {
    /// Maps pages anew. The event of those that are watched stays unread at first.
    fn replace(&mut self, pages: Span<usize>) {
        for page in pages.clone() {
            self.generations[page] += 1;
            if std::mem::take(&mut self.watched[page]) {
                self.unread.push(Change::Unmapped(page * PAGE..(page + 1) * PAGE));
            }
        }
    }
}

impl Watch for Kernel {
    fn watch(&self, pages: &Span<usize>) -> bool {
        let mut process = self.process();
        process.watches.push(pages.clone());
        process.watched[pages.start / PAGE..pages.end / PAGE].fill(true);
        true
    }

    fn unwatch(&self, pages: &Span<usize>, gone: Option<&Span<usize>>) {
        let mut process = self.process();
        let at = process.watches.iter().position(|known| known == pages).expect("a watch of these pages");
        process.watches.swap_remove(at);
        let others: BTreeSet<usize> =
            process.watches.iter().flat_map(|span| span.clone().step_by(PAGE)).collect();
        for at in pages.clone().step_by(PAGE) {
            if !others.contains(&at) && !gone.is_some_and(|gone| gone.contains(&at)) {
                process.watched[at / PAGE] = false;
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.process().unread.is_empty()
    }

    fn is_here(&self) -> bool {
        true
    }

    fn published(&self) -> u64 {
        self.process().published.len() as u64
    }

    fn changes(&self, from: u64, each: &mut dyn FnMut(Change)) -> Option<u64> {
        let (changes, first) = {
            let process = self.process();
            (process.published.clone(), process.first)
        };
        if from < first as u64 {
            return None;
        }
        changes[from as usize..].iter().cloned().for_each(each);
        Some(changes.len() as u64)
    }
}

proptest! {
    /// For any order of uses, replaced pages and late or lost events, an operation gets a registration of the pages
    /// that are there when it begins, and the cache respects its limits.
    #[test]
    fn replaced_pages_are_never_reached(
        steps in prop::collection::vec((0..8u8, 0..PAGES, 1..6usize, 0..PAGE), 1..120),
        (count, pages) in (1..6usize, 1..16usize),
    ) {
        let process = Process {
            generations: vec![0; PAGES],
            watched: vec![false; PAGES],
            ..Process::default()
        };
        let kernel: &'static Kernel = Box::leak(Box::new(Kernel(Mutex::new(process))));
        let limits = CacheLimits { count, bytes: pages * PAGE };
        let mut cache = Cache::with(CacheLimits { count: 0, bytes: 0 }, Some((kernel, limits)));
        cache.page = PAGE;
        let pin = |start: usize, len: usize, _: KeptAs| Ok::<_, &str>((start, kernel.generations(start, len)));
        for (what, page, long, skip) in steps {
            let end = (page + long).min(PAGES);
            match what {
                0 => kernel.process().replace(page..end),
                1 => {
                    let mut process = kernel.process();
                    let unread = std::mem::take(&mut process.unread);
                    process.published.extend(unread);
                }
                2 if long == 5 => {
                    let mut process = kernel.process();
                    process.first = process.published.len();
                }
                _ => {
                    let (start, len) = (page * PAGE + skip, (end - page) * PAGE - skip);
                    let purpose = if long.is_multiple_of(2) { Purpose::Exposed } else { LOCAL };
                    let made = cache.get(purpose, start, len, pin).unwrap();
                    let (from, generations) = &*made;
                    let its = &generations[page - from / PAGE..][..end - page];
                    prop_assert_eq!(its, &kernel.generations(start, len)[..]);
                }
            }
            let counts = cache.counts();
            prop_assert!(counts.kept <= count && counts.bytes <= pages * PAGE);
            prop_assert_eq!(kernel.process().watches.len(), counts.kept);
        }
        drop(cache);
        prop_assert!(kernel.process().watches.is_empty());
    }
}
