//! Code that all data transfers share: C's buffers as lent memory; the three shapes of a call (one buffer, a vector, a
//! message structure); and where an operation is posted, which is the endpoint or, with `FI_TRIGGER`, a counter.

use std::ffi::c_void;

use ofi_api::{
    AtomicOp, Call, Context, DeferredOp, Desc, Error, FiAddr, Lent, OpFlags, Piece, ReceiveOp, Result, RmaOp,
    SendOp, TagMatch,
};

use crate::abi::fid_ep;
use crate::ffi_guard::{invalid, null, transfer};
use crate::state::EpBody;
use crate::{object, triggered};

/// One buffer of C.
pub(crate) struct One {
    piece: [Piece; 1],
    desc: [Desc; 1],
}

impl One {
    #[inline(always)]
    pub(crate) fn new(buf: *const c_void, len: usize, desc: *mut c_void) -> Self {
        Self { piece: [Piece::new(buf.cast_mut().cast(), len)], desc: [Desc(desc.addr())] }
    }

    /// # Safety
    /// The promise of [`Lent::new`], which a C program makes by its call.
    #[inline(always)]
    pub(crate) unsafe fn lend(&self) -> Lent<'_> {
        let described = self.desc[0] != Desc::NONE;
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.piece, &self.desc[..usize::from(described)]) }
    }

    /// As [`One::lend`], but treats a null buffer as empty, whatever its length.
    ///
    /// # Safety
    /// As [`One::lend`].
    #[inline(always)]
    pub(crate) unsafe fn lend_if_any(&self) -> Lent<'_> {
        let there = !self.piece[0].addr.is_null();
        let described = there && self.desc[0] != Desc::NONE;
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.piece[..usize::from(there)], &self.desc[..usize::from(described)]) }
    }
}

/// Maximum pieces of a vector that are read. Every endpoint's limit is far lower.
const MAX_PIECES: usize = 4096;

/// A vector of C; empty for a count of zero.
///
/// # Errors
/// `FI_EINVAL` for null with a count, and for impossible counts.
///
/// # Safety
/// The C caller's promise: `count` readable elements. `T` is laid out as C's.
#[inline(always)]
pub(crate) unsafe fn vector<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() || count > MAX_PIECES {
        return Err(no_vector(what, pointer.addr(), count));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

#[cold]
#[inline(never)]
fn no_vector(what: &str, pointer: usize, count: usize) -> Error {
    if pointer == 0 { null(what) } else { invalid(what, &format!("at most {MAX_PIECES}"), count.to_string()) }
}

/// The descriptors of a vector of buffers; empty for null.
///
/// # Errors
/// As [`vector`].
///
/// # Safety
/// The C caller's promise: null, or `count` descriptors.
#[inline(always)]
pub(crate) unsafe fn descriptors<'a>(desc: *const *mut c_void, count: usize) -> Result<&'a [Desc]> {
    if desc.is_null() {
        return Ok(&[]);
    }
    // SAFETY: the same promise; `Desc` is laid out like a pointer.
    unsafe { vector::<Desc>("desc", desc.cast(), count) }
}

/// Lends a vector of C's buffers.
///
/// # Errors
/// As [`vector`], and for a null buffer with a length.
///
/// # Safety
/// The promises of [`vector`] and [`Lent::new`].
#[inline(always)]
pub(crate) unsafe fn lend<'a>(
    iov: *const libc::iovec,
    desc: *const *mut c_void,
    count: usize,
) -> Result<Lent<'a>> {
    // SAFETY: the caller's promise; `Piece` is laid out like `iovec`.
    let pieces = unsafe { vector::<Piece>("the buffers", iov.cast(), count)? };
    if pieces.iter().any(|piece| piece.addr.is_null() && piece.len > 0) {
        return Err(no_vector("one of the buffers", 0, count));
    }
    // SAFETY: as above.
    let descs = unsafe { descriptors(desc, count)? };
    // SAFETY: the caller's promise.
    Ok(unsafe { Lent::new(pieces, descs) })
}

/// A context of C.
#[inline(always)]
pub(crate) fn context(pointer: *mut c_void) -> Context {
    Context(pointer.expose_provenance())
}

/// The endpoint behind a handle.
///
/// # Safety
/// The C caller's promise.
#[inline(always)]
pub(crate) unsafe fn of<'a>(ep: *mut fid_ep) -> Result<&'a EpBody> {
    // SAFETY: the same promise.
    unsafe { object::body(ep) }
}

/// The length of a receive buffer. A null buffer counts as empty, whatever its length: programs that exchange empty
/// messages post such buffers (as libfabric's fi_shared_ctx does), and C's providers check the buffer only when there
/// are bytes to place.
#[inline(always)]
pub(crate) fn room(buf: *const c_void, len: usize) -> usize {
    if buf.is_null() { 0 } else { len }
}

/// Posts a call with one buffer.
///
/// # Safety
/// The C caller's promise: the buffer is lent until the completion, or, injected, until the call returns.
#[inline(always)]
pub(crate) unsafe fn with_one(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    post: impl FnOnce(&EpBody, Lent<'_>) -> Result<()>,
) -> isize {
    // Errors are returned at once, so that the path without errors keeps no state for them.
    // SAFETY: the same promise, here and below.
    let Some(ep) = (unsafe { object::alive(ep) }) else { return unsafe { object::stale(ep) } };
    if buf.is_null() && len > 0 {
        return missing("the buffer");
    }
    let one = One::new(buf, len, desc);
    // SAFETY: as above.
    transfer(|| post(ep, unsafe { one.lend() }))
}

#[cold]
#[inline(never)]
fn missing(what: &str) -> isize {
    transfer(|| Err(null(what)))
}

/// Posts a call with a vector of buffers.
///
/// # Safety
/// As [`with_one`].
#[inline(always)]
pub(crate) unsafe fn with_many(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *const *mut c_void,
    count: usize,
    post: impl FnOnce(&EpBody, Lent<'_>) -> Result<()>,
) -> isize {
    // SAFETY: the same promise, here and below.
    let Some(ep) = (unsafe { object::alive(ep) }) else { return unsafe { object::stale(ep) } };
    // SAFETY: as above.
    transfer(|| post(ep, unsafe { lend(iov, desc, count)? }))
}

/// Posts a call with a message structure.
///
/// # Safety
/// As [`with_one`], and the structure and its vectors are readable.
#[inline(always)]
pub(crate) unsafe fn with_message<M>(
    ep: *mut fid_ep,
    message: *const M,
    post: impl FnOnce(&EpBody, &M) -> Result<()>,
) -> isize {
    // SAFETY: the same promise, here and below.
    let Some(ep) = (unsafe { object::alive(ep) }) else { return unsafe { object::stale(ep) } };
    // SAFETY: as above.
    let Some(message) = (unsafe { message.as_ref() }) else { return missing("the message") };
    transfer(|| post(ep, message))
}

/// The destinations of operations.
impl EpBody {
    /// Sends with the endpoint's own flags.
    #[inline(always)]
    pub(crate) fn to<'a>(&self, buf: Lent<'a>, dest: u64, op_context: *mut c_void) -> SendOp<'a> {
        let (flags, call) = (self.tx.flags, self.tx.call);
        SendOp { buf, dest: FiAddr(dest), context: context(op_context), data: 0, flags, call }
    }

    /// Receives with the endpoint's own flags.
    #[inline(always)]
    pub(crate) fn from<'a>(&self, buf: Lent<'a>, source: u64, op_context: *mut c_void) -> ReceiveOp<'a> {
        let (flags, call) = (self.rx.flags, self.rx.call);
        ReceiveOp { buf, source: FiAddr(source), context: context(op_context), flags, call }
    }

    #[inline(always)]
    pub(crate) fn send(&self, op: SendOp<'_>) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, DeferredOp::Send);
        }
        self.endpoint.send(&op)
    }

    #[inline(always)]
    pub(crate) fn send_tagged(&self, op: SendOp<'_>, tag: u64) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, |op| DeferredOp::SendTagged(op, tag));
        }
        self.endpoint.send_tagged(&op, tag)
    }

    #[inline(always)]
    pub(crate) fn receive(&self, op: ReceiveOp<'_>) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, DeferredOp::Receive);
        }
        self.endpoint.receive(&op)
    }

    #[inline(always)]
    pub(crate) fn receive_tagged(&self, op: ReceiveOp<'_>, tag: TagMatch) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, |op| DeferredOp::ReceiveTagged(op, tag));
        }
        self.endpoint.receive_tagged(&op, tag)
    }

    #[inline(always)]
    pub(crate) fn write(&self, op: RmaOp<'_>) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, DeferredOp::Write);
        }
        self.endpoint.write(&op)
    }

    #[inline(always)]
    pub(crate) fn read(&self, op: RmaOp<'_>) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, &op, DeferredOp::Read);
        }
        self.endpoint.read(&op)
    }

    #[inline(always)]
    pub(crate) fn atomic(&self, op: &AtomicOp<'_>) -> Result<()> {
        if op.flags.contains(OpFlags::TRIGGER) {
            return triggered::later(self, op.context, op, DeferredOp::Atomic);
        }
        self.endpoint.atomic(op)
    }
}

/// A send with remote CQ data.
#[inline(always)]
pub(crate) fn with_data(op: SendOp<'_>, data: u64) -> SendOp<'_> {
    SendOp { data, flags: op.flags | OpFlags::REMOTE_CQ_DATA, ..op }
}

/// An injected send: the program may reuse the buffer when the call returns.
#[inline(always)]
pub(crate) fn injected(buf: Lent<'_>, dest: u64) -> SendOp<'_> {
    let flags = OpFlags::empty();
    SendOp { buf, dest: FiAddr(dest), context: Context::NULL, data: 0, flags, call: Call::Inject }
}
