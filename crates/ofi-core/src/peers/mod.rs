//! The storage of an address vector: the addresses of peers, and the indices by which operations name them.
//!
//! [`AddressTable`] maps addresses to indices (`fi_addr_t`) and back, counts how often each address was inserted, and
//! tells caches when an index is assigned to another peer. [`names`] makes the consecutive node and service names of
//! `fi_av_insertsym`. The transport resolves names, and keeps its own state of each peer under the same index.
//!
//! The table is plain data without a lock: reads take `&self`, so the address vector that owns it can run them
//! concurrently.

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
