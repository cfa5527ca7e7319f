//! Atomic operations: C's table of calls. Each call is one line that uses one of the three shapes.

mod buffers;
mod query;
mod shapes;

use std::ffi::c_void;

use ofi_api::AtomicKind;

pub(crate) use self::buffers::Iov;
pub(crate) use self::query::query;
use self::query::{compwritevalid, readwritevalid, writevalid};
pub(crate) use self::shapes::with_message;
use self::shapes::{Far, message, single, vectors};
use crate::abi::{fi_ops_atomic, fid_ep};

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (verb, sides, far) = ((datatype, op), [Some((buf, desc)), None, None], Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Base, verb, count, sides, far, context, false) }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    let none = std::ptr::null_mut();
    let (verb, sides, far) = ((datatype, op), [Some((buf, none)), None, None], Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Base, verb, count, sides, far, none, true) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let sides = [Some((buf, desc)), None, Some((result.cast_const(), result_desc))];
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Fetch, verb, count, sides, far, context, false) }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    compare: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let sides = [Some((buf, desc)), Some((compare, compare_desc)), Some((result.cast_const(), result_desc))];
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Compare, verb, count, sides, far, context, false) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let sides = [Iov(iov.cast(), desc, count), Iov::NONE, Iov::NONE];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Base, verb, sides, far, context) }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    let sides = [Iov(iov.cast(), desc, count), Iov::NONE, result];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Fetch, verb, sides, far, context) }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    compare: *const c_void,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let compare = Iov(compare.cast(), compare_desc, compare_count);
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    let sides = [Iov(iov.cast(), desc, count), compare, result];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Compare, verb, sides, far, context) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const c_void, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Base, [Iov::NONE; 2], flags) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const c_void,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Fetch, [Iov::NONE, result], flags) }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const c_void,
    compare: *const c_void,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let compare = Iov(compare.cast(), compare_desc, compare_count);
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Compare, [compare, result], flags) }
}
