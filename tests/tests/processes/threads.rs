//! One endpoint, eight threads: all threads post, cancel and read, and the sums are right.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use ofi_testkit::prelude::*;
use ofi_tests::{Naming, open};

const THREADS: usize = 8;
const EACH: usize = 150;
const ALL: usize = THREADS * EACH;
const LEN: usize = 64;

/// The kind of operation, in the upper half of a context.
const SENT: usize = 1;
const TAGGED: usize = 2;
const PLAIN: usize = 3;
const WRITTEN: usize = 4;
const READ: usize = 5;
const CANCELLED: usize = 6;
const KINDS: usize = 7;

const fn context(kind: usize, number: usize) -> usize {
    kind << 32 | number
}

#[test]
fn eight_threads_post_cancel_and_read_on_one_endpoint() {
    for (library, naming) in [
        (false, Naming::Names),
        (true, Naming::Names),
        (false, Naming::Nearby),
        (false, Naming::Crossed),
        (true, Naming::Crossed),
    ] {
        let pair = Pair::of(open(naming), open(naming));
        let target =
            if library { Memory::library(&pair.b.domain, ALL * LEN) } else { Memory::new(ALL * LEN) };
        let region = pair.b.register(&target, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        let (tagged, plain, back) = (Memory::new(ALL * LEN), Memory::new(ALL * LEN), Memory::new(ALL * LEN));
        let counts: [AtomicUsize; KINDS] = Default::default();
        let written: Vec<AtomicUsize> = (0..ALL).map(|_| AtomicUsize::new(0)).collect();
        let sum = AtomicU64::new(0);
        let start = Instant::now();
        let at = |memory: &Memory, number: usize| memory.slice(number * LEN..(number + 1) * LEN);
        let count = |kind: usize| counts[kind].fetch_add(1, Ordering::Relaxed);
        let take = |side: &TestEndpoint| {
            let late = || format!("{counts:?}\n{}\n{}", pair.a.report(), pair.b.report());
            assert!(start.elapsed() < 4 * wait::BOUND, "{}", late());
            let mut entries = [CqTaggedEntry::EMPTY; 4];
            match side.rx.read(&mut CqBuffer::new(&mut entries)) {
                Ok(read) => {
                    for entry in &entries[..read] {
                        let (kind, number) = (entry.op_context.0 >> 32, entry.op_context.0 as u32 as usize);
                        match kind {
                            TAGGED => assert_eq!(entry.tag, number as u64, "the tag of each receive"),
                            PLAIN => drop(sum.fetch_add(entry.data, Ordering::Relaxed)),
                            WRITTEN => written[number].store(1, Ordering::Release),
                            SENT | READ => {}
                            _ => panic!("{entry:?}"),
                        }
                        count(kind);
                    }
                }
                Err(error) if error.errno() == Errno::EAVAIL => {
                    // Another thread may have read the error.
                    if let Ok(error) = side.rx.read_error() {
                        assert_eq!(error.err, Errno::ECANCELED, "{error:?}");
                        count(error.op_context.0 >> 32);
                    }
                }
                Err(error) => assert!(error.is_again(), "{error}"),
            }
        };
        let post = |post: &dyn Fn() -> Result<()>| {
            while let Err(error) = post() {
                assert!(error.is_again(), "{error}");
                take(&pair.a);
                take(&pair.b);
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pair, take, post, written) = (&pair, &take, &post, &written);
                let (tagged, plain, back, region) = (&tagged, &plain, &back, &region);
                scope.spawn(move || {
                    for number in (0..EACH).map(|number| thread * EACH + number) {
                        let from = Memory::patterned(LEN, number as u8);
                        let out = || pair.a.out(pair.to_b, &from).context(context(SENT, number));
                        let into =
                            |kind, memory| pair.b.receive(at(memory, number)).context(context(kind, number));
                        let there = [remote_at(region, number * LEN, LEN)];
                        post(&|| into(TAGGED, tagged).tag(number as u64).post());
                        post(&|| out().tag(number as u64).send());
                        post(&|| into(PLAIN, plain).post());
                        post(&|| out().data(number as u64).send());
                        post(&|| out().context(context(WRITTEN, number)).write(&there));
                        // A receive that no message matches.
                        let never = context(CANCELLED, number);
                        post(&|| pair.b.receive(()).context(never).tag(1 << 60 | number as u64).post());
                        pair.b.ep.cancel(Context(never)).unwrap();
                        take(&pair.b);
                        while written[number].load(Ordering::Acquire) == 0 {
                            take(&pair.a);
                            take(&pair.b);
                        }
                        let local = at(back, number);
                        post(&|| {
                            let read = pair.a.out(pair.to_b, local.clone()).context(context(READ, number));
                            read.read(&there)
                        });
                    }
                });
            }
        });
        let wanted = [0, 2 * ALL, ALL, ALL, ALL, ALL, ALL];
        let counted = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        while counted() != wanted {
            take(&pair.a);
            take(&pair.b);
        }
        let numbers = 0..ALL as u64;
        assert_eq!(sum.load(Ordering::Relaxed), numbers.sum::<u64>());
        for number in 0..ALL {
            for memory in [&tagged, &target, &back] {
                at(memory, number).check(number as u8);
            }
        }
    }
}
