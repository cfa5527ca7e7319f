//! Targets: flows that initiators write.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mxl::{Domain, Geometry, Status};
use mxl_fabrics::{Driven, Error, Merge, Received, Visit};
use mxl_ffi::border::{Failure, Outcome, out, status};
use mxl_ffi::object::{Kind, Object, magics, place_of};
use ofi_core::fork::Born;

use crate::info::Info;
use crate::meetings::{self, ObjectSlot, Others, Side, Visited};
use crate::status::{INVALID_STATE, NOT_READY, failed, refused};
use crate::types::{Config, Setup, given, optional};

/// The object behind `mxlFabricsTarget`.
#[derive(Default)]
pub struct Target {
    ready: ObjectSlot<Ready>,
    /// The process that created it.
    born: Born,
}

impl Target {
    /// The target, once it is set up.
    pub(crate) fn ready(&self) -> MutexGuard<'_, Option<Ready>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes the result of an earlier setup.
    pub(crate) fn close(&self, ready: &mut Option<Ready>) {
        if let Some(old) = ready.take() {
            meetings::leave(&old.ids, &self.ready);
        }
    }

    /// Completes a setup: the target has these ids, one for each path.
    pub(crate) fn open(&self, ready: &mut Option<Ready>, target: End, ids: Vec<u64>, is_discrete: bool) {
        ids.iter().for_each(|id| meetings::join(*id, Side::Targets, &self.ready));
        *ready = Some(Ready { target, ids, is_discrete, failed: None });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.born.is_here() {
            // The parent's. A thread of the parent may have held the lock during the fork.
            return std::mem::forget(Arc::clone(&self.ready));
        }
        let mut ready = self.ready();
        self.close(&mut ready);
    }
}

/// A target after its setup.
pub(crate) struct Ready {
    pub target: End,
    /// Its id, or those of its paths.
    ids: Vec<u64>,
    is_discrete: bool,
    /// The error of this end during a call for another end.
    failed: Option<Error>,
}

impl Visited for Ready {
    fn visit(&mut self, visit: &mut Visit<'_>) {
        if self.failed.is_some() {
            return;
        }
        self.failed = match &mut self.target {
            End::Polled(target) => visit.end(&mut **target).err(),
            End::Merge(merge) => visit.end(&mut **merge).err(),
            End::Driven(_) | End::DrivenMerge(_) => None,
        };
    }
}

/// A receiver, driven by the program's calls or by its own thread.
pub(crate) enum End {
    /// One path.
    Polled(Box<mxl_fabrics::Target>),
    Driven(Driven<mxl_fabrics::Target>),
    /// Several paths.
    Merge(Box<Merge>),
    DrivenMerge(Driven<Merge>),
}

impl End {
    fn read(&mut self, timeout: Duration, ids: &[u64]) -> mxl_fabrics::Result<Option<Received>> {
        match self {
            Self::Polled(target) if timeout.is_zero() => target.poll(),
            Self::Polled(target) => target.read_beside(timeout, &mut Others::of(ids, Side::Initiators)),
            Self::Driven(target) => target.wait(timeout),
            Self::Merge(merge) if timeout.is_zero() => merge.poll(),
            Self::Merge(merge) => merge.read_beside(timeout, &mut Others::of(ids, Side::Initiators)),
            Self::DrivenMerge(merge) => merge.wait(timeout),
        }
    }
}

impl Kind for Target {
    const MAGIC: u64 = 0x6d78_6c66_5f74_6172;
}

pub(crate) fn target<'a>(handle: *const Object<Target>) -> Outcome<&'a Target> {
    Object::get(handle).ok_or_else(|| Status::InvalidArg.into())
}

/// The options that a program requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Wishes {
    /// A thread of the library drives the target.
    pub is_driven: bool,
    /// The identity that a restarted target keeps.
    pub id: Option<u64>,
    /// The same for each path of a merge.
    pub ids: Option<Vec<u64>>,
}

/// A 64-bit number in a string, as numbers of JSON have 53 bits.
fn id_of(given: &serde_json::Value) -> Outcome<u64> {
    let id = given.as_str().and_then(|text| text.parse().ok());
    id.ok_or_else(|| refused(format!("options: id is {given}, not a 64-bit number in a string")))
}

/// Reads the options. The C++ SDK's option `cqDepth` is checked but not used: queues here are as long as
/// needed.
pub(crate) fn check_options(options: Option<&str>) -> Outcome<Wishes> {
    let Some(options) = options else { return Ok(Wishes::default()) };
    let value: serde_json::Value = serde_json::from_str(options)
        .map_err(|error| refused(format!("options: malformed JSON: {error}")))?;
    let object = value.as_object().ok_or_else(|| refused("options: not a JSON object"))?;
    if let Some(depth) = object.get("cqDepth")
        && depth.as_f64().is_none_or(|depth| depth < 1.0)
    {
        return Err(refused(format!("options: cqDepth is {depth}, not a number of at least 1")));
    }
    let id = object.get("id").map(id_of).transpose()?;
    let ids = match object.get("ids") {
        None => None,
        Some(serde_json::Value::Array(ids)) => Some(ids.iter().map(id_of).collect::<Outcome<_>>()?),
        Some(given) => return Err(refused(format!("options: ids is {given}, not a list"))),
    };
    Ok(Wishes { is_driven: wants_thread(object)?, id, ids })
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
        let (object, place, config) = (target(handle)?, out(info)?, given(config)?);
        let Wishes { is_driven, id, .. } = check_options(optional(options)?)?;
        let Setup { provider, place: at, options } = config.check()?;
        let (domain, flow) = place_of(config.flow, magics::WRITER).ok_or(Status::InvalidWriter)?;
        let domain = Domain::open(domain)?;
        let definition = domain.definition(flow)?;
        let is_discrete = matches!(definition.geometry(), Geometry::Grains { .. });
        let mut ready = object.ready();
        // The old one is closed first: it may have the same address.
        object.close(&mut ready);
        let made = mxl_fabrics::Target::open_with(&domain, &definition, provider, at, id, &options)
            .map_err(failed)?;
        let given = made.info().clone();
        let target = if is_driven {
            End::Driven(Driven::start(made).map_err(failed)?)
        } else {
            End::Polled(Box::new(made))
        };
        object.open(&mut ready, target, vec![given.id], is_discrete);
        place.set(Info::give(given));
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
    let mut ready = target(handle)?.ready();
    let Some(Ready { target, ids, is_discrete, failed: stopped }) = ready.as_mut() else {
        return Err(Failure::silent(INVALID_STATE));
    };
    if *is_discrete != wants_grains {
        return Err(Failure::silent(INVALID_STATE));
    }
    if let Some(error) = stopped.take() {
        return Err(failed(error));
    }
    let begin = Instant::now();
    // Events other than commits (a connection, a loss) have no equivalent in this interface.
    while let Some(received) = target.read(timeout.saturating_sub(begin.elapsed()), ids).map_err(failed)? {
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
        let all =
            r#"{"cqDepth": 1, "progressThread": true, "id": "18446744073709551615", "ids": ["1", "2"]}"#;
        let wanted = Wishes { is_driven: true, id: Some(u64::MAX), ids: Some(vec![1, 2]) };
        assert!(matches!(check_options(Some(all)), Ok(wishes) if wishes == wanted));
        for bad in [
            r#"{"cqDepth": 0}"#,
            r#"{"cqDepth": -3}"#,
            r#"{"cqDepth": "8"}"#,
            r#"{"progressThread": 1}"#,
            r#"{"id": 4711}"#,
            r#"{"id": "18446744073709551616"}"#,
            r#"{"ids": "1"}"#,
            r#"{"ids": [1]}"#,
            "[]",
            "{",
        ] {
            assert!(check_options(Some(bad)).is_err(), "{bad}");
        }
    }
}
