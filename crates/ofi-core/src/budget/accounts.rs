//! What each peer holds, found by what proves who it is.
//!
//! Several things of a peer refer to one account: its sessions, its numbers in an address vector, what it holds. Each
//! of them [joins](Accounts::join) it and [leaves](Accounts::leave) it. So a peer that goes and comes again, under one
//! name or under many, finds what it still holds, and the account of one that holds nothing and is gone is forgotten.
//!
//! Invariant: an account exists while something has joined it and not left.

use std::collections::HashMap;
use std::hash::Hash;

/// Names an account, for those who have joined it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AccountId(u32);

struct Account<K, A> {
    /// Those who have joined it.
    members: u32,
    key: K,
    content: A,
}

/// The accounts of one budget, or of several whose keys name them.
pub struct Accounts<K, A> {
    table: Vec<Account<K, A>>,
    free: Vec<u32>,
    found: HashMap<K, u32>,
}

impl<K, A> Default for Accounts<K, A> {
    fn default() -> Self {
        Self { table: Vec::new(), free: Vec::new(), found: HashMap::new() }
    }
}

impl<K: Clone + Eq + Hash, A: Default> Accounts<K, A> {
    /// Opens the account of a key, or joins it.
    pub fn join(&mut self, key: K) -> AccountId {
        let index = match self.found.get(&key) {
            Some(&index) => index,
            None => self.open(key),
        };
        self.table[index as usize].members += 1;
        AccountId(index)
    }

    fn open(&mut self, key: K) -> u32 {
        let account = Account { members: 0, key: key.clone(), content: A::default() };
        let index = match self.free.pop() {
            Some(index) => {
                self.table[index as usize] = account;
                index
            }
            None => {
                self.table.push(account);
                self.table.len() as u32 - 1
            }
        };
        self.found.insert(key, index);
        index
    }

    /// Joins an account once more.
    #[inline]
    pub fn join_again(&mut self, id: AccountId) {
        self.table[id.0 as usize].members += 1;
    }

    /// Leaves an account. Returns its content if nobody is left, with which it closes.
    #[inline]
    pub fn leave(&mut self, id: AccountId) -> Option<A> {
        let account = &mut self.table[id.0 as usize];
        account.members -= 1;
        if account.members > 0 {
            return None;
        }
        let content = std::mem::take(&mut account.content);
        self.found.remove(&account.key);
        self.free.push(id.0);
        Some(content)
    }

    /// The key of an account.
    pub fn key(&self, id: AccountId) -> &K {
        &self.table[id.0 as usize].key
    }

    /// What an account holds.
    #[inline]
    pub fn get(&self, id: AccountId) -> &A {
        &self.table[id.0 as usize].content
    }

    /// What an account holds.
    #[inline]
    pub fn get_mut(&mut self, id: AccountId) -> &mut A {
        &mut self.table[id.0 as usize].content
    }

    /// The number of accounts.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_there_until_all_have_left() {
        let mut accounts = Accounts::<&str, u32>::default();
        let [one, again, other] = ["one", "one", "other"].map(|key| accounts.join(key));
        assert!(one == again && one != other);
        *accounts.get_mut(one) = 5;
        accounts.join_again(one);
        assert_eq!((accounts.leave(one), accounts.leave(one)), (None, None));
        assert_eq!((*accounts.get(one), accounts.len()), (5, 2));
        assert_eq!(accounts.leave(one), Some(5));
        // Its place is used again, without what it held.
        let third = accounts.join("third");
        assert!(third == one && *accounts.get(third) == 0 && *accounts.key(third) == "third");
        assert_eq!((accounts.leave(third), accounts.leave(other)), (Some(0), Some(0)));
        assert!(accounts.is_empty());
        let found = accounts.join("one");
        assert_eq!(*accounts.get(found), 0);
    }
}
