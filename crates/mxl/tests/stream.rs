//! Grains as streams: several flows in one thread, missed grains, a flow that goes.

mod common;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use common::{Folder, camera};
use futures_core::Stream;
use mxl::{BatchHints, Error, Grains, Wait};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future in this thread, which sleeps while there is nothing to do. Answers how often it was polled as well.
fn block_on<T>(mut future: impl Future<Output = T> + Unpin) -> (T, usize) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let begin = Instant::now();
    for polls in 1.. {
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return (value, polls);
        }
        std::thread::park_timeout(Duration::from_secs(20));
        assert!(begin.elapsed() < Duration::from_secs(20), "nobody woke the task");
    }
    unreachable!("a range without an end")
}

/// The next item of any of the streams.
fn next(streams: &mut [Grains]) -> ((usize, Option<Result<u64, Error>>), usize) {
    block_on(poll_fn(|context| {
        for (at, stream) in streams.iter_mut().enumerate() {
            if let Poll::Ready(item) = Pin::new(stream).poll_next(context) {
                return Poll::Ready((at, item.map(|grain| grain.map(|info| info.index))));
            }
        }
        Poll::Pending
    }))
}

#[test]
fn a_thread_gets_the_grains_of_all_its_flows() {
    const FLOWS: usize = 20;
    let folder = Folder::new();
    let domain = folder.domain();
    let writers: Vec<_> =
        (0..FLOWS).map(|_| domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer).collect();
    let mut streams: Vec<_> =
        writers.iter().map(|writer| Arc::new(domain.read_grains(writer.id()).unwrap()).stream(100)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 100..105 {
                for writer in &writers {
                    writer.open(index).unwrap().commit().unwrap();
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let mut seen = [100; FLOWS];
        for _ in 0..FLOWS * 5 {
            let ((at, item), _) = next(&mut streams);
            assert_eq!(item.unwrap().unwrap(), seen[at], "stream {at}: each index once, in order");
            assert!(streams[at].reader().read(seen[at], Wait::Not).is_ok());
            seen[at] += 1;
        }
        assert_eq!(seen, [105; FLOWS]);
    });
    // One goes: it ends, and the others stay.
    let mut writers = writers;
    drop(writers.remove(3));
    let ((at, item), polls) = next(&mut streams);
    assert!(at == 3 && matches!(item, Some(Err(Error::FlowInvalid))), "{at} {item:?}");
    assert!(polls < 500, "it slept: {polls} polls");
    assert!(next(&mut streams[3..4]).0.1.is_none());
}

#[test]
fn a_stream_that_is_late_says_so_and_goes_on() {
    let folder = Folder::new();
    let domain = folder.domain();
    let writer = domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer;
    let reader = Arc::new(domain.read_grains(writer.id()).unwrap());
    for index in 1..=30 {
        writer.open(index).unwrap().commit().unwrap();
    }
    writer.open(32).unwrap().commit().unwrap();
    let mut streams = [reader.stream(5)];
    let mut items = std::iter::from_fn(|| next(&mut streams).0.1);
    assert!(matches!(items.next(), Some(Err(Error::TooLate { index: 5, .. }))));
    let first = items.next().unwrap().unwrap();
    assert!(first > 5 && first <= 32 - writer.grains() + 2, "the oldest that is there: {first}");
    for index in first + 1..=30 {
        assert_eq!(items.next().unwrap().unwrap(), index);
    }
    assert!(matches!(items.next(), Some(Err(Error::Skipped { index: 31 }))));
    assert_eq!(items.next().unwrap().unwrap(), 32);
}
