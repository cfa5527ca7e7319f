//! Device memory (`FI_HMEM`): which memory in a domain belongs to a device, and the copies between it and the host.
//!
//! The processor never reads or writes device memory; only the driver's copies do ([`cuda`], [`Stager`]). Memory is
//! known to be a device's once it is registered with its interface ([`Devices::register`]). From then on
//!
//! - an operation of this end on such memory moves a [`StagingBuffer`] of the host instead (`Staged`): the core copies
//!   out of the device before it passes a send or a write to the transport, and into the device before it reports a
//!   receive or a read. Transports see only host memory;
//! - the owner executes a peer's access to it, through the copies of [`RegionTable`](crate::keys::RegionTable). Nothing
//!   is granted on it that a transport would access itself. If the driver exports the memory as a dma-buf, peers' NICs
//!   may access it without the owner ([`Transport::register_device`](crate::transport::Transport)). Local peers may map
//!   it (`ipc`).
//!
//! All of this applies only to domains with `FI_HMEM`: without that capability there are no [`Devices`], and nothing is
//! looked up.

pub mod cuda;
mod devices;
mod dmabufs;
mod ipc;
mod staged;
mod stager;

pub use devices::{Devices, OpaqueMemory, Owner, RegisteredDevice};
pub use dmabufs::Dmabufs;
pub use ipc::{DeviceHandle, MappedPeerDevice};
pub(crate) use staged::{Found, Parts, Staged};
pub use stager::{Stager, StagingBuffer};

use crate::config::HMEM_DISABLE_P2P;

/// Whether NICs may access the memory of every device of this host by its dma-buf. As with [`missing`], the first call
/// initialises the driver.
pub fn all_export() -> bool {
    !HMEM_DISABLE_P2P.get() && cuda::all_export()
}

/// Why this host has no memory that [`Devices`] could register; `None` if it has some. The first call initialises the
/// driver, so call it only for programs that ask for `FI_HMEM`.
pub fn missing() -> Option<String> {
    match cuda::count() {
        Ok(0) => Some("NVIDIA's driver finds no device".into()),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}
