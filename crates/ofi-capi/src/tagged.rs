//! Tagged messages.

use std::ffi::c_void;
use std::ptr::null_mut;

use ofi_api::TagMatch;

use crate::abi::{fi_msg, fi_msg_tagged, fi_ops_tagged, fid_ep};
use crate::posting::{injected, room, with_data, with_many, with_message, with_one};
use crate::state::EpBody;

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

impl fi_msg_tagged {
    /// The structure without the tag.
    pub(crate) fn untagged(&self) -> fi_msg {
        let Self { msg_iov, desc, iov_count, addr, context, data, .. } = *self;
        fi_msg { msg_iov, desc, iov_count, addr, context, data }
    }

    /// The tags that a receive matches.
    pub(crate) fn matching(&self) -> TagMatch {
        TagMatch { tag: self.tag, ignore: self.ignore }
    }
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    dest: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, desc, |ep, buf| ep.send_tagged(ep.to(buf, dest, context), tag)) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    dest: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_many(ep, iov, desc, count, |ep, buf| ep.send_tagged(ep.to(buf, dest, context), tag)) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    let post = |ep: &EpBody, msg: &fi_msg_tagged| {
        let untagged = msg.untagged();
        // SAFETY: the C caller's promise.
        ep.send_tagged(unsafe { untagged.send_op(flags)? }, msg.tag)
    };
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, dest: u64, tag: u64) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { with_one(ep, buf, len, null_mut(), |ep, buf| ep.send_tagged(injected(buf, dest), tag)) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    desc: *mut c_void,
    data: u64,
    dest: u64,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe {
        with_one(ep, buf, len, desc, |ep, buf| {
            ep.send_tagged(with_data(ep.to(buf, dest, context), data), tag)
        })
    }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: u64,
    tag: u64,
) -> isize {
    // SAFETY: the C caller's promise.
    unsafe {
        with_one(ep, buf, len, null_mut(), |ep, buf| {
            ep.send_tagged(with_data(injected(buf, dest), data), tag)
        })
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    desc: *mut c_void,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let tags = TagMatch { tag, ignore };
    // SAFETY: the C caller's promise.
    unsafe {
        with_one(ep, buf, room(buf, len), desc, |ep, buf| {
            ep.receive_tagged(ep.from(buf, source, context), tags)
        })
    }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const libc::iovec,
    desc: *mut *mut c_void,
    count: usize,
    source: u64,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let tags = TagMatch { tag, ignore };
    // SAFETY: the C caller's promise.
    unsafe {
        with_many(ep, iov, desc, count, |ep, buf| ep.receive_tagged(ep.from(buf, source, context), tags))
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg_tagged, flags: u64) -> isize {
    let post = |ep: &EpBody, msg: &fi_msg_tagged| {
        let untagged = msg.untagged();
        // SAFETY: the C caller's promise.
        ep.receive_tagged(unsafe { untagged.receive_op(flags)? }, msg.matching())
    };
    // SAFETY: as above.
    unsafe { with_message(ep, msg, post) }
}
