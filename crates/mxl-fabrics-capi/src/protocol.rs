//! The extension `mxl/ofi_protocol.h`: which protocol a pair of ends speaks.

use std::ffi::c_int;

use mxl_fabrics::Protocol;
use mxl_ffi::border::{Failure, out, status};
use mxl_ffi::object::Object;

use crate::info::{Info, info};
use crate::initiator::{Initiator, protocol_to};
use crate::status::INVALID_STATE;
use crate::target::{End, Target, target};

/// The number of a protocol in the header.
const fn number(of: Option<Protocol>) -> c_int {
    match of {
        Some(Protocol::Own) => 1,
        Some(Protocol::Sdk) => 2,
        _ => 0,
    }
}

/// `ofiMxlInitiatorGetProtocol`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofiMxlInitiatorGetProtocol(
    handle: *const Object<Initiator>,
    to: *const Object<Info>,
    protocol: *mut c_int,
) -> c_int {
    status(|| {
        let (place, id) = (out(protocol)?, info(to)?.id);
        place.set(number(protocol_to(handle, id)?));
        Ok(())
    })
}

/// `ofiMxlTargetGetProtocol`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofiMxlTargetGetProtocol(
    handle: *const Object<Target>,
    protocol: *mut c_int,
) -> c_int {
    status(|| {
        let (place, target) = (out(protocol)?, target(handle)?);
        let ready = target.ready();
        place.set(match ready.as_ref().map(|ready| &ready.target) {
            Some(End::Polled(target)) => number(target.protocol()),
            Some(End::Driven(target)) => number(target.with(|target| target.protocol())),
            // The paths of a merge have a protocol each.
            _ => return Err(Failure::silent(INVALID_STATE)),
        });
        Ok(())
    })
}
