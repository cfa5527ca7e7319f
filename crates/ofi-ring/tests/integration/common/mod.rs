//! Shared by the tests of the rings: records that check themselves, and memory between guard pages.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::{
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::AtomicU64,
};

use ofi_ring::{
    memory::{HeapLines, LINE, Lines},
    record::{Consumer, Producer, Record, ReserveError, max_body},
};
use proptest::{prelude::ProptestConfig, test_runner::FileFailurePersistence};

/// Random numbers (splitmix64), the same on both sides.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// A stream of records of random sizes and contents, most of them short. The same seed gives the same
/// stream to the sender and to the receiver.
pub struct Stream {
    random: Random,
    max_body: usize,
}

impl Stream {
    pub fn new(seed: u64, lines: usize) -> Self {
        Self { random: Random(seed), max_body: max_body(lines) }
    }

    /// Sends the next record, or keeps it as the next one.
    pub fn send(&mut self, producer: &mut Producer) -> Result<(), ReserveError> {
        let mut random = self.random.clone();
        let len = self.len(&mut random);
        let turns = len.is_multiple_of(2);
        let mut slot = if turns { producer.reserve_turning(len)? } else { producer.reserve(len)? };
        let body = slot.body();
        let mut sum = 0;
        for at in (0..len).step_by(8) {
            let word = random.next();
            let part = (len - at).min(8);
            let target = body.wrapping_add(at);
            // SAFETY: `len` bytes from `body` on are writable until the slot is published.
            unsafe { target.copy_from_nonoverlapping(word.to_le_bytes().as_ptr(), part) };
            sum = checksum(sum, word);
        }
        slot.publish(sum);
        self.random = random;
        Ok(())
    }

    /// Checks that `record` is the next one of the stream.
    pub fn check(&mut self, record: &Record) {
        let len = self.len(&mut self.random.clone());
        assert_eq!(record.body_len, len);
        self.random.next(); // for the length
        let mut sum = 0;
        for at in (0..len).step_by(8) {
            let wanted = self.random.next();
            let part = (len - at).min(8);
            let mut word = wanted.to_le_bytes();
            let source = record.body.wrapping_add(at);
            // SAFETY: `len` bytes from the body on are readable until `advance`.
            unsafe { source.copy_to_nonoverlapping(word.as_mut_ptr(), part) };
            assert_eq!(u64::from_le_bytes(word), wanted);
            sum = checksum(sum, wanted);
        }
        assert_eq!(record.high, sum);
    }

    fn len(&self, random: &mut Random) -> usize {
        let number = random.next() as usize;
        let end = if number.is_multiple_of(32) { self.max_body } else { self.max_body.min(2 * LINE) };
        number / 32 % (end + 1)
    }
}

fn checksum(sum: u32, word: u64) -> u32 {
    sum.rotate_left(5).wrapping_add((word ^ word >> 32) as u32)
}

/// Saves failures beside the test that found them.
pub fn config() -> ProptestConfig {
    ProptestConfig::with_failure_persistence(FileFailurePersistence::WithSource("regressions"))
}

/// A ring on the heap. The memory is dropped last.
pub struct Ring {
    pub producer: Producer,
    pub consumer: Consumer,
    pub memory: Box<(HeapLines, AtomicU64)>,
}

pub fn heap_ring(count: usize) -> Ring {
    let memory = Box::new((HeapLines::new(count).unwrap(), AtomicU64::new(0)));
    let head = &raw const memory.1;
    // SAFETY: `Ring` keeps the memory for longer, and this is the producer.
    let producer = unsafe { Producer::new(memory.0.lines(), head) };
    // SAFETY: as above, and this is the consumer.
    let consumer = unsafe { Consumer::new(memory.0.lines(), head) };
    Ring { producer, consumer, memory }
}

/// The size of a page, at least as far as these tests need it.
pub const PAGE: usize = 4096;

/// An anonymous file of `len` bytes of zeros, which child processes inherit.
pub fn memfd(len: usize) -> OwnedFd {
    // SAFETY: the name is a C string; the call has no other requirement.
    let fd = unsafe { libc::memfd_create(c"ofi-ring-test".as_ptr(), 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: it has just been opened, and no other code knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a call without memory.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), len as libc::off_t) }, 0);
    fd
}

/// A mapping of a file between two inaccessible pages.
pub struct Mapping {
    outer: *mut libc::c_void,
    len: usize,
}

impl Mapping {
    /// Maps the first `len` bytes, a multiple of [`PAGE`].
    pub fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Self {
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let outer =
            unsafe { libc::mmap(std::ptr::null_mut(), len + 2 * PAGE, libc::PROT_NONE, private, -1, 0) };
        assert_ne!(outer, libc::MAP_FAILED);
        let access = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let at = outer.wrapping_byte_add(PAGE);
        // SAFETY: replaces pages of the mapping just made.
        let inner =
            unsafe { libc::mmap(at, len, access, libc::MAP_SHARED | libc::MAP_FIXED, fd.as_raw_fd(), 0) };
        assert_eq!(inner, at);
        Self { outer, len }
    }

    pub fn base(&self) -> NonNull<u8> {
        NonNull::new(self.outer.wrapping_byte_add(PAGE).cast()).unwrap()
    }

    /// The lines from the base on.
    pub fn lines(&self, count: usize) -> Lines {
        assert!(count * LINE <= self.len);
        // SAFETY: mapped as long as `self`, which each test keeps longest; no reference is made.
        unsafe { Lines::new(self.base(), count) }.unwrap()
    }

    /// The atomic `offset` bytes after the base.
    pub fn word<T>(&self, offset: usize) -> *const T {
        assert!(offset + size_of::<T>() <= self.len && offset.is_multiple_of(align_of::<T>()));
        self.base().as_ptr().wrapping_add(offset).cast_const().cast()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps what `new` mapped; its users are gone.
        unsafe { libc::munmap(self.outer, self.len + 2 * PAGE) };
    }
}
