//! The C boundary: bytes, sinks, statuses. No panic crosses it.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use ofi::{Errno, Error, Result};

use crate::log::say;

/// NIXL's statuses (`nixl_status_t`).
pub(crate) mod status {
    use std::ffi::c_int;

    pub(crate) const IN_PROGRESS: c_int = 1;
    pub(crate) const SUCCESS: c_int = 0;
    pub(crate) const NOT_POSTED: c_int = -1;
    pub(crate) const INVALID_PARAM: c_int = -2;
    pub(crate) const BACKEND: c_int = -3;
    pub(crate) const NOT_FOUND: c_int = -4;
    pub(crate) const MISMATCH: c_int = -5;
    pub(crate) const NOT_ALLOWED: c_int = -6;
    pub(crate) const REPOST_ACTIVE: c_int = -7;
    pub(crate) const NOT_SUPPORTED: c_int = -9;
    pub(crate) const REMOTE_DISCONNECT: c_int = -10;
    pub(crate) const CANCELED: c_int = -11;
}

/// Bytes that are borrowed for the duration of a call. `at` may be null if `len` is 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Bytes {
    at: *const u8,
    len: usize,
}

/// Takes two byte strings, which are valid until it returns. `to` is the caller's argument.
pub type Sink = unsafe extern "C" fn(to: *mut c_void, first: Bytes, second: Bytes);

impl Bytes {
    /// The bytes of a slice.
    pub const fn of(bytes: &[u8]) -> Self {
        Self { at: bytes.as_ptr(), len: bytes.len() }
    }

    /// # Safety
    /// The caller has lent `len` bytes at `at`, for `'a`.
    pub(crate) unsafe fn get<'a>(self) -> &'a [u8] {
        if self.at.is_null() || self.len == 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// # Safety
    /// The requirements of [`Bytes::get`].
    pub(crate) unsafe fn text<'a>(self, what: &'static str) -> Result<&'a str> {
        // SAFETY: the caller's promise.
        let bytes = unsafe { self.get() };
        std::str::from_utf8(bytes).map_err(|_| {
            let found = format!("{} bytes that are not", bytes.len());
            Error::wanted(Errno::EINVAL, what, "UTF-8", found, "choose another")
        })
    }
}

/// Stores a new handle at `out`.
///
/// # Safety
/// `out` is valid for a write.
pub(crate) unsafe fn put<T>(out: *mut *mut T, value: T) {
    let made = Box::into_raw(Box::new(value));
    // SAFETY: the caller's promise.
    unsafe { out.write(made) };
}

/// Runs the body of a call. Errors and panics become statuses and log lines.
pub(crate) fn call(what: &str, body: impl FnOnce() -> Result<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => {
            say(what, &error.to_string());
            of(error.errno())
        }
        Err(panic) => {
            say(what, "the library panicked; please report this");
            // A panic payload may panic when it is dropped.
            std::mem::forget(panic);
            status::BACKEND
        }
    }
}

/// Logs the reason why the plug-in does not serve its host.
///
/// # Safety
/// `why` is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_refuse(why: Bytes) {
    call("telling why a host is not served", || {
        // SAFETY: the caller's promise.
        let why = unsafe { why.text("the reason")? };
        say("this version of NIXL is not served", why);
        Ok(status::SUCCESS)
    });
}

/// The NIXL status for an error.
pub(crate) fn of(errno: Errno) -> c_int {
    const GONE: [Errno; 9] = [
        Errno::ECONNRESET,
        Errno::ECONNREFUSED,
        Errno::ECONNABORTED,
        Errno::ESHUTDOWN,
        Errno::ENOTCONN,
        Errno::EHOSTUNREACH,
        Errno::EHOSTDOWN,
        Errno::ENETUNREACH,
        Errno::ETIMEDOUT,
    ];
    match errno {
        Errno::ECANCELED => status::CANCELED,
        Errno::EINVAL | Errno::EMSGSIZE => status::INVALID_PARAM,
        Errno::ENOENT => status::NOT_FOUND,
        Errno::EBUSY | Errno::EADDRINUSE => status::NOT_ALLOWED,
        Errno::ENODATA | Errno::ENOSYS => status::NOT_SUPPORTED,
        gone if GONE.contains(&gone) => status::REMOTE_DISCONNECT,
        _ => status::BACKEND,
    }
}
