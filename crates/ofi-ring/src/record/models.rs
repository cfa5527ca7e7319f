//! Loom models of the ring.

use loom::thread;

use super::*;
use crate::{memory::HeapLines, sync::Arc};

/// One-line body and two-line body.
const SHORT: usize = LINE - HEADER;
const LONG: usize = 2 * LINE - HEADER;

/// The model's memory: lines of the producer, the word of the consumer.
struct Shared {
    lines: HeapLines,
    head: AtomicU64,
}

/// How records are reserved: never turning, or turning after a short lap.
#[derive(Clone, Copy)]
enum Turns {
    Never,
    Soon,
}

struct Tx(Producer, Turns, #[expect(dead_code, reason = "keeps the memory")] Arc<Shared>);
struct Rx(Consumer, #[expect(dead_code, reason = "keeps the memory")] Arc<Shared>);

fn ring(count: usize, turns: Turns) -> (Tx, Rx) {
    let shared = Arc::new(Shared { lines: HeapLines::new(count).unwrap(), head: AtomicU64::new(0) });
    let lines = shared.lines.lines();
    // SAFETY: `Tx` keeps the memory, and there is one producer.
    let producer = unsafe { Producer::new(lines, &raw const shared.head) };
    // SAFETY: `Rx` keeps the memory, and there is one consumer.
    let consumer = unsafe { Consumer::new(lines, &raw const shared.head) };
    (Tx(producer, turns, shared.clone()), Rx(consumer, shared))
}

impl Tx {
    /// Sends a record whose lines all hold `id`.
    fn send(&mut self, id: u64, body_len: usize) -> Result<(), ReserveError> {
        let slot = match self.1 {
            Turns::Never => self.0.reserve(body_len)?,
            Turns::Soon => self.0.reserve_turning(body_len)?,
        };
        let lines = slot.producer.lines;
        for position in slot.producer.tail..slot.end {
            // SAFETY: one of the mapped lines.
            let line = unsafe { lines.at(position).as_ref() };
            // SAFETY: the reserved lines are the producer's; loom checks it.
            line.body().with_mut(|body| unsafe { *body = id });
            if position != slot.producer.tail {
                line.header().store(u64::MAX, Ordering::Relaxed); // bytes of the body
            }
        }
        slot.publish(id as u32);
        Ok(())
    }
}

impl Rx {
    /// Takes the next record, if there is one. Checks that all its lines hold its number, and returns that.
    fn receive(&mut self) -> Option<u64> {
        let record = self.0.peek().unwrap()?;
        for position in self.0.position..self.0.position + record.lines {
            // SAFETY: one of the mapped lines.
            let line = unsafe { self.0.lines.at(position).as_ref() };
            // SAFETY: the lines of a record are the consumer's; loom checks it.
            line.body().with(|body| assert_eq!(unsafe { *body }, u64::from(record.high)));
        }
        self.0.advance(&record);
        Some(u64::from(record.high))
    }
}

/// Sends and takes `warm_up`. Then lets `sends` race with `polls` polls, and takes the rest.
fn check(count: usize, turns: Turns, warm_up: &'static [usize], sends: &'static [usize], polls: usize) {
    loom::model(move || {
        let (mut tx, mut rx) = ring(count, turns);
        for &len in warm_up {
            tx.send(1, len).unwrap();
            assert_eq!(rx.receive(), Some(1));
        }
        rx.0.flush();
        let producer = thread::spawn(move || {
            let sent = (1..).zip(sends).take_while(|&(id, &len)| tx.send(id, len).is_ok()).count();
            (tx, sent as u64)
        });
        let mut seen: Vec<_> = (0..polls).filter_map(|_| rx.receive()).collect();
        let (tx, sent) = producer.join().unwrap();
        seen.extend(core::iter::from_fn(|| rx.receive()));
        assert_eq!(seen, (1..=sent).collect::<Vec<_>>());
        rx.0.flush();
        assert!(tx.0.is_drained());
    });
}

/// The first records of a ring, until it is full: three fit into four lines, the fourth only if one has been read.
#[test]
fn records_arrive_in_order_until_the_ring_is_full() {
    check(4, Turns::Never, &[], &[SHORT; 4], 2);
}

/// The line of the next record holds stale bytes of a body, until the producer clears it.
#[test]
fn stale_bodies_are_not_taken_for_headers() {
    check(8, Turns::Never, &[LONG, LONG, LONG, LONG, SHORT], &[SHORT, LONG], 2);
}

/// A long record in the last line: a skip, then line 0.
#[test]
fn a_record_that_does_not_fit_before_the_end_goes_to_line_0() {
    check(8, Turns::Never, &[LONG, LONG, LONG, SHORT], &[LONG, SHORT], 3);
}

/// The skip and the record behind it leave one line free.
#[test]
fn a_skip_may_fill_the_ring() {
    check(8, Turns::Never, &[SHORT, SHORT, SHORT], &[LONG, LONG, LONG, SHORT], 2);
}

/// If the producer sees the first record taken, the second one turns. Later records find its lines taken, or free
/// again.
#[test]
fn a_record_turns_once_all_before_it_is_read() {
    check(8, Turns::Soon, &[], &[SHORT, LONG, SHORT, LONG], 3);
}

/// The producer sees an empty ring: the record turns, and the next one is in line 0.
#[test]
fn a_record_that_turns_takes_the_lines_to_the_end() {
    check(8, Turns::Soon, &[LONG], &[SHORT, LONG], 2);
}

/// Line 0, where a skip would lead, is not free until the first record has been read.
#[test]
fn a_skip_waits_for_line_0() {
    check(8, Turns::Never, &[], &[LONG, LONG, LONG, SHORT, LONG], 2);
}

/// Once the producer has seen the ring drained, its stores race with no read.
#[test]
fn a_drained_ring_is_nobody_elses() {
    loom::model(|| {
        let (mut tx, mut rx) = ring(4, Turns::Never);
        tx.send(1, SHORT).unwrap();
        let consumer = thread::spawn(move || {
            assert_eq!(rx.receive(), Some(1));
            rx.0.flush();
        });
        if tx.0.is_drained() {
            // SAFETY: one of the mapped lines.
            let line = unsafe { tx.0.lines.at(0).as_ref() };
            // SAFETY: the consumer does not read it any more; loom checks it.
            line.body().with_mut(|body| unsafe { *body = 2 });
        }
        consumer.join().unwrap();
    });
}
