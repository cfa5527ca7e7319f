//! Targets: flows that initiators write.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mxl::{Domain, Geometry, Status};
use mxl_fabrics::{Driven, Received};
use mxl_ffi::border::{Failure, Outcome, out, status};
use mxl_ffi::object::{Kind, Object, magics, place_of};

use crate::info::Info;
use crate::status::{INVALID_STATE, NOT_READY, failed, refused};
use crate::types::{Config, Setup, given, optional};

/// The object behind `mxlFabricsTarget`.
#[derive(Default)]
pub struct Target {
    ready: Mutex<Option<Ready>>,
}

/// A target after its setup.
struct Ready {
    target: End,
    is_discrete: bool,
}

/// How a target is driven.
enum End {
    /// By the program's calls.
    Polled(Box<mxl_fabrics::Target>),
    /// By its own thread.
    Driven(Driven<mxl_fabrics::Target>),
}

impl End {
    fn read(&mut self, timeout: Duration) -> mxl_fabrics::Result<Option<Received>> {
        match self {
            Self::Polled(target) => target.read(timeout),
            Self::Driven(target) => target.wait(timeout),
        }
    }
}

impl Kind for Target {
    const MAGIC: u64 = 0x6d78_6c66_5f74_6172;
}

fn target<'a>(handle: *const Object<Target>) -> Outcome<&'a Target> {
    Object::get(handle).ok_or_else(|| Status::InvalidArg.into())
}

/// A program's wishes beyond the interface.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wishes {
    /// A thread of the library drives the target.
    is_driven: bool,
    /// The identity that a restarted target keeps.
    id: Option<u64>,
}

/// Reads the options. The C++ SDK's option `cqDepth` is checked and not used: queues here are as long as they need to
/// be.
fn check_options(options: Option<&str>) -> Outcome<Wishes> {
    let Some(options) = options else { return Ok(Wishes::default()) };
    let value: serde_json::Value = serde_json::from_str(options)
        .map_err(|error| refused(format!("options: malformed JSON: {error}")))?;
    let object = value.as_object().ok_or_else(|| refused("options: no object of JSON"))?;
    if let Some(depth) = object.get("cqDepth")
        && depth.as_f64().is_none_or(|depth| depth < 1.0)
    {
        return Err(refused(format!("options: cqDepth is {depth}, no number from 1 on")));
    }
    let id = match object.get("id") {
        None => None,
        Some(given) => {
            let id = given.as_str().and_then(|text| text.parse().ok());
            Some(id.ok_or_else(|| refused(format!("options: id is {given}, no 64-bit number in a string")))?)
        }
    };
    Ok(Wishes { is_driven: wants_thread(object)?, id })
}

/// The option `progressThread` of both ends.
pub(crate) fn wants_thread(options: &serde_json::Map<String, serde_json::Value>) -> Outcome<bool> {
    let Some(wanted) = options.get("progressThread") else { return Ok(false) };
    wanted.as_bool().ok_or_else(|| refused(format!("options: progressThread is {wanted}, not true or false")))
}

/// `mxlFabricsTargetSetup`. A target that is set up again is a new target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetSetup(
    handle: *const Object<Target>,
    config: *const Config,
    options: *const c_char,
    info: *mut *const Object<Info>,
) -> c_int {
    status(|| {
        let (target, place, config) = (target(handle)?, out(info)?, given(config)?);
        let Wishes { is_driven, id } = check_options(optional(options)?)?;
        let Setup { provider, place: at, options } = config.check()?;
        let (domain, flow) = place_of(config.flow, magics::WRITER).ok_or(Status::InvalidWriter)?;
        let domain = Domain::open(domain)?;
        let definition = domain.definition(flow)?;
        let is_discrete = matches!(definition.geometry(), Geometry::Grains { .. });
        let mut ready = target.ready.lock().unwrap_or_else(PoisonError::into_inner);
        // The old one is closed first: it may have the same address.
        *ready = None;
        let made = mxl_fabrics::Target::open_with(&domain, &definition, provider, at, id, &options)
            .map_err(failed)?;
        place.set(Info::give(made.info().clone()));
        let target = if is_driven {
            End::Driven(Driven::start(made).map_err(failed)?)
        } else {
            End::Polled(Box::new(made))
        };
        *ready = Some(Ready { target, is_discrete });
        Ok(())
    })
}

/// The oldest commit that was not returned before.
fn read<T>(
    handle: *const Object<Target>,
    timeout: Duration,
    wants_grains: bool,
    take: impl Fn(Received) -> Option<T>,
) -> Outcome<T> {
    let mut ready = target(handle)?.ready.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(Ready { target, is_discrete }) = ready.as_mut() else {
        return Err(Failure::silent(INVALID_STATE));
    };
    if *is_discrete != wants_grains {
        return Err(Failure::silent(INVALID_STATE));
    }
    let begin = Instant::now();
    // Events other than commits (a connection, a loss) have no equivalent in this interface.
    while let Some(received) = target.read(timeout.saturating_sub(begin.elapsed())).map_err(failed)? {
        if let Some(taken) = take(received) {
            return Ok(taken);
        }
    }
    Err(Failure::silent(NOT_READY))
}

fn read_grain(handle: *const Object<Target>, timeout: Duration, index: *mut u64) -> Outcome {
    let place = out(index)?;
    place.set(read(handle, timeout, true, |received| match received {
        Received::Grain { index, .. } => Some(index),
        _ => None,
    })?);
    Ok(())
}

fn read_samples(
    handle: *const Object<Target>,
    timeout: Duration,
    head: *mut u64,
    count: *mut usize,
) -> Outcome {
    let places = (out(head)?, out(count)?);
    let (head, count) = read(handle, timeout, false, |received| match received {
        Received::Samples { index, count } => Some((index, count)),
        _ => None,
    })?;
    places.0.set(head);
    places.1.set(count as usize);
    Ok(())
}

/// `mxlFabricsTargetReadGrainNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetReadGrainNonBlocking(
    handle: *const Object<Target>,
    index: *mut u64,
) -> c_int {
    status(|| read_grain(handle, Duration::ZERO, index))
}

/// `mxlFabricsTargetReadGrain`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetReadGrain(
    handle: *const Object<Target>,
    timeout_ms: u16,
    index: *mut u64,
) -> c_int {
    status(|| read_grain(handle, Duration::from_millis(timeout_ms.into()), index))
}

/// `mxlFabricsTargetReadSamplesNonBlocking`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetReadSamplesNonBlocking(
    handle: *const Object<Target>,
    head: *mut u64,
    count: *mut usize,
) -> c_int {
    status(|| read_samples(handle, Duration::ZERO, head, count))
}

/// `mxlFabricsTargetReadSamples`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mxlFabricsTargetReadSamples(
    handle: *const Object<Target>,
    timeout_ms: u16,
    head: *mut u64,
    count: *mut usize,
) -> c_int {
    status(|| read_samples(handle, Duration::from_millis(timeout_ms.into()), head, count))
}

#[cfg(test)]
mod tests {
    use super::{Wishes, check_options};

    #[test]
    fn options_of_a_target_are_read_or_refused_with_their_reason() {
        let undemanding = Wishes::default();
        for good in [r#"{"cqDepth": 1}"#, r#"{"cqDepth": 512, "other": []}"#, "{}"] {
            assert!(matches!(check_options(Some(good)), Ok(wishes) if wishes == undemanding), "{good}");
        }
        assert!(matches!(check_options(None), Ok(wishes) if wishes == undemanding));
        let all = r#"{"cqDepth": 1, "progressThread": true, "id": "18446744073709551615"}"#;
        let wanted = Wishes { is_driven: true, id: Some(u64::MAX) };
        assert!(matches!(check_options(Some(all)), Ok(wishes) if wishes == wanted));
        for bad in [
            r#"{"cqDepth": 0}"#,
            r#"{"cqDepth": -3}"#,
            r#"{"cqDepth": "8"}"#,
            r#"{"progressThread": 1}"#,
            r#"{"id": 4711}"#,
            r#"{"id": "18446744073709551616"}"#,
            "[]",
            "{",
        ] {
            assert!(check_options(Some(bad)).is_err(), "{bad}");
        }
    }
}
