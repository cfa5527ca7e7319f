//! Shared state of all lanes of an endpoint.

use std::sync::Arc;

use ofi_api::{Caps, Errno, MrAccess, RemotePiece};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::keys::Accessor;
use ofi_core::transport::{Host, Peer};

use super::loose::Loose;
use crate::Udp;
use crate::answer::Spare;
use crate::coming::Next;
use crate::connected::Connected;

/// See the module.
pub struct Common {
    pub domain: Arc<DomainPart<Udp>>,
    pub caps: Caps,
    /// The endpoint's authorization key.
    pub auth: AuthKey,
    /// There is no session yet with the peer of the message being sent: injected messages may still fail.
    pub greets: bool,
    /// Longest payload that travels inside a command.
    pub eager: usize,
    /// Bytes kept for receivers that are out of room, and their limit.
    pub kept: usize,
    pub kept_limit: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// Peers that were asked to keep their payloads.
    pub keeping: Vec<Peer>,
    /// Peers whose reads are being served, or that must acknowledge answers first.
    pub serving: Vec<Peer>,
    /// Memory for answers to reads.
    pub spare: Spare,
    /// Peers from which an answer is newly expected, or no longer.
    pub changed: Vec<Peer>,
    /// For a connected endpoint.
    pub connection: Option<Box<Connected>>,
    pub loose: Loose,
    pub counts: Counts,
    /// The continuation of the last payload.
    pub next: Option<Next>,
}

/// Statistics of the lanes.
#[derive(Default)]
pub struct Counts {
    pub eager: u64,
    pub announced: u64,
    pub kept: u64,
    pub received: u64,
    pub placed: u64,
    pub sent: u64,
    pub send_full: u64,
}

impl Common {
    /// As [`check_served`](ofi_core::keys::RegionTable::check_served), through this endpoint.
    pub fn check(
        &self,
        who: Accessor<'_>,
        remote: &[RemotePiece],
        kind: Caps,
        access: MrAccess,
    ) -> Result<usize, Errno> {
        self.domain.regions.check_served(self.caps, who, remote, kind, access)
    }
}

/// A peer of the endpoint as an accessor of local memory.
pub fn accessor<'a, H: Host<Udp>>(common: &'a Common, host: &'a H, peer: Peer) -> Accessor<'a> {
    Accessor { auth: &common.auth, peer: host.address(peer) }
}
