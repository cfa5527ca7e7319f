//! Addresses by index, and indices by address.
//!
//! Invariants:
//! I1. A new address takes the lowest vacant index (fi_av(3): "the lowest index that corresponds to an
//!     unused table location"), so that without removals the indices are 0, 1, 2, ... in order of insertion.
//! I2. `index` has exactly the live slots of `store`, under the hash of their keys; no two have equal keys.
//! I3. The hash is keyed with a secret of the table: addresses may come from peers.
//! I4. A user id belongs to a live slot; it goes with the address.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashTable;
use ofi_api::{AddrFormat, Address, Errno, Error, FiAddr, Result};

use super::hash::Secret;
use super::key::{Key, destination};
use super::store::Store;

/// The maximum number of addresses for which a hint makes the table reserve room: the hint is the application's guess.
const MAX_RESERVED: usize = 1 << 20;

/// The source of the number by which completions report a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UserIds {
    /// The index, unless an insertion gave a user id of its own.
    #[default]
    PerInsert,
    /// The table was opened with `FI_AV_USER_ID`: a peer is unknown (`FI_ADDR_NOTAVAIL`) until
    /// [`AddressTable::set_user_id`].
    Always,
}

/// One peer under one index, for caches: another peer under the same index has a different value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerEntry {
    index: u32,
    generation: u32,
}

impl PeerEntry {
    /// The index.
    pub fn address(self) -> FiAddr {
        FiAddr(self.index.into())
    }

    /// The index, for tables beside this one.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The result of a removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removed {
    /// The address was inserted more often; the index stays valid.
    Kept,
    /// The address is gone and its index is invalid.
    Gone(PeerEntry),
}

/// Counts removals, without the table's lock. See [`AddressTable::removals`].
#[derive(Clone, Debug)]
pub struct Removals(Arc<AtomicU64>);

impl Removals {
    /// The number of addresses removed since the table was created. A cache that saw the same number at its last use
    /// holds no stale peer.
    #[inline]
    pub fn count(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// The addresses of one address vector.
pub struct AddressTable {
    format: AddrFormat,
    store: Store,
    index: HashTable<u32>,
    secret: Secret,
    removals: Arc<AtomicU64>,
    user_ids: UserIds,
    /// By index, as long as the highest index that ever had one; [`FiAddr::NOTAVAIL`] where there is none.
    ids: Vec<FiAddr>,
}

impl AddressTable {
    /// A table for addresses of `format` (the domain's `addr_format`), with room for `expected` of them
    /// (`fi_av_attr.count`; a hint, 0 for unknown).
    pub fn new(format: AddrFormat, expected: usize, user_ids: UserIds) -> Self {
        Self {
            format,
            store: Store::default(),
            index: HashTable::with_capacity(expected.min(MAX_RESERVED)),
            secret: Secret::new(),
            removals: Arc::default(),
            user_ids,
            ids: Vec::new(),
        }
    }

    /// Format of the addresses.
    pub fn format(&self) -> AddrFormat {
        self.format
    }

    /// Number of distinct addresses.
    pub fn len(&self) -> usize {
        self.store.live() as usize
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Inserts an address, or counts one more insertion of one that is there, which keeps its index.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` for an IP address that cannot be sent to, `FI_EINVAL` for one without bytes or of
    /// more than 65,535, `FI_ENOMEM` and `FI_EOVERFLOW` at 2^32 peers or insertions of one.
    pub fn insert(&mut self, address: &[u8]) -> Result<FiAddr> {
        self.admit(address, |_, _| Ok(()))
    }

    /// Inserts an address. Calls `admit` if it was not there, so that a transport can create its own state for the
    /// peer. An address of another format is accepted if the two share a layout.
    ///
    /// # Errors
    /// As [`AddressTable::insert`]; `FI_EINVAL` for an address of another format; and the errors of `admit`, after
    /// which the address is not in the table.
    pub fn insert_address(
        &mut self,
        address: &Address,
        admit: impl FnOnce(PeerEntry, &[u8]) -> Result<()>,
    ) -> Result<FiAddr> {
        if address.format() != self.format && address.relabelled(self.format).is_none() {
            return Err(Error::wanted(
                Errno::EINVAL,
                "address to insert",
                format!("one in the domain's format, {}", self.format),
                format!("{} ({})", address, address.format()),
                "ask the peer for its address in that format, or set addr_format in the hints",
            ));
        }
        self.admit(address.bytes(), admit)
    }

    fn admit(
        &mut self,
        address: &[u8],
        admit: impl FnOnce(PeerEntry, &[u8]) -> Result<()>,
    ) -> Result<FiAddr> {
        let address = destination(self.format, address)?;
        let key = Key::of(self.format, address);
        let hash = self.secret.hash(key);
        if let Some(at) = self.find_key(hash, key) {
            self.store.retain(at)?;
            return Ok(FiAddr(at.into()));
        }
        if self.index.len() == self.index.capacity() {
            self.grow();
        }
        let at = self.store.occupy(address)?;
        self.index.insert_unique(hash, at, |&at| self.secret.hash(stored_key(self.format, &self.store, at)));
        let peer = PeerEntry { index: at, generation: self.store.generation(at).unwrap_or_default() };
        match admit(peer, address) {
            Ok(()) => Ok(peer.address()),
            Err(refused) => {
                self.remove(peer.address())?;
                Err(refused)
            }
        }
    }

    /// Makes room in the reverse index: doubles it if it is full, and rebuilds it at the same size if removals have
    /// worn it out. Walks the slots in order: the index's own way to grow would read them in the order of their hashes,
    /// which costs a cache miss for each. The old index is freed first, so that the two never exist together.
    #[cold]
    fn grow(&mut self) {
        let room = (self.index.len() + self.index.len() / 2).max(8);
        self.index = HashTable::new();
        self.index = HashTable::with_capacity(room);
        let Self { format, store, index, secret, .. } = self;
        let hash_of = |at: u32| secret.hash(stored_key(*format, store, at));
        for at in (0..store.end()).filter(|&at| store.is_live(at)) {
            index.insert_unique(hash_of(at), at, |&at| hash_of(at));
        }
    }

    /// Reverts one insertion of an address.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no address under this index.
    pub fn remove(&mut self, address: FiAddr) -> Result<Removed> {
        let peer = self.peer(address)?;
        let key = stored_key(self.format, &self.store, peer.index);
        let hash = self.secret.hash(key);
        if self.store.release(peer.index) > 0 {
            return Ok(Removed::Kept);
        }
        if let Ok(entry) = self.index.find_entry(hash, |&at| at == peer.index) {
            entry.remove();
        }
        if let Some(id) = self.ids.get_mut(peer.index()) {
            *id = FiAddr::NOTAVAIL;
        }
        self.removals.fetch_add(1, Ordering::Release);
        Ok(Removed::Gone(peer))
    }

    /// The address under an index, as it was inserted first.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none.
    #[inline]
    pub fn get(&self, address: FiAddr) -> Result<&[u8]> {
        u32::try_from(address.0)
            .ok()
            .and_then(|index| self.store.address(index))
            .ok_or_else(|| self.no_such_peer(address))
    }

    /// The address under an index, as an owned value.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none.
    pub fn address(&self, address: FiAddr) -> Result<Address> {
        Ok(Address::new(self.format, self.get(address)?))
    }

    /// Copies the address under an index into `buffer`, as much as fits, and returns its full length (`fi_av_lookup`).
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none.
    pub fn lookup(&self, address: FiAddr, buffer: &mut [u8]) -> Result<usize> {
        let bytes = self.get(address)?;
        let fits = bytes.len().min(buffer.len());
        buffer[..fits].copy_from_slice(&bytes[..fits]);
        Ok(bytes.len())
    }

    /// The index of an address, however it is spelled: `10.1.1.1` is found as `::ffff:10.1.1.1`.
    pub fn find(&self, address: &[u8]) -> Option<FiAddr> {
        self.find_index(Key::of(self.format, address))
    }

    /// As [`AddressTable::find`], for an address that includes its format.
    pub fn find_address(&self, address: &Address) -> Option<FiAddr> {
        match Key::of(address.format(), address.bytes()) {
            Key::Opaque(_) if address.format() != self.format => None,
            key => self.find_index(key),
        }
    }

    /// Identifies the current insertion of an address, which changes when it is removed and inserted again.
    pub fn insertion(&self, address: &[u8]) -> Option<u64> {
        let peer = self.peer(self.find(address)?).ok()?;
        Some(u64::from(peer.generation) << 32 | u64::from(peer.index))
    }

    fn find_index(&self, key: Key<'_>) -> Option<FiAddr> {
        self.find_key(self.secret.hash(key), key).map(|at| FiAddr(at.into()))
    }

    #[inline]
    fn find_key(&self, hash: u64, key: Key<'_>) -> Option<u32> {
        self.index.find(hash, |&at| stored_key(self.format, &self.store, at) == key).copied()
    }

    /// The peer that is under an index now.
    ///
    /// # Errors
    /// `FI_EINVAL` if there is none.
    #[inline]
    pub fn peer(&self, address: FiAddr) -> Result<PeerEntry> {
        let index = u32::try_from(address.0).ok();
        let peer =
            index.and_then(|index| Some(PeerEntry { index, generation: self.store.generation(index)? }));
        peer.ok_or_else(|| self.no_such_peer(address))
    }

    /// Whether `peer` is still there.
    #[inline]
    pub fn is_current(&self, peer: PeerEntry) -> bool {
        self.store.generation(peer.index) == Some(peer.generation)
    }

    /// The number of addresses removed so far. It changes whenever an index becomes invalid.
    pub fn generation(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    /// The same number, for caches that read it without the table's lock.
    pub fn removals(&self) -> Removals {
        Removals(Arc::clone(&self.removals))
    }

    /// The indices and addresses, in ascending order of the index.
    pub fn iter(&self) -> impl Iterator<Item = (FiAddr, &[u8])> {
        (0..self.store.end()).filter_map(|at| Some((FiAddr(at.into()), self.store.address(at)?)))
    }

    /// An address of this table's format as text (`fi_av_straddr`). It need not be in the table.
    pub fn text(&self, address: &[u8]) -> String {
        Address::new(self.format, address).to_string()
    }

    /// Sets the number by which completions report a peer (`fi_av_set_user_id`).
    ///
    /// # Errors
    /// `FI_EINVAL` if there is no address under this index, or if the table was not opened for user ids.
    pub fn set_user_id(&mut self, address: FiAddr, id: FiAddr) -> Result<()> {
        if self.user_ids != UserIds::Always {
            return Err(no_user_ids());
        }
        let peer = self.peer(address)?;
        self.put_id(peer, id);
        Ok(())
    }

    /// As [`AddressTable::set_user_id`], for an id that came with the insertion of the address that is there. The last
    /// insertion decides.
    pub fn name_peer(&mut self, address: FiAddr, id: FiAddr) {
        if let Ok(peer) = self.peer(address) {
            self.put_id(peer, id);
        }
    }

    /// Gives a peer the user id that came with its insertion. The last insertion decides.
    pub(super) fn put_id(&mut self, peer: PeerEntry, id: FiAddr) {
        if self.ids.len() <= peer.index() {
            self.ids.resize(peer.index() + 1, FiAddr::NOTAVAIL);
        }
        self.ids[peer.index()] = id;
    }

    /// The number by which completions report the peer under `index`: its user id if it has one, else the
    /// index, or [`FiAddr::NOTAVAIL`] where user ids are the rule.
    #[inline]
    pub fn reported(&self, index: FiAddr) -> FiAddr {
        let id = usize::try_from(index.0).ok().and_then(|at| self.ids.get(at).copied());
        match (id, self.user_ids) {
            (Some(id), _) if id != FiAddr::NOTAVAIL => id,
            (_, UserIds::PerInsert) => index,
            (_, UserIds::Always) => FiAddr::NOTAVAIL,
        }
    }

    /// The source of the number by which completions report a peer.
    pub fn user_ids(&self) -> UserIds {
        self.user_ids
    }

    #[cold]
    fn no_such_peer(&self, address: FiAddr) -> Error {
        Error::wanted(
            Errno::EINVAL,
            "peer address",
            format!("the index of one of the {} addresses in the vector", self.len()),
            format!("{address:?}"),
            "insert the peer first, and drop indices whose address was removed",
        )
    }
}

/// The refusal of a user id for an address that is there.
#[cold]
pub fn no_user_ids() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "fi_av_set_user_id",
        "an address vector with user ids",
        "one without",
        "open it with FI_AV_USER_ID, or give the ids when inserting",
    )
}

/// The key of a live slot.
#[inline]
fn stored_key(format: AddrFormat, store: &Store, at: u32) -> Key<'_> {
    Key::of(format, store.address(at).unwrap_or_default())
}
