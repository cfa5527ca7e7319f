//! The operations of an endpoint that are under way to each peer, and the share of each ([`ofi_core::places`]).
//!
//! A peer is an address: only the endpoint there decides whether an operation ends. So the account outlives the
//! address's number in the address vector. An initiator that leaves operations under way, parts and greets again has
//! the share that is left of it, and so has a target to which an initiator connects again.
//!
//! Invariant: an account is kept while its address is inserted, or while an operation is under way to it.

use std::collections::HashMap;
use std::sync::Arc;

use ofi::FiAddr;
use ofi_core::places::Places;
use ofi_core::slots::{SlotId, Slots};

/// The operations to one address.
struct Account {
    address: Arc<[u8]>,
    operations: u32,
    /// The address has a number.
    is_inserted: bool,
}

/// The accounts of an endpoint.
pub(super) struct Accounts {
    places: Places,
    table: Slots<Account>,
    /// By number in the address vector.
    numbers: HashMap<FiAddr, SlotId>,
    addresses: HashMap<Arc<[u8]>, SlotId>,
}

impl Accounts {
    /// Accounts of an endpoint that takes `size` operations at a time.
    pub fn new(size: usize) -> Self {
        let places = Places::new(u32::try_from(size).unwrap_or(u32::MAX));
        Self { places, table: Slots::default(), numbers: HashMap::new(), addresses: HashMap::new() }
    }

    /// An address has this number, possibly since an earlier insertion.
    pub fn insert(&mut self, number: FiAddr, address: &[u8]) {
        let Self { table, numbers, addresses, .. } = self;
        numbers.entry(number).or_insert_with(|| {
            let id = addresses.get(address).copied().unwrap_or_else(|| {
                let address: Arc<[u8]> = address.into();
                let fresh = Account { address: Arc::clone(&address), operations: 0, is_inserted: true };
                let id = table.insert(fresh);
                addresses.insert(address, id);
                id
            });
            if let Some(account) = table.get_mut(id) {
                account.is_inserted = true;
            }
            id
        });
    }

    /// A number names no address any more.
    pub fn remove(&mut self, number: FiAddr) {
        let Some(id) = self.numbers.remove(&number) else { return };
        if let Some(account) = self.table.get_mut(id) {
            account.is_inserted = false;
        }
        self.close_if_unused(id);
    }

    /// Whether the endpoint has no place for another operation, whatever its peer.
    pub fn are_full(&self) -> bool {
        self.places.is_full()
    }

    /// Whether another operation may be under way to a peer.
    pub fn has_place(&self, number: FiAddr) -> bool {
        let account = self.numbers.get(&number).and_then(|&id| self.table.get(id));
        self.places.has_place(account.map_or(0, |account| account.operations))
    }

    /// Records that an operation has begun. Returns the account that it is in.
    pub fn begin(&mut self, number: FiAddr) -> Option<SlotId> {
        self.places.take(1);
        let id = *self.numbers.get(&number)?;
        self.table.get_mut(id)?.operations += 1;
        Some(id)
    }

    /// Records that an operation has ended.
    pub fn end(&mut self, id: Option<SlotId>) {
        self.places.give_back(1);
        let Some(id) = id else { return };
        if let Some(account) = self.table.get_mut(id) {
            account.operations -= 1;
        }
        self.close_if_unused(id);
    }

    fn close_if_unused(&mut self, id: SlotId) {
        if self.table.get(id).is_some_and(|account| !account.is_inserted && account.operations == 0)
            && let Some(account) = self.table.remove(id)
        {
            self.addresses.remove(&account.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all places that a peer may have. Returns their accounts.
    fn fill(accounts: &mut Accounts, number: FiAddr) -> Vec<Option<SlotId>> {
        let mut taken = Vec::new();
        while accounts.has_place(number) {
            taken.push(accounts.begin(number));
        }
        taken
    }

    #[test]
    fn an_address_that_is_inserted_again_has_the_share_that_is_left_of_it() {
        let mut accounts = Accounts::new(1024);
        let mut taken = Vec::new();
        for number in (0..100).map(FiAddr) {
            accounts.insert(number, b"hostile");
            taken.extend(fill(&mut accounts, number));
            accounts.remove(number);
        }
        assert_eq!(taken.len(), 341, "a third of the endpoint");
        // The number names another address now.
        accounts.insert(FiAddr(0), b"honest");
        assert!(accounts.has_place(FiAddr(0)));
        taken.into_iter().for_each(|id| accounts.end(id));
        assert_eq!(accounts.addresses.len(), 1, "the account without operations is closed");
        accounts.insert(FiAddr(1), b"hostile");
        assert_eq!(fill(&mut accounts, FiAddr(1)).len(), 341);
    }

    #[test]
    fn the_insertions_of_an_address_have_one_account() {
        let mut accounts = Accounts::new(9);
        accounts.insert(FiAddr(4), b"peer");
        accounts.insert(FiAddr(4), b"peer");
        let taken = fill(&mut accounts, FiAddr(4));
        assert_eq!((taken.len(), accounts.table.len()), (3, 1));
        accounts.remove(FiAddr(4));
        taken.into_iter().for_each(|id| accounts.end(id));
        assert!(accounts.table.is_empty() && !accounts.are_full());
    }
}
