//! Initiators: flows that are sent.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use mxl::{Domain, Status};
use mxl_fabrics::{Driven, Error, Protocol, Provider, Visit};
use mxl_ffi::border::{Failure, Outcome, status};
use mxl_ffi::object::{Kind, Object, magics, place_of};
use ofi_core::fork::Born;

use crate::info::{Info, info};
use crate::meetings::{self, ObjectSlot, Others, Side, Visited};
use crate::status::{INTERRUPTED, INVALID_STATE, NOT_READY, failed};
use crate::target::wants_thread;
use crate::types::{Config, Setup, given, optional};

/// The object behind `mxlFabricsInitiator`.
#[derive(Default)]
pub struct Initiator {
    ready: ObjectSlot<Ready>,
    /// The process that created it.
    born: Born,
}

impl Initiator {
    fn ready(&self) -> MutexGuard<'_, Option<Ready>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the result of an earlier setup.
    fn close(&self, ready: &mut Option<Ready>) {
        if let Some(mut old) = ready.take() {
            meetings::leave(&old.initiator.targets(), &self.ready);
        }
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The parent's. A thread of the parent may have held the lock during the fork.
            return std::mem::forget(Arc::clone(&self.ready));
        }
        let mut ready = self.ready();
        self.close(&mut ready);
    }
}

/// An initiator after its setup.
pub(crate) struct Ready {
    initiator: End,
    provider: Provider,
    /// Targets removed since the last call that made progress, for a provider whose initiators have connections in the
    /// C++ SDK: there such targets stay until that call.
    leaving: Vec<u64>,
    /// The error of this end during a call for another end.
    failed: Option<Error>,
}

impl Visited for Ready {
    fn visit(&mut self, visit: &mut Visit<'_>) {
        let End::Polled(initiator) = &mut self.initiator else { return };
        if self.failed.is_none() {
            self.failed = visit.end(&mut **initiator).err();
            initiator.drop_events();
        }
    }
}

impl Ready {
    /// Whether initiators of the C++ SDK have a connection per target, and so make no progress without a target.
    fn has_connections(&self) -> bool {
        matches!(self.provider, Provider::Tcp | Provider::Verbs)
    }
}

/// The driver of an initiator.
enum End {
    /// The program's calls.
    Polled(Box<mxl_fabrics::Initiator>),
    /// Its own thread.
    Driven(Driven<mxl_fabrics::Initiator>),
}

impl End {
    fn with<T>(&mut self, call: impl FnOnce(&mut mxl_fabrics::Initiator) -> T) -> T {
        match self {
            Self::Polled(initiator) => call(initiator),
            Self::Driven(initiator) => initiator.with(call),
        }
    }

    /// The ids of its targets.
    fn targets(&mut self) -> Vec<u64> {
        self.with(|initiator| initiator.targets().map(|(id, ..)| id).collect())
    }

    /// Waits until everything is sent. Returns false if `timeout` expires first. Events are dropped: this
    /// interface has no counters, and the library's log records losses.
    fn settle(&mut self, timeout: Duration) -> mxl_fabrics::Result<bool> {
        let is_settled = match self {
            Self::Polled(initiator) if timeout.is_zero() => initiator.settle(timeout),
            Self::Polled(initiator) => {
                let ids: Vec<u64> = initiator.targets().map(|(id, ..)| id).collect();
                initiator.settle_beside(timeout, &mut Others::of(&ids, Side::Targets))
            }
            Self::Driven(driven) => {
                let is_settled =
                    driven.wait_until(timeout, |initiator| initiator.check().is_err() || initiator.is_idle());
                is_settled.and_then(|settled| driven.with(|initiator| initiator.check()).map(|()| settled))
            }
        };
        self.with(DropEvents::drop_events);
        is_settled
    }
}

/// Drops the unread events of an initiator.
trait DropEvents {
    fn drop_events(&mut self);
}

impl DropEvents for mxl_fabrics::Initiator {
    fn drop_events(&mut self) {
        while self.event().is_some() {}
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
    body(initiator.ready().as_mut().ok_or(Failure::silent(INVALID_STATE))?)
}

/// The protocol that an initiator speaks to the target with this id.
pub(crate) fn protocol_to(handle: *const Object<Initiator>, id: u64) -> Outcome<Option<Protocol>> {
    with(handle, |ready| Ok(ready.initiator.with(|initiator| initiator.protocol(id))))
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
        let mut ready = initiator.ready();
        // The old one is closed first: it may have the same address.
        initiator.close(&mut ready);
        let made =
            mxl_fabrics::Initiator::open_with(&domain, flow, provider, place, &options).map_err(failed)?;
        let made = if is_driven {
            End::Driven(Driven::start(made).map_err(failed)?)
        } else {
            End::Polled(Box::new(made))
        };
        *ready = Some(Ready { initiator: made, provider, leaving: Vec::new(), failed: None });
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
        let object: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
        with(handle, |ready| {
            ready.initiator.with(|initiator| initiator.add(target)).map_err(failed)?;
            meetings::join(target.id, Side::Initiators, &object.ready);
            Ok(())
        })
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
        let object: &Initiator = Object::get(handle).ok_or(Status::InvalidArg)?;
        with(handle, |ready| match ready.initiator.with(|initiator| initiator.remove(id)) {
            Ok(()) => {
                meetings::leave(&[id], &object.ready);
                if ready.has_connections() {
                    ready.leaving.push(id);
                }
                Ok(())
            }
            Err(Error::NotFound(_)) if ready.leaving.contains(&id) => Ok(()),
            Err(error) => Err(failed(error)),
        })
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
    with(handle, |ready| {
        if let Some(error) = ready.failed.take() {
            return Err(failed(error));
        }
        let is_settled = ready.initiator.settle(timeout).map_err(failed)?;
        let were_leaving = !std::mem::take(&mut ready.leaving).is_empty();
        if ready.has_connections() && !were_leaving && ready.initiator.targets().is_empty() {
            // As in the C++ SDK, where the call after a removal still has that target's connection to end.
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
