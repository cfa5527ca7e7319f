//! Initiators: a flow that is sent.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mxl::{Domain, Status};
use mxl_fabrics::Provider;
use mxl_ffi::border::{Failure, Outcome, status};
use mxl_ffi::object::{Kind, Object, magics, place_of};

use crate::info::{Info, info};
use crate::status::{INTERRUPTED, INVALID_STATE, NOT_READY, failed};
use crate::types::{Config, Setup, given};

/// What `mxlFabricsInitiator` points to.
#[derive(Default)]
pub struct Initiator {
    ready: Mutex<Option<Ready>>,
}

/// An initiator that was set up.
struct Ready {
    initiator: mxl_fabrics::Initiator,
    provider: Provider,
}

impl Kind for Initiator {
    const MAGIC: u64 = 0x6d78_6c66_5f69_6e69;
}

/// Runs `body` on an initiator that was set up.
fn with<T>(handle: *const Object<Initiator>, body: impl FnOnce(&mut Ready) -> Outcome<T>) -> Outcome<T> {
    let initiator: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
    let mut ready = initiator.ready.lock().unwrap_or_else(PoisonError::into_inner);
    body(ready.as_mut().ok_or(Failure::silent(INVALID_STATE))?)
}

/// `mxlFabricsInitiatorSetup`. There are no options. One that is set up again has no targets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorSetup(
    handle: *const Object<Initiator>,
    config: *const Config,
    _options: *const c_char,
) -> c_int {
    status(|| {
        let initiator: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
        let config = given(config)?;
        let Setup { provider, place, options } = config.check()?;
        let (domain, flow) = place_of(config.flow, magics::READER).ok_or(Status::InvalidReader)?;
        let domain = Domain::open(domain)?;
        let mut ready = initiator.ready.lock().unwrap_or_else(PoisonError::into_inner);
        // The old one goes first: it may have the same address.
        *ready = None;
        let made =
            mxl_fabrics::Initiator::open_with(&domain, flow, provider, place, &options).map_err(failed)?;
        *ready = Some(Ready { initiator: made, provider });
        Ok(())
    })
}

/// `mxlFabricsInitiatorAddTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorAddTarget(
    handle: *const Object<Initiator>,
    target: *const Object<Info>,
) -> c_int {
    status(|| with(handle, |ready| ready.initiator.add(info(target)?).map_err(failed)))
}

/// `mxlFabricsInitiatorRemoveTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorRemoveTarget(
    handle: *const Object<Initiator>,
    target: *const Object<Info>,
) -> c_int {
    status(|| with(handle, |ready| ready.initiator.remove(info(target)?.id).map_err(failed)))
}

/// `mxlFabricsInitiatorTransferGrain`. What lies in the slot is sent, committed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorTransferGrain(
    handle: *const Object<Initiator>,
    index: u64,
    start: u16,
    end: u16,
) -> c_int {
    status(|| {
        with(handle, |ready| ready.initiator.send_unpublished_slices(index, start, end).map_err(failed))
    })
}

/// `mxlFabricsInitiatorTransferSamples`. What lies in the rings is sent, committed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorTransferSamples(
    handle: *const Object<Initiator>,
    head: u64,
    count: usize,
) -> c_int {
    status(|| {
        with(handle, |ready| ready.initiator.send_unpublished_samples(head, count as u64).map_err(failed))
    })
}

fn progress(handle: *const Object<Initiator>, timeout: Duration) -> Outcome {
    with(handle, |Ready { initiator, provider }| {
        let is_settled = initiator.settle(timeout).map_err(failed)?;
        // Programs of this interface count nothing; the library's log has what was lost.
        while initiator.event().is_some() {}
        if initiator.targets().next().is_none() && matches!(provider, Provider::Tcp | Provider::Verbs) {
            // What the C++ SDK answers where it makes connections.
            return Err(Failure::silent(INTERRUPTED));
        }
        if is_settled { Ok(()) } else { Err(Failure::silent(NOT_READY)) }
    })
}

/// `mxlFabricsInitiatorMakeProgressNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorMakeProgressNonBlocking(
    handle: *const Object<Initiator>,
) -> c_int {
    status(|| progress(handle, Duration::ZERO))
}

/// `mxlFabricsInitiatorMakeProgressBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorMakeProgressBlocking(
    handle: *const Object<Initiator>,
    timeout_ms: u16,
) -> c_int {
    status(|| progress(handle, Duration::from_millis(timeout_ms.into())))
}
