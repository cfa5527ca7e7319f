//! One peer of an endpoint, as far as it is not `ofi-rdm`'s: what is under way with it.

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_api::{Caps, Errno, MrAccess};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::record::Fields;
use ofi_core::transport::{Host, Peer};
use ofi_rdm::Sender;
use rustc_hash::FxHashMap;

use crate::Udp;
use crate::answer::{Answers, Spare};
use crate::command::kind;
use crate::connection::Connected;
use crate::message::Pull;
use crate::rma::{ServedRead, ServedWrite};

/// What all lanes of an endpoint have in common.
pub struct Common {
    pub domain: Arc<DomainPart<Udp>>,
    pub caps: Caps,
    /// The endpoint's authorization key.
    pub auth: AuthKey,
    /// There is no session yet with the peer of the message being sent: what is injected may still fail.
    pub greets: bool,
    /// Longest payload that travels inside a command.
    pub eager: usize,
    /// Bytes kept for receivers that are out of room, and how many may be.
    pub kept: usize,
    pub kept_limit: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// Peers that were asked to keep their payloads.
    pub keeping: Vec<Peer>,
    /// Peers whose reads are being served, or that have to take answers first.
    pub serving: Vec<Peer>,
    /// Memory for answers to reads.
    pub spare: Spare,
    /// Peers of which it changed whether something is expected.
    pub changed: Vec<Peer>,
    /// Of a connected endpoint.
    pub connection: Option<Box<Connected>>,
    pub loose: Loose,
    pub counts: Counts,
}

/// Peers that had no session when they were added, least recently checked first. The number of an idle one goes to the
/// next new peer.
#[derive(Default)]
pub struct Loose {
    pub peers: VecDeque<Peer>,
    /// New peers since some were looked at.
    pub new: usize,
}

impl Loose {
    /// There is no session with the peer, or not yet.
    pub fn add(&mut self, lane: &mut Lane, peer: Peer) {
        if !std::mem::replace(&mut lane.is_loose, true) {
            self.peers.push_back(peer);
        }
    }
}

/// What people may read about the lanes.
#[derive(Default)]
pub struct Counts {
    pub eager: u64,
    pub announced: u64,
    pub kept: u64,
    pub received: u64,
    pub sent: u64,
    pub send_full: u64,
}

impl Common {
    /// Whether the endpoint lets peers access its memory in this way, by operations of capability `kind`.
    pub fn serves(&self, kind: Caps, access: MrAccess) -> bool {
        let directions = self.caps & Caps::RMA_DIRECTIONS;
        let serves = |right, direction| {
            !access.contains(right) || directions.is_empty() || directions.contains(direction)
        };
        self.caps.intersects(kind)
            && serves(MrAccess::REMOTE_READ, Caps::REMOTE_READ)
            && serves(MrAccess::REMOTE_WRITE, Caps::REMOTE_WRITE)
    }
}

/// The mark of messages that were reported as sent before they arrived.
pub const DETACHED: u64 = u64::MAX;

/// What takes more than one command. Most peers of an endpoint with very many never have any.
#[derive(Default)]
pub struct Long {
    /// Payloads that are being pulled, by the receives that they go to.
    pub pulls: FxHashMap<u64, Pull>,
    /// Reads of the peer, being served. Its later commands wait.
    pub reads: VecDeque<ServedRead>,
    /// What of them has been answered and has not arrived yet.
    pub answers: Answers,
    /// The peer's long write, being served.
    pub write: Option<Box<ServedWrite>>,
    /// Short messages that count as sent, but wait for the peer to want them.
    pub kept: Slots<Box<[u8]>>,
}

/// See the module.
#[derive(Default)]
pub struct Lane {
    /// This end's operations that have not ended.
    pub outstanding: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// The peer was asked to keep its payloads.
    pub peer_keeps: bool,
    /// The peer asked this end to keep its payloads.
    pub keeps: bool,
    /// It is in [`Loose`].
    pub is_loose: bool,
    /// It is in [`Common::serving`].
    pub is_served: bool,
    /// It is in [`Common::keeping`].
    pub in_keeping: bool,
    /// Injected messages that left by themselves behind one that was under way, one after the other.
    pub hasty: u8,
    pub long: Option<Box<Long>>,
}

impl Lane {
    /// That of another peer, or of another session: nothing is left but its places in the endpoint's lists.
    pub fn renew(&mut self) {
        let Self { is_loose, is_served, in_keeping, .. } = *self;
        *self = Self { is_loose, is_served, in_keeping, ..Self::default() };
    }

    /// The peer's reads go on, or what it sent after them, as soon as answers have arrived.
    pub fn await_service(&mut self, common: &mut Common, peer: Peer) {
        if !std::mem::replace(&mut self.is_served, true) {
            common.serving.push(peer);
        }
    }

    /// Whether the peer has to do something yet.
    pub fn expects(&self) -> bool {
        self.outstanding > 0 || self.long.as_ref().is_some_and(|long| !long.pulls.is_empty())
    }

    /// What takes more than one command.
    pub fn long(&mut self) -> &mut Long {
        self.long.get_or_insert_default()
    }

    /// Whether nothing is under way, in either direction.
    pub fn is_idle(&self) -> bool {
        let empty = |long: &Long| {
            long.pulls.is_empty()
                && long.reads.is_empty()
                && long.answers.is_empty()
                && long.write.is_none()
                && long.kept.is_empty()
        };
        self.outstanding == 0 && self.detached == 0 && self.long.as_deref().is_none_or(empty)
    }

    /// Whether reads of the peer are being served.
    pub fn is_read(&self) -> bool {
        self.long.as_ref().is_some_and(|long| !long.reads.is_empty())
    }

    /// Copies what answers to the peer's reads have left where it lies.
    #[inline]
    pub fn settle_answers(&mut self, spare: &mut Spare) {
        if let Some(long) = self.long.as_deref_mut() {
            long.answers.settle(spare);
        }
    }

    /// Whether a long write of the peer is being served.
    pub fn is_written(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.write.is_some())
    }

    /// An operation of this end has begun.
    pub fn begin(&mut self, common: &mut Common, peer: Peer) {
        if !self.expects() {
            common.changed.push(peer);
        }
        self.outstanding += 1;
    }

    /// An operation of this end has ended.
    pub fn finish<H: Host<Udp>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if host.finish(peer, id, result).is_some() {
            self.outstanding = self.outstanding.saturating_sub(1);
            if !self.expects() {
                common.changed.push(peer);
            }
        }
    }

    /// Tells the peer how its operation ended.
    pub fn done(sender: &mut Sender, flags: u8, op: u64, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        sender.bulk.record(kind::DONE, flags, Fields::new().word(op).word(errno).bytes(), 0, None);
    }

    /// The session is over: nothing of it is left here.
    pub fn lose<H: Host<Udp>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, errno: Errno) {
        if let Some(long) = &mut self.long {
            for id in long.kept.ids(|_| true) {
                common.kept -= long.kept.remove(id).map_or(0, |bytes| bytes.len());
            }
        }
        common.detached -= self.detached;
        self.renew();
        common.changed.push(peer);
        if common.connection.is_none() {
            common.loose.add(self, peer);
        }
        host.fail_peer(peer, errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the 1,024 bytes that an idle peer may cost, `ofi-rdm` takes up to 640
    /// (`ofi-testkit/tests/protocol_peers.rs`), and the core's lists and address vector some 240.
    /// `benches/tests/crowd.rs` looks at all of it.
    #[test]
    fn an_idle_peer_s_lane_is_small() {
        assert!(size_of::<Lane>() <= 32, "{}", size_of::<Lane>());
    }
}
