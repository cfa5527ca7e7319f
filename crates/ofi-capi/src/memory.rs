//! Memory from malloc, for data that C frees, and access to data that C wrote.

use std::ffi::{CStr, c_char, c_void};

use ofi_api::{Errno, Error, Result};

/// Zeroed memory from malloc for a `T`.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn zeroed<T>() -> Result<*mut T> {
    // SAFETY: any size may be asked for.
    let memory = unsafe { libc::calloc(1, size_of::<T>()) };
    if memory.is_null() { Err(Error::new(Errno::ENOMEM)) } else { Ok(memory.cast()) }
}

/// A copy of `bytes` in memory from malloc; null if `bytes` is empty.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn copy_of(bytes: &[u8]) -> Result<*mut c_void> {
    if bytes.is_empty() {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: any size may be asked for.
    let memory = unsafe { libc::malloc(bytes.len()) };
    if memory.is_null() {
        return Err(Error::new(Errno::ENOMEM));
    }
    // SAFETY: as many bytes were just allocated, and new memory overlaps nothing.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.cast(), bytes.len()) };
    Ok(memory)
}

/// A string in memory from malloc; null for an empty one, as in C. Text after a NUL is dropped.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn string(text: &str) -> Result<*mut c_char> {
    if text.is_empty() { Ok(std::ptr::null_mut()) } else { whole_string(text) }
}

/// A string in memory from malloc, even if it is empty.
///
/// # Errors
/// `FI_ENOMEM`.
pub(crate) fn whole_string(text: &str) -> Result<*mut c_char> {
    let until = text.bytes().position(|byte| byte == 0).unwrap_or(text.len());
    let mut bytes = text.as_bytes()[..until].to_vec();
    bytes.push(0);
    Ok(copy_of(&bytes)?.cast())
}

/// The text at a pointer; `None` for null.
///
/// # Safety
/// The C caller's promise: null, or a string that ends in NUL.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, so by the promise a string.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// The bytes at a pointer; none for null.
///
/// # Safety
/// The C caller's promise: null, or `len` readable bytes that are not written during `'a`.
pub(crate) unsafe fn bytes<'a>(pointer: *const c_void, len: usize) -> &'a [u8] {
    if pointer.is_null() || len == 0 {
        return &[];
    }
    // SAFETY: not null, so by the promise that many bytes.
    unsafe { std::slice::from_raw_parts(pointer.cast(), len) }
}

/// Whether an address is mapped.
pub(crate) fn is_mapped(addr: usize) -> bool {
    // SAFETY: any size may be passed; this allocates new memory only.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.unsigned_abs() as usize;
    let start = std::ptr::without_provenance_mut(addr / page * page);
    let mut resident = 0u8;
    // SAFETY: it accesses only `resident`, which has room for the answer for one page.
    let answer = unsafe { libc::mincore(start, page, &raw mut resident) };
    answer == 0
}

/// Frees memory from malloc; ignores null.
///
/// # Safety
/// The C caller's promise: it came from malloc, and is no longer used.
pub(crate) unsafe fn free<T>(pointer: *mut T) {
    // SAFETY: the same promise.
    unsafe { libc::free(pointer.cast()) };
}

/// Copies text and a NUL into the caller's buffer, truncated to its length.
///
/// # Safety
/// The C caller's promise: `buffer` is null or has `len` writable bytes.
pub(crate) unsafe fn put_text(text: &str, buffer: *mut c_char, len: usize) {
    if buffer.is_null() || len == 0 {
        return;
    }
    let kept = text.len().min(len - 1);
    // SAFETY: `kept < len`, which the caller promises to be writable.
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), kept) };
    // SAFETY: as above.
    let end = unsafe { buffer.add(kept) };
    // SAFETY: as above.
    unsafe { end.write(0) };
}

/// Copies as much of `bytes` as fits into the caller's buffer, and stores the full length (fi_getname(3)).
///
/// # Errors
/// `FI_ETOOSMALL` if it does not fit; `FI_EINVAL` without a length.
///
/// # Safety
/// The C caller's promise: `len` is null or may be read and written; `buffer` has `len` bytes.
pub(crate) unsafe fn put_sized(bytes: &[u8], buffer: *mut c_void, len: *mut usize) -> Result<()> {
    if len.is_null() {
        return Err(crate::ffi_guard::null("the length of the buffer"));
    }
    // SAFETY: not null, and the caller's.
    let room = unsafe { len.replace(bytes.len()) };
    let kept = if buffer.is_null() { 0 } else { room.min(bytes.len()) };
    // SAFETY: the caller promises `room` bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast(), kept) };
    if kept < bytes.len() { Err(Error::new(Errno::ETOOSMALL)) } else { Ok(()) }
}
