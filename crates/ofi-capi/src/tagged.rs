//! Tagged messages.

use std::ffi::c_void;

use ofi_api::{Call, FiAddr, OpFlags, ReceiveOp, SendOp, TagMatch};

use crate::abi::{fi_msg_tagged, fi_ops_tagged, fid_ep};
use crate::border::{null, transfer};
use crate::msg::{One, context, data_send, injected, lend, of, plain_receive, plain_send};

pub(crate) static OPS: fi_ops_tagged = fi_ops_tagged {
    size: size_of::<fi_ops_tagged>(),
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

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: u64,
    tag: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.send_tagged(&plain_send(ep, lent, dest, op_context), tag)
    })
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: u64,
    tag: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        ep.endpoint.send_tagged(&plain_send(ep, lent, dest, op_context), tag)
    })
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg_tagged"))?;
        // SAFETY: the C caller lends the buffers until the completion.
        let buf = unsafe { lend(msg.msg_iov, msg.desc, msg.iov_count)? };
        let op = SendOp {
            buf,
            dest: FiAddr(msg.addr),
            context: context(msg.context),
            data: msg.data,
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        };
        ep.endpoint.send_tagged(&op, msg.tag)
    })
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: u64, tag: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, std::ptr::null_mut())?;
        // SAFETY: the C caller lends the buffer until the call returns.
        let lent = unsafe { one.lend() };
        ep.endpoint.send_tagged(&injected(lent, None, dest), tag)
    })
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: u64,
    tag: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.send_tagged(&data_send(ep, lent, data, dest, op_context), tag)
    })
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: u64,
    tag: u64,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, std::ptr::null_mut())?;
        // SAFETY: the C caller lends the buffer until the call returns.
        let lent = unsafe { one.lend() };
        ep.endpoint.send_tagged(&injected(lent, Some(data), dest), tag)
    })
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    source: u64,
    tag: u64,
    ignore: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        let one = One::new(buf, len, desc)?;
        // SAFETY: the C caller lends the buffer until the completion.
        let lent = unsafe { one.lend() };
        ep.endpoint.receive_tagged(&plain_receive(ep, lent, source, op_context), TagMatch { tag, ignore })
    })
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: the C caller lends the buffers until the completion.
        let lent = unsafe { lend(iov, desc, count)? };
        ep.endpoint.receive_tagged(&plain_receive(ep, lent, source, op_context), TagMatch { tag, ignore })
    })
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg_tagged"))?;
        // SAFETY: the C caller lends the buffers until the completion.
        let buf = unsafe { lend(msg.msg_iov, msg.desc, msg.iov_count)? };
        let op = ReceiveOp {
            buf,
            source: FiAddr(msg.addr),
            context: context(msg.context),
            flags: OpFlags::from_bits_retain(flags),
            call: Call::Msg,
        };
        ep.endpoint.receive_tagged(&op, TagMatch { tag: msg.tag, ignore: msg.ignore })
    })
}
