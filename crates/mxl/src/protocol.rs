//! The publication protocol, on words in shared files: how a writer publishes, and how a reader verifies what it has
//! read.
//!
//! The words and their meaning are those of the C++ SDK. The order of accesses is our own; other processes notice only
//! that there are fewer anomalies:
//!
//! I1. A slot's `index` names the grain whose bytes are in it, or are being written into it. It changes before any byte
//!     of the payload does (OPEN).
//! I2. Before `index` changes, `slices` and `flags` become 0, so no state of the previous lap counts for the new grain.
//! I3. A commit stores the slot's words, then `head`, then adds to `counter` (COMMIT): a reader that sees a head also
//!     sees everything committed before it.
//! I4. A reader that copied a payload and then finds `index` unchanged has copied no byte of another grain (CHECK).
//! I5. A commit publishes nothing if another grain has taken its slot meanwhile. (Writers of two processes that take
//!     and commit a slot at the same instant break this; writers of one flow agree on its indices.)
//! I6. A writer whose next samples do not follow the head announces that before it writes the first of them (JUMP): a
//!     reader that copied samples and then finds neither the head nor a jump in their range has copied no others. (A
//!     jump that is abandoned without a commit is forgotten at the next commit elsewhere, although its writer may have
//!     overwritten samples.)
//!
//! Pairs: COMMIT on `slices` and on `head`, publish (Release) to snapshot (Acquire).
//!        OPEN is `index` (Release), then `fence(Release)`, then payload; CHECK is payload, then `fence(Acquire)`, then
//!        `index`. `counter`, publish (Release) to the waiting reader (Acquire), which sleeps on it in the kernel.
//!        JUMP is `from` and `to` (Release), then `fence(Release)`, then samples; its check is samples, then
//!        `fence(Acquire)`, then `from`, `to` (Acquire) and `head`, in this order.
//!
//! A C++ writer keeps I1 and I4 on processors that keep stores in order (x86), but breaks I2 and I3: a reader may then
//! see an incomplete grain as complete, as a C++ reader would. It does not keep I6: a jump is noticed only when its
//! head moves, after the samples were written. Samples next to its head go into the half of the ring that no reader
//! reads, so only jumps go unnoticed.

use crate::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use crate::ring;

/// Flag of a grain: its payload is invalid, and readers should not wait for more of it.
pub const INVALID: u32 = 1;

/// The changing words of a flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowWords<'a> {
    /// The newest committed index.
    pub head: &'a AtomicU64,
    /// The time of the last write, in nanoseconds of TAI.
    pub last_write: &'a AtomicU64,
    /// The word that readers sleep on.
    pub counter: &'a AtomicU32,
}

/// The words in which our writers announce a jump in a flow of samples. They are in reserved bytes, which are 0 while
/// there is no jump (unless a writer died during one). A C++ writer does not touch them.
#[derive(Clone, Copy, Debug)]
pub struct JumpWords<'a> {
    /// The head before the jump. The words count only while the head has this value.
    pub from: &'a AtomicU64,
    /// The first index that is written after the jump; `u64::MAX` for several jumps without a commit in between.
    pub to: &'a AtomicU64,
}

/// The words of a grain's slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotWords<'a> {
    /// The index of the grain.
    pub index: &'a AtomicU64,
    /// [`INVALID`], or 0.
    pub flags: &'a AtomicU32,
    /// Bytes of payload.
    pub size: &'a AtomicU32,
    /// Total slices in the lower half, valid slices in the upper.
    pub slices: &'a AtomicU32,
}

/// The state of a grain in its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    /// [`INVALID`], or 0.
    pub flags: u32,
    /// Size of the payload in bytes, as the writer set it.
    pub size: u32,
    /// Slices of the whole grain.
    pub total: u16,
    /// Number of valid slices.
    pub valid: u16,
}

/// Why a read finds no data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Miss {
    /// Not yet written, or not enough of it yet.
    Early,
    /// Overwritten, or about to be.
    Late,
    /// The writer went past the grain without writing it.
    Skipped,
}

/// The effect of a commit on the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Head {
    /// The head becomes the committed index, whatever it was before, as in the C++ SDK.
    Set,
    /// The head stays if it is ahead by less than a ring of `grains`: one of several open grains was committed late.
    Keep {
        /// Slots of the ring.
        grains: u64,
    },
}

const fn pack(total: u16, valid: u16) -> u32 {
    total as u32 | (valid as u32) << 16
}

/// Assigns the slot to grain `index`, so that its payload may be written. Keeps the slot's state if it already holds
/// that grain.
pub fn open(slot: SlotWords<'_>, index: u64, total: u16) -> Grain {
    if slot.index.load(Ordering::Relaxed) != index {
        slot.slices.store(pack(total, 0), Ordering::Relaxed);
        slot.flags.store(0, Ordering::Relaxed);
        slot.index.store(index, Ordering::Release); // OPEN, I2
    }
    fence(Ordering::Release); // OPEN, I1
    let slices = slot.slices.load(Ordering::Relaxed);
    let (total, valid) = (slices as u16, (slices >> 16) as u16);
    Grain { flags: slot.flags.load(Ordering::Relaxed), size: slot.size.load(Ordering::Relaxed), total, valid }
}

/// Publishes the slot of grain `index`. The caller then wakes threads that sleep on the counter. If the slot was
/// assigned to another grain meanwhile, it publishes nothing, since that grain would count as complete, and returns
/// false.
#[must_use]
pub fn publish(
    flow: FlowWords<'_>,
    slot: SlotWords<'_>,
    index: u64,
    grain: Grain,
    head: Head,
    now: u64,
) -> bool {
    if slot.index.load(Ordering::Relaxed) != index {
        return false;
    }
    slot.flags.store(grain.flags, Ordering::Relaxed);
    slot.size.store(grain.size, Ordering::Relaxed);
    slot.slices.store(pack(grain.total, grain.valid), Ordering::Release); // COMMIT
    move_head(flow.head, index, head);
    flow.last_write.store(now, Ordering::Relaxed);
    flow.counter.fetch_add(1, Ordering::Release);
    true
}

fn move_head(word: &AtomicU64, index: u64, rule: Head) {
    let Head::Keep { grains } = rule else {
        return word.store(index, Ordering::Release); // COMMIT
    };
    let mut seen = word.load(Ordering::Relaxed);
    while !(seen > index && seen - index < grains) {
        match word.compare_exchange(seen, index, Ordering::Release, Ordering::Relaxed) {
            Ok(_) => return,
            Err(newer) => seen = newer,
        }
    }
    // Slices of an older grain: a reader that sees the head must see them too.
    fence(Ordering::Release);
}

/// The state of grain `index` in a ring of `grains` slots, if it has at least `wanted` slices.
///
/// # Errors
/// Why there is no data to read.
pub fn snapshot(
    flow: FlowWords<'_>,
    slot: SlotWords<'_>,
    index: u64,
    wanted: u16,
    grains: u64,
) -> Result<Grain, Miss> {
    let head = flow.head.load(Ordering::Acquire); // COMMIT
    if index > head {
        return Err(Miss::Early);
    }
    if index < ring::oldest_grain(head, grains) {
        return Err(Miss::Late);
    }
    let there = slot.index.load(Ordering::Acquire); // OPEN
    if there != index {
        return Err(if there < index { Miss::Skipped } else { Miss::Late });
    }
    let slices = slot.slices.load(Ordering::Acquire); // COMMIT
    let flags = slot.flags.load(Ordering::Relaxed);
    let size = slot.size.load(Ordering::Relaxed);
    if !unchanged(slot, index) {
        return Err(Miss::Late);
    }
    let (total, valid) = (slices as u16, (slices >> 16) as u16);
    if valid >= wanted.min(total) || flags & INVALID != 0 {
        Ok(Grain { flags, size, total, valid })
    } else {
        Err(Miss::Early)
    }
}

/// Whether the slot still holds grain `index`: then no earlier read from it returned bytes of another grain.
pub fn unchanged(slot: SlotWords<'_>, index: u64) -> bool {
    fence(Ordering::Acquire); // CHECK
    slot.index.load(Ordering::Relaxed) == index
}

/// Must be called before writing the `count` samples before `index`: orders all earlier stores before those of the
/// samples, and announces a jump if there is one. `is_jumping` says that an earlier jump was not committed. Returns
/// whether a jump is announced now.
#[must_use]
pub fn open_samples(
    flow: FlowWords<'_>,
    jump: JumpWords<'_>,
    (index, count): (u64, u64),
    is_jumping: bool,
) -> bool {
    let (head, start) = (flow.head.load(Ordering::Relaxed), index.wrapping_sub(count));
    // Before the first commit nothing can be read.
    let jumps = count > 0 && head != 0 && start != head;
    if jumps {
        // A jump from this head was announced and not committed, by this writer, by another one, or by one that died.
        let again = is_jumping || jump.from.load(Ordering::Relaxed) == head;
        jump.from.store(head, Ordering::Release); // JUMP
        jump.to.store(if again { u64::MAX } else { start }, Ordering::Release); // JUMP
    }
    fence(Ordering::Release); // JUMP
    is_jumping || jumps
}

/// Publishes samples up to `index`. `signal` says whether readers must be woken, which is the caller's task. `was_jump`
/// is the result of [`open_samples`].
pub fn publish_samples(
    flow: FlowWords<'_>,
    jump: JumpWords<'_>,
    index: u64,
    (signal, was_jump): (bool, bool),
    now: u64,
) {
    flow.head.store(index, Ordering::Release);
    if was_jump {
        // A reader that no longer sees the jump sees the new head.
        jump.from.store(0, Ordering::Release);
        jump.to.store(0, Ordering::Release);
    }
    flow.last_write.store(now, Ordering::Relaxed);
    if signal {
        flow.counter.fetch_add(1, Ordering::Release);
    }
}

/// Whether `count` samples before `index` can be read from a ring of `length`.
///
/// # Errors
/// Why they cannot be read.
pub fn snapshot_samples(flow: FlowWords<'_>, index: u64, count: u64, length: u64) -> Result<(), Miss> {
    let head = flow.head.load(Ordering::Acquire);
    if index > head {
        return Err(Miss::Early);
    }
    let oldest = ring::oldest_sample(head, length);
    if index < oldest || index - oldest < count { Err(Miss::Late) } else { Ok(()) }
}

/// Whether the samples that were read, from `start` to before `end`, cannot have been overwritten during the read,
/// neither by a writer that continues after its head nor by an announced jump.
pub fn samples_unchanged(
    flow: FlowWords<'_>,
    jump: JumpWords<'_>,
    (start, end): (u64, u64),
    length: u64,
) -> bool {
    fence(Ordering::Acquire); // JUMP
    let (from, to) = (jump.from.load(Ordering::Acquire), jump.to.load(Ordering::Acquire));
    let head = flow.head.load(Ordering::Relaxed);
    // A head that has moved back belongs to a writer that was restarted.
    let are_there = |head| start >= ring::oldest_sample(head, length) && end <= head;
    are_there(head) && (from == 0 || from != head || are_there(to))
}

#[cfg(test)]
mod tests;
