//! What an endpoint's lanes share: its device, its numbers, and what it has counted.

use std::sync::Arc;

use ofi_api::{Caps, Errno, MrAccess, RemotePiece};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::keys::Accessor;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::{Host, Peer};
use rustc_hash::FxHashMap;

use crate::Efa;
use crate::adapter::Adapter;
use crate::held::Regions;
use crate::ids::Ids;
use crate::moving::{Answering, Incoming, Transfer};
use crate::op::Alone;
use crate::options::Rdma;
use crate::settings::Chosen;
use crate::wire::Features;

/// What an endpoint's lanes share.
pub struct Common {
    pub domain: Arc<DomainPart<Efa>>,
    pub caps: Caps,
    /// Peers like this endpoint may take messages without headers alone ([`crate::bare`]).
    pub meets_bare: bool,
    /// There are no headers: one operation is one request of the device.
    pub direct: bool,
    pub adapter: Adapter,
    pub settings: Chosen,
    /// Registrations that requests use: after the adapter, whose end stops them.
    pub regions: Regions,
    /// What the device does with peers' memory.
    pub rdma: Rdma,
    /// What it moves now: after the adapter, whose end stops it.
    pub transfers: Slots<Transfer>,
    /// What is left of operations that are gone while their one request is the device's.
    pub orphans: FxHashMap<SlotId, Alone>,
    /// What peers name by numbers of 32 bits.
    pub ids: Ids<Entry>,
    /// Lanes with something to do.
    pub dirty: Vec<Peer>,
    /// Lanes whose next message has no room here.
    pub stalled: Vec<Peer>,
    /// Lanes that wait until their peer has receives again.
    pub resting: Vec<Peer>,
    pub counts: Counts,
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

    /// Has a lane looked at in the next poll.
    pub fn hold(&mut self, is_dirty: &mut bool, peer: Peer) {
        if !std::mem::replace(is_dirty, true) {
            self.dirty.push(peer);
        }
    }

    /// What this end can do. C's devices access what an endpoint with remote accesses has registered only if they find
    /// it by their keys; an endpoint that reports accesses (`FI_RMA_EVENT`), or refuses some, executes them.
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

/// What a number names.
pub enum Entry {
    /// An operation of this end.
    Op(Peer, SlotId),
    /// Data of the peer on its way here.
    Incoming(Incoming),
    /// A read of the peer, being served.
    Answering(Answering),
}

impl Entry {
    /// Whose it is.
    pub fn peer(&self) -> Peer {
        match self {
            Self::Op(peer, _) => *peer,
            Self::Incoming(incoming) => incoming.peer,
            Self::Answering(answering) => answering.peer,
        }
    }
}

/// What has happened.
#[derive(Default)]
pub struct Counts {
    pub eager: u64,
    pub medium: u64,
    pub long: u64,
    pub sent: u64,
    pub received: u64,
    pub not_ready: u64,
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

/// A peer of the endpoint, as one that accesses memory here.
pub fn accessor<H: Host<Efa>>(host: &H, peer: Peer) -> Accessor<'_> {
    Accessor { auth: &AuthKey::NONE, peer: host.address(peer) }
}
