use super::{FlowWords, JumpWords, open_samples, publish_samples, samples_unchanged, snapshot_samples};
use super::{Grain, Head, Miss, SlotWords, open, publish, snapshot, unchanged};
use crate::atomic::{AtomicU32, AtomicU64, Ordering};

/// A ring of one slot for each element, with payloads of two words.
struct Ring<const N: usize> {
    head: AtomicU64,
    last_write: AtomicU64,
    counter: AtomicU32,
    jump: (AtomicU64, AtomicU64),
    slots: [(AtomicU64, AtomicU32, AtomicU32, AtomicU32); N],
    payload: [[AtomicU64; 2]; N],
}

impl<const N: usize> Ring<N> {
    fn new() -> Self {
        let slot = |_| (AtomicU64::new(0), AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(2));
        Self {
            head: AtomicU64::new(0),
            last_write: AtomicU64::new(0),
            counter: AtomicU32::new(0),
            jump: (AtomicU64::new(0), AtomicU64::new(0)),
            slots: std::array::from_fn(slot),
            payload: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
        }
    }

    fn flow(&self) -> FlowWords<'_> {
        FlowWords { head: &self.head, last_write: &self.last_write, counter: &self.counter }
    }

    fn jump(&self) -> JumpWords<'_> {
        JumpWords { from: &self.jump.0, to: &self.jump.1 }
    }

    fn slot(&self, index: u64) -> SlotWords<'_> {
        let (index, flags, size, slices) = &self.slots[index as usize % N];
        SlotWords { index, flags, size, slices }
    }

    fn write(&self, index: u64) {
        open(self.slot(index), index, 2);
        for word in &self.payload[index as usize % N] {
            word.store(index, Ordering::Relaxed);
        }
        self.commit(index, 2);
    }

    fn commit(&self, index: u64, valid: u16) {
        let grain = Grain { flags: 0, size: 16, total: 2, valid };
        assert!(publish(self.flow(), self.slot(index), index, grain, Head::Set, 7));
    }

    fn read(&self, index: u64, wanted: u16) -> Result<Grain, Miss> {
        snapshot(self.flow(), self.slot(index), index, wanted, N as u64)
    }

    #[cfg(loom)]
    fn payload(&self, index: u64) -> [u64; 2] {
        std::array::from_fn(|at| self.payload[index as usize % N][at].load(Ordering::Relaxed))
    }
}

/// A payload that was copied, and found unchanged afterwards, belongs to one whole grain.
#[cfg(loom)]
#[test]
fn what_was_read_unchanged_is_one_whole_grain() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::<1>::new());
        ring.write(1);
        let writer = {
            let ring = ring.clone();
            loom::thread::spawn(move || ring.write(2))
        };
        for index in [1, 2] {
            if let Ok(grain) = ring.read(index, 2) {
                let payload = ring.payload(index);
                if unchanged(ring.slot(index), index) {
                    assert_eq!((payload, grain.valid), ([index; 2], 2));
                }
            }
        }
        writer.join().unwrap();
        assert!(ring.read(2, 2).is_ok());
    });
}

/// The last lap's slices never count for the next grain, even if the head is there already (a writer that goes back).
#[cfg(loom)]
#[test]
fn slices_of_the_last_lap_do_not_count() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::<1>::new());
        ring.write(1);
        ring.head.store(2, Ordering::Relaxed);
        let writer = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                open(ring.slot(2), 2, 2);
                ring.payload[0][0].store(2, Ordering::Relaxed);
                ring.commit(2, 1);
            })
        };
        if let Ok(grain) = ring.read(2, 1) {
            assert_eq!((grain.valid, ring.payload(2)[0]), (1, 2));
        }
        writer.join().unwrap();
    });
}

/// A reader that sees the counter of a commit sees the commit: it does not sleep through it.
#[cfg(loom)]
#[test]
fn who_sees_the_counter_sees_the_grain() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::<2>::new());
        let writer = {
            let ring = ring.clone();
            loom::thread::spawn(move || ring.write(1))
        };
        if ring.counter.load(Ordering::Acquire) == 1 {
            assert!(ring.read(1, 2).is_ok());
        }
        writer.join().unwrap();
    });
}

/// Samples that the check finds in the readable half were not overwritten while they were copied.
#[cfg(loom)]
#[test]
fn samples_in_the_readable_half_are_whole() {
    loom::model(|| {
        // A ring of two samples: one is readable, the other belongs to the writer.
        let ring = std::sync::Arc::new(Ring::<1>::new());
        let write = |ring: &Ring<1>, index: u64| {
            let jumps = open_samples(ring.flow(), ring.jump(), (index, 1), false);
            ring.payload[0][(index as usize - 1) % 2].store(index, Ordering::Relaxed);
            publish_samples(ring.flow(), ring.jump(), index, (true, jumps), 0);
        };
        write(&ring, 1);
        let writer = {
            let ring = ring.clone();
            loom::thread::spawn(move || {
                write(&ring, 2);
                write(&ring, 3);
            })
        };
        if snapshot_samples(ring.flow(), 1, 1, 2).is_ok() {
            let sample = ring.payload[0][0].load(Ordering::Relaxed);
            assert!(!samples_unchanged(ring.flow(), ring.jump(), (0, 1), 2) || sample == 1);
        }
        writer.join().unwrap();
    });
}

/// Samples that a jump overwrites before the head moves are not taken for those that were there.
#[cfg(loom)]
#[test]
fn samples_that_a_jump_overwrites_are_noticed() {
    loom::model(|| {
        let ring = std::sync::Arc::new(Ring::<1>::new());
        let write = |ring: &Ring<1>, index: u64| {
            let jumps = open_samples(ring.flow(), ring.jump(), (index, 1), false);
            ring.payload[0][(index as usize - 1) % 2].store(index, Ordering::Relaxed);
            publish_samples(ring.flow(), ring.jump(), index, (true, jumps), 0);
        };
        write(&ring, 3);
        let writer = {
            let ring = ring.clone();
            // Into the place of sample 2, twice; the second time back to before it.
            loom::thread::spawn(move || {
                write(&ring, 7);
                write(&ring, 1);
            })
        };
        if snapshot_samples(ring.flow(), 3, 1, 2).is_ok() {
            let sample = ring.payload[0][0].load(Ordering::Relaxed);
            assert!(!samples_unchanged(ring.flow(), ring.jump(), (2, 3), 2) || sample == 3);
        }
        writer.join().unwrap();
    });
}

#[cfg(not(loom))]
mod plain {
    use super::*;
    use crate::protocol::INVALID;

    #[test]
    fn the_slot_of_the_next_grain_is_read_until_that_grain_is_opened() {
        let ring = Ring::<4>::new();
        (1..=5).for_each(|index| ring.write(index));
        assert_eq!(ring.read(1, 2), Err(Miss::Late));
        assert!(ring.read(2, 2).is_ok());
        open(ring.slot(6), 6, 2);
        assert_eq!(ring.read(2, 2), Err(Miss::Late));
        assert!(ring.read(3, 2).is_ok());
        assert_eq!(ring.read(6, 2), Err(Miss::Early));
    }

    #[test]
    fn a_grain_that_the_writer_skipped_is_not_the_one_of_the_last_lap() {
        let ring = Ring::<4>::new();
        (1..=5).for_each(|index| ring.write(index));
        ring.write(8);
        assert_eq!(ring.read(6, 2), Err(Miss::Skipped));
        assert_eq!(ring.read(7, 0), Err(Miss::Skipped));
        assert!(ring.read(8, 2).is_ok());
    }

    #[test]
    fn a_new_grain_starts_without_slices_and_flags() {
        let ring = Ring::<2>::new();
        ring.write(1);
        let invalid = Grain { flags: INVALID, size: 16, total: 2, valid: 2 };
        assert!(publish(ring.flow(), ring.slot(1), 1, invalid, Head::Set, 0));
        assert_eq!(open(ring.slot(3), 3, 2), Grain { flags: 0, size: 16, total: 2, valid: 0 });
        ring.commit(3, 1);
        assert_eq!(ring.read(3, 2), Err(Miss::Early));
        // Opening the same grain again keeps its slices.
        assert_eq!(open(ring.slot(3), 3, 2).valid, 1);
        assert!(!unchanged(ring.slot(1), 1));
    }

    #[test]
    fn an_invalid_grain_needs_no_slices() {
        let ring = Ring::<2>::new();
        open(ring.slot(1), 1, 2);
        let invalid = Grain { flags: INVALID, size: 16, total: 2, valid: 0 };
        assert!(publish(ring.flow(), ring.slot(1), 1, invalid, Head::Set, 0));
        assert_eq!(ring.read(1, u16::MAX), Ok(invalid));
    }

    #[test]
    fn a_late_commit_keeps_the_head_and_a_jump_back_moves_it() {
        let ring = Ring::<4>::new();
        let whole = Grain { flags: 0, size: 16, total: 2, valid: 2 };
        let keep = Head::Keep { grains: 4 };
        for (index, head) in [(100, 100), (98, 100), (101, 101), (97, 97), (98, 98)] {
            open(ring.slot(index), index, 2);
            assert!(publish(ring.flow(), ring.slot(index), index, whole, keep, 0));
            assert_eq!(ring.head.load(Ordering::Relaxed), head, "after {index}");
        }
    }

    /// Regression test: a grain that was committed after its slot had been opened for the next lap marked that lap's
    /// half-written grain as complete.
    #[test]
    fn a_commit_that_comes_a_lap_late_completes_no_other_grain() {
        let ring = Ring::<4>::new();
        let whole = Grain { flags: 0, size: 16, total: 2, valid: 2 };
        for rule in [Head::Set, Head::Keep { grains: 4 }] {
            open(ring.slot(1), 1, 2);
            open(ring.slot(5), 5, 2);
            assert!(!publish(ring.flow(), ring.slot(1), 1, whole, rule, 0));
            assert_eq!(ring.head.load(Ordering::Relaxed), 0);
            open(ring.slot(6), 6, 2);
            assert!(publish(ring.flow(), ring.slot(6), 6, whole, rule, 0));
            assert_eq!((ring.read(5, 2), ring.read(6, 2)), (Err(Miss::Early), Ok(whole)));
            ring.head.store(0, Ordering::Relaxed);
        }
    }

    #[test]
    fn samples_are_read_from_the_half_that_is_not_written() {
        let ring = Ring::<1>::new();
        assert!(!open_samples(ring.flow(), ring.jump(), (100, 10), false), "nothing was there before");
        publish_samples(ring.flow(), ring.jump(), 100, (false, false), 3);
        assert_eq!(ring.counter.load(Ordering::Relaxed), 0);
        assert_eq!(snapshot_samples(ring.flow(), 101, 1, 20), Err(Miss::Early));
        assert_eq!(snapshot_samples(ring.flow(), 100, 10, 20), Ok(()));
        assert_eq!(snapshot_samples(ring.flow(), 100, 11, 20), Err(Miss::Late));
        assert_eq!(snapshot_samples(ring.flow(), 89, 0, 20), Err(Miss::Late));
        assert!(holds(&ring, 90, 100) && !holds(&ring, 89, 100) && !holds(&ring, 90, 101));
        assert_eq!(ring.last_write.load(Ordering::Relaxed), 3);
    }

    fn holds(ring: &Ring<1>, start: u64, end: u64) -> bool {
        samples_unchanged(ring.flow(), ring.jump(), (start, end), 20)
    }

    /// Regression test: samples that a writer overwrote after a jump counted as valid until the head moved.
    #[test]
    fn a_jump_ends_what_it_overwrites_before_the_head_moves() {
        let ring = Ring::<1>::new();
        publish_samples(ring.flow(), ring.jump(), 100, (false, false), 0);
        let open = |index, count, is_jumping| {
            assert!(open_samples(ring.flow(), ring.jump(), (index, count), is_jumping));
        };
        // A small gap: 103 to 107 lie in the places of 83 to 87, which nobody can read.
        open(107, 4, false);
        assert!(holds(&ring, 93, 100) && !holds(&ring, 92, 100));
        publish_samples(ring.flow(), ring.jump(), 107, (false, true), 0);
        assert_eq!((ring.jump.0.load(Ordering::Relaxed), ring.jump.1.load(Ordering::Relaxed)), (0, 0));
        assert!(holds(&ring, 97, 107));
        // Far ahead, and back.
        open(5000, 10, false);
        assert!(!holds(&ring, 106, 107));
        publish_samples(ring.flow(), ring.jump(), 5000, (false, true), 0);
        open(4995, 1, false);
        assert!(holds(&ring, 4990, 4994) && !holds(&ring, 4990, 4995) && !holds(&ring, 4995, 5000));
        // Another one without a commit: nothing is known.
        open(7000, 10, true);
        assert!(!holds(&ring, 4990, 4994) && !holds(&ring, 4999, 5000));
        publish_samples(ring.flow(), ring.jump(), 7000, (false, true), 0);
        assert!(!open_samples(ring.flow(), ring.jump(), (7010, 10), false), "it follows the head");
        assert!(holds(&ring, 6990, 7000));
        // A writer that died in a jump, and one of the C++ SDK that goes on.
        open(9000, 10, false);
        ring.head.store(7010, Ordering::Relaxed);
        assert!(holds(&ring, 7000, 7010));
    }
}
