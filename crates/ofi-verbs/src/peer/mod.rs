//! One peer of an endpoint: its connection, its credits, and its operations in flight.
//!
//! Invariants:
//! - A peer has at most as many records in flight as the peer gave it credits. A quarter of the credits is reserved for
//!   answers. The peer always processes answers, even if it has no room for other records, so two ends that wait for
//!   each other's answers get them.
//! - The last of the other credits are for queued records, which are sent in packs: a burst to a peer that does not
//!   poll may exceed the number of its credits.
//! - A record's slot belongs to the device from the post to the completion of the request, unless the record is inline.

mod key;
mod link;
mod queue;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ibv::transfer::Source;
use ofi_api::{Caps, Errno, Error, OpFlags, Result};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::log::Told;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::served::{Owner, ReadInParts, WriteInParts};
use ofi_core::transport::{PeerId, Upcalls};
use rustc_hash::FxHashMap;

pub use self::key::{Key, READ, WRITE};
pub use self::link::{Link, Retiring};
pub use self::queue::{Frame, Item};
use crate::Verbs;
use crate::adapter::{Adapter, Posted};
use crate::op::{Exposed, Op};
use crate::quiet::Quiet;
use crate::rc::Connection;
use crate::timers::Timers;
use crate::transfer::{Refused, Transfer};

/// The state that all peers of an endpoint share.
pub struct Common {
    pub domain: Arc<DomainPart<Verbs>>,
    pub caps: Caps,
    pub adapter: Adapter,
    /// Bytes held for receivers without room, and the limit of these bytes.
    pub kept: usize,
    pub kept_limit: usize,
    /// Peers that were asked to hold their payloads.
    pub wishing: Vec<PeerId>,
    /// Peers with pending work.
    pub dirty: Vec<PeerId>,
    /// Peers whose records wait for room at this end.
    pub stalled: Vec<PeerId>,
    /// Whether accesses follow messages in order, so that the receiver of the messages must execute the accesses.
    pub orders_messages: bool,
    /// Number of credits of each peer.
    pub grant: usize,
    /// How long connections wait for their peers.
    pub timers: Timers,
    /// Set when the device, or a queue that all peers share, is lost: nothing is posted any more.
    pub gone: Option<Errno>,
    /// Whether the endpoint is closing: from then on every request is signaled.
    pub closing: bool,
    /// Distinguishes this endpoint from an earlier one with the same address.
    pub incarnation: u64,
    /// Number of connection requests so far.
    pub attempts: u32,
    /// Number of polls so far, the unit of peers' last use.
    pub turn: u64,
    pub counts: EndpointCounts,
}

/// The statistics of the peers.
#[derive(Default)]
pub struct EndpointCounts {
    pub eager: u64,
    pub announced: u64,
    pub regions: u64,
    pub reads: u64,
    pub native_reads: u64,
    pub native_writes: u64,
    pub asked_again: u64,
    pub given: u64,
    pub sent: u64,
    pub inline: u64,
    pub quiet: u64,
    pub packs: u64,
    pub received: u64,
    pub stalls: u64,
    pub connections: u64,
    pub retired: u64,
    pub probes: u64,
    pub malformed: u64,
}

impl Common {
    /// The registered memory, as peers access it through this endpoint. Its peers need no key.
    pub fn owner(&self) -> Owner<'_> {
        Owner { regions: &self.domain.regions, caps: self.caps, auth: &AuthKey::NONE }
    }

    /// Called when the endpoint has a new queue pair, its `count`th: provides receives for its credits.
    pub fn provide(&mut self, count: usize) {
        self.adapter.provide(&self.domain.transport, count * self.grant);
    }

    /// Schedules a peer for the next poll.
    pub fn hold(&mut self, is_dirty: &mut bool, peer: PeerId) {
        if !std::mem::replace(is_dirty, true) {
            self.dirty.push(peer);
        }
    }
}

/// Maximum number of queued bytes for a peer.
const QUEUE_LIMIT: usize = 1 << 20;

/// The mark of messages that were reported as sent before they arrived.
pub const DETACHED: u64 = u64::MAX;

/// How to continue after a record was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextStep {
    /// Take the next one.
    Next,
    /// The core had no room for the record: it must be offered again before any later record.
    Stop,
}

/// An unprocessed record of the peer.
#[derive(Clone, Copy, Debug)]
pub struct RecordPart {
    /// Its slot, which it may share with others.
    pub slot: u32,
    /// Its offset in the slot.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// Whether it is the last in the slot, which is reposted once it is processed.
    pub last: bool,
    /// Whether its connection is closed, so that no answer can be sent.
    pub orphan: bool,
}

/// The state of one peer: its connection, its credits, and its operations in flight.
pub struct Peer {
    pub address: SocketAddr,
    pub link: Link,
    /// While this end tries to connect: the time when it gives up.
    pub reach_by: Option<Instant>,
    /// The other end of an endpoint's connection with itself: records sent over `link` arrive here.
    pub mirror: Option<Box<dyn Connection>>,
    /// The peer's latest known attempt to connect.
    pub attempt: Option<(u64, u32)>,
    /// Maximum bytes of an inline request on the connection.
    pub inline: usize,
    /// Number of records that may be sent.
    pub credits: usize,
    /// Of them, those reserved for answers.
    pub reserve: usize,
    /// Of the others, those reserved for packs of queued records.
    pub held: usize,
    /// Number of credits that the peer has used and not got back, and how many of them to return now.
    pub used: usize,
    pub owed: usize,
    pub commands: VecDeque<Item>,
    pub answers: VecDeque<Frame>,
    /// Total bytes of both.
    pub waiting: usize,
    /// Number of requests in flight.
    pub requests: usize,
    /// Of them, the quiet ones.
    pub quiet: Quiet,
    /// Unprocessed records.
    pub stalled: VecDeque<RecordPart>,
    /// The peer's reads in progress. Its later commands wait.
    pub reads: VecDeque<ReadInParts>,
    /// The peer's long write in progress.
    pub write: Option<Box<WriteInParts>>,
    /// Short messages that were reported as sent, and wait for the peer's request.
    pub kept: Slots<(Exposed, usize)>,
    /// Announced messages of the peer that have not ended: their lengths, and the current addresses of their payloads
    /// if the peer has moved them.
    pub announced: FxHashMap<u64, (usize, Option<Source>)>,
    pub transfers: Slots<Transfer>,
    /// Transfers with requests that are not posted yet.
    pub fetching: VecDeque<SlotId>,
    /// Of them, accesses to the peer's memory. Later operations wait for them.
    pub accesses_waiting: usize,
    /// Number of read requests in flight.
    pub reads_out: usize,
    /// Operations of this end that have not ended.
    pub outstanding: usize,
    /// Of them, accesses that the peer executes.
    pub executed: usize,
    /// Number of accesses posted to this end's device so far.
    pub natives: u64,
    /// Set when the peer's device has refused an access, which ended the connection: the accesses to send to the owner.
    pub refused: Option<Vec<Refused>>,
    /// The peer's registrations that this end's device may access.
    pub keys: FxHashMap<u64, Key>,
    /// Keys that the peer has received, and the device's keys for them.
    pub given: FxHashMap<u64, u32>,
    /// Messages that were reported as sent but have not arrived.
    pub detached: usize,
    /// Whether this end asked the peer to hold its payloads.
    pub wished: bool,
    /// Whether the peer asked this end to hold its payloads.
    pub peer_wishes: bool,
    /// When the peer's device is probed next.
    pub probe: Option<Instant>,
    /// Whether the peer is in [`Common::dirty`].
    pub is_dirty: bool,
    /// Protocols of messages to the peer that were logged.
    pub told: Told,
    /// Whether the peer is among those whose connections are checked.
    pub is_live: bool,
    /// The turn in which a record was last posted, or arrived.
    pub last_use: u64,
    /// The turn in which a note last waited for the connection, or was expected from the peer.
    pub wanted: u64,
    /// Set while the idle connection is being closed: nothing more is posted over it.
    pub retiring: Option<Retiring>,
    /// Set when the peer has declined the close: the time of the next request.
    pub declined: Option<Instant>,
    /// Set when the connection is over, and earlier records are still unprocessed.
    pub ending: Option<Errno>,
}

impl Peer {
    /// A peer in its initial state.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            link: Link::Closed,
            reach_by: None,
            mirror: None,
            attempt: None,
            inline: 0,
            credits: 0,
            reserve: 0,
            held: 0,
            used: 0,
            owed: 0,
            commands: VecDeque::new(),
            answers: VecDeque::new(),
            waiting: 0,
            requests: 0,
            quiet: Quiet::default(),
            stalled: VecDeque::new(),
            reads: VecDeque::new(),
            write: None,
            kept: Slots::default(),
            announced: FxHashMap::default(),
            transfers: Slots::default(),
            fetching: VecDeque::new(),
            accesses_waiting: 0,
            reads_out: 0,
            outstanding: 0,
            executed: 0,
            natives: 0,
            refused: None,
            keys: FxHashMap::default(),
            given: FxHashMap::default(),
            detached: 0,
            wished: false,
            peer_wishes: false,
            probe: None,
            is_dirty: false,
            told: Told::default(),
            is_live: false,
            last_use: 0,
            wanted: 0,
            retiring: None,
            declined: None,
            ending: None,
        }
    }

    /// Counts the credit of a processed record of the peer.
    pub fn taken(&mut self, common: &mut Common, part: RecordPart) {
        if part.last {
            // For a record of an earlier connection, the peer may have used no credit of this one.
            self.owed = self.used.min(self.owed + 1);
            common.adapter.receive(part.slot);
        }
    }

    /// Number of slots of unprocessed records.
    pub fn held_slots(&self) -> usize {
        self.stalled.iter().filter(|part| part.last).count()
    }

    /// Whether records can be posted.
    pub fn is_open(&self) -> bool {
        self.is_connected() && self.retiring.is_none()
    }

    /// Whether there is a connection, even one that is being closed.
    pub fn is_connected(&self) -> bool {
        self.link.open().is_some() && self.ending.is_none()
    }

    /// Whether this end serves reads of the peer.
    pub fn is_read(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether commands are queued.
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether anything is queued.
    pub fn waits(&self) -> bool {
        !self.commands.is_empty() || !self.answers.is_empty() || !self.fetching.is_empty() || self.is_read()
    }

    /// Whether credits must be returned to the peer even if nothing else is sent.
    pub fn owes_credits(&self, common: &Common) -> bool {
        self.owed > 0 && self.owed >= common.grant / 4
    }

    /// Whether a closing endpoint waits for this peer: for requests in flight, including answers that the peer relies
    /// on, and for the peer to receive messages that were reported as sent.
    pub fn is_awaited(&self) -> bool {
        let owes = self.requests > 0 || !self.answers.is_empty() || self.detached > 0;
        self.is_connected() && (owes || !self.kept.is_empty())
    }

    /// Whether another operation may be posted.
    pub fn may_post(&self, flags: OpFlags) -> Result<()> {
        let fenced = flags.contains(OpFlags::FENCE) && self.outstanding > 0;
        if fenced || self.waiting > QUEUE_LIMIT || self.ending.is_some() {
            return Err(Error::AGAIN);
        }
        Ok(())
    }

    /// An operation of this end has ended.
    pub fn finish<H: Upcalls<Verbs>>(
        &mut self,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if let Some(op) = host.finish(peer, id, result) {
            self.is_over(&op);
        }
    }

    /// Counts an operation of this end as ended.
    pub fn is_over(&mut self, op: &Op) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if matches!(op, Op::Access | Op::Write(_) | Op::Read { .. }) {
            self.executed = self.executed.saturating_sub(1);
        }
    }

    /// Handles the completion of a request, which shows that earlier quiet ones have ended too. Only fire-and-forget
    /// messages wait for a quiet request.
    pub fn end_quiet(&mut self, common: &mut Common, number: u64) {
        while let Some(id) = self.quiet.pop_before(number) {
            let Some(Posted::Send { slot, mark, marks, quiet, .. }) = common.adapter.posted.remove(id) else {
                continue;
            };
            self.requests -= 1;
            common.adapter.end_send(slot, quiet);
            let arrived = mark.iter().count() + marks.len();
            self.detached = self.detached.saturating_sub(arrived);
        }
    }

    /// Handles a record that the peer has received, or never will.
    pub fn sent<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId, mark: u64) {
        if mark == DETACHED {
            self.detached = self.detached.saturating_sub(1);
        } else {
            self.finish(host, peer, SlotId::from_wire(mark), Ok(()));
        }
    }

    /// Whether both ends have agreed to close the connection.
    pub fn has_agreed(&self) -> bool {
        self.retiring == Some(Retiring::Agreed)
    }

    /// Whether the connection can be closed: the peer has received this end's last record, or has disconnected already.
    pub fn is_retired(&self) -> bool {
        self.has_agreed() && (self.requests == 0 || self.ending.is_some())
    }

    /// Whether a note waits for the connection, or is expected from the peer: each turn renews both.
    pub fn is_wanted(&self, turn: u64) -> bool {
        self.wanted > 0 && turn <= self.wanted + 1
    }

    /// Whether operations of this end have not ended, or a note waits for a connection.
    pub fn has_work(&self, turn: u64) -> bool {
        self.outstanding > 0 || self.wants_connection() || self.is_wanted(turn)
    }

    /// Whether queued work needs a connection.
    pub fn wants_connection(&self) -> bool {
        self.has_commands() || !self.fetching.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// docs/tuning.md states the memory that a peer without a connection takes.
    #[test]
    fn a_peer_without_a_connection_takes_no_more_than_a_kilobyte() {
        assert!(size_of::<Peer>() <= 1024, "{} bytes", size_of::<Peer>());
        let state = Peer::new("10.0.0.1:1".parse().unwrap());
        assert_eq!((state.commands.capacity(), state.answers.capacity(), state.keys.capacity()), (0, 0, 0));
    }
}
