//! Names of endpoints. Connections are not supported yet.

use std::ffi::{c_int, c_void};

use ofi_api::Address;

use crate::abi::{fi_ops_cm, fid, fid_ep};
use crate::border;
use crate::memory;
use crate::object;

pub(crate) static OPS: fi_ops_cm = fi_ops_cm { setname, getname, ..fi_ops_cm::NOSYS };

unsafe extern "C" fn setname(handle: *mut fid, addr: *mut c_void, len: usize) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        if addr.is_null() || len == 0 || len > 4096 {
            return Err(border::invalid("an address", "1 to 4096 bytes", format!("{len} bytes")));
        }
        // SAFETY: as above.
        let bytes = unsafe { memory::bytes(addr, len) };
        ep.endpoint.set_name(&Address::new(ep.addr_format, bytes))
    })
}

unsafe extern "C" fn getname(handle: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { object::of_fid::<fid_ep>(handle)? };
        // SAFETY: as above.
        unsafe { memory::put_sized(ep.endpoint.name()?.bytes(), addr, len) }
    })
}
