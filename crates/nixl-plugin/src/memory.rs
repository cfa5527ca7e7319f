//! Memory of the NIXL program and of its peers.

use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

use multirail::Region;
use ofi::{Buffer, BufferMut, Errno, Error, RawBuffer, Result};

use crate::border::{Bytes, Sink, call, put, status};
use crate::engine::Engine;

/// How long deregistration waits for transfers that use the region.
const PATIENCE: Duration = Duration::from_secs(10);

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
    pub(crate) region: Region<Foreign>,
    pub(crate) addr: u64,
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
        // SAFETY: the caller's promise.
        unsafe { put(out, Registered { region, addr: addr.addr() as u64 }) };
        Ok(status::SUCCESS)
    })
}

/// Releases a region. On success, neither transfers nor peers use the memory any more. On failure the handle stays
/// valid.
///
/// # Safety
/// `engine` is open; `region` comes from `ofi_nixl_register`, and is not used by other calls meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_deregister(engine: *const Engine, region: *mut Registered) -> c_int {
    call("deregistering memory", || {
        // SAFETY: the caller's promise.
        let (engine, registered) = unsafe { (&*engine, &*region) };
        engine.agent.revoke(&registered.region, PATIENCE)?;
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
        let bytes = engine.agent.metadata_of(&registered.region)?;
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
        let peer = engine.agent.load(&engine.agent.metadata_of(&registered.region)?)?;
        // SAFETY: the caller's promise.
        unsafe { put(out, Target { peer, region: registered.region.id(), addr: registered.addr }) };
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
        let metadata = engine.load(peer, info)?;
        let [region] = &metadata.regions[..] else {
            return Err(Error::with(
                Errno::EINVAL,
                format!("public data must describe one region, not {}", metadata.regions.len()),
            ));
        };
        if region.len != len {
            return Ok(status::MISMATCH);
        }
        // SAFETY: the caller's promise.
        unsafe { put(out, Target { peer: metadata.name.as_str().into(), region: region.id, addr }) };
        Ok(status::SUCCESS)
    })
}

/// Releases a target. Requests that were prepared with it remain valid.
///
/// # Safety
/// `target` comes from `ofi_nixl_load_own` or `ofi_nixl_load_region`, and is released once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ofi_nixl_unload(target: *mut Target) -> c_int {
    call("unloading a peer's memory", || {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(target) });
        Ok(status::SUCCESS)
    })
}

impl Registered {
    /// The offset of an address in the region.
    pub(crate) fn offset(&self, addr: u64) -> Result<u64> {
        offset(self.addr, addr)
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
            "give descriptors inside what was registered",
        )
    })
}
