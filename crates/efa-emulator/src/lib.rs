//! The kernel's side of an EFA device, for `LD_PRELOAD`.
//!
//! The unmodified libibverbs and libefa find a device and open it, make queues on it and write to them; a thread of the
//! process reads the queues as the device would, and exchanges packets with the devices of other processes of this host
//! over Unix sockets. Programs above them, such as libfabric's `efa` provider, run as they are.
//! `cargo xtask efa -- COMMAND` runs one; README.md has the settings.
//!
//! Nothing that it shows is EFA's performance.
//!
//! - `preload`: the C library's functions that are answered here, and the thread.
//! - `commands`: what libibverbs asks the kernel. `device`: the objects that come of it. `memory`: what is shared with
//!   the program.
//! - `send`, `receive`: the device at work. `formats`: what stands in its queues. `packet`: what devices say to each
//!   other.
//! - `settings`: what goes wrong, and when. `sysfs`: how the device is found.

mod commands;
mod device;
mod formats;
mod memory;
mod packet;
mod preload;
mod random;
mod receive;
mod send;
mod settings;
mod sysfs;

/// Amazon's number in PCI's list, and the one of the device that is shown: EFA's third generation.
const VENDOR: u32 = 0x1d0f;
const PART: u32 = 0xefa2;
