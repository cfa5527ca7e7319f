//! Which regions transfers use: a region lists the plans that name it, and a plan counts its transfers that are not
//! quiet. So withdrawing a region looks at its own plans, whatever the number of transfers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The number of a plan's transfers that are not quiet. Clones count the same ones.
#[derive(Clone, Debug, Default)]
pub struct PlanUses(Arc<AtomicU32>);

impl PlanUses {
    /// A transfer of the plan begins. The agent's lock is held for this and for its end.
    #[inline]
    pub(super) fn begin(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A transfer of the plan is quiet.
    #[inline]
    pub(super) fn end(&self) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(1), Ordering::Relaxed);
    }

    /// A staged transfer of the plan begins. It is quiet when what this returns is dropped.
    pub(crate) fn hold(&self) -> InUse {
        self.begin();
        InUse(self.clone())
    }

    /// Whether some transfer is not quiet.
    pub(crate) fn is_used(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Whether there are other clones: the plan's own, as long as it exists.
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }
}

/// A transfer that its plan counts.
pub(crate) struct InUse(PlanUses);

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The plans that name a region. Most regions have one at a time.
#[derive(Debug, Default)]
pub(crate) struct RegionPlans {
    first: Option<PlanUses>,
    others: Vec<PlanUses>,
    /// The number at which those that are gone are forgotten.
    sweep_at: usize,
    /// Plans that were looked at.
    #[cfg(test)]
    pub(crate) looks: std::cell::Cell<usize>,
}

impl RegionPlans {
    /// Least number of plans at which those that are gone are forgotten.
    const SWEEP: usize = 16;

    /// Adds a plan.
    pub(crate) fn add(&mut self, plan: &PlanUses) {
        if self.first.as_ref().is_none_or(|first| !first.is_shared()) {
            self.first = Some(plan.clone());
            return;
        }
        // Looked at when their number has doubled, so that preparing many takes no longer for each.
        if self.others.len() >= self.sweep_at {
            self.others.retain(PlanUses::is_shared);
            self.sweep_at = (2 * self.others.len()).max(Self::SWEEP);
        }
        self.others.push(plan.clone());
    }

    /// Whether a transfer of one of the plans is not quiet.
    pub(crate) fn is_used(&self) -> bool {
        let mut plans = self.first.iter().chain(&self.others);
        plans.any(|plan| {
            #[cfg(test)]
            self.looks.set(self.looks.get() + 1);
            plan.is_used()
        })
    }

    /// The number of plans that are listed.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.others.len() + usize::from(self.first.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_are_gone_are_forgotten() {
        let mut plans = RegionPlans::default();
        let kept: Vec<PlanUses> = (0..10).map(|_| PlanUses::default()).collect();
        kept.iter().for_each(|plan| plans.add(plan));
        for _ in 0..10_000 {
            plans.add(&PlanUses::default());
            assert!(plans.len() <= 2 * (kept.len() + 1) + RegionPlans::SWEEP, "{}", plans.len());
        }
        assert!(!plans.is_used());
        for plan in &kept {
            plan.begin();
            plan.begin();
            assert!(plans.is_used());
            plan.end();
            assert!(plans.is_used());
            plan.end();
            assert!(!plans.is_used());
        }
    }
}
