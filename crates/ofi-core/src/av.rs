//! The address vector that applications hold, over [`AddressTable`].
//!
//! Endpoints cache what they ask here; two counters, readable without the lock, say when to ask again.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ofi_api::{
    AddrFormat, Address, AddressVector, AvAttr, AvSet, AvSetAttr, Errno, Error, FiAddr, Inserted, Result,
};

use crate::collective::set::Set;
use crate::domain::DomainId;
use crate::fork::Born;
use crate::peers::{AddressTable, Removed, UserIds, names};
use crate::transport::{RxName, Transport};

/// The most upper bits that may name receive contexts; the lower ones number 4,294,967,296 peers.
const MAX_RX_BITS: u32 = 32;

/// The core's address vector.
pub struct Av {
    domain: DomainId,
    born: Born,
    table: RwLock<AddressTable>,
    format: AddrFormat,
    removals: AtomicU32,
    insertions: AtomicU32,
    /// Upper bits of a number that name a receive context.
    rx_bits: u32,
    normalize: fn(&Address) -> Result<Address>,
    resolve: fn(Option<&str>, Option<&str>) -> Result<Address>,
}

impl Av {
    /// Opens a vector of addresses of transport `T`, in `format`.
    ///
    /// # Errors
    /// `FI_EINVAL` for more bits of receive contexts than there may be.
    pub fn open<T: Transport>(attr: &AvAttr, format: AddrFormat, domain: DomainId) -> Result<Arc<Self>> {
        if attr.rx_ctx_bits > MAX_RX_BITS {
            return Err(Error::wanted(
                Errno::EINVAL,
                "fi_av_attr.rx_ctx_bits",
                format!("at most {MAX_RX_BITS}"),
                attr.rx_ctx_bits.to_string(),
                "as many bits as the largest index of a receive context takes",
            ));
        }
        Ok(Arc::new(Self {
            domain,
            born: Born::here(),
            table: RwLock::new(AddressTable::new(format, attr.count, UserIds::default())),
            format,
            removals: AtomicU32::new(0),
            insertions: AtomicU32::new(0),
            rx_bits: attr.rx_ctx_bits,
            normalize: T::normalize,
            resolve: T::resolve,
        }))
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

    /// The domain that it was opened in.
    pub fn domain(&self) -> DomainId {
        self.domain
    }

    fn read(&self) -> RwLockReadGuard<'_, AddressTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, AddressTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts removals: when it changes, any number may have come to mean another address.
    #[inline]
    pub fn removals(&self) -> u32 {
        self.removals.load(Ordering::Acquire)
    }

    /// Counts insertions: while it does not change, an address that was not there still is not.
    #[inline]
    pub fn insertions(&self) -> u32 {
        self.insertions.load(Ordering::Acquire)
    }

    /// The address of a number.
    ///
    /// # Errors
    /// `FI_EINVAL` if it is not there.
    pub fn address(&self, number: FiAddr) -> Result<Address> {
        Ok(Address::new(self.format, self.read().get(number)?))
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> Vec<FiAddr> {
        let mut numbers: Vec<FiAddr> = self.read().iter().map(|(number, _)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// The number of an address.
    pub fn number(&self, address: &Address) -> Option<FiAddr> {
        self.read().find(address.bytes())
    }

    fn checked(&self, address: &Address) -> Result<Address> {
        let address = (self.normalize)(address)?;
        address.relabelled(self.format).ok_or_else(|| {
            Error::wanted(
                Errno::EINVAL,
                "the address to insert",
                format!("one of {}", self.format),
                format!("{address} of {}", address.format()),
                "open the domain with the address format of its peers (fi_info.addr_format)",
            )
        })
    }

    fn insert_one(&self, table: &mut AddressTable, address: &Address) -> Inserted {
        let number = table.insert(self.checked(address)?.bytes())?;
        self.insertions.fetch_add(1, Ordering::Release);
        Ok(number)
    }
}

impl AddressVector for Av {
    fn insert(&self, addresses: &[Address]) -> Vec<Inserted> {
        if !self.born.is_here() {
            return addresses.iter().map(|_| self.born.check().map(|()| FiAddr::NOTAVAIL)).collect();
        }
        let mut table = self.write();
        addresses.iter().map(|address| self.insert_one(&mut table, address)).collect()
    }

    fn insert_service(&self, node: &str, service: &str) -> Inserted {
        self.born.check()?;
        let address = (self.resolve)(Some(node), Some(service))?;
        self.insert_one(&mut self.write(), &address)
    }

    fn insert_range(
        &self,
        node: &str,
        node_count: usize,
        service: &str,
        service_count: usize,
    ) -> Result<Vec<Inserted>> {
        self.born.check()?;
        let names = names::range(Some(node), node_count, Some(service), service_count)?;
        let addresses: Vec<Result<Address>> = names.resolve_with(self.resolve).collect();
        let mut table = self.write();
        Ok(addresses.into_iter().map(|address| self.insert_one(&mut table, &address?)).collect())
    }

    fn remove(&self, addresses: &[FiAddr]) -> Result<()> {
        self.born.check()?;
        let mut table = self.write();
        let mut outcome = Ok(());
        for &address in addresses {
            match table.remove(address) {
                Ok(Removed::Gone(_)) => {
                    self.removals.fetch_add(1, Ordering::Release);
                }
                Ok(Removed::Kept) => {}
                Err(error) => outcome = Err(error),
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
        self.number(&self.checked(address).ok()?)
    }

    fn count(&self) -> usize {
        self.read().len()
    }
}
