//! The storage of an address vector: peers' addresses, and the small numbers that operations name them by.
//!
//! [`AddressTable`] turns addresses into indices (`fi_addr_t`) and back, counts how often each was inserted,
//! and tells caches when an index has come to mean another peer. [`names`] makes the node and service names
//! of the insertions that count (`fi_av_insertsym`). Resolving a name is the transport's job, and so is its
//! own state of each peer, which lives in the transport's tables under the same index.
//!
//! The table is plain data without a lock: reads take `&self`, so the address vector that owns it can let
//! them run beside each other.

mod batch;
mod hash;
mod key;
pub mod names;
mod store;
mod table;

pub use batch::Answers;
pub use key::AddressKey;
pub use table::{AddressTable, PeerEntry, Removals, Removed, UserIds, no_user_ids};

#[cfg(test)]
mod tests;
