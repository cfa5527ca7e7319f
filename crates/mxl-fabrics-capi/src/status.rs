//! Statuses of the second half of the header.

use std::ffi::c_int;

use mxl::Status;
use mxl_fabrics::Error;
use mxl_ffi::border::Failure;
use ofi::Errno;

pub(crate) const STRLEN: c_int = 1024;
pub(crate) const INTERRUPTED: c_int = 1025;
pub(crate) const NO_FABRIC: c_int = 1026;
pub(crate) const INVALID_STATE: c_int = 1027;
pub(crate) const NOT_READY: c_int = 1029;
pub(crate) const NOT_FOUND: c_int = 1030;
pub(crate) const EXISTS: c_int = 1031;
pub(crate) const UNSUPPORTED: c_int = 1032;

fn status(error: &Error) -> c_int {
    match error {
        Error::Flow(error) => error.status() as c_int,
        Error::Stack { error, .. } if *error == Errno::EINTR => INTERRUPTED,
        Error::Stack { error, .. } if *error == Errno::EAGAIN => NOT_READY,
        Error::Stack { error, .. } if *error == Errno::ENOSYS => UNSUPPORTED,
        Error::Stack { error, .. } if *error == Errno::ENODATA => NO_FABRIC,
        Error::Info(_) | Error::Argument(_) => Status::InvalidArg as c_int,
        Error::Exists(_) => EXISTS,
        Error::Replaced(_) => Status::Conflict as c_int,
        Error::NotFound(_) => NOT_FOUND,
        _ => Status::Unknown as c_int,
    }
}

/// Converts an error into the failure of a call.
pub(crate) fn failed(error: Error) -> Failure {
    Failure::new(status(&error), error)
}

/// The failure of a call with an invalid argument.
pub(crate) fn refused(why: impl Into<String>) -> Failure {
    Failure::new(Status::InvalidArg as c_int, why.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_sdks_statuses() {
        let stack = |errno| Error::Stack { doing: "test", error: ofi::Error::new(errno) };
        for (error, wanted) in [
            (Error::Flow(mxl::Error::FlowInvalid), 11),
            (Error::Exists(1), 1031),
            (Error::NotFound(1), 1030),
            (Error::Replaced(1), 9),
            (Error::Info(String::new()), 8),
            (stack(Errno::EAGAIN), 1029),
            (stack(Errno::EINTR), 1025),
            (stack(Errno::ENOSYS), 1032),
            (stack(Errno::ENODATA), 1026),
            (stack(Errno::EIO), 1),
        ] {
            assert_eq!(status(&error), wanted, "{error}");
        }
    }
}
