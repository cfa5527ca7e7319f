//! Completion queues: their entries, and reading them.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::{
    Address, CompletionFlags, Context, CqFormat, Errno, FiAddr, MutexCond, Result, WaitObj, WaitSet,
};

/// How to open a completion queue (`struct fi_cq_attr`).
#[derive(Clone, Debug)]
pub struct CqAttr {
    /// The number of entries to make room for; 0 leaves it to the library. Only a hint: posting an operation reserves
    /// its entry, so a queue never overruns.
    pub size: usize,
    /// The fields of an entry.
    pub format: CqFormat,
    /// How a thread may block on the queue.
    pub wait_obj: WaitObj,
    /// The wait set to join, with `FI_WAIT_SET`.
    pub wait_set: Option<Arc<dyn WaitSet>>,
}

impl Default for CqAttr {
    fn default() -> Self {
        Self { size: 0, format: CqFormat::Tagged, wait_obj: WaitObj::None, wait_set: None }
    }
}

/// An entry of `FI_CQ_FORMAT_CONTEXT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CqEntry {
    /// The context given with the operation.
    pub op_context: Context,
}

/// An entry of `FI_CQ_FORMAT_MSG`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CqMsgEntry {
    /// The context given with the operation.
    pub op_context: Context,
    /// The kind of operation, and its properties.
    pub flags: CompletionFlags,
    /// Bytes received; 0 for other operations.
    pub len: usize,
}

/// An entry of `FI_CQ_FORMAT_DATA`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CqDataEntry {
    /// The context given with the operation.
    pub op_context: Context,
    /// The kind of operation, and its properties.
    pub flags: CompletionFlags,
    /// Bytes received; 0 for other operations.
    pub len: usize,
    /// The address of the message within its multi-receive buffer.
    pub buf: *mut u8,
    /// Remote CQ data, where `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
}

/// An entry of `FI_CQ_FORMAT_TAGGED`; the other formats are prefixes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct CqTaggedEntry {
    /// The context given with the operation.
    pub op_context: Context,
    /// The kind of operation, and its properties.
    pub flags: CompletionFlags,
    /// Bytes received; 0 for other operations.
    pub len: usize,
    /// The address of the message within its multi-receive buffer.
    pub buf: *mut u8,
    /// Remote CQ data, where `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
}

// SAFETY: the pointer is never dereferenced here; it only says where in the application's memory the message lies.
unsafe impl Send for CqDataEntry {}
// SAFETY: as above.
unsafe impl Send for CqTaggedEntry {}

impl CqTaggedEntry {
    /// An entry of zeroes, to fill arrays with.
    pub const EMPTY: Self = Self {
        op_context: Context::NULL,
        flags: CompletionFlags::empty(),
        len: 0,
        buf: std::ptr::null_mut(),
        data: 0,
        tag: 0,
    };
}

/// The entry types, one for each format.
///
/// # Safety
/// The type is `repr(C)` and a prefix of [`CqTaggedEntry`] as long as `FORMAT` says.
pub unsafe trait CqFormatEntry: Copy {
    /// The format that this type is an entry of.
    const FORMAT: CqFormat;
}
// SAFETY: `repr(C)`, one word.
unsafe impl CqFormatEntry for CqEntry {
    const FORMAT: CqFormat = CqFormat::Context;
}
// SAFETY: `repr(C)`, the first three fields.
unsafe impl CqFormatEntry for CqMsgEntry {
    const FORMAT: CqFormat = CqFormat::Msg;
}
// SAFETY: `repr(C)`, the first five fields.
unsafe impl CqFormatEntry for CqDataEntry {
    const FORMAT: CqFormat = CqFormat::Data;
}
// SAFETY: the whole.
unsafe impl CqFormatEntry for CqTaggedEntry {
    const FORMAT: CqFormat = CqFormat::Tagged;
}

/// The caller's array, to be filled with entries of the queue's format and, optionally, the source of each.
#[derive(Debug)]
pub struct CqBuffer<'a> {
    entries: *mut u8,
    sources: *mut FiAddr,
    capacity: usize,
    format: CqFormat,
    _lent: PhantomData<&'a mut u8>,
}

impl<'a> CqBuffer<'a> {
    /// Over `entries`.
    #[inline]
    pub fn new<E: CqFormatEntry>(entries: &'a mut [E]) -> Self {
        Self {
            entries: entries.as_mut_ptr().cast(),
            sources: std::ptr::null_mut(),
            capacity: entries.len(),
            format: E::FORMAT,
            _lent: PhantomData,
        }
    }

    /// A buffer over `entries`, with the source of each in `sources`; the shorter slice sets the capacity.
    #[inline]
    pub fn with_sources<E: CqFormatEntry>(entries: &'a mut [E], sources: &'a mut [FiAddr]) -> Self {
        let capacity = entries.len().min(sources.len());
        Self { sources: sources.as_mut_ptr(), capacity, ..Self::new(entries) }
    }

    /// A buffer over memory of a C caller.
    ///
    /// # Safety
    /// `entries` holds `capacity` entries of `format`, `sources` is null or holds as many addresses, and both may be
    /// written for `'a`.
    #[inline]
    pub const unsafe fn from_raw(
        entries: *mut u8,
        sources: *mut FiAddr,
        capacity: usize,
        format: CqFormat,
    ) -> Self {
        Self { entries, sources, capacity, format, _lent: PhantomData }
    }

    /// The number of entries that fit.
    #[inline]
    pub const fn capacity(&self) -> usize {
        self.capacity
    }

    /// The format of the entries.
    #[inline]
    pub const fn format(&self) -> CqFormat {
        self.format
    }

    /// The array, if its entries are of type [`CqTaggedEntry`] and sources are not wanted. A caller that stays within
    /// the capacity may then store entries itself, as [`write`](Self::write) does.
    #[inline]
    pub fn plain(&mut self) -> Option<std::ptr::NonNull<CqTaggedEntry>> {
        let plain = self.format as u32 == CqFormat::Tagged as u32 && self.sources.is_null();
        std::ptr::NonNull::new(self.entries.cast()).filter(|_| plain)
    }

    /// Writes entry `index`, converted to the buffer's format.
    ///
    /// # Panics
    /// If `index` is not below the capacity.
    #[inline(always)] // so that the entry is built where it goes
    pub fn write(&mut self, index: usize, entry: CqTaggedEntry, source: FiAddr) {
        assert!(index < self.capacity, "no such entry");
        if self.format as u32 != CqFormat::Tagged as u32 || !self.sources.is_null() {
            return self.write_as_asked(index, entry, source);
        }
        // SAFETY: `index < capacity`, and the constructors promise that many entries of this format.
        let slot = unsafe { self.entries.cast::<CqTaggedEntry>().add(index) };
        // SAFETY: as above; an unaligned store does not require a C caller's buffer to be aligned.
        unsafe { slot.write_unaligned(entry) };
    }

    /// The general case of [`CqBuffer::write`]: any format, and the source if the caller wants it. `index` is in range.
    #[inline(never)]
    fn write_as_asked(&mut self, index: usize, entry: CqTaggedEntry, source: FiAddr) {
        let size = entry_size(self.format);
        // SAFETY: `index < capacity`, and the constructors promise that many entries of this format.
        let slot = unsafe { self.entries.add(index * size) };
        // SAFETY: inside the caller's array, and every format is a prefix of the tagged one.
        unsafe { std::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), slot, size) };
        if !self.sources.is_null() {
            // SAFETY: `index < capacity`, and a non-null array has that many addresses.
            let slot = unsafe { self.sources.add(index) };
            // SAFETY: as above.
            unsafe { slot.write_unaligned(source) };
        }
    }
}

/// Bytes of an entry of `format`.
const fn entry_size(format: CqFormat) -> usize {
    match format {
        CqFormat::Context => size_of::<CqEntry>(),
        CqFormat::Msg => size_of::<CqMsgEntry>(),
        CqFormat::Data => size_of::<CqDataEntry>(),
        CqFormat::Tagged | CqFormat::Unspec => size_of::<CqTaggedEntry>(),
    }
}

/// A failed operation (`struct fi_cq_err_entry`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CqErrorEntry {
    /// The context given with the operation.
    pub op_context: Context,
    /// The kind of operation.
    pub flags: CompletionFlags,
    /// Bytes that were transferred before the operation failed.
    pub len: usize,
    /// The address of the message within its multi-receive buffer.
    pub buf: usize,
    /// Remote CQ data, if `flags` contains `REMOTE_CQ_DATA`.
    pub data: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// Bytes that did not fit, for `FI_ETRUNC`.
    pub olen: usize,
    /// Why it failed.
    pub err: Errno,
    /// The transport's own error code; [`CompletionQueue::error_text`] explains it.
    pub prov_errno: i32,
    /// Further data: the sender's raw address for `FI_EADDRNOTAVAIL`, and, with `FI_SOURCE_ERR`, for an `FI_ETRUNC`
    /// whose sender is not in the address vector.
    pub err_data: Vec<u8>,
    /// The peer of the operation, if known.
    pub src_addr: FiAddr,
    /// The address of the peer, if the operation failed at the peer or on the way to it.
    pub peer: Option<Box<Address>>,
}

impl CqErrorEntry {
    /// An error entry in which all fields but context, flags and error have their neutral values.
    pub const fn new(op_context: Context, flags: CompletionFlags, err: Errno) -> Self {
        Self {
            op_context,
            flags,
            len: 0,
            buf: 0,
            data: 0,
            tag: 0,
            olen: 0,
            err,
            prov_errno: 0,
            err_data: Vec::new(),
            src_addr: FiAddr::NOTAVAIL,
            peer: None,
        }
    }
}

/// A completion queue (`fid_cq`).
pub trait CompletionQueue: Send + Sync + std::any::Any {
    /// Drives progress and reads entries, up to the buffer's capacity. With a capacity of 0 it only drives progress,
    /// and returns 0 if there is something to read.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is nothing; `FI_EAVAIL` if the next entry is an error, to be read with
    /// [`CompletionQueue::read_error`]; `FI_EINVAL` if the buffer's format is not the queue's.
    fn read(&self, buffer: &mut CqBuffer<'_>) -> Result<usize>;

    /// As [`CompletionQueue::read`], but blocks until there is an entry or `timeout` has passed (`None`: no limit).
    ///
    /// # Errors
    /// Those of `read`; `FI_EAGAIN` also after a timeout and after [`CompletionQueue::signal`]; `FI_EINVAL` on a queue
    /// without a wait object.
    fn read_wait(&self, buffer: &mut CqBuffer<'_>, timeout: Option<Duration>) -> Result<usize>;

    /// Takes the error entry that `read` stopped at.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the next entry is not an error.
    fn read_error(&self) -> Result<CqErrorEntry>;

    /// Wakes threads that block in [`CompletionQueue::read_wait`], which then return `FI_EAGAIN`.
    ///
    /// # Errors
    /// `FI_EINVAL` on a queue without a wait object.
    fn signal(&self) -> Result<()>;

    /// Explains a `prov_errno`.
    fn error_text(&self, prov_errno: i32) -> String;

    /// Whether the caller may block on the wait descriptor (`fi_trywait`, fi_poll(3)): `Ok` if there is nothing to read
    /// and the next entry will make the descriptor readable.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the queue first.
    fn trywait(&self) -> Result<()>;

    /// The wait descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD` (an array of one, which never changes).
    fn wait_fd(&self) -> Option<std::os::fd::RawFd>;

    /// All descriptors to block on in place of [`CompletionQueue::wait_fd`]: once [`CompletionQueue::trywait`] has
    /// returned `Ok`, the next entry makes one of them readable. They stay the same until an endpoint is bound or
    /// closed. A queue with `FI_WAIT_UNSPEC` has them too, and spares the descriptor that unites them. Empty for a
    /// queue with `FI_WAIT_NONE`, `FI_WAIT_SET` or `FI_WAIT_MUTEX_COND`.
    fn wait_fds(&self) -> Vec<std::os::fd::RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`. Wait on them only after [`CompletionQueue::trywait`]
    /// returned `Ok`. The condition is broadcast repeatedly until the queue is read.
    fn mutex_cond(&self) -> Option<MutexCond>;

    /// The format of its entries.
    fn format(&self) -> CqFormat;
}
