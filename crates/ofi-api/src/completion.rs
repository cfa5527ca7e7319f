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
    /// The number of entries to make room for; 0 leaves it to the library. A hint: entries are reserved when operations
    /// are posted, so a queue never overruns.
    pub size: usize,
    /// The fields of an entry.
    pub format: CqFormat,
    /// How a thread may block on the queue.
    pub wait_obj: WaitObj,
    /// The set to belong to, with `FI_WAIT_SET`.
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
    /// The address of the message in a multi-receive buffer.
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
    /// The address of the message in a multi-receive buffer.
    pub buf: *mut u8,
    /// Remote CQ data, where `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
}

// SAFETY: the pointer is only a number that says where in the application's memory the message lies.
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

/// The caller's array, to be filled with entries of the queue's format, and optionally with each entry's source.
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

    /// Over `entries`, and `sources` for where each came from; the shorter of the two bounds the read.
    #[inline]
    pub fn with_sources<E: CqFormatEntry>(entries: &'a mut [E], sources: &'a mut [FiAddr]) -> Self {
        let capacity = entries.len().min(sources.len());
        Self { sources: sources.as_mut_ptr(), capacity, ..Self::new(entries) }
    }

    /// Over memory of a C caller.
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

    /// The array, if its entries are of type [`CqTaggedEntry`] and need no conversion. A caller that stays below the
    /// capacity can then write entries itself, as [`write`](Self::write) does.
    #[inline]
    pub fn plain(&mut self) -> Option<std::ptr::NonNull<CqTaggedEntry>> {
        let plain = self.format as u32 == CqFormat::Tagged as u32 && self.sources.is_null();
        std::ptr::NonNull::new(self.entries.cast()).filter(|_| plain)
    }

    /// Writes entry `index`, as much of it as the format has.
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
        // SAFETY: as above; an unaligned store asks nothing of a C caller's buffer.
        unsafe { slot.write_unaligned(entry) };
    }

    /// As [`CqBuffer::write`], in any format and with the source, where there is room for it. `index` is in range.
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
    /// Bytes that were placed before it failed.
    pub len: usize,
    /// Address of the message in a multi-receive buffer.
    pub buf: usize,
    /// Remote CQ data, if `flags` contains `REMOTE_CQ_DATA`.
    pub data: u64,
    /// The tag of a tagged receive.
    pub tag: u64,
    /// Bytes that did not fit, for `FI_ETRUNC`.
    pub olen: usize,
    /// Why it failed.
    pub err: Errno,
    /// The transport's own code; [`CompletionQueue::error_text`] explains it.
    pub prov_errno: i32,
    /// More about the error: the sender's raw address for `FI_EADDRNOTAVAIL`, and, with `FI_SOURCE_ERR`, for an
    /// `FI_ETRUNC` whose sender is not in the address vector.
    pub err_data: Vec<u8>,
    /// The peer of the operation, if known.
    pub src_addr: FiAddr,
    /// The address of the peer, of an operation that failed at or on the way to it.
    pub peer: Option<Box<Address>>,
}

impl CqErrorEntry {
    /// An error entry with everything but context, flags and reason at its neutral value.
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
    /// Reads up to the buffer's capacity, driving progress. A capacity of 0 only drives progress, and returns 0 if
    /// there is something to read.
    ///
    /// # Errors
    /// `FI_EAGAIN` if there is nothing; `FI_EAVAIL` if the next entry is an error, to be read with
    /// [`CompletionQueue::read_error`]; `FI_EINVAL` if the buffer's format is not the queue's.
    fn read(&self, buffer: &mut CqBuffer<'_>) -> Result<usize>;

    /// As [`CompletionQueue::read`], but blocks until there is an entry, or until `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// The errors of `read`; `FI_EAGAIN` also on time-out and after [`CompletionQueue::signal`]; `FI_EINVAL` on a queue
    /// without wait object.
    fn read_wait(&self, buffer: &mut CqBuffer<'_>, timeout: Option<Duration>) -> Result<usize>;

    /// Takes the error entry that `read` stopped at.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the next entry is not an error.
    fn read_error(&self) -> Result<CqErrorEntry>;

    /// Wakes threads that block in [`CompletionQueue::read_wait`]; they return `FI_EAGAIN`.
    ///
    /// # Errors
    /// `FI_EINVAL` on a queue without wait object.
    fn signal(&self) -> Result<()>;

    /// Explains a `prov_errno`.
    fn error_text(&self, prov_errno: i32) -> String;

    /// Whether the caller may block on the wait descriptor: `Ok` if nothing is waiting to be read and the sources will
    /// make the descriptor readable; see `fi_trywait` (`fi_poll(3)`).
    ///
    /// # Errors
    /// `FI_EAGAIN` if the caller must read the queue first.
    fn trywait(&self) -> Result<()>;

    /// The wait descriptor, for `FI_WAIT_FD` and `FI_WAIT_POLLFD` (an array of one, which never changes).
    fn wait_fd(&self) -> Option<std::os::fd::RawFd>;

    /// Mutex and condition variable, for `FI_WAIT_MUTEX_COND`. Wait on them only after
    /// [`CompletionQueue::trywait`] said so; they are broadcast until the queue is read.
    fn mutex_cond(&self) -> Option<MutexCond>;

    /// The format of its entries.
    fn format(&self) -> CqFormat;
}
