//! The rings between threads that run at full speed, for a second or so each.
#![cfg(not(loom))]

use std::{
    sync::{
        Arc, Barrier,
        atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ofi_ring::{
    doorbell::{DoorbellSender, Sleeper, Wake, take_hint},
    membarrier::{self, Support},
    mpsc::{self, PushError},
    record::ReserveError,
};

use super::common::{Random, Ring, Stream, heap_ring};

/// Longer than any sleep that ends properly.
const LOST: Duration = Duration::from_secs(20);

#[test]
fn records_cross_threads_whole_and_in_order() {
    for count in [4, 16, 1024] {
        let Ring { mut producer, mut consumer, memory } = heap_ring(count);
        let total = AtomicU64::new(u64::MAX);
        thread::scope(|scope| {
            scope.spawn(|| {
                let (mut stream, mut sent) = (Stream::new(7, count), 0);
                let end = Instant::now() + Duration::from_millis(400);
                while sent % 1024 != 0 || Instant::now() < end {
                    match stream.send(&mut producer) {
                        Ok(()) => sent += 1,
                        Err(error) => {
                            assert_eq!(error, ReserveError::Full);
                            thread::yield_now();
                        }
                    }
                }
                total.store(sent, Ordering::Relaxed);
                while !producer.is_drained() {
                    thread::yield_now();
                }
            });
            let (mut stream, mut received) = (Stream::new(7, count), 0);
            while received < total.load(Ordering::Relaxed) {
                match consumer.peek().unwrap() {
                    Some(record) => {
                        stream.check(&record);
                        consumer.advance(&record);
                        received += 1;
                    }
                    None => {
                        consumer.flush();
                        thread::yield_now();
                    }
                }
            }
            consumer.flush();
        });
        drop(memory);
    }
}

#[test]
fn events_of_many_threads_arrive_once_each_in_order() {
    const PUSHERS: usize = 3;
    let (tx, mut rx) = mpsc::queue(8);
    let pushers: Vec<_> = (0..PUSHERS)
        .map(|id| {
            let tx = tx.clone();
            thread::spawn(move || {
                let mut number = 0_u64;
                loop {
                    match tx.push((id, number)) {
                        Ok(()) => number += 1,
                        Err(PushError::Full(entry)) => {
                            assert_eq!(entry, (id, number));
                            thread::yield_now();
                        }
                        Err(PushError::Closed(entry)) => {
                            assert_eq!(entry, (id, number));
                            return number;
                        }
                    }
                }
            })
        })
        .collect();
    let mut next = [0; PUSHERS];
    let mut take = |rx: &mut mpsc::Receiver<(usize, u64)>| match rx.pop() {
        Some((id, number)) => {
            assert_eq!(number, next[id]);
            next[id] += 1;
        }
        None => thread::yield_now(),
    };
    let end = Instant::now() + Duration::from_millis(700);
    while Instant::now() < end {
        take(&mut rx);
    }
    rx.close();
    let accepted: Vec<_> = pushers.into_iter().map(|pusher| pusher.join().unwrap()).collect();
    while !rx.is_empty() {
        take(&mut rx);
    }
    assert_eq!(next[..], accepted[..]);
}

/// The words beside one ring, and those of its receiver.
struct Words {
    attention: AtomicU32,
    hint: AtomicU8,
    sleeping: Arc<AtomicU32>,
}

/// One ring, whose sender's thread sends records with pauses for a while.
struct Lane {
    ring: Ring,
    words: Arc<Words>,
    stream: Stream,
}

impl Lane {
    /// Reads all available records.
    fn drain(&mut self) -> bool {
        let mut found = false;
        while let Some(record) = self.ring.consumer.peek().unwrap() {
            self.stream.check(&record);
            self.ring.consumer.advance(&record);
            found = true;
        }
        self.ring.consumer.flush();
        found
    }
}

/// Runs senders that sometimes pause, and a receiver on this thread that sleeps when its rings are empty.
/// With `by_hint`, the receiver checks only hints.
fn sleep_between_records(senders: u64, by_hint: bool) {
    const COUNT: usize = 16;
    let support = membarrier::register();
    let sleeping = Arc::new(AtomicU32::new(0));
    let receiver = thread::current();
    let start = Arc::new(Barrier::new(senders as usize + 1));
    let finished = Arc::new(AtomicU64::new(0));
    let mut lanes: Vec<_> = (0..senders)
        .map(|seed| {
            let attention = AtomicU32::new(u32::from(by_hint || support == Support::Missing));
            let words = Arc::new(Words { attention, hint: AtomicU8::new(0), sleeping: sleeping.clone() });
            Lane { ring: heap_ring(COUNT), words, stream: Stream::new(seed, COUNT) }
        })
        .collect();
    let threads: Vec<_> = lanes
        .iter_mut()
        .zip(0..)
        .map(|(lane, seed)| {
            // The lane's own producer is not used: this one takes its place.
            let lines = lane.ring.memory.0.lines();
            // SAFETY: the lanes outlive the threads, which are joined, and no other producer is used.
            let mut producer =
                unsafe { ofi_ring::record::Producer::new(lines, &raw const lane.ring.memory.1) };
            let words = lane.words.clone();
            let (receiver, start, finished) = (receiver.clone(), start.clone(), finished.clone());
            thread::spawn(move || {
                // SAFETY: `words` outlives the bell.
                let bell =
                    unsafe { DoorbellSender::new(&words.attention, &*words.sleeping, &words.hint, support) };
                let (mut stream, mut random) = (Stream::new(seed, COUNT), Random(seed));
                let mut sent = 0_u64;
                start.wait();
                let end = Instant::now() + Duration::from_millis(600);
                while Instant::now() < end {
                    match stream.send(&mut producer) {
                        Ok(()) => sent += 1,
                        Err(error) => {
                            assert_eq!(error, ReserveError::Full);
                            thread::yield_now();
                            continue;
                        }
                    }
                    if bell.ring() == Wake::Needed {
                        receiver.unpark();
                    }
                    match random.below(64) {
                        0 => thread::sleep(Duration::from_micros(random.below(60))),
                        1..8 => thread::yield_now(),
                        _ => {}
                    }
                }
                finished.fetch_add(1, Ordering::Release);
                receiver.unpark();
                while !producer.is_drained() {
                    thread::yield_now();
                }
                sent
            })
        })
        .collect();
    // SAFETY: `sleeping` outlives it.
    let mut sleeper = unsafe { Sleeper::new(&*sleeping, support) };
    let mut sleeps = 0_u64;
    start.wait();
    loop {
        let all_sent = finished.load(Ordering::Acquire) == senders;
        let look = |lanes: &mut [Lane]| {
            let mut found = false;
            for lane in lanes {
                if !by_hint || take_hint(&lane.words.hint) {
                    found |= lane.drain();
                }
            }
            found
        };
        if look(&mut lanes) {
            continue;
        }
        if all_sent {
            break;
        }
        lanes.iter().for_each(|lane| sleeper.attend(&lane.words.attention));
        sleeper.arm().unwrap();
        if !look(&mut lanes) && finished.load(Ordering::Acquire) < senders {
            let before = Instant::now();
            thread::park_timeout(LOST);
            assert!(before.elapsed() < LOST, "a wake-up was lost");
            sleeps += 1;
        }
        sleeper.disarm();
        if !by_hint {
            lanes.iter().for_each(|lane| sleeper.unattend(&lane.words.attention));
        }
    }
    let sent: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    println!("{sent} records, {sleeps} sleeps");
    assert!(sleeps > 0 && lanes.iter_mut().all(|lane| !lane.drain()));
}

#[test]
fn a_receiver_that_polls_rings_is_always_woken() {
    sleep_between_records(1, false);
    sleep_between_records(3, false);
}

#[test]
fn a_receiver_that_polls_hints_is_always_woken() {
    sleep_between_records(3, true);
}
