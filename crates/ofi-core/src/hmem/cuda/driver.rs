//! The functions of `libcuda.so.1` that this project calls.
//!
//! A hand-written table. Generated bindings would have an enum for results, which is undefined behaviour for a result
//! of a newer driver, and would panic if a function is missing.
#![allow(non_snake_case, reason = "CUDA's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

use ofi_api::{Errno, Error, Result};

pub(super) type Context = *mut c_void;
pub(super) type CuStream = *mut c_void;
pub(super) type CuEvent = *mut c_void;
/// `CUipcMemHandle`, which is passed by value: 64 bytes in a struct, which C passes on the stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct IpcHandle(pub(super) [u8; 64]);

/// Text, its room, device.
pub(super) type PciBusId = unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int;
/// Place of the handle, address, length, kind of handle, flags.
pub(super) type RangeHandle = unsafe extern "C" fn(*mut c_void, u64, usize, c_int, u64) -> c_int;

/// Place of the value, attribute, device.
pub(super) type DeviceAttribute = unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int;

/// Value, attribute, address.
pub(super) type SetAttribute = unsafe extern "C" fn(*const c_void, c_int, u64) -> c_int;

/// `CUDA_ERROR_NOT_READY`.
pub(super) const NOT_READY: c_int = 600;

macro_rules! table {
    ($($name:ident($($arg:ty),*);)*) => {
        /// The driver's functions.
        pub(super) struct Driver {
            $(pub(super) $name: unsafe extern "C" fn($($arg),*) -> c_int,)*
            /// `cuDeviceGetPCIBusId`.
            pub(super) pci_bus_id: Option<PciBusId>,
            /// `cuMemGetHandleForAddressRange`, which drivers have since CUDA 11.7.
            pub(super) range_handle: Option<RangeHandle>,
            /// `cuPointerSetAttribute`.
            pub(super) set_attribute: Option<SetAttribute>,
            /// `cuDeviceGetAttribute`.
            pub(super) device_attribute: Option<DeviceAttribute>,
        }

        impl Driver {
            fn of(library: &'static libloading::Library) -> std::result::Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the type is that of cuda.h; the library is never unloaded.
                        let found = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *found.map_err(|_| stringify!($name))?
                    },)*
                    // SAFETY: as above.
                    pci_bus_id: unsafe { library.get(b"cuDeviceGetPCIBusId\0") }.ok().map(|found| *found),
                    // SAFETY: as above.
                    range_handle: unsafe { library.get(b"cuMemGetHandleForAddressRange\0") }
                        .ok()
                        .map(|found| *found),
                    // SAFETY: as above.
                    set_attribute: unsafe { library.get(b"cuPointerSetAttribute\0") }.ok().map(|found| *found),
                    // SAFETY: as above.
                    device_attribute: unsafe { library.get(b"cuDeviceGetAttribute\0") }.ok().map(|found| *found),
                })
            }
        }
    };
}

table! {
    cuInit(c_uint);
    cuGetErrorName(c_int, *mut *const c_char);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetUuid(*mut [u8; 16], c_int);
    cuDevicePrimaryCtxRetain(*mut Context, c_int);
    cuDevicePrimaryCtxRelease_v2(c_int);
    cuCtxPushCurrent_v2(Context);
    cuCtxPopCurrent_v2(*mut Context);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemFree_v2(u64);
    cuMemAllocHost_v2(*mut *mut c_void, usize);
    cuMemFreeHost(*mut c_void);
    cuMemGetAddressRange_v2(*mut u64, *mut usize, u64);
    cuPointerGetAttribute(*mut c_void, c_int, u64);
    cuIpcGetMemHandle(*mut IpcHandle, u64);
    cuIpcOpenMemHandle_v2(*mut u64, IpcHandle, c_uint);
    cuIpcCloseMemHandle(u64);
    cuStreamCreate(*mut CuStream, c_uint);
    cuStreamDestroy_v2(CuStream);
    cuStreamSynchronize(CuStream);
    cuMemcpyAsync(u64, u64, usize, CuStream);
    cuEventCreate(*mut CuEvent, c_uint);
    cuEventRecord(CuEvent, CuStream);
    cuEventQuery(CuEvent);
    cuEventDestroy_v2(CuEvent);
}

/// The driver, loaded by the first call. It is not initialised, so that a process that forks later can still use it.
pub(super) fn installed() -> std::result::Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<std::result::Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(load).as_ref().map_err(String::as_str)
}

/// The driver, initialised by the first call.
pub(super) fn driver() -> Result<&'static Driver> {
    static READY: OnceLock<std::result::Result<&'static Driver, String>> = OnceLock::new();
    let ready = READY.get_or_init(|| installed().map_err(str::to_string).and_then(start));
    ready.as_ref().copied().map_err(|why| {
        let todo = "install NVIDIA's driver, or use memory of the host";
        Error::wanted(
            Errno::ENODEV,
            "memory of a CUDA device",
            "the driver's libcuda.so.1",
            why.clone(),
            todo,
        )
    })
}

fn load() -> std::result::Result<Driver, String> {
    // SAFETY: the initialisers of the driver's library require nothing of their caller.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.map_err(|error| error.to_string())?;
    // Its threads live as long as the process.
    let library: &'static libloading::Library = Box::leak(Box::new(library));
    Driver::of(library).map_err(|name| format!("a libcuda.so.1 without {name}"))
}

fn start(driver: &'static Driver) -> std::result::Result<&'static Driver, String> {
    // SAFETY: the first call, as cuda.h requires.
    let result = unsafe { (driver.cuInit)(0) };
    if result == 0 { Ok(driver) } else { Err(format!("cuInit returned {}", driver.name(result))) }
}

impl Driver {
    /// The name of a result.
    fn name(&self, result: c_int) -> String {
        let mut name = ptr::null();
        // SAFETY: a place for the name.
        let found = unsafe { (self.cuGetErrorName)(result, &raw mut name) };
        if found != 0 || name.is_null() {
            return format!("CUresult {result}");
        }
        // SAFETY: a static string of the driver.
        let name = unsafe { CStr::from_ptr(name) };
        format!("{} ({result})", name.to_string_lossy())
    }

    /// Returns an error unless the call has succeeded.
    pub(super) fn check(&self, call: &'static str, result: c_int) -> Result<()> {
        let (errno, todo) = match result {
            0 => return Ok(()),
            1 => (Errno::EINVAL, "give memory of this device that was not freed"),
            2 => (Errno::ENOMEM, "free memory of the device (nvidia-smi shows who has it)"),
            100 | 101 => {
                (Errno::ENODEV, "choose a device that nvidia-smi lists, and look at CUDA_VISIBLE_DEVICES")
            }
            201 => (Errno::EINVAL, "a context was destroyed under this process: open the device again"),
            217 | 801 => (Errno::ENOSYS, "the device or its driver lacks it: use memory of the host there"),
            _ => (Errno::EIO, "look for errors of the device (nvidia-smi, dmesg)"),
        };
        Err(Error::wanted(errno, call, "CUDA_SUCCESS", self.name(result), todo))
    }
}
