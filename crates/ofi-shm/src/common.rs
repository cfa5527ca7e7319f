//! Shared state of all peers of an endpoint.

use std::sync::Arc;

use ofi_api::{Errno, Error};
use ofi_core::keys::Accessor;
use ofi_core::transport::served::Owner;
use ofi_core::transport::{PeerId, Upcalls};
use ofi_ring::record::ReserveError;

use crate::Shm;
use crate::command::before;
use crate::helper::Helper;
use crate::settings::{SingleCopy, StreamingStores};
use crate::shared::SharedEndpoint;

/// The state that all peers of one endpoint share.
pub struct Common {
    pub shared: Arc<SharedEndpoint>,
    pub helper: Arc<Helper>,
    /// The maximum length of a payload inside a command, in bytes.
    pub eager: usize,
    /// Bytes kept for receivers that are out of room, and their limit.
    pub kept: usize,
    pub kept_limit: usize,
    /// A remote access must not overtake a message sent before it (`FI_ORDER_WAS`, `FI_ORDER_RAS`).
    pub strict: bool,
    /// Whether large messages may be copied directly, and from which size on.
    pub single: SingleCopy,
    pub single_size: usize,
    /// Whether long payloads are written by streaming stores.
    pub streaming: StreamingStores,
    pub counts: EndpointCounts,
    /// One more for each mapping of a peer's device memory.
    pub mapped_devices: Arc<()>,
}

impl Common {
    /// The registered memory, as peers access it through this endpoint.
    #[inline]
    pub fn owner(&self) -> Owner<'_> {
        let shared = &*self.shared;
        Owner { regions: &shared.domain.regions, caps: shared.caps, auth: &shared.auth }
    }
}

/// The maximum length of a payload inside a command, in bytes, behind up to three words.
pub fn eager() -> usize {
    let longest = ofi_ring::record::max_body(crate::settings::COMMAND_LINES.get().next_power_of_two());
    longest - before(3, longest)
}

/// Statistics of the peers.
#[derive(Default)]
pub struct EndpointCounts {
    pub eager: u64,
    pub announced: u64,
    pub kept: u64,
    pub bulk_bytes: u64,
    pub streamed_bytes: u64,
    pub direct_bytes: u64,
    pub device_bytes: u64,
    pub direct_atomics: u64,
    pub single_messages: u64,
    pub single_accesses: u64,
    pub single_read: u64,
    pub single_received: u64,
    pub single_written: u64,
    pub single_failed: u64,
    pub single_denied: u64,
    pub wakes: u64,
    pub corrupt: u64,
    pub lost: u64,
    pub ring_full: u64,
}

/// A peer of the endpoint as an accessor of local memory.
#[inline]
pub fn accessor<'a, H: Upcalls<Shm>>(common: &'a Common, host: &'a H, peer: PeerId) -> Accessor<'a> {
    Accessor { auth: &common.shared.auth, peer: host.address(peer) }
}

/// Counts and translates a reservation that failed.
#[cold]
pub fn full(common: &mut Common, error: ReserveError) -> Error {
    match error {
        ReserveError::Full => {
            common.counts.ring_full += 1;
            Error::AGAIN
        }
        ReserveError::TooBig => Error::with(
            Errno::EMSGSIZE,
            "a command exceeds a quarter of its ring and a line; raise FI_SHM_COMMAND_LINES",
        ),
        // The peer claims to have read more than was written. The next poll disconnects it.
        ReserveError::Corrupt => Error::AGAIN,
    }
}
