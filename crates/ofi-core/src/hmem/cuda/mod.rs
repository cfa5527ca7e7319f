//! Memory of CUDA devices, through the driver's `libcuda.so.1`, which is loaded on first use.
//!
//! A device is used through its primary context, which the CUDA runtime uses too. Each call pushes the context and pops
//! it again, so that threads keep their own current context.

mod driver;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use driver::{Context, CuEvent, CuStream, Driver, IpcHandle, NOT_READY, driver, installed};
use ofi_api::{Errno, Error, Result};

use crate::fork::Born;

/// `CU_STREAM_NON_BLOCKING`: copies do not wait for the program's default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`.
const NO_TIMING: u32 = 2;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: u32 = 1;
/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_int = 2;
/// `CU_MEMORYTYPE_HOST`.
const HOST: c_uint = 1;
/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_int = 9;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: c_int = 6;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;

/// Time limit for waiting for a copy.
const COPY_TIMEOUT: Duration = Duration::from_secs(30);

/// Waits for a copy to end, for a limited time.
///
/// # Errors
/// The copy's error; `FI_ETIMEDOUT` if it is still in flight, in which case its memory must not be used or freed.
pub fn await_copy(mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
    let deadline = Instant::now() + COPY_TIMEOUT;
    while !is_done()? {
        if Instant::now() >= deadline {
            return Err(Error::wanted(
                Errno::ETIMEDOUT,
                "a copy of a device",
                format!("its end within {COPY_TIMEOUT:?}"),
                "none",
                "look for errors of the device (nvidia-smi, dmesg)",
            ));
        }
        std::thread::yield_now();
    }
    Ok(())
}

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

/// Whether there are devices, and the driver exports the memory of each as a dma-buf ([`Cuda::dmabuf`]).
pub fn all_export() -> bool {
    let (Ok(driver), Ok(count)) = (driver(), count()) else { return false };
    let (Some(attribute), Some(_)) = (driver.device_attribute, driver.range_handle) else { return false };
    let exports = |ordinal: u32| {
        let (mut device, mut is_supported): (c_int, c_int) = (0, 0);
        // SAFETY: a place for the device.
        let found = unsafe { (driver.cuDeviceGet)(&raw mut device, ordinal as c_int) };
        // SAFETY: a place for the value, which is an int.
        found == 0
            && unsafe { attribute(&raw mut is_supported, DMA_BUF_SUPPORTED, device) } == 0
            && is_supported == 1
    };
    count > 0 && (0..count).all(exports)
}

/// Whether NVIDIA's driver is installed. Does not initialise it; [`count`] says whether there is a device.
pub fn is_installed() -> bool {
    installed().is_ok()
}

/// The processors that may access memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryType {
    /// The processor too: CUDA has allocated memory of the host.
    Host,
    /// The device with this ordinal.
    Device(u32),
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// To a device, from the host.
    ToDevice,
    /// From a device, to the host or to a device.
    FromDevice,
}

/// A CUDA device. Clones are the same device.
#[derive(Clone)]
pub struct Cuda(Arc<OpenDevice>);

/// The devices that this process has open.
static OPEN: Mutex<Vec<Weak<OpenDevice>>> = Mutex::new(Vec::new());

struct OpenDevice {
    driver: &'static Driver,
    ordinal: u32,
    device: c_int,
    uuid: [u8; 16],
    context: Context,
    /// One stream to the device and one from it, so that neither waits for the other.
    streams: [CuStream; 2],
    /// The process that may call the driver. A forked child inherits the device's files, and must not call it.
    born: Born,
}

// SAFETY: the handles belong to the driver, which accepts calls from any thread.
unsafe impl Send for OpenDevice {}
// SAFETY: as above.
unsafe impl Sync for OpenDevice {}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda({})", self.0.ordinal)
    }
}

impl OpenDevice {
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

impl Drop for OpenDevice {
    fn drop(&mut self) {
        for stream in self.streams.into_iter().filter(|stream| !stream.is_null()) {
            // SAFETY: the stream belongs to this device; copies keep the device alive, so none is in flight.
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
    pub fn opened(uuid: &[u8; 16]) -> Option<Self> {
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.iter().filter_map(Weak::upgrade).find(|opened| opened.uuid == *uuid).map(Self)
    }

    /// The device with this UUID, opened if the process does not have it open; `None` if there is no such device.
    ///
    /// # Errors
    /// As [`Cuda::open`].
    pub fn of_uuid(uuid: &[u8; 16]) -> Result<Option<Self>> {
        if let Some(opened) = Self::opened(uuid) {
            return Ok(Some(opened));
        }
        let driver = driver()?;
        let is_it = |ordinal: &u32| {
            let (mut device, mut found) = (0, [0; 16]);
            // SAFETY: a place for the device.
            let got = unsafe { (driver.cuDeviceGet)(&raw mut device, *ordinal as c_int) };
            // SAFETY: a place for 16 bytes.
            got == 0 && unsafe { (driver.cuDeviceGetUuid)(&raw mut found, device) } == 0 && found == *uuid
        };
        (0..count()?).find(is_it).map(Self::open).transpose()
    }

    fn open_anew(ordinal: u32) -> Result<OpenDevice> {
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
        let mut opened = OpenDevice { driver, ordinal, device, uuid, context, streams, born };
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

    /// Its ordinal in this process.
    pub fn ordinal(&self) -> u32 {
        self.0.ordinal
    }

    /// Its PCI address as text, if the driver reports it.
    pub fn pci_bus_id(&self) -> Option<String> {
        let ask = self.0.driver.pci_bus_id?;
        let mut text = [0_u8; 16];
        // SAFETY: a place for text, of the given length.
        let result = unsafe { ask(text.as_mut_ptr().cast(), text.len() as c_int, self.0.device) };
        let text = CStr::from_bytes_until_nul(&text).ok().filter(|_| result == 0)?;
        Some(text.to_str().ok()?.to_ascii_lowercase())
    }

    /// Allocates memory of the device.
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
    /// The memory stays allocated while this value, or anything made from it, exists, and then until the last copies in
    /// flight have ended.
    pub unsafe fn borrow(&self, at: u64, len: usize) -> Result<DeviceMemory> {
        let ordinal = self.owner(at)?;
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

    /// The processors that may access the memory at an address.
    ///
    /// # Errors
    /// `FI_EINVAL` for memory that CUDA does not know.
    pub(super) fn memory_type(&self, at: u64) -> Result<MemoryType> {
        let mut kind: c_uint = 0;
        self.0.call("cuPointerGetAttribute", |driver| {
            // SAFETY: a place for the attribute, which is an unsigned int.
            unsafe { (driver.cuPointerGetAttribute)((&raw mut kind).cast(), MEMORY_TYPE, at) }
        })?;
        if kind == HOST {
            return Ok(MemoryType::Host);
        }
        let unknown = || Error::with(Errno::EINVAL, format!("{at:#x} is memory of no device"));
        Ok(MemoryType::Device(u32::try_from(self.owner(at)?).map_err(|_| unknown())?))
    }

    /// The driver's number of the device that owns the memory at an address.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that belongs to no device.
    fn owner(&self, at: u64) -> Result<c_int> {
        let mut ordinal: c_int = -1;
        self.0.call("cuPointerGetAttribute", |driver| {
            // SAFETY: a place for the attribute, which is an int.
            unsafe { (driver.cuPointerGetAttribute)((&raw mut ordinal).cast(), DEVICE_ORDINAL, at) }
        })?;
        Ok(ordinal)
    }

    /// The start and the length of the allocation that contains an address.
    ///
    /// # Errors
    /// `FI_EINVAL` for an address that belongs to no device.
    pub fn allocation(&self, at: u64) -> Result<(u64, u64)> {
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
    device: Cuda,
    at: u64,
    len: usize,
    is_owned: bool,
}

impl DeviceMemory {
    /// Its address on the device.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// Its length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nothing depends on it")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The device that it belongs to.
    pub fn device(&self) -> &Cuda {
        &self.device
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.is_owned {
            let at = self.at;
            // SAFETY: of `alloc`, and freed once.
            let freed = self.device.0.call("cuMemFree", |driver| unsafe { (driver.cuMemFree_v2)(at) });
            if let Err(error) = freed {
                tracing::warn!(target: "ofi::core::hmem", %error, "memory of a device is leaked");
            }
        }
    }
}

/// A copy in flight, and the event recorded after it. Dropping this does not end the copy.
#[derive(Debug)]
pub struct PendingCopy {
    event: CuEvent,
    device: Cuda,
}

// SAFETY: a handle of the driver, used by one thread at a time.
unsafe impl Send for PendingCopy {}

impl PendingCopy {
    /// Whether the copy has ended.
    ///
    /// # Errors
    /// The copy has failed, and no part of it is in flight.
    pub fn is_done(&mut self) -> Result<bool> {
        let mut is_ready = true;
        self.device.0.call("a copy (cuEventQuery)", |driver| {
            // SAFETY: the event is destroyed only when this is dropped.
            let result = unsafe { (driver.cuEventQuery)(self.event) };
            is_ready = result != NOT_READY;
            if is_ready { result } else { 0 }
        })?;
        Ok(is_ready)
    }

    /// Waits for the copy to end, for a limited time.
    ///
    /// # Errors
    /// The copy has failed; or `FI_ETIMEDOUT` if it is still in flight, in which case its memory must not be used or
    /// freed.
    pub fn wait(mut self) -> Result<()> {
        await_copy(|| self.is_done())
    }
}

impl Drop for PendingCopy {
    fn drop(&mut self) {
        // SAFETY: created in `copy_towards`; the driver keeps the state of a pending event.
        let _ =
            self.device.0.call("cuEventDestroy", |driver| unsafe { (driver.cuEventDestroy_v2)(self.event) });
    }
}

/// Host memory that a device has pinned: copies to and from it are fast. Freed when this is dropped.
#[derive(Debug)]
pub struct PinnedMemory {
    at: *mut c_void,
    len: usize,
    device: Cuda,
}

// SAFETY: the value owns the memory; it only returns its address and frees it.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at.cast()
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "nothing depends on it")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: of `pinned`, and freed once.
        let _ = self.device.0.call("cuMemFreeHost", |driver| unsafe { (driver.cuMemFreeHost)(self.at) });
    }
}

/// Memory of another process, mapped until this is dropped.
#[derive(Debug)]
pub struct PeerMemory {
    /// The base of the driver's mapping.
    base: u64,
    at: u64,
    device: Cuda,
}

impl PeerMemory {
    /// Its address in this process.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// The device through which it is mapped, and which copies from and to it.
    pub fn device(&self) -> &Cuda {
        &self.device
    }
}

impl Drop for PeerMemory {
    fn drop(&mut self) {
        // SAFETY: opened in `import`, and closed once. Copies keep the mapping alive.
        let closed = self
            .device
            .0
            .call("cuIpcCloseMemHandle", |driver| unsafe { (driver.cuIpcCloseMemHandle)(self.base) });
        if let Err(error) = closed {
            tracing::warn!(target: "ofi::core::hmem", %error, "a mapping of another process's memory is leaked");
        }
    }
}

impl Cuda {
    /// Its UUID, by which other processes know it.
    pub fn uuid(&self) -> [u8; 16] {
        self.0.uuid
    }

    /// Starts to copy between memory of any kind.
    ///
    /// # Errors
    /// As [`Cuda::copy_towards`].
    ///
    /// # Safety
    /// As [`Cuda::copy_towards`].
    pub unsafe fn copy(&self, to: u64, from: u64, len: u64) -> Result<PendingCopy> {
        let direction =
            if self.allocation(from).is_ok() { Direction::FromDevice } else { Direction::ToDevice };
        // SAFETY: the caller's promise.
        unsafe { self.copy_towards(direction, to, from, len) }
    }

    /// Starts to copy, after the other copies in this direction.
    ///
    /// # Errors
    /// The driver's, in which case no copy is in flight. `FI_ETIMEDOUT`: it is unknown whether one is in flight, so its
    /// memory must not be used or freed.
    ///
    /// # Safety
    /// Both ranges are memory of a device or of this process, and stay until the copy [is done](PendingCopy::is_done).
    pub unsafe fn copy_towards(
        &self,
        direction: Direction,
        to: u64,
        from: u64,
        len: u64,
    ) -> Result<PendingCopy> {
        let mut event = ptr::null_mut();
        self.0.call("cuEventCreate", |driver| {
            // SAFETY: a place for the event.
            unsafe { (driver.cuEventCreate)(&raw mut event, NO_TIMING) }
        })?;
        let pending = PendingCopy { event, device: self.clone() };
        let stream = self.0.streams[direction as usize];
        // SAFETY: the caller's promise.
        self.0.call("cuMemcpyAsync", |driver| unsafe {
            (driver.cuMemcpyAsync)(to, from, len as usize, stream)
        })?;
        // SAFETY: the event and the stream are ours.
        let recorded =
            self.0.call("cuEventRecord", |driver| unsafe { (driver.cuEventRecord)(event, stream) });
        if let Err(error) = recorded {
            // The copy is in flight, and only this call waits for it.
            // SAFETY: the stream is ours.
            let ended =
                self.0.call("cuStreamSynchronize", |driver| unsafe { (driver.cuStreamSynchronize)(stream) });
            return Err(match ended {
                Ok(()) => error,
                Err(error) => Error::with(Errno::ETIMEDOUT, format!("a copy whose end is unknown: {error}")),
            });
        }
        Ok(pending)
    }

    /// Allocates pinned host memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn pinned(&self, len: usize) -> Result<PinnedMemory> {
        let mut at = ptr::null_mut();
        // SAFETY: a place for the address.
        self.0.call("cuMemAllocHost", |driver| unsafe { (driver.cuMemAllocHost_v2)(&raw mut at, len) })?;
        // SAFETY: new memory of `len` bytes. It is zeroed, because bytes that were never written may be sent to peers.
        unsafe { at.cast::<u8>().write_bytes(0, len) };
        Ok(PinnedMemory { at, len, device: self.clone() })
    }

    /// The driver's handle of the allocation that contains an address, which other processes of this host
    /// [import](Cuda::import), and the offset of the address in it.
    ///
    /// # Errors
    /// The driver's.
    pub fn export(&self, at: u64) -> Result<([u8; 64], u64)> {
        let mut handle = IpcHandle([0; 64]);
        let (base, _) = self.allocation(at)?;
        self.0.call("cuIpcGetMemHandle", |driver| {
            // SAFETY: a place for the handle.
            unsafe { (driver.cuIpcGetMemHandle)(&raw mut handle, at) }
        })?;
        Ok((handle.0, at - base))
    }

    /// Makes the program's synchronous calls on the allocation at an address wait until its bytes have arrived
    /// (`CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`). `cudaMemset` and copies within a device do not do so by themselves, and
    /// neither the copies of [`Cuda::copy_towards`] nor accesses by NICs wait for the program's streams. A driver that
    /// supports this for some memory only, or not at all, leaves it as it is.
    pub fn synchronise(&self, at: u64) {
        let Some(set) = self.0.driver.set_attribute else { return };
        let on: c_uint = 1;
        let set = self.0.call("cuPointerSetAttribute", |_| {
            // SAFETY: the attribute's value is an unsigned int, which the driver copies.
            unsafe { set((&raw const on).cast(), SYNC_MEMOPS, at) }
        });
        if let Err(error) = set {
            tracing::debug!(target: "ofi::core::hmem", %error, "synchronous calls on a device's memory may end early");
        }
    }

    /// A dma-buf of the memory at an address, which NICs may register, and the offset of the address in it.
    ///
    /// # Errors
    /// `FI_ENOSYS` if the device or its driver cannot export it.
    pub fn dmabuf(&self, at: u64) -> Result<(OwnedFd, u64)> {
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
        // SAFETY: a new descriptor, which the caller of the driver owns.
        Ok((unsafe { OwnedFd::from_raw_fd(fd) }, at - start))
    }

    /// Maps memory that another process of this host has [exported](Cuda::export): `len` bytes from `offset` on.
    ///
    /// # Errors
    /// The driver's; `FI_EINVAL` for a range beyond the other process's allocation.
    pub fn import(&self, handle: [u8; 64], offset: u64, len: u64) -> Result<PeerMemory> {
        // Memory of another device is mapped if the driver can give this device access to it.
        let mut base = 0;
        self.0.call("cuIpcOpenMemHandle", |driver| unsafe {
            // SAFETY: any 64 bytes are permitted: the driver checks them.
            (driver.cuIpcOpenMemHandle_v2)(&raw mut base, IpcHandle(handle), LAZY_PEER_ACCESS)
        })?;
        let memory = PeerMemory { base, at: base.wrapping_add(offset), device: self.clone() };
        // What the peer claims about its memory is accepted only as far as the driver confirms it.
        let (start, whole) = self.allocation(base)?;
        let end = offset.checked_add(len);
        if end.is_none_or(|end| end > whole - base.saturating_sub(start).min(whole)) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "memory that a peer has exported",
                format!("a range inside its {whole} bytes"),
                format!("{len} bytes at {offset}"),
                "the peer's metadata is wrong: load it again",
            ));
        }
        Ok(memory)
    }
}
