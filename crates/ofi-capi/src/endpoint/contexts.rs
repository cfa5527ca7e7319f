//! Scalable endpoints, their transmit and receive contexts, and contexts that endpoints share.
//!
//! Each of these is a `struct fid_ep` in C and an `Endpoint` in Rust, except for shared transmit contexts. The Rust
//! endpoint refuses operations that its kind does not have.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ofi_api::{AddrFormat, OpFlags, Result, RxAttr, SharedTransmit, TxAttr};

use crate::abi::{
    Abi, class, fi_info, fi_ops, fi_ops_ep, fi_rx_attr, fi_tx_attr, fid, fid_domain, fid_ep, fid_stx,
};
use crate::ffi_guard::{self, invalid};
use crate::object::{self, Fid, Graveyard, Hold, Users};
use crate::state::EpBody;
use crate::{info, nosys, state};

/// The state of a shared transmit context.
pub(crate) struct StxBody {
    pub context: Arc<dyn SharedTransmit>,
    pub users: Users,
    /// Keeps the domain open.
    _domain: Hold,
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_stx {
    type Body = StxBody;
    const CLASS: usize = class::STX_CTX;

    fn ops() -> &'static fi_ops {
        &STX_FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.ops) = (object::closed(), nosys::EP.table());
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static STX_FID_OPS: fi_ops = fi_ops { close: close_stx, ..fi_ops::NOSYS };
static STX_OPS: fi_ops_ep = fi_ops_ep::NOSYS;

unsafe extern "C" fn close_stx(handle: *mut fid) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        unsafe { object::of_fid::<fid_stx>(handle)? }.users.none("a shared transmit context")?;
        // SAFETY: as above.
        unsafe { object::close::<fid_stx>(handle) }.map(drop)
    })
}

/// Checks the pointer that receives a handle.
///
/// # Errors
/// `FI_EINVAL` for null.
fn non_null<T>(out: *mut *mut T) -> Result<*mut *mut T> {
    if out.is_null() { Err(ffi_guard::null("the pointer for the context")) } else { Ok(out) }
}

/// Reads C's attributes, up to the size of the program's version; `None` for null.
///
/// # Safety
/// The C caller's promise.
unsafe fn tx_attr(attr: *const fi_tx_attr, abi: Abi) -> Option<TxAttr> {
    // SAFETY: the same promise.
    unsafe { info::read(attr, abi.tx_attr()) }.map(|c| info::tx_attr(&c))
}

/// As [`tx_attr`].
///
/// # Safety
/// As there.
unsafe fn rx_attr(attr: *const fi_rx_attr, abi: Abi) -> Option<RxAttr> {
    // SAFETY: the same promise.
    unsafe { info::read(attr, abi.rx_attr()) }.map(|c| info::rx_attr(&c))
}

/// Writes the granted attributes, up to the size of the program's version.
///
/// # Safety
/// The C caller's promise: `out` is null or has `size` bytes.
unsafe fn write_granted<T>(out: *mut T, granted: &T, size: usize) {
    if !out.is_null() {
        let size = size.min(size_of::<T>());
        // SAFETY: the same promise; `granted` is at least as long.
        unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(granted).cast::<u8>(), out.cast(), size) };
    }
}

/// `fi_stx_context`. The default attributes are those of the domain's info.
pub(crate) unsafe extern "C" fn open_shared_transmit(
    handle: *mut fid_domain,
    attr: *mut fi_tx_attr,
    out: *mut *mut fid_stx,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(handle)? };
        let out = non_null(out)?;
        // SAFETY: as above.
        let wanted = unsafe { tx_attr(attr, domain.abi) }.unwrap_or_else(|| domain.info.tx_attr.clone());
        let opened = domain.domain.open_shared_transmit(&wanted)?;
        let header = object::header::<fid_stx>(context, &STX_FID_OPS);
        let stx = fid_stx { fid: header, ops: STX_OPS.table() };
        let body = StxBody { context: opened, users: Users::default(), _domain: domain.users.hold() };
        // SAFETY: not null, and the caller's.
        unsafe { out.write(object::open(stx, body)) };
        Ok(())
    })
}

/// `fi_srx_context`. The default attributes are those of the domain's info.
pub(crate) unsafe extern "C" fn open_shared_receive(
    handle: *mut fid_domain,
    attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(handle)? };
        let out = non_null(out)?;
        // SAFETY: as above.
        let wanted = unsafe { rx_attr(attr, domain.abi) }.unwrap_or_else(|| domain.info.rx_attr.clone());
        let opened = domain.domain.open_shared_receive(&wanted)?;
        let op_flags = (OpFlags::empty(), wanted.op_flags);
        let body = EpBody::new(opened, AddrFormat::Unspec, op_flags, domain.users.hold());
        // SAFETY: not null, and the caller's.
        unsafe { out.write(super::make(context, class::SRX_CTX, body)) };
        Ok(())
    })
}

/// `fi_scalable_ep`.
pub(crate) unsafe extern "C" fn open_scalable(
    handle: *mut fid_domain,
    wanted: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(handle)? };
        let out = non_null(out)?;
        // SAFETY: as above.
        let wanted = unsafe { info::from_c(wanted, domain.abi)? };
        let opened = domain.domain.open_scalable(&wanted)?;
        let op_flags = (wanted.tx_attr.op_flags, wanted.rx_attr.op_flags);
        let mut body = EpBody::new(opened, wanted.addr_format, op_flags, domain.users.hold());
        body.abi = domain.abi;
        // SAFETY: not null, and the caller's.
        unsafe { out.write(super::make(context, class::SEP, body)) };
        Ok(())
    })
}

/// Checks the index of a context.
fn index_of(index: c_int) -> Result<usize> {
    usize::try_from(index).map_err(|_| invalid("the index of a context", "0 or more", index.to_string()))
}

/// `fi_tx_context`.
pub(crate) unsafe extern "C" fn transmit_context(
    handle: *mut fid_ep,
    index: c_int,
    attr: *mut fi_tx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let sep = unsafe { object::body(handle)? };
        let out = non_null(out)?;
        // SAFETY: as above.
        let wanted = unsafe { tx_attr(attr, sep.abi) };
        let (opened, granted) = sep.endpoint.transmit_context(index_of(index)?, wanted.as_ref())?;
        // SAFETY: as above.
        unsafe { write_granted(attr, &info::tx_attr_to_c(&granted), sep.abi.tx_attr()) };
        let op_flags = (granted.op_flags, OpFlags::empty());
        let body = EpBody::new(opened, sep.addr_format, op_flags, sep.users.hold());
        // SAFETY: not null, and the caller's.
        unsafe { out.write(super::make(context, class::TX_CTX, body)) };
        Ok(())
    })
}

/// `fi_rx_context`.
pub(crate) unsafe extern "C" fn receive_context(
    handle: *mut fid_ep,
    index: c_int,
    attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let sep = unsafe { object::body(handle)? };
        let out = non_null(out)?;
        // SAFETY: as above.
        let wanted = unsafe { rx_attr(attr, sep.abi) };
        let (opened, granted) = sep.endpoint.receive_context(index_of(index)?, wanted.as_ref())?;
        // SAFETY: as above.
        unsafe { write_granted(attr, &info::rx_attr_to_c(&granted), sep.abi.rx_attr()) };
        let op_flags = (OpFlags::empty(), granted.op_flags);
        let body = EpBody::new(opened, sep.addr_format, op_flags, sep.users.hold());
        // SAFETY: not null, and the caller's.
        unsafe { out.write(super::make(context, class::RX_CTX, body)) };
        Ok(())
    })
}
