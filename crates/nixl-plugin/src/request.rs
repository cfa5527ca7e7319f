//! Requests: prepared once, posted any number of times.

use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use multirail::{Outcome, Prepared, Progress, Remote, Transfer, Way};
use ofi::{Errno, Error};

use crate::border::{Bytes, call, of, put, status};
use crate::engine::Engine;
use crate::log::say;
use crate::memory::{Registered, Target};

/// A range of local memory and an equally long range of a peer's memory.
#[repr(C)]
pub struct Descriptor {
    region: *const Registered,
    local: u64,
    target: *const Target,
    remote: u64,
    local_len: u64,
    remote_len: u64,
}

#[cfg(test)]
impl Descriptor {
    pub(crate) fn new(
        region: *const Registered,
        local: u64,
        target: *const Target,
        remote: u64,
        len: u64,
    ) -> Self {
        Self { region, local, target, remote, local_len: len, remote_len: len }
    }
}

/// A prepared transfer.
pub struct Request {
    plan: Prepared,
    timeout: Duration,
    /// The transfer that was posted last.
    posted: Mutex<Option<Transfer>>,
}

/// Prepares transfers of `count` descriptors to or from one peer.
///
/// # Safety
/// `engine` is open; `peer` and `count` descriptors at `descriptors` are valid for the call, with handles of the
/// engine; `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_prepare(
    engine: *const Engine,
    is_write: bool,
    peer: Bytes,
    descriptors: *const Descriptor,
    count: usize,
    out: *mut *mut Request,
) -> c_int {
    call("preparing a transfer", || {
        // SAFETY: the caller's promise.
        let (engine, peer) = unsafe { (&*engine, peer.text("a peer's name")?) };
        let (mut local, mut remote) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for nth in 0..count {
            // SAFETY: the caller's promise.
            let descriptor = unsafe { &*descriptors.add(nth) };
            if descriptor.region.is_null() || descriptor.target.is_null() {
                return Err(Error::with(
                    Errno::EINVAL,
                    format!("descriptor {nth} is outside registered memory; register it first"),
                ));
            }
            // SAFETY: the caller's promise.
            let (region, target) = unsafe { (&*descriptor.region, &*descriptor.target) };
            if *target.peer != *peer {
                let text = format!("descriptor {nth} is memory of {:?}, not of {peer:?}", target.peer);
                return Err(Error::with(Errno::EINVAL, text));
            }
            local.push(region.slice(descriptor.local, descriptor.local_len)?);
            let offset = target.offset(descriptor.remote)?;
            remote.push(Remote { region: target.region, offset, len: descriptor.remote_len });
        }
        let way = if is_write { Way::Write } else { Way::Read };
        let plan = engine.agent.prepare(peer, way, &local, &remote)?;
        let request = Request { plan, timeout: engine.timeout, posted: Mutex::default() };
        // SAFETY: the caller's promise.
        unsafe { put(out, request) };
        Ok(status::SUCCESS)
    })
}

/// Posts a request, with a notification if `has_message` is set. Returns `NIXL_IN_PROG`, or the status of its end.
///
/// # Safety
/// `request` comes from `ofi_nixl_prepare`; `message` is valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_post(request: *const Request, has_message: bool, message: Bytes) -> c_int {
    call("posting a transfer", || {
        // SAFETY: the caller's promise.
        let (request, message) = unsafe { (&*request, message.get()) };
        let mut posted = request.posted.lock().unwrap_or_else(PoisonError::into_inner);
        if posted.as_ref().is_some_and(|transfer| transfer.progress().outcome.is_none()) {
            return Ok(status::REPOST_ACTIVE);
        }
        let transfer = if has_message {
            request.plan.post_notify(message, request.timeout)?
        } else {
            request.plan.post(request.timeout)?
        };
        let progress = transfer.poll()?;
        *posted = Some(transfer);
        Ok(told(progress))
    })
}

/// The status of the last post of a request: `NIXL_IN_PROG`, or the status of its end.
///
/// # Safety
/// `request` comes from `ofi_nixl_prepare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_check(request: *const Request) -> c_int {
    call("a transfer", || {
        // SAFETY: the caller's promise.
        let request = unsafe { &*request };
        let posted = request.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(transfer) = &*posted else { return Ok(status::NOT_POSTED) };
        Ok(told(transfer.poll()?))
    })
}

/// Cancels a transfer in flight and releases the request. Its memory may be freed after `ofi_nixl_deregister` has
/// succeeded.
///
/// # Safety
/// `request` comes from `ofi_nixl_prepare`, is not used by other calls, and is released once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_release(request: *mut Request) -> c_int {
    call("releasing a transfer", || {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(request) });
        Ok(status::SUCCESS)
    })
}

/// The estimated duration of a transfer in seconds, from measurements; `NIXL_ERR_NOT_SUPPORTED` before a session is
/// open.
///
/// # Safety
/// `request` comes from `ofi_nixl_prepare`; `seconds` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_estimate(request: *const Request, seconds: *mut f64) -> c_int {
    call("estimating a transfer", || {
        // SAFETY: the caller's promise.
        let Some(estimate) = unsafe { &*request }.plan.estimate() else { return Ok(status::NOT_SUPPORTED) };
        // SAFETY: the caller's promise.
        unsafe { seconds.write(estimate.as_secs_f64()) };
        Ok(status::SUCCESS)
    })
}

fn told(progress: Progress) -> c_int {
    match progress.outcome {
        None => status::IN_PROGRESS,
        Some(Outcome::Done) => status::SUCCESS,
        Some(Outcome::Cancelled) => status::CANCELED,
        Some(Outcome::Failed(errno)) => {
            say("a transfer", &errno.to_string());
            of(errno)
        }
    }
}
