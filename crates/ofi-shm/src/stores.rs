//! Chooses the stores that write payloads into the rings to a peer.
//!
//! If both cores share a cache, plain stores are faster, at least for short payloads; if they do not, streaming stores
//! can take a quarter of the time (`docs/design-choices.md`). So some payloads are timed at both ends. The reader
//! publishes its costs in its pair memory, the writer compares them with its own, and uses the stores that cost the
//! slower end less (`choice.rs`). A peer that lies about its costs gets its payloads more slowly.

use std::sync::atomic::Ordering;

use ofi_api::Piece;
use ofi_core::copy::{self, Stores};
use ofi_ring::record::{Producer, Record, ReserveError, Slot};

use crate::choice::{Choice, Ways};
use crate::cma;
use crate::command::flag;
use crate::common::Common;
use crate::layout::{COPY_CLASSES, pair};
use crate::pair::OwnPair;
use crate::settings::StreamingStores;
use crate::sys::Mapping;

/// Shorter payloads are written by plain stores: on no measured host does that cost more than a fifth.
pub const LONG: usize = 1 << 10;

/// Outside trials, one in this many payloads of a size class is timed.
const TIMED: u32 = 8;

/// Longer payloads are not fetched before they are copied: the processor's own prefetching is as good there.
const PREFETCHED: usize = 8 << 10;

impl Ways for Stores {
    const BOTH: [Self; 2] = [Self::Cached, Self::Streaming];
    const FIRST_CLASS: u32 = LONG.ilog2();
    /// One lap of 4 KiB messages through the ring of commands has seven, of streamed ones.
    const TRIAL: u32 = 16;
    const SKIPPED: u32 = 12;

    fn index(self) -> usize {
        self as usize
    }
}

type StoresChoice = Choice<Stores, COPY_CLASSES>;

/// Ticks of a clock that all cores share, at any rate.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// How one payload is written.
#[derive(Clone, Copy, Default)]
pub struct StorePlan {
    pub stores: Stores,
    /// When its copy began, if it is timed.
    began: Option<u64>,
}

impl StorePlan {
    /// The flags of its record.
    pub fn flags(self) -> u32 {
        let streamed = if self.stores == Stores::Streaming { flag::STREAMED } else { 0 };
        streamed | if self.began.is_some() { flag::TIMED } else { 0 }
    }
}

/// The writer's end: the choice for payloads to one peer.
#[derive(Default)]
pub struct RingStores {
    /// Made at the first long payload.
    choice: Option<Box<StoresChoice>>,
}

impl RingStores {
    /// Copies `len` bytes of `pieces`, [`LONG`] or more, to `to` in a reserved record, and publishes it under `high`.
    /// `peer` is the other end's pair memory, once it is attached.
    ///
    /// # Safety
    /// The pieces are lent for reading, and `len` bytes at `to` lie in the record's body.
    #[inline(never)]
    pub unsafe fn publish(
        &mut self,
        common: &mut Common,
        peer: Option<&Mapping>,
        slot: Slot<'_>,
        pieces: &[Piece],
        (to, len): (*mut u8, usize),
        high: u32,
    ) {
        let body_len = slot.body_len();
        let plan = self.plan(common.streaming, peer.is_some(), body_len);
        // SAFETY: the caller's promise.
        unsafe { copy::gather_by(plan.stores, pieces, 0, to, len) };
        slot.publish(high | plan.flags());
        self.written(common, plan, body_len, peer);
    }

    /// Room for a record with a body of `len` bytes, [`LONG`] or more. Payloads that plain stores write, because both
    /// cores are near each other, stay in the first lines of the ring where they can: those remain in the nearest
    /// caches.
    #[inline]
    pub fn reserve<'a>(
        &self,
        setting: StreamingStores,
        ring: &'a mut Producer,
        len: usize,
    ) -> Result<Slot<'a>, ReserveError> {
        let streams = match setting {
            StreamingStores::Always => true,
            StreamingStores::Never => false,
            StreamingStores::Auto => {
                self.choice.as_ref().is_some_and(|choice| choice.next(len) == Stores::Streaming)
            }
        };
        if streams { ring.reserve(len) } else { ring.reserve_turning(len) }
    }

    /// Plans the payload of a record with a body of `len` bytes, to a peer that is attached if `up`. Call it right
    /// before the copy.
    pub fn plan(&mut self, setting: StreamingStores, up: bool, len: usize) -> StorePlan {
        match setting {
            _ if len < LONG || !up || !Stores::STREAM => StorePlan::default(),
            StreamingStores::Never => StorePlan::default(),
            StreamingStores::Always => StorePlan { stores: Stores::Streaming, began: None },
            StreamingStores::Auto => {
                let choice = self.choice.get_or_insert_default();
                let stores = choice.choose(len);
                StorePlan { stores, began: choice.samples(stores, len, TIMED).then(ticks) }
            }
        }
    }

    /// The record, whose body has `len` bytes, is published. Call it right after that.
    pub fn written(&mut self, common: &mut Common, plan: StorePlan, len: usize, peer: Option<&Mapping>) {
        if plan.stores == Stores::Streaming {
            common.counts.streamed_bytes += len as u64;
        }
        if let Some(began) = plan.began {
            self.timed(plan.stores, len, ticks().wrapping_sub(began), peer);
        }
    }

    #[cold]
    #[inline(never)]
    fn timed(&mut self, stores: Stores, len: usize, took: u64, peer: Option<&Mapping>) {
        let (Some(choice), Some(peer)) = (&mut self.choice, peer) else { return };
        let costs = cma::word(peer, pair::COPY_COSTS + 8 * StoresChoice::class_of(len));
        let reading = unpack(costs.load(Ordering::Relaxed))[stores.index()];
        if credible(reading) {
            // In a stream the slower end sets the speed. A single payload costs the sum of both, but choosing by the
            // sum gives a different result only if the two ways are close.
            choice.measured(stores, len, (took as f32 / len as f32).max(reading));
        }
    }
}

/// The reader's end: a payload that is about to be copied out of the ring.
pub struct Reading {
    high: u32,
    began: Option<u64>,
}

impl Reading {
    /// Begins with this record.
    #[inline]
    pub fn begin(record: &Record) -> Self {
        if record.high & flag::STREAMED != 0 && record.body_len <= PREFETCHED {
            record.prefetch();
        }
        Self { high: record.high, began: (record.high & flag::TIMED != 0).then(ticks) }
    }

    /// Its payload has been copied; its body has `len` bytes.
    #[inline]
    pub fn end(self, len: usize, own: Option<&OwnPair>) {
        if let (Some(began), Some(own)) = (self.began, own) {
            let stores = if self.high & flag::STREAMED != 0 { Stores::Streaming } else { Stores::Cached };
            tell(own, stores, len, ticks().wrapping_sub(began));
        }
    }
}

/// Publishes the cost of reading to the writer.
#[cold]
#[inline(never)]
fn tell(own: &OwnPair, stores: Stores, len: usize, took: u64) {
    let word = own.word64(pair::COPY_COSTS + 8 * StoresChoice::class_of(len));
    let mut costs = unpack(word.load(Ordering::Relaxed));
    let (cost, sample) = (&mut costs[stores.index()], took as f32 / len.max(1) as f32);
    // Outside events make samples longer, never shorter.
    *cost = if *cost > 0.0 { *cost + (sample.min(2.0 * *cost) - *cost) / 4.0 } else { sample };
    word.store(pack(costs), Ordering::Relaxed);
}

/// Whether a reader can have measured this. It is 0 before a measurement, and may be anything from a hostile reader.
fn credible(cost: f32) -> bool {
    cost > 0.0 && cost < 1e6
}

/// The costs per byte of both kinds of stores, in one word.
fn pack([cached, streaming]: [f32; 2]) -> u64 {
    u64::from(cached.to_bits()) | u64::from(streaming.to_bits()) << 32
}

fn unpack(word: u64) -> [f32; 2] {
    [f32::from_bits(word as u32), f32::from_bits((word >> 32) as u32)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_packed_and_unpacked() {
        for costs in [[0.0, 0.0], [0.25, 0.0], [0.0, 3.5], [1.0, 1e9]] {
            assert_eq!(unpack(pack(costs)), costs);
        }
    }

    #[test]
    fn what_no_reader_can_have_measured_is_not_believed() {
        for cost in [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            assert!(!credible(cost), "{cost}");
        }
        assert!([1e-6, 0.25, 1e3].into_iter().all(credible));
    }

    #[test]
    fn sizes_by_turns_are_all_timed_between_trials() {
        let mut stores = RingStores::default();
        // Trials become rare, as neither way is better.
        let mut timed = |turn: usize| {
            let len = [4_096, 16_440][turn % 2];
            let plan = stores.plan(StreamingStores::Auto, true, len);
            stores.choice.get_or_insert_default().measured(plan.stores, len, 1.0);
            plan.began.map(|_| len)
        };
        for turn in 0..30_000 {
            timed(turn);
        }
        let seen: Vec<usize> = (0..128).filter_map(&mut timed).collect();
        for len in [4_096, 16_440] {
            let count = seen.iter().filter(|&&timed| timed == len).count();
            assert!(!Stores::STREAM || (4..=24).contains(&count), "{count} of 64 of {len} bytes");
        }
    }

    #[test]
    fn the_way_with_the_lower_cost_is_planned_and_one_of_eight_is_timed() {
        let mut stores = RingStores::default();
        for streaming in [0.5, 2.0] {
            for _ in 0..5_000 {
                let plan = stores.plan(StreamingStores::Auto, true, 4_096);
                let cost = if plan.stores == Stores::Streaming { streaming } else { 1.0 };
                if plan.began.is_some() {
                    stores.choice.get_or_insert_default().measured(plan.stores, 4_096, cost);
                }
            }
            let plans: Vec<StorePlan> =
                (0..1_000).map(|_| stores.plan(StreamingStores::Auto, true, 4_096)).collect();
            let streamed = plans.iter().filter(|plan| plan.stores == Stores::Streaming).count();
            assert_eq!(streamed > 500, streaming < 1.0 && Stores::STREAM, "{streamed} of 1,000");
            let timed = plans.iter().filter(|plan| plan.began.is_some()).count();
            assert!(timed < 250, "{timed} of 1,000");
        }
        assert!(
            stores.plan(StreamingStores::Auto, false, 4_096).began.is_none(),
            "no peer tells its costs yet"
        );
        assert_eq!(stores.plan(StreamingStores::Always, true, LONG - 1).stores, Stores::Cached);
    }
}
