//! Calls on objects of the Rust API as C programs make them, for measurements. Like C's inline functions, they jump
//! through the table at the beginning of the object.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use ofi_api::{CompletionQueue, Counter, Endpoint, Info, Version, WaitObj};

use crate::abi::{fi_msg, fi_msg_rma, fi_rma_iov, fid_cntr, fid_cq, fid_ep};
use crate::object::Users;
use crate::{cntr, cq, endpoint};

/// An endpoint and a queue as C holds them. They are never closed.
#[derive(Clone, Copy, Debug)]
pub struct Handles {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
}

impl Handles {
    /// Creates handles of `endpoint`, which was opened with `info`, and of `queue`.
    pub fn of(endpoint: Arc<dyn Endpoint>, info: &Info, queue: Arc<dyn CompletionQueue>) -> Self {
        let hold = || Users::default().hold();
        Self {
            ep: endpoint::wrap(endpoint, info, hold(), null_mut()),
            cq: cq::wrap(queue, WaitObj::None, Version::API, hold(), null_mut()),
        }
    }

    /// `fi_send`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn send(&self, buf: *const c_void, len: usize, dest: u64, context: *mut c_void) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).msg };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).send };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), dest, context) }
    }

    /// `fi_recv`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn receive(&self, buf: *mut c_void, len: usize, source: u64, context: *mut c_void) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).msg };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).recv };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), source, context) }
    }

    /// `fi_tsend`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn tagged_send(
        &self,
        buf: *const c_void,
        len: usize,
        (dest, tag): (u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).tagged };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).send };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), dest, tag, context) }
    }

    /// `fi_trecv`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn tagged_receive(
        &self,
        buf: *mut c_void,
        len: usize,
        (source, tag): (u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).tagged };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).recv };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), source, tag, 0, context) }
    }

    /// `fi_sendv` of one piece.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn send_vector(&self, buf: *mut c_void, len: usize, dest: u64, context: *mut c_void) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).msg };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).sendv };
        let piece = libc::iovec { iov_base: buf, iov_len: len };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, &raw const piece, null_mut(), 1, dest, context) }
    }

    /// `fi_sendmsg` of one piece.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn send_message(
        &self,
        buf: *mut c_void,
        len: usize,
        dest: u64,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).msg };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).sendmsg };
        let piece = libc::iovec { iov_base: buf, iov_len: len };
        let (msg_iov, desc) = (&raw const piece, null_mut());
        let msg = fi_msg { msg_iov, desc, iov_count: 1, addr: dest, context, data: 0 };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, &raw const msg, 0) }
    }

    /// `fi_inject`.
    ///
    /// # Safety
    /// As of the C function: `len` readable bytes.
    #[inline(always)]
    pub unsafe fn inject(&self, buf: *const c_void, len: usize, dest: u64) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).msg };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).inject };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, dest) }
    }

    /// `fi_tinject`.
    ///
    /// # Safety
    /// As of the C function: `len` readable bytes.
    #[inline(always)]
    pub unsafe fn tagged_inject(&self, buf: *const c_void, len: usize, (dest, tag): (u64, u64)) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).tagged };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).inject };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, dest, tag) }
    }

    /// `fi_writemsg` of one piece.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn write_message(
        &self,
        buf: *mut c_void,
        len: usize,
        (peer, addr, key): (u64, u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).rma };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).writemsg };
        let (piece, remote) = (libc::iovec { iov_base: buf, iov_len: len }, fi_rma_iov { addr, len, key });
        let msg = fi_msg_rma {
            msg_iov: &raw const piece,
            desc: null_mut(),
            iov_count: 1,
            addr: peer,
            rma_iov: &raw const remote,
            rma_iov_count: 1,
            context,
            data: 0,
        };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, &raw const msg, 0) }
    }

    /// `fi_inject_write`.
    ///
    /// # Safety
    /// As of the C function: `len` readable bytes.
    #[inline(always)]
    pub unsafe fn inject_write(
        &self,
        buf: *const c_void,
        len: usize,
        (peer, addr, key): (u64, u64, u64),
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).rma };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).inject };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, peer, addr, key) }
    }

    /// `fi_read`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn fetch(
        &self,
        buf: *mut c_void,
        len: usize,
        (peer, addr, key): (u64, u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).rma };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).read };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), peer, addr, key, context) }
    }

    /// `fi_fetch_atomic` of one element.
    ///
    /// # Safety
    /// As of the C function: one element of `datatype` is lent at `operand` and at `result` until the completion.
    #[inline(always)]
    pub unsafe fn fetch_atomic(
        &self,
        (operand, result): (*const c_void, *mut c_void),
        (peer, addr, key): (u64, u64, u64),
        (datatype, op): (u32, u32),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).atomic };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).readwrite };
        let none = null_mut();
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, operand, 1, none, result, none, peer, addr, key, datatype, op, context) }
    }

    /// `fi_write`.
    ///
    /// # Safety
    /// As of the C function: `len` bytes are lent until the completion.
    #[inline(always)]
    pub unsafe fn write(
        &self,
        buf: *const c_void,
        len: usize,
        (peer, addr, key): (u64, u64, u64),
        context: *mut c_void,
    ) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.ep).rma };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).write };
        // SAFETY: the caller's promise.
        unsafe { call(self.ep, buf, len, null_mut(), peer, addr, key, context) }
    }

    /// `fi_cq_read`.
    ///
    /// # Safety
    /// As of the C function: `entries` has room for `count` of the queue's format.
    #[inline(always)]
    pub unsafe fn read(&self, entries: *mut c_void, count: usize) -> isize {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.cq).ops };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).read };
        // SAFETY: the caller's promise.
        unsafe { call(self.cq, entries, count) }
    }
}

/// A counter as C holds it. It is never closed.
#[derive(Clone, Copy, Debug)]
pub struct CounterHandle(*mut fid_cntr);

impl CounterHandle {
    /// Creates a handle of `counter`.
    pub fn of(counter: Arc<dyn Counter>) -> Self {
        Self(cntr::wrap(counter, WaitObj::None, Users::default().hold(), null_mut()))
    }

    /// `fi_cntr_read`.
    #[inline(always)]
    pub fn read(self) -> u64 {
        // SAFETY: a handle that is open.
        let table = unsafe { (*self.0).ops };
        // SAFETY: a table of this library.
        let call = unsafe { (*table).read };
        // SAFETY: as above.
        unsafe { call(self.0) }
    }
}
