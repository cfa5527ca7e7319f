//! Names and connections of endpoints.

use std::ffi::{c_int, c_void};

use ofi_api::{Address, Result};

use crate::abi::{fi_ops_cm, fid, fid_ep};
use crate::ffi_guard::{self, invalid};
use crate::memory;
use crate::object;
use crate::{av_list, collective};

pub(crate) static OPS: fi_ops_cm = fi_ops_cm {
    setname,
    getname,
    getpeer,
    connect,
    accept,
    shutdown,
    join: collective::join,
    ..fi_ops_cm::NOSYS
};

/// Maximum length of an address, and of connection data, in bytes.
const MAX_CM_DATA_LEN: usize = 4096;

/// The bytes of an address of C.
///
/// # Safety
/// The C caller's promise: `len` readable bytes.
pub(crate) unsafe fn address_bytes<'a>(addr: *const c_void, len: usize) -> Result<&'a [u8]> {
    if addr.is_null() || len == 0 || len > MAX_CM_DATA_LEN {
        return Err(invalid("an address", &format!("1 to {MAX_CM_DATA_LEN} bytes"), format!("{len} bytes")));
    }
    // SAFETY: the same promise.
    Ok(unsafe { memory::bytes(addr, len) })
}

/// The data argument of a connection call.
///
/// # Safety
/// The C caller's promise: `len` readable bytes.
pub(crate) unsafe fn data<'a>(data: *const c_void, len: usize) -> Result<&'a [u8]> {
    if len > MAX_CM_DATA_LEN || data.is_null() && len > 0 {
        return Err(invalid(
            "paramlen",
            &format!("at most {MAX_CM_DATA_LEN} bytes, and a pointer that is not null"),
            len.to_string(),
        ));
    }
    // SAFETY: the same promise.
    Ok(unsafe { memory::bytes(data, len) })
}

unsafe extern "C" fn setname(handle: *mut fid, addr: *mut c_void, len: usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above.
        ep.endpoint.set_name(&Address::new(ep.addr_format, unsafe { address_bytes(addr, len)? }))
    })
}

unsafe extern "C" fn getname(handle: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above.
        unsafe { memory::put_sized(ep.endpoint.name()?.bytes(), addr, len) }
    })
}

unsafe extern "C" fn getpeer(handle: *mut fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::body(handle)? };
        // SAFETY: as above.
        unsafe { memory::put_sized(ep.endpoint.peer_name()?.bytes(), addr, len) }
    })
}

unsafe extern "C" fn connect(
    handle: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    len: usize,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::body(handle)? };
        let address = match (addr.is_null(), &ep.dest_addr) {
            // SAFETY: as above.
            (false, _) => unsafe { av_list::one_address(ep.addr_format, addr)? },
            (true, Some(address)) => address.clone(),
            (true, None) => return Err(ffi_guard::null("the address to connect to")),
        };
        // SAFETY: as above.
        ep.endpoint.connect(&address, unsafe { data(param, len)? })
    })
}

unsafe extern "C" fn accept(handle: *mut fid_ep, param: *const c_void, len: usize) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::body(handle)? };
        // SAFETY: as above.
        ep.endpoint.accept(unsafe { data(param, len)? })
    })
}

unsafe extern "C" fn shutdown(handle: *mut fid_ep, flags: u64) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise.
        let ep = unsafe { object::body(handle)? };
        crate::ffi_guard::no_flags("fi_shutdown", flags)?;
        ep.endpoint.shutdown()
    })
}
