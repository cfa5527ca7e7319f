//! The border between C and Rust: no panic crosses it, and errors become statuses.

use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use mxl::{Error, Status};

/// No data yet: `MXL_ERR_NOT_READY` of the functions between hosts.
const NOT_READY: c_int = 1029;

/// The failure of a call: a status, and a text for the log.
#[derive(Debug)]
pub struct Failure {
    status: c_int,
    error: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Failure {
    /// A status of the C headers, and the reason.
    pub fn new(status: c_int, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self { status, error: Some(error.into()) }
    }

    /// A status that needs no explanation.
    pub const fn silent(status: c_int) -> Self {
        Self { status, error: None }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::silent(status as c_int)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        if let Error::Truncated { .. } = error {
            // The status is the same as for a deleted flow, so only the log shows the truncation.
            tracing::error!("{error}");
        }
        Self::new(error.status() as c_int, error)
    }
}

/// The result of the body of a call.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Runs `body`, and returns its status.
pub fn status(body: impl FnOnce() -> Outcome) -> c_int {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Status::Ok as c_int,
        Ok(Err(failure)) => {
            if let Some(error) = failure.error {
                tell(failure.status, &*error);
            }
            failure.status
        }
        Err(panic) => {
            panicked(panic);
            Status::Unknown as c_int
        }
    }
}

/// Runs `body` for a call that returns no status: a panic becomes `otherwise`.
pub fn value<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        panicked(panic);
        otherwise
    })
}

/// Logs the details that a status cannot express. Data that is not yet or no longer available is normal.
#[cold]
pub fn tell(status: c_int, error: &dyn std::error::Error) {
    const EVERYDAY: [c_int; 5] = [
        Status::FlowNotFound as c_int,
        Status::TooLate as c_int,
        Status::TooEarly as c_int,
        Status::FlowInvalid as c_int,
        NOT_READY,
    ];
    if EVERYDAY.contains(&status) {
        tracing::debug!(%error, "a call returned status {status}");
    } else {
        tracing::error!(%error, "a call returned status {status}");
    }
}

#[cold]
fn panicked(panic: Box<dyn std::any::Any + Send>) {
    let text = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    tracing::error!(text, "the library panicked: please report this");
    // A panic payload may panic when it is dropped.
    std::mem::forget(panic);
}

/// The text at a pointer from C.
///
/// # Errors
/// [`Status::InvalidArg`] for null, and for text that is not UTF-8.
pub fn text<'a>(pointer: *const c_char) -> Outcome<&'a str> {
    if pointer.is_null() {
        return Err(Status::InvalidArg.into());
    }
    // SAFETY: the C caller's promise: it ends with a 0, and does not change during the call.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|_| Status::InvalidArg.into())
}

/// The place for a result.
///
/// # Errors
/// [`Status::InvalidArg`] for null.
pub fn out<T>(pointer: *mut T) -> Outcome<Out<T>> {
    if pointer.is_null() { Err(Status::InvalidArg.into()) } else { Ok(Out(pointer)) }
}

/// A pointer of the caller that is not null.
#[derive(Clone, Copy, Debug)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the value over any previous content.
    pub fn set(&self, value: T) {
        // SAFETY: not null, and the C caller's promise: it is a `T` of the caller's that this call may write.
        unsafe { self.0.write(value) };
    }

    /// The place itself, for a result that is built in place.
    pub fn fill<R>(&self, with: impl FnOnce(&mut MaybeUninit<T>) -> R) -> R {
        // SAFETY: as for `set`; there is no other access to it during the call.
        with(unsafe { &mut *self.0.cast() })
    }
}

/// Writes a result that the caller may not want.
pub fn maybe<T>(pointer: *mut T, value: T) {
    if let Ok(place) = out(pointer) {
        place.set(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_statuses_and_panics_are_unknown() {
        assert_eq!(status(|| Ok(())), 0);
        assert_eq!(status(|| Err(Status::InvalidArg.into())), 8);
        assert_eq!(status(|| Err(Error::FlowInvalid.into())), 11);
        assert_eq!(status(|| panic!("on purpose")), 1);
        assert_eq!(value(7, || panic!("on purpose")), 7);
    }

    #[test]
    fn null_is_refused_and_optional_answers_may_be_null() {
        assert!(text(std::ptr::null()).is_err() && out(std::ptr::null_mut::<u8>()).is_err());
        maybe(std::ptr::null_mut(), 1_u8);
        let mut place = 0;
        maybe(&raw mut place, 1_u8);
        assert_eq!(place, 1);
    }
}
