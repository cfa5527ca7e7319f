//! What peers ask of this agent's devices: windows, and copies between them and its regions.
//!
//! Peers are not believed: ranges are checked against the region and the window, a peer has one window, and no more
//! copies under way than that has places.
#![allow(unsafe_code)] // begins copies

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use ofi::raw::Domain;
use ofi::{Errno, Result};

use super::{PLACE, PLACES, Regions, log, tell};
use crate::driver::Guard;
use crate::engine::{Core, PeerId, Time, TransferId};
use crate::memory::Copying;
use crate::region::Inner as Region;
use crate::wire::staging::{Order, Through};

/// Most windows: each is 8 MiB of pinned memory.
const WINDOWS: usize = 64;
/// How long an answer may take to its peer.
const ANSWER: Duration = Duration::from_secs(30);

struct Serving {
    peer: PeerId,
    op: u64,
    copying: Box<dyn Copying>,
    /// Kept until the copy has ended.
    region: Arc<Region>,
    _window: Arc<Region>,
}

pub(super) struct Served {
    domains: Arc<[Arc<dyn Domain>]>,
    regions: Regions,
    windows: HashMap<PeerId, Arc<Region>>,
    serving: Vec<Serving>,
    /// Answers on their way.
    answers: Vec<TransferId>,
}

impl Served {
    pub(super) fn new(domains: Arc<[Arc<dyn Domain>]>, regions: Regions) -> Self {
        Self { domains, regions, windows: HashMap::new(), serving: Vec::new(), answers: Vec::new() }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.serving.is_empty() && self.answers.is_empty()
    }

    pub(super) fn is_copying(&self) -> bool {
        !self.serving.is_empty()
    }

    pub(super) fn is_used(&self, region: &Arc<Region>) -> bool {
        self.serving.iter().any(|serving| Arc::ptr_eq(&serving.region, region))
    }

    pub(super) fn gone(&mut self, peer: PeerId) {
        self.windows.remove(&peer);
    }

    pub(super) fn advance(&mut self, core: &mut Core<Guard>, now: Time) -> bool {
        let before = self.serving.len();
        let mut at = 0;
        while at < self.serving.len() {
            let result = match self.serving[at].copying.is_done() {
                Ok(false) => {
                    at += 1;
                    continue;
                }
                Ok(true) => 0,
                Err(error) => number(log(&error)),
            };
            let done = self.serving.swap_remove(at);
            self.answer(core, done.peer, &Order::Done(done.op, result), now);
        }
        self.answers.retain(|&id| {
            let is_over = core.progress(id).is_none_or(|progress| progress.outcome.is_some());
            if is_over {
                core.release(id);
            }
            !is_over
        });
        before != self.serving.len()
    }

    fn answer(&mut self, core: &mut Core<Guard>, peer: PeerId, order: &Order, now: Time) {
        // A peer that is gone needs none.
        if core.is_up(peer)
            && let Ok(id) = tell(core, peer, order, now + ANSWER, now)
        {
            self.answers.push(id);
        }
    }

    pub(super) fn ask(&mut self, core: &mut Core<Guard>, peer: PeerId, op: u64, now: Time) {
        self.windows.remove(&peer);
        let window = self.window(peer).map_err(|error| number(log(&error)));
        self.answer(core, peer, &Order::Grant(op, window), now);
    }

    fn window(&mut self, peer: PeerId) -> Result<crate::wire::RegionInfo> {
        if self.windows.len() >= WINDOWS {
            return Err(ofi::Error::with(
                Errno::ENOSPC,
                format!("{WINDOWS} peers already have a window for device memory; end another session first"),
            ));
        }
        let device = {
            let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
            regions.values().filter_map(Weak::upgrade).find_map(|region| region.device().cloned())
        };
        let device = device.ok_or_else(|| {
            ofi::Error::with(Errno::ENOENT, "this agent has no device memory; load its newest metadata")
        })?;
        let pinned = device.pinned(PLACES * PLACE as usize)?;
        let window = Arc::new(Region::pinned(u64::MAX, pinned, &self.domains));
        let info = window.info(false)?;
        self.windows.insert(peer, window);
        Ok(info)
    }

    /// A peer wants bytes copied from its window (`lands`), or to it.
    pub(super) fn begin(
        &mut self,
        core: &mut Core<Guard>,
        peer: PeerId,
        it: Through,
        lands: bool,
        now: Time,
    ) {
        match self.copy(peer, it, lands) {
            Ok(serving) => self.serving.push(serving),
            Err(errno) => self.answer(core, peer, &Order::Done(it.op, number(errno)), now),
        }
    }

    fn copy(&self, peer: PeerId, it: Through, lands: bool) -> Result<Serving, Errno> {
        let window = self.windows.get(&peer).ok_or(Errno::ENOENT)?;
        let region = {
            let regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
            regions.get(&it.region).and_then(Weak::upgrade).ok_or(Errno::ENOENT)?
        };
        let device = region.device().ok_or(Errno::EINVAL)?;
        // The parser has checked that no sum overflows.
        let is_inside = it.offset + it.len <= region.len() && it.place + it.len <= window.len();
        if region.is_revoked() || !is_inside {
            return Err(Errno::EFAULT);
        }
        if self.serving.iter().filter(|serving| serving.peer == peer).count() >= PLACES {
            return Err(Errno::ENOSPC);
        }
        let (theirs, ours) = (window.address() + it.place, region.address() + it.offset);
        let (to, from) = if lands { (ours, theirs) } else { (theirs, ours) };
        // SAFETY: both ranges lie inside their regions, which `Serving` keeps until the copy has ended.
        let copying = unsafe { device.copy(to, from, it.len) }.map_err(|error| log(&error))?;
        Ok(Serving { peer, op: it.op, copying, _window: Arc::clone(window), region: Arc::clone(&region) })
    }
}

/// An error's number as it goes over the wire: never 0.
fn number(errno: Errno) -> u32 {
    errno.get().unsigned_abs().max(1)
}
