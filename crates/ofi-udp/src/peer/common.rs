//! The state that all peers of an endpoint share.

use std::sync::Arc;

use ofi_api::Caps;
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::keys::Accessor;
use ofi_core::transport::served::Owner;
use ofi_core::transport::{PeerId, Upcalls};
use ofi_rdm::Stream;

use super::sessionless::SessionlessPeers;
use crate::Udp;
use crate::answer::BufPool;
use crate::connected::Connected;
use crate::parts::Parts;
use crate::rx_batch::{Next, PartSize, RxBatch};

/// The state that all peers of an endpoint share.
pub struct Common {
    pub domain: Arc<DomainPart<Udp>>,
    pub caps: Caps,
    /// The endpoint's authorization key.
    pub auth: AuthKey,
    /// The peer of the message being sent has no session yet, so an injected message may still fail.
    pub greets: bool,
    /// The message being sent carries its payload, in as many packets as needed.
    pub leaves_whole: bool,
    /// This poll received a lone long message, which the application may answer at once.
    pub may_answer: bool,
    /// Longest payload that travels inside a command.
    pub eager: usize,
    /// Bytes held for receivers without room, and the limit of these bytes.
    pub kept: usize,
    pub kept_limit: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// Peers that were asked to hold their payloads.
    pub keeping: Vec<PeerId>,
    /// Peers with reads in progress, or whose commands wait for acknowledgements of answers.
    pub serving: Vec<PeerId>,
    /// Records are stopped because a poll has found enough, and not because the application has no room for them.
    pub is_unread: bool,
    /// Memory for answers to reads.
    pub spare: BufPool,
    /// Peers for which it changed whether an answer is expected.
    pub changed: Vec<PeerId>,
    /// The additional state of a connected endpoint.
    pub connection: Option<Box<Connected>>,
    pub sessionless: SessionlessPeers,
    pub counts: EndpointCounts,
    /// The payload that is expected next.
    pub next: Option<Next>,
    pub cut: PartSize,
}

/// Statistics of the endpoint.
#[derive(Default)]
pub struct EndpointCounts {
    pub eager: u64,
    pub announced: u64,
    pub ahead: u64,
    pub kept: u64,
    pub received: u64,
    pub placed: u64,
    pub sent: u64,
    pub send_full: u64,
}

impl Common {
    /// A payload was requested: it is expected next unless another one is.
    pub fn expect(&mut self, peer: PeerId, kind: u8, id: u64) {
        self.next = self.next.or(Some(Next { peer, stream: Stream::Bulk, kind, id }));
    }

    /// Called after parts of a payload were processed. `ended`: it is complete.
    pub fn took(&mut self, next: Next, parts: &Parts<'_>, coming: RxBatch, ended: bool) {
        // The first part of a command's payload shares its packet with the command.
        let shares = next.stream == Stream::Commands && parts.at == 0 && parts.count() == 1;
        if !shares && (!ended || parts.count() > 1) {
            self.cut.note(parts.first, coming.of);
        }
        self.next = Some(next);
    }

    /// The registered memory, as peers access it through this endpoint.
    pub fn owner(&self) -> Owner<'_> {
        Owner { regions: &self.domain.regions, caps: self.caps, auth: &self.auth }
    }
}

/// A peer of the endpoint as an accessor of local memory.
pub fn accessor<'a, H: Upcalls<Udp>>(common: &'a Common, host: &'a H, peer: PeerId) -> Accessor<'a> {
    Accessor { auth: &common.auth, peer: host.address(peer) }
}
