//! Registered memory: keys, descriptors and access rights.
//!
//! A [`RegionTable`] belongs to a domain. A peer's access names a key, an address, a length and a right.
//! [`RegionTable::check`] returns the local memory and a [`Grant`] that keeps the region open while the access runs, or
//! the [`Violation`]. A local operation names a descriptor instead: [`RegionTable::check_local`]. Nothing here reads or
//! writes the memory: `copy` does, through a grant, relying on the promise made with [`ofi_api::MrAttr::new`].
//!
//! Invariants:
//! I1. An access is granted only if its key is registered for peers, the region is enabled, every requested right was
//!     given, and every byte is inside, whatever the numbers are (they come from the network).
//! I2. After [`RegionTable::close`] has returned, nothing is granted on the region, and its data is returned only when
//!     the last grant is gone.
//! I3. A descriptor is never reused in a process, so a stale one, or one of another domain, is always invalid. A key
//!     may be registered again after its region was closed.
//! I4. A key that the library chooses cannot be guessed: 64 random bits. A key that the application chooses is as
//!     secret as the application keeps it.

mod access;
mod closing;
mod region;
mod register;
mod secret;
mod shards;
mod table;
mod violation;

pub use closing::Closing;
pub use region::{Accessor, Addressing, Grant, Pieces, Region};
pub use register::{KeyChoice, Registration};
pub use table::RegionTable;
pub use violation::{Violation, ViolationCounts};

#[cfg(test)]
mod tests;
