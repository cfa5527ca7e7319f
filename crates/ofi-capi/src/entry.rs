//! The functions behind the exported symbols. `link/exports.c` gives them C's names and versions: some C names have
//! several versions, and some functions are variadic, which Rust cannot define.

use std::ffi::{c_char, c_int, c_void};

use ofi_api::{Errno, Error, GetinfoFlags, Hints, Request, Result, Version};
use ofi_core::provider_filter::check_version;

use crate::abi::{Abi, fi_fabric_attr, fi_info, fid, fid_fabric};
use crate::ffi_guard::{self, null};
use crate::foreign::{self, InfoRequest};
use crate::{fabric, info, log_import, memory, names};

/// `fi_getinfo` of version `FABRIC_1.<abi>`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_getinfo(
    abi: u32,
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const c_void,
    out: *mut *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        if out.is_null() {
            return Err(null("the pointer for the infos"));
        }
        // SAFETY: not null, and the caller's.
        unsafe { out.write(std::ptr::null_mut()) };
        let (version, names) = (Version::from_c(version), (node, service));
        // A program may be linked against a library that is newer than its headers; its structures are those of the
        // headers.
        let abi = if Abi(abi) == Abi::NEWEST { Abi(abi) } else { Abi(abi).min(Abi::of(version)) };
        // SAFETY: the C caller's promise, here and below.
        let node = unsafe { memory::text(node) };
        // SAFETY: as above.
        let service = unsafe { memory::text(service) };
        let asked = InfoRequest {
            version: version.as_c(),
            node: names.0,
            service: names.1,
            flags,
            hints: hints.cast(),
            abi,
        };
        check_version(version)?;
        ofi::log_from_env();
        // SAFETY: as above.
        let theirs = unsafe { foreign::getinfo(&asked)? };
        // SAFETY: as above.
        let hints = unsafe { read_hints(hints.cast(), abi) };
        let ours = hints.and_then(|hints| {
            let flags = known(flags)?;
            let (node, service, hints) = (node.as_deref(), service.as_deref(), hints.as_ref());
            if flags.contains(GetinfoFlags::SOURCE) && node.is_none() && service.is_none() {
                return Err(nothing_to_be_the_source());
            }
            let mut infos = ofi::getinfo_asking_least(&Request { version, node, service, flags, hints })?;
            infos.iter_mut().for_each(info::name_source);
            info::to_c(&infos)
        });
        // SAFETY: both lists are new.
        let list = unsafe { foreign::joined(ours, theirs)? };
        // SAFETY: as above.
        unsafe { out.write(list.cast()) };
        Ok(())
    })
}

/// Checks the flags of getinfo. Some are internal to C libfabric: its layered providers pass them, even when they are
/// plug-ins of this library.
///
/// # Errors
/// `FI_EBADFLAGS` for unknown flags.
fn known(flags: u64) -> Result<GetinfoFlags> {
    let unknown = flags & !(GetinfoFlags::all().bits() | foreign::LAYERS);
    if unknown == 0 {
        return Ok(GetinfoFlags::from_bits_truncate(flags));
    }
    let wanted =
        GetinfoFlags::all().iter_names().map(|(name, _)| format!("FI_{name}")).collect::<Vec<_>>().join(", ");
    let subject = "the flags of fi_getinfo";
    Err(Error::wanted(Errno::EBADFLAGS, subject, wanted, format!("{unknown:#x}"), "leave the others out"))
}

/// The error for `FI_SOURCE` with neither a node nor a service that it could apply to (fi_getinfo(3)). C's library
/// finds nothing in that case.
#[cold]
fn nothing_to_be_the_source() -> Error {
    let advice = "leave FI_SOURCE out, or name the address";
    Error::wanted(Errno::ENODATA, "fi_getinfo with FI_SOURCE", "a node or a service", "neither", advice)
}

/// Reads the hints. A value that no header defines counts as a property that no provider offers.
///
/// # Safety
/// The C caller's promise.
unsafe fn read_hints(hints: *const fi_info, abi: Abi) -> Result<Option<Hints>> {
    if hints.is_null() {
        return Ok(None);
    }
    // SAFETY: the same promise.
    match unsafe { info::from_c(hints, abi) } {
        Ok(info) => Ok(Some(Hints { info })),
        Err(error) => match error.detail() {
            Some(detail) => Err(detail.clone().into_error(Errno::ENODATA)),
            None => Err(Error::new(Errno::ENODATA)),
        },
    }
}

/// `fi_freeinfo` of version `FABRIC_1.<abi>`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_freeinfo(abi: u32, info: *mut c_void) {
    // SAFETY: the C caller's promise.
    ffi_guard::value((), || unsafe { info::release(info.cast(), Abi(abi)) });
}

/// `fi_dupinfo` of version `FABRIC_1.<abi>`; `fi_allocinfo` for null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_dupinfo(abi: u32, info: *const c_void) -> *mut c_void {
    ffi_guard::value(std::ptr::null_mut(), || {
        // SAFETY: the C caller's promise.
        let copy = unsafe { info::duplicate(info.cast(), Abi(abi)) };
        copy.map_or(std::ptr::null_mut(), |info| info.cast())
    })
}

/// `fi_fabric`, all versions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_fabric(
    abi: u32,
    attr: *const c_void,
    out: *mut *mut c_void,
    context: *mut c_void,
) -> c_int {
    ffi_guard::int(|| {
        // SAFETY: the C caller's promise, here and below.
        if let Some(answer) = unsafe { foreign::open_fabric(attr.cast(), Abi(abi), out.cast(), context) } {
            return Ok(answer);
        }
        // SAFETY: as above.
        unsafe { fabric::open(attr.cast::<fi_fabric_attr>(), Abi(abi), out.cast(), context) }.map(|()| 0)
    })
}

/// `fi_fabric2`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_fabric2(
    info: *const c_void,
    out: *mut *mut c_void,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    let out = out.cast::<*mut fid_fabric>();
    ffi_guard::int(|| {
        let info = info.cast::<fi_info>();
        // SAFETY: the C caller's promise, here and below.
        let attr = unsafe { info.as_ref() }.map_or(std::ptr::null_mut(), |info| info.fabric_attr);
        // SAFETY: as above.
        if let Some(answer) = unsafe { foreign::open_fabric(attr, Abi::NEWEST, out, context) } {
            return Ok(answer);
        }
        // SAFETY: as above.
        unsafe { fabric::open_info(info, out, flags, context) }.map(|()| 0)
    })
}

/// `fi_version`.
#[unsafe(no_mangle)]
pub extern "C" fn ofi_capi_version() -> u32 {
    Version::API.as_c()
}

/// `fi_strerror`.
#[unsafe(no_mangle)]
pub extern "C" fn ofi_capi_strerror(number: c_int) -> *const c_char {
    ffi_guard::value(c"".as_ptr(), || names::error(number))
}

/// `fi_open`: opens objects of the library itself. Only the log is supported; there is no registration cache
/// (`mr_cache`).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_capi_open(
    version: u32,
    name: *const c_char,
    _attr: *mut c_void,
    attr_len: usize,
    flags: u64,
    out: *mut *mut fid_of_c,
    context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let name = unsafe { memory::text(name) }.ok_or_else(|| null("the name"))?;
        if !name.eq_ignore_ascii_case("logging") {
            return Err(Error::with(Errno::ENOSYS, format!("fi_open knows \"logging\", not {name:?}")));
        }
        if out.is_null() {
            return Err(null("the pointer for the object"));
        }
        let opened = log_import::open(Version::from_c(version), attr_len, flags, context)?;
        // SAFETY: not null, and the caller's.
        unsafe { out.write(opened.cast()) };
        Ok(())
    })
}

/// `struct fid`, for the one exported signature that mentions it.
#[allow(non_camel_case_types)]
#[repr(transparent)]
pub struct fid_of_c {
    _fid: fid,
}
