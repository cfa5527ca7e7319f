//! Functions about flows that need no reader, and one about a domain that needs no instance.

use std::ffi::{c_char, c_int};

use mxl::Status;

use crate::instance::{Instance, flow_id, instance};
use mxl_ffi::border::{out, status, text};
use mxl_ffi::object::Object;

/// `mxlIsTmpFs`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlIsTmpFs(path: *const c_char, answer: *mut bool) -> c_int {
    status(|| {
        let place = out(answer)?;
        place.set(mxl::is_tmpfs(text(path)?)?);
        Ok(())
    })
}

/// `mxlIsFlowActive`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlIsFlowActive(
    handle: *const Object<Instance>,
    id: *const c_char,
    answer: *mut bool,
) -> c_int {
    status(|| {
        let place = out(answer)?;
        place.set(instance(handle)?.domain.is_active(flow_id(id)?)?);
        Ok(())
    })
}

/// `mxlGetFlowDef`. If the buffer is too small, the call fails and returns the needed size, including the terminating
/// zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlGetFlowDef(
    handle: *const Object<Instance>,
    id: *const c_char,
    buffer: *mut u8,
    size: *mut usize,
) -> c_int {
    status(|| {
        let place = out(size)?;
        let mut text = instance(handle)?.domain.definition_text(flow_id(id)?)?;
        // SAFETY: not null, as just checked, and the C caller's promise: it is the size of the buffer.
        let room = unsafe { size.read() };
        text.push(0);
        let needed = text.len();
        place.set(needed);
        if buffer.is_null() || room < needed {
            return Err(Status::InvalidArg.into());
        }
        // SAFETY: the C caller's promise: the buffer has `room` bytes, which are enough.
        unsafe { buffer.copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        Ok(())
    })
}
