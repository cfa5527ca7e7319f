//! The registrations of a domain, by key and by descriptor.
//!
//! The locks are held for lookups and their checks, and by [`RegionTable::check_and_run`] for one short access, but
//! never as long as a grant exists. Lock order: `changes`, then one shard at a time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use ofi_api::{BindFlags, Caps, Desc, Errno, Error, KEY_NOTAVAIL, MrAccess, Piece, RemotePiece, Result};

use super::region::{Means, RegionPieces};
use super::register::{check_memory, end_of};
use super::secret::KeySupply;
use super::shards::Shards;
use super::violation::Counters;
use super::{
    Accessor, Addressing, Closing, Grant, KeyChoice, Pieces, Region, Registration, Violation, ViolationCounts,
};
use crate::cntr::{Cntr, Kind};

/// The next descriptor. All domains share the counter, so that their descriptors differ.
static NEXT_DESC: AtomicUsize = AtomicUsize::new(1);

/// The registered memory of one domain. `T` is the transport's data of a region.
pub struct RegionTable<T> {
    addressing: Addressing,
    iov_limit: usize,
    /// Only the regions with remote rights: the others do not exist for peers.
    by_key: Shards<Arc<Region<T>>>,
    by_desc: Shards<Arc<Region<T>>>,
    /// Held while regions are added or removed.
    changes: Mutex<KeySupply>,
    violations: Counters,
    /// Some region has, or had, a counter.
    counting: AtomicBool,
    /// Some region covers, or covered, memory that need not be mapped, or device memory.
    unpromised: AtomicBool,
    /// Some region is, or was, device memory.
    of_device: AtomicBool,
}

impl<T> RegionTable<T> {
    /// A table for a domain whose peers use this addressing, for regions of up to `iov_limit` pieces
    /// (`mr_iov_limit`).
    pub fn new(addressing: Addressing, iov_limit: usize) -> Self {
        Self {
            addressing,
            iov_limit,
            by_key: Shards::new(),
            by_desc: Shards::new(),
            changes: Mutex::default(),
            violations: Counters::default(),
            counting: AtomicBool::new(false),
            unpromised: false.into(),
            of_device: false.into(),
        }
    }

    /// Registers memory. Remote rights take effect at once, unless the registration is to be enabled later. Without
    /// remote rights it takes no key, so a requested key that is in use is not an error. On failure, the transport's
    /// data is dropped.
    ///
    /// # Errors
    /// `FI_EINVAL` for no pieces or too many, for memory beyond the address space, and for a base that is unknown or
    /// does not contain all of the memory; `FI_ENOKEY` for a requested key that is in use; `FI_EKEYREJECTED` for
    /// `FI_KEY_NOTAVAIL` as a key; `FI_EIO` if the system has no random numbers.
    pub fn register(&self, registration: Registration<'_, T>) -> Result<Desc> {
        let Registration { attr, key, flags, context, is_enabled, base, data, auth, only, hmem } =
            registration;
        let len = check_memory(attr, self.addressing, self.iov_limit)?;
        let mut keys = self.changes();
        let base = self.base_for(base, attr.pieces())?;
        let (iface, device) =
            base.as_ref().map_or((attr.iface, attr.device), |base| (base.iface, base.device));
        let key = match key {
            KeyChoice::Random => self.free_key(&mut keys)?,
            KeyChoice::Requested => attr.requested_key,
            KeyChoice::Device(key) => key,
        };
        if key == KEY_NOTAVAIL && is_remote(attr.access()) {
            let advice = "choose any other 64-bit key";
            let found = "FI_KEY_NOTAVAIL";
            return Err(Error::wanted(Errno::EKEYREJECTED, "memory key", "a usable key", found, advice));
        }
        let is_unmapped = !attr.promises_memory();
        if is_unmapped || hmem.is_some() {
            self.unpromised.store(true, Ordering::Relaxed);
        }
        if hmem.is_some() {
            self.of_device.store(true, Ordering::Relaxed);
        }
        let desc = Desc(NEXT_DESC.fetch_add(1, Ordering::Relaxed));
        let region = Arc::new(Region {
            key,
            desc,
            addressing: self.addressing,
            memory: RegionPieces::new(attr.pieces()),
            len,
            offset: attr.offset,
            access: attr.access(),
            is_enabled: is_enabled.into(),
            iface,
            device,
            requested_key: attr.requested_key,
            flags,
            context,
            as_base: Arc::new(()),
            base: base.map(|base| Arc::clone(&base.as_base)),
            data,
            auth,
            is_special: only.is_some() || is_unmapped || hmem.is_some(),
            only,
            is_unmapped,
            hmem,
            counters: RwLock::default(),
            is_counted: false.into(),
        });
        if is_remote(attr.access()) && !self.by_key.insert(key, Arc::clone(&region)) {
            drop(keys); // before the transport's data, whose destructor may call back
            let found = format!("{key:#x}, which is in use");
            let advice = "choose another key, or close the registration that has it";
            return Err(Error::wanted(Errno::ENOKEY, "memory key", "a key not in use", found, advice));
        }
        self.by_desc.insert(desc.0 as u64, region);
        Ok(desc)
    }

    /// Enables a region that was registered as disabled. Enabling it again has no effect.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no such region.
    pub fn enable(&self, desc: Desc) -> Result<()> {
        let enable = |region: &Arc<Region<T>>| region.is_enabled.store(true, Ordering::Release);
        self.by_desc.read(desc.0 as u64, enable).ok_or_else(no_such_region)
    }

    /// Closes a region: from now on nothing is granted on it. The result tracks the accesses that are still running.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no such region; `FI_EBUSY` if regions that were derived from it are still open.
    pub fn close(&self, desc: Desc) -> Result<Closing<T>> {
        let _changes = self.changes();
        let is_base = self.by_desc.read(desc.0 as u64, |region| region.has_sub_regions());
        if is_base.ok_or_else(no_such_region)? {
            let advice = "close the registrations that were made from it first";
            let found = "others that were made from it";
            return Err(Error::wanted(Errno::EBUSY, "registration", "no other on top of it", found, advice));
        }
        let region = self.by_desc.remove(desc.0 as u64).ok_or_else(no_such_region)?;
        if is_remote(region.access) {
            drop(self.by_key.remove(region.key));
        }
        Ok(Closing { region })
    }

    /// As [`RegionTable::check_as`], by [`Accessor::ANYBODY`].
    ///
    /// # Errors
    /// Why the access is refused; the refusal is counted.
    #[inline]
    pub fn check(&self, key: u64, addr: u64, len: u64, access: MrAccess) -> Result<Grant<T>, Violation> {
        self.check_as(Accessor::ANYBODY, key, addr, len, access)
    }

    /// Checks a peer's access to `addr..addr + len` of the region `key`, with all of `access`. An access of no bytes is
    /// checked like any other; its address may be the end of the region. Nothing is granted on device memory.
    ///
    /// # Errors
    /// Why the access is refused; the refusal is counted.
    #[inline]
    pub fn check_as(
        &self,
        who: Accessor<'_>,
        key: u64,
        addr: u64,
        len: u64,
        access: MrAccess,
    ) -> Result<Grant<T>, Violation> {
        self.grant_by(Means::Processor, who, key, addr, len, access)
            .map_err(|violation| self.refuse(addr, len, access, violation))
    }

    /// As `check_as`, without counting a refusal.
    #[inline]
    pub(super) fn grant_by(
        &self,
        means: Means,
        who: Accessor<'_>,
        key: u64,
        addr: u64,
        len: u64,
        access: MrAccess,
    ) -> Result<Grant<T>, Violation> {
        let granted = self.by_key.read(key, |region| {
            let span = region.resolve(who, addr, len, access, means)?;
            Ok(Grant { region: Arc::clone(region), span })
        });
        granted.unwrap_or(Err(Violation::UnknownKey))
    }

    /// Checks an access of kind `kind` ([`Caps::RMA`], [`Caps::ATOMIC`]) by a peer to several pieces, through an
    /// endpoint with the capabilities `caps`. Returns the total length of the pieces if each of them is allowed. An
    /// operation that the endpoint was not opened for is refused like a right that the region lacks.
    ///
    /// # Errors
    /// The error for the peer. The refusal is counted.
    pub fn check_served(
        &self,
        caps: Caps,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        kind: Caps,
        access: MrAccess,
    ) -> Result<usize, Errno> {
        if !caps.serves(kind, access) {
            return Err(Errno::EACCES);
        }
        remote.iter().try_fold(0_usize, |total, piece| {
            let len = piece.len as u64;
            // The code that executes the access notices device memory itself.
            let checked = self.grant_by(Means::Driver, who, piece.key, piece.addr, len, access);
            checked.map_err(|violation| self.refuse(piece.addr, len, access, violation).errno())?;
            total.checked_add(piece.len).ok_or(Errno::EINVAL)
        })
    }

    /// Checks a peer's access like [`RegionTable::check`], and runs `run` on its memory before returning, without a
    /// grant: half the cost, for copies of a few kilobytes. Closing the region waits for it, and so do registrations
    /// that happen to share its lock, so `run` must be short, and must not call this table.
    ///
    /// # Errors
    /// Why the access is refused; the refusal is counted.
    #[inline]
    pub fn check_and_run<R>(
        &self,
        key: u64,
        addr: u64,
        len: u64,
        access: MrAccess,
        run: impl FnOnce(&Region<T>, Pieces<'_>) -> R,
    ) -> Result<R, Violation> {
        let ran = self.by_key.read(key, |region| {
            let span = region.resolve(Accessor::ANYBODY, addr, len, access, Means::Processor)?;
            Ok(run(region, region.pieces_of(span)))
        });
        ran.unwrap_or(Err(Violation::UnknownKey))
            .map_err(|violation| self.refuse(addr, len, access, violation))
    }

    /// Checks that a local operation may use `piece` under the descriptor `desc`, with all of `access`.
    ///
    /// # Errors
    /// Why the access is refused; the refusal is counted.
    #[inline]
    pub fn check_local(&self, desc: Desc, piece: Piece, access: MrAccess) -> Result<Grant<T>, Violation> {
        let granted = self.by_desc.read(desc.0 as u64, |region| {
            let span = region.resolve_local(piece, access)?;
            Ok(Grant { region: Arc::clone(region), span })
        });
        granted.unwrap_or(Err(Violation::UnknownDesc)).map_err(|violation| self.violations.count(violation))
    }

    /// The whole region with this descriptor, whether or not it is enabled.
    ///
    /// # Errors
    /// [`Violation::UnknownDesc`], which is not counted.
    #[inline]
    pub fn region(&self, desc: Desc) -> Result<Grant<T>, Violation> {
        let whole = self.by_desc.read(desc.0 as u64, |region| Grant::whole(Arc::clone(region)));
        whole.ok_or(Violation::UnknownDesc)
    }

    /// The whole region that peers name by `key`, for a transport that lets them map it.
    pub fn remote(&self, key: u64) -> Option<Grant<T>> {
        self.by_key.read(key, |region| Grant::whole(Arc::clone(region)))
    }

    /// Makes `counter` count peers' accesses to a region.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no such region; `FI_EBUSY` if a kind of access has a counter.
    pub fn bind(&self, desc: Desc, counter: &Arc<Cntr>, flags: BindFlags) -> Result<()> {
        self.by_desc
            .read(desc.0 as u64, |region| region.bind(counter, flags))
            .ok_or_else(no_such_region)??;
        self.counting.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether memory that a peer reads may be lent to the network until it has arrived. False for memory that only its
    /// application knows to be mapped, because it may be unmapped once the peer has it; and for device memory.
    pub fn may_lend(&self, remote: &[RemotePiece]) -> bool {
        let promises = |region: &Arc<Region<T>>| !region.is_unmapped && region.hmem.is_none();
        let promised = |piece: &RemotePiece| self.by_key.read(piece.key, promises);
        !self.unpromised.load(Ordering::Relaxed) || remote.iter().all(|piece| promised(piece).unwrap_or(true))
    }

    /// Whether a piece is device memory. Then [`RegionTable::read_as`], [`RegionTable::write_as`] and the like are the
    /// only access to it.
    pub fn is_of_device(&self, remote: &[RemotePiece]) -> bool {
        let is_device = |piece: &RemotePiece| self.by_key.read(piece.key, |region| region.hmem.is_some());
        self.of_device.load(Ordering::Relaxed) && remote.iter().any(|piece| is_device(piece) == Some(true))
    }

    /// Whether some region has, or had, a counter.
    #[inline]
    pub fn counts(&self) -> bool {
        self.counting.load(Ordering::Acquire)
    }

    /// Counts a peer's access: once for each region that it touched.
    #[inline]
    pub fn count(&self, kind: Kind, remote: &[RemotePiece]) {
        if self.counts() {
            self.count_each(kind, remote);
        }
    }

    #[cold]
    fn count_each(&self, kind: Kind, remote: &[RemotePiece]) {
        for (at, piece) in remote.iter().enumerate() {
            if remote[..at].iter().any(|earlier| earlier.key == piece.key) {
                continue;
            }
            let len = remote.iter().filter(|other| other.key == piece.key).map(|other| other.len).sum();
            self.by_key.read(piece.key, |region| region.count(kind, len));
        }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.by_desc.len()
    }

    /// Whether there is no region.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The meaning of peers' addresses.
    pub fn addressing(&self) -> Addressing {
        self.addressing
    }

    /// Refused accesses of a table, by reason.
    pub fn violations(&self) -> ViolationCounts {
        self.violations.read()
    }

    #[cold]
    pub(super) fn refuse(&self, addr: u64, len: u64, access: MrAccess, violation: Violation) -> Violation {
        tracing::debug!(target: "ofi::core::mr", addr, len, ?access, %violation, "remote access refused");
        self.violations.count(violation)
    }

    fn changes(&self) -> MutexGuard<'_, KeySupply> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A random key that is not in use.
    fn free_key(&self, keys: &mut KeySupply) -> Result<u64> {
        loop {
            let key = keys.draw()?;
            if self.by_key.read(key, |_| ()).is_none() {
                return Ok(key);
            }
        }
    }

    /// The region `base`, if one is requested, after a check that it contains every piece.
    fn base_for(&self, base: Desc, pieces: &[Piece]) -> Result<Option<Arc<Region<T>>>> {
        if base == Desc::NONE {
            return Ok(None);
        }
        let base = self.by_desc.read(base.0 as u64, Arc::clone).ok_or_else(no_such_region)?;
        if base.hmem.is_some() {
            let found = "a device's memory";
            let advice = "register that memory on its own";
            return Err(Error::wanted(Errno::EINVAL, "sub-region", "a base of host memory", found, advice));
        }
        let inside = |part: &Piece, whole: &Piece| part.addr >= whole.addr && end_of(part) <= end_of(whole);
        if !pieces.iter().all(|part| base.pieces().iter().any(|whole| inside(part, whole))) {
            let found = "memory outside it";
            let advice = "register that memory on its own";
            return Err(Error::wanted(Errno::EINVAL, "sub-region", "memory of its base", found, advice));
        }
        Ok(Some(base))
    }
}

/// Whether peers may do anything with memory registered for `access`.
fn is_remote(access: MrAccess) -> bool {
    access.intersects(MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)
}

#[cold]
fn no_such_region() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "memory descriptor",
        "the descriptor of an open registration of this domain",
        "another value",
        "drop descriptors whose registration was closed",
    )
}
