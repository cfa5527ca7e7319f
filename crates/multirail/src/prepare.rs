//! Preparation of transfers: checks ranges once, and makes a plan of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ofi::{Errno, Error, Result};

use crate::agent::Agent;
use crate::engine::{PeerId, Piece, Plan, PlanUses, Way};
use crate::region::{Guard, Local};
use crate::staging;
use crate::transfer::{Posted, Prepared, Remote, Transfer};

impl Agent {
    /// Prepares transfers between local ranges and equally long ranges of the peer's regions, pair by pair.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer or region; `FI_EINVAL` for lists of different lengths, ranges of different
    /// lengths, empty ranges, and ranges beyond their region.
    pub fn prepare(&self, peer: &str, way: Way, local: &[Local], remote: &[Remote]) -> Result<Prepared> {
        if local.len() != remote.len() {
            let found = format!("{} local and {} remote ranges", local.len(), remote.len());
            return Err(Error::wanted(
                Errno::EINVAL,
                "descriptors",
                "as many local as remote ranges",
                found,
                "give one remote range for each local range",
            ));
        }
        // The agent's lock is held for this alone: other threads post while the ranges are checked.
        let (peer_id, known, incarnation) = {
            let driver = self.shared.lock()?;
            let id = self.peer(&driver, peer)?;
            let (known, incarnation) = driver.core.known_regions(id);
            (id, known, incarnation)
        };
        let (mut ours, mut theirs) = (Numbers::default(), Numbers::default());
        let mut plan = Plan {
            way,
            pieces: Vec::new(),
            regions: Vec::new(),
            near: Vec::new(),
            incarnation,
            total: 0,
            guard: Guard::new(),
            uses: PlanUses::default(),
        };
        plan.pieces.reserve(local.len());
        for (nth, (local, remote)) in local.iter().zip(remote).enumerate() {
            let region = ours.of(Arc::as_ptr(&local.region) as usize as u64, plan.guard.len() as u32);
            if region as usize == plan.guard.len() {
                plan.guard.push(Arc::clone(&local.region));
                if local.region.has_near() {
                    plan.near.push(local.region.near_for_plan());
                }
            }
            let remote_region = theirs.of(remote.region, plan.regions.len() as u32);
            if remote_region as usize == plan.regions.len() {
                let found =
                    known.get(&remote.region).ok_or_else(|| unknown_region(peer, remote.region, nth))?;
                plan.regions.push(Arc::clone(found));
            }
            let len = plan.regions[remote_region as usize].len;
            let is_inside = remote.offset.checked_add(remote.len).is_some_and(|end| end <= len);
            if local.len != remote.len || local.len == 0 || !is_inside {
                return Err(Error::wanted(
                    Errno::EINVAL,
                    format!("descriptor {nth}"),
                    format!("1 to {len} bytes inside the region, as many as the local range ({})", local.len),
                    format!("{} bytes at {} of region {}", remote.len, remote.offset, remote.region),
                    "give ranges of equal length that lie inside their regions",
                ));
            }
            plan.total += local.len;
            plan.pieces.push(Piece {
                region,
                local: local.region.address() + local.offset,
                remote_region,
                remote: remote.offset,
                len: local.len,
            });
        }
        let is_staged = plan.guard.iter().any(|region| region.device().is_some())
            || plan.regions.iter().any(|region| region.is_staged);
        plan.guard.iter().for_each(|region| region.is_planned(&plan.uses));
        let plan = match is_staged {
            true => Posted::Staged(Arc::new(staged(plan, peer_id))),
            false => Posted::Moved(Arc::new(plan)),
        };
        Ok(Prepared::new(plan, peer_id, self.clone()))
    }

    /// Sends a notification without data. It is a transfer of its own: [`Transfer::wait`] returns when the peer's
    /// program has taken it ([`Config::acknowledge_taken`](crate::Config)).
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer; `FI_EMSGSIZE`.
    pub fn notify(&self, peer: &str, bytes: &[u8], timeout: Duration) -> Result<Transfer> {
        self.prepare(peer, Way::Write, &[], &[])?.post_with(Some(bytes), timeout)
    }
}

/// Numbers regions in the order in which they are first named. Descriptors mostly name the region of the one before.
#[derive(Default)]
struct Numbers {
    last: Option<(u64, u32)>,
    known: HashMap<u64, u32>,
}

impl Numbers {
    /// The number of a region, which is `next` if the region is new.
    fn of(&mut self, region: u64, next: u32) -> u32 {
        if let Some((last, number)) = self.last
            && last == region
        {
            return number;
        }
        let number = *self.known.entry(region).or_insert(next);
        self.last = Some((region, number));
        number
    }
}

/// Converts a plan whose bytes an end must copy.
fn staged(plan: Plan<Guard>, peer: PeerId) -> staging::Plan {
    let Plan { way, pieces, regions, incarnation, total, guard, uses, .. } = plan;
    let piece = |piece: Piece| staging::Piece {
        local: Arc::clone(&guard[piece.region as usize]),
        at: piece.local,
        remote: Arc::clone(&regions[piece.remote_region as usize]),
        offset: piece.remote,
        len: piece.len,
    };
    let pieces = pieces.into_iter().map(piece).collect();
    staging::Plan { way, peer, incarnation, pieces, total, uses }
}

fn unknown_region(peer: &str, region: u64, nth: usize) -> Error {
    Error::wanted(
        Errno::ENOENT,
        format!("descriptor {nth}"),
        format!("a region of {peer:?} whose metadata was loaded"),
        format!("region {region}"),
        "load the peer's newest metadata",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_numbered_in_the_order_in_which_they_are_named() {
        let mut numbers = Numbers::default();
        let mut seen = Vec::new();
        for region in [7, 7, 3, 7, 3, 3, 9, 7, 0, 9] {
            let number = numbers.of(region, seen.len() as u32) as usize;
            if number == seen.len() {
                seen.push(region);
            }
            assert_eq!(seen[number], region);
        }
        assert_eq!(seen, [7, 3, 9, 0]);
    }
}
