//! Memory of the NIXL program and of its peers.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use multirail::memory::cuda::{self, Cuda, DeviceMemory};
use multirail::{Agent, Local, Region};
use ofi::{Buffer, BufferMut, Errno, Error, RawBuffer, Result};

use crate::border::{Bytes, Sink, call, put, status};
use crate::engine::Engine;
use crate::log::say;

/// Time that deregistration waits for transfers that use the region.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory that the program has allocated, and keeps until it has deregistered it.
pub(crate) struct Foreign(RawBuffer);

// SAFETY: memory of `register`, whose caller keeps it valid and initialised, and knows that peers and rails access it,
// until the region is deregistered. Conversion to raw parts and back changes nothing.
unsafe impl Buffer for Foreign {
    fn into_raw(self) -> RawBuffer {
        self.0
    }

    unsafe fn from_raw(raw: RawBuffer) -> Self {
        Self(raw)
    }
}
// SAFETY: as above; it is writable.
unsafe impl BufferMut for Foreign {}

/// A registration.
pub struct Registered {
    region: MemoryKind,
    addr: u64,
}

/// A region of host memory or of a CUDA device's.
enum MemoryKind {
    Host(Region<Foreign>),
    Device(Region<DeviceMemory>),
}

/// A region of a peer, or of the agent itself, as the target of transfers.
pub struct Target {
    pub(crate) peer: Arc<str>,
    pub(crate) region: u64,
    pub(crate) addr: u64,
}

/// Registers memory.
///
/// # Safety
/// `engine` is open; `len` bytes at `addr` are initialised, valid and writable until `ofi_nixl_deregister` releases the
/// region; `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_register(
    engine: *const Engine,
    addr: *mut u8,
    len: usize,
    out: *mut *mut Registered,
) -> c_int {
    call("registering memory", || {
        // SAFETY: the caller's promise.
        let engine = unsafe { &*engine };
        if addr.is_null() {
            return Err(Error::with(Errno::EINVAL, "the memory's address is 0"));
        }
        let region = engine.agent.register(Foreign(RawBuffer::new(addr, len, std::ptr::null_mut())))?;
        tracing::debug!(target: "ofi::nixl::core", ?addr, len, "memory of the host is registered");
        let registered = Registered { region: MemoryKind::Host(region), addr: addr.addr() as u64 };
        // SAFETY: the caller's promise.
        unsafe { put(out, registered) };
        Ok(status::SUCCESS)
    })
}

/// Whether the system has a driver for CUDA devices. The call does not initialise the driver, since a program may call
/// it only to list its plug-ins.
#[unsafe(no_mangle)]
pub extern "C" fn ofi_nixl_may_have_devices() -> bool {
    cuda::is_installed()
}

/// Whether there is a CUDA device.
#[unsafe(no_mangle)]
pub extern "C" fn ofi_nixl_has_devices() -> bool {
    cuda::count().is_ok_and(|count| count > 0)
}

/// Registers memory of the CUDA device with this ordinal. `NIXL_ERR_NOT_SUPPORTED` without a device.
///
/// # Safety
/// `engine` is open; the memory is allocated until `ofi_nixl_deregister` releases the region; `out` is valid for a
/// write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_register_device(
    engine: *const Engine,
    ordinal: u64,
    addr: u64,
    len: usize,
    out: *mut *mut Registered,
) -> c_int {
    call("registering memory of a device", || {
        // SAFETY: the caller's promise.
        let engine = unsafe { &*engine };
        if let Err(error) = cuda::count() {
            say("registering memory of a device", &error.to_string());
            return Ok(status::NOT_SUPPORTED);
        }
        let ordinal = u32::try_from(ordinal).map_err(|_| {
            Error::with(
                Errno::EINVAL,
                format!("{ordinal} is not the number of a CUDA device; nvidia-smi lists them"),
            )
        })?;
        let device = Cuda::open(ordinal)?;
        // SAFETY: the caller's promise: deregistration waits until no copy uses the memory.
        let memory = unsafe { device.borrow(addr, len) }?;
        let region = engine.agent.register_device(memory)?;
        tracing::debug!(target: "ofi::nixl::core", device = ordinal, addr = %format_args!("{addr:#x}"), len, "memory of a device is registered");
        // SAFETY: the caller's promise.
        unsafe { put(out, Registered { region: MemoryKind::Device(region), addr }) };
        Ok(status::SUCCESS)
    })
}

/// Releases a region. On success, neither transfers nor peers use the memory any more. On failure the handle stays
/// valid.
///
/// # Safety
/// `engine` is open; `region` comes from `ofi_nixl_register` or `ofi_nixl_register_device`, and no other call uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_deregister(engine: *const Engine, region: *mut Registered) -> c_int {
    call("deregistering memory", || {
        // SAFETY: the caller's promise.
        let (engine, registered) = unsafe { (&*engine, &*region) };
        if !engine.born.is_here() {
            return Ok(status::SUCCESS);
        }
        registered.revoke(&engine.agent)?;
        tracing::debug!(target: "ofi::nixl::core", addr = %format_args!("{:#x}", registered.addr), "memory is no longer registered");
        // SAFETY: from a box in `put`, and released once.
        drop(unsafe { Box::from_raw(region) });
        Ok(status::SUCCESS)
    })
}

/// A region's description, for the peer's `ofi_nixl_load_region`.
///
/// # Safety
/// `engine` is open, `region` belongs to it, `sink` takes the bytes as its second argument.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_region_info(
    engine: *const Engine,
    region: *const Registered,
    sink: Sink,
    to: *mut std::ffi::c_void,
) -> c_int {
    call("describing memory to peers", || {
        // SAFETY: the caller's promise.
        let (engine, registered) = unsafe { (&*engine, &*region) };
        let bytes = registered.metadata(&engine.agent)?;
        // SAFETY: the caller's promise.
        unsafe { sink(to, Bytes::of(&[]), Bytes::of(&bytes)) };
        Ok(status::SUCCESS)
    })
}

/// A region of the agent itself as the target of transfers.
///
/// # Safety
/// `engine` is open, `region` belongs to it, `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_load_own(
    engine: *const Engine,
    region: *const Registered,
    out: *mut *mut Target,
) -> c_int {
    call("preparing local transfers", || {
        // SAFETY: the caller's promise.
        let (engine, registered) = unsafe { (&*engine, &*region) };
        let load = || Ok((engine.agent.load(&registered.metadata(&engine.agent)?)?, registered.id()));
        let (peer, region) = engine.target(load)?;
        // SAFETY: the caller's promise.
        unsafe { put(out, Target { peer, region, addr: registered.addr }) };
        Ok(status::SUCCESS)
    })
}

/// Loads a region of a known peer from the peer's `ofi_nixl_region_info`.
///
/// # Safety
/// `engine` is open, `peer` and `info` are valid for the call, `out` is valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_load_region(
    engine: *const Engine,
    peer: Bytes,
    info: Bytes,
    addr: u64,
    len: u64,
    out: *mut *mut Target,
) -> c_int {
    call("loading a peer's memory", || {
        // SAFETY: the caller's promise.
        let (engine, peer, info) = unsafe { (&*engine, peer.text("a peer's name")?, info.get()) };
        // A region's metadata names its agent's rails too; NIXL loads those separately, and first.
        engine.agent.regions(peer)?;
        let mut is_as_long = false;
        let (peer, region) = engine.target(|| {
            let region = engine.load_one(peer, info)?;
            is_as_long = region.len == len;
            Ok((peer.into(), region.id))
        })?;
        if !is_as_long {
            engine.unload((peer, region));
            return Ok(status::MISMATCH);
        }
        // SAFETY: the caller's promise.
        unsafe { put(out, Target { peer, region, addr }) };
        Ok(status::SUCCESS)
    })
}

/// Releases a target. Requests that were prepared with it remain valid. The region is forgotten with its last target.
///
/// # Safety
/// `engine` is open; `target` belongs to it, comes from `ofi_nixl_load_own` or `ofi_nixl_load_region`, and is released
/// once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_unload(engine: *const Engine, target: *mut Target) -> c_int {
    call("unloading a peer's memory", || {
        // SAFETY: the caller's promise.
        let (engine, target) = unsafe { (&*engine, Box::from_raw(target)) };
        if !engine.born.is_here() {
            return Ok(status::SUCCESS);
        }
        engine.unload((target.peer, target.region));
        Ok(status::SUCCESS)
    })
}

impl Registered {
    /// The range of `len` bytes at an address.
    pub(crate) fn slice(&self, addr: u64, len: u64) -> Result<Local> {
        let start = offset(self.addr, addr)?;
        let end = start.checked_add(len);
        let end = end.ok_or_else(|| Error::with(Errno::EINVAL, "address plus length exceeds 64 bits"))?;
        match &self.region {
            MemoryKind::Host(region) => region.slice(start..end),
            MemoryKind::Device(region) => region.slice(start..end),
        }
    }

    fn id(&self) -> u64 {
        match &self.region {
            MemoryKind::Host(region) => region.id(),
            MemoryKind::Device(region) => region.id(),
        }
    }

    fn metadata(&self, agent: &Agent) -> Result<Vec<u8>> {
        match &self.region {
            MemoryKind::Host(region) => agent.metadata_of(region),
            MemoryKind::Device(region) => agent.metadata_of(region),
        }
    }

    /// Returns when neither transfers nor peers use the memory any more.
    fn revoke(&self, agent: &Agent) -> Result<()> {
        match &self.region {
            MemoryKind::Host(region) => agent.revoke(region, REVOKE_TIMEOUT),
            MemoryKind::Device(region) => agent.revoke(region, REVOKE_TIMEOUT),
        }
    }
}

impl Target {
    pub(crate) fn offset(&self, addr: u64) -> Result<u64> {
        offset(self.addr, addr)
    }
}

fn offset(base: u64, addr: u64) -> Result<u64> {
    addr.checked_sub(base).ok_or_else(|| {
        Error::wanted(
            Errno::EINVAL,
            "a descriptor's address",
            format!("one from {base:#x} on, where its memory begins"),
            format!("{addr:#x}"),
            "give descriptors inside the registered memory",
        )
    })
}
