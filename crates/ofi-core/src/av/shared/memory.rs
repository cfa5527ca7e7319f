//! The memory of a shared vector, and how it is read without trusting its other writers.
//!
//! ```text
//! 0        head: magic, number of slots, the two counts, the name
//! 4096     numbers: 8 bytes for each slot, its number once it was used (fi_av_attr.map_addr)
//! ...      slots of 128 bytes: state, references, length, up to 112 bytes of address
//! ```
//!
//! Invariants:
//! I1. A slot's state is odd while it has an address, and changes whenever an address is stored or removed
//!     ([`Version`]).
//! I2. Every change holds the lock (`meeting::Lock`) and sets `busy` meanwhile. If the next holder of the lock finds
//!     `busy` set, a process has died: both counts then move, so that nobody relies on earlier reads.
//! I3. An address and its references are stored before the state announces them, and removed after the state has
//!     changed.
//! I4. Everything is copied before it is checked. An invalid value counts as a missing address.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ofi_api::{AddrFormat, Errno, Error, Result};
use ofi_ring::version::Version;

use crate::av::AvCounts;
use crate::copy;
use crate::sys::memory::{self, Mapping, Writers};

/// The maximum length of an address, in bytes: a slot of 128 bytes has room for that much.
pub const MAX_ADDRESS_LEN: usize = 112;
/// The maximum length of a vector's name, in bytes, including the names of its provider and domain.
pub const MAX_NAME_LEN: usize = 1024;
/// Default capacity in addresses: 35 MiB of address space, of which only used pages take memory.
const DEFAULT_CAPACITY: usize = 1 << 18;
/// The maximum capacity, in addresses.
const MAX_ADDRESSES: usize = 1 << 24;

const MAGIC: u64 = u64::from_le_bytes(*b"ofi-av\0\x01");
const HEAD: usize = 4096;

#[repr(C)]
struct Head {
    magic: AtomicU64,
    capacity: AtomicU64,
    format: AtomicU32,
    name_len: AtomicU32,
    /// Slots from here on were never used.
    used: AtomicU32,
    busy: AtomicU32,
    counts: AvCounts,
    name: [AtomicU64; MAX_NAME_LEN / 8],
}
const _: () = assert!(size_of::<Head>() <= HEAD);

#[repr(C)]
struct VectorSlot {
    state: Version,
    references: AtomicU32,
    len: AtomicU32,
    _pad: u32,
    bytes: [u8; MAX_ADDRESS_LEN],
}
const _: () = assert!(size_of::<VectorSlot>() == 128);

/// The memory of one vector, as mapped in this process.
pub struct VectorMemory {
    mapping: Mapping,
    capacity: u32,
    writable: bool,
}

fn len_for(capacity: usize) -> usize {
    HEAD + capacity * (size_of::<u64>() + size_of::<VectorSlot>())
}

fn not_one() -> Error {
    Error::with(
        Errno::EINVAL,
        "the object shared under this name is not an address vector of this version; choose another name",
    )
}

/// A text in words: the bytes from `at * 8` on.
fn word(text: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    for (to, from) in bytes.iter_mut().zip(text.iter().skip(at * 8)) {
        *to = *from;
    }
    u64::from_ne_bytes(bytes)
}

impl VectorMemory {
    /// New memory for at least `expected` addresses of `format`.
    ///
    /// # Errors
    /// `FI_ENOMEM` for more than 16,777,216; errors of creating the memory.
    pub fn create(name: &str, format: AddrFormat, expected: usize) -> Result<(Self, OwnedFd)> {
        if expected > MAX_ADDRESSES {
            return Err(Error::wanted(
                Errno::ENOMEM,
                "fi_av_attr.count of a shared address vector",
                format!("at most {MAX_ADDRESSES}"),
                expected.to_string(),
                "use a vector without name",
            ));
        }
        let capacity = expected.next_power_of_two().max(DEFAULT_CAPACITY);
        let fd = memory::empty_memfd(c"ofi-av", len_for(capacity))?;
        memory::seal(&fd, Writers::Any)?;
        let mapping = Mapping::new(fd.as_fd(), len_for(capacity), true)?;
        let memory = Self { mapping, capacity: capacity as u32, writable: true };
        let head = memory.head();
        head.format.store(format.as_c(), Ordering::Relaxed);
        head.name_len.store(name.len() as u32, Ordering::Relaxed);
        for (at, to) in head.name.iter().enumerate() {
            to.store(word(name.as_bytes(), at), Ordering::Relaxed);
        }
        head.capacity.store(capacity as u64, Ordering::Relaxed);
        head.magic.store(MAGIC, Ordering::Release);
        Ok((memory, fd))
    }

    /// Memory that came from another process.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not a vector of this name and format.
    pub fn open(fd: &OwnedFd, name: &str, format: AddrFormat, writable: bool) -> Result<Self> {
        let len = memory::sealed_len(fd)?;
        if len < len_for(0) {
            return Err(not_one());
        }
        let mapping = Mapping::new(fd.as_fd(), len, writable)?;
        let mut memory = Self { mapping, capacity: 0, writable };
        let head = memory.head();
        let capacity = head.capacity.load(Ordering::Relaxed) as usize;
        let same_name = head
            .name
            .iter()
            .enumerate()
            .all(|(at, have)| have.load(Ordering::Relaxed) == word(name.as_bytes(), at));
        let of_ours = head.magic.load(Ordering::Acquire) == MAGIC
            && head.name_len.load(Ordering::Relaxed) as usize == name.len()
            && same_name;
        if !of_ours || capacity > MAX_ADDRESSES || len_for(capacity) != len {
            return Err(not_one());
        }
        let theirs = head.format.load(Ordering::Relaxed);
        if theirs != format.as_c() {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the address format of a shared address vector",
                AddrFormat::from_c(theirs).map_or_else(|| theirs.to_string(), |format| format.to_string()),
                format.to_string(),
                "open the domain with the format of the processes that share the vector",
            ));
        }
        memory.capacity = capacity as u32;
        Ok(memory)
    }

    fn head(&self) -> &Head {
        // SAFETY: mapped while `self` lives, for more than a page, aligned to one; all of it is atomics.
        unsafe { self.mapping.base().cast().as_ref() }
    }

    /// Its capacity in addresses.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// The two counts; they live as long as `self`.
    pub fn counts(&self) -> &AvCounts {
        &self.head().counts
    }

    /// Numbers from here on were never used.
    pub fn used(&self) -> u32 {
        self.head().used.load(Ordering::Acquire).min(self.capacity)
    }

    /// The first word of the numbers.
    pub fn numbers(&self) -> NonNull<u64> {
        // SAFETY: inside the mapping, by its length.
        unsafe { self.mapping.base().byte_add(HEAD) }.cast()
    }

    fn slot(&self, at: u32) -> NonNull<VectorSlot> {
        assert!(at < self.capacity, "a slot of the vector");
        let offset = HEAD + self.capacity as usize * 8 + at as usize * size_of::<VectorSlot>();
        debug_assert!(offset + size_of::<VectorSlot>() <= self.mapping.len());
        // SAFETY: inside the mapping, by the length that `open` and `create` checked.
        unsafe { self.mapping.base().byte_add(offset) }.cast()
    }

    /// The words of a slot. The bytes after them are accessed only through raw pointers.
    fn words(&self, at: u32) -> (&Version, &AtomicU32, &AtomicU32) {
        let slot = self.slot(at).as_ptr();
        // SAFETY: in the mapping, aligned, and atomic; nobody has a reference to the whole slot.
        let state = unsafe { &(*slot).state };
        // SAFETY: as above.
        let references = unsafe { &(*slot).references };
        // SAFETY: as above.
        let len = unsafe { &(*slot).len };
        (state, references, len)
    }

    fn bytes(&self, at: u32) -> *mut u8 {
        self.slot(at).as_ptr().wrapping_byte_add(std::mem::offset_of!(VectorSlot, bytes)).cast()
    }

    /// A slot's state; see I1.
    pub fn state(&self, at: u32) -> u32 {
        self.words(at).0.get()
    }

    /// The address in a slot and the slot's state, if it holds an address.
    pub fn read(&self, at: u32) -> Option<(u32, Vec<u8>)> {
        if at >= self.used() {
            return None;
        }
        let (state, _, len) = self.words(at);
        // If the slot keeps changing, it counts as a missing address.
        for _ in 0..4 {
            let before = state.begin()?;
            let len = len.load(Ordering::Relaxed) as usize;
            if len > MAX_ADDRESS_LEN {
                return None;
            }
            let mut address = vec![0; len];
            // SAFETY: `len` bytes of the slot, which is mapped, and of our own memory.
            unsafe { copy::bytes(self.bytes(at), address.as_mut_ptr(), len) };
            if state.is_still(before) {
                return Some((before, address));
            }
        }
        None
    }

    /// Starts a change. The caller holds the lock of a writable vector.
    pub fn begin(&self) {
        debug_assert!(self.writable);
        if self.head().busy.swap(1, Ordering::AcqRel) != 0 {
            tracing::warn!(target: "ofi::core::av", "a process died while it changed a shared address vector");
            self.counts().removed();
            self.counts().inserted();
        }
    }

    /// Whether a change is in progress, or its process died.
    pub fn is_busy(&self) -> bool {
        self.head().busy.load(Ordering::Acquire) != 0
    }

    /// Ends a change.
    pub fn end(&self) {
        self.head().busy.store(0, Ordering::Release);
    }

    /// Stores an address in an empty slot, with one reference.
    pub fn occupy(&self, at: u32, address: &[u8]) {
        debug_assert!(address.len() <= MAX_ADDRESS_LEN);
        let (state, references, len) = self.words(at);
        let number = self.numbers().as_ptr().wrapping_add(at as usize).cast::<AtomicU64>();
        // SAFETY: a word for each slot lies there, aligned and atomic; the mapping is writable.
        let number = unsafe { &*number };
        state.occupy(|| {
            len.store(address.len() as u32, Ordering::Relaxed);
            references.store(1, Ordering::Relaxed);
            // SAFETY: the slot has room for `MAX_ADDRESS_LEN` bytes, and the mapping is writable, since the caller has
            // the lock.
            unsafe { copy::bytes(address.as_ptr(), self.bytes(at), address.len().min(MAX_ADDRESS_LEN)) };
            number.store(u64::from(at), Ordering::Relaxed);
        });
        self.head().used.fetch_max(at + 1, Ordering::AcqRel);
        self.counts().inserted();
    }

    /// Counts one more insertion.
    ///
    /// # Errors
    /// `FI_EOVERFLOW` at 2^32 - 1.
    pub fn retain(&self, at: u32) -> Result<()> {
        let (_, references, _) = self.words(at);
        let more = references.load(Ordering::Relaxed).checked_add(1);
        let more = more.ok_or_else(|| {
            Error::with(Errno::EOVERFLOW, "an address can be inserted at most 2^32 - 1 times")
        })?;
        references.store(more, Ordering::Relaxed);
        Ok(())
    }

    /// Reverts one insertion. Returns whether that removed the address.
    pub fn release(&self, at: u32) -> bool {
        let (state, references, _) = self.words(at);
        let left = references.load(Ordering::Relaxed).saturating_sub(1);
        references.store(left, Ordering::Relaxed);
        if left > 0 {
            return false;
        }
        state.vacate();
        self.counts().removed();
        true
    }
}

#[cfg(test)]
impl VectorMemory {
    /// Writes arbitrary bytes into the head or one of the first slots, as a hostile sharer would.
    pub fn scribble(&self, random: u64) {
        let slots = HEAD + self.capacity as usize * 8;
        // Low values are the most likely to be meaningful.
        let value = if random & 2 == 0 { (random >> 32) as u32 } else { (random >> 32) as u32 % 64 };
        let offset = match random & 1 {
            0 => (random >> 8) as usize % 64 / 4 * 4,
            _ => slots + (random >> 8) as usize % 4096 / 4 * 4,
        };
        // SAFETY: inside the mapping, and aligned.
        let word = unsafe { &*self.mapping.base().as_ptr().wrapping_add(offset).cast::<AtomicU32>() };
        word.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever a sharer writes, readers return and stay in bounds.
    #[test]
    fn wild_memory_is_read_without_harm() {
        let (memory, fd) = VectorMemory::create("wild", AddrFormat::Str, 0).unwrap();
        for at in 0..8 {
            memory.occupy(at, b"fi_shm://somebody");
        }
        let mut random = 0x9E37_79B9_7F4A_7C15_u64;
        for _ in 0..5_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            memory.scribble(random);
            let used = memory.used();
            assert!(used <= memory.capacity());
            for at in 0..8 {
                assert!(memory.read(at).is_none_or(|(_, address)| address.len() <= MAX_ADDRESS_LEN));
            }
            assert_eq!(memory.read(memory.capacity()), None);
            // Opening it now returns a vector of the right length, or an error.
            if let Ok(opened) = VectorMemory::open(&fd, "wild", AddrFormat::Str, false) {
                assert_eq!(opened.capacity(), memory.capacity());
            }
        }
    }

    #[test]
    fn what_may_shrink_or_is_another_vector_is_refused() {
        let (_memory, fd) = VectorMemory::create("one", AddrFormat::Str, 0).unwrap();
        assert!(VectorMemory::open(&fd, "one", AddrFormat::Str, false).is_ok());
        assert_eq!(
            VectorMemory::open(&fd, "two", AddrFormat::Str, false).err(),
            Some(Error::new(Errno::EINVAL))
        );
        assert!(VectorMemory::open(&fd, "one", AddrFormat::SockaddrIn, false).is_err());
        let file = OwnedFd::from(std::fs::File::open("/proc/self/exe").unwrap());
        assert!(VectorMemory::open(&file, "one", AddrFormat::Str, false).is_err());
    }
}
