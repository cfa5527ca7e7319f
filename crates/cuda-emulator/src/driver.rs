//! The exported functions, with the names and numbers of `cuda.h`.
#![allow(non_snake_case, reason = "CUDA's names")]
#![allow(clippy::missing_safety_doc, reason = "the requirements are those of cuda.h")]

use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use crate::memory::{self, HANDLE};
use crate::settings;

const SUCCESS: c_int = 0;
const INVALID_VALUE: c_int = 1;
const OUT_OF_MEMORY: c_int = 2;
const NO_DEVICE: c_int = 100;
const INVALID_DEVICE: c_int = 101;
const INVALID_CONTEXT: c_int = 201;
const PEER_ACCESS_UNSUPPORTED: c_int = 217;
const NOT_READY: c_int = 600;
const NOT_SUPPORTED: c_int = 801;

/// `CUipcMemHandle`.
#[repr(C)]
struct IpcHandle([u8; HANDLE]);

thread_local! {
    /// Contexts of this thread, the current one last. A context is the number of its device plus 1.
    static CONTEXTS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Returns the result that the environment demands, or continues.
macro_rules! may_fail {
    ($name:literal) => {
        if let Some(result) = settings::failure($name) {
            return result;
        }
    };
}

/// The device of the thread's current context.
fn current() -> Option<c_int> {
    CONTEXTS.with_borrow(|contexts| contexts.last().map(|&context| context as c_int - 1))
}

/// Returns a value through a pointer, if it is not null.
unsafe fn put<T>(to: *mut T, value: T) -> c_int {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's place, as cuda.h asks.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(_flags: c_uint) -> c_int {
    may_fail!("cuInit");
    if settings::devices() > 0 { SUCCESS } else { NO_DEVICE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(error: c_int, name: *mut *const c_char) -> c_int {
    let text: &CStr = match error {
        SUCCESS => c"CUDA_SUCCESS",
        INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        INVALID_CONTEXT => c"CUDA_ERROR_INVALID_CONTEXT",
        PEER_ACCESS_UNSUPPORTED => c"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
        NOT_READY => c"CUDA_ERROR_NOT_READY",
        NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
        _ => return INVALID_VALUE,
    };
    // SAFETY: the caller's place.
    unsafe { put(name, text.as_ptr()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    // SAFETY: the caller's place.
    unsafe { put(count, settings::devices()) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    if !(0..settings::devices()).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: the caller's place.
    unsafe { put(device, ordinal) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) -> c_int {
    let mut bytes = *b"cuda-emulator   ";
    bytes[15] = device as u8;
    // SAFETY: the caller's place.
    unsafe { put(uuid, bytes) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> c_int {
    may_fail!("cuDevicePrimaryCtxRetain");
    // SAFETY: the caller's place.
    unsafe { put(context, device as usize + 1) }
}

#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_device: c_int) -> c_int {
    SUCCESS
}

#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: usize) -> c_int {
    CONTEXTS.with_borrow_mut(|contexts| contexts.push(context));
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut usize) -> c_int {
    match CONTEXTS.with_borrow_mut(Vec::pop) {
        // SAFETY: the caller's place.
        Some(was) if !context.is_null() => unsafe { put(context, was) },
        Some(_) => SUCCESS,
        None => INVALID_CONTEXT,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(at: *mut u64, len: usize) -> c_int {
    may_fail!("cuMemAlloc_v2");
    let Some(device) = current() else { return INVALID_CONTEXT };
    match memory::allocate(len, device) {
        // SAFETY: the caller's place.
        Some(address) => unsafe { put(at, address as u64) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(at: u64) -> c_int {
    if memory::free(at as usize, false) { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocHost_v2(at: *mut *mut c_void, len: usize) -> c_int {
    may_fail!("cuMemAllocHost_v2");
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    // SAFETY: a plain allocation.
    let memory = unsafe { libc::aligned_alloc(4096, len.next_multiple_of(4096)) };
    if memory.is_null() {
        return OUT_OF_MEMORY;
    }
    // SAFETY: the caller's place.
    unsafe { put(at, memory) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> c_int {
    // SAFETY: of `cuMemAllocHost_v2`, as cuda.h requires.
    unsafe { libc::free(at) };
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, at: u64) -> c_int {
    let ranges = memory::ranges();
    let Some((start, range)) = memory::find(&ranges, at as usize) else { return INVALID_VALUE };
    // SAFETY: the caller's place.
    let result = unsafe { put(base, start as u64) };
    // SAFETY: as above.
    result.max(unsafe { put(len, range.len) })
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE` (2) and `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL` (9).
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: c_int, at: u64) -> c_int {
    let ranges = memory::ranges();
    let Some((_, range)) = memory::find(&ranges, at as usize) else { return INVALID_VALUE };
    match attribute {
        // SAFETY: the caller's place, of this attribute's type.
        2 => unsafe { put(data.cast::<c_uint>(), 2) },
        // SAFETY: as above.
        9 => unsafe { put(data.cast::<c_int>(), range.device) },
        _ => INVALID_VALUE,
    }
}

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED` (124).
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> c_int {
    may_fail!("cuDeviceGetAttribute");
    match attribute {
        // SAFETY: the caller's place.
        124 => unsafe { put(value, settings::gives_dmabuf().into()) },
        _ => INVALID_VALUE,
    }
}

/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: c_int = 6;

/// Has no effect: all calls of the emulator are synchronous already.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuPointerSetAttribute(value: *const c_void, attribute: c_int, at: u64) -> c_int {
    may_fail!("cuPointerSetAttribute");
    if value.is_null() || attribute != SYNC_MEMOPS || memory::find(&memory::ranges(), at as usize).is_none() {
        return INVALID_VALUE;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetHandleForAddressRange(
    handle: *mut c_void,
    at: u64,
    len: usize,
    kind: c_int,
    _flags: c_ulonglong,
) -> c_int {
    may_fail!("cuMemGetHandleForAddressRange");
    if kind != 1 || !settings::gives_dmabuf() {
        return NOT_SUPPORTED;
    }
    match memory::descriptor(at as usize, len) {
        // SAFETY: the caller's place.
        Some(fd) => unsafe { put(handle.cast::<c_int>(), fd) },
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut [u8; HANDLE], at: u64) -> c_int {
    may_fail!("cuIpcGetMemHandle");
    match memory::export(at as usize) {
        // SAFETY: the caller's place.
        Some(bytes) => unsafe { put(handle, bytes) },
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuIpcOpenMemHandle_v2(at: *mut u64, handle: IpcHandle, _flags: c_uint) -> c_int {
    may_fail!("cuIpcOpenMemHandle_v2");
    let Some(device) = current() else { return INVALID_CONTEXT };
    if memory::device_of(&handle.0) != Some(device) && !settings::are_peers() {
        return PEER_ACCESS_UNSUPPORTED;
    }
    match memory::import(&handle.0) {
        // SAFETY: the caller's place.
        Some(address) => unsafe { put(at, address as u64) },
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuIpcCloseMemHandle(at: u64) -> c_int {
    if memory::free(at as usize, true) { SUCCESS } else { INVALID_VALUE }
}

/// A stream: the copies that are queued but not executed.
type CuStream = Mutex<Vec<(usize, usize, usize)>>;

/// Executes the pending copies of a stream.
fn run(stream: &CuStream) -> c_int {
    // Locked until the end, because another thread that finds no copy pending must be able to assume that its own are
    // done.
    let mut copies = stream.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all = true;
    for (to, from, len) in copies.drain(..) {
        // SAFETY: cuda.h requires that the memory of a queued copy stays valid until the copy is executed.
        all &= unsafe { memory::copy(to, from, len) };
    }
    if all { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut *mut CuStream, _flags: c_uint) -> c_int {
    may_fail!("cuStreamCreate");
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    // SAFETY: the caller's place.
    unsafe { put(stream, Box::into_raw(Box::new(CuStream::default()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamDestroy_v2(stream: *mut CuStream) -> c_int {
    // SAFETY: of `cuStreamCreate`, and not used again.
    let stream = unsafe { Box::from_raw(stream) };
    run(&stream)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamSynchronize(stream: *mut CuStream) -> c_int {
    may_fail!("cuStreamSynchronize");
    // SAFETY: of `cuStreamCreate`.
    unsafe { stream.as_ref() }.map_or(INVALID_VALUE, run)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: *mut CuStream) -> c_int {
    may_fail!("cuMemcpyAsync");
    if current().is_none() {
        return INVALID_CONTEXT;
    }
    // SAFETY: of `cuStreamCreate`.
    let Some(stream) = (unsafe { stream.as_ref() }) else { return INVALID_VALUE };
    if !memory::is_whole(to as usize, len) || !memory::is_whole(from as usize, len) {
        return INVALID_VALUE;
    }
    stream.lock().unwrap_or_else(PoisonError::into_inner).push((to as usize, from as usize, len));
    SUCCESS
}

/// An event: the number of further queries that it is not ready for, and its stream.
struct CuEvent {
    left: u64,
    stream: *const CuStream,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut *mut CuEvent, _flags: c_uint) -> c_int {
    may_fail!("cuEventCreate");
    // SAFETY: the caller's place.
    unsafe { put(event, Box::into_raw(Box::new(CuEvent { left: 0, stream: ptr::null() }))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: *mut CuEvent, stream: *const CuStream) -> c_int {
    may_fail!("cuEventRecord");
    // SAFETY: an event of `cuEventCreate`.
    unsafe { put(event, CuEvent { left: settings::polls(), stream }) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: *mut CuEvent) -> c_int {
    may_fail!("cuEventQuery");
    // SAFETY: an event of `cuEventCreate`, which one thread uses at a time here.
    let Some(event) = (unsafe { event.as_mut() }) else { return INVALID_VALUE };
    if event.left > 0 {
        event.left -= 1;
        return NOT_READY;
    }
    // SAFETY: null, or a stream that lives as long as its events here.
    unsafe { event.stream.as_ref() }.map_or(SUCCESS, run)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventDestroy_v2(event: *mut CuEvent) -> c_int {
    // SAFETY: of `cuEventCreate`, and not used again.
    drop(unsafe { Box::from_raw(event) });
    SUCCESS
}
