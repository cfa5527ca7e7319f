//! Device memory: allocations, mappings of other processes' allocations, copies.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes of an IPC handle.
pub(crate) const HANDLE: usize = 64;
const MAGIC: [u8; 8] = *b"CUDAEMU1";
/// Granularity of allocations, in bytes, like the driver's.
const GRANULE: usize = 512;

/// A range of device memory.
pub(crate) struct Range {
    file: File,
    /// The address for copies.
    shadow: usize,
    pub(crate) len: usize,
    pub(crate) device: i32,
    is_imported: bool,
}

static RANGES: Mutex<BTreeMap<usize, Range>> = Mutex::new(BTreeMap::new());

pub(crate) fn ranges() -> MutexGuard<'static, BTreeMap<usize, Range>> {
    RANGES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn map(file: &File, len: usize, rights: i32) -> Option<usize> {
    // SAFETY: a new mapping at an address that the kernel chooses.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    (at != libc::MAP_FAILED).then(|| at.addr())
}

fn unmap(at: usize, len: usize) {
    // SAFETY: a whole mapping of `map` that is no longer in use: it has left the table, and copies hold the table's
    // lock.
    unsafe { libc::munmap(ptr::without_provenance_mut(at), len) };
}

fn add(file: File, len: usize, device: i32, is_imported: bool) -> Option<usize> {
    let shadow = map(&file, len, libc::PROT_READ | libc::PROT_WRITE)?;
    let Some(at) = map(&file, len, libc::PROT_NONE) else {
        unmap(shadow, len);
        return None;
    };
    ranges().insert(at, Range { file, shadow, len, device, is_imported });
    Some(at)
}

/// Allocates; `None` if memory is exhausted.
pub(crate) fn allocate(len: usize, device: i32) -> Option<usize> {
    let len = len.checked_next_multiple_of(GRANULE).filter(|&len| len > 0)?;
    // SAFETY: a name that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"cuda-emulator".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return None;
    }
    // SAFETY: a new descriptor of ours.
    let file = unsafe { File::from_raw_fd(fd) };
    file.set_len(len as u64).ok()?;
    add(file, len, device, false)
}

/// Frees an allocation of [`allocate`] or, if `is_imported`, of [`import`].
pub(crate) fn free(at: usize, is_imported: bool) -> bool {
    let mut ranges = ranges();
    if ranges.get(&at).is_none_or(|range| range.is_imported != is_imported) {
        return false;
    }
    if let Some(range) = ranges.remove(&at) {
        unmap(at, range.len);
        unmap(range.shadow, range.len);
    }
    true
}

/// The range that contains an address.
pub(crate) fn find(ranges: &BTreeMap<usize, Range>, at: usize) -> Option<(usize, &Range)> {
    let (&start, range) = ranges.range(..=at).next_back()?;
    (at - start < range.len).then_some((start, range))
}

/// A handle with which another process maps the allocation that contains `at`.
pub(crate) fn export(at: usize) -> Option<[u8; HANDLE]> {
    let ranges = ranges();
    let (_, range) = find(&ranges, at).filter(|(_, range)| !range.is_imported)?;
    let mut handle = [0; HANDLE];
    handle[..8].copy_from_slice(&MAGIC);
    handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    handle[12..16].copy_from_slice(&range.file.as_raw_fd().to_le_bytes());
    handle[16..24].copy_from_slice(&(range.len as u64).to_le_bytes());
    handle[24..28].copy_from_slice(&range.device.to_le_bytes());
    Some(handle)
}

/// The device of an exported allocation.
pub(crate) fn device_of(handle: &[u8; HANDLE]) -> Option<i32> {
    let bytes = handle[24..28].try_into().ok()?;
    Some(i32::from_le_bytes(bytes)).filter(|_| handle[..8] == MAGIC)
}

/// Maps another process's exported allocation. As with the driver, the exporter itself cannot.
pub(crate) fn import(handle: &[u8; HANDLE]) -> Option<usize> {
    let word = |at: usize| u32::from_le_bytes([handle[at], handle[at + 1], handle[at + 2], handle[at + 3]]);
    let (pid, fd, device) = (word(8), word(12), word(24) as i32);
    let len = (u64::from(word(20)) << 32 | u64::from(word(16))) as usize;
    if handle[..8] != MAGIC || pid == std::process::id() {
        return None;
    }
    let path = format!("/proc/{pid}/fd/{fd}");
    let file = File::options().read(true).write(true).open(path).ok()?;
    if file.metadata().ok()?.len() != len as u64 || len == 0 {
        return None;
    }
    add(file, len, device, true)
}

/// A descriptor of the memory, in place of a dma-buf.
pub(crate) fn descriptor(at: usize, len: usize) -> Option<i32> {
    let ranges = ranges();
    let (start, range) = find(&ranges, at)?;
    // Whole pages from the start of an allocation.
    if at != start || len > range.len.next_multiple_of(4096) {
        return None;
    }
    // SAFETY: the descriptor is the range's.
    let fd = unsafe { libc::dup(range.file.as_raw_fd()) };
    (fd >= 0).then_some(fd)
}

/// Whether `len` bytes from `at` on lie in one allocation, or outside all.
pub(crate) fn is_whole(at: usize, len: usize) -> bool {
    find(&ranges(), at).is_none_or(|(start, range)| len <= range.len - (at - start))
}

/// Copies; `false` if a range begins in device memory and ends outside.
///
/// # Safety
/// An address outside device memory belongs to the program, and is valid for reading (`from`) or writing (`to`) `len`
/// bytes.
pub(crate) unsafe fn copy(to: usize, from: usize, len: usize) -> bool {
    let ranges = ranges();
    let real = |at: usize| match find(&ranges, at) {
        Some((start, range)) => (len <= range.len - (at - start)).then(|| range.shadow + (at - start)),
        None => Some(at),
    };
    let (Some(to), Some(from)) = (real(to), real(from)) else { return false };
    // SAFETY: inside mappings that the table's lock keeps, or the caller's promise.
    unsafe { ptr::copy(ptr::with_exposed_provenance::<u8>(from), ptr::with_exposed_provenance_mut(to), len) };
    true
}
