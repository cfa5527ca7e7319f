//! Address vectors: the addresses of peers, and the indices by which operations name them.

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
    /// The number of upper bits of an address that select a receive context of the peer ([`FiAddr::with_rx_index`]), at
    /// most 32. With 0, the peer chooses among its contexts.
    pub rx_ctx_bits: u32,
    /// Shares the vector under this name with processes of the same host and user that open it in the same domain. An
    /// address has the same index in all of them. The vector exists while any process has it open.
    pub name: Option<String>,
    /// Opens a shared vector for reading (`FI_READ`); it must exist.
    pub read_only: bool,
    /// Reports insertions to the bound event queue (`FI_EVENT`): an error entry for each address that failed, with its
    /// position, then one [`crate::EventKind::AvComplete`] with the number of addresses inserted.
    pub events: bool,
    /// Completions report a peer by the number that [`AddressVector::set_user_id`] assigned to it, and no source until
    /// then (`FI_AV_USER_ID`).
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
    /// `node_count` × `service_count` addresses, made by counting up the last number in each name (`fi_av_insertsym`).
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
    /// The numbers by which completions report these addresses (`FI_AV_USER_ID`); `None` to report indices.
    pub user_ids: Option<&'a [FiAddr]>,
    /// Returned in the events of a vector that was opened with [`AvAttr::events`].
    pub context: Context,
    /// The index of the addresses' authorization key (`FI_AUTH_KEY`). Required in a domain that was opened with
    /// [`crate::AV_AUTH_KEY`].
    pub auth_key: Option<FiAddr>,
}

/// An address vector (`fid_av`).
pub trait AddressVector: Send + Sync + std::any::Any {
    /// Inserts addresses. Inserting an address again returns the same index; it must then be removed as often as it was
    /// inserted. An address that fails takes no index and does not affect the others.
    ///
    /// # Errors
    /// `FI_ENOEQ` if the vector reports events and has no event queue; `FI_EACCES` if it was opened read-only;
    /// `FI_EINVAL` if a name cannot be counted up, if the number of user ids differs from the number of addresses, or
    /// for user ids in a vector that was opened for [`AddressVector::set_user_id`].
    fn insert_with(&self, addresses: Addresses<'_>, how: &Insertion<'_>) -> Result<Vec<Inserted>>;

    /// Inserts each address. An error that affects all of them is returned for each.
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

    /// Inserts `node_count` × `service_count` addresses, made by counting up the last number in each name
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

    /// Inserts an authorization key for use by this vector's addresses and by the endpoints bound to it. The domain
    /// must have been opened with [`crate::AV_AUTH_KEY`]. Returns the key's index, which differs from that of any
    /// address.
    ///
    /// # Errors
    /// `FI_EINVAL` in other domains, and for a key of the wrong length; `FI_ENOSPC` beyond `max_ep_auth_key` keys.
    fn insert_auth_key(&self, key: &[u8]) -> Result<FiAddr>;

    /// The authorization key with this index, or of the address with this index.
    ///
    /// # Errors
    /// `FI_EINVAL` if `number` is the index of neither.
    fn auth_key(&self, number: FiAddr) -> Result<Vec<u8>>;

    /// The authorization key that all addresses of the vector use, if there is one.
    ///
    /// # Errors
    /// `FI_EINVAL` in domains that were opened without [`crate::AV_AUTH_KEY`].
    fn first_auth_key(&self) -> Result<Option<Vec<u8>>>;

    /// Removes an authorization key.
    ///
    /// # Errors
    /// `FI_EINVAL` for an unknown index; `FI_EBUSY` while enabled endpoints or addresses use the key.
    fn remove_auth_key(&self, number: FiAddr) -> Result<()>;

    /// Makes completions report the peer at `address` as `id` from now on (`fi_av_set_user_id`).
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address, or if the vector was not opened with [`AvAttr::user_ids`].
    fn set_user_id(&self, address: FiAddr, id: FiAddr) -> Result<()>;

    /// The identity that events carry.
    fn fid(&self) -> Fid;

    /// Binds the event queue that insertions are reported to.
    ///
    /// # Errors
    /// `FI_EINVAL` unless the vector was opened with [`AvAttr::events`], and for a queue of another library; `FI_EBUSY`
    /// if a queue is already bound.
    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()>;

    /// The indices of a shared vector, in memory that all processes sharing it can read (`fi_av_attr.map_addr`): word
    /// `n` is the index of the `n`th address once that address is inserted. Mapped while the vector is open. `None` for
    /// a vector without a name.
    fn map_addr(&self) -> Option<std::ptr::NonNull<u64>>;

    /// Removes one insertion of each of `addresses`.
    ///
    /// # Errors
    /// `FI_EINVAL` if one is not in the vector; the others are removed. `FI_EACCES` if the vector was opened read-only.
    fn remove(&self, addresses: &[FiAddr]) -> Result<()>;

    /// Makes a set of addresses of this vector (`fi_av_set`).
    ///
    /// # Errors
    /// `FI_EINVAL` for inconsistent attributes.
    fn set(self: Arc<Self>, attr: &AvSetAttr) -> Result<Arc<dyn AvSet>>;

    /// The address at an index.
    ///
    /// # Errors
    /// `FI_EINVAL` for an index without an address.
    fn lookup(&self, address: FiAddr) -> Result<Address>;

    /// The index of an address, if it was inserted.
    fn reverse_lookup(&self, address: &Address) -> Option<FiAddr>;

    /// The number of distinct addresses.
    fn count(&self) -> usize;
}
