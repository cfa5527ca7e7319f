//! Untagged messages.

use std::ffi::c_void;
use std::ptr::null_mut;

use ofi_api::{Call, FiAddr, OpFlags, ReceiveOp, Result, SendOp};

use crate::abi::{fi_msg, fi_ops_msg, fid_ep};
use crate::posting::{context, injected, lend, room, with_data, with_many, with_message, with_one};
use crate::state::EpBody;

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

impl fi_msg {
    /// Converts the structure to a send.
    ///
    /// # Errors
    /// Those of [`lend`].
    ///
    /// # Safety
    /// The C caller's promise: the buffers are lent until the completion.
    #[inline(always)]
    pub(crate) unsafe fn send_op(&self, flags: u64) -> Result<SendOp<'_>> {
        Ok(SendOp {
            // SAFETY: the same promise.
            buf: unsafe { lend(self.msg_iov, self.desc, self.iov_count)? },
            dest: FiAddr(self.addr),
            context: context(self.context),
            data: self.data,
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        })
    }

    /// Converts the structure to a receive.
    ///
    /// # Errors
    /// Those of [`lend`].
    ///
    /// # Safety
    /// As [`fi_msg::send_op`].
    #[inline(always)]
    pub(crate) unsafe fn receive_op(&self, flags: u64) -> Result<ReceiveOp<'_>> {
        Ok(ReceiveOp {
            // SAFETY: the same promise.
            buf: unsafe { lend(self.msg_iov, self.desc, self.iov_count)? },
            source: FiAddr(self.addr),
            context: context(self.context),
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        })
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, desc, |ep, buf| ep.send(ep.to(buf, dest, context))) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_many(ep, iov, desc, count, |ep, buf| ep.send(ep.to(buf, dest, context))) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    let post = |ep: &EpBody, msg: &fi_msg| ep.send(unsafe { msg.send_op(flags)? });
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: u64) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, null_mut(), |ep, buf| ep.send(injected(buf, dest))) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, desc, |ep, buf| ep.send(with_data(ep.to(buf, dest, context), data))) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: u64,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, null_mut(), |ep, buf| ep.send(with_data(injected(buf, dest), data))) }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, room(buf, len), desc, |ep, buf| ep.receive(ep.from(buf, source, context))) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_many(ep, iov, desc, count, |ep, buf| ep.receive(ep.from(buf, source, context))) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    let post = |ep: &EpBody, msg: &fi_msg| ep.receive(unsafe { msg.receive_op(flags)? });
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
}
