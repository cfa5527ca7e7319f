//! The address vector that applications hold. It wraps an [`AddressTable`] or, if it has a name, a `SharedTable`.
//!
//! Endpoints cache the vector's results. Two counts, readable without the lock, tell when a cache is stale.

mod counts;
mod keys;
mod report;
pub mod set;
mod shared;
mod watch;

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use ofi_api::{
    AV_AUTH_KEY, AddrFormat, Address, AddressVector, Addresses, AvAttr, AvSet, AvSetAttr, Errno, Error,
    EventQueue, FiAddr, Fid, Info, Inserted, Insertion, Result,
};
use rustc_hash::FxHashMap;

pub use self::counts::{AvCounts, CountsOf};
pub use self::keys::InUse;
use self::keys::Keys;
use self::report::Reports;
use self::shared::SharedTable;
pub use self::watch::Watcher;
use self::watch::Watchers;
use crate::auth::AuthKey;
use crate::av::set::Set;
use crate::domain_id::DomainId;
use crate::eq::EqCore;
use crate::fork::Born;
use crate::peers::{AddressTable, Removed, UserIds, names};
use crate::transport::{RxName, Transport};

/// The maximum number of upper bits that may name receive contexts; the lower ones number 4,294,967,296 peers.
const MAX_RX_BITS: u32 = 32;

/// The storage of the addresses.
enum Table {
    Own(RwLock<AddressTable>, Box<AvCounts>),
    Shared(SharedTable),
}

/// The core's address vector.
pub struct Av {
    domain: DomainId,
    born: Born,
    fid: Fid,
    table: Table,
    /// The numbers by which completions report addresses of a shared vector in this process, where they differ from the
    /// index.
    ids: Mutex<FxHashMap<u64, FiAddr>>,
    user_ids: UserIds,
    format: AddrFormat,
    /// Upper bits of a number that name a receive context.
    rx_bits: u32,
    reports: Option<Reports>,
    /// Present in a domain that was opened with `FI_AV_AUTH_KEY`.
    keys: Option<Keys>,
    longest_key: usize,
    watchers: Watchers,
    normalize: fn(&Address) -> Result<Address>,
    resolve: fn(Option<&str>, Option<&str>) -> Result<Address>,
}

fn read(table: &RwLock<AddressTable>) -> RwLockReadGuard<'_, AddressTable> {
    table.read().unwrap_or_else(PoisonError::into_inner)
}

fn write(table: &RwLock<AddressTable>) -> RwLockWriteGuard<'_, AddressTable> {
    table.write().unwrap_or_else(PoisonError::into_inner)
}

fn not_there(number: FiAddr) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "peer address",
        "the index of an address in the vector",
        format!("{number:?}"),
        "insert the peer first, and drop indices whose address was removed",
    )
}

impl Av {
    /// Opens a vector of addresses of transport `T`, for the domain that was opened with `info`.
    ///
    /// # Errors
    /// `FI_EINVAL` for read-only access to a vector without a name, and for too many receive context bits; `FI_ENOSYS`
    /// for user ids in a read-only vector; those of `SharedTable::open`.
    pub fn open<T: Transport>(attr: &AvAttr, info: &Info, domain: DomainId) -> Result<Arc<Self>> {
        let format = info.addr_format;
        let user_ids = if attr.user_ids { UserIds::Always } else { UserIds::PerInsert };
        if attr.rx_ctx_bits > MAX_RX_BITS {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_attr.rx_ctx_bits",
                format!("at most {MAX_RX_BITS}"),
                attr.rx_ctx_bits.to_string(),
                "as many bits as the largest index of a receive context takes",
            ));
        }
        if attr.read_only && attr.user_ids {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "FI_AV_USER_ID of an address vector",
                "one that this process may change",
                "one opened with FI_READ",
                "open it without FI_READ, or translate the numbers in the program",
            ));
        }
        let table = match &attr.name {
            Some(name) => {
                let name = (&*info.fabric_attr.prov_name, &*info.domain_attr.name, &**name);
                Table::Shared(SharedTable::open(name, format, attr.count, attr.read_only)?)
            }
            None if attr.read_only => {
                return Err(Error::wanted(
                    Errno::EINVAL,
                    "FI_READ of an address vector",
                    "one with a name, which other processes fill",
                    "one without",
                    "set fi_av_attr.name, or leave the flag out",
                ));
            }
            None => Table::Own(RwLock::new(AddressTable::new(format, attr.count, user_ids)), Box::default()),
        };
        Ok(Arc::new(Self {
            domain,
            born: Born::here(),
            fid: Fid::next(),
            table,
            ids: Mutex::default(),
            user_ids,
            format,
            rx_bits: attr.rx_ctx_bits,
            reports: attr.events.then(Reports::default),
            keys: (info.domain_attr.auth_key_size == AV_AUTH_KEY).then(Keys::default),
            longest_key: T::AUTH_KEY_SIZE,
            watchers: Watchers::default(),
            normalize: T::normalize,
            resolve: T::resolve,
        }))
    }

    /// The authorization key of its endpoints, if it has keys, with a reference that keeps the key from being removed.
    ///
    /// # Errors
    /// `FI_ENOKEY` if it was not inserted.
    pub fn claim_key(&self) -> Result<Option<(AuthKey, InUse)>> {
        self.keys.as_ref().map(Keys::claim).transpose()
    }

    /// Checks that `number` is an authorization key of this vector.
    ///
    /// # Errors
    /// `FI_EINVAL`.
    pub fn check_key(&self, number: FiAddr) -> Result<()> {
        self.keys()?.key(number).map(drop)
    }

    fn keys(&self) -> Result<&Keys> {
        self.keys.as_ref().ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "an authorization key of an address vector",
                "a domain opened with FI_AV_AUTH_KEY",
                "one opened without",
                "set domain_attr.auth_key_size to FI_AV_AUTH_KEY in the hints",
            )
        })
    }

    /// Checks that an insertion uses the vector's key, if it has keys.
    fn check_insertion(&self, key: Option<FiAddr>) -> Result<()> {
        match (&self.keys, key) {
            (None, None) => Ok(()),
            (_, Some(key)) => self.check_key(key),
            (Some(_), None) => Err(Error::wanted(
                Errno::EINVAL,
                "an insertion in a domain opened with FI_AV_AUTH_KEY",
                "the number of the addresses' authorization key, and FI_AUTH_KEY",
                "none",
                "insert the key with fi_av_insert_auth_key, and give its number with the addresses",
            )),
        }
    }

    /// Whether numbers name receive contexts.
    pub fn names_contexts(&self) -> bool {
        self.rx_bits > 0
    }

    /// The number of a peer, and the receive context that its upper bits name.
    ///
    /// # Errors
    /// `FI_EINVAL` for a context that no endpoint has.
    pub fn split(&self, number: FiAddr) -> Result<(FiAddr, RxName)> {
        if self.rx_bits == 0 || number == FiAddr::UNSPEC {
            return Ok((number, RxName::ANY));
        }
        let shift = u64::BITS - self.rx_bits;
        let rx = RxName::of(number.0 >> shift).ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the receive context in an address",
                "an index below 65,535",
                (number.0 >> shift).to_string(),
                "make it with fi_rx_addr",
            )
        })?;
        Ok((FiAddr(number.0 & (u64::MAX >> self.rx_bits)), rx))
    }

    /// Notifies an endpoint of insertions from now on, until it closes.
    pub fn watch(&self, watcher: Weak<dyn Watcher>) {
        self.watchers.add(watcher);
    }

    /// The domain that it was opened in.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    /// The counts by which caches detect that they are stale.
    pub fn counts(&self) -> &AvCounts {
        match &self.table {
            Table::Own(_, counts) => counts,
            Table::Shared(shared) => shared.counts(),
        }
    }

    /// The address of a number.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not there.
    pub fn address(&self, number: FiAddr) -> Result<Address> {
        match &self.table {
            Table::Own(table, _) => Ok(Address::new(self.format, read(table).get(number)?)),
            Table::Shared(shared) => {
                let bytes = shared.address(number).ok_or_else(|| not_there(number))?;
                // Another process that shares the vector may have written arbitrary bytes.
                (self.normalize)(&Address::new(self.format, &bytes))
            }
        }
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> Vec<FiAddr> {
        match &self.table {
            Table::Own(table, _) => read(table).iter().map(|(number, _)| number).collect(),
            Table::Shared(shared) => shared.numbers(),
        }
    }

    /// The number of an address.
    pub fn number(&self, address: &Address) -> Option<FiAddr> {
        match &self.table {
            Table::Own(table, _) => read(table).find(address.bytes()),
            Table::Shared(shared) => shared.find(address.bytes()),
        }
    }

    /// Identifies the current insertion of an address, which changes when it is removed and inserted again. A shared
    /// vector does not record that.
    pub fn insertion(&self, address: &Address) -> Option<u64> {
        match &self.table {
            Table::Own(table, _) => read(table).insertion(address.bytes()),
            Table::Shared(_) => None,
        }
    }

    /// The number by which completions report the peer at `address`.
    pub fn reported(&self, address: &Address) -> Option<FiAddr> {
        match &self.table {
            Table::Own(table, _) => {
                let table = read(table);
                table.find(address.bytes()).map(|number| table.reported(number))
            }
            Table::Shared(shared) => {
                let number = shared.find(address.bytes())?;
                let id = self.ids().get(&number.0).copied();
                let unnamed = if self.user_ids == UserIds::Always { FiAddr::NOTAVAIL } else { number };
                Some(id.unwrap_or(unnamed))
            }
        }
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, FxHashMap<u64, FiAddr>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn checked(&self, address: &Address) -> Result<Address> {
        let address = (self.normalize)(address)?;
        // In a vector of names, an address of another format is stored as the text that it prints.
        let as_text = || {
            let text = Address::from_text(&address.to_string());
            let named = (self.format == AddrFormat::Str).then(|| (self.normalize)(&text));
            named.and_then(Result::ok)
        };
        address.relabelled(self.format).or_else(as_text).ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the address to insert",
                format!("one of {}", self.format),
                format!("{address} of {}", address.format()),
                "open the domain with the address format of its peers (fi_info.addr_format)",
            )
        })
    }

    /// The addresses to insert, one by one. Names are resolved here, because no lock is held.
    fn listed(&self, addresses: Addresses<'_>) -> Result<Vec<Result<Address>>> {
        let named = match addresses {
            Addresses::Given(list) => return Ok(list.iter().map(|one| self.checked(one)).collect()),
            Addresses::Service { node, service } => names::single(Some(node), Some(service))?,
            Addresses::Range { node, node_count, service, service_count } => {
                names::range(Some(node), node_count, Some(service), service_count)?
            }
        };
        Ok(named.resolve_with(self.resolve).map(|one| self.checked(&one?)).collect())
    }

    fn insert_own(&self, table: &RwLock<AddressTable>, list: Vec<Result<Address>>) -> Vec<Inserted> {
        let mut table = write(table);
        let insert = |address: Result<Address>| {
            let number = table.insert(address?.bytes())?;
            self.counts().inserted();
            Ok(number)
        };
        list.into_iter().map(insert).collect()
    }

    /// Logs the first addresses of an insertion.
    fn log_insertion(&self, inserted: &[Inserted]) {
        // The maximum number of addresses that are logged one by one.
        const MAX_LOGGED_ADDRESSES: usize = 16;
        if !tracing::enabled!(target: "ofi::core::av", tracing::Level::DEBUG) {
            return;
        }
        for number in inserted.iter().flatten().take(MAX_LOGGED_ADDRESSES) {
            if let Ok(address) = self.address(*number) {
                tracing::debug!(target: "ofi::core::av", number = number.0, %address, "inserted an address");
            }
        }
        if inserted.len() > MAX_LOGGED_ADDRESSES {
            tracing::debug!(target: "ofi::core::av", count = inserted.len(), "inserted more addresses with these");
        }
    }

    /// Invalidates the caches of reported numbers in this process only, even if the vector is shared.
    fn ids_changed(&self) {
        self.counts().removed();
    }

    fn put_id(&self, number: FiAddr, id: FiAddr) {
        match &self.table {
            Table::Own(table, _) => write(table).name_peer(number, id),
            Table::Shared(_) => {
                self.ids().insert(number.0, id);
            }
        }
    }
}

impl AddressVector for Av {
    fn insert_with(&self, addresses: Addresses<'_>, how: &Insertion<'_>) -> Result<Vec<Inserted>> {
        self.born.check()?;
        let queue = self.reports.as_ref().map(Reports::queue).transpose()?;
        self.check_insertion(how.auth_key)?;
        if how.user_ids.is_some() && self.user_ids == UserIds::Always {
            return Err(Error::wanted(
                Errno::EINVAL,
                "user ids with an insertion",
                "an address vector opened without FI_AV_USER_ID",
                "one opened with it",
                "give the ids with fi_av_set_user_id",
            ));
        }
        let list = self.listed(addresses)?;
        if let Some(ids) = how.user_ids
            && ids.len() != list.len()
        {
            return Err(Error::wanted(
                Errno::EINVAL,
                "user ids with an insertion",
                format!("one for each of {} addresses", list.len()),
                ids.len().to_string(),
                "give as many ids as addresses",
            ));
        }
        let inserted: Vec<Inserted> = match &self.table {
            Table::Own(table, _) => self.insert_own(table, list),
            Table::Shared(shared) => {
                let mut turn = shared.turn()?;
                list.into_iter().map(|address| turn.insert(address?.bytes())).collect()
            }
        };
        let ids = how.user_ids.unwrap_or_default();
        for (number, &id) in inserted.iter().zip(ids).filter_map(|(one, id)| Some((one.as_ref().ok()?, id))) {
            self.put_id(*number, id);
        }
        if !ids.is_empty() {
            self.ids_changed();
        }
        for (place, error) in
            inserted.iter().enumerate().filter_map(|(at, one)| Some((at, one.as_ref().err()?)))
        {
            tracing::warn!(target: "ofi::core::av", place, %error, "address not inserted");
        }
        self.log_insertion(&inserted);
        self.watchers.tell();
        if let Some(queue) = queue {
            report::insertion(&queue, self.fid, how.context, &inserted);
        }
        Ok(inserted)
    }

    fn insert_auth_key(&self, key: &[u8]) -> Result<FiAddr> {
        self.born.check()?;
        let keys = self.keys()?;
        if key.is_empty() || key.len() > self.longest_key {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_insert_auth_key",
                format!("a key of 1 to {} bytes", self.longest_key),
                key.len().to_string(),
                "see auth_key_size in fi_domain(3)",
            ));
        }
        keys.insert(key)
    }

    fn auth_key(&self, number: FiAddr) -> Result<Vec<u8>> {
        self.born.check()?;
        let keys = self.keys()?;
        let key = match keys.key(number) {
            Ok(key) => key,
            // Every address uses the one key.
            Err(error) => self.address(number).and_then(|_| Ok(keys.claim()?.0)).map_err(|_| error)?,
        };
        Ok(key.bytes().to_vec())
    }

    fn first_auth_key(&self) -> Result<Option<Vec<u8>>> {
        self.born.check()?;
        Ok(self.keys()?.claim().ok().map(|(key, _)| key.bytes().to_vec()))
    }

    fn remove_auth_key(&self, number: FiAddr) -> Result<()> {
        self.born.check()?;
        self.keys()?.remove(number, self.numbers().len())
    }

    fn set_user_id(&self, address: FiAddr, id: FiAddr) -> Result<()> {
        self.born.check()?;
        match &self.table {
            Table::Own(table, _) => write(table).set_user_id(address, id)?,
            Table::Shared(_) if self.user_ids != UserIds::Always => {
                return Err(crate::peers::no_user_ids());
            }
            Table::Shared(_) => {
                self.address(address)?;
                self.ids().insert(address.0, id);
            }
        }
        self.ids_changed();
        Ok(())
    }

    fn fid(&self) -> Fid {
        self.fid
    }

    fn bind_eq(&self, eq: &Arc<dyn EventQueue>) -> Result<()> {
        self.born.check()?;
        let Some(reports) = &self.reports else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_bind",
                "an address vector opened with FI_EVENT",
                "one opened without",
                "set the flag in fi_av_attr.flags",
            ));
        };
        reports.bind(EqCore::of(eq)?)
    }

    fn map_addr(&self) -> Option<NonNull<u64>> {
        match &self.table {
            Table::Own(..) => None,
            Table::Shared(shared) => Some(shared.numbers_memory()),
        }
    }

    fn remove(&self, addresses: &[FiAddr]) -> Result<()> {
        self.born.check()?;
        let mut outcome = Ok(());
        match &self.table {
            Table::Own(table, counts) => {
                let mut table = write(table);
                for &address in addresses {
                    match table.remove(address) {
                        Ok(Removed::Gone(_)) => counts.removed(),
                        Ok(Removed::Kept) => {}
                        Err(error) => outcome = Err(error),
                    }
                }
            }
            Table::Shared(shared) => {
                let mut turn = shared.turn()?;
                for &address in addresses {
                    match turn.remove(address) {
                        Ok(true) => drop(self.ids().remove(&address.0)),
                        Ok(false) => {}
                        Err(error) => outcome = Err(error),
                    }
                }
            }
        }
        outcome
    }

    fn set(self: Arc<Self>, attr: &AvSetAttr) -> Result<Arc<dyn AvSet>> {
        self.born.check()?;
        Ok(Set::open(&self, attr)?)
    }

    fn lookup(&self, address: FiAddr) -> Result<Address> {
        self.born.check()?;
        self.address(address)
    }

    fn reverse_lookup(&self, address: &Address) -> Option<FiAddr> {
        if !self.born.is_here() {
            return None;
        }
        self.number(&self.checked(address).ok()?)
    }

    fn count(&self) -> usize {
        match &self.table {
            _ if !self.born.is_here() => 0,
            Table::Own(table, _) => read(table).len(),
            Table::Shared(shared) => shared.len(),
        }
    }
}
