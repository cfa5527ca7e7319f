//! Direct access at the owner's end: a peer with a key may map the memory behind the key, if the library allocated it.
//!
//! A grant is the permission to map. It is given only for a registration that covers its whole allocation, because a
//! mapping exposes whole pages; for all other memory the owner executes the access (`rma/owner.rs`). A peer announces a
//! copy in its pair memory (`COPYING`) and then checks that the grant still holds (`grants.rs`). Closing the
//! registration voids the grant and then waits until no copy is announced. The barrier between the two steps is on the
//! closing side.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ofi_api::{Caps, Errno, Error, MrAccess, MrAttr, Result};
use ofi_core::hmem::{DeviceHandle, RegisteredDevice};
use ofi_ring::{crash_point, lease, membarrier};

use crate::control::Terms;
use crate::layout::endpoint;
use crate::memory::Allocated;
use crate::openings::Openings;
use crate::shared::SharedEndpoint;
use crate::sys::Writers;

/// The maximum time that closing waits for a peer that copies.
const COPY_TIMEOUT: Duration = Duration::from_secs(1);

/// This transport's part of a registration.
#[derive(Default)]
pub struct ShmRegion {
    /// The allocation that it covers.
    allocated: Option<Arc<Allocated>>,
    /// The device memory that it covers.
    device: Option<DeviceHandle>,
    /// Whether it reserves the allocation for peers that write.
    shares: bool,
    /// Its grants: endpoint and slot, once each.
    given: Mutex<Vec<(Weak<SharedEndpoint>, u32)>>,
    /// The keys under which peers may have mapped the device memory.
    keys: Mutex<Vec<(Weak<SharedEndpoint>, u64)>>,
    /// The parts that peers copy directly (`single/`).
    pub openings: Arc<Openings>,
}

impl ShmRegion {
    /// Prepares a registration.
    pub fn new(domain: &crate::ShmDomain, attr: &MrAttr<'_>) -> Self {
        let whole = match attr.pieces() {
            [one] => domain
                .allocations
                .find(one.addr as usize, one.len)
                .filter(|found| found.base() == one.addr as usize && one.len >= found.asked()),
            _ => None,
        };
        let both = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let shares = whole.is_some() && attr.access().contains(both);
        if let Some(allocated) = whole.as_ref().filter(|_| shares) {
            allocated.share();
        }
        Self::made(whole, None, shares)
    }

    fn made(allocated: Option<Arc<Allocated>>, device: Option<DeviceHandle>, shares: bool) -> Self {
        Self {
            allocated,
            device,
            shares,
            given: Mutex::default(),
            keys: Mutex::default(),
            openings: Arc::default(),
        }
    }

    /// Prepares a registration of device memory. Peers map it if they may read and write all of it.
    pub fn of_device(attr: &MrAttr<'_>, device: &RegisteredDevice) -> Self {
        let both = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let device = if attr.access().contains(both) { device.handle(attr) } else { None };
        Self::made(None, device, false)
    }

    /// Takes the keys under which peers of these endpoints may have mapped the device memory.
    pub fn take_keys(&self) -> Vec<(Weak<SharedEndpoint>, u64)> {
        std::mem::take(&mut *self.keys.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn given(&self) -> MutexGuard<'_, Vec<(Weak<SharedEndpoint>, u32)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ShmRegion {
    fn drop(&mut self) {
        if let Some(allocated) = self.allocated.as_ref().filter(|_| self.shares) {
            allocated.unshare();
        }
    }
}

/// The answer to a peer that asks for a key.
pub enum GrantAnswer {
    /// The owner executes accesses.
    Refused,
    /// The peer may map this memory.
    Memory(Terms, OwnedFd),
    /// The peer may map this memory of a device.
    Device(Terms, DeviceHandle),
}

/// The helper's answer to a peer that asks for `key`. `devices`: it can map a device's memory.
pub fn answer(shared: &Arc<SharedEndpoint>, key: u64, write: bool, devices: bool) -> GrantAnswer {
    let refused = GrantAnswer::Refused;
    if let Some(allocated) = shared.domain.transport.allocations.keyed(key) {
        let terms = Terms { len: allocated.mapped() as u64, slot: u32::MAX, ..Terms::default() };
        return match allocated.descriptor(Writers::Present) {
            Some(fd) => GrantAnswer::Memory(terms, fd),
            None => refused,
        };
    }
    let both = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
    if !shared.caps.serves(Caps::RMA | Caps::ATOMIC, both) {
        return refused; // the owner decides about each access
    }
    let Some(granted) = shared.domain.regions.remote(key) else { return refused };
    let region = granted.region();
    if !shared.auth.opens(region.auth()) {
        return refused; // as below
    }
    if region.only().is_some() {
        return refused; // the owner checks the peer at each access
    }
    let Some(data) = shared.domain.data(region) else { return refused };
    let device = data.device.filter(|_| devices && shared.maps_devices());
    let allocated = data.allocated.as_ref();
    if !region.is_enabled() || (allocated.is_none() && device.is_none()) {
        return refused;
    }
    let access = region.access();
    let may_write = access.contains(MrAccess::REMOTE_WRITE);
    if (write && !may_write) || (!write && !access.contains(MrAccess::REMOTE_READ)) {
        return refused; // the owner rejects the access itself, and counts the reason
    }
    // A writable mapping is readable too, so it needs both rights.
    let writable = may_write && access.contains(MrAccess::REMOTE_READ);
    if write && !writable {
        return refused;
    }
    let slot = (key % endpoint::GRANT_SLOTS as u64) as u32;
    let generation = generation(shared, slot).load(Ordering::Relaxed);
    let mut given = data.given();
    // Done under the lock, so that binding a counter or closing the region either finds the grant in the list or is
    // seen here. The key may belong to another region by now.
    let is_there =
        shared.domain.regions.remote(key).is_some_and(|found| std::ptr::eq(found.region(), region));
    if region.is_counted() || shared.counts() || !is_there {
        return refused; // the owner must see each access
    }
    let terms =
        Terms { len: region.len() as u64, base: region.base_address(), slot, generation, write: writable };
    let writers = if writable { Writers::Any } else { Writers::Present };
    let answer = match (device, allocated) {
        (Some(device), _) => GrantAnswer::Device(terms, device),
        (None, Some(allocated)) => match allocated.descriptor(writers) {
            Some(fd) => GrantAnswer::Memory(terms, fd),
            None => return refused,
        },
        (None, None) => return refused,
    };
    note(&mut given, shared, slot);
    if device.is_some() {
        note(&mut data.keys.lock().unwrap_or_else(PoisonError::into_inner), shared, key);
    }
    answer
}

/// Adds a slot or a key of an endpoint, once. Those of closed endpoints are dropped.
fn note<V: PartialEq>(all: &mut Vec<(Weak<SharedEndpoint>, V)>, shared: &Arc<SharedEndpoint>, value: V) {
    let is_known = |(to, known): &(Weak<SharedEndpoint>, V)| {
        *known == value && std::ptr::eq(to.as_ptr(), Arc::as_ptr(shared))
    };
    if !all.iter().any(is_known) {
        all.retain(|(to, _)| to.strong_count() > 0);
        all.push((Arc::downgrade(shared), value));
    }
}

fn generation(shared: &SharedEndpoint, slot: u32) -> &AtomicU32 {
    // SAFETY: a grant slot of the endpoint memory, which lives with `shared` and is accessed atomically.
    unsafe { &*shared.memory.word(endpoint::GRANTS + 4 * (slot as usize % endpoint::GRANT_SLOTS)) }
}

/// Withdraws the grants of a registration whose key is already gone, or whose accesses are counted from now on. In the
/// latter case only the owner may still copy directly. See `Transport::deregister`.
///
/// # Errors
/// `FI_EBUSY` if a peer still copies after a second.
pub fn withdraw(region: &ShmRegion) -> Result<()> {
    let deadline = Instant::now() + COPY_TIMEOUT;
    let written = !region.openings.void(deadline);
    // The list stays until nobody copies, so that another call waits again.
    let given = region.given().clone();
    let copied = !given.is_empty() && !void(&given, deadline);
    if !copied {
        let is_old = |entry: &(Weak<SharedEndpoint>, u32)| {
            given.iter().any(|(to, slot)| *slot == entry.1 && to.ptr_eq(&entry.0))
        };
        region.given().retain(|entry| !is_old(entry));
    }
    if written || copied {
        return Err(Error::wanted(
            Errno::EBUSY,
            "fi_close of a registration",
            "peers that stop copying within a second",
            "one that did not",
            "do not use the memory for secrets until that peer has ended",
        ));
    }
    Ok(())
}

/// Voids grants and waits for copies through them, at the latest until `deadline`. Returns whether no peer copies.
fn void(given: &[(Weak<SharedEndpoint>, u32)], deadline: Instant) -> bool {
    let mut endpoints: Vec<(Arc<SharedEndpoint>, u32)> = Vec::new();
    for (shared, slot) in given {
        if let Some(shared) = shared.upgrade() {
            crash_point!("withdraw.void");
            lease::end(generation(&shared, *slot));
            endpoints.push((shared, *slot));
        }
    }
    // A peer without the barrier uses fences itself, and all peers do if this process lacks it (`endpoint::FENCE`). If
    // the barrier is refused now (as in a sandbox entered since), nothing is ordered, and a copy that has started
    // cannot be seen.
    let relies = endpoints.iter().any(|(shared, _)| shared.barrier == membarrier::Support::Expedited);
    if lease::settle(relies).is_err() {
        return false;
    }
    crash_point!("withdraw.wait");
    while endpoints.iter().any(|(shared, slot)| shared.copies_through(*slot)) {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_micros(50));
    }
    true
}

/// The allocation that contains `len` bytes at `addr`, as a key and an offset for a peer.
pub fn source(shared: &SharedEndpoint, addr: *const u8, len: usize) -> Option<(u64, u64)> {
    let found = shared.domain.transport.allocations.find(addr as usize, len);
    let allocated = found.filter(|allocated| allocated.is_for_messages())?;
    Some((allocated.key, (addr as usize - allocated.base()) as u64))
}
