//! How the bytes of a session are divided over its paths.
//!
//! Measured bandwidth alone cannot decide: where the host, its memory or a switch bounds all rails together, a path that
//! is given less carries less, is measured to be slower, and would be given less again. So paths of one *kind* (provider,
//! address format, and whether the NIC reports its speed) carry bytes in proportion to their links' speeds:
//!
//! - Each path has a *lead*: the bytes that it was given beyond its part, compared with the path of its kind that is
//!   furthest behind. It counts like bytes in flight, so the path that is behind is preferred. Leads are bounded, and
//!   end with the busy period: a transfer does not make up for an earlier one.
//! - A path is *slow* if it takes longer for its bytes than the best of its kind under no more load, by the factor
//!   [`SLOW`] and several times in a row. Its time is that in which it had work, its load what was in flight when an
//!   access was posted. A slow path has no part
//!   to make up for: it gets what it is expected to carry in the time of the others. That is examined on and on, and
//!   always a little more is tried, so that a path that was slow because it was given little recovers.
//!
//! Between kinds the measured bandwidths decide.

use std::time::Duration;

use super::path::Path;
use super::{RailSpec, Time};
use crate::wire::RailInfo;

/// Accesses after whose ends a path is examined.
const PERIOD: u32 = 16;
/// A path is slow if its service time is longer than the best by this factor...
const SLOW: f64 = 1.5;
/// ... in so many examinations in a row. A thread that does not run for some milliseconds must not be enough, nor must
/// a few such times soon after each other on a busy host.
const IN_A_ROW: u32 = 8;
/// A path with less load than this part of another's is not compared with it: latency weighs more for it.
const LIKE_LOAD: f64 = 0.8;
/// How much more than it is measured to carry a slow path is given.
const TRIED: f64 = 1.1;
/// A path that carries more than this part of what the best do is no longer slow.
const RECOVERED: f64 = 0.85;
/// The least part of its link's speed that a path counts with.
const LEAST: f64 = 1e-3;
/// Maximum lead in bytes. With NICs of 100 Gbit/s it takes the others 2.7 ms to catch up.
const MAX_LEAD: f64 = (32 << 20) as f64;
/// Time for which the measurements and the lead of a path without operations are compared with those of others.
const COMPARED: Duration = Duration::from_millis(100);

/// A path's part of the bytes, and the measurements on which it depends.
#[derive(Clone, Debug)]
pub(super) struct Share {
    /// Paths with the same number are of one kind.
    kind: u32,
    /// The speed of the link, in bytes per second, or any number for all of a kind.
    weight: f64,
    /// The part of that speed with which the path counts: 1 unless it is slow.
    factor: f64,
    /// Bytes per second that the path is expected to carry.
    rate: f64,
    /// Bytes that the path was given beyond its part.
    lead: f64,
    /// Since the last examination.
    sums: Sums,
    /// Time for its bytes at the last examination, as a multiple of that at the link's speed. 0 before the first.
    service: f64,
    /// Seconds of load of an access at the link's speed, likewise.
    load: f64,
    /// Examinations in a row in which the path was slow.
    slow: u32,
}

/// Sums over accesses that have ended.
#[derive(Clone, Debug, Default)]
struct Sums {
    /// Time in which the path had work.
    seconds: f64,
    bytes: f64,
    load: f64,
    /// Accesses, of which those that ended together count once.
    count: u32,
}

impl Share {
    pub(super) fn new(weight: f64) -> Self {
        Self {
            kind: 0,
            weight,
            factor: 1.0,
            rate: weight,
            lead: 0.0,
            sums: Sums::default(),
            service: 0.0,
            load: 0.0,
            slow: 0,
        }
    }

    /// Bytes per second that the path is expected to carry.
    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    /// Seconds by which the path is to be given less than its equals.
    pub(super) fn owed(&self) -> f64 {
        self.lead / self.rate
    }

    /// Takes the bandwidth of a path that is alone.
    pub(super) fn measured_alone(&mut self, bandwidth: f64) {
        self.rate = bandwidth;
    }

    fn end_period(&mut self) {
        let Sums { seconds, bytes, load, count } = std::mem::take(&mut self.sums);
        self.service = seconds * self.weight / bytes.max(1.0);
        self.load = load / self.weight / f64::from(count);
    }
}

/// Gives each path its kind and its weight.
pub(super) fn classify(paths: &mut [Path], rails: &[RailSpec]) {
    let told = |path: &Path| rails[path.rail].bandwidth.is_some_and(|rate| rate > 0.0);
    let info = |path: &Path| -> &RailInfo { &rails[path.rail].info };
    let kind = |path: &Path| (&info(path).provider, info(path).format, told(path));
    for at in 0..paths.len() {
        let first = (0..at).find(|&other| kind(&paths[other]) == kind(&paths[at])).unwrap_or(at);
        // Several paths of one rail share its link.
        let of_rail = paths.iter().filter(|path| path.rail == paths[at].rail).count();
        let share = &mut paths[at].share;
        share.kind = first as u32;
        share.weight /= of_rail as f64;
        share.rate = share.weight;
    }
}

/// Records that a path is given `bytes`.
pub(super) fn given(paths: &mut [Path], index: usize, bytes: u64, now: Time) {
    // A new busy period: what is over is not made up for.
    let was_idle = |(at, path): (usize, &Path)| path.in_flight == if at == index { bytes } else { 0 };
    if paths.iter().enumerate().all(was_idle) {
        paths.iter_mut().for_each(|path| path.share.lead = path.share.lead.min(bytes as f64));
    }
    if paths[index].share.factor < 1.0 {
        return;
    }
    let share = &mut paths[index].share;
    share.lead = (share.lead + bytes as f64).min(MAX_LEAD);
    let kind = share.kind;
    let is_used = |path: &Path| is_even(path, kind, now) && is_recent(path, now);
    let leads = |(at, path): (usize, &Path)| {
        (at == index || is_used(path)).then(|| path.share.lead / path.share.weight)
    };
    let least = paths.iter().enumerate().filter_map(leads).fold(f64::INFINITY, f64::min);
    if least > 0.0 && least.is_finite() {
        for share in paths.iter_mut().map(|path| &mut path.share).filter(|share| share.kind == kind) {
            share.lead = (share.lead - least * share.weight).max(0.0);
        }
    }
}

/// Records that accesses of a path of `bytes` together have ended successfully. `load` bytes were in flight when they
/// were posted, themselves included. `took` is the time since then, or since earlier ones have ended; `None` if others
/// have ended at the same time.
pub(super) fn served(
    paths: &mut [Path],
    index: usize,
    bytes: u64,
    load: u64,
    took: Option<Duration>,
    now: Time,
) {
    let sums = &mut paths[index].share.sums;
    sums.bytes += bytes as f64;
    let Some(took) = took else { return };
    sums.seconds += took.as_secs_f64();
    sums.load += load as f64;
    sums.count += 1;
    if sums.count >= PERIOD {
        paths[index].share.end_period();
        examine(paths, index, now);
    }
}

/// Updates the expected rates of the paths of a kind after the bandwidth of one was measured.
pub(super) fn level(paths: &mut [Path], index: usize, now: Time) {
    let kind = paths[index].share.kind;
    let counted = |path: &&Path| path.share.kind == kind && path.is_up(now);
    let sums = paths.iter().filter(counted).fold((0.0, 0.0), |(measured, weights), path| {
        (measured + path.bandwidth(), weights + path.share.weight * path.share.factor)
    });
    let scale =
        if sums.1 > 0.0 { sums.0 / sums.1 } else { paths[index].bandwidth() / paths[index].share.weight };
    for share in paths.iter_mut().map(|path| &mut path.share).filter(|share| share.kind == kind) {
        share.rate = (scale * share.weight * share.factor).max(1.0);
    }
}

/// Compares a path with the best of its kind.
fn examine(paths: &mut [Path], index: usize, now: Time) {
    let Share { kind, factor, service, load, .. } = paths[index].share;
    let is_slow = factor < 1.0;
    let may_compare = |(at, path): &(usize, &Path)| {
        *at != index
            && is_even(path, kind, now)
            && is_recent(path, now)
            && path.share.service > 0.0
            && (is_slow || load >= LIKE_LOAD * path.share.load)
    };
    let others = paths.iter().enumerate().filter(may_compare);
    let best = others.map(|(_, path)| path.share.service).fold(f64::INFINITY, f64::min);
    let share = &mut paths[index].share;
    if !best.is_finite() {
        return;
    }
    let ratio = (factor * service / best).max(LEAST);
    if is_slow {
        share.factor = (factor * (TRIED / ratio).clamp(0.5, 2.0)).max(LEAST);
        if share.factor > RECOVERED {
            (share.factor, share.slow) = (1.0, 0);
        }
    } else if ratio > SLOW {
        share.slow += 1;
        if share.slow >= IN_A_ROW {
            (share.factor, share.lead) = ((1.0 / ratio).max(LEAST), 0.0);
        }
    } else {
        share.slow = 0;
    }
}

/// Whether a path may be used and counts with its full speed.
fn is_even(path: &Path, kind: u32, now: Time) -> bool {
    path.share.kind == kind && path.share.factor >= 1.0 && path.is_up(now)
}

fn is_recent(path: &Path, now: Time) -> bool {
    path.busy_since().is_some() || now.saturating_sub(path.last_ended()) < COMPARED
}
