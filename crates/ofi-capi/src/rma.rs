//! Remote reads and writes.

use std::ffi::c_void;
use std::ptr::null_mut;

use ofi_api::{Call, Context, FiAddr, Lent, OpFlags, RemotePiece, Result, RmaOp};

use crate::abi::{fi_msg_rma, fi_ops_rma, fid_ep};
use crate::posting::{context, lend, vector, with_many, with_message, with_one};
use crate::state::EpBody;

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
    /// One remote piece, as long as the local memory.
    #[inline(always)]
    fn piece(self, buf: &Lent<'_>) -> [RemotePiece; 1] {
        [RemotePiece { addr: self.addr, len: buf.len(), key: self.key }]
    }

    /// Reads with the endpoint's own flags.
    #[inline(always)]
    fn read(self, ep: &EpBody, buf: Lent<'_>, op_context: *mut c_void) -> Result<()> {
        ep.read(self.op(ep, buf, &self.piece(&buf), op_context))
    }

    /// Writes with the endpoint's own flags.
    #[inline(always)]
    fn write(self, ep: &EpBody, buf: Lent<'_>, op_context: *mut c_void) -> Result<()> {
        ep.write(self.op(ep, buf, &self.piece(&buf), op_context))
    }

    /// An injected write: the program may reuse the memory when the call returns.
    #[inline(always)]
    fn inject(self, ep: &EpBody, buf: Lent<'_>, data: u64, flags: OpFlags) -> Result<()> {
        let remote = &self.piece(&buf);
        let (peer, context, call) = (FiAddr(self.peer), Context::NULL, Call::Inject);
        ep.write(RmaOp { buf, remote, peer, context, data, flags, call })
    }

    #[inline(always)]
    fn op<'a>(
        self,
        ep: &EpBody,
        buf: Lent<'a>,
        remote: &'a [RemotePiece],
        op_context: *mut c_void,
    ) -> RmaOp<'a> {
        let (flags, call) = (ep.tx.flags, ep.tx.call);
        RmaOp { buf, remote, peer: FiAddr(self.peer), context: context(op_context), data: 0, flags, call }
    }
}

impl fi_msg_rma {
    /// Converts the structure to an operation.
    ///
    /// # Errors
    /// Those of [`lend`] and [`vector`].
    ///
    /// # Safety
    /// The C caller's promise: the buffers are lent until the completion.
    #[inline(always)]
    pub(crate) unsafe fn op(&self, flags: u64) -> Result<RmaOp<'_>> {
        Ok(RmaOp {
            // SAFETY: the same promise.
            buf: unsafe { lend(self.msg_iov, self.desc, self.iov_count)? },
            // SAFETY: the same promise; `RemotePiece` is laid out like `fi_rma_iov`.
            remote: unsafe { vector("rma_iov", self.rma_iov.cast::<RemotePiece>(), self.rma_iov_count)? },
            peer: FiAddr(self.addr),
            context: context(self.context),
            data: self.data,
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        })
    }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, desc, |ep, buf| Far { peer, addr, key }.read(ep, buf, context)) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_many(ep, iov, desc, count, |ep, buf| Far { peer, addr, key }.read(ep, buf, context)) }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    let post = |ep: &EpBody, msg: &fi_msg_rma| ep.read(unsafe { msg.op(flags)? });
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, desc, |ep, buf| Far { peer, addr, key }.write(ep, buf, context)) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_many(ep, iov, desc, count, |ep, buf| Far { peer, addr, key }.write(ep, buf, context)) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    let post = |ep: &EpBody, msg: &fi_msg_rma| ep.write(unsafe { msg.op(flags)? });
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
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
    context: *mut c_void,
) -> isize {
    let far = Far { peer, addr, key };
    // SAFETY: the C caller's promise.
    unsafe {
        with_one(ep, buf, len, desc, |ep, buf| {
            let remote = far.piece(&buf);
            let op = far.op(ep, buf, &remote, context);
            ep.write(RmaOp { data, flags: op.flags | OpFlags::REMOTE_CQ_DATA, ..op })
        })
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let (far, flags) = (Far { peer, addr, key }, OpFlags::empty());
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, null_mut(), |ep, buf| far.inject(ep, buf, 0, flags)) }
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
    let (far, flags) = (Far { peer, addr, key }, OpFlags::REMOTE_CQ_DATA);
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, null_mut(), |ep, buf| far.inject(ep, buf, data, flags)) }
}
