//! This program's promises to the raw layer about the memory that it lends and about its threads.
//!
//! Invariants:
//! I1. An [`Arena`] is freed after the endpoint that its memory was lent to is closed: `Node` keeps both, in that
//! order.
//! I2. The slots of a [`Slots`] do not overlap, and no two receives or reads in flight use the same one.
//! I3. A slot in flight is accessed only by the library: [`Slots::fill`] and [`Slots::verify`] are called only by
//!     `check.rs`, on slots whose completions it has read.
//! I4. No Rust reference to this memory exists at any time.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use ofi::raw::{
    Allocation, Desc, Domain, Errno, Error, Lent, MemoryRegion, MrAccess, MrAttr, Piece, Placement,
};

use super::options::Memory;
use crate::failure::{Failure, Result};

/// Slots begin at cache lines.
const LINE: usize = 64;

/// The usual alignment of an application's large buffers.
const PAGE: usize = 4096;

/// Memory for messages. It is touched, and registered if the transport requires that for local memory.
pub struct Arena {
    base: *mut u8,
    len: usize,
    memory: Memory,
    /// The registration's descriptor; empty without one.
    descs: Vec<Desc>,
    // Fields drop in order: first the registrations, then the memory.
    _local: Option<Arc<dyn MemoryRegion>>,
    exposed: OnceCell<Arc<dyn MemoryRegion>>,
    _owner: Owner,
}

enum Owner {
    Heap { base: *mut u8, layout: Layout },
    Library { _allocation: Allocation },
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Owner::Heap { base, layout } = *self {
            // SAFETY: allocated with this layout in `Arena::new`, and by I1 nothing uses it any more.
            unsafe { dealloc(base, layout) };
        }
    }
}

impl Arena {
    /// Allocates `len` bytes of the program's or the library's memory. `register`: the transport requires registered
    /// local buffers.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(domain: &dyn Domain, memory: Memory, len: usize, register: bool) -> Result<Arena> {
        let len = len.max(PAGE);
        let (base, owner) = match memory {
            Memory::Application => heap(len)?,
            Memory::Library => {
                let placement = Placement { huge: true, ..Placement::default() };
                let allocation = domain.alloc(len, placement).map_err(Failure::stack("fi_domain alloc"))?;
                (allocation.as_ptr(), Owner::Library { _allocation: allocation })
            }
        };
        // SAFETY: `len` bytes were just allocated, and no other code knows of them. Written so that no page is missing
        // when the clock runs.
        unsafe { base.write_bytes(1, len) };
        let local = if register {
            let access = MrAccess::SEND | MrAccess::RECV | MrAccess::READ | MrAccess::WRITE;
            Some(region(domain, Piece::new(base, len), access)?)
        } else {
            None
        };
        let descs = local.iter().map(|region| region.desc()).collect();
        Ok(Arena { base, len, memory, descs, _local: local, exposed: OnceCell::new(), _owner: owner })
    }

    /// The owner of the memory, and its length.
    pub fn kind(&self) -> (Memory, usize) {
        (self.memory, self.len)
    }

    /// Registers the whole arena for peers' accesses, once, as programs do: a peer must first examine each new
    /// registration.
    ///
    /// # Errors
    /// The error of the registration.
    pub fn expose(&self, domain: &dyn Domain) -> Result<Arc<dyn MemoryRegion>> {
        if let Some(region) = self.exposed.get() {
            return Ok(Arc::clone(region));
        }
        let access = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let region = region(domain, Piece::new(self.base, self.len), access)?;
        Ok(Arc::clone(self.exposed.get_or_init(|| region)))
    }
}

fn heap(len: usize) -> Result<(*mut u8, Owner)> {
    let refused = || {
        let found = format!("{len} bytes, which the system refuses");
        let error = Error::wanted(Errno::ENOMEM, "message buffers", "memory", found, "ask for smaller sizes");
        Failure::Stack { doing: "allocating", error }
    };
    let layout = Layout::from_size_align(len, PAGE).map_err(|_| refused())?;
    // SAFETY: the size is not zero, as `Arena::new` asks for a page at least.
    let base = unsafe { alloc_zeroed(layout) };
    if base.is_null() { Err(refused()) } else { Ok((base, Owner::Heap { base, layout })) }
}

fn region(domain: &dyn Domain, piece: Piece, access: MrAccess) -> Result<Arc<dyn MemoryRegion>> {
    // SAFETY: the arena outlives its registrations (field order; `jobs.rs` holds one for no longer than a job), and by
    // I4 no references exist that would restrict writers.
    let attr = unsafe { MrAttr::new(std::slice::from_ref(&piece), access) };
    domain.register(&attr).map_err(Failure::stack("fi_mr_reg"))
}

/// Slots in an arena for one job.
pub struct Slots {
    pieces: Vec<Piece>,
    size: usize,
    arena: Rc<Arena>,
}

/// Bytes of `count` slots of `size`.
pub fn room(size: usize, count: usize) -> usize {
    size.next_multiple_of(LINE).saturating_mul(count)
}

impl Slots {
    /// `count` slots of `size` bytes at the start of `arena`, which has [`room`] for them.
    pub fn new(arena: Rc<Arena>, size: usize, count: usize) -> Slots {
        assert!(room(size, count) <= arena.len, "{count} slots of {size} in {} bytes", arena.len);
        let at = |slot| Piece::new(arena.base.wrapping_add(room(size, slot)), size);
        Slots { pieces: (0..count).map(at).collect(), size, arena }
    }

    /// Slot `slot`, lent to one operation.
    #[inline]
    pub fn lend(&self, slot: usize) -> Lent<'_> {
        // SAFETY: allocated until after the endpoint is closed (I1); in flight it is the library's alone (I2, I3).
        unsafe { Lent::new(&self.pieces[slot..=slot], &self.arena.descs) }
    }

    /// Writes the pattern of `seed` into a slot that is not in flight.
    pub fn fill(&self, slot: usize, seed: u64) {
        let mut chunk = [0; CHUNK];
        for at in (0..self.size).step_by(CHUNK) {
            pattern(seed, at, &mut chunk);
            let len = CHUNK.min(self.size - at);
            let target = self.pieces[slot].addr.wrapping_add(at);
            // SAFETY: inside the slot, which by I3 no operation uses now; the chunk is on the stack.
            unsafe { std::ptr::copy_nonoverlapping(chunk.as_ptr(), target, len) };
        }
    }

    /// Compares a slot that is not in flight with the pattern of `seed`.
    ///
    /// # Errors
    /// The first byte that differs: its offset, the expected value, the actual value.
    pub fn verify(&self, slot: usize, seed: u64) -> std::result::Result<(), (usize, u8, u8)> {
        let (mut wanted, mut found) = ([0; CHUNK], [0; CHUNK]);
        for at in (0..self.size).step_by(CHUNK) {
            pattern(seed, at, &mut wanted);
            let len = CHUNK.min(self.size - at);
            let source = self.pieces[slot].addr.wrapping_add(at);
            // SAFETY: as in `fill`.
            unsafe { std::ptr::copy_nonoverlapping(source, found.as_mut_ptr(), len) };
            if wanted[..len] != found[..len] {
                let index = (0..len).find(|&index| wanted[index] != found[index]).unwrap_or(0);
                return Err((at + index, wanted[index], found[index]));
            }
        }
        Ok(())
    }
}

/// Bytes that are generated or compared at a time.
const CHUNK: usize = 4096;

/// Writes bytes `at..` of the pattern of `seed`. No two runs of 8 bytes are alike, so that a misplaced piece is
/// detected. The steps are those of SplitMix64.
fn pattern(seed: u64, at: usize, out: &mut [u8; CHUNK]) {
    for (index, word) in out.chunks_exact_mut(8).enumerate() {
        let mut x = seed.wrapping_add(((at / 8 + index) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(x ^ (x >> 31)).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(size: usize, count: usize) -> Slots {
        let (base, owner) = heap(room(size, count).max(PAGE)).unwrap();
        let (len, memory) = (room(size, count).max(PAGE), Memory::Application);
        let arena = Arena {
            base,
            len,
            memory,
            descs: Vec::new(),
            _local: None,
            exposed: OnceCell::new(),
            _owner: owner,
        };
        Slots::new(Rc::new(arena), size, count)
    }

    #[test]
    fn a_slot_holds_its_own_pattern_only() {
        for size in [0, 1, 63, 64, 4095, 4096, 10_001] {
            let slots = slots(size, 3);
            (0..3).for_each(|slot| slots.fill(slot, slot as u64));
            assert!((0..3).all(|slot| slots.verify(slot, slot as u64).is_ok()), "{size}");
            assert_eq!(slots.verify(0, 1).is_ok(), size == 0, "{size}");
            assert_eq!(slots.lend(2).len(), size);
        }
    }

    #[test]
    fn the_first_wrong_byte_is_told() {
        let slots = slots(9000, 1);
        slots.fill(0, 7);
        let byte = slots.pieces[0].addr.wrapping_add(5000);
        // SAFETY: byte 5000 of a slot of 9000, which is not in flight.
        let was = unsafe { byte.read() };
        // SAFETY: as above.
        unsafe { byte.write(was ^ 1) };
        let (at, wanted, found) = slots.verify(0, 7).unwrap_err();
        assert_eq!((at, wanted ^ found), (5000, 1));
    }
}
