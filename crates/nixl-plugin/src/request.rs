//! Requests: prepared once, posted any number of times.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use multirail::{Outcome, Prepared, Progress, Remote, Transfer, Way};
use ofi::{Errno, Error};
use ofi_core::fork::Born;

use crate::border::{Bytes, call, of, put, status};
use crate::engine::Engine;
use crate::log::{awaited, say};
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
    posted: Mutex<Option<PostedTransfer>>,
    /// NIXL wants to release the request, whose memory is still in use.
    is_unwanted: AtomicBool,
    /// The process of its engine.
    born: Born,
}

/// A transfer that was posted.
struct PostedTransfer {
    transfer: Transfer,
    /// When `timeout_s` is over.
    deadline: Instant,
    /// Its result, once it was reported.
    ended: Option<c_int>,
}

/// Maximum time for which the second release of a request waits for its memory.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(10);

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
        let (posted, is_unwanted, born) = (Mutex::default(), AtomicBool::new(false), engine.born);
        let request = Request { plan, timeout: engine.timeout, posted, is_unwanted, born };
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
        if posted.as_mut().is_some_and(|last| last.told(last.transfer.progress()) == status::IN_PROGRESS) {
            return Ok(status::REPOST_ACTIVE);
        }
        let deadline = Instant::now() + request.timeout;
        let transfer = if has_message {
            request.plan.post_notify(message, request.timeout)?
        } else {
            request.plan.post(request.timeout)?
        };
        let progress = transfer.poll()?;
        Ok(posted.insert(PostedTransfer { transfer, deadline, ended: None }).told(progress))
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
        let mut posted = request.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(posted) = &mut *posted else { return Ok(status::NOT_POSTED) };
        let progress = posted.transfer.poll()?;
        Ok(if request.is_unwanted.load(Ordering::Relaxed) { status::CANCELED } else { posted.told(progress) })
    })
}

/// Cancels a transfer in flight and releases the request. After success nothing is written into its memory.
///
/// `NIXL_ERR_REPOST_ACTIVE` if a rail cannot give up what it has, and has not ended it: the request stays valid. NIXL
/// heeds this result once. It ignores that of a second call, so the second call waits, for at most [`RELEASE_TIMEOUT`].
/// If the memory is in use even then, the request stays, and so does the registration of its memory
/// (`ofi_nixl_deregister`).
///
/// # Safety
/// `request` comes from `ofi_nixl_prepare`, is not used by other calls, and is not used after success.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_release(request: *mut Request) -> c_int {
    call("releasing a transfer", || {
        // SAFETY: the caller's promise.
        let is_free = unsafe { &*request }.give_back()?;
        if !is_free {
            return Ok(status::REPOST_ACTIVE);
        }
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(request) });
        Ok(status::SUCCESS)
    })
}

impl Request {
    /// Cancels the transfer. Returns whether nothing is written into its memory any more.
    fn give_back(&self) -> ofi::Result<bool> {
        if !self.born.is_here() {
            return Ok(true); // transfers in flight belong to the parent
        }
        let mut posted = self.posted.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(posted) = &mut *posted else { return Ok(true) };
        posted.transfer.cancel();
        if posted.told(posted.transfer.progress()) != status::IN_PROGRESS {
            return Ok(true);
        }
        if !self.is_unwanted.swap(true, Ordering::Relaxed) {
            let progress = posted.transfer.poll()?;
            return Ok(posted.told(progress) != status::IN_PROGRESS);
        }
        let is_quiet = posted.transfer.wait_quiet(RELEASE_TIMEOUT)?;
        if !is_quiet {
            say("releasing a transfer", "its memory is still in use, and must stay allocated");
        }
        Ok(is_quiet)
    }
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

impl PostedTransfer {
    /// The status of the transfer. Its failure is logged once.
    fn told(&mut self, progress: Progress) -> c_int {
        if let Some(ended) = self.ended {
            return ended;
        }
        let is_late = progress.outcome == Some(LATE) && Instant::now() >= self.deadline;
        let state = state(&progress, is_late);
        if state != status::IN_PROGRESS {
            self.ended = Some(state);
            match progress.outcome {
                Some(Outcome::Failed(_)) if is_late => {
                    let awaited = awaited(&self.transfer);
                    say("a transfer", &format!("it was not done within timeout_s{awaited}"));
                }
                Some(Outcome::Failed(errno)) => say("a transfer", &errno.to_string()),
                _ => {}
            }
        }
        state
    }
}

/// The outcome after the time limit, and that of a peer that no rail reaches any more.
const LATE: Outcome = Outcome::Failed(Errno::ETIMEDOUT);

/// The status of a transfer. One that has failed is in progress until nothing is written into its memory any more: NIXL
/// takes the memory to be the program's again after an error too. NIXL has no status for a time limit, and forgets a
/// peer that is disconnected, so that of a transfer which `is_late` is another: the peer may serve the next one.
fn state(progress: &Progress, is_late: bool) -> c_int {
    match progress.outcome {
        None => status::IN_PROGRESS,
        Some(Outcome::Cancelled | Outcome::Failed(_)) if !progress.is_quiet => status::IN_PROGRESS,
        Some(Outcome::Done) => status::SUCCESS,
        Some(Outcome::Cancelled) => status::CANCELED,
        Some(Outcome::Failed(_)) if is_late => status::BACKEND,
        Some(Outcome::Failed(errno)) => of(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rail that cannot give up an access keeps its memory beyond the end of the transfer.
    #[test]
    fn a_failed_transfer_is_in_progress_while_its_memory_is_in_use() {
        let progress = |outcome, is_quiet| Progress { outcome, moved: 0, total: 9, is_quiet };
        let failed = Some(LATE);
        for (outcome, is_quiet, wanted) in [
            (None, false, status::IN_PROGRESS),
            (failed, false, status::IN_PROGRESS),
            (failed, true, status::REMOTE_DISCONNECT),
            (Some(Outcome::Cancelled), false, status::IN_PROGRESS),
            (Some(Outcome::Cancelled), true, status::CANCELED),
            // A device may still read what it has written elsewhere.
            (Some(Outcome::Done), false, status::SUCCESS),
            (Some(Outcome::Done), true, status::SUCCESS),
        ] {
            assert_eq!(state(&progress(outcome, is_quiet), false), wanted, "{outcome:?}, quiet: {is_quiet}");
        }
        assert_eq!(state(&progress(failed, false), true), status::IN_PROGRESS);
        assert_eq!(state(&progress(failed, true), true), status::BACKEND);
    }
}
