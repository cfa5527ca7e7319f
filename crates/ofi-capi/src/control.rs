//! Commands of `fi_control` that an object does not support: the reason, for the log.

use std::ffi::{c_int, c_void};

use ofi_api::{Errno, Error};

use crate::abi::{command, fi_fid_var};
use crate::ffi_guard::null;

/// The error for a command that the object does not support.
///
/// # Safety
/// The C caller's promise: `arg` is null or what the command takes.
#[cold]
pub(crate) unsafe fn unsupported(number: c_int, arg: *const c_void) -> Error {
    let what = match number {
        command::GET_VAL | command::SET_VAL => {
            let call = if number == command::GET_VAL { "fi_get_val" } else { "fi_set_val" };
            // SAFETY: the caller's promise.
            let Some(var) = (unsafe { arg.cast::<fi_fid_var>().as_ref() }) else {
                return null("struct fi_fid_var");
            };
            // libfabric defines no names: each provider has its own, and ours have none.
            format!(
                "{call} of name {:#x}: this provider has no values by name; options are fi_getopt's and fi_setopt's",
                var.name
            )
        }
        command::EXPORT_FID => "fi_export_fid: no object can be exported".into(),
        other => format!("fi_control: the object has no command {other}"),
    };
    Error::with(Errno::ENOSYS, what)
}
