//! Errors of rdma-core, and the statuses of requests, as errors of libfabric.

use ofi_api::{Errno, Error};

/// Converts an error of rdma-core.
pub fn failed(error: &ibv::Error) -> Error {
    Error::with(Errno::from_raw(error.errno), error.to_string())
}

/// The text for a `prov_errno` of a connected endpoint: the status of a request, as in C's provider, or an error
/// number. 0 belongs to an error without a failed request.
///
/// In a domain of connected endpoints, endpoints of other types report error numbers, and this function interprets
/// small ones as statuses: `err` has the real error.
pub fn request_text(number: i32) -> String {
    match u32::try_from(number).map(ibv::Status::from_raw) {
        Ok(status) if number != 0 && status.is_known() => format!("{status:?}"),
        _ => Errno::from_raw(number).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_failed_requests_are_explained_and_none_is_a_success() {
        assert_eq!(request_text(5), format!("{:?}", ibv::Status::FLUSHED));
        assert_eq!(request_text(0), Errno::from_raw(0).to_string());
        assert!(!request_text(0).contains("uccess"), "{}", request_text(0));
        assert_eq!(request_text(-1), Errno::from_raw(-1).to_string());
    }
}
