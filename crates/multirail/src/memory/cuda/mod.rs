//! Memory of CUDA devices, through the driver's `libcuda.so.1`, which is loaded on first use.
//!
//! A device is used through its primary context, which the CUDA runtime uses too. Each call pushes the context and pops
//! it again, so that threads keep their own context.
#![allow(unsafe_code)]

mod driver;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use driver::{Context, CuEvent, CuStream, Driver, IpcHandle, NOT_READY, driver, installed};
use ofi::{Errno, Error, Result};
use ofi_core::fork::Born;

use super::{Copying, Device, Export, Kind, Mapping, Pinned};
use crate::topology::PciAddress;

/// `CU_STREAM_NON_BLOCKING`: copies do not wait for the program's default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;

/// The number of CUDA devices.
///
/// # Errors
/// `FI_ENODEV` without NVIDIA's driver.
pub fn count() -> Result<u32> {
    let driver = driver()?;
    let mut count = 0;
    // SAFETY: a place for the number.
    driver.check("cuDeviceGetCount", unsafe { (driver.cuDeviceGetCount)(&raw mut count) })?;
    Ok(count.unsigned_abs())
}

/// Whether NVIDIA's driver is installed. The call does not initialise it; [`count`] says whether there is a device.
pub fn is_installed() -> bool {
    installed().is_ok()
}

/// A CUDA device. Clones are the same device.
#[derive(Clone)]
pub struct Cuda(Arc<CudaIpcMapping>);

/// The devices that this process has open.
static OPEN: Mutex<Vec<Weak<CudaIpcMapping>>> = Mutex::new(Vec::new());

struct CudaIpcMapping {
    driver: &'static Driver,
    ordinal: u32,
    device: c_int,
    uuid: [u8; 16],
    context: Context,
    /// One stream to the device and one from it, so that neither waits for the other.
    streams: [CuStream; 2],
    /// The process that may call the driver. A forked child shares the device's files, and must not.
    born: Born,
}

// SAFETY: the handles belong to the driver, which accepts calls from any thread.
unsafe impl Send for CudaIpcMapping {}
// SAFETY: as above.
unsafe impl Sync for CudaIpcMapping {}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({})", self.0.ordinal)
    }
}

impl CudaIpcMapping {
    /// Calls the driver with the device's context as the thread's current one.
    ///
    /// # Errors
    /// The driver's; `FI_EINVAL` in a forked child.
    fn call(&self, call: &'static str, run: impl FnOnce(&Driver) -> c_int) -> Result<()> {
        self.born.check()?;
        // SAFETY: a context that is retained until `drop`.
        let pushed = unsafe { (self.driver.cuCtxPushCurrent_v2)(self.context) };
        self.driver.check("cuCtxPushCurrent", pushed)?;
        let result = run(self.driver);
        let mut was = ptr::null_mut();
        // SAFETY: pops the context that was pushed above.
        unsafe { (self.driver.cuCtxPopCurrent_v2)(&raw mut was) };
        self.driver.check(call, result)
    }
}

impl Drop for CudaIpcMapping {
    fn drop(&mut self) {
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: the stream is ours; copies keep the device, so none is in flight.
            let _ = self.call("cuStreamDestroy", |driver| unsafe { (driver.cuStreamDestroy_v2)(stream) });
        }
        if !self.born.is_here() {
            return;
        }
        // SAFETY: retained once in `open`.
        unsafe { (self.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

impl Cuda {
    /// Opens the device with this ordinal. Opening it again returns the same device.
    ///
    /// # Errors
    /// `FI_ENODEV` without NVIDIA's driver, or without such a device; the driver's errors.
    pub fn open(ordinal: u32) -> Result<Self> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = open.iter().filter_map(Weak::upgrade).find(|opened| opened.ordinal == ordinal);
        if let Some(opened) = known {
            return Ok(Self(opened));
        }
        let opened = Arc::new(Self::open_anew(ordinal)?);
        open.retain(|opened| opened.strong_count() > 0);
        open.push(Arc::downgrade(&opened));
        Ok(Self(opened))
    }

    /// The device with this UUID, if the process has it open.
    pub(crate) fn opened(uuid: &[u8; 16]) -> Option<Self> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter_map(Weak::upgrade).find(|opened| opened.uuid == *uuid).map(Self)
    }

    fn open_anew(ordinal: u32) -> Result<CudaIpcMapping> {
        let driver = driver()?;
        let (mut device, mut uuid, mut context) = (0, [0; 16], ptr::null_mut());
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: a place for the device.
        driver.check("cuDeviceGet", unsafe { (driver.cuDeviceGet)(&raw mut device, number) })?;
        // SAFETY: a place for 16 bytes.
        driver.check("cuDeviceGetUuid", unsafe { (driver.cuDeviceGetUuid)(&raw mut uuid, device) })?;
        // SAFETY: a place for the context.
        let retained = unsafe { (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", retained)?;
        let (streams, born) = ([ptr::null_mut(); 2], Born::here());
        let mut opened = CudaIpcMapping { driver, ordinal, device, uuid, context, streams, born };
        for at in 0..2 {
            let mut stream = ptr::null_mut();
            // SAFETY: a place for the stream.
            opened.call("cuStreamCreate", |driver| unsafe {
                (driver.cuStreamCreate)(&raw mut stream, NON_BLOCKING)
            })?;
            opened.streams[at] = stream;
        }
        Ok(opened)
    }

    /// Allocates memory of the device, for [`Agent::register_device`](crate::Agent::register_device).
    ///
    /// # Errors
    /// `FI_ENOMEM`, and the driver's other errors.
    pub fn alloc(&self, len: usize) -> Result<DeviceMemory> {
        let mut at = 0;
        // SAFETY: a place for the address.
        self.0.call("cuMemAlloc", |driver| unsafe { (driver.cuMemAlloc_v2)(&raw mut at, len) })?;
        Ok(DeviceMemory { device: self.clone(), at, len, is_owned: true })
    }

    /// Memory that the program has allocated with CUDA, or a part of it, on the device that owns it.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that does not belong to a device, and for a range beyond its allocation.
    ///
    /// # Safety
    /// The memory stays allocated as long as the value, or a region made of it, exists, and until the copies in flight
    /// when the region is dropped have ended: [`Agent::revoke`](crate::Agent::revoke) waits for them.
    pub unsafe fn borrow(&self, at: u64, len: usize) -> Result<DeviceMemory> {
        let mut ordinal: c_int = -1;
        self.0.call("cuPointerGetAttribute", |driver| {
            // SAFETY: a place for the attribute, which is an int.
            unsafe { (driver.cuPointerGetAttribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, at) }
        })?;
        let (base, whole) = self.allocation(at)?;
        if ordinal != self.0.device || at - base > whole || len as u64 > whole - (at - base) {
            return Err(Error::wanted(
                Errno::EINVAL,
                format!("memory of CUDA device {}", self.0.ordinal),
                format!("at most {} bytes of device {}", whole - (at - base).min(whole), self.0.device),
                format!("{len} bytes of device {ordinal}"),
                "give the device and length that the memory was allocated with",
            ));
        }
        Ok(DeviceMemory { device: self.clone(), at, len, is_owned: false })
    }

    /// The start and the length of the allocation that contains an address.
    fn allocation(&self, at: u64) -> Result<(u64, u64)> {
        let (mut base, mut whole) = (0, 0);
        self.0.call("cuMemGetAddressRange", |driver| {
            // SAFETY: places for both.
            unsafe { (driver.cuMemGetAddressRange_v2)(&raw mut base, &raw mut whole, at) }
        })?;
        Ok((base, whole as u64))
    }
}

/// Memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    pub(crate) device: Cuda,
    pub(crate) at: u64,
    pub(crate) len: usize,
    is_owned: bool,
}

impl DeviceMemory {
    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.at
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.is_owned {
            let at = self.at;
            // SAFETY: of `alloc`, and freed once.
            let freed = self.device.0.call("cuMemFree", |driver| unsafe { (driver.cuMemFree_v2)(at) });
            if let Err(error) = freed {
                tracing::warn!(target: "multirail", %error, "memory of a device is leaked");
            }
        }
    }
}

/// The event recorded after a copy.
struct Behind {
    event: CuEvent,
    device: Cuda,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for Behind {}

impl fmt::Debug for Behind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a copy of {:?}", self.device)
    }
}

impl Copying for Behind {
    fn is_done(&mut self) -> Result<bool> {
        let mut is_ready = true;
        self.device.0.call("a copy (cuEventQuery)", |driver| {
            // SAFETY: the event is destroyed only when this is dropped.
            let result = unsafe { (driver.cuEventQuery)(self.event) };
            is_ready = result != NOT_READY;
            if is_ready { result } else { 0 }
        })?;
        Ok(is_ready)
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        // SAFETY: created in `copy`; the driver keeps the state of a pending event.
        let _ =
            self.device.0.call("cuEventDestroy", |driver| unsafe { (driver.cuEventDestroy_v2)(self.event) });
    }
}

/// Pinned memory, freed when this is dropped.
struct Pin {
    at: *mut std::ffi::c_void,
    device: Cuda,
}

// SAFETY: the type only frees the memory.
unsafe impl Send for Pin {}
// SAFETY: as above.
unsafe impl Sync for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: of `pinned`, and freed once.
        let _ = self.device.0.call("cuMemFreeHost", |driver| unsafe { (driver.cuMemFreeHost)(self.at) });
    }
}

/// Memory of another process.
struct Opening {
    /// The base of the driver's mapping.
    base: u64,
    at: u64,
    device: Cuda,
}

impl fmt::Debug for Opening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "memory of another process on {:?}", self.device)
    }
}

impl Mapping for Opening {
    fn at(&self) -> u64 {
        self.at
    }

    fn device(&self) -> &dyn Device {
        &self.device
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        // SAFETY: opened in `import`, and closed once. Copies keep the mapping.
        let closed = self
            .device
            .0
            .call("cuIpcCloseMemHandle", |driver| unsafe { (driver.cuIpcCloseMemHandle)(self.base) });
        if let Err(error) = closed {
            tracing::warn!(target: "multirail", %error, "a mapping of another process's memory is leaked");
        }
    }
}

impl Device for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda(self.0.ordinal)
    }

    fn pci(&self) -> Option<PciAddress> {
        let ask = self.0.driver.pci_bus_id?;
        let mut text = [0_u8; 16];
        // SAFETY: a place for text, of the given length.
        let result = unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int, self.0.device) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| result == 0)?;
        text.to_str().ok()?.to_ascii_lowercase().parse().ok()
    }

    unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<Box<dyn Copying>> {
        let mut event = ptr::null_mut();
        self.0.call("cuEventCreate", |driver| {
            // SAFETY: a place for the event.
            unsafe { (driver.cuEventCreate)(&raw mut event, NO_TIMING) }
        })?;
        let behind = Box::new(Behind { event, device: self.clone() });
        let is_out = self.allocation(from).is_ok();
        let stream = self.0.streams[usize::from(is_out)];
        // SAFETY: the caller's promise.
        self.0.call("cuMemcpyAsync", |driver| unsafe {
            (driver.cuMemcpyAsync)(to, from, len as usize, stream)
        })?;
        // SAFETY: the event and the stream are ours.
        let recorded =
            self.0.call("cuEventRecord", |driver| unsafe { (driver.cuEventRecord)(event, stream) });
        if let Err(error) = recorded {
            // The copy is in flight, and only this call reports its end.
            // SAFETY: the stream is ours.
            self.0.call("cuStreamSynchronize", |driver| unsafe { (driver.cuStreamSynchronize)(stream) })?;
            return Err(error);
        }
        Ok(behind)
    }

    fn pinned(&self, len: usize) -> Result<Pinned> {
        let mut at = ptr::null_mut();
        // SAFETY: a place for the address.
        self.0.call("cuMemAllocHost", |driver| unsafe { (driver.cuMemAllocHost_v2)(&raw mut at, len) })?;
        // SAFETY: new memory of `len` bytes. It is zeroed since rails may send bytes that were never written.
        unsafe { at.cast::<u8>().write_bytes(0, len) };
        Ok(Pinned { at: at.cast(), len, owner: Box::new(Pin { at, device: self.clone() }) })
    }

    fn export(&self, at: u64) -> Result<Export> {
        let mut handle = IpcHandle([0; 64]);
        let (base, _) = self.allocation(at)?;
        self.0.call("cuIpcGetMemHandle", |driver| {
            // SAFETY: a place for the handle.
            unsafe { (driver.cuIpcGetMemHandle)(&raw mut handle, at) }
        })?;
        Ok(Export { host: super::host()?, device: self.0.uuid, handle: handle.0, offset: at - base })
    }

    fn dmabuf(&self, at: u64) -> Result<(OwnedFd, u64)> {
        let Some(get) = self.0.driver.range_handle else {
            return Err(Error::with(Errno::ENOSYS, "a driver without cuMemGetHandleForAddressRange"));
        };
        let (base, whole) = self.allocation(at)?;
        // The driver requires whole pages of the host.
        let page = rustix::param::page_size() as u64;
        let start = base - base % page;
        let len = (base + whole).next_multiple_of(page) - start;
        let mut fd: c_int = -1;
        self.0.call("cuMemGetHandleForAddressRange", |_| {
            // SAFETY: a place for the handle, which is an int for this kind.
            unsafe { get((&raw mut fd).cast(), start, len as usize, DMA_BUF_FD, 0) }
        })?;
        // SAFETY: a new descriptor, which the driver leaves to its caller.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, at - start))
    }

    fn import(&self, export: &Export, len: u64) -> Result<Arc<dyn Mapping>> {
        if export.host != super::host()? {
            return Err(Error::with(
                Errno::EHOSTUNREACH,
                "the memory is on another host and cannot be mapped",
            ));
        }
        // Another device's memory is mapped if the driver can give this one access to it.
        let mut base = 0;
        self.0.call("cuIpcOpenMemHandle", |driver| unsafe {
            // SAFETY: any 64 bytes are permitted: the driver checks them.
            (driver.cuIpcOpenMemHandle_v2)(&raw mut base, IpcHandle(export.handle), LAZY_PEER_ACCESS)
        })?;
        let opening = Opening { base, at: base.wrapping_add(export.offset), device: self.clone() };
        // The peer's claims about its memory are accepted only as far as the driver confirms them.
        let (start, whole) = self.allocation(base)?;
        let end = export.offset.checked_add(len);
        if end.is_none_or(|end| end > whole - base.saturating_sub(start).min(whole)) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "memory that a peer has exported",
                format!("a range inside its {whole} bytes"),
                format!("{len} bytes at {}", export.offset),
                "the peer's metadata is wrong: load it again",
            ));
        }
        Ok(Arc::new(opening))
    }
}
