//! Queries: which operations each data type supports, and the maximum number of elements per call.

use std::ffi::{c_int, c_void};

use ofi_api::{AtomicKind, Errno, Error, Result};

use super::buffers::Verb;
use crate::abi::{fid_domain, fid_ep};
use crate::ffi_guard::{self, null};
use crate::posting::of;
use crate::state;

/// `FI_FETCH_ATOMIC` and `FI_COMPARE_ATOMIC`.
const FETCH: u64 = 1 << 58;
const COMPARE: u64 = 1 << 59;

/// # Safety
/// The C caller's promise.
unsafe fn valid(ep: *mut fid_ep, kind: AtomicKind, datatype: u32, op: u32, count: *mut usize) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let ep = unsafe { of(ep)? };
    let verb = Verb::new(datatype, op)?;
    let most = ep.endpoint.atomic_valid(kind, verb.op, verb.datatype)?;
    if count.is_null() {
        return Err(null("the pointer for the count"));
    }
    // SAFETY: as above.
    unsafe { count.write(most) };
    Ok(())
}

pub(super) unsafe extern "C" fn writevalid(
    ep: *mut fid_ep,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { valid(ep, AtomicKind::Base, datatype, op, count) })
}

pub(super) unsafe extern "C" fn readwritevalid(
    ep: *mut fid_ep,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { valid(ep, AtomicKind::Fetch, datatype, op, count) })
}

pub(super) unsafe extern "C" fn compwritevalid(
    ep: *mut fid_ep,
    datatype: u32,
    op: u32,
    count: *mut usize,
) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { valid(ep, AtomicKind::Compare, datatype, op, count) })
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: u32,
    op: u32,
    attr: *mut c_void,
    flags: u64,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        let kind = match flags {
            0 => AtomicKind::Base,
            FETCH => AtomicKind::Fetch,
            COMPARE => AtomicKind::Compare,
            other => {
                return Err(Error::wanted(
                    Errno::EBADFLAGS,
                    "the flags of fi_query_atomic",
                    "FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC or none",
                    format!("{other:#x}"),
                    "ask for one kind at a time",
                ));
            }
        };
        let verb = Verb::new(datatype, op)?;
        let found = domain.domain.query_atomic(kind, verb.op, verb.datatype)?;
        if attr.is_null() {
            return Err(null("struct fi_atomic_attr"));
        }
        // SAFETY: as above; `AtomicAttr` is laid out like C's.
        unsafe { attr.cast::<ofi_api::AtomicAttr>().write_unaligned(found) };
        Ok(())
    })
}
