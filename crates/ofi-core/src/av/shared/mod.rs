//! Address vectors that processes of one host and user share (`fi_av_attr.name`).
//!
//! The memory contains only addresses ([`memory`]); [`meeting`] lets processes find it. Each process keeps its own
//! index from addresses to numbers, and updates it when a count in the memory has moved. Processes that share the
//! vector may be hostile or die at any moment: every read is checked, and every wait has a limit. The worst that they
//! can do is to remove addresses or store wrong ones, which they are allowed to do anyway.

mod meeting;
mod memory;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ofi_api::{AddrFormat, Errno, Error, FiAddr, Result};

use self::meeting::{Lock, Meeting};
use self::memory::{MAX_ADDRESS_LEN, MAX_NAME_LEN, VectorMemory};
use super::AvCounts;
use crate::peers::AddressKey;

/// This process's copy of one slot.
#[derive(Default)]
struct Known {
    state: u32,
    key: Option<AddressKey>,
}

/// This process's index.
#[derive(Default)]
struct Index {
    numbers: HashMap<AddressKey, u32>,
    slots: Vec<Known>,
    /// Slots before this one are occupied.
    vacant: usize,
    removals: u32,
    insertions: u32,
    live: usize,
}

/// A shared vector.
pub struct SharedTable {
    memory: VectorMemory,
    meeting: Meeting,
    format: AddrFormat,
    read_only: bool,
    index: Mutex<Index>,
}

impl SharedTable {
    /// Opens or creates the vector `name` of `domain` of `provider`.
    ///
    /// # Errors
    /// `FI_EINVAL` for an empty or too long name, and for another address format; `FI_ENOENT` for read-only access to a
    /// missing vector; `FI_EACCES` if another user has the name; `FI_ETIMEDOUT` if no process that has it open answers;
    /// `FI_ENOMEM` if too many addresses are expected.
    pub fn open(
        (provider, domain, name): (&str, &str, &str),
        format: AddrFormat,
        expected: usize,
        read_only: bool,
    ) -> Result<Self> {
        let whole = format!("{provider}\0{domain}\0{name}");
        if name.is_empty() || whole.len() > MAX_NAME_LEN {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_attr.name",
                format!("1 to {} bytes", MAX_NAME_LEN - (whole.len() - name.len()).min(MAX_NAME_LEN)),
                format!("{} bytes", name.len()),
                "choose another name",
            ));
        }
        let (memory, meeting) = meeting::open(&whole, format, expected, read_only)?;
        Ok(Self { memory, meeting, format, read_only, index: Mutex::default() })
    }

    /// The two counts.
    pub fn counts(&self) -> &AvCounts {
        self.memory.counts()
    }

    /// The array that [`ofi_api::AddressVector::map_addr`] returns.
    pub fn numbers_memory(&self) -> NonNull<u64> {
        self.memory.numbers()
    }

    /// The address of a number, if it is a valid destination.
    pub fn address(&self, number: FiAddr) -> Option<Vec<u8>> {
        let (_, address) = self.memory.read(u32::try_from(number.0).ok()?)?;
        AddressKey::of(self.format, &address).ok()?;
        Some(address)
    }

    /// This process's index, updated.
    fn index(&self) -> MutexGuard<'_, Index> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if self.memory.is_busy() {
            // If its process died, its change is finished here. Otherwise the change is seen at the next update.
            if !self.read_only
                && let Some(_lock) = self.meeting.try_lock()
            {
                self.memory.begin();
                self.memory.end();
            } else {
                index.forget();
            }
        }
        index.update(&self.memory, self.format);
        index
    }

    /// The number of an address.
    pub fn find(&self, address: &[u8]) -> Option<FiAddr> {
        let key = AddressKey::of(self.format, address).ok()?;
        self.index().numbers.get(&key).map(|&at| FiAddr(at.into()))
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> Vec<FiAddr> {
        let index = self.index();
        let live = index.slots.iter().enumerate().filter(|(_, known)| known.key.is_some());
        live.map(|(at, _)| FiAddr(at as u64)).collect()
    }

    /// The number of addresses.
    pub fn len(&self) -> usize {
        self.index().live
    }

    /// Takes the lock, to change the vector.
    ///
    /// # Errors
    /// `FI_EACCES` if it was opened read-only; `FI_ETIMEDOUT` if another process keeps the lock.
    pub fn turn(&self) -> Result<Turn<'_>> {
        if self.read_only {
            return Err(Error::wanted(
                Errno::EACCES,
                "changing a shared address vector",
                "one opened without FI_READ",
                "one opened with it",
                "leave the change to a process that opened it without",
            ));
        }
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let lock = self.meeting.lock()?;
        self.memory.begin();
        index.update(&self.memory, self.format);
        Ok(Turn { table: self, index, _lock: lock })
    }
}

/// A locked shared vector, until it is dropped.
pub struct Turn<'a> {
    table: &'a SharedTable,
    index: MutexGuard<'a, Index>,
    _lock: Lock,
}

impl Turn<'_> {
    /// As [`crate::peers::AddressTable::insert`].
    ///
    /// # Errors
    /// As [`crate::peers::AddressTable::insert`]; `FI_EINVAL` for an address of more than 112 bytes; `FI_ENOMEM` if the
    /// vector is full.
    pub fn insert(&mut self, address: &[u8]) -> Result<FiAddr> {
        let Self { table, index, .. } = self;
        let key = AddressKey::of(table.format, address)?;
        if let Some(&at) = index.numbers.get(&key) {
            table.memory.retain(at)?;
            return Ok(FiAddr(at.into()));
        }
        if address.len() > MAX_ADDRESS_LEN {
            return Err(Error::wanted(
                Errno::EINVAL,
                "an address of a shared vector",
                format!("at most {MAX_ADDRESS_LEN} bytes"),
                format!("{} bytes", address.len()),
                "use a vector without name",
            ));
        }
        let vacant = index.slots[index.vacant..].iter().position(|known| known.state & 1 == 0);
        let at = vacant.map_or(index.slots.len(), |after| index.vacant + after);
        if at >= table.memory.capacity() as usize {
            return Err(Error::with(
                Errno::ENOMEM,
                format!("the shared address vector has room for {at} addresses (fi_av_attr.count)"),
            ));
        }
        table.memory.occupy(at as u32, address);
        index.update(&table.memory, table.format);
        Ok(FiAddr(at as u64))
    }

    /// Reverts one insertion of an address. Returns whether this removed the address.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not there.
    pub fn remove(&mut self, number: FiAddr) -> Result<bool> {
        let known = usize::try_from(number.0).ok().and_then(|at| self.index.slots.get(at));
        if known.is_none_or(|known| known.key.is_none()) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "peer address",
                format!("the index of one of the {} addresses in the vector", self.index.live),
                format!("{number:?}"),
                "insert the peer first, and drop indices whose address was removed",
            ));
        }
        let gone = self.table.memory.release(number.0 as u32);
        self.index.update(&self.table.memory, self.table.format);
        Ok(gone)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.table.memory.end();
    }
}

impl Index {
    /// Makes the next update check all slots.
    fn forget(&mut self) {
        self.removals = self.removals.wrapping_sub(1);
    }

    /// Updates the index from the memory.
    fn update(&mut self, memory: &VectorMemory, format: AddrFormat) {
        let (removals, insertions) = (memory.counts().removals(), memory.counts().insertions());
        if (removals, insertions) == (self.removals, self.insertions) {
            return;
        }
        // Insertions use vacant slots, or the end.
        let first = if removals == self.removals { self.vacant.min(self.slots.len()) } else { 0 };
        (self.removals, self.insertions) = (removals, insertions);
        let used = memory.used();
        self.slots.resize_with(self.slots.len().max(used as usize), Known::default);
        // Removals first, then insertions: an address may have moved to a lower number.
        let changed: Vec<u32> =
            (first as u32..used).filter(|&at| memory.state(at) != self.slots[at as usize].state).collect();
        for &at in &changed {
            self.drop_key(at);
        }
        for &at in &changed {
            let state = memory.state(at);
            self.learn(at, memory.read(at), state, format);
        }
        let vacant = self.slots[first..].iter().position(|known| known.state & 1 == 0);
        self.vacant = vacant.map_or(self.slots.len(), |after| first + after);
    }

    fn drop_key(&mut self, at: u32) {
        if let Some(key) = self.slots[at as usize].key.take() {
            self.live -= 1;
            if self.numbers.get(&key) == Some(&at) {
                self.numbers.remove(&key);
            }
        }
    }

    fn learn(&mut self, at: u32, found: Option<(u32, Vec<u8>)>, state: u32, format: AddrFormat) {
        // A slot with an unreadable address is checked again when it changes.
        self.slots[at as usize].state = found.as_ref().map_or(state, |(state, _)| *state);
        // An address of another format counts as missing.
        let key = found.and_then(|(_, address)| AddressKey::of(format, &address).ok());
        if let Some(key) = key {
            self.slots[at as usize].key = Some(key.clone());
            self.live += 1;
            self.numbers.entry(key).or_insert(at);
        }
    }
}
