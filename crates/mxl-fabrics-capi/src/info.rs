//! Target infos and names of providers, as text and back.

use std::ffi::{c_char, c_int};

use mxl::Status;
use mxl_fabrics::{Provider, TargetInfo};
use mxl_ffi::border::{Failure, Outcome, out, status, text};
use mxl_ffi::object::{Kind, Object};

use crate::status::{STRLEN, failed};
use crate::types::{number, provider};

/// The object behind `mxlFabricsTargetInfo`.
pub struct Info(TargetInfo);

impl Kind for Info {
    const MAGIC: u64 = 0x6d78_6c66_5f69_6e66;
}

impl Info {
    /// Hands an info to C, which releases it by `mxlFabricsFreeTargetInfo`.
    pub(crate) fn give(info: TargetInfo) -> *const Object<Self> {
        Box::into_raw(Box::new(Object::new(Self(info)))).cast_const()
    }
}

/// The target info behind a C handle.
///
/// # Errors
/// [`Status::InvalidArg`] for null and for a handle that is not a target info.
pub(crate) fn info<'a>(handle: *const Object<Info>) -> Outcome<&'a TargetInfo> {
    Object::get(handle).map(|info: &Info| &info.0).ok_or_else(|| Status::InvalidArg.into())
}

/// Writes a text with its terminating zero byte; without a buffer, the number of bytes that this takes.
fn put(text: &str, buffer: *mut c_char, size: *mut usize) -> Outcome {
    let place = out(size)?;
    if buffer.is_null() {
        place.set(text.len() + 1);
        return Ok(());
    }
    // SAFETY: not null, as just checked, and the C caller's promise: it is the size of the buffer.
    let room = unsafe { size.read() };
    if room <= text.len() {
        return Err(Failure::silent(STRLEN));
    }
    // SAFETY: the C caller's promise: the buffer has `room` bytes, which are enough.
    unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
    // SAFETY: as above: there is room for one byte after the text.
    unsafe { buffer.wrapping_add(text.len()).write(0) };
    Ok(())
}

/// `mxlFabricsTargetInfoToString`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetInfoToString(
    handle: *const Object<Info>,
    buffer: *mut c_char,
    size: *mut usize,
) -> c_int {
    status(|| put(&info(handle)?.to_json(), buffer, size))
}

/// `mxlFabricsTargetInfoFromString`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetInfoFromString(
    json: *const c_char,
    made: *mut *const Object<Info>,
) -> c_int {
    status(|| {
        let place = out(made)?;
        place.set(Info::give(TargetInfo::parse(text(json)?).map_err(failed)?));
        Ok(())
    })
}

/// `mxlFabricsFreeTargetInfo`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsFreeTargetInfo(handle: *const Object<Info>) -> c_int {
    status(|| {
        info(handle)?;
        // SAFETY: one of ours, as just checked, made by `Box::into_raw`; the C caller's promise: it is not in use now.
        drop(unsafe { Box::from_raw(handle.cast_mut()) });
        Ok(())
    })
}

/// `mxlFabricsProviderFromString`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsProviderFromString(name: *const c_char, found: *mut c_int) -> c_int {
    status(|| {
        let place = out(found)?;
        place.set(match text(name)? {
            "any" => 0,
            name => number(name.parse::<Provider>().map_err(failed)?),
        });
        Ok(())
    })
}

/// `mxlFabricsProviderToString`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsProviderToString(
    of: c_int,
    buffer: *mut c_char,
    size: *mut usize,
) -> c_int {
    status(|| put(provider(of)?.map_or("any", Provider::name), buffer, size))
}
