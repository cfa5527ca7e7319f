//! How the bytes of a session are divided over its paths.
//!
//! Measured bandwidth alone cannot decide: where the host, its memory or a switch bounds all rails together, a path
//! that is given less carries less, is measured to be slower, and would be given less again. So paths of one *kind*
//! (provider, address format, and whether the NIC reports its speed) carry bytes in proportion to their links' speeds:
//!
//! - Each path has a *lead*: the bytes that it was given beyond its part, compared with the path of its kind that is
//!   furthest behind. It counts like bytes in flight, so the path that is behind is preferred. Leads are bounded, so
//!   that the others do not wait long for a path that stood still, and end with the busy period: a transfer does not
//!   make up for an earlier one.
//! - Parts are shorter on a slower path, so that each takes about the same time on all: a path on which a part of full
//!   length would take longer than the others need for all that they may have in flight would never be chosen.
//! - A path is *slow* if it takes longer for its bytes than the best of its kind under no more load, by the factor
//!   [`SLOW`] and several times in a row. Its time is that in which it had work, its load what was in flight when an
//!   access was posted. A slow path has no part to make up for: it gets what it is expected to carry in the time of the
//!   others. That is examined on and on, and always a little more is tried, so that a path that was slow because it was
//!   given little recovers. One that is so slow that it is not chosen is due for a trial from time to time.
//!
//! The price: a path that takes longer than its equals by less than [`SLOW`] still gets an equal part, and the others
//! wait for it. With four rails, one of 0.7 of the speed of the others, they carry 0.76 of what they could.
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
/// The time that a path which is behind may take to catch up...
const MAX_LEAD: Duration = Duration::from_millis(3);
/// ... and the least bytes that it may catch up with: four accesses of the default length. With less, rails whose
/// threads wait for a processor of a busy host have unequal shares.
const LEAST_MAX_LEAD: f64 = (16 << 20) as f64;
/// A slow path that has had no work for this time is due for a trial. The maximum time is as for a path that failed.
const TRIAL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));
/// A trial takes at most this part of the time of its path, because a transfer waits for it.
const TRIAL_PART: u32 = 20;
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
    /// That rate as a part of the greatest of the kind.
    part: f64,
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
    /// The time from which a slow path is due for a trial.
    due: Time,
    /// What is in flight on a slow path was posted as a trial.
    is_trial: bool,
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
            part: 1.0,
            lead: 0.0,
            sums: Sums::default(),
            service: 0.0,
            load: 0.0,
            slow: 0,
            due: Time::ZERO,
            is_trial: false,
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

    /// The length of a part that takes about as long here as one of `len` on the fastest path of the kind.
    pub(super) fn part_of(&self, len: u64, least: u64) -> u64 {
        if self.part >= 1.0 {
            return len;
        }
        ((len as f64 * self.part) as u64).next_multiple_of(4096).max(least).min(len)
    }

    /// Whether a slow path without work is to be tried, whatever is expected of it.
    pub(super) fn is_due(&self, now: Time) -> bool {
        self.factor < 1.0 && now >= self.due
    }

    fn max_lead(&self) -> f64 {
        (self.rate * MAX_LEAD.as_secs_f64()).max(LEAST_MAX_LEAD)
    }

    fn may_be_tried_after(&mut self, took: Duration, now: Time) {
        self.due = now + (took * TRIAL_PART).clamp(TRIAL.0, TRIAL.1);
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
    for at in 0..paths.len() {
        let kind = paths[at].share.kind;
        let weights = paths.iter().map(|path| &path.share).filter(|share| share.kind == kind);
        let greatest = weights.map(|share| share.weight).fold(0.0, f64::max);
        paths[at].share.part = paths[at].share.weight / greatest;
    }
}

/// Gives a path the kind and the weight that it has beside paths which were added.
pub(super) fn adopt(path: &mut Path, fresh: &Path) {
    let (share, Share { kind, weight, part, .. }) = (&mut path.share, &fresh.share);
    share.rate *= weight / share.weight;
    (share.kind, share.weight, share.part) = (*kind, *weight, *part);
}

/// Records that a path is given `bytes`.
pub(super) fn given(paths: &mut [Path], index: usize, bytes: u64, now: Time) {
    // A new busy period: what is over is not made up for.
    let was_idle = |(at, path): (usize, &Path)| path.in_flight == if at == index { bytes } else { 0 };
    if paths.iter().enumerate().all(was_idle) {
        paths.iter_mut().for_each(|path| path.share.lead = path.share.lead.min(bytes as f64));
    }
    let share = &mut paths[index].share;
    if share.factor < 1.0 {
        share.is_trial = now >= share.due;
        return;
    }
    share.lead = (share.lead + bytes as f64).min(share.max_lead());
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
    let count = sums.count;
    let share = &mut paths[index].share;
    let is_trial = std::mem::take(&mut share.is_trial);
    share.may_be_tried_after(took, now);
    if count >= PERIOD || is_trial {
        share.end_period();
        examine(paths, index, is_trial, now);
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
    let expected = |path: &Path| path.share.weight * path.share.factor;
    let greatest = paths.iter().filter(counted).map(expected).fold(0.0, f64::max);
    for share in paths.iter_mut().map(|path| &mut path.share).filter(|share| share.kind == kind) {
        let expected = share.weight * share.factor;
        share.rate = (scale * expected).max(1.0);
        share.part = if greatest > 0.0 { expected / greatest } else { 1.0 };
    }
}

/// Compares a path with the best of its kind. A trial shows the path's latency too, so it only shows that the path is
/// faster than expected.
fn examine(paths: &mut [Path], index: usize, is_trial: bool, now: Time) {
    raise(paths, paths[index].share.kind, now);
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
        let least = if is_trial { 1.0 } else { 0.5 };
        share.factor = (factor * (TRIED / ratio).clamp(least, 2.0)).max(LEAST);
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

/// If all usable paths of a kind are slow, the best of them is the measure of the others.
fn raise(paths: &mut [Path], kind: u32, now: Time) {
    let factors = paths.iter().filter(|path| path.share.kind == kind && path.is_up(now));
    let greatest = factors.map(|path| path.share.factor).fold(0.0, f64::max);
    if greatest <= 0.0 || greatest >= 1.0 {
        return;
    }
    let slow = |share: &&mut Share| share.kind == kind && share.factor < 1.0;
    for share in paths.iter_mut().map(|path| &mut path.share).filter(slow) {
        share.factor = (share.factor / greatest).min(1.0);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_the_slow_paths_is_even_when_no_other_is_up() {
        let path = |factor, addr| {
            let mut path = Path::new(0, 0, None);
            (path.addr, path.share.factor) = (addr, factor);
            path
        };
        let mut paths = [path(0.2, Some(1)), path(0.1, Some(2)), path(1.0, Some(3))];
        let factors = |paths: &[Path]| -> Vec<f64> { paths.iter().map(|path| path.share.factor).collect() };
        let serve = |paths: &mut [Path]| {
            for nth in 1..=u64::from(PERIOD) {
                served(paths, 0, 4096, 4096, Some(Duration::from_micros(1)), Duration::from_millis(nth));
            }
        };
        serve(&mut paths);
        assert_eq!(factors(&paths), [0.2, 0.1, 1.0], "one is even, but has carried nothing to compare with");
        paths[2].addr = None;
        serve(&mut paths);
        assert_eq!(factors(&paths), [1.0, 0.5, 1.0]);
    }
}
