//! The operations of an endpoint that are under way to each peer, and the share of each ([`ofi_core::budget`]).
//!
//! A peer is an address: only the endpoint there decides whether an operation ends. So the account outlives the
//! address's number in the address vector. An initiator that leaves operations under way, parts and greets again has
//! the share that is left of it, and so has a target to which an initiator connects again.
//!
//! Greetings, the answers to them, and farewells prove nothing about who reads at an address. All of them together have
//! a quarter of the endpoint, which their addresses share by the same rule: however many peers read nothing, the rest
//! is left to those that are connected.
//!
//! Invariant: an account is joined by each number of its address, and by each operation under way to it.

use std::collections::HashMap;
use std::sync::Arc;

use ofi::FiAddr;
use ofi_core::budget::{AccountId, Accounts, Places};

/// The operations to one address.
#[derive(Default)]
struct Own {
    operations: usize,
    /// Those of [`MessageKind::Greeting`] among them.
    greetings: usize,
}

/// What an operation is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageKind {
    /// A connection with a peer that has proven its address.
    Connected,
    /// A greeting, the answer to one, or a farewell.
    Greeting,
}

/// An operation that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    account: Option<AccountId>,
    kind: MessageKind,
}

/// The accounts of an endpoint.
pub(super) struct LinkAccounts {
    places: Places,
    greetings: Places,
    table: Accounts<Arc<[u8]>, Own>,
    /// By number in the address vector.
    numbers: HashMap<FiAddr, AccountId>,
}

impl LinkAccounts {
    /// Accounts of an endpoint that takes `size` operations at a time.
    pub fn new(size: usize) -> Self {
        let (places, greetings) = (Places::new(size.max(1)), Places::new(size.div_ceil(4).max(1)));
        Self { places, greetings, table: Accounts::default(), numbers: HashMap::new() }
    }

    /// An address has this number, possibly since an earlier insertion.
    pub fn insert(&mut self, number: FiAddr, address: &[u8]) {
        let Self { table, numbers, .. } = self;
        numbers.entry(number).or_insert_with(|| table.join(address.into()));
    }

    /// A number names no address any more.
    pub fn remove(&mut self, number: FiAddr) {
        if let Some(account) = self.numbers.remove(&number) {
            self.table.leave(account);
        }
    }

    /// Operations under way to a peer.
    pub fn operations(&self, number: FiAddr) -> usize {
        self.numbers.get(&number).map_or(0, |&id| self.table.get(id).operations)
    }

    /// Whether the endpoint has no place for another operation, whatever its peer.
    pub fn are_full(&self) -> bool {
        self.places.is_full()
    }

    /// Whether another operation of a kind may be under way to a peer.
    pub fn has_place(&self, number: FiAddr, kind: MessageKind) -> bool {
        self.places.has_place(self.operations(number))
            && (kind == MessageKind::Connected || self.may_greet(number))
    }

    /// Whether another greeting to a peer may be under way, or wait for a place of the endpoint.
    pub fn may_greet(&self, number: FiAddr) -> bool {
        self.greetings.has_place(self.numbers.get(&number).map_or(0, |&id| self.table.get(id).greetings))
    }

    /// Whether greetings have no place, whatever their peer.
    pub fn are_full_of_greetings(&self) -> bool {
        self.greetings.is_full()
    }

    /// Whether there is room for a refusal or a farewell: they leave half of their quarter to those who greet as they
    /// should.
    pub fn take_refusals(&self) -> bool {
        2 * self.greetings.used() < self.greetings.size()
    }

    /// Records that an operation has begun.
    pub fn begin(&mut self, number: FiAddr, kind: MessageKind) -> Begun {
        self.places.take(1);
        let greetings = usize::from(kind == MessageKind::Greeting);
        self.greetings.take(greetings);
        let account = self.numbers.get(&number).copied();
        if let Some(id) = account {
            self.table.join_again(id);
            let own = self.table.get_mut(id);
            own.operations += 1;
            own.greetings += greetings;
        }
        Begun { account, kind }
    }

    /// Records that an operation has ended.
    pub fn end(&mut self, Begun { account, kind }: Begun) {
        self.places.give_back(1);
        let greetings = usize::from(kind == MessageKind::Greeting);
        self.greetings.give_back(greetings);
        if let Some(id) = account {
            let own = self.table.get_mut(id);
            own.operations -= 1;
            own.greetings -= greetings;
            self.table.leave(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all places of a kind that a peer may have.
    fn fill(accounts: &mut LinkAccounts, number: FiAddr, kind: MessageKind) -> Vec<Begun> {
        let mut taken = Vec::new();
        while accounts.has_place(number, kind) {
            taken.push(accounts.begin(number, kind));
        }
        taken
    }

    #[test]
    fn an_address_that_is_inserted_again_has_the_share_that_is_left_of_it() {
        let mut accounts = LinkAccounts::new(1024);
        let mut taken = Vec::new();
        for number in (0..100).map(FiAddr) {
            accounts.insert(number, b"hostile");
            taken.extend(fill(&mut accounts, number, MessageKind::Connected));
            accounts.remove(number);
        }
        assert_eq!(taken.len(), 341, "a third of the endpoint");
        // The number names another address now.
        accounts.insert(FiAddr(0), b"honest");
        assert!(accounts.has_place(FiAddr(0), MessageKind::Connected));
        taken.into_iter().for_each(|begun| accounts.end(begun));
        assert_eq!(accounts.table.len(), 1, "the account without operations is closed");
        accounts.insert(FiAddr(1), b"hostile");
        assert_eq!(fill(&mut accounts, FiAddr(1), MessageKind::Connected).len(), 341);
    }

    #[test]
    fn the_insertions_of_an_address_have_one_account() {
        let mut accounts = LinkAccounts::new(9);
        accounts.insert(FiAddr(4), b"peer");
        accounts.insert(FiAddr(4), b"peer");
        let taken = fill(&mut accounts, FiAddr(4), MessageKind::Connected);
        assert_eq!((taken.len(), accounts.table.len()), (3, 1));
        accounts.remove(FiAddr(4));
        taken.into_iter().for_each(|begun| accounts.end(begun));
        assert!(accounts.table.is_empty() && !accounts.are_full());
    }

    /// Any number of addresses at which nobody reads took the whole endpoint.
    #[test]
    fn greetings_have_a_quarter_together_however_many_addresses_are_silent() {
        let mut accounts = LinkAccounts::new(1024);
        let mut taken = Vec::new();
        for number in (0..2000).map(FiAddr) {
            accounts.insert(number, &(number.0 as u32).to_le_bytes());
            assert_eq!(accounts.has_place(number, MessageKind::Greeting), !accounts.are_full_of_greetings());
            taken.extend((0..4).filter_map(|_| {
                let has_place = accounts.has_place(number, MessageKind::Greeting);
                has_place.then(|| accounts.begin(number, MessageKind::Greeting))
            }));
        }
        assert_eq!(taken.len(), 256);
        assert!(!accounts.take_refusals() && !accounts.are_full());
        accounts.insert(FiAddr(5000), b"honest");
        assert!(!accounts.has_place(FiAddr(5000), MessageKind::Greeting));
        let connected = fill(&mut accounts, FiAddr(5000), MessageKind::Connected);
        assert_eq!(connected.len(), 256, "a third of the rest");
        taken.into_iter().chain(connected).for_each(|begun| accounts.end(begun));
        assert!(accounts.take_refusals() && accounts.has_place(FiAddr(5000), MessageKind::Greeting));
    }
}
