//! Service for peers that access this agent's devices: windows, and copies between windows and regions.
//!
//! Peers are not trusted: ranges are checked against the region and the window. A peer has one window, and no more
//! copies in flight than the window has places. A window has a number like a region, so that its peer can lease keys of
//! it (`leases.rs`). The number is random, and only that peer learns it and the window's keys. Windows are not in the
//! agent's metadata, and orders cannot refer to them as regions.
#![allow(unsafe_code)] // starts copies

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use ofi::{Errno, Result};

use super::{PLACE, PLACES, Regions, log, tell};
use crate::engine::{Core, PeerId, Time, TransferId};
use crate::memory::Copying;
use crate::near::Domains;
use crate::region::{Guard, Inner as Region, Shares};
use crate::wire::staging::{Order, Through};

/// Maximum windows. Each takes 8 MiB of pinned memory.
const WINDOWS: usize = 64;
/// Maximum answers under way to one peer. A peer that has more unanswered has not read them; it has no more orders
/// under way than its window has places, and asks two questions beside.
const ANSWERS: usize = 32;
/// Time limit for delivering an answer to a peer.
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
    domains: Arc<Domains>,
    regions: Regions,
    /// The windows by number, for leasing their keys.
    numbers: Regions,
    windows: HashMap<PeerId, Arc<Region>>,
    serving: Vec<Serving>,
    /// Answers in flight, by peer.
    answers: HashMap<PeerId, Vec<TransferId>>,
}

impl Served {
    pub(super) fn new(domains: Arc<Domains>, regions: Regions, numbers: Regions) -> Self {
        let (serving, answers) = (Vec::new(), HashMap::new());
        Self { domains, regions, numbers, windows: HashMap::new(), serving, answers }
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
        self.answers.retain(|_, answers| {
            answers.retain(|&id| {
                let is_over = core.progress(id).is_none_or(|progress| progress.outcome.is_some());
                if is_over {
                    core.release(id);
                }
                !is_over
            });
            !answers.is_empty()
        });
        before != self.serving.len()
    }

    pub(super) fn answer(&mut self, core: &mut Core<Guard>, peer: PeerId, order: &Order, now: Time) {
        // A peer without an open session needs no answer.
        let under_way = self.answers.get(&peer).map_or(0, Vec::len);
        if core.is_up(peer)
            && under_way < ANSWERS
            && let Ok(id) = tell(core, peer, order, now + ANSWER, now)
        {
            self.answers.entry(peer).or_default().push(id);
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
        let window = Arc::new(Region::pinned(new_number()?, pinned, &self.domains));
        let info = window.info(Shares::NOTHING)?;
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        numbers.retain(|_, window| window.strong_count() > 0);
        numbers.insert(window.id, Arc::downgrade(&window));
        drop(numbers);
        self.windows.insert(peer, window);
        Ok(info)
    }

    /// Begins a copy that a peer orders: from its window (`lands`), or to it.
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

/// A random number for a window. It collides with no region, because regions count from 1.
fn new_number() -> Result<u64> {
    let random = getrandom::u64().map_err(|error| ofi::Error::with(Errno::EIO, error.to_string()))?;
    Ok((random | 1 << 63) & !1)
}

/// An error's number on the wire: never 0.
fn number(errno: Errno) -> u32 {
    errno.get().unsigned_abs().max(1)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ofi_core::slots::SlotId;

    use super::super::NO_REGION;
    use super::*;
    use crate::memory::{Device, Export, Kind, Mapping, Pinned};

    /// Destination, source and length of each copy.
    type Copies = Arc<Mutex<Vec<[u64; 3]>>>;

    /// A device whose copies never end, and which records them.
    #[derive(Debug, Default)]
    struct Endless(Copies);

    #[derive(Debug)]
    struct Never;

    impl Copying for Never {
        fn is_done(&mut self) -> Result<bool> {
            Ok(false)
        }
    }

    impl Device for Endless {
        fn pci(&self) -> Option<crate::topology::PciAddress> {
            None
        }

        fn kind(&self) -> Kind {
            Kind::Cuda(0)
        }

        unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<Box<dyn Copying>> {
            self.0.lock().unwrap().push([to, from, len]);
            Ok(Box::new(Never))
        }

        fn pinned(&self, len: usize) -> Result<Pinned> {
            let mut owner = Box::new(vec![0_u8; len]);
            Ok(Pinned { at: owner.as_mut_ptr(), len, owner })
        }

        fn export(&self, _: u64, _: u64) -> Result<Export> {
            Err(Errno::ENOSYS.into())
        }

        fn dmabuf(&self, _: u64) -> Result<(std::os::fd::OwnedFd, u64)> {
            Err(Errno::ENOSYS.into())
        }

        fn import(&self, _: &Export, _: u64) -> Result<Arc<dyn Mapping>> {
            Err(Errno::ENOSYS.into())
        }
    }

    /// The address and the length of the device's region.
    const AT: u64 = 0x7000_0000;
    const LEN: u64 = 10_000;
    const WINDOW: u64 = PLACES as u64 * PLACE;

    fn peer(number: u64) -> PeerId {
        PeerId(SlotId::from_wire(number))
    }

    /// Region 1 is a device's, region 2 the host's, region 3 a device's that is revoked. Peer 1 has a window.
    fn served() -> (Served, Vec<Arc<Region>>, Copies) {
        let copies = Arc::default();
        let device: Arc<dyn Device> = Arc::new(Endless(Arc::clone(&copies)));
        let domains: Arc<Domains> = Arc::new(Domains::new([], None, crate::topology::DramLimit::default()));
        let [host, window] = [LEN, WINDOW].map(|len| device.pinned(len as usize).unwrap());
        let window = Arc::new(Region::pinned(new_number().unwrap(), window, &domains));
        let all = vec![
            Arc::new(Region::on_device(1, AT, LEN as usize, Arc::clone(&device))),
            Arc::new(Region::pinned(2, host, &domains)),
            Arc::new(Region::on_device(3, 2 * AT, LEN as usize, device)),
        ];
        all[2].revoke();
        let regions = Regions::default();
        regions.lock().unwrap().extend(all.iter().map(|region| (region.id, Arc::downgrade(region))));
        let mut served = Served::new(domains, regions, Regions::default());
        served.windows.insert(peer(1), window);
        (served, all, copies)
    }

    #[test]
    fn numbers_of_windows_are_of_no_region_and_of_no_other_window() {
        let numbers: Vec<u64> = (0..100).map(|_| new_number().unwrap()).collect();
        assert!(numbers.iter().all(|&number| number >= 1 << 63 && number != NO_REGION));
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), numbers.len());
    }

    /// Every order of a peer is checked against its own window and the region.
    #[test]
    fn orders_of_a_hostile_peer_are_errors_and_copy_nothing() {
        let (served, _regions, copies) = served();
        let order = |region, offset, len, place| Through { op: 7, region, offset, len, place };
        let refused = [
            (2, order(1, 0, 10, 0), Errno::ENOENT), // the peer has no window: another peer's does not count
            (1, order(9, 0, 10, 0), Errno::ENOENT),
            (1, order(served.windows[&peer(1)].id, 0, 10, 0), Errno::ENOENT), // windows are not regions
            (1, order(2, 0, 10, 0), Errno::EINVAL),
            (1, order(3, 0, 10, 0), Errno::EFAULT),
            (1, order(1, 1, LEN, 0), Errno::EFAULT),
            (1, order(1, LEN, 1, 0), Errno::EFAULT),
            (1, order(1, 0, 10, WINDOW - 9), Errno::EFAULT),
            (1, order(1, 0, 10, u64::MAX - 10), Errno::EFAULT),
        ];
        for (number, order, errno) in refused {
            for lands in [true, false] {
                assert_eq!(served.copy(peer(number), order, lands).err(), Some(errno), "{number}: {order:?}");
            }
        }
        assert!(copies.lock().unwrap().is_empty());
        let window = served.windows[&peer(1)].address();
        served.copy(peer(1), order(1, LEN - 10, 10, WINDOW - 10), true).unwrap();
        served.copy(peer(1), order(1, 0, LEN, 5), false).unwrap();
        let wanted = [[AT + LEN - 10, window + WINDOW - 10, 10], [window + 5, AT, LEN]];
        assert_eq!(*copies.lock().unwrap(), wanted);
    }

    /// A peer has no more copies in flight than its window has places, and a copy keeps its region.
    #[test]
    fn a_peer_has_so_many_copies_under_way_and_no_more() {
        let (mut served, regions, copies) = served();
        let order = Through { op: 7, region: 1, offset: 0, len: 10, place: 0 };
        for _ in 0..PLACES {
            let serving = served.copy(peer(1), order, true).unwrap();
            served.serving.push(serving);
        }
        assert_eq!(served.copy(peer(1), order, true).err(), Some(Errno::ENOSPC));
        assert_eq!(copies.lock().unwrap().len(), PLACES);
        assert!(served.is_used(&regions[0]) && !served.is_used(&regions[1]));
        // The session has ended, the copies have not: they keep the window's memory.
        served.gone(peer(1));
        assert_eq!(served.copy(peer(1), order, true).err(), Some(Errno::ENOENT));
        assert_eq!(served.serving.len(), PLACES);
    }
}
