//! The extension `mxl/ofi_merge.h`: a target that receives one flow on several paths.
//!
//! The C++ SDK's functions are unchanged: they create, read and destroy the target, and any initiator accepts
//! the info of a path.

use std::ffi::{c_char, c_int};

use mxl::{Domain, Geometry, Status};
use mxl_fabrics::{Driven, Merge, MergePath, Options};
use mxl_ffi::border::{Failure, Outcome, out, status, value};
use mxl_ffi::object::{Object, magics, place_of};

use crate::info::Info;
use crate::status::{INVALID_STATE, failed, refused};
use crate::target::{End, Target, Wishes, check_options, target};
use crate::types::{Config, Setup, given, optional};

/// `OFI_MXL_MERGE_VERSION`.
const VERSION: c_int = 1;
/// Maximum configurations that are read from a program's memory. `Merge` limits the number of paths.
const MAX_CONFIGS: usize = 64;

/// `ofiMxlMergeStats`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Stats {
    /// Bit N: path N has an initiator.
    connected: u64,
    published: u64,
    duplicates: u64,
    late: u64,
    strange: u64,
    lost: u64,
    invalid: u64,
    mended: u64,
}

const _: () = assert!(size_of::<Stats>() == 64);

impl Stats {
    fn of(merge: &Merge) -> Self {
        let is_connected = |at: &usize| merge.path(*at).is_some_and(mxl_fabrics::Target::is_connected);
        let connected = (0..merge.paths()).filter(is_connected).fold(0, |bits, at| bits | 1 << at);
        let stats = merge.stats();
        Self {
            connected,
            published: stats.published,
            duplicates: stats.duplicates,
            late: stats.late,
            strange: stats.strange,
            lost: stats.lost,
            invalid: stats.invalid,
            mended: stats.mended,
        }
    }
}

/// `ofiMxlMergeVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn ofiMxlMergeVersion() -> c_int {
    value(0, || VERSION)
}

/// Reads the configurations of the caller.
fn configs(first: *const Config, count: usize) -> Outcome<Vec<Config>> {
    if count > MAX_CONFIGS {
        return Err(refused(format!("{count} paths, more than {MAX_CONFIGS}")));
    }
    (0..count).map(|at| given(first.wrapping_add(at))).collect()
}

/// The merged flow, which all paths must name.
fn place(configs: &[Config]) -> Outcome<(Domain, mxl::Uuid)> {
    let of = |config: &Config| place_of(config.flow, magics::WRITER);
    let first = configs.first().and_then(of).ok_or(Status::InvalidWriter)?;
    if !configs.iter().all(|config| of(config).as_ref() == Some(&first)) {
        return Err(refused("the paths of a merge have writers of different flows"));
    }
    Ok((Domain::open(first.0)?, first.1))
}

/// `ofiMxlTargetSetupMerge`. A target that is set up again is a new target.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofiMxlTargetSetupMerge(
    handle: *const Object<Target>,
    first: *const Config,
    count: usize,
    options: *const c_char,
    infos: *mut *const Object<Info>,
) -> c_int {
    status(|| {
        let object = target(handle)?;
        out(infos)?;
        let configs = configs(first, count)?;
        let Wishes { is_driven, id, ids } = check_options(optional(options)?)?;
        if id.is_some() || ids.as_ref().is_some_and(|ids| ids.len() != count) {
            return Err(refused(format!("options: a merge of {count} paths takes {count} ids, not id")));
        }
        let setups = configs.iter().map(Config::check).collect::<Outcome<Vec<Setup<'_>>>>()?;
        let paths: Vec<MergePath<'_>> = setups
            .iter()
            .enumerate()
            .map(|(at, setup)| MergePath {
                provider: setup.provider,
                node: setup.place.0,
                service: setup.place.1,
                id: ids.as_ref().map(|ids| ids[at]),
                options: Some(&setup.options),
            })
            .collect();
        let (domain, flow) = place(&configs)?;
        let definition = domain.definition(flow)?;
        let is_discrete = matches!(definition.geometry(), Geometry::Grains { .. });
        let mut ready = object.ready();
        // The old one is closed first: it may have the same addresses.
        object.close(&mut ready);
        let merge = Merge::open_with(&domain, &definition, &paths, &Options::default()).map_err(failed)?;
        let made: Vec<_> =
            (0..count).filter_map(|at| merge.path(at)).map(|path| path.info().clone()).collect();
        let target = if is_driven {
            End::DrivenMerge(Driven::start(merge).map_err(failed)?)
        } else {
            End::Merge(Box::new(merge))
        };
        let ids = made.iter().map(|info| info.id).collect();
        for (at, info) in made.into_iter().enumerate() {
            // One place for each path: the C caller's promise.
            out(infos.wrapping_add(at))?.set(Info::give(info));
        }
        object.open(&mut ready, target, ids, is_discrete);
        Ok(())
    })
}

/// `ofiMxlTargetGetMergeStats`: the first `size` bytes of the statistics, which later versions may append to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofiMxlTargetGetMergeStats(
    handle: *const Object<Target>,
    stats: *mut Stats,
    size: usize,
) -> c_int {
    status(|| {
        out(stats)?;
        let target = target(handle)?;
        let ready = target.ready();
        let found = match ready.as_ref().map(|ready| &ready.target) {
            Some(End::Merge(merge)) => Stats::of(merge),
            Some(End::DrivenMerge(merge)) => merge.with(|merge| Stats::of(merge)),
            _ => return Err(Failure::silent(INVALID_STATE)),
        };
        let size = size.min(size_of::<Stats>());
        // SAFETY: not null, as just checked, and the C caller's promise: it has `size` bytes. `found` has as many.
        unsafe { stats.cast::<u8>().copy_from_nonoverlapping((&raw const found).cast(), size) };
        Ok(())
    })
}
