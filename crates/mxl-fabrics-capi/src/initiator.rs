//! Initiators: flows that are sent.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use mxl::{Domain, Status};
use mxl_fabrics::{Driven, Provider};
use mxl_ffi::border::{Failure, Outcome, status};
use mxl_ffi::object::{Kind, Object, magics, place_of};

use crate::info::{Info, info};
use crate::status::{INTERRUPTED, INVALID_STATE, NOT_READY, failed};
use crate::target::wants_thread;
use crate::types::{Config, Setup, given, optional};

/// The object behind `mxlFabricsInitiator`.
#[derive(Default)]
pub struct Initiator {
    ready: Mutex<Option<Ready>>,
}

/// An initiator after its setup.
struct Ready {
    initiator: End,
    provider: Provider,
}

/// How an initiator is driven.
enum End {
    /// By the program's calls.
    Polled(Box<mxl_fabrics::Initiator>),
    /// By its own thread.
    Driven(Driven<mxl_fabrics::Initiator>),
}

impl End {
    fn with<T>(&mut self, call: impl FnOnce(&mut mxl_fabrics::Initiator) -> T) -> T {
        match self {
            Self::Polled(initiator) => call(initiator),
            Self::Driven(initiator) => initiator.with(call),
        }
    }

    /// Waits until everything is sent. Returns false if `timeout` expires first. Events are dropped: this
    /// interface has no counters, and the library's log records losses.
    fn settle(&mut self, timeout: Duration) -> mxl_fabrics::Result<bool> {
        let is_settled = match self {
            Self::Polled(initiator) => initiator.settle(timeout),
            Self::Driven(driven) => {
                let is_settled =
                    driven.wait_until(timeout, |initiator| initiator.check().is_err() || initiator.is_idle());
                is_settled.and_then(|settled| driven.with(|initiator| initiator.check()).map(|()| settled))
            }
        };
        self.with(|initiator| while initiator.event().is_some() {});
        is_settled
    }
}

/// Whether a progress thread is requested. The C++ SDK ignores an initiator's options, so text that is not JSON is not
/// an error.
fn check_options(options: Option<&str>) -> Outcome<bool> {
    match options.and_then(|options| serde_json::from_str(options).ok()) {
        Some(serde_json::Value::Object(options)) => wants_thread(&options),
        _ => Ok(false),
    }
}

impl Kind for Initiator {
    const MAGIC: u64 = 0x6d78_6c66_5f69_6e69;
}

/// Runs `body` on an initiator after its setup.
fn with<T>(handle: *const Object<Initiator>, body: impl FnOnce(&mut Ready) -> Outcome<T>) -> Outcome<T> {
    let initiator: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
    let mut ready = initiator.ready.lock().unwrap_or_else(PoisonError::into_inner);
    body(ready.as_mut().ok_or(Failure::silent(INVALID_STATE))?)
}

/// `mxlFabricsInitiatorSetup`. An initiator that is set up again has no targets.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorSetup(
    handle: *const Object<Initiator>,
    config: *const Config,
    options: *const c_char,
) -> c_int {
    status(|| {
        let initiator: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
        let config = given(config)?;
        let is_driven = check_options(optional(options)?)?;
        let Setup { provider, place, options } = config.check()?;
        let (domain, flow) = place_of(config.flow, magics::READER).ok_or(Status::InvalidReader)?;
        let domain = Domain::open(domain)?;
        let mut ready = initiator.ready.lock().unwrap_or_else(PoisonError::into_inner);
        // The old one is closed first: it may have the same address.
        *ready = None;
        let made =
            mxl_fabrics::Initiator::open_with(&domain, flow, provider, place, &options).map_err(failed)?;
        let initiator = if is_driven {
            End::Driven(Driven::start(made).map_err(failed)?)
        } else {
            End::Polled(Box::new(made))
        };
        *ready = Some(Ready { initiator, provider });
        Ok(())
    })
}

/// `mxlFabricsInitiatorAddTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorAddTarget(
    handle: *const Object<Initiator>,
    target: *const Object<Info>,
) -> c_int {
    status(|| {
        let target = info(target)?;
        with(handle, |ready| ready.initiator.with(|initiator| initiator.add(target)).map_err(failed))
    })
}

/// `mxlFabricsInitiatorRemoveTarget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorRemoveTarget(
    handle: *const Object<Initiator>,
    target: *const Object<Info>,
) -> c_int {
    status(|| {
        let id = info(target)?.id;
        with(handle, |ready| ready.initiator.with(|initiator| initiator.remove(id)).map_err(failed))
    })
}

/// `mxlFabricsInitiatorTransferGrain`. The slot's content is sent, committed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorTransferGrain(
    handle: *const Object<Initiator>,
    index: u64,
    start: u16,
    end: u16,
) -> c_int {
    status(|| {
        with(handle, |ready| {
            let send =
                |initiator: &mut mxl_fabrics::Initiator| initiator.send_unpublished_slices(index, start, end);
            ready.initiator.with(send).map_err(failed)
        })
    })
}

/// `mxlFabricsInitiatorTransferSamples`. The rings' content is sent, committed or not.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsInitiatorTransferSamples(
    handle: *const Object<Initiator>,
    head: u64,
    count: usize,
) -> c_int {
    status(|| {
        with(handle, |ready| {
            let send = |initiator: &mut mxl_fabrics::Initiator| {
                initiator.send_unpublished_samples(head, count as u64)
            };
            ready.initiator.with(send).map_err(failed)
        })
    })
}

fn progress(handle: *const Object<Initiator>, timeout: Duration) -> Outcome {
    with(handle, |Ready { initiator, provider }| {
        let is_settled = initiator.settle(timeout).map_err(failed)?;
        let has_targets = initiator.with(|initiator| initiator.targets().next().is_some());
        if !has_targets && matches!(provider, Provider::Tcp | Provider::Verbs) {
            // The C++ SDK returns this status while an initiator connects.
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
