//! The device memory that is registered in a domain, by address.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use ofi_api::{Errno, Error, HmemIface, MrAttr, Result};

use super::Stager;
use super::cuda::{Cuda, MemoryType};
use crate::config::HMEM_DISABLE_P2P;

/// A device allocation of which at least a part is registered. Allocations do not overlap, and share no addresses with
/// memory of the host.
#[derive(Debug)]
struct Allocation {
    len: u64,
    registrations: usize,
    stager: Arc<Stager>,
}

#[derive(Debug, Default)]
struct Table {
    /// By their first address.
    allocations: BTreeMap<u64, Allocation>,
    /// One for each device that was used.
    stagers: Vec<Arc<Stager>>,
    /// Dma-bufs of other interfaces, by address and length, with the number of registrations of each.
    opaque: BTreeMap<(u64, u64), usize>,
}

impl Table {
    fn count(&self) -> usize {
        self.allocations.len() + self.opaque.len()
    }
}

/// The owner of device memory.
#[derive(Clone, Debug)]
pub enum Owner {
    /// A device whose driver copies.
    Copied(Arc<Stager>),
    /// A device whose driver is not called: only NICs that have registered its dma-buf access the memory.
    Opaque,
}

/// The device memory that is registered in a domain.
#[derive(Debug, Default)]
pub struct Devices {
    /// The number of allocations and opaque dma-bufs.
    count: AtomicUsize,
    table: RwLock<Table>,
}

/// A registration's device memory.
#[derive(Debug)]
pub struct RegisteredDevice {
    devices: Arc<Devices>,
    stager: Arc<Stager>,
    /// The allocations that it uses.
    bases: Vec<u64>,
}

impl RegisteredDevice {
    /// Copies to and from its device.
    pub fn stager(&self) -> &Arc<Stager> {
        &self.stager
    }

    /// The registration's memory as a dma-buf, and the offset of its first byte. `None` if it has several pieces or
    /// allocations, if the driver cannot export it, or if the user forbids that (`FI_HMEM_DISABLE_P2P`).
    pub fn export(&self, attr: &MrAttr<'_>) -> Option<(OwnedFd, u64)> {
        let ([piece], [_]) = (attr.pieces(), &*self.bases) else { return None };
        if HMEM_DISABLE_P2P.get() {
            return None;
        }
        self.stager
            .cuda()
            .dmabuf(piece.addr.addr() as u64)
            .inspect_err(|error| {
                tracing::info!(
                    target: "ofi::core::hmem", %error,
                    "no dma-buf of a device's memory: its owner copies it for peers"
                );
            })
            .ok()
    }
}

impl Drop for RegisteredDevice {
    fn drop(&mut self) {
        let mut table = self.devices.table.write().unwrap_or_else(PoisonError::into_inner);
        for base in &self.bases {
            if let Some(allocation) = table.allocations.get_mut(base) {
                allocation.registrations -= 1;
                if allocation.registrations == 0 {
                    table.allocations.remove(base);
                }
            }
        }
        self.devices.count.store(table.count(), Ordering::Release);
    }
}

/// A registration's dma-buf of a device whose driver is not called.
#[derive(Debug)]
pub struct OpaqueMemory {
    devices: Arc<Devices>,
    range: (u64, u64),
}

impl Drop for OpaqueMemory {
    fn drop(&mut self) {
        let mut table = self.devices.table.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(uses) = table.opaque.get_mut(&self.range) {
            *uses -= 1;
            if *uses == 0 {
                table.opaque.remove(&self.range);
            }
        }
        self.devices.count.store(table.count(), Ordering::Release);
    }
}

impl Devices {
    /// Records the memory behind a dma-buf that this process addresses by `attr`, and that no driver copies.
    pub fn register_opaque(self: &Arc<Self>, attr: &MrAttr<'_>) -> Option<OpaqueMemory> {
        let &[piece] = attr.pieces() else { return None };
        let range = (piece.addr.addr() as u64, piece.len as u64);
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        *table.opaque.entry(range).or_insert(0) += 1;
        self.count.store(table.count(), Ordering::Release);
        Some(OpaqueMemory { devices: Arc::clone(self), range })
    }

    /// Records the device memory of a registration. `None` for host memory, which the processor can access, whoever has
    /// allocated it.
    ///
    /// # Errors
    /// `FI_ENOSYS` for an interface other than CUDA; `FI_ENODEV` without its driver; `FI_EINVAL` for memory that does
    /// not belong to a device, or belongs to several.
    pub fn register(self: &Arc<Self>, attr: &MrAttr<'_>) -> Result<Option<RegisteredDevice>> {
        match attr.iface {
            HmemIface::System => return Ok(None),
            HmemIface::Cuda => {}
            other => {
                return Err(Error::wanted(
                    Errno::ENOSYS,
                    "the interface of memory to register (fi_mr_attr.iface)",
                    "FI_HMEM_SYSTEM or FI_HMEM_CUDA",
                    other.to_string(),
                    "copy through memory of the host, or register a dma-buf with a provider whose device takes it",
                ));
            }
        }
        // The union's number has 32 bits, and programs need not clear the rest.
        let mut cuda = Cuda::open(attr.device as u32)?;
        let (mut owner, mut bases) = (None, Vec::new());
        for piece in attr.pieces().iter().filter(|piece| piece.len > 0) {
            let at = piece.addr.addr() as u64;
            let MemoryType::Device(ordinal) = cuda.memory_type(at)? else {
                return if attr.pieces().len() == 1 { Ok(None) } else { Err(mixed()) };
            };
            if owner.is_some_and(|owner| owner != ordinal) {
                return Err(mixed());
            }
            owner = Some(ordinal);
            if cuda.ordinal() != ordinal {
                cuda = Cuda::open(ordinal)?; // the address says which
            }
            // A range of the driver's virtual memory may consist of several allocations.
            let (mut at, end) = (at, at.saturating_add(piece.len as u64));
            while at < end {
                let (base, len) = cuda.allocation(at).map_err(|_| beyond(at, end))?;
                cuda.synchronise(base);
                bases.push((base, len));
                at = base.saturating_add(len).max(at + 1);
            }
        }
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let known = table.stagers.iter().find(|stager| stager.cuda().ordinal() == cuda.ordinal()).cloned();
        let stager = known.unwrap_or_else(|| {
            let stager = Arc::new(Stager::new(cuda));
            table.stagers.push(Arc::clone(&stager));
            stager
        });
        for &(base, len) in &bases {
            let new = || Allocation { len, registrations: 0, stager: Arc::clone(&stager) };
            let allocation = table.allocations.entry(base).or_insert_with(new);
            // Freed and allocated again in spite of a registration: the newest one counts.
            allocation.len = len;
            allocation.registrations += 1;
        }
        self.count.store(table.count(), Ordering::Release);
        drop(table);
        stager.prepare(attr.pieces().iter().fold(0, |sum: usize, piece| sum.saturating_add(piece.len)));
        let bases = bases.into_iter().map(|(base, _)| base).collect();
        Ok(Some(RegisteredDevice { devices: Arc::clone(self), stager, bases }))
    }

    /// The device that owns the memory at an address, if that memory is registered.
    pub fn find(&self, addr: usize) -> Option<Owner> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let (table, addr) = (self.table.read().unwrap_or_else(PoisonError::into_inner), addr as u64);
        let allocation = table.allocations.range(..=addr).next_back();
        if let Some((_, owned)) = allocation.filter(|&(&base, owned)| addr - base < owned.len) {
            return Some(Owner::Copied(Arc::clone(&owned.stager)));
        }
        let is_opaque =
            table.opaque.keys().any(|&(start, len)| addr.checked_sub(start).is_some_and(|at| at < len));
        is_opaque.then_some(Owner::Opaque)
    }
}

fn mixed() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "memory to register with FI_HMEM_CUDA",
        "memory of one device",
        "pieces of several, or of the host",
        "register them one by one",
    )
}

fn beyond(at: u64, end: u64) -> Error {
    Error::wanted(
        Errno::EINVAL,
        "memory to register with FI_HMEM_CUDA",
        "allocated memory of a device",
        format!("{} bytes behind its end", end - at),
        "give the length that the memory was allocated with",
    )
}
