//! Guards calls from C: no panic crosses into C, errors become numbers, and flags and times are checked.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use ofi_api::{Errno, Error, Result};

/// Runs `body` for a call that returns an `int`.
#[inline]
pub(crate) fn int(body: impl FnOnce() -> Result<c_int>) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(error)) => number(error) as c_int,
        Err(panic) => panicked(panic) as c_int,
    }
}

/// Runs `body` for a call that returns only success or failure.
#[inline]
pub(crate) fn done(body: impl FnOnce() -> Result<()>) -> c_int {
    int(|| body().map(|()| 0))
}

/// Runs `body` for a call that returns a `ssize_t`. Always inlined, so that the captures of `body` are not stored in
/// memory first.
#[inline(always)]
pub(crate) fn size(body: impl FnOnce() -> Result<usize>) -> isize {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value as isize,
        Ok(Err(error)) => number(error),
        Err(panic) => panicked(panic),
    }
}

/// Runs `body` for a data transfer.
#[inline(always)]
pub(crate) fn transfer(body: impl FnOnce() -> Result<()>) -> isize {
    size(|| body().map(|()| 0))
}

/// Runs `body` for a call with another return type: a panic becomes `otherwise`.
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        panicked(panic);
        otherwise
    })
}

/// An error as a number for C. Its details go to the log.
#[inline]
pub(crate) fn number(error: Error) -> isize {
    let number = -(error.fi_errno() as isize);
    if error.detail().is_some() {
        tell(error);
    }
    number
}

#[cold]
#[inline(never)]
fn tell(error: Error) {
    tracing::info!(target: "ofi::core::core", %error, "returning an error to the application");
}

#[cold]
#[inline(never)]
fn panicked(panic: Box<dyn std::any::Any + Send>) -> isize {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(target: "ofi::core::core", text, "the library panicked: please report this");
    // A panic payload may panic when it is dropped.
    std::mem::forget(panic);
    -(Errno::EOTHER.get() as isize)
}

/// `FI_EINVAL` for an argument.
#[cold]
pub(crate) fn invalid(subject: &str, wanted: &str, found: impl Into<String>) -> Error {
    Error::wanted(Errno::EINVAL, subject, wanted, found, "see the call's man page")
}

/// `FI_EINVAL` for a null pointer.
#[cold]
pub(crate) fn null(subject: &str) -> Error {
    invalid(subject, "a pointer", "NULL")
}

/// Refuses all flags except `known`.
///
/// # Errors
/// `FI_EBADFLAGS`.
pub(crate) fn only_flags(call: &str, flags: u64, known: u64) -> Result<()> {
    no_flags(call, flags & !known)
}

/// Refuses all flags.
///
/// # Errors
/// `FI_EBADFLAGS`.
pub(crate) fn no_flags(call: &str, flags: u64) -> Result<()> {
    if flags == 0 {
        return Ok(());
    }
    let subject = format!("the flags of {call}");
    Err(Error::wanted(Errno::EBADFLAGS, subject, "none", format!("{flags:#x}"), "leave them out"))
}

/// Converts C's timeout: milliseconds, or no limit if negative.
pub(crate) fn milliseconds(timeout: c_int) -> Option<Duration> {
    u64::try_from(timeout).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_values_or_negated_numbers() {
        assert_eq!(int(|| Ok(3)), 3);
        assert_eq!(done(|| Err(Error::AGAIN)), -11);
        assert_eq!(size(|| Err(null("buf"))), -22);
        assert_eq!(transfer(|| Ok(())), 0);
    }

    #[test]
    fn a_panic_is_an_error_of_the_library() {
        assert_eq!(transfer(|| panic!("on purpose")), -256);
        assert_eq!(value(7, || panic!("on purpose")), 7);
    }
}
