//! Shared state of all connections of an endpoint.

use std::sync::Arc;

use ofi_api::Caps;
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;

use crate::Tcp;
use crate::tls::Security;

/// The state that all connections of one endpoint share.
pub struct Common {
    pub domain: Arc<DomainPart<Tcp>>,
    pub caps: Caps,
    pub auth: AuthKey,
    /// The endpoint encrypts: nothing leaves and nothing is taken in the clear, even if `tls` were missing.
    pub encrypts: bool,
    /// How it encrypts. A flush has it for its time.
    pub tls: Option<Box<Security>>,
    /// Bytes of long messages without receives.
    pub spooled: usize,
    /// The bytes of messages without receives that every peer may send ([`Extras::window`](crate::wire::cm::Extras)).
    pub window: u64,
    /// Vectors of the call that is being made.
    pub vectors: Vec<libc::iovec>,
    pub counts: EndpointCounts,
}

// SAFETY: the vectors are empty between calls: they point nowhere when another thread gets them.
unsafe impl Send for Common {}

/// Statistics.
#[derive(Default)]
pub struct EndpointCounts {
    pub connections: u64,
    pub refused: u64,
    pub broken: u64,
    pub encrypted: u64,
    pub other_key: u64,
    pub lost: u64,
    pub reads: u64,
    /// Those that have brought something.
    pub received: u64,
    pub writes: u64,
    pub full: u64,
    pub announced: u64,
    pub bulk: u64,
    pub striped: u64,
}
