//! The kernel's side of an EFA device, for `LD_PRELOAD`.
//!
//! The unmodified libibverbs and libefa find and open a device, create queues on it and write to them. A thread of the
//! process plays the device: it reads the queues, and exchanges packets with the devices of other processes on this
//! host over Unix sockets. Programs on top, such as libfabric's `efa` provider, run unmodified. `cargo xtask efa --
//! COMMAND` runs one; README.md has the settings.
//!
//! The emulator does not model EFA's performance.
//!
//! - `preload`: the replaced functions of the C library, and the device's thread.
//! - `commands`, `dmabuf`: the kernel's commands. `device`: the objects that they create. `memory`: memory shared with
//!   the program.
//! - `send`, `receive`: the device's work. `formats`: the entries of its queues. `packet`: the protocol between
//!   devices.
//! - `settings`: which faults occur, and when. `sysfs`: the files by which libraries find the device.

mod commands;
mod device;
mod dmabuf;
mod formats;
mod mapping;
mod memory;
mod packet;
mod preload;
mod random;
mod receive;
mod send;
mod settings;
mod sysfs;

/// Amazon's PCI vendor id, and the device id of the emulated device: EFA's third generation.
const VENDOR: u32 = 0x1d0f;
const PART: u32 = 0xefa2;
