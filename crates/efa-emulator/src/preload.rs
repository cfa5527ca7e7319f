//! Replaces the functions of the C library through which rdma-core reaches the kernel. Calls for the device are handled
//! here; all others are passed on to the C library.
//!
//! A device's file is an open /dev/null: it is a character device, as libibverbs requires, and the tree in the place of
//! /sys has its number.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_ulong, c_void};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::time::Duration;

use crate::device::Device;
use crate::formats::Gid;
use crate::settings::Settings;
use crate::sysfs;

/// The C library's own function of this name and type.
macro_rules! next {
    ($name:literal, $type:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
        let mut found = FOUND.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: a name that ends with a zero.
            found = unsafe { libc::dlsym(libc::RTLD_NEXT, $name.as_ptr()) };
            assert!(!found.is_null(), "the C library has no {:?}", $name);
            FOUND.store(found, Ordering::Relaxed);
        }
        // SAFETY: the C library's function of this name has this type.
        unsafe { std::mem::transmute::<*mut c_void, $type>(found) }
    }};
}

/// The devices of this process, and their tree in the place of /sys.
struct Host {
    devices: Vec<(Mutex<Device>, Once)>,
    tree: CString,
}

/// Set at first use, if the environment requests devices: constructors of other libraries may look for devices before
/// this library's constructor runs.
static HOST: OnceLock<Option<Host>> = OnceLock::new();
/// Number of commands that wait for a device's lock.
static WAITING: AtomicUsize = AtomicUsize::new(0);
/// A device by descriptor: its index plus one. Higher descriptors are not tracked, and opening a device as one fails.
type Files = [AtomicU8; 65_536];
/// The devices that descriptors have open.
static FILES: Files = [const { AtomicU8::new(0) }; 65_536];
/// The devices of channels' descriptors.
static CHANNELS: Files = [const { AtomicU8::new(0) }; 65_536];

fn found() -> Option<&'static Host> {
    HOST.get_or_init(|| {
        start().unwrap_or_else(|error| {
            eprintln!("efa-emulator: no device: {error}");
            None
        })
    })
    .as_ref()
}

fn start() -> Result<Option<Host>, String> {
    let Some(settings) = Settings::read(|name| std::env::var(name).ok())? else { return Ok(None) };
    let one = |index: u8| {
        // Consecutive addresses, and separate faults.
        let next = |gid: Gid| u128::from_be_bytes(gid).wrapping_add(index.into()).to_be_bytes();
        let seed = settings.seed.wrapping_add(index.into());
        let mute = settings.mute.filter(|mute| *mute == index);
        Device::new(Settings { gid: settings.gid.map(next), seed, mute, ..settings.clone() })
    };
    let devices = (0..settings.devices).map(one).collect::<Result<Vec<_>, _>>()?;
    let gids: Vec<Gid> = devices.iter().map(|device| device.gid).collect();
    let tree = sysfs::write(&settings.dir, &gids);
    let tree = tree.map_err(|error| format!("cannot create the tree in the place of /sys: {error}"))?;
    let tree = CString::new(tree.into_os_string().into_encoded_bytes()).map_err(|error| error.to_string())?;
    let devices = devices.into_iter().map(|device| (Mutex::new(device), Once::new())).collect();
    Ok(Some(Host { devices, tree }))
}

/// Runs at the end of the program: removes the devices' files.
extern "C" fn stop() {
    let Some(Some(host)) = HOST.get() else { return };
    for (device, _) in &host.devices {
        let device = device.lock().unwrap_or_else(PoisonError::into_inner);
        let (dir, gid) = (device.settings.dir.clone(), device.gid);
        drop(device);
        let _ = std::fs::remove_file(crate::device::socket_path(&dir, &gid));
        let _ = std::fs::remove_dir_all(dir.join(format!("sysfs.{}", std::process::id())));
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static STOP: extern "C" fn() = stop;

fn device(index: usize) -> Option<MutexGuard<'static, Device>> {
    let (device, _) = found()?.devices.get(index)?;
    WAITING.fetch_add(1, Ordering::Relaxed);
    let locked = device.lock().unwrap_or_else(PoisonError::into_inner);
    WAITING.fetch_sub(1, Ordering::Relaxed);
    Some(locked)
}

fn place(files: &'static Files, file: c_int) -> Option<&'static AtomicU8> {
    files.get(usize::try_from(file).ok()?)
}

/// Records the device of a descriptor.
fn mark(files: &'static Files, file: c_int, index: usize) {
    if let Some(place) = place(files, file) {
        place.store(index as u8 + 1, Ordering::Relaxed);
    }
}

/// The device of a descriptor.
fn of(files: &'static Files, file: c_int) -> Option<usize> {
    usize::from(place(files, file)?.load(Ordering::Relaxed)).checked_sub(1)
}

/// The device of a descriptor, which is closed.
fn forgotten(files: &'static Files, file: c_int) -> Option<usize> {
    usize::from(place(files, file)?.swap(0, Ordering::Relaxed)).checked_sub(1)
}

/// The device whose file a path names.
fn named(path: *const c_char) -> Option<usize> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the caller's path ends with a zero, as these functions require.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.strip_prefix(b"/dev/infiniband/")?;
    let devices = &found()?.devices;
    (0..devices.len()).find(|index| sysfs::file(*index).as_bytes() == name)
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: returns the address of this thread's error number.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *place = errno };
    -1
}

/// # Safety
/// As getenv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    // SAFETY: the caller's name ends with a zero.
    let wanted = !name.is_null() && unsafe { CStr::from_ptr(name) } == c"SYSFS_PATH";
    if wanted && let Some(host) = found() {
        return host.tree.as_ptr().cast_mut(); // no caller may write to it, as to any result of getenv
    }
    let real = next!(c"getenv", unsafe extern "C" fn(*const c_char) -> *mut c_char);
    // SAFETY: the caller's argument.
    unsafe { real(name) }
}

type Open = unsafe extern "C" fn(*const c_char, c_int, libc::mode_t) -> c_int;

fn open_with(real: Open, path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    let Some(index) = named(path) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(path, flags, mode) };
    };
    // SAFETY: a path that ends with a zero.
    let file = unsafe { real(c"/dev/null".as_ptr(), flags, mode) };
    if let (Some(_), Some(mut device)) = (place(&FILES, file), device(index)) {
        mark(&FILES, file, index);
        device.open.push(file);
        drop(device);
        run(index);
    }
    file
}

/// Starts a device's thread, once.
fn run(index: usize) {
    let Some((_, once)) = found().and_then(|host| host.devices.get(index)) else { return };
    once.call_once(|| {
        let thread = std::thread::Builder::new().name(format!("efa-device{index}"));
        let _ = thread.spawn(move || {
            let mut idle = 0;
            loop {
                let Some(mut device) = device(index) else { return };
                let busy = device.round();
                let socket = device.socket.as_raw_fd();
                let late = !device.late.is_empty();
                drop(device);
                idle = if busy { 0 } else { idle + 1 };
                if idle < SPINS || late {
                    std::thread::yield_now();
                } else {
                    wait(socket);
                }
                while WAITING.load(Ordering::Relaxed) > 0 {
                    std::thread::yield_now();
                }
            }
        });
    });
}

/// Number of idle rounds after which the thread sleeps between rounds: programs ring doorbells without a system call.
const SPINS: u32 = 20;
const NAP: Duration = Duration::from_micros(50);

fn wait(socket: RawFd) {
    let mut waiting = libc::pollfd { fd: socket, events: libc::POLLIN, revents: 0 };
    let nap = libc::timespec { tv_sec: 0, tv_nsec: c_long::from(NAP.subsec_nanos() as i32) };
    // SAFETY: one descriptor, and a time.
    unsafe { libc::ppoll(&mut waiting, 1, &nap, std::ptr::null()) };
}

impl Device {
    /// Does all pending work once. Returns whether there was any.
    fn round(&mut self) -> bool {
        let mut busy = self.take_requests();
        // A mute device leaves received packets in its socket, and outgoing packets in their queues.
        if !self.is_mute {
            busy |= self.take_packets();
            busy |= self.send();
        }
        self.look_at_the_clock();
        let channels = &self.channels;
        for queue in self.queues.values_mut() {
            busy |= queue.notify(channels);
        }
        busy
    }
}

/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    open_with(next!(c"open", Open), path, flags, mode)
}

/// # Safety
/// As open(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn open64(path: *const c_char, flags: c_int, mode: libc::mode_t) -> c_int {
    open_with(next!(c"open64", Open), path, flags, mode)
}

/// # Safety
/// As stat(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn stat(path: *const c_char, found: *mut libc::stat) -> c_int {
    let path = if named(path).is_some() { c"/dev/null".as_ptr() } else { path };
    let real = next!(c"stat", unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int);
    // SAFETY: the caller's arguments, or a path that ends with a zero.
    unsafe { real(path, found) }
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(file: c_int) -> c_int {
    let (mine, channel) = (forgotten(&FILES, file), forgotten(&CHANNELS, file));
    // Dropped after the lock is released: the drop closes descriptors, which calls this function again.
    let ended = channel.and_then(device).and_then(|mut device| {
        device.reports.retain(|report| *report != file);
        device.channels.remove(&file)
    });
    drop(ended);
    if let Some(mut device) = mine.and_then(device) {
        device.close(file);
    }
    let real = next!(c"close", unsafe extern "C" fn(c_int) -> c_int);
    // SAFETY: the caller's argument.
    unsafe { real(file) }
}

/// # Safety
/// As write(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(file: c_int, bytes: *const c_void, len: usize) -> isize {
    let Some(index) = of(&FILES, file) else {
        type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
        let real = next!(c"write", Write);
        // SAFETY: the caller's arguments.
        return unsafe { real(file, bytes, len) };
    };
    let mut command = vec![0; len.min(MAX_COMMAND_LEN)];
    if command.len() < 8 || !crate::memory::peek(bytes as u64, &mut command) {
        return fail(libc::EINVAL) as isize;
    }
    let Some(mut device) = device(index) else { return fail(libc::ENODEV) as isize };
    let done = device.command(file, &command);
    device.channels.keys().for_each(|channel| mark(&CHANNELS, *channel, index));
    match done {
        Ok(()) => len as isize,
        Err(errno) => fail(errno) as isize,
    }
}

/// Maximum length of a command in bytes.
const MAX_COMMAND_LEN: usize = 4096;

/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    if let Some(index) = of(&FILES, file) {
        let known = if request == crate::dmabuf::REQUEST { device(index) } else { None };
        return match known.map_or(Err(libc::ENOTTY), |mut device| device.ioctl(file, argument.addr() as u64))
        {
            Ok(()) => 0,
            Err(errno) => fail(errno), // after ENOTTY libibverbs writes the command
        };
    }
    let real = next!(c"ioctl", unsafe extern "C" fn(c_int, c_ulong, *mut c_void) -> c_int);
    // SAFETY: the caller's arguments.
    unsafe { real(file, request, argument) }
}

type Map = unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;

/// # Safety
/// As mmap(2).
unsafe fn map_with(
    real: Map,
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let Some(index) = of(&FILES, file) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(at, len, protection, flags, file, offset) };
    };
    let shared = device(index).and_then(|device| device.maps.get(&(offset as u64)).cloned());
    let Some(shared) = shared.filter(|shared| len <= shared.len()) else {
        fail(libc::EINVAL);
        return libc::MAP_FAILED;
    };
    // SAFETY: the caller's arguments, with the memory that stands for this part of the device's file.
    unsafe { real(at, len, protection, flags, shared.fd(), 0) }
}

/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let real = next!(c"mmap", Map);
    // SAFETY: the caller's arguments.
    unsafe { map_with(real, at, len, protection, flags, file, offset) }
}

/// # Safety
/// As mmap(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    len: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let real = next!(c"mmap64", Map);
    // SAFETY: the caller's arguments.
    unsafe { map_with(real, at, len, protection, flags, file, offset) }
}

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // The kernel's netlink list of devices: without it libibverbs reads the tree in the place of /sys.
    if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA && found().is_some() {
        return fail(libc::EPROTONOSUPPORT);
    }
    let real = next!(c"socket", unsafe extern "C" fn(c_int, c_int, c_int) -> c_int);
    // SAFETY: the caller's arguments.
    unsafe { real(domain, kind, protocol) }
}

const NETLINK_RDMA: c_int = 20;
