//! NIXL's backend with memory of a device (`VRAM_SEG`), through its C interface, over the emulator.
#![allow(clippy::multiple_unsafe_ops_per_block)] // the arguments of a call are one promise of its caller

mod support;

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use multirail::memory::cuda::{Cuda, DeviceMemory};
use nixl_plugin::{Bytes, Sink};
use support::{INSIDE, is_inside, without_driver};

/// `crates/nixl-plugin/shim/ofi_nixl.h`, as the shim sees it.
#[repr(C)]
struct Descriptor {
    region: *const c_void,
    local: u64,
    target: *const c_void,
    remote: u64,
    local_len: u64,
    remote_len: u64,
}

unsafe extern "C" {
    fn ofi_nixl_may_have_devices() -> bool;
    fn ofi_nixl_has_devices() -> bool;
    fn ofi_nixl_open(
        name: Bytes,
        options: *const Bytes,
        pairs: usize,
        progress: bool,
        out: *mut *mut c_void,
    ) -> c_int;
    fn ofi_nixl_close(engine: *mut c_void);
    fn ofi_nixl_conn_info(engine: *const c_void, sink: Sink, to: *mut c_void) -> c_int;
    fn ofi_nixl_load_peer(engine: *const c_void, peer: Bytes, info: Bytes) -> c_int;
    fn ofi_nixl_connect(engine: *const c_void, peer: Bytes) -> c_int;
    fn ofi_nixl_notifications(engine: *const c_void, sink: Sink, to: *mut c_void) -> c_int;
    fn ofi_nixl_register(
        engine: *const c_void,
        addr: *mut c_void,
        len: usize,
        out: *mut *mut c_void,
    ) -> c_int;
    fn ofi_nixl_register_device(
        engine: *const c_void,
        ordinal: u64,
        addr: u64,
        len: usize,
        out: *mut *mut c_void,
    ) -> c_int;
    fn ofi_nixl_deregister(engine: *const c_void, region: *mut c_void) -> c_int;
    fn ofi_nixl_region_info(
        engine: *const c_void,
        region: *const c_void,
        sink: Sink,
        to: *mut c_void,
    ) -> c_int;
    fn ofi_nixl_load_own(engine: *const c_void, region: *const c_void, out: *mut *mut c_void) -> c_int;
    fn ofi_nixl_load_region(
        engine: *const c_void,
        peer: Bytes,
        info: Bytes,
        addr: u64,
        len: u64,
        out: *mut *mut c_void,
    ) -> c_int;
    fn ofi_nixl_unload(engine: *const c_void, target: *mut c_void) -> c_int;
    fn ofi_nixl_prepare(
        engine: *const c_void,
        is_write: bool,
        peer: Bytes,
        descriptors: *const Descriptor,
        count: usize,
        out: *mut *mut c_void,
    ) -> c_int;
    fn ofi_nixl_post(request: *const c_void, has_message: bool, message: Bytes) -> c_int;
    fn ofi_nixl_check(request: *const c_void) -> c_int;
    fn ofi_nixl_release(request: *mut c_void) -> c_int;
}

/// `nixl_status_t`.
const IN_PROGRESS: c_int = 1;
const SUCCESS: c_int = 0;
const INVALID_PARAM: c_int = -2;
const NOT_SUPPORTED: c_int = -9;

const LEN: usize = (3 << 20) + 7;
const LONG: Duration = Duration::from_secs(30);

/// The bytes that a sink received as its second argument, call by call.
type Heard = Vec<Vec<u8>>;

/// `ofi_bytes` of the header.
#[repr(C)]
struct Raw {
    at: *const u8,
    len: usize,
}

unsafe extern "C" fn collect(to: *mut c_void, _: Bytes, second: Bytes) {
    // SAFETY: both are the header's `ofi_bytes`, and `to` is the vector of `gathered`.
    let (list, Raw { at, len }) =
        unsafe { (&mut *to.cast::<Heard>(), std::mem::transmute::<Bytes, Raw>(second)) };
    // SAFETY: valid for the call.
    list.push(if len == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(at, len) }.to_vec() });
}

fn gathered(call: impl FnOnce(Sink, *mut c_void) -> c_int) -> Heard {
    let mut list = Heard::new();
    assert_eq!(call(collect, (&raw mut list).cast()), SUCCESS);
    list
}

fn pattern(seed: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

/// The program's memory, which it keeps until it has deregistered it.
enum Memory {
    Host(Vec<u8>),
    Device(DeviceMemory),
}

impl Memory {
    fn new(kind: &str) -> Self {
        match kind {
            "dram" => Self::Host(vec![0; LEN]),
            _ => Self::Device(Cuda::open(0).unwrap().alloc(LEN).unwrap()),
        }
    }

    fn addr(&mut self) -> u64 {
        match self {
            Self::Host(bytes) => bytes.as_mut_ptr().expose_provenance() as u64,
            Self::Device(memory) => memory.address(),
        }
    }
}

struct Side {
    name: &'static str,
    engine: *mut c_void,
    memory: Memory,
    region: *mut c_void,
}

impl Side {
    fn open(name: &'static str, kind: &str) -> Self {
        let options = [Bytes::of(b"rails"), Bytes::of(b"shm")];
        let (mut engine, mut region, mut memory) = (null_mut(), null_mut(), Memory::new(kind));
        let addr = memory.addr();
        // SAFETY: borrowed arguments outlive the calls; the memory stays until `close`.
        unsafe {
            let name = Bytes::of(name.as_bytes());
            assert_eq!(ofi_nixl_open(name, options.as_ptr(), 1, false, &raw mut engine), SUCCESS);
            let done = match &memory {
                Memory::Device(_) => ofi_nixl_register_device(engine, 0, addr, LEN, &raw mut region),
                Memory::Host(_) => {
                    let at = std::ptr::with_exposed_provenance_mut(addr as usize);
                    ofi_nixl_register(engine, at, LEN, &raw mut region)
                }
            };
            assert_eq!(done, SUCCESS);
        }
        Self { name, engine, memory, region }
    }

    /// Loads the other's region as a target.
    fn load(&self, other: &mut Self) -> *mut c_void {
        let (name, mut target) = (Bytes::of(other.name.as_bytes()), null_mut());
        // SAFETY: both are open.
        unsafe {
            let conn = gathered(|sink, to| ofi_nixl_conn_info(other.engine, sink, to));
            let info = gathered(|sink, to| ofi_nixl_region_info(other.engine, other.region, sink, to));
            assert_eq!(ofi_nixl_load_peer(self.engine, name, Bytes::of(&conn[0])), SUCCESS);
            let (info, addr) = (Bytes::of(&info[0]), other.memory.addr());
            let done = ofi_nixl_load_region(self.engine, name, info, addr, LEN as u64, &raw mut target);
            assert_eq!(done, SUCCESS);
        }
        target
    }

    fn prepare(
        &mut self,
        write: bool,
        peer: (&str, u64),
        target: *const c_void,
        range: (u64, u64),
    ) -> Result<*mut c_void, c_int> {
        let ((name, remote), (at, len)) = (peer, range);
        let local = self.memory.addr() + at;
        let remote = remote + at;
        let descriptor =
            Descriptor { region: self.region, local, target, remote, local_len: len, remote_len: len };
        let (name, mut request) = (Bytes::of(name.as_bytes()), null_mut());
        // SAFETY: all handles are open.
        match unsafe {
            ofi_nixl_prepare(self.engine, write, name, &raw const descriptor, 1, &raw mut request)
        } {
            SUCCESS => Ok(request),
            other => Err(other),
        }
    }

    /// Fills the memory, or reads it, through a separate engine, because the processor cannot access device memory.
    fn bytes(&mut self, put: Option<&[u8]>) -> Vec<u8> {
        match &mut self.memory {
            Memory::Host(bytes) => {
                put.into_iter().for_each(|put| bytes.copy_from_slice(put));
                bytes.clone()
            }
            Memory::Device(memory) => {
                let agent = multirail::Agent::builder("hand").rail(ofi::Hints::new().provider("shm"));
                let agent = agent.open().unwrap();
                // SAFETY: the memory outlives the region, which no transfer uses.
                let part = unsafe { Cuda::open(0).unwrap().borrow(memory.address(), LEN) }.unwrap();
                let region = agent.register_device(part).unwrap();
                put.into_iter().for_each(|put| region.write_from(0, put).unwrap());
                let mut bytes = vec![0; LEN];
                region.read_into(0, &mut bytes).unwrap();
                bytes
            }
        }
    }

    fn close(self) {
        // SAFETY: each is released once, and the memory after its registration.
        unsafe {
            assert_eq!(ofi_nixl_deregister(self.engine, self.region), SUCCESS);
            ofi_nixl_close(self.engine);
        }
    }
}

/// Posts, and polls both sides until the transfer has ended and the other has its notification.
fn run(side: &Side, other: &Side, request: *const c_void) {
    let (began, mut heard) = (Instant::now(), Heard::new());
    // SAFETY: the handles are open.
    unsafe {
        let mut state = ofi_nixl_post(request, true, Bytes::of(b"done"));
        while state == IN_PROGRESS || heard.is_empty() {
            assert!(began.elapsed() < LONG && state >= 0, "{state}, heard {heard:?}");
            heard.extend(gathered(|sink, to| ofi_nixl_notifications(other.engine, sink, to)));
            heard.extend(gathered(|sink, to| ofi_nixl_notifications(side.engine, sink, to)));
            state = ofi_nixl_check(request);
        }
        assert_eq!(state, SUCCESS);
    }
    assert_eq!(heard, [b"done"]);
}

/// Writes and reads with every pair of kinds that includes a device, every byte compared.
#[test]
fn memory_of_a_device_is_written_and_read() {
    if !is_inside("memory_of_a_device_is_written_and_read", &[]) {
        return;
    }
    // SAFETY: takes nothing.
    assert!(unsafe { ofi_nixl_may_have_devices() && ofi_nixl_has_devices() });
    for (ours, theirs) in [("vram", "dram"), ("dram", "vram"), ("vram", "vram")] {
        let (mut here, mut there) = (Side::open("here", ours), Side::open("there", theirs));
        let target = here.load(&mut there);
        there.load(&mut here);
        // SAFETY: the engine is open.
        assert_eq!(unsafe { ofi_nixl_connect(here.engine, Bytes::of(b"there")) }, SUCCESS);
        for (write, seed) in [(true, 1), (false, 2), (true, 3)] {
            let (from, to) = if write { (&mut here, &mut there) } else { (&mut there, &mut here) };
            from.bytes(Some(&pattern(seed)));
            to.bytes(Some(&[0; LEN]));
            let place = ("there", there.memory.addr());
            let request = here.prepare(write, place, target, (0, LEN as u64)).unwrap();
            run(&here, &there, request);
            let to = if write { &mut there } else { &mut here };
            assert!(to.bytes(None) == pattern(seed), "{ours} to {theirs}, write {write}");
            // SAFETY: released once.
            assert_eq!(unsafe { ofi_nixl_release(request) }, SUCCESS);
        }
        let place = ("there", there.memory.addr());
        assert_eq!(here.prepare(true, place, target, (1, LEN as u64)), Err(INVALID_PARAM));
        // SAFETY: released once.
        assert_eq!(unsafe { ofi_nixl_unload(here.engine, target) }, SUCCESS);
        here.close();
        there.close();
    }
}

/// An agent that moves memory of its device to another part of it.
#[test]
fn an_agent_s_own_device_is_its_target() {
    if !is_inside("an_agent_s_own_device_is_its_target", &[]) {
        return;
    }
    let mut side = Side::open("alone", "vram");
    let mut target = null_mut();
    // SAFETY: the handles are open.
    unsafe {
        assert_eq!(ofi_nixl_connect(side.engine, Bytes::of(b"alone")), SUCCESS);
        assert_eq!(ofi_nixl_load_own(side.engine, side.region, &raw mut target), SUCCESS);
    }
    side.bytes(Some(&pattern(1)));
    let half = LEN as u64 / 2;
    let place = ("alone", side.memory.addr() + half);
    let request = side.prepare(true, place, target, (0, half)).unwrap();
    run(&side, &side, request);
    let (wanted, found) = (pattern(1), side.bytes(None));
    assert!(found[half as usize..][..half as usize] == wanted[..half as usize]);
    assert!(found[..half as usize] == wanted[..half as usize]);
    // SAFETY: released once.
    unsafe {
        assert_eq!(ofi_nixl_release(request), SUCCESS);
        assert_eq!(ofi_nixl_unload(side.engine, target), SUCCESS);
    }
    side.close();
}

/// Memory that is not on a device, on a device that does not exist, or too long.
#[test]
fn what_is_no_memory_of_the_device_is_refused() {
    if !is_inside("what_is_no_memory_of_the_device_is_refused", &[("CUDA_EMULATOR_DEVICES", "2")]) {
        return;
    }
    let (mut side, mut region) = (Side::open("alone", "vram"), null_mut());
    let (addr, host) = (side.memory.addr(), vec![0_u8; 4096]);
    let host = host.as_ptr().expose_provenance() as u64;
    let wrong = [
        (0, host, 64),
        (1, addr, 64),
        (u64::from(u32::MAX) + 1, addr, 64),
        (0, addr, 2 * LEN),
        (0, 0, 64),
        (0, addr, 0),
    ];
    for (ordinal, addr, len) in wrong {
        // SAFETY: the engine is open.
        let done = unsafe { ofi_nixl_register_device(side.engine, ordinal, addr, len, &raw mut region) };
        assert_eq!((done, region), (INVALID_PARAM, null_mut()), "device {ordinal}, {len} bytes at {addr:#x}");
    }
    // SAFETY: as above.
    assert!(unsafe { ofi_nixl_register_device(side.engine, 7, addr, 64, &raw mut region) } < 0);
    side.close();
}

/// The kind of memory is offered only where there is a driver, and refused elsewhere.
#[test]
fn without_a_driver_it_is_not_offered() {
    let test = "without_a_driver_it_is_not_offered";
    if std::env::var_os(INSIDE).is_none() {
        // The driver is installed, but there is no device.
        is_inside(test, &[("CUDA_EMULATOR_DEVICES", "0")]);
        return without_driver(test);
    }
    let has_driver = std::env::var_os("CUDA_EMULATOR_DEVICES").is_some();
    let side = Side::open("alone", "dram");
    let mut region = null_mut();
    // SAFETY: the engine is open.
    unsafe {
        assert_eq!(ofi_nixl_may_have_devices(), has_driver);
        assert!(!ofi_nixl_has_devices());
        let done = ofi_nixl_register_device(side.engine, 0, 4096, 64, &raw mut region);
        assert_eq!((done, region.cast_const()), (NOT_SUPPORTED, null()));
    }
    side.close();
}
