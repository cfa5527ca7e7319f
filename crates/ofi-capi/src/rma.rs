//! Remote reads and writes.

use std::ffi::c_void;

use ofi_api::{Call, Context, FiAddr, Lent, OpFlags, RemotePiece, Result, RmaOp};

use crate::abi::{fi_msg_rma, fi_ops_rma, fid_ep};
use crate::border::{null, transfer};
use crate::endpoint::EpBody;
use crate::msg::{One, context, lend, of, vector};

pub(crate) static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read,
    readv,
    readmsg,
    write,
    writev,
    writemsg,
    inject,
    writedata,
    injectdata,
};

/// The peer's side of an operation.
#[derive(Clone, Copy)]
struct Far {
    peer: u64,
    addr: u64,
    key: u64,
}

impl Far {
    /// One piece, as long as the local memory.
    fn piece(self, buf: &Lent<'_>) -> [RemotePiece; 1] {
        [RemotePiece { addr: self.addr, len: buf.len(), key: self.key }]
    }
}

/// An operation without flags of its own.
fn plain<'a>(
    ep: &EpBody,
    buf: Lent<'a>,
    far: Far,
    remote: &'a [RemotePiece],
    op_context: *mut c_void,
) -> RmaOp<'a> {
    let (flags, call) = (ep.tx.flags, ep.tx.call);
    RmaOp { buf, remote, peer: FiAddr(far.peer), context: context(op_context), data: 0, flags, call }
}

/// An operation with all that `struct fi_msg_rma` says.
///
/// # Safety
/// The C caller's promise.
unsafe fn message<'a>(msg: *const fi_msg_rma, flags: u64) -> Result<RmaOp<'a>> {
    // SAFETY: the caller's promise, here and below.
    let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg_rma"))?;
    // SAFETY: as above: the buffers are lent until the completion.
    let buf = unsafe { lend(msg.msg_iov, msg.desc, msg.iov_count)? };
    // SAFETY: as above; `RemotePiece` is laid out like `fi_rma_iov`.
    let remote = unsafe { vector::<RemotePiece>("rma_iov", msg.rma_iov.cast(), msg.rma_iov_count)? };
    Ok(RmaOp {
        buf,
        remote,
        peer: FiAddr(msg.addr),
        context: context(msg.context),
        data: msg.data,
        flags: OpFlags::from_bits_retain(flags),
        call: Call::Msg,
    })
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        let far = Far { peer, addr, key };
        ep.endpoint.read(&plain(ep, lent, far, &far.piece(&lent), op_context))
    })
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        let far = Far { peer, addr, key };
        ep.endpoint.read(&plain(ep, lent, far, &far.piece(&lent), op_context))
    })
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        ep.endpoint.read(&unsafe { message(msg, flags)? })
    })
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        let far = Far { peer, addr, key };
        ep.endpoint.write(&plain(ep, lent, far, &far.piece(&lent), op_context))
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        let far = Far { peer, addr, key };
        ep.endpoint.write(&plain(ep, lent, far, &far.piece(&lent), op_context))
    })
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        ep.endpoint.write(&unsafe { message(msg, flags)? })
    })
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        let far = Far { peer, addr, key };
        let remote = far.piece(&lent);
        let op = plain(ep, lent, far, &remote, op_context);
        ep.endpoint.write(&RmaOp { data, flags: op.flags | OpFlags::REMOTE_CQ_DATA, ..op })
    })
}

/// A write of a buffer that is the program's again when the call returns.
///
/// # Safety
/// The C caller's promise.
unsafe fn injected(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: Option<u64>,
    far: Far,
) -> Result<()> {
    // SAFETY: the same promise.
    let ep = unsafe { of(ep)? };
    let one = One::new(buf, len, std::ptr::null_mut())?;
    // SAFETY: the C caller lends the buffer until the call returns.
    let buf = unsafe { one.lend() };
    ep.endpoint.write(&RmaOp {
        buf,
        remote: &far.piece(&buf),
        peer: FiAddr(far.peer),
        context: Context::NULL,
        data: data.unwrap_or(0),
        flags: if data.is_some() { OpFlags::REMOTE_CQ_DATA } else { OpFlags::empty() },
        call: Call::Inject,
    })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the C caller's promise.
    transfer(|| unsafe { injected(ep, buf, len, None, Far { peer, addr, key }) })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the C caller's promise.
    transfer(|| unsafe { injected(ep, buf, len, Some(data), Far { peer, addr, key }) })
}
