//! The state that an endpoint's peers share: its device, its numbers and its counters.

use std::sync::Arc;

use ofi_api::{Caps, MrAccess};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::keys::Accessor;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::served::Owner;
use ofi_core::transport::{PeerId, Upcalls};
use rustc_hash::FxHashMap;

use crate::Efa;
use crate::adapter::Adapter;
use crate::held::Regions;
use crate::ids::Ids;
use crate::moving::{Answering, Incoming, Transfer};
use crate::op::SingleWr;
use crate::options::Rdma;
use crate::settings::Chosen;
use crate::wire::Features;

/// The state that an endpoint's peers share.
pub struct Common {
    pub domain: Arc<DomainPart<Efa>>,
    pub caps: Caps,
    /// Whether peers like this endpoint may receive only messages without headers ([`crate::bare`]).
    pub meets_bare: bool,
    /// Fabric `efa-direct`: no headers, and one operation is one request of the device.
    pub direct: bool,
    /// Whether a message without a receive fails (`FI_ENORX`) after the retries that the application chose: on fabric
    /// `efa-direct`, where messages are unordered.
    pub gives_up: bool,
    pub adapter: Adapter,
    pub settings: Chosen,
    /// Registrations that requests use. Dropped after the adapter, whose drop stops the requests.
    pub regions: Regions,
    /// The device's abilities to access peers' memory.
    pub rdma: Rdma,
    /// The device's transfers in flight. Dropped after the adapter, whose drop stops them.
    pub transfers: Slots<Transfer>,
    /// The state of discarded operations whose only request the device still has.
    pub orphans: FxHashMap<SlotId, SingleWr>,
    /// Entries that peers name by 32-bit numbers.
    pub ids: Ids<Entry>,
    /// Peers with pending work.
    pub dirty: Vec<PeerId>,
    /// Peers whose next incoming message has no room at this end.
    pub stalled: Vec<PeerId>,
    /// Peers in back-off until they have receives again.
    pub resting: Vec<PeerId>,
    pub counts: EndpointCounts,
}

impl Common {
    /// The registered memory, as peers access it through this endpoint. Its peers need no key.
    pub fn owner(&self) -> Owner<'_> {
        Owner { regions: &self.domain.regions, caps: self.caps, auth: &AuthKey::NONE }
    }

    /// Schedules a peer for the next poll.
    pub fn hold(&mut self, is_dirty: &mut bool, peer: PeerId) {
        if !std::mem::replace(is_dirty, true) {
            self.dirty.push(peer);
        }
    }

    /// The features of this end. Peers' devices access this end's registrations only if they find them by their keys.
    /// An endpoint that reports accesses (`FI_RMA_EVENT`), or refuses some, executes them itself.
    pub fn features(&self) -> Features {
        let all = MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE;
        let found = self.domain.transport.keys && !self.caps.contains(Caps::RMA_EVENT);
        let keys = found && self.caps.serves(Caps::RMA, all);
        let is_read = self.rdma.read && (keys || !self.caps.intersects(Caps::RMA));
        let bits = [
            (Features::DELIVERY_COMPLETE, true),
            (Features::CONNID, true),
            (Features::PEER_ERROR, true),
            (Features::OWN, true),
            (Features::REPEATS, true),
            (Features::OWN_KEYS, keys),
            (Features::RDMA_READ, is_read),
            (Features::RUNT, is_read),
            (Features::READ_NACK, is_read),
            (Features::RDMA_WRITE, keys && self.rdma.write),
            (Features::UNSOLICITED_WRITE_RECV, self.rdma.unsolicited),
        ];
        let bits: Vec<usize> = bits.iter().filter(|(_, on)| *on).map(|(bit, _)| *bit).collect();
        Features::of(&bits)
    }
}

/// The entry under a number.
pub enum Entry {
    /// An operation of this end.
    Op(PeerId, SlotId),
    /// Incoming data of the peer.
    Incoming(Incoming),
    /// A read by the peer that this end serves.
    Answering(Answering),
}

impl Entry {
    /// The peer that the entry belongs to.
    pub fn peer(&self) -> PeerId {
        match self {
            Self::Op(peer, _) => *peer,
            Self::Incoming(incoming) => incoming.peer,
            Self::Answering(answering) => answering.peer,
        }
    }
}

/// Event counters.
#[derive(Default)]
pub struct EndpointCounts {
    pub eager: u64,
    pub medium: u64,
    pub long: u64,
    pub sent: u64,
    pub received: u64,
    pub not_ready: u64,
    pub failed: u64,
    pub repeated: u64,
    pub early: u64,
    pub stalls: u64,
    pub malformed: u64,
    pub version: u64,
    pub strangers: u64,
    pub stale: u64,
    pub refused: u64,
    pub native_reads: u64,
    pub native_writes: u64,
    pub native_refused: u64,
    pub lent: u64,
    pub runts: u64,
    pub fetched: u64,
    pub nacks: u64,
}

/// A peer of the endpoint as an accessor of local memory.
pub fn accessor<H: Upcalls<Efa>>(host: &H, peer: PeerId) -> Accessor<'_> {
    Accessor { auth: &AuthKey::NONE, peer: host.address(peer) }
}
