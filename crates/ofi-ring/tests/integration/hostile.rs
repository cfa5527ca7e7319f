//! Either side of a record ring may be hostile: whatever it writes, the other side accesses only the ring's
//! lines.
//!
//! The lines lie between inaccessible pages, so a wild access ends the test. The consumer's mapping is read-only, and
//! so is the producer's of the consumer's word.
#![cfg(not(loom))]

use std::{
    os::fd::AsFd,
    sync::atomic::{AtomicU64, Ordering},
};

use ofi_ring::{
    memory::LINE,
    record::{Consumer, Producer, ReserveError, max_body},
};
use proptest::{collection::vec, prelude::*};

use super::common::{self, Mapping, PAGE, memfd};

/// Lines of one page.
const COUNT: usize = PAGE / LINE;
/// In a header word: the next record is in line 0.
const TURN: u64 = 1 << 31;

/// A file mapped twice: writable by its owner, read-only for the peer.
struct Page {
    ours: Mapping,
    theirs: Mapping,
}

fn page() -> Page {
    let file = memfd(PAGE);
    let map = |writable| Mapping::new(file.as_fd(), PAGE, writable);
    Page { ours: map(true), theirs: map(false) }
}

fn word(mapping: &Mapping, offset: usize) -> &AtomicU64 {
    let word: *const AtomicU64 = mapping.word(offset);
    // SAFETY: mapped as long as the mapping lives, aligned, and accessed atomically only.
    unsafe { &*word }
}

#[derive(Clone, Copy, Debug)]
enum Attack {
    /// Stores a header word at the start of a line, or at any place.
    Word {
        at: usize,
        value: u64,
    },
    Peek,
    /// Reads the record, and advances past it.
    Take,
}

fn header() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1), // a skip
        (8_u64..2048).prop_map(|length| TURN | length),
        0..2_000_u64,
        (any::<u32>(), 8..=1024_u64).prop_map(|(high, total)| u64::from(high) << 32 | total),
        any::<u64>(),
    ]
}

fn attack() -> impl Strategy<Value = Attack> {
    prop_oneof![
        3 => (0..COUNT, header()).prop_map(|(line, value)| Attack::Word { at: line * LINE, value }),
        1 => (0..PAGE / 8, any::<u64>()).prop_map(|(at, value)| Attack::Word { at: at * 8, value }),
        1 => Just(Attack::Peek),
        4 => Just(Attack::Take),
    ]
}

proptest! {
    #![proptest_config(common::config())]

    #[test]
    fn a_consumer_of_any_bytes_stays_inside(
        first in vec(header(), COUNT),
        attacks in vec(attack(), 0..300),
    ) {
        let (lines, head) = (page(), page());
        for (line, value) in first.into_iter().enumerate() {
            word(&lines.ours, line * LINE).store(value, Ordering::Relaxed);
        }
        let (start, end) = (lines.theirs.base().addr().get(), lines.theirs.base().addr().get() + PAGE);
        // SAFETY: the pages live to the end, and there is one consumer.
        let mut consumer = unsafe { Consumer::new(lines.theirs.lines(COUNT), head.ours.word(0)) };
        let mut before = 0;
        for attack in attacks {
            if let Attack::Word { at, value } = attack {
                word(&lines.ours, at).store(value, Ordering::Relaxed);
                continue;
            }
            consumer.prefetch_next();
            if let Ok(Some(record)) = consumer.peek() {
                prop_assert!(record.body_len <= max_body(COUNT));
                let body = record.body.addr();
                prop_assert!(start < body && body + record.body_len <= end);
                // SAFETY: just checked; the writer is idle at the moment.
                let bytes = unsafe { std::slice::from_raw_parts(record.body, record.body_len) };
                std::hint::black_box(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>());
                if let Attack::Take = attack {
                    consumer.advance(&record);
                }
            } else {
                consumer.flush();
            }
            let now = word(&head.ours, 0).load(Ordering::Relaxed);
            prop_assert!(before <= now); // the published position never goes backwards
            before = now;
        }
    }

    #[test]
    fn a_producer_with_any_position_stays_inside(
        steps in vec((0..1_100_usize, prop_oneof![
            4 => Just(None),
            2 => (0..200_u64).prop_map(Some), // near the real position
            1 => any::<u64>().prop_map(Some),
        ]), 0..300),
    ) {
        let (lines, head) = (page(), page());
        let (start, end) = (lines.ours.base().addr().get(), lines.ours.base().addr().get() + PAGE);
        // SAFETY: the pages live to the end, and there is one producer.
        let mut producer = unsafe { Producer::new(lines.ours.lines(COUNT), head.theirs.word(0)) };
        for (len, claim) in steps {
            if let Some(claim) = claim {
                word(&head.ours, 0).store(claim, Ordering::Relaxed);
            }
            let tail = producer.tail();
            let turns = len.is_multiple_of(2);
            match if turns { producer.reserve_turning(len) } else { producer.reserve(len) } {
                Ok(mut slot) => {
                    let body = slot.body().addr();
                    prop_assert!(start < body && body + len <= end);
                    // SAFETY: just checked.
                    unsafe { slot.body().write_bytes(0xFF, len) };
                    slot.publish(0);
                }
                Err(ReserveError::TooBig) => prop_assert!(len > COUNT / 4 * LINE - 8),
                Err(ReserveError::Full) => {}
                Err(ReserveError::Corrupt) => prop_assert_eq!(producer.tail(), tail),
            }
        }
    }
}

#[test]
fn impossible_positions_are_corrupt() {
    let (lines, head) = (page(), page());
    // SAFETY: the pages live to the end, and there is one producer.
    let mut producer = unsafe { Producer::new(lines.ours.lines(COUNT), head.theirs.word(0)) };
    let mut fill = |claim: u64| {
        word(&head.ours, 0).store(claim, Ordering::Relaxed);
        loop {
            match producer.reserve(0) {
                Ok(slot) => slot.publish(0),
                Err(error) => return (error, producer.tail()),
            }
        }
    };
    assert_eq!(fill(0), (ReserveError::Full, 63));
    assert_eq!(fill(64), (ReserveError::Corrupt, 63)); // not written yet
    assert_eq!(fill(u64::MAX), (ReserveError::Corrupt, 63));
    assert_eq!(fill(10), (ReserveError::Full, 73));
    assert_eq!(fill(9), (ReserveError::Corrupt, 73)); // backwards
    assert_eq!(fill(73), (ReserveError::Full, 136));
}

#[test]
fn impossible_header_words_are_corrupt() {
    let longest = (COUNT as u64 / 4 + 1) * LINE as u64;
    for (line, word_there, ok) in [
        (0, 8, true),
        (0, longest, true),
        (0, longest + 1, false),
        (0, 7, false),
        (0, 1 << 32, false),
        (0, u64::MAX, false),
        (0, 1, false),                   // a skip of everything
        (COUNT - 17, 1, false),          // a skip where any record would fit
        (COUNT - 16, 1, true),           // the longest skip
        (COUNT - 1, 1 << 32 | 1, false), // a skip with high bits
        (COUNT - 20, TURN | 64, true),
        (COUNT - 20, TURN | (longest + 1), false),
        (COUNT - 1, TURN | 7, false),
        (COUNT - 1, TURN | 64, true),
        (COUNT - 1, TURN | 65, false), // beyond the end
        (COUNT - 1, TURN | 1, false),  // neither a skip nor a length
        (COUNT - 1, 64, true),
        (COUNT - 1, 65, false), // beyond the end
    ] {
        let (lines, head) = (page(), page());
        // SAFETY: the pages live to the end, and there is one consumer.
        let mut consumer = unsafe { Consumer::new(lines.theirs.lines(COUNT), head.ours.word(0)) };
        for at in 0..line {
            word(&lines.ours, at * LINE).store(8, Ordering::Relaxed);
            let record = consumer.peek().unwrap().unwrap();
            consumer.advance(&record);
        }
        word(&lines.ours, 0).store(0, Ordering::Relaxed); // the line that a skip leads to
        word(&lines.ours, line * LINE).store(word_there, Ordering::Relaxed);
        assert_eq!(consumer.peek().is_ok(), ok, "{word_there:#x} in line {line}");
    }
}

#[test]
fn a_skip_leads_to_a_record_and_never_to_another_skip() {
    let words = [
        (0, true),
        (8, true),
        (TURN | 8, false),
        (1, false),
        (7, false),
        (TURN | 7, false),
        (1 << 20, false),
    ];
    for (at_line_0, ok) in words {
        let (lines, head) = (page(), page());
        // SAFETY: the pages live to the end, and there is one consumer.
        let mut consumer = unsafe { Consumer::new(lines.theirs.lines(COUNT), head.ours.word(0)) };
        for line in 0..COUNT - 1 {
            word(&lines.ours, line * LINE).store(8, Ordering::Relaxed);
            let record = consumer.peek().unwrap().unwrap();
            consumer.advance(&record);
        }
        word(&lines.ours, (COUNT - 1) * LINE).store(1, Ordering::Relaxed);
        word(&lines.ours, 0).store(at_line_0, Ordering::Relaxed);
        assert_eq!(consumer.peek().is_ok(), ok, "{at_line_0}");
        assert_eq!(consumer.peek().is_ok(), ok, "{at_line_0}, second peek");
    }
}
