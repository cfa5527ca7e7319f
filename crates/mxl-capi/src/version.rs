//! The version of the interface.

use std::ffi::c_int;

use crate::types::Version;
use mxl_ffi::border::{out, status};

/// The version of the C++ SDK with the same interface, and the name of this library.
const FULL: &std::ffi::CStr = c"1.2.0 (ofi-rs)";

/// `mxlGetVersion`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlGetVersion(version: *mut Version) -> c_int {
    status(|| {
        out(version)?.set(Version { major: 1, minor: 2, bugfix: 0, build: 0, full: FULL.as_ptr() });
        Ok(())
    })
}
