//! Flows as streams: several of both kinds in one thread, missed data, a flow that is deleted.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use futures_core::Stream;
use mxl::{Batch, BatchHints, Batches, Error, Grains, SampleWriter, Wait, wait_any};

use super::common::{Folder, camera, microphone};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future in this thread, which sleeps while there is nothing to do. Also returns the number of polls.
fn block_on<T>(mut future: impl Future<Output = T> + Unpin) -> (T, usize) {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let begin = Instant::now();
    for polls in 1.. {
        if let Poll::Ready(value) = Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            return (value, polls);
        }
        std::thread::park_timeout(Duration::from_secs(20));
        assert!(begin.elapsed() < Duration::from_secs(20), "the task was not woken");
    }
    unreachable!("the loop has no end")
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
    // One flow is deleted: its stream ends, and the others continue.
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
    assert!(first > 5 && first <= 32 - writer.grains() + 2, "the oldest available grain: {first}");
    for index in first + 1..=30 {
        assert_eq!(items.next().unwrap().unwrap(), index);
    }
    assert!(matches!(items.next(), Some(Err(Error::Skipped { index: 31 }))));
    assert_eq!(items.next().unwrap().unwrap(), 32);
}

fn commit(writer: &mut SampleWriter, index: u64, count: u64) {
    let mut open = writer.open(index, count).unwrap();
    for channel in 0..2 {
        let samples: Vec<f32> = (index - count..index).map(|index| index as f32).collect();
        open.write_channel(channel, &samples).unwrap();
    }
    open.commit().unwrap();
}

/// The next item of a stream of samples, and the number of polls.
fn next_batch(stream: &mut Batches) -> (Option<Result<Batch, Error>>, usize) {
    block_on(poll_fn(|context| Pin::new(&mut *stream).poll_next(context)))
}

#[test]
fn samples_come_in_batches_beside_grains_in_one_thread() {
    const BATCH: u64 = 480;
    let folder = Folder::new();
    let domain = folder.domain();
    let pictures = domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer;
    let mut sound = domain.create_samples(&microphone(2), &BatchHints::default()).unwrap().writer;
    let (pictures_id, sound_id) = (pictures.id(), sound.id());
    let mut grains = Arc::new(domain.read_grains(pictures_id).unwrap()).stream(100);
    let reader = Arc::new(domain.read_samples(sound_id).unwrap());
    let mut batches = reader.stream(48_000, BATCH).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 0..20 {
                commit(&mut sound, 48_000 + (step + 1) * BATCH, BATCH);
                if step % 2 == 0 {
                    pictures.open(100 + step / 2).unwrap().commit().unwrap();
                }
                std::thread::sleep(Duration::from_millis(3));
            }
        });
        let (mut grain, mut sample) = (100, 48_000);
        while grain < 110 || sample < 48_000 + 20 * BATCH {
            block_on(poll_fn(|context| {
                if let Poll::Ready(item) = Pin::new(&mut grains).poll_next(context) {
                    assert_eq!(item.unwrap().unwrap().index, grain);
                    grain += 1;
                    return Poll::Ready(());
                }
                let Poll::Ready(item) = Pin::new(&mut batches).poll_next(context) else {
                    return Poll::Pending;
                };
                let Batch { index, count } = item.unwrap().unwrap();
                assert_eq!((index - count, count), (sample, BATCH));
                sample = index;
                let mut samples = vec![0_f32; BATCH as usize];
                reader.read(index, count, Wait::Not).unwrap().read_channel(1, &mut samples).unwrap();
                assert_eq!(samples[7], (index - count + 7) as f32);
                Poll::Ready(())
            }));
        }
    });
    drop(sound);
    let (item, polls) = next_batch(&mut batches);
    assert!(matches!(item, Some(Err(Error::FlowInvalid))), "{item:?}");
    assert!(polls < 100, "it slept: {polls} polls");
    assert!(next_batch(&mut batches).0.is_none());
}

#[test]
fn a_stream_of_samples_that_is_late_says_so_and_goes_on() {
    let folder = Folder::new();
    let domain = folder.domain();
    let mut writer = domain.create_samples(&microphone(2), &BatchHints::default()).unwrap().writer;
    let reader = Arc::new(domain.read_samples(writer.id()).unwrap());
    for step in 1..=100 {
        commit(&mut writer, step * 480, 480);
    }
    let mut batches = reader.stream(480, 100).unwrap();
    let Some(Err(Error::TooLate { index: 580, oldest })) = next_batch(&mut batches).0 else { panic!() };
    let first = next_batch(&mut batches).0.unwrap().unwrap();
    let start = first.index - first.count;
    assert!(
        start >= oldest && start < oldest + 100 && (start - 480).is_multiple_of(100),
        "{first:?} and {oldest}"
    );
    assert_eq!(next_batch(&mut batches).0.unwrap().unwrap().index, first.index + 100);
    for count in [0, reader.max_read() + 1] {
        assert!(matches!(reader.stream(0, count), Err(Error::Argument(_))));
    }
}

/// Samples that complete no batch of the writer's hint wake no reader, and other flows keep the waiting thread busy.
#[test]
fn samples_without_a_signal_are_seen_while_other_flows_are_busy() {
    let folder = Folder::new();
    let domain = folder.domain();
    let mut sound = domain.create_samples(&microphone(2), &BatchHints::default()).unwrap().writer;
    let busy = domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer;
    let reader = Arc::new(domain.read_samples(sound.id()).unwrap());
    commit(&mut sound, 48_000, 480);
    let mut batches = reader.stream(48_000, 100).unwrap();
    let mut grains = Arc::new(domain.read_grains(busy.id()).unwrap()).stream(0);
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let end = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for index in 1..4000 {
                busy.open(index).unwrap().commit().unwrap();
                std::thread::sleep(Duration::from_millis(5));
                if index == 10 {
                    commit(&mut sound, 48_100, 100);
                }
                if is_over.load(end) {
                    return;
                }
            }
        });
        // Another task keeps the waiting thread busy.
        scope.spawn(|| {
            while !is_over.load(end) {
                block_on(poll_fn(|context| {
                    let is_ready = Pin::new(&mut grains).poll_next(context).is_ready();
                    if is_ready || is_over.load(end) { Poll::Ready(()) } else { Poll::Pending }
                }));
            }
        });
        let begin = Instant::now();
        let batch = next_batch(&mut batches);
        is_over.store(true, end);
        assert_eq!(batch.0.unwrap().unwrap(), Batch { index: 48_100, count: 100 });
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    });
}

#[test]
fn one_wait_is_for_grains_and_samples() {
    let folder = Folder::new();
    let domain = folder.domain();
    let pictures = domain.create_grains(&camera(), &BatchHints::default()).unwrap().writer;
    let mut sound = domain.create_samples(&microphone(2), &BatchHints::default()).unwrap().writer;
    let grains = domain.read_grains(pictures.id()).unwrap();
    let samples = domain.read_samples(sound.id()).unwrap();
    let watches = || [grains.watch(), samples.watch()];
    assert!(!wait_any(&watches(), Wait::For(Duration::from_millis(5))));
    let changed = |watches: [mxl::Watch<'_>; 2]| watches.map(|watch| watch.changed());
    std::thread::scope(|scope| {
        let seen = watches();
        scope.spawn(|| commit(&mut sound, 480, 480));
        assert!(wait_any(&seen, Wait::For(Duration::from_secs(20))));
        assert_eq!(changed(seen), [false, true]);
        let seen = watches();
        scope.spawn(|| pictures.open(1).unwrap().commit().unwrap());
        assert!(wait_any(&seen, Wait::For(Duration::from_secs(20))));
        assert_eq!(changed(seen), [true, false]);
    });
}

/// A writer that wakes its readers once in a second: a reader of smaller batches gets them when they are available.
#[test]
fn samples_that_wake_nobody_are_not_late() {
    // A loaded machine may stop either thread for most of an attempt. With announcements every 100 ms the medians would
    // be 50 ms, each time.
    let mut seen = Vec::new();
    let soon = (0..5).any(|_| {
        seen.push(median_lateness());
        seen.last().is_some_and(|medians| medians.iter().all(|&median| median < 20 * BATCH))
    });
    assert!(soon, "samples late, of each attempt: {seen:?}");
}

/// A millisecond of samples.
const BATCH: u64 = 48;

/// Commits a batch each millisecond. Returns the median number of samples that the writer was ahead of a batch that was
/// read: by a stream, and by calls.
fn median_lateness() -> [u64; 2] {
    let folder = Folder::new();
    let domain = folder.domain();
    let hints = BatchHints::new(BATCH as u32, 48_000);
    let mut sound = domain.create_samples(&microphone(2), &hints).unwrap().writer;
    let reader = Arc::new(domain.read_samples(sound.id()).unwrap());
    let begin = 480_000;
    commit(&mut sound, begin, BATCH);
    let mut batches = reader.stream(begin, BATCH).unwrap();
    let (mut of_stream, mut of_read) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            for step in 1..=400_u32 {
                std::thread::sleep(
                    (start + Duration::from_millis(1) * step).saturating_duration_since(Instant::now()),
                );
                commit(&mut sound, begin + u64::from(step) * BATCH, BATCH);
            }
        });
        // A reader that gets no processor for longer than the ring lasts is too late. It continues after what it
        // missed.
        let (mut index, mut missed) = (begin, false);
        while index < begin + 200 * BATCH {
            match next_batch(&mut batches).0.unwrap() {
                Ok(batch) => {
                    assert!(
                        batch.index == index + BATCH || std::mem::take(&mut missed) && batch.index > index
                    );
                    index = batch.index;
                    of_stream.push(reader.head() - index);
                }
                Err(Error::TooLate { .. }) => {
                    missed = true;
                    of_stream.push(u64::MAX);
                }
                Err(error) => panic!("{error}"),
            }
        }
        while index < begin + 400 * BATCH {
            index += BATCH;
            match reader.read(index, BATCH, Wait::For(Duration::from_secs(20))) {
                Ok(_) => of_read.push(reader.head() - index),
                Err(Error::TooLate { oldest, .. }) => {
                    of_read.push(u64::MAX);
                    index += oldest.saturating_sub(index).next_multiple_of(BATCH);
                }
                Err(error) => panic!("{error}"),
            }
        }
    });
    [of_stream, of_read].map(|mut late| {
        late.sort_unstable();
        late.get(late.len() / 2).copied().unwrap_or(u64::MAX)
    })
}
