//! Untagged messages, and what all data transfers need: C's buffers as lent memory.

use std::ffi::c_void;

use ofi_api::{Call, Context, Desc, FiAddr, Lent, OpFlags, Piece, ReceiveOp, Result, SendOp};

use crate::abi::{fi_msg, fi_ops_msg, fid_ep};
use crate::border::{invalid, null, transfer};
use crate::endpoint::EpBody;
use crate::object;

pub(crate) static OPS: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv,
    recvv,
    recvmsg,
    send,
    sendv,
    sendmsg,
    inject,
    senddata,
    injectdata,
};

/// One buffer of C.
pub(crate) struct One {
    piece: [Piece; 1],
    desc: [Desc; 1],
}

impl One {
    /// # Errors
    /// `FI_EINVAL` for null with a length.
    #[inline]
    pub(crate) fn new(buf: *const c_void, len: usize, desc: *mut c_void) -> Result<Self> {
        if buf.is_null() && len > 0 {
            return Err(null("the buffer"));
        }
        Ok(Self { piece: [Piece::new(buf.cast_mut().cast(), len)], desc: [Desc(desc.addr())] })
    }

    /// # Safety
    /// The promise of [`Lent::new`], which a C program makes by its call.
    #[inline]
    pub(crate) unsafe fn lend(&self) -> Lent<'_> {
        let descs = if self.desc[0] == Desc::NONE { &[][..] } else { &self.desc[..] };
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.piece, descs) }
    }
}

/// Most pieces that are looked at: any limit of an endpoint is far below.
const MOST: usize = 4096;

/// A vector of C, or nothing for a count of zero.
///
/// # Errors
/// `FI_EINVAL` for null with a count, and for absurd counts.
///
/// # Safety
/// The C caller's promise: `count` readable elements. `T` is laid out as C's.
pub(crate) unsafe fn vector<'a, T>(what: &str, pointer: *const T, count: usize) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    if pointer.is_null() {
        return Err(null(what));
    }
    if count > MOST {
        return Err(invalid(what, &format!("at most {MOST}"), count.to_string()));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// Lends a vector of buffers of C.
///
/// # Errors
/// As [`vector`], and for a null buffer with a length.
///
/// # Safety
/// The promises of [`vector`] and [`Lent::new`].
pub(crate) unsafe fn lend<'a>(
    iov: *const libc::iovec,
    desc: *const *mut c_void,
    count: usize,
) -> Result<Lent<'a>> {
    // SAFETY: the caller's promise; `Piece` is laid out like `iovec`.
    let pieces = unsafe { vector::<Piece>("the buffers", iov.cast(), count)? };
    if pieces.iter().any(|piece| piece.addr.is_null() && piece.len > 0) {
        return Err(null("one of the buffers"));
    }
    // SAFETY: as above; `Desc` is laid out like a pointer.
    let descs = if desc.is_null() { &[][..] } else { unsafe { vector::<Desc>("desc", desc.cast(), count)? } };
    // SAFETY: the caller's promise.
    Ok(unsafe { Lent::new(pieces, descs) })
}

/// A context of C.
#[inline]
pub(crate) fn context(pointer: *mut c_void) -> Context {
    Context(pointer.expose_provenance())
}

/// The endpoint behind a handle.
///
/// # Safety
/// The C caller's promise.
#[inline]
pub(crate) unsafe fn of<'a>(ep: *mut fid_ep) -> Result<&'a EpBody> {
    // SAFETY: the same promise.
    unsafe { object::body(ep) }
}

#[inline]
pub(crate) fn plain_send<'a>(ep: &EpBody, buf: Lent<'a>, dest: u64, op_context: *mut c_void) -> SendOp<'a> {
    let (flags, call) = (ep.tx.flags, ep.tx.call);
    SendOp { buf, dest: FiAddr(dest), context: context(op_context), data: 0, flags, call }
}

#[inline]
pub(crate) fn data_send<'a>(
    ep: &EpBody,
    buf: Lent<'a>,
    data: u64,
    dest: u64,
    op_context: *mut c_void,
) -> SendOp<'a> {
    let op = plain_send(ep, buf, dest, op_context);
    SendOp { data, flags: op.flags | OpFlags::REMOTE_CQ_DATA, ..op }
}

#[inline]
pub(crate) fn injected<'a>(buf: Lent<'a>, data: Option<u64>, dest: u64) -> SendOp<'a> {
    SendOp {
        buf,
        dest: FiAddr(dest),
        context: Context::NULL,
        data: data.unwrap_or(0),
        flags: if data.is_some() { OpFlags::REMOTE_CQ_DATA } else { OpFlags::empty() },
        call: Call::Inject,
    }
}

#[inline]
pub(crate) fn plain_receive<'a>(
    ep: &EpBody,
    buf: Lent<'a>,
    source: u64,
    op_context: *mut c_void,
) -> ReceiveOp<'a> {
    let (flags, call) = (ep.rx.flags, ep.rx.call);
    ReceiveOp { buf, source: FiAddr(source), context: context(op_context), flags, call }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.send(&plain_send(ep, lent, dest, op_context))
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        ep.endpoint.send(&plain_send(ep, lent, dest, op_context))
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg"))?;
        // SAFETY: the C caller lends the buffers until the completion.
        let buf = unsafe { lend(msg.msg_iov, msg.desc, msg.iov_count)? };
        ep.endpoint.send(&SendOp {
            buf,
            dest: FiAddr(msg.addr),
            context: context(msg.context),
            data: msg.data,
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        })
    })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, std::ptr::null_mut())?;
        // SAFETY: the C caller lends the buffer until the call returns.
        let lent = unsafe { one.lend() };
        ep.endpoint.send(&injected(lent, None, dest))
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.send(&data_send(ep, lent, data, dest, op_context))
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: u64,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, std::ptr::null_mut())?;
        // SAFETY: the C caller lends the buffer until the call returns.
        let lent = unsafe { one.lend() };
        ep.endpoint.send(&injected(lent, Some(data), dest))
    })
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    source: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.receive(&plain_receive(ep, lent, source, op_context))
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    source: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        ep.endpoint.receive(&plain_receive(ep, lent, source, op_context))
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg"))?;
        // SAFETY: the C caller lends the buffers until the completion.
        let buf = unsafe { lend(msg.msg_iov, msg.desc, msg.iov_count)? };
        ep.endpoint.receive(&ReceiveOp {
            buf,
            source: FiAddr(msg.addr),
            context: context(msg.context),
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        })
    })
}
