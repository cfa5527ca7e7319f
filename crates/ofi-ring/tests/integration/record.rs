//! The record ring's guarantees, seen from one thread.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicU64, Ordering};

use ofi_ring::{
    memory::LINE,
    record::{HEADER, Producer, ReserveError, max_body},
};
use proptest::{collection::vec, prelude::*};

use super::common::{self, Stream, heap_ring};

/// The body length of a record of `lines` lines.
const fn body(lines: usize) -> usize {
    lines * LINE - HEADER
}

#[test]
fn a_record_keeps_its_length_its_high_half_and_its_bytes() {
    let mut ring = heap_ring(16);
    for (len, high) in [(0, 0), (1, u32::MAX), (56, 1), (57, 2), (max_body(16), 3)] {
        assert!(ring.consumer.peek().unwrap().is_none());
        let mut slot = ring.producer.reserve(len).unwrap();
        // SAFETY: `len` bytes are reserved.
        unsafe { slot.body().write_bytes(len as u8, len) };
        slot.publish(high);
        let record = ring.consumer.peek().unwrap().unwrap();
        assert_eq!((record.high, record.body_len, record.body.addr() % 8), (high, len, 0));
        // SAFETY: the producer is idle until `advance`.
        let bytes = unsafe { std::slice::from_raw_parts(record.body, len) };
        assert!(bytes.iter().all(|&byte| byte == len as u8));
        ring.consumer.advance(&record);
    }
}

#[test]
fn what_is_not_published_is_not_there() {
    let mut ring = heap_ring(8);
    let _ = ring.producer.reserve(8).unwrap();
    assert!(ring.consumer.peek().unwrap().is_none());
    assert_eq!(ring.producer.tail(), 0);
    ring.producer.reserve(8).unwrap().publish(1);
    assert_eq!(ring.producer.tail(), 1);
    assert_eq!([1, 1], [(); 2].map(|()| ring.consumer.peek().unwrap().unwrap().high));
}

#[test]
fn a_record_takes_at_most_a_quarter_of_the_ring_and_a_line() {
    for count in [4, 8, 64] {
        let mut ring = heap_ring(count);
        assert_eq!(max_body(count), body(count / 4 + 1));
        for len in [max_body(count) + 1, usize::MAX - 7, usize::MAX] {
            assert_eq!(ring.producer.reserve(len).err(), Some(ReserveError::TooBig));
        }
        assert!(ring.producer.reserve(max_body(count)).is_ok());
    }
}

#[test]
fn a_full_ring_keeps_one_line_and_has_room_again_once_read() {
    let mut ring = heap_ring(8);
    for high in 0..7 {
        ring.producer.reserve(body(1)).unwrap().publish(high);
    }
    assert_eq!(ring.producer.reserve(0).err(), Some(ReserveError::Full));
    for high in 0..7 {
        assert!(!ring.producer.is_drained());
        let record = ring.consumer.peek().unwrap().unwrap();
        assert_eq!(record.high, high);
        ring.consumer.advance(&record); // an eighth of this ring is one line
        assert!(ring.producer.reserve(0).is_ok());
    }
    assert!(ring.producer.is_drained());
}

#[test]
fn the_position_is_published_by_eighths_and_by_flush() {
    let mut ring = heap_ring(64);
    let head = |ring: &common::Ring| ring.memory.1.load(Ordering::Relaxed);
    for sent in 1..=8 {
        ring.producer.reserve(0).unwrap().publish(0);
        let record = ring.consumer.peek().unwrap().unwrap();
        ring.consumer.advance(&record);
        assert_eq!(head(&ring), sent / 8 * 8);
    }
    ring.producer.reserve(0).unwrap().publish(0);
    let record = ring.consumer.peek().unwrap().unwrap();
    ring.consumer.advance(&record);
    assert!(!ring.producer.is_drained());
    ring.consumer.flush();
    assert_eq!((head(&ring), ring.producer.is_drained()), (9, true));
    ring.consumer.prefetch_next();
}

#[test]
fn a_record_that_does_not_fit_before_the_end_goes_to_line_0() {
    let mut ring = heap_ring(16);
    let mut pass = |len, high| {
        ring.producer.reserve(len).unwrap().publish(high);
        let record = ring.consumer.peek().unwrap().unwrap();
        assert_eq!((record.high, record.body_len), (high, len));
        ring.consumer.advance(&record);
        (record.body.addr(), ring.producer.tail())
    };
    let (start, _) = pass(body(4), 0);
    pass(body(4), 1);
    pass(body(4), 2);
    assert_eq!(pass(body(2), 3), (start + 12 * LINE, 14));
    assert_eq!(pass(body(4), 4), (start, 20)); // two lines skipped
    pass(body(4), 5);
    pass(body(4), 6);
    assert_eq!(pass(body(4), 7), (start + 12 * LINE, 32)); // up to the end exactly
    assert_eq!(pass(body(1), 8), (start, 33));
}

/// A short lap of a ring of 64 lines is nine lines long.
#[test]
fn a_producer_turns_after_a_short_lap_if_all_before_has_been_read() {
    let mut ring = heap_ring(64);
    let mut pass = |high, flush| {
        ring.producer.reserve_turning(body(4)).unwrap().publish(high);
        let record = ring.consumer.peek().unwrap().unwrap();
        assert_eq!((record.high, record.body_len), (high, body(4)));
        ring.consumer.advance(&record);
        if flush {
            ring.consumer.flush();
        }
        (record.body.addr(), ring.producer.tail())
    };
    let (start, _) = pass(0, true);
    pass(1, true);
    assert_eq!(pass(2, true), (start + 8 * LINE, 64)); // the last record of this lap has all lines to the end
    assert_eq!(pass(3, true), (start, 68));
    pass(4, false);
    pass(5, false);
    // The record before is not known to have been read.
    assert_eq!(pass(6, true), (start + 12 * LINE, 80));
}

#[test]
fn a_slot_that_is_dropped_does_not_turn() {
    let mut ring = heap_ring(64);
    for high in 0..9 {
        ring.producer.reserve_turning(0).unwrap().publish(high);
        let record = ring.consumer.peek().unwrap().unwrap();
        ring.consumer.advance(&record);
    }
    ring.consumer.flush();
    drop(ring.producer.reserve_turning(0).unwrap());
    assert_eq!(ring.producer.tail(), 9);
    ring.producer.reserve_turning(0).unwrap().publish(9);
    let record = ring.consumer.peek().unwrap().unwrap();
    assert_eq!(record.high, 9);
    ring.consumer.advance(&record);
    assert!(ring.consumer.peek().unwrap().is_none());
    ring.consumer.flush();
    assert!(ring.producer.is_drained());
}

#[test]
fn the_longest_records_never_get_stuck() {
    for count in [4, 8, 16, 64] {
        let mut ring = heap_ring(count);
        for lines in (1..=count / 4 + 1).cycle().take(500) {
            assert!(ring.consumer.peek().unwrap().is_none()); // may take a skip, and does not flush
            ring.producer.reserve(body(lines)).unwrap().publish(lines as u32);
            let record = ring.consumer.peek().unwrap().unwrap();
            assert_eq!((record.high, record.body_len), (lines as u32, body(lines)));
            ring.consumer.advance(&record);
        }
    }
}

#[test]
fn a_ring_may_be_filled_before_its_consumer_is_known() {
    let mut ring = heap_ring(8);
    let stand_in = AtomicU64::new(0);
    // SAFETY: `stand_in` and the memory live longer, and the ring's own producer is not used.
    let mut producer = unsafe { Producer::new(ring.memory.0.lines(), &stand_in) };
    for high in 0..7 {
        producer.reserve(0).unwrap().publish(high);
    }
    assert_eq!(producer.reserve(0).err(), Some(ReserveError::Full));
    let record = ring.consumer.peek().unwrap().unwrap();
    ring.consumer.advance(&record);
    assert_eq!(producer.reserve(0).err(), Some(ReserveError::Full));
    // SAFETY: the memory lives longer.
    unsafe { producer.attach(&ring.memory.1) };
    assert!(producer.reserve(0).is_ok());
}

proptest! {
    #![proptest_config(common::config())]

    /// `true` sends and `false` receives: accepted records come out once and in order.
    #[test]
    fn accepted_records_come_out_in_order(
        steps in vec(any::<bool>(), 0..600),
        count in prop::sample::select(vec![4_usize, 8, 16, 128]),
        seed in any::<u64>(),
    ) {
        let mut ring = heap_ring(count);
        let (mut sent, mut received) = (Stream::new(seed, count), Stream::new(seed, count));
        let mut inside = 0_usize;
        for send in steps {
            if send {
                match sent.send(&mut ring.producer) {
                    Ok(()) => inside += 1,
                    Err(error) => prop_assert_eq!((error, inside > 0), (ReserveError::Full, true)),
                }
            } else {
                match ring.consumer.peek().unwrap() {
                    Some(record) => {
                        received.check(&record);
                        ring.consumer.advance(&record);
                        inside -= 1;
                    }
                    None => {
                        ring.consumer.flush();
                        prop_assert!(inside == 0);
                    }
                }
            }
        }
    }
}
