//! Leased keys of our regions, which can be closed to fence late writes of a session (`engine/fence.rs`).
//!
//! A region owns its leases, and closes them with its other registrations. This table records which regions a session
//! has leased, and bounds their number and the memory that devices pin a second time for them. A peer beyond the bound
//! gets a shared key: a region has one such registration per rail, whatever the number of peers. Fencing one of them
//! closes it for all; the others are refused, and request another key. A rail with connections (`engine/sever.rs`)
//! leases the regions' own keys.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, PoisonError, Weak};

use ofi::Result;
use ofi_core::budget::Budget;

use crate::rail::Shutting;
use crate::region::Inner as Region;
use crate::staging::Regions;
use crate::wire::RegionKey;
use crate::wire::message::LeasedKey;

/// Leased regions of all sessions together. A region counts once for each session that leases it. A session has at most
/// a fifteenth of what it leaves free: 4,096 alone.
type LeaseBudget = Budget<1, 15>;
/// Maximum leased regions.
const MAX_LEASES: usize = 1 << 16;

/// The agent's leases. The agent's lock protects them.
pub(crate) struct Leases {
    regions: Regions,
    /// Windows for peers that access device memory.
    windows: Regions,
    /// The leased regions, by our tag of the session.
    sessions: HashMap<u64, BTreeSet<u64>>,
    /// Leases of ended sessions that could not be closed: session and region, those that were tried least first.
    unclosed: VecDeque<(u64, u64)>,
    /// What is used includes leases that could not be closed when their session ended.
    budget: LeaseBudget,
    /// Maximum bytes that devices pin a second time for one session
    /// ([`Config::most_leased`](crate::Config::most_leased)).
    most_pinned: u64,
}

impl Leases {
    pub(crate) fn new(regions: Regions, windows: Regions, most_pinned: u64) -> Self {
        let (unclosed, budget) = (VecDeque::new(), LeaseBudget::new(MAX_LEASES));
        Self { regions, windows, sessions: HashMap::new(), unclosed, budget, most_pinned }
    }

    fn region(&self, id: u64) -> Option<Arc<Region>> {
        self.regions_in_use()(id)
    }

    /// Bytes that devices have pinned for the session with this tag.
    fn pinned(&self, tag: u64, rails: &[Shutting]) -> u64 {
        let is_pinned = |rail: usize| rails.get(rail) == Some(&Shutting::Pinned);
        let leased = self.sessions.get(&tag).into_iter().flatten();
        leased.filter_map(|&id| self.region(id)).map(|region| region.leased(tag, is_pinned)).sum()
    }

    /// Whether the region counts as leased by the session with this tag, within the budget.
    fn counts(&mut self, tag: u64, id: u64) -> bool {
        let leased = self.sessions.get(&tag);
        if leased.is_some_and(|leased| leased.contains(&id)) {
            return true;
        }
        let has_place = self.budget.has_place(leased.map_or(0, BTreeSet::len));
        if has_place {
            self.sessions.entry(tag).or_default().insert(id);
            self.budget.take(1);
        }
        has_place
    }

    /// Keys of a region for the session with this tag, on rails that fence late writes in these ways. Rails that cannot
    /// register the region are omitted.
    pub(crate) fn lease(&mut self, tag: u64, id: u64, rails: &[Shutting]) -> Vec<RegionKey> {
        let Some(region) = self.region(id) else { return Vec::new() };
        let is_counted = self.counts(tag, id);
        let mut pinned = if rails.contains(&Shutting::Pinned) { self.pinned(tag, rails) } else { 0 };
        let own = Some(tag).filter(|_| is_counted);
        let key = |(rail, shutting): (usize, &Shutting)| {
            let key = match shutting {
                Shutting::Table => region.lease(own, rail),
                Shutting::Pinned if region.leased(tag, |leased| leased == rail) > 0 => {
                    region.lease(Some(tag), rail)
                }
                Shutting::Pinned if self.most_pinned == 0 => return None,
                Shutting::Pinned
                    if own.is_none() || pinned.saturating_add(region.len()) > self.most_pinned =>
                {
                    region.lease(None, rail)
                }
                Shutting::Pinned => region.lease(own, rail).inspect(|_| pinned += region.len()),
                Shutting::Connection => region.own_key(rail),
            };
            key.inspect_err(|error| {
                tracing::debug!(target: "multirail", %error, rail, region = id, "no key for one session");
            })
            .ok()
        };
        let has_keys = |&(rail, _): &(usize, &Shutting)| region.has_keys_on(rail);
        rails.iter().enumerate().filter(has_keys).filter_map(key).collect()
    }

    /// Keys of a region on all rails, for a peer that has no path to those near it.
    pub(crate) fn widen(&self, id: u64) -> Vec<RegionKey> {
        self.region(id).map_or_else(Vec::new, |region| region.widen())
    }

    /// Keys of a region on the rails near it, with those that were opened since a peer has got its keys.
    pub(crate) fn renew(&self, id: u64) -> Vec<RegionKey> {
        self.region(id).map_or_else(Vec::new, |region| region.renew())
    }

    /// Closes keys of the session with this tag, including shared ones. Returns whether all are closed. The keys of a
    /// dropped region count as closed.
    pub(crate) fn close(&mut self, tag: u64, keys: &[LeasedKey]) -> bool {
        let mut ids: Vec<u64> = keys.iter().map(|key| key.region).collect();
        ids.sort_unstable();
        ids.dedup();
        let is_named = |id: u64, of: Option<u64>, key: &RegionKey| {
            of.is_none_or(|of| of == tag)
                && keys.iter().any(|it| (it.region, it.rail, it.key) == (id, key.rail, key.key))
        };
        let closed = ids.into_iter().try_for_each(|id| self.end_some(id, |of, key| is_named(id, of, key)));
        closed.inspect_err(|error| tracing::warn!(target: "multirail", %error, "a key stays open")).is_ok()
    }

    /// Closes all keys of the session with this tag alone. A key that the peer is using stays; it is tried again when
    /// another session ends, and it is gone with its region.
    pub(crate) fn end(&mut self, tag: u64) {
        let regions = self.regions_in_use();
        self.end_with(tag, |tag, id| {
            let closed = regions(id).map_or(Ok(()), |region| region.end_leases(|of, _| of == Some(tag)));
            let warned = closed.inspect_err(|error| {
                tracing::warn!(target: "multirail", %error, region = id, "keys stay open");
            });
            warned.is_ok()
        });
    }

    /// Closes the leases of a session, and those of earlier ones that stayed open, with `close`.
    fn end_with(&mut self, tag: u64, mut close: impl FnMut(u64, u64) -> bool) {
        let leased = self.sessions.remove(&tag).into_iter().flatten();
        self.unclosed.extend(leased.map(|id| (tag, id)));
        for _ in 0..self.unclosed.len() {
            let Some((tag, id)) = self.unclosed.pop_back() else { return };
            if !close(tag, id) {
                // The others might take a second each, too. They come first the next time.
                return self.unclosed.push_front((tag, id));
            }
            self.budget.give_back(1);
        }
    }

    /// Finds regions and windows, without borrowing the table.
    fn regions_in_use(&self) -> impl Fn(u64) -> Option<Arc<Region>> + use<> {
        let (regions, windows) = (Arc::clone(&self.regions), Arc::clone(&self.windows));
        let find = |regions: &Regions, id: u64| {
            regions.lock().unwrap_or_else(PoisonError::into_inner).get(&id).and_then(Weak::upgrade)
        };
        move |id| find(&regions, id).or_else(|| find(&windows, id))
    }

    fn end_some(&self, id: u64, wanted: impl Fn(Option<u64>, &RegionKey) -> bool) -> Result<()> {
        self.region(id).map_or(Ok(()), |region| region.end_leases(wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen sessions could take all.
    #[test]
    fn a_session_leaves_leases_to_others() {
        let mut leases = Leases::new(Regions::default(), Regions::default(), 0);
        let taken: Vec<usize> =
            (1..=50).map(|tag| (0..).take_while(|&id| leases.counts(tag, id)).count()).collect();
        assert_eq!(taken[0], 4096);
        assert!(taken.iter().all(|&count| count > 100), "{taken:?}");
        assert!(leases.counts(1, 0) && !leases.counts(1, 4096), "what is leased stays so");
        for tag in 1..=50 {
            leases.end_with(tag, |_, _| true);
        }
        assert_eq!((leases.budget.used(), leases.counts(51, 7)), (0, true));
    }

    /// A key that does not close keeps no other one counted.
    #[test]
    fn the_leases_of_a_session_end_although_one_stays_open() {
        let mut leases = Leases::new(Regions::default(), Regions::default(), 0);
        for tag in 1..=2 {
            leases.sessions.insert(tag, (0..100).collect());
            leases.budget.take(100);
        }
        let mut tried = Vec::new();
        let mut end = |leases: &mut Leases, tag, stuck: Option<u64>| {
            leases.end_with(tag, |tag, id| {
                tried.push((tag, id));
                Some(id) != stuck
            });
            (leases.budget.used(), leases.unclosed.len())
        };
        // One attempt that fails ends the call: it may have taken a second.
        assert_eq!(end(&mut leases, 1, Some(50)), (151, 51));
        assert_eq!(end(&mut leases, 3, Some(50)), (101, 1), "the stuck one is the last");
        assert_eq!(end(&mut leases, 3, Some(50)), (101, 1));
        assert_eq!(end(&mut leases, 2, Some(50)), (52, 52));
        assert_eq!(end(&mut leases, 4, None), (0, 0));
    }
}
