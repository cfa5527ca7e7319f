//! Pairs of runs, interleaved with the bounce, so that both runs of a pair saw the same machine.
//!
//! `bounce, first, bounce, second, bounce`; the two sides take turns to be first. A pair counts only if its three
//! bounces agree. Dropped pairs are repeated, up to a bound.

use std::time::{Duration, Instant};

use serde::Serialize;

use crate::{Figures, Result, spawn};

/// The conditions for a pair to count, and for the end of the attempts.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Pairs to keep.
    pub wanted: usize,
    /// Maximum pairs to try.
    pub attempts: usize,
    /// Maximum difference between a pair's bounces: 0.1 is 10 %.
    pub tolerance: f64,
    /// Maximum share of a run during which its processes wait for a core that another program uses.
    pub delayed_share: f64,
    /// Time to wait for idle cores before each pair.
    pub patience: Duration,
    /// Pairs with a longer bounce are dropped too, to compare runs with the cores at the same distance.
    pub longest_bounce_ns: Option<f64>,
}

/// One pair, whether it counts or not.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    /// Our figures, after our run.
    pub ours: Option<Figures>,
    /// The peer's figures, if there is a peer.
    pub theirs: Option<Figures>,
    /// Bounces before, between and after the two runs, in nanoseconds one way.
    pub bounces_ns: [f64; 3],
    /// The share of the worse of the two runs during which its processes waited for a core.
    pub delayed_share: f64,
    /// Whether it counts.
    pub fate: Fate,
}

/// Whether a pair counts, and if not, the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It counts.
    Kept,
    /// The cores moved.
    Moved,
    /// Another program ran on the cores.
    Disturbed,
}

impl Pair {
    /// The mean of its bounces.
    pub fn bounce_ns(&self) -> f64 {
        self.bounces_ns.iter().sum::<f64>() / self.bounces_ns.len() as f64
    }
}

/// One side of a pair: runs once.
pub type Run<'a> = &'a mut dyn FnMut() -> Result<Figures>;

/// Takes pairs of `ours` and `theirs` until enough count or `policy` ends the attempts. `before_each` may wait for a
/// better moment.
pub fn take<'a>(
    policy: &Policy,
    ours: Run<'a>,
    mut theirs: Option<Run<'a>>,
    bounce: &mut dyn FnMut() -> Result<f64>,
    before_each: &mut dyn FnMut() -> Result<()>,
) -> Result<Vec<Pair>> {
    let mut pairs = Vec::new();
    let mut kept = 0;
    while kept < policy.wanted && pairs.len() < policy.attempts {
        before_each()?;
        let mut pair = Pair {
            ours: None,
            theirs: None,
            bounces_ns: [bounce()?; 3],
            delayed_share: 0.0,
            fate: Fate::Kept,
        };
        for turn in [0, 1] {
            let is_ours = (turn + pairs.len()) % 2 == 0;
            let (side, slot) = match &mut theirs {
                _ if is_ours => (Some(&mut *ours), &mut pair.ours),
                theirs => (theirs.as_deref_mut(), &mut pair.theirs),
            };
            if let Some(run) = side {
                let (figures, delayed_share) = watched(run)?;
                *slot = Some(figures);
                pair.delayed_share = pair.delayed_share.max(delayed_share);
            }
            pair.bounces_ns[turn + 1] = bounce()?;
        }
        if pair.delayed_share > policy.delayed_share {
            pair.fate = Fate::Disturbed;
        } else if !agree(pair.bounces_ns, policy) {
            pair.fate = Fate::Moved;
        }
        kept += usize::from(pair.fate == Fate::Kept);
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Runs one side. Also returns the share of that time during which its processes waited for a core.
fn watched(run: &mut dyn FnMut() -> Result<Figures>) -> Result<(Figures, f64)> {
    let (before, start) = (spawn::delayed(), Instant::now());
    let figures = run()?;
    let delayed = spawn::delayed().saturating_sub(before);
    Ok((figures, delayed.as_secs_f64() / start.elapsed().as_secs_f64()))
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

    const POLICY: Policy = Policy {
        wanted: 2,
        attempts: 5,
        tolerance: 0.1,
        delayed_share: 1e9,
        patience: Duration::ZERO,
        longest_bounce_ns: None,
    };

    fn figures() -> Result<Figures> {
        Ok(Figures::from_latency(64, 1.0))
    }

    fn fates(pairs: &[Pair]) -> Vec<Fate> {
        pairs.iter().map(|pair| pair.fate).collect()
    }

    #[test]
    fn pairs_whose_bounce_moved_are_run_again() {
        let mut bounces = [50.0, 50.0, 90.0, 90.0, 90.0, 91.0, 91.0, 92.0, 93.0].into_iter();
        let pairs =
            take(&POLICY, &mut figures, Some(&mut figures), &mut || Ok(bounces.next().unwrap()), &mut || {
                Ok(())
            });
        let pairs = pairs.unwrap();
        assert_eq!(fates(&pairs), [Fate::Moved, Fate::Kept, Fate::Kept]);
        assert_eq!(bounces.next(), None);
        assert!(pairs.iter().all(|pair| pair.ours.is_some() && pair.theirs.is_some()));
    }

    #[test]
    fn attempts_are_bounded() {
        let mut far = 0.0;
        let mut bounce = || {
            far += 100.0;
            Ok(far)
        };
        let policy = Policy { longest_bounce_ns: Some(50.0), tolerance: 1e9, ..POLICY };
        let pairs = take(&policy, &mut figures, None, &mut bounce, &mut || Ok(())).unwrap();
        assert_eq!(fates(&pairs), [Fate::Moved; 5]);
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
        take(&POLICY, &mut side('o'), Some(&mut side('t')), &mut || Ok(1.0), &mut || Ok(())).unwrap();
        assert_eq!(order.into_inner(), "otto");
    }
}
