//! Pairs of runs, interleaved with the bounce, so that ours and theirs saw the same machine.
//!
//! `bounce, first, bounce, second, bounce`; who goes first alternates. A pair counts only if its three bounces
//! agree. Dropped pairs are run again, up to a bound.

use std::time::Instant;

use crate::{Error, Figures, Result, sys};

/// When a pair counts, and when to stop.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Pairs to keep.
    pub wanted: usize,
    /// Pairs to try at most.
    pub attempts: usize,
    /// How far the bounces of a pair may be apart: 0.1 is 10 %.
    pub tolerance: f64,
    /// How often a second the kernel may take the core from one of the two, which is the work of some other program.
    pub preemptions_per_s: f64,
    /// Pairs with a longer bounce are dropped too: to compare runs made when the cores were equally far apart.
    pub longest_bounce_ns: Option<f64>,
}

/// One pair that counts.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Ours, if it can be measured yet.
    pub ours: Option<Figures>,
    /// Theirs, if there is somebody to compare with.
    pub theirs: Option<Figures>,
    /// The mean of the pair's bounces, in nanoseconds.
    pub bounce_ns: f64,
}

/// What came of a line.
#[derive(Clone, Debug, Default)]
pub struct Pairs {
    /// The pairs that count.
    pub kept: Vec<Pair>,
    /// How many did not, because the cores moved.
    pub moved: usize,
    /// How many did not, because something else ran on the cores.
    pub disturbed: usize,
}

/// One side of a pair: runs once.
pub type Run<'a> = &'a mut dyn FnMut() -> Result<Figures>;

/// Takes pairs of `ours` and `theirs` until enough count or `policy` says to stop.
pub fn take<'a>(
    policy: &Policy,
    mut ours: Option<Run<'a>>,
    mut theirs: Option<Run<'a>>,
    bounce: &mut dyn FnMut() -> Result<f64>,
) -> Result<Pairs> {
    let mut pairs = Pairs::default();
    if ours.is_none() && theirs.is_none() {
        return Ok(pairs);
    }
    let mut last = bounce()?;
    for attempt in 0..policy.attempts {
        if pairs.kept.len() == policy.wanted {
            break;
        }
        let mut bounces = [last; 3];
        let mut disturbed = false;
        let mut pair = Pair { ours: None, theirs: None, bounce_ns: 0.0 };
        for (turn, after) in [0, 1].into_iter().zip([1, 2]) {
            let is_ours = (turn + attempt) % 2 == 0;
            let (side, slot) =
                if is_ours { (&mut ours, &mut pair.ours) } else { (&mut theirs, &mut pair.theirs) };
            if let Some(run) = side {
                let (figures, preemptions_per_s) = watched(run)?;
                *slot = Some(figures);
                disturbed |= preemptions_per_s > policy.preemptions_per_s;
            }
            bounces[after] = bounce()?;
        }
        last = bounces[2];
        pair.bounce_ns = bounces.iter().sum::<f64>() / 3.0;
        if !agree(bounces, policy) {
            pairs.moved += 1;
        } else if disturbed {
            pairs.disturbed += 1;
        } else {
            pairs.kept.push(pair);
        }
    }
    Ok(pairs)
}

/// Runs one side, and tells how often a second its processes lost their core.
fn watched(run: &mut dyn FnMut() -> Result<Figures>) -> Result<(Figures, f64)> {
    let count = || sys::children_preemptions().map_err(Error::io("reading the children's usage"));
    let (before, start) = (count()?, Instant::now());
    let figures = run()?;
    let preemptions = count()? - before;
    Ok((figures, preemptions as f64 / start.elapsed().as_secs_f64()))
}

fn agree(bounces: [f64; 3], policy: &Policy) -> bool {
    let longest = bounces.iter().copied().fold(f64::MIN, f64::max);
    let shortest = bounces.iter().copied().fold(f64::MAX, f64::min);
    longest <= shortest * (1.0 + policy.tolerance)
        && policy.longest_bounce_ns.is_none_or(|limit| longest <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy =
        Policy { wanted: 2, attempts: 5, tolerance: 0.1, preemptions_per_s: 1e9, longest_bounce_ns: None };

    fn figures() -> Result<Figures> {
        Ok(Figures::from_latency(64, 1.0))
    }

    #[test]
    fn pairs_whose_bounce_moved_are_run_again() {
        // The first pair sees 50, 50, 90; the second 90, 90, 91; the third 91, 92, 93.
        let mut bounces = [50.0, 50.0, 90.0, 90.0, 91.0, 92.0, 93.0].into_iter();
        let pairs =
            take(&POLICY, Some(&mut figures), Some(&mut figures), &mut || Ok(bounces.next().unwrap()));
        let pairs = pairs.unwrap();
        assert_eq!((pairs.kept.len(), pairs.moved), (2, 1));
        assert_eq!(bounces.next(), None);
        assert!(pairs.kept.iter().all(|pair| pair.ours.is_some() && pair.theirs.is_some()));
    }

    #[test]
    fn attempts_are_bounded() {
        let mut far = 0.0;
        let mut bounce = || {
            far += 100.0;
            Ok(far)
        };
        let policy = Policy { longest_bounce_ns: Some(50.0), tolerance: 1e9, ..POLICY };
        let pairs = take(&policy, Some(&mut figures), None, &mut bounce).unwrap();
        assert_eq!((pairs.kept.len(), pairs.moved), (0, 5));
    }

    #[test]
    fn who_goes_first_alternates() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                figures()
            }
        };
        take(&POLICY, Some(&mut side('o')), Some(&mut side('t')), &mut || Ok(1.0)).unwrap();
        assert_eq!(order.into_inner(), "otto");
    }
}
