//! Events from the process's helper thread to an endpoint.

use std::sync::Arc;

use ofi_api::Errno;
use ofi_core::hmem::DeviceHandle;

use crate::control::Terms;
use crate::pair::{OwnPair, PeerParts};
use crate::sys::Mapping;

/// An event from the helper to an endpoint. Peers are identified by the names of their sockets.
pub enum HelperEvent {
    /// A peer and this endpoint have mapped each other's memory.
    Attached { socket: Vec<u8>, own: Arc<OwnPair>, parts: Box<PeerParts> },
    /// No endpoint answers under this name.
    Refused { socket: Vec<u8>, errno: Errno },
    /// The peer has closed, or its process has ended.
    Gone { socket: Vec<u8>, incarnation: u64 },
    /// The peer's bulk memory.
    Bulk { socket: Vec<u8>, incarnation: u64, lines: u32, memory: Mapping },
    /// The peer's answer to a request; without memory, a refusal.
    Grant { socket: Vec<u8>, incarnation: u64, key: u64, terms: Terms, memory: Option<Mapping> },
    /// As [`HelperEvent::Grant`], of a device's memory.
    Device { socket: Vec<u8>, incarnation: u64, key: u64, device: Box<(Terms, DeviceHandle)> },
    /// The peer has closed the registration behind a key, whose device memory may be mapped.
    Withdrawn { socket: Vec<u8>, incarnation: u64, key: u64 },
    /// A packet of connection management.
    Packet { socket: Vec<u8>, packet: Vec<u8> },
    /// A packet was not delivered, or the socket that received it has gone since.
    PacketLost { socket: Vec<u8>, errno: Errno },
}
