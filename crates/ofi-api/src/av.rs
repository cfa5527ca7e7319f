//! Address vectors: peers' addresses, and the small numbers that operations name them by.

use std::sync::Arc;

use crate::{Address, AvSet, AvSetAttr, AvType, Context, EventQueue, FiAddr, Fid, Result};

/// The result of [`AddressVector::insert`] for one address.
pub type Inserted = Result<FiAddr>;

/// How to open an address vector (`struct fi_av_attr`).
#[derive(Clone, Debug, Default)]
pub struct AvAttr {
    /// Table or map; both use indices.
    pub av_type: AvType,
    /// The number of addresses to expect; 0 for unknown.
    pub count: usize,
    /// The number of upper bits of an address that name one of the peer's receive contexts ([`FiAddr::with_rx_index`]);
    /// 0 for none: then the peer chooses among its contexts. At most 32.
    pub rx_ctx_bits: u32,
    /// The name under which processes of this host and user share the vector, in the domain of this name. An address
    /// has the same index in each of them. The vector exists as long as any of them has it open.
    pub name: Option<String>,
    /// Opens a shared vector for reading (`FI_READ`); it must exist.
    pub read_only: bool,
    /// Insertions are reported to the bound event queue (`FI_EVENT`): one error for each address that failed, with its
    /// place, then one [`crate::EventKind::AvComplete`] with the number of good ones.
    pub events: bool,
    /// Completions report a peer by the number that [`AddressVector::set_user_id`] gives it, and no peer before that
    /// (`FI_AV_USER_ID`).
    pub user_ids: bool,
}

/// The addresses to insert.
#[derive(Clone, Copy, Debug)]
pub enum Addresses<'a> {
    /// These, in order (`fi_av_insert`).
    Given(&'a [Address]),
    /// A host and service name (`fi_av_insertsvc`).
    Service {
        /// Host name or numeric address.
        node: &'a str,
        /// Port or its counterpart.
        service: &'a str,
    },
    /// `node_count` × `service_count` addresses, counting the last number of each name up (`fi_av_insertsym`).
    Range {
        /// The first node.
        node: &'a str,
        /// How many.
        node_count: usize,
        /// The first service of each.
        service: &'a str,
        /// How many.
        service_count: usize,
    },
}

/// Options of an insertion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Insertion<'a> {
    /// The numbers by which completions report the addresses (`FI_AV_USER_ID`); `None` to report indices.
    pub user_ids: Option<&'a [FiAddr]>,
    /// Goes with the events of a vector that was opened with [`AvAttr::events`].
    pub context: Context,
    /// The number of the addresses' authorization key (`FI_AUTH_KEY`), in a domain that was opened with
    /// [`crate::AV_AUTH_KEY`]: there every address has one.
    pub auth_key: Option<FiAddr>,
}

/// An address vector (`fid_av`).
pub trait AddressVector: Send + Sync + std::any::Any {
    /// Inserts addresses. Inserting a known address returns the same index again; the address must then be removed as
    /// often as it was inserted. An address that fails takes no index and does not affect the others.
    ///
    /// # Errors
    /// `FI_ENOEQ` on a vector with events that has no queue; `FI_EINVAL` for user ids on one that was opened for
    /// [`AddressVector::set_user_id`], for a number of them that is not that of the addresses, and for a name that
    /// cannot be counted up; `FI_EACCES` on a vector that was opened read-only.
    fn insert_with(&self, addresses: Addresses<'_>, how: &Insertion<'_>) -> Result<Vec<Inserted>>;

    /// Inserts each address. An error that affects all of them is reported for each.
    fn insert(&self, addresses: &[Address]) -> Vec<Inserted> {
        match self.insert_with(Addresses::Given(addresses), &Insertion::default()) {
            Ok(inserted) => inserted,
            Err(error) => addresses.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// Inserts the address of `node` and `service` (`fi_av_insertsvc`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a name that does not resolve; the errors of [`AddressVector::insert_with`].
    fn insert_service(&self, node: &str, service: &str) -> Inserted {
        let addresses = Addresses::Service { node, service };
        self.insert_with(addresses, &Insertion::default())?.pop().unwrap_or(Ok(FiAddr::NOTAVAIL))
    }

    /// Inserts `node_count` × `service_count` addresses, counting the last number of each name up
    /// (`fi_av_insertsym`).
    ///
    /// # Errors
    /// `FI_EINVAL` for a name that cannot be counted up; the errors of [`AddressVector::insert_with`].
    fn insert_range(
        &self,
        node: &str,
        node_count: usize,
        service: &str,
        service_count: usize,
    ) -> Result<Vec<Inserted>> {
        let addresses = Addresses::Range { node, node_count, service, service_count };
        self.insert_with(addresses, &Insertion::default())
    }

    /// Inserts an authorization key for the addresses of this vector and the endpoints that it is bound to, in a domain
    /// that was opened with [`crate::AV_AUTH_KEY`]. Returns its index, which is not the index of an address.
    ///
    /// # Errors
    /// `FI_EINVAL` in other domains, and for a key of a wrong length; `FI_ENOSPC` for more than `max_ep_auth_key`.
    fn insert_auth_key(&self, key: &[u8]) -> Result<FiAddr>;

    /// The authorization key of a key's number, or of an address.
    ///
    /// # Errors
    /// `FI_EINVAL` for a number that is neither.
    fn auth_key(&self, number: FiAddr) -> Result<Vec<u8>>;

    /// The authorization key of all addresses of the vector, if it has one.
    ///
    /// # Errors
    /// `FI_EINVAL` in domains that were opened without [`crate::AV_AUTH_KEY`].
    fn first_auth_key(&self) -> Result<Option<Vec<u8>>>;

    /// Removes an authorization key.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown number; `FI_EBUSY` while enabled endpoints or addresses use the key.
    fn remove_auth_key(&self, number: FiAddr) -> Result<()>;

    /// Has completions report the peer at `address` as `id` from now on (`fi_av_set_user_id`).
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address, or if the vector was not opened with [`AvAttr::user_ids`].
    fn set_user_id(&self, address: FiAddr, id: FiAddr) -> Result<()>;

    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the queue that insertions are reported to.
    ///
    /// # Errors
    /// `FI_EINVAL` unless the vector was opened with [`AvAttr::events`], and for a queue of another library's making;
    /// `FI_EBUSY` if it has one.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// The numbers of a shared vector's addresses as memory that all its processes see (`fi_av_attr.map_addr`): the
    /// `n`th word is the number of the `n`th address, once that is inserted. Mapped while the vector is open. `None`
    /// for a vector without name.
    fn map_addr(&self) -> Option<std::ptr::NonNull<u64>>;

    /// Removes one insertion of each of `addresses`.
    ///
    /// # Errors
    /// `FI_EINVAL` if one is not in the vector; the others are removed. `FI_EACCES` on a vector opened for reading.
    fn remove(&self, addresses: &[FiAddr]) -> Result<()>;

    /// Makes a set of this vector's numbers (`fi_av_set`).
    ///
    /// # Errors
    /// `FI_EINVAL` for attributes that make no sense.
    fn set(self: Arc<Self>, attr: &AvSetAttr) -> Result<Arc<dyn AvSet>>;

    /// The address of a number.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address.
    fn lookup(&self, address: FiAddr) -> Result<Address>;

    /// The number of an address, where it was inserted.
    fn reverse_lookup(&self, address: &Address) -> Option<FiAddr>;

    /// The number of distinct addresses.
    fn count(&self) -> usize;
}
