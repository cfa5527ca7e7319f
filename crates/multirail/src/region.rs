//! Memory of an agent: registered once, used on every rail.
//!
//! A region owns its buffer in raw form, so no reference to it exists while peers and rails may touch it; this program
//! reads and writes it by copies. A rail's registration is made when that rail first needs it, and kept. The memory is
//! freed once all registrations are closed for certain, and leaked otherwise. Operations in flight keep the region.
#![allow(unsafe_code)]

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use ofi::raw::{Desc, Dmabuf, Domain, MemoryRegion, MrAccess, MrAttr, Piece, Placement};
use ofi::{Buffer, BufferMut, Errno, Error, RawBuffer, Result};
use ofi_core::copy;
use ofi_core::fork::Born;

use crate::engine::{PlanUses, RegionPlans};
#[cfg(feature = "cuda")]
use crate::memory::cuda::DeviceMemory;
use crate::memory::{self, Device, Kind, Pinned};
use crate::near::{Domains, RailSet, bit};
#[cfg(test)]
use crate::topology::DramLimit;
use crate::topology::Place;
use crate::wire::{MAX_RAILS, RegionInfo, RegionKey};

/// Rails' access to a region: everything.
const ACCESS: MrAccess =
    MrAccess::REMOTE_READ.union(MrAccess::REMOTE_WRITE).union(MrAccess::READ).union(MrAccess::WRITE);

/// Memory of an agent: the source or target of its own transfers and of its peers' transfers.
///
/// Clones refer to the same region. It is withdrawn from peers when no clone and no transfer that uses it is left.
pub struct Region<B = Library> {
    inner: Arc<Inner>,
    _buffer: PhantomData<fn() -> B>,
}

/// Memory of [`Agent::alloc`](crate::Agent::alloc).
#[derive(Debug)]
pub struct Library(());

/// A range of a region.
#[derive(Clone)]
pub struct Local {
    pub(crate) region: Arc<Inner>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The memory that an agent shares with processes of its host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    /// It exports its device memory by the driver's handles.
    pub(crate) exports: bool,
    /// Its rails may use shared memory.
    pub(crate) memory: bool,
}

impl Shares {
    pub(crate) const NOTHING: Self = Self { exports: false, memory: false };
}

/// Keeps the memory of a plan.
pub(crate) type Guard = Vec<Arc<Inner>>;

/// A rail's registration, once the rail has needed it.
type Registration = OnceLock<Result<Arc<dyn MemoryRegion>>>;

/// The state behind a region.
pub(crate) struct Inner {
    pub(crate) id: u64,
    addr: *mut u8,
    len: usize,
    /// Taken when the region ends.
    raw: Option<RawBuffer>,
    free: unsafe fn(RawBuffer),
    rails: Box<[Registration]>,
    /// Those of rails that were opened after the region.
    later: OnceLock<Box<[Registration]>>,
    domains: Arc<Domains>,
    /// The rails near the memory, once that was asked, and [`MAX_RAILS`] bits higher the number of rails at that time.
    near: AtomicU64,
    /// Rails on which peers have been given keys.
    keyed: AtomicU64,
    /// Serialises accesses of this process. It does not affect rails and peers.
    local: RwLock<()>,
    /// The device that copies the memory, if the processor cannot access it. Only rails whose NIC takes the dma-buf
    /// register the memory and post from it.
    device: Option<Arc<dyn Device>>,
    /// The owner of the memory if `raw` does not own it. It is dropped after everything else.
    owner: Option<Box<dyn Send + Sync>>,
    /// New uses are refused.
    revoked: AtomicBool,
    /// Registrations whose keys can be closed without the region's own.
    leases: Mutex<Vec<Lease>>,
    /// The plans that name it.
    plans: Mutex<RegionPlans>,
    /// The process whose memory it is.
    born: Born,
}

/// Memory of a region that a rail may touch.
#[derive(Clone, Copy)]
pub(crate) struct Usable {
    addr: *mut u8,
    len: u64,
}

impl Usable {
    /// `len` bytes at the address `at`, if they lie in the region.
    #[inline]
    pub(crate) fn at(&self, at: u64, len: u64) -> Option<*mut u8> {
        let offset = at.checked_sub(self.addr.addr() as u64)?;
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| self.addr.wrapping_add(offset as usize))
    }
}

/// A registration for one session, or the shared one.
struct Lease {
    /// Our tag of the session whose peer alone knows the key; `None` for the shared registration.
    tag: Option<u64>,
    rail: usize,
    made: Arc<dyn MemoryRegion>,
}

impl Lease {
    fn key(&self) -> RegionKey {
        RegionKey { rail: self.rail as u8, key: self.made.key(), base: self.made.base() }
    }
}

// SAFETY: the raw pointer leads to memory that `raw` owns; this process accesses it by `copy` alone, under `local`.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// # Safety
/// The requirements of `Buffer::from_raw`.
unsafe fn free<B: Buffer>(raw: RawBuffer) {
    // SAFETY: the caller's promise.
    drop(unsafe { B::from_raw(raw) });
}

/// # Safety
/// `raw` comes from [`Region::allocate`], and the memory is not in use.
unsafe fn free_allocation(raw: RawBuffer) {
    // SAFETY: from `Box::into_raw` in that function, and put together once.
    drop(unsafe { Box::from_raw(raw.owner().cast::<ofi::raw::Allocation>()) });
}

impl Inner {
    fn new(id: u64, raw: RawBuffer, free: unsafe fn(RawBuffer), domains: &Arc<Domains>) -> Self {
        let mut inner = Self::at(id, raw.addr(), raw.len(), domains);
        (inner.raw, inner.free) = (Some(raw), free);
        inner
    }

    fn at(id: u64, addr: *mut u8, len: usize, domains: &Arc<Domains>) -> Self {
        let rails = (0..domains.count()).map(|_| OnceLock::new()).collect();
        Self {
            id,
            addr,
            len,
            raw: None,
            free: |_| {},
            rails,
            later: OnceLock::new(),
            domains: Arc::clone(domains),
            near: AtomicU64::new(0),
            keyed: AtomicU64::new(0),
            local: RwLock::new(()),
            device: None,
            owner: None,
            revoked: AtomicBool::new(false),
            leases: Mutex::default(),
            plans: Mutex::default(),
            born: Born::here(),
        }
    }

    /// Refuses new uses: later accesses fail, and no rail registers the memory.
    pub(crate) fn revoke(&self) {
        self.revoked.store(true, Ordering::Relaxed);
        // Pairs with the fence in `on`: either `on` sees the mark, or `close` sees the registration.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Relaxed)
    }

    /// The address of the memory, as a number.
    pub(crate) fn address(&self) -> u64 {
        self.addr.addr() as u64
    }

    /// Memory that a device has pinned, which rails move like any other. The caller is responsible for the lengths of
    /// accesses.
    pub(crate) fn pinned(id: u64, pinned: Pinned, domains: &Arc<Domains>) -> Self {
        let mut inner = Self::at(id, pinned.at, pinned.len, domains);
        inner.owner = Some(pinned.owner);
        inner
    }

    /// A region of a device, which copies it. Its memory is not allocated: the addresses are valid on the device only.
    #[cfg(test)]
    pub(crate) fn on_device(id: u64, at: u64, len: usize, device: Arc<dyn Device>) -> Self {
        let addr = std::ptr::without_provenance_mut(at as usize);
        let mut inner = Self::at(id, addr, len, &Arc::new(Domains::new([], None, DramLimit::default())));
        inner.device = Some(device);
        inner
    }

    pub(crate) fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.device.as_ref().map_or(Kind::Dram, |device| device.kind())
    }

    pub(crate) fn len(&self) -> u64 {
        self.len as u64
    }

    /// The memory, if it is not revoked, and the rail with this domain may touch it. A rail that is not near a device's
    /// memory registers it now.
    pub(crate) fn usable(&self, domain: &Arc<dyn Domain>) -> Option<Usable> {
        if self.device.is_some() && self.rail_of(domain).is_none_or(|rail| self.on(rail).is_err()) {
            return None;
        }
        (!self.is_revoked()).then_some(Usable { addr: self.addr, len: self.len as u64 })
    }

    /// The registration on a rail, which the first call creates.
    pub(crate) fn on(&self, rail: usize) -> Result<&Arc<dyn MemoryRegion>> {
        let slot = self.slot(rail).ok_or_else(|| Error::new(Errno::EDOMAIN))?;
        let made = slot.get_or_init(|| self.register(rail));
        fence(Ordering::SeqCst);
        if self.is_revoked() {
            self.close()?;
            return Err(Error::with(Errno::ECANCELED, "the region was revoked"));
        }
        made.as_ref().map_err(|error| {
            Error::with(error.errno(), format!("a rail cannot register the region: {error}"))
        })
    }

    #[inline]
    fn slot(&self, rail: usize) -> Option<&Registration> {
        match self.rails.get(rail) {
            None => self.later_slot(rail),
            slot => slot,
        }
    }

    #[cold]
    fn later_slot(&self, rail: usize) -> Option<&Registration> {
        let first = self.rails.len();
        let later = || (first..MAX_RAILS).map(|_| OnceLock::new()).collect();
        self.later.get_or_init(later).get(rail.checked_sub(first)?)
    }

    /// The rails near the memory, as the first call since a rail was opened finds them.
    pub(crate) fn near(&self) -> RailSet {
        let (mut near, count) = (self.near.load(Ordering::Relaxed), self.domains.count() as u64);
        if near >> MAX_RAILS != count {
            near = self.domains.near(self.place()) | count << MAX_RAILS;
            self.near.store(near, Ordering::Relaxed);
        }
        near & !(RailSet::MAX << MAX_RAILS)
    }

    /// The rails near the memory for a plan. Bits above the count mean rails that do not exist yet: a plan uses those
    /// that are opened while it exists.
    pub(crate) fn near_for_plan(&self) -> RailSet {
        self.near() | RailSet::MAX << self.domains.count()
    }

    /// Whether some rails are nearer than others.
    pub(crate) fn has_near(&self) -> bool {
        self.domains.chooses()
    }

    fn place(&self) -> Option<Place> {
        match &self.device {
            Some(device) => device.pci().map(Place::Accelerator),
            None => self.domains.place_of_pages(self.addr, self.len),
        }
    }

    /// Whether peers get keys on a rail.
    pub(crate) fn has_keys_on(&self, rail: usize) -> bool {
        (self.near() | self.keyed.load(Ordering::Relaxed)) & bit(rail) != 0
    }

    /// Keys for peers: on these rails and, where fewer than two of them can register the memory, on others until there
    /// are two. Also the last error.
    fn keys(&self, wanted: RailSet) -> (Vec<RegionKey>, Option<Error>) {
        let count = self.domains.count();
        let (mut keys, mut last) = (Vec::new(), None);
        let (wanted, others): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|&rail| wanted & bit(rail) != 0);
        let least = wanted.len().min(2);
        for (is_wanted, rail) in
            wanted.into_iter().map(|rail| (true, rail)).chain(others.into_iter().map(|rail| (false, rail)))
        {
            if !is_wanted && keys.len() >= least {
                break;
            }
            match self.own_key(rail) {
                Ok(key) => {
                    self.keyed.fetch_or(bit(rail), Ordering::Relaxed);
                    keys.push(key);
                }
                Err(error) => {
                    tracing::debug!(target: "multirail", %error, rail, region = self.id, "no key on a rail");
                    last = Some(error);
                }
            }
        }
        keys.sort_unstable_by_key(|key: &RegionKey| key.rail);
        (keys, last)
    }

    /// Keys on all rails: the peer has no path left to those near the memory.
    pub(crate) fn widen(&self) -> Vec<RegionKey> {
        if self.keyed.load(Ordering::Relaxed) == 0 {
            return Vec::new(); // no peer has metadata of it, or it is a device's that the processor copies
        }
        self.keys(RailSet::MAX).0
    }

    /// Keys on the rails near the memory, with those that were opened since a peer has got its keys.
    pub(crate) fn renew(&self) -> Vec<RegionKey> {
        if self.keyed.load(Ordering::Relaxed) == 0 {
            return Vec::new(); // as in `widen`
        }
        self.keys(self.near()).0
    }

    fn plans(&self) -> MutexGuard<'_, RegionPlans> {
        self.plans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A plan names the region.
    pub(crate) fn is_planned(&self, plan: &PlanUses) {
        self.plans().add(plan);
    }

    /// Whether a transfer that is not quiet uses the region.
    pub(crate) fn is_in_use(&self) -> bool {
        self.plans().is_used()
    }

    /// The number of plans that were looked at so far.
    #[cfg(test)]
    pub(crate) fn looks_at_plans(&self) -> usize {
        self.plans().looks.get()
    }

    fn register(&self, rail: usize) -> Result<Arc<dyn MemoryRegion>> {
        let domain = self.domains.get(rail).ok_or_else(|| Error::new(Errno::EDOMAIN))?;
        let pieces = [Piece::new(self.addr, self.len)];
        if let Some(device) = &self.device {
            let (fd, offset) = device.dmabuf(self.address())?;
            let dmabuf = Dmabuf { fd: fd.as_fd(), offset };
            return domain.register(&MrAttr::of_dmabuf(dmabuf, &pieces, ACCESS));
        }
        // SAFETY: the memory stays until `drop` has closed the registration, and no reference to it exists.
        let attr = unsafe { MrAttr::new(&pieces, ACCESS) };
        domain.register(&attr)
    }

    fn leases(&self) -> MutexGuard<'_, Vec<Lease>> {
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key on a rail for the session with this tag alone, or for all sessions that share one. The first call
    /// creates it.
    pub(crate) fn lease(&self, tag: Option<u64>, rail: usize) -> Result<RegionKey> {
        let mut leases = self.leases();
        // Under the lock: either `close` finds the lease, or this sees the mark.
        if self.is_revoked() {
            return Err(Error::with(Errno::ECANCELED, "the region was revoked"));
        }
        if let Some(known) = leases.iter().find(|lease| (lease.tag, lease.rail) == (tag, rail)) {
            return Ok(known.key());
        }
        let lease = Lease { tag, rail, made: self.register(rail)? };
        let key = lease.key();
        leases.push(lease);
        Ok(key)
    }

    /// Bytes registered for the session with this tag, counted once per rail that satisfies `is_counted`.
    pub(crate) fn leased(&self, tag: u64, is_counted: impl Fn(usize) -> bool) -> u64 {
        let leases = self.leases();
        let counted = leases.iter().filter(|lease| lease.tag == Some(tag) && is_counted(lease.rail));
        counted.count() as u64 * self.len as u64
    }

    /// The key on a rail that all sessions use.
    pub(crate) fn own_key(&self, rail: usize) -> Result<RegionKey> {
        let made = self.on(rail)?;
        Ok(RegionKey { rail: rail as u8, key: made.key(), base: made.base() })
    }

    /// Closes the leases that satisfy `wanted`, which gets the tag of their session.
    ///
    /// # Errors
    /// `FI_EBUSY` if an access has not ended after a second; that lease and those after it stay.
    pub(crate) fn end_leases(&self, wanted: impl Fn(Option<u64>, &RegionKey) -> bool) -> Result<()> {
        let mut result = Ok(());
        self.leases().retain(|lease| {
            if result.is_err() || !wanted(lease.tag, &lease.key()) {
                return true;
            }
            result = lease.made.close();
            result.is_err()
        });
        result
    }

    /// The rail with this domain.
    pub(crate) fn rail_of(&self, domain: &Arc<dyn Domain>) -> Option<usize> {
        self.domains.rail_of(domain)
    }

    /// The descriptor for local use on a rail.
    pub(crate) fn desc(&self, rail: usize) -> Result<Desc> {
        Ok(self.on(rail)?.desc())
    }

    /// The description of a device's region. Peers on other hosts use the keys of rails whose NIC has registered it.
    /// Peers on this host, which recognise the host in the export, do not: shared memory does not reach a device.
    fn device_info(&self, device: &Arc<dyn Device>, shares: Shares) -> RegionInfo {
        let export = if shares.exports { Some(device.export(self.address(), self.len as u64)) } else { None };
        let export = export.transpose().inspect_err(|error| {
            tracing::debug!(target: "multirail", %error, "a region cannot be exported to other processes");
        });
        let export = export.ok().flatten();
        let keys = if export.is_some() || !shares.memory { self.keys(self.near()).0 } else { Vec::new() };
        RegionInfo { id: self.id, len: self.len as u64, keys, is_staged: true, export }
    }

    /// The region's description for peers. Rails that cannot register it are omitted.
    pub(crate) fn info(&self, shares: Shares) -> Result<RegionInfo> {
        if let Some(device) = &self.device {
            return Ok(self.device_info(device, shares));
        }
        let (keys, last) = self.keys(self.near());
        if let Some(error) = &last {
            tracing::warn!(target: "multirail", %error, region = self.id, "a rail cannot register a region");
        }
        match last {
            Some(error) if keys.is_empty() => Err(error),
            _ => Ok(RegionInfo { id: self.id, len: self.len as u64, keys, is_staged: false, export: None }),
        }
    }

    /// Closes all registrations.
    pub(crate) fn close(&self) -> Result<()> {
        self.born.check()?;
        self.leases().iter().try_for_each(|lease| lease.made.close())?;
        let later = self.later.get().map_or(&[][..], |later| later);
        let rails = self.rails.iter().chain(later);
        rails.filter_map(|rail| rail.get()?.as_ref().ok()).try_for_each(|mr| mr.close())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (raw, owner) = (self.raw.take(), self.owner.take());
        if !self.born.is_here() {
            // The parent's rails and devices use the memory, of which this process need not have a mapping.
            return std::mem::forget(owner);
        }
        if raw.is_none() && owner.is_none() {
            return;
        }
        match (self.close(), raw) {
            // SAFETY: taken apart when the region was made; no rail uses the memory any more.
            (Ok(()), Some(raw)) => unsafe { (self.free)(raw) },
            (Ok(()), None) => drop(owner),
            (Err(error), _) => {
                tracing::warn!(target: "multirail", %error, len = self.len, "memory of a region is leaked");
                std::mem::forget(owner);
            }
        }
    }
}

impl<B> Region<B> {
    fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), _buffer: PhantomData }
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.inner
    }

    /// The number by which peers name the region ([`Remote::region`](crate::Remote)).
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// The kind of memory: of the host or of a device.
    pub fn kind(&self) -> Kind {
        self.inner.kind()
    }

    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A range of the region, in bytes, for a transfer.
    ///
    /// # Errors
    /// `FI_EINVAL` for an empty range, or one that exceeds the region.
    pub fn slice(&self, range: impl RangeBounds<u64>) -> Result<Local> {
        let range = crate::range::resolve(&range, self.inner.len as u64, "a range of a region")?;
        Ok(Local { region: Arc::clone(&self.inner), offset: range.start, len: range.end - range.start })
    }

    fn at(&self, offset: usize, len: usize) -> Result<*mut u8> {
        if offset.checked_add(len).is_some_and(|end| end <= self.inner.len) {
            return Ok(self.inner.addr.wrapping_add(offset));
        }
        Err(Error::wanted(
            Errno::EINVAL,
            "a range of a region",
            format!("a range inside its {} bytes", self.inner.len),
            format!("{len} bytes at {offset}"),
            "give a range that lies inside",
        ))
    }

    /// Copies `to.len()` bytes out, from byte `offset` on. While a transfer or a peer writes them, the result may mix
    /// old and new bytes.
    ///
    /// # Errors
    /// `FI_EINVAL` for bytes beyond the end of the region, and in a forked child, which need not have a mapping of it.
    pub fn read_into(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.inner.born.check()?;
        let from = self.at(offset, to.len())?;
        if let Some(device) = &self.inner.device {
            return memory::copy_out(&**device, from.addr() as u64, to);
        }
        let _reading = self.inner.local.read().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: in bounds; nothing else in this program writes meanwhile; `to` is not a part of the region, as there
        // are no references into it; and `copy` is made for memory that peers change.
        unsafe { copy::bytes(from, to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    /// Copies `from` into the region, from byte `offset` on. A transfer that reads the bytes meanwhile may mix old and
    /// new ones.
    ///
    /// # Errors
    /// `FI_EINVAL` for bytes beyond the end of the region, and in a forked child.
    pub fn write_from(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.inner.born.check()?;
        let to = self.at(offset, from.len())?;
        if let Some(device) = &self.inner.device {
            return memory::copy_in(&**device, to.addr() as u64, from);
        }
        let _writing = self.inner.local.write().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: as above, and the buffer is a `BufferMut`, or an allocation: writable.
        unsafe { copy::bytes(from.as_ptr(), to, from.len()) };
        Ok(())
    }
}

/// The state, if `inner` is its only reference. The agent's thread holds one for a moment when a peer requests keys.
fn sole(mut inner: Arc<Inner>) -> Option<Inner> {
    for _ in 0..20 {
        match Arc::try_unwrap(inner) {
            Ok(inner) => return Some(inner),
            Err(shared) => inner = shared,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

impl<B: BufferMut> Region<B> {
    pub(crate) fn new(id: u64, buffer: B, domains: &Arc<Domains>) -> Result<Self> {
        let raw = buffer.into_raw();
        if raw.is_empty() {
            // SAFETY: taken apart in the line before.
            drop(unsafe { B::from_raw(raw) });
            return Err(Error::with(Errno::EINVAL, "a region needs at least one byte"));
        }
        Ok(Self::of(Inner::new(id, raw, free::<B>, domains)))
    }

    /// Withdraws the region from rails and peers and returns its buffer.
    ///
    /// # Errors
    /// `FI_EBUSY` while clones of the region, ranges, plans, or transfers that are not quiet exist. The memory is
    /// leaked if a peer does not stop using it.
    pub fn withdraw(self) -> Result<B> {
        let mut inner = sole(self.inner).ok_or_else(|| {
            Error::with(
                Errno::EBUSY,
                "the region is in use; drop its clones, ranges and plans, and wait until transfers are quiet",
            )
        })?;
        let raw = inner.raw.take();
        inner.close()?;
        let raw = raw.ok_or_else(|| Error::new(Errno::EOPBADSTATE))?;
        // SAFETY: taken apart in `new`, and all registrations are closed.
        unsafe { B::from_raw_written(raw) }
    }
}

#[cfg(feature = "cuda")]
impl Region<DeviceMemory> {
    /// Memory of a CUDA device.
    pub(crate) fn of_device(id: u64, memory: DeviceMemory, domains: &Arc<Domains>) -> Result<Self> {
        if memory.len() == 0 {
            return Err(Error::with(Errno::EINVAL, "a region needs at least one byte"));
        }
        let device: Arc<dyn Device> = Arc::new(memory.device().clone());
        let addr = std::ptr::without_provenance_mut(memory.address() as usize);
        let mut inner = Inner::at(id, addr, memory.len(), domains);
        inner.device = Some(device);
        inner.owner = Some(Box::new(memory));
        Ok(Self::of(inner))
    }
}

impl Region<Library> {
    /// Memory of a rail's domain, which peers can map.
    pub(crate) fn allocate(id: u64, len: usize, rail: usize, domains: &Arc<Domains>) -> Result<Self> {
        let domain = domains.get(rail).ok_or_else(|| Error::new(Errno::EDOMAIN))?;
        let allocation = Box::new(domain.alloc(len, Placement::default())?);
        let (addr, len) = (allocation.as_ptr(), allocation.len());
        let raw = RawBuffer::new(addr, len, Box::into_raw(allocation).cast());
        Ok(Self::of(Inner::new(id, raw, free_allocation, domains)))
    }
}

impl<B> Clone for Region<B> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), _buffer: PhantomData }
    }
}

impl<B> fmt::Debug for Region<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.inner.id, self.inner.len)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.id, self.len)
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local({}, {} bytes at {})", self.region.id, self.len, self.offset)
    }
}
