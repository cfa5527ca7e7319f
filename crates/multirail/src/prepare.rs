//! Preparation of transfers: checks ranges once, and makes a plan of them.

use std::sync::Arc;
use std::time::Duration;

use ofi::{Errno, Error, Result};

use crate::agent::Agent;
use crate::engine::{PeerId, Piece, Plan, Way};
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
        let driver = self.shared.lock();
        let peer_id = self.peer(&driver, peer)?;
        let mut plan = Plan {
            way,
            pieces: Vec::new(),
            regions: Vec::new(),
            incarnation: 0,
            total: 0,
            guard: Guard::new(),
        };
        plan.pieces.reserve(local.len());
        for (nth, (local, remote)) in local.iter().zip(remote).enumerate() {
            let region = plan.guard.iter().position(|region| Arc::ptr_eq(region, &local.region));
            let region = region.unwrap_or_else(|| {
                plan.guard.push(Arc::clone(&local.region));
                plan.guard.len() - 1
            });
            let remote_region = match plan.regions.iter().rposition(|region| region.id == remote.region) {
                Some(known) => known,
                None => {
                    let found = driver.core.region(peer_id, remote.region);
                    let (found, incarnation) =
                        found.ok_or_else(|| unknown_region(peer, remote.region, nth))?;
                    plan.incarnation = incarnation;
                    plan.regions.push(found);
                    plan.regions.len() - 1
                }
            };
            let len = plan.regions[remote_region].len;
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
                region: region as u32,
                local: local.region.address() + local.offset,
                remote_region: remote_region as u32,
                remote: remote.offset,
                len: local.len,
            });
        }
        let is_staged = plan.guard.iter().any(|region| region.device().is_some())
            || plan.regions.iter().any(|region| region.is_staged);
        let plan = if is_staged {
            Posted::Staged(Arc::new(staged(plan, peer_id)))
        } else {
            Posted::Moved(Arc::new(plan))
        };
        Ok(Prepared::new(plan, peer_id, self.clone()))
    }

    /// Sends a notification without data. It is a transfer of its own: [`Transfer::wait`] returns when the peer has
    /// received it.
    ///
    /// # Errors
    /// `FI_ENOENT` for an unknown peer; `FI_EMSGSIZE`.
    pub fn notify(&self, peer: &str, bytes: &[u8], timeout: Duration) -> Result<Transfer> {
        self.prepare(peer, Way::Write, &[], &[])?.post_with(Some(bytes), timeout)
    }
}

/// Converts a plan whose bytes an end must copy.
fn staged(plan: Plan<Guard>, peer: PeerId) -> staging::Plan {
    let Plan { way, pieces, regions, incarnation, total, guard } = plan;
    let piece = |piece: Piece| staging::Piece {
        local: Arc::clone(&guard[piece.region as usize]),
        at: piece.local,
        remote: Arc::clone(&regions[piece.remote_region as usize]),
        offset: piece.remote,
        len: piece.len,
    };
    let pieces = pieces.into_iter().map(piece).collect();
    staging::Plan { way, peer, incarnation, pieces, total }
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
