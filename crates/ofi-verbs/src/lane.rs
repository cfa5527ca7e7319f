//! One peer of an endpoint: its connection, its credits, and what is under way with it.
//!
//! Invariants:
//! - A lane has at most as many records under way as the peer gave it credits, a quarter of which only answers may use.
//!   Answers are taken by the peer whatever else it cannot take, so two ends that wait for each other's answers get
//!   them.
//! - The last of the other credits are for what has waited, which then goes out in packs: a burst to a peer that does
//!   not look is not cut off at the number of its credits.
//! - A record's slot belongs to the device from the post to the end of the request, unless the request carries the
//!   record itself.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ibv::transfer::Source;
use ofi_api::{Caps, Errno, Error, MrAccess, OpFlags, RemotePiece, Result};
use ofi_core::domain::DomainPart;
use ofi_core::keys::Accessor;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::record::Fields;
use ofi_core::transport::{Host, Peer};
use rustc_hash::FxHashMap;

use crate::Verbs;
use crate::adapter::{Adapter, Posted};
use crate::fetch::{End, Transfer};
use crate::meeting::Link;
use crate::message::{Exposed, Op, QUEUE_LIMIT};
use crate::native::Key;
use crate::quiet::Quiet;
use crate::rc::Connection;
use crate::refused::{Refused, is_lost};
use crate::retiring::Retiring;
use crate::rma::{ServedRead, ServedWrite};
use crate::sending::{Frame, Item};
use crate::wire::kind;

/// What all lanes of an endpoint have in common.
pub struct Common {
    pub domain: Arc<DomainPart<Verbs>>,
    pub caps: Caps,
    pub adapter: Adapter,
    /// Bytes kept for receivers that are out of room, and how many may be.
    pub kept: usize,
    pub kept_limit: usize,
    /// Peers that were asked to keep their payloads.
    pub wishing: Vec<Peer>,
    /// Peers with something to post, or to look at.
    pub dirty: Vec<Peer>,
    /// Peers whose records wait for room here.
    pub stalled: Vec<Peer>,
    /// Whether accesses follow messages in order, so that the end that takes the messages has to execute them.
    pub orders_messages: bool,
    /// Credits that each peer gets.
    pub grant: usize,
    /// The endpoint closes: the end of every request is reported from here on.
    pub closing: bool,
    /// Tells this endpoint from an earlier one of the same address.
    pub incarnation: u64,
    /// Connections asked for so far.
    pub attempts: u32,
    /// Polls so far: what lanes were used last is counted in them.
    pub turn: u64,
    pub counts: Counts,
}

/// What people may read about the lanes.
#[derive(Default)]
pub struct Counts {
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

    /// Has a lane looked at by the next poll.
    pub fn hold(&mut self, is_dirty: &mut bool, peer: Peer) {
        if !std::mem::replace(is_dirty, true) {
            self.dirty.push(peer);
        }
    }
}

/// The mark of messages that were reported as sent before they arrived.
pub const DETACHED: u64 = u64::MAX;

/// What to do after a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Take the next one.
    Next,
    /// It could not be taken: offer it again later, and nothing behind it.
    Stop,
}

/// A record of the peer that could not be taken yet.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// The slot that it is in, alone or with others.
    pub slot: u32,
    /// Where in the slot.
    pub at: usize,
    /// Its length.
    pub len: usize,
    /// It is the last in the slot, which is posted again when it has been taken.
    pub last: bool,
    /// The connection that it came over is no more: nobody hears an answer.
    pub orphan: bool,
}

/// See the module.
pub struct Lane {
    pub address: SocketAddr,
    pub link: Link,
    /// The other end of the connection of an endpoint with itself: what is sent over `link` comes in here.
    pub mirror: Option<Box<dyn Connection>>,
    /// The peer's last attempt to connect that is known.
    pub attempt: Option<(u64, u32)>,
    /// Bytes that a request of the connection carries itself.
    pub inline: usize,
    /// Records that may be sent.
    pub credits: usize,
    /// Of them, those that only answers may use.
    pub reserve: usize,
    /// Of the others, those that only packs of what has waited may use.
    pub held: usize,
    /// Credits that the peer has used and not got back, and of them those to be given back.
    pub used: usize,
    pub owed: usize,
    pub commands: VecDeque<Item>,
    pub answers: VecDeque<Frame>,
    /// Bytes in both.
    pub waiting: usize,
    /// Requests under way.
    pub requests: usize,
    /// Of them, those whose ends are not reported.
    pub quiet: Quiet,
    /// Records that could not be taken yet.
    pub stalled: VecDeque<Part>,
    /// Reads of the peer, being served. Its later commands wait.
    pub reads: VecDeque<ServedRead>,
    /// The peer's long write, being served.
    pub write: Option<Box<ServedWrite>>,
    /// Short messages that count as sent, but wait for the peer to want them.
    pub kept: Slots<(Exposed, usize)>,
    /// Messages that the peer has announced and that have not ended: their lengths, and where their payloads are now if
    /// the peer has moved them.
    pub announced: FxHashMap<u64, (usize, Option<Source>)>,
    pub transfers: Slots<Transfer>,
    /// Transfers with requests that are not posted yet.
    pub fetching: VecDeque<SlotId>,
    /// Of them, accesses to the peer's memory. What follows them waits.
    pub accesses_waiting: usize,
    /// Requests of accesses under way that read.
    pub reads_out: usize,
    /// This end's operations that have not ended.
    pub outstanding: usize,
    /// Of them, accesses that the peer executes.
    pub executed: usize,
    /// Accesses given to this end's device so far.
    pub natives: u64,
    /// The peer's device has refused an access, which has ended the connection: those that go to its owner.
    pub refused: Option<Vec<Refused>>,
    /// The peer's registrations that this end's device may access.
    pub keys: FxHashMap<u64, Key>,
    /// Keys that the peer was given, and what the device calls them.
    pub given: FxHashMap<u64, u32>,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// The peer was asked to keep its payloads.
    pub wished: bool,
    /// The peer asked this end to keep its payloads.
    pub peer_wishes: bool,
    /// When the peer's device is asked next whether it is there.
    pub probe: Option<Instant>,
    /// It is among [`Common::dirty`].
    pub is_dirty: bool,
    /// It is among those that are looked at for their connections.
    pub is_live: bool,
    /// The turn in which something was last posted, or came.
    pub last_use: u64,
    /// The turn in which a note last waited for the connection, or was awaited of the peer.
    pub wanted: u64,
    /// The connection is being put away: nothing more is posted over it.
    pub retiring: Option<Retiring>,
    /// The peer has declined that: when it is asked again at the earliest.
    pub declined: Option<Instant>,
    /// The connection is over; what came before it is still to be taken.
    pub ending: Option<Errno>,
}

impl Lane {
    /// To a peer that nothing is known of.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            link: Link::Closed,
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
            is_live: false,
            last_use: 0,
            wanted: 0,
            retiring: None,
            declined: None,
            ending: None,
        }
    }

    /// A record of the peer has been taken.
    pub fn taken(&mut self, common: &mut Common, part: Part) {
        if part.last {
            // One of an earlier connection may be none that the peer had credits for on this one.
            self.owed = self.used.min(self.owed + 1);
            common.adapter.receive(part.slot);
        }
    }

    /// Slots of records that could not be taken yet.
    pub fn held_slots(&self) -> usize {
        self.stalled.iter().filter(|part| part.last).count()
    }

    /// Whether records can go out.
    pub fn is_open(&self) -> bool {
        self.is_connected() && self.retiring.is_none()
    }

    /// Whether there is a connection, which may be about to be put away.
    pub fn is_connected(&self) -> bool {
        self.link.open().is_some() && self.ending.is_none()
    }

    /// Whether reads of the peer are being served.
    pub fn is_read(&self) -> bool {
        !self.reads.is_empty()
    }

    /// Whether commands wait to be posted.
    pub fn has_commands(&self) -> bool {
        !self.commands.is_empty()
    }

    /// Whether something waits to be posted.
    pub fn waits(&self) -> bool {
        !self.commands.is_empty() || !self.answers.is_empty() || !self.fetching.is_empty() || self.is_read()
    }

    /// Whether the peer is to get credits back though nothing is sent to it.
    pub fn owes_credits(&self, common: &Common) -> bool {
        self.owed > 0 && self.owed >= common.grant / 4
    }

    /// A record has come. Over a connection that this end granted it may come before rdma_cm reports the connection,
    /// which then is there.
    #[inline]
    pub fn heard(&mut self, common: &mut Common, peer: Peer) {
        if !matches!(self.link, Link::Accepting(..)) {
            return;
        }
        if let Link::Accepting(id, _) = std::mem::replace(&mut self.link, Link::Closed) {
            self.opened(common, peer, id);
        }
    }

    /// The connection is there.
    pub fn opened(&mut self, common: &mut Common, peer: Peer, id: Box<dyn Connection>) {
        self.link = Link::Open(id);
        self.last_use = common.turn;
        common.counts.connections += 1;
        common.hold(&mut self.is_dirty, peer);
        if self.wished {
            self.wish(common, peer, true); // an earlier connection was put away meanwhile
        }
    }

    /// Whether an endpoint that closes waits for this lane: for requests under way, among them answers that the peer
    /// counts on, and for the peer to take what was reported as sent.
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
    pub fn finish<H: Host<Verbs>>(
        &mut self,
        host: &mut H,
        peer: Peer,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if let Some(op) = host.finish(peer, id, result) {
            self.is_over(&op);
        }
    }

    /// An operation of this end is not under way any more.
    pub fn is_over(&mut self, op: &Op) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if matches!(op, Op::Access | Op::Write(_) | Op::Read { .. }) {
            self.executed = self.executed.saturating_sub(1);
        }
    }

    /// Tells the peer how its operation ended.
    pub fn done(&mut self, common: &mut Common, peer: Peer, flags: u8, op: u64, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        let mut fields = Fields::new();
        fields.word(op).word(errno);
        self.record(common, peer, (kind::DONE, flags), fields.bytes(), 0, None, |_| {});
    }

    /// A request of this lane is reported as done: the quiet ones before it have ended. What waits for one is that it
    /// was reported as sent before it arrived.
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

    /// A record has arrived at the peer, or never will.
    pub fn sent<H: Host<Verbs>>(&mut self, host: &mut H, peer: Peer, mark: u64) {
        if mark == DETACHED {
            self.detached = self.detached.saturating_sub(1);
        } else {
            self.finish(host, peer, SlotId::from_wire(mark), Ok(()));
        }
    }

    /// Takes the connection off, and everything that is of it. The queue pair goes first, so that the device writes
    /// nowhere any more. What the lane had is handed back.
    pub fn disconnected(&mut self, common: &mut Common, peer: Peer) -> Self {
        let mut old = std::mem::replace(self, Self::new(self.address));
        self.attempt = old.attempt;
        (self.is_dirty, self.is_live) = (old.is_dirty, old.is_live);
        (self.last_use, self.wanted) = (old.last_use, old.wanted);
        old.link = Link::Closed;
        old.mirror = None;
        for wr in common.adapter.posted.ids(|posted| posted.peer() == peer) {
            match common.adapter.posted.remove(wr) {
                Some(Posted::Send { slot, quiet, .. }) => common.adapter.end_send(slot, quiet),
                Some(Posted::Step { reads, .. }) => common.adapter.reads -= usize::from(reads),
                None => {}
            }
        }
        self.stalled = orphans(common, std::mem::take(&mut old.stalled));
        common.stalled.retain(|&other| other != peer);
        if !self.stalled.is_empty() {
            common.stalled.push(peer);
        }
        old
    }

    /// The connection is over: nothing of it is left here but messages of the peer that the application had no room
    /// for.
    pub fn lose<H: Host<Verbs>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, errno: Errno) {
        let old = self.disconnected(common, peer);
        for id in old.kept.ids(|_| true) {
            common.kept -= old.kept.get(id).map_or(0, |(_, len)| *len);
        }
        common.wishing.retain(|&other| other != peer);
        let mut receives = Vec::new();
        let mut slots = old.transfers;
        let ids = slots.ids(|_| true);
        let mut transfers: Vec<Transfer> = ids.into_iter().filter_map(|id| slots.remove(id)).collect();
        let spared = match old.refused {
            Some(refused) => Self::spare(common, host, peer, refused, &mut transfers),
            None => Vec::new(),
        };
        for Transfer { end, slot, .. } in transfers {
            // And with it the registrations.
            if let Some(slot) = slot {
                common.adapter.give_slot(slot);
            }
            if let End::Receive { into, .. } = end {
                receives.push(into);
            }
        }
        for into in receives {
            host.received(into, Err(errno));
        }
        host.fail_lane(peer, errno, is_lost, |_| true);
        self.ask_again(common, host, peer, spared);
    }
}

/// What stays of records that could not be taken, when their connection is over: messages, which the peer's device was
/// told have arrived. What the peer waits for an answer to has failed there.
fn orphans(common: &Common, stalled: VecDeque<Part>) -> VecDeque<Part> {
    let mut kept = VecDeque::<Part>::new();
    for part in stalled {
        if matches!(
            common.adapter.record(part.slot, part.at, part.len).first(),
            Some(&(kind::MESSAGE | kind::NOTE))
        ) {
            kept.push_back(Part { orphan: true, ..part });
        } else if part.last {
            // Of the records of a pack, those that stay may be before this one.
            match kept.back_mut().filter(|before| before.slot == part.slot) {
                Some(before) => before.last = true,
                None => common.adapter.receive(part.slot),
            }
        }
    }
    kept
}
