//! Address vectors: peers' addresses, and the small numbers that operations name them by.

use std::sync::Arc;

use crate::{Address, AvSet, AvSetAttr, AvType, FiAddr, Inserted, Result};

/// How to open an address vector (`struct fi_av_attr`).
#[derive(Clone, Debug, Default)]
pub struct AvAttr {
    /// Table or map; both answer indices.
    pub av_type: AvType,
    /// How many addresses to expect; 0 for unknown.
    pub count: usize,
    /// How many of a number's upper bits name one of the peer's receive contexts ([`FiAddr::with_rx_index`]); 0 for none:
    /// then peers choose among theirs. At most 32.
    pub rx_ctx_bits: u32,
}

/// An address vector (`fid_av`).
pub trait AddressVector: Send + Sync + std::any::Any {
    /// Inserts each address. An address that is there already answers the same number once more, and must be removed
    /// as often as it was inserted.
    fn insert(&self, addresses: &[Address]) -> Vec<Inserted>;

    /// Inserts the address of `node` and `service` (`fi_av_insertsvc`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a name that does not resolve.
    fn insert_service(&self, node: &str, service: &str) -> Inserted;

    /// Inserts `node_count` × `service_count` addresses, counting the last number of each name up
    /// (`fi_av_insertsym`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a name that cannot be counted up.
    fn insert_range(
        &self,
        node: &str,
        node_count: usize,
        service: &str,
        service_count: usize,
    ) -> Result<Vec<Inserted>>;

    /// Removes one insertion of each of `addresses`.
    ///
    /// # Errors
    /// `FI_EINVAL` if one is not there; the others are removed.
    fn remove(&self, addresses: &[FiAddr]) -> Result<()>;

    /// Makes a set of this vector's numbers (`fi_av_set`).
    ///
    /// # Errors
    /// `FI_EINVAL` for attributes that make no sense.
    fn set(self: Arc<Self>, attr: &AvSetAttr) -> Result<Arc<dyn AvSet>>;

    /// The address of a number.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not there.
    fn lookup(&self, address: FiAddr) -> Result<Address>;

    /// The number of an address, where it was inserted.
    fn reverse_lookup(&self, address: &Address) -> Option<FiAddr>;

    /// How many distinct addresses there are.
    fn count(&self) -> usize;
}
