//! The engine without I/O: sessions with peers, transfers over their paths, notifications.
//!
//! It owns no rail, clock or thread. [`Core::ended`], [`Core::message`], [`Core::arrived`] and [`Core::tick`] take its
//! input. [`Core::perform`] hands commands to a [`Sink`]. [`Core::take_events`] and [`Core::take_notification`] return
//! output for the program. A simulated network drives the engine exactly as a program does.
//!
//! Invariants:
//! - A transfer ends once (done, failed or cancelled), by its deadline, whatever the network does.
//! - No rail uses its memory once it is *quiet*, which may be later: an operation that a rail has neither completed nor
//!   given up stays in the table and keeps the transfer's plan.
//! - An id (a slot and its generation) never names a second operation, transfer or session: a late completion matches
//!   nothing.
//! - The engine does not wait forever for operations that do not end: it repeats messages on another path, and fences a
//!   path on which no operation ends. Its accesses move only when their first copies can touch no memory any more.
//! - An error of an operation that is not a rail's fault ends its transfer alone. A rail's fault moves its work to the
//!   others; when no path is left, the session and its transfers end.

mod accounts;
mod budget;
mod delivered;
mod failed;
mod farewell;
mod fence;
mod giving_up;
mod greet;
mod held;
mod inbox;
mod latency;
mod later;
mod lost;
mod operations;
mod path;
mod peers;
mod places;
mod posting;
mod receipts;
mod row;
mod schedule;
mod session;
mod sever;
mod shares;
mod sink;
mod transfer;
mod unread;
mod uses;
mod vocabulary;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use ofi_core::slots::{SlotId, Slots};

use budget::KeptBudget;
use fence::Abandoned;
pub use latency::{CLASSES, Histogram, Latencies};
use operations::{InFlight, Landed};
use peers::KnownPeer;
pub use peers::RemoteRegions;
use places::RailPlaces;
use row::PostedRun;
use session::Session;
use sink::Stalled;
pub use sink::{Refused, Sink};
use transfer::Transfer;
pub use transfer::{Awaited, Chunk, Outcome, Piece, Plan, Progress, Way};
pub use uses::PlanUses;
pub(crate) use uses::{InUse, RegionPlans};
pub use vocabulary::{
    Access, Audience, Config, Counts, Event, Notification, OpId, PathState, PeerId, RailSpec, Time,
    TransferId,
};
use vocabulary::{Command, Named, PathId};

/// The engine. `G` keeps the memory of a plan.
pub struct Core<G> {
    config: Config,
    name: Arc<str>,
    incarnation: u64,
    /// The time of the start, if incarnations have an order.
    born: Option<u32>,
    rails: Vec<RailSpec>,
    /// The number of rails at the start.
    first_rails: usize,
    /// The times until which rails rest that cannot be driven.
    rests_until: Vec<Time>,
    random: Box<dyn FnMut() -> u64 + Send>,
    peers: Slots<KnownPeer>,
    /// Those of each peer of which none is known.
    no_regions: Arc<RemoteRegions>,
    names: HashMap<Arc<str>, SlotId>,
    /// The number of greeters: peers that are known by their greeting alone.
    greeters: usize,
    /// Greeters that may be forgotten for a new one; the one longest without an open session comes first. Some may have
    /// been loaded or forgotten since, or have a session.
    idle_greeters: VecDeque<SlotId>,
    sessions: Slots<Session>,
    /// Sessions in [`State::Rejecting`](session::State).
    rejections: usize,
    /// Sessions by the upper half of our tag, which writes carry.
    tags: HashMap<u32, SlotId>,
    transfers: Slots<Transfer<G>>,
    /// Accesses in flight.
    rows: Slots<PostedRun>,
    /// Accesses that have ended but are not accounted for yet.
    landed: Option<Landed>,
    /// Accesses that were abandoned and have not ended, by row.
    abandoned: HashMap<SlotId, Abandoned>,
    /// Transfers whose accesses are to be given up.
    ending: Vec<SlotId>,
    /// Messages in flight.
    messages: Slots<InFlight>,
    /// Sessions that may have work.
    ready: VecDeque<SlotId>,
    /// The timers of sessions and transfers.
    timers: BTreeMap<(Time, u64), Timer>,
    next_timer: u64,
    /// The session of the last arrived write. The next write mostly belongs to the same session.
    last_arrival: Option<SlotId>,
    commands: VecDeque<Command>,
    stalled: Stalled,
    places: RailPlaces,
    events: VecDeque<Event>,
    /// What peers make the agent keep.
    budget: KeptBudget,
    /// Peers with notifications that the program has not taken.
    unread: VecDeque<SlotId>,
    /// Notifications for the code that serves device memory.
    orders: VecDeque<(PeerId, Vec<u8>)>,
    /// Peers whose open sessions have ended.
    gone: Vec<PeerId>,
    counts: Counts,
    /// Latencies of accesses, by rail.
    latencies: Vec<Latencies>,
    /// Latencies of successful transfers.
    transfer_latencies: Latencies,
    /// The latest time passed to the engine.
    now: Time,
    /// Attempts to send a notification.
    #[cfg(test)]
    looks: u64,
}

#[derive(Clone, Copy)]
enum Timer {
    Session(SlotId),
    Transfer(SlotId),
    Control(SlotId),
    Path(SlotId, usize),
    /// The deadline of a request to fence.
    Fence(SlotId, u64),
    /// A rail is asked again to give up the reads of a row, by this time.
    Abandon(SlotId, Time),
    /// The rails are asked again to give up the accesses of a transfer that has ended.
    GiveUp(SlotId),
    /// Lost chunks move, whether fenced or not.
    Lost(SlotId),
    /// An ended session tells its peer.
    SessionClose(SlotId),
    /// A session's best path was full; another may be better now.
    Full(SlotId),
}

/// Maximum queued events. Beyond it the oldest are dropped.
const EVENTS: usize = 4096;

impl<G> Core<G> {
    /// Creates an engine for the agent `name` with these rails. `random` returns 64 random bits per call.
    pub fn new(
        name: &str,
        rails: Vec<RailSpec>,
        config: Config,
        mut random: Box<dyn FnMut() -> u64 + Send>,
    ) -> Self {
        let incarnation = random();
        let (latencies, stalled) = (vec![Latencies::default(); rails.len()], Stalled::new(rails.len()));
        let (places, budget) = (RailPlaces::new(&rails), KeptBudget::new(&config));
        Self {
            config,
            name: name.into(),
            incarnation,
            born: None,
            first_rails: rails.len(),
            rests_until: vec![Time::ZERO; rails.len()],
            rails,
            random,
            peers: Slots::default(),
            no_regions: Arc::default(),
            names: HashMap::new(),
            greeters: 0,
            idle_greeters: VecDeque::new(),
            sessions: Slots::default(),
            rejections: 0,
            tags: HashMap::new(),
            transfers: Slots::default(),
            rows: Slots::default(),
            landed: None,
            abandoned: HashMap::new(),
            ending: Vec::new(),
            messages: Slots::default(),
            ready: VecDeque::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            last_arrival: None,
            commands: VecDeque::new(),
            stalled,
            places,
            events: VecDeque::new(),
            budget,
            unread: VecDeque::new(),
            orders: VecDeque::new(),
            gone: Vec::new(),
            counts: Counts::default(),
            latencies,
            transfer_latencies: Latencies::default(),
            now: Time::ZERO,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Gives incarnations an order: the upper half of this agent's becomes the time of its start, in seconds since
    /// 1970. Metadata of a peer's earlier life is then known as such ([`Core::load`]). To be called before anything
    /// else.
    pub fn born_at(&mut self, seconds: u32) {
        self.born = Some(seconds);
        self.incarnation = u64::from(seconds) << 32 | self.incarnation & 0xFFFF_FFFF;
    }

    /// Events of peers.
    pub fn take_events(&mut self) -> Vec<Event> {
        self.events.drain(..).collect()
    }

    /// The next notification for [`Audience::Memory`].
    pub fn take_order(&mut self) -> Option<(PeerId, Vec<u8>)> {
        self.orders.pop_front()
    }

    /// Whether orders have arrived, or open sessions have ended, since they were last taken.
    pub fn has_orders(&self) -> bool {
        !self.orders.is_empty() || !self.gone.is_empty()
    }

    /// Peers whose open sessions have ended since the last call.
    pub fn take_gone(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.gone)
    }

    /// The agent's counters.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Latencies of accesses, by rail.
    pub fn latencies(&self) -> &[Latencies] {
        &self.latencies
    }

    /// Latencies of successful transfers, by their total length.
    pub fn transfer_latencies(&self) -> &Latencies {
        &self.transfer_latencies
    }

    /// The number of operations, transfers and sessions in the tables.
    pub fn kept(&self) -> (usize, usize, usize) {
        let accesses: usize = self.rows.values().map(|row| row.under_way() as usize).sum();
        let abandoned: usize = self.abandoned.values().map(|abandoned| abandoned.count()).sum();
        (accesses + abandoned + self.messages.len(), self.transfers.len(), self.sessions.len())
    }

    fn tell(&mut self, event: Event) {
        tracing::debug!(target: "multirail", ?event);
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn remind(&mut self, at: Time, timer: Timer) -> (Time, u64) {
        let key = (at, self.next_timer);
        self.timers.insert(key, timer);
        self.next_timer += 1;
        key
    }

    /// When [`Core::tick`] must be called next.
    pub fn next_timeout(&self) -> Option<Time> {
        self.timers.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Advances the time.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        self.account();
        while let Some(entry) = self.timers.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Timer::Session(id) => self.session_timer(id, now),
                Timer::Transfer(id) => self.overdue(id),
                Timer::Control(op) => self.repeat(op),
                Timer::Path(id, index) => self.look_at(id, index, now),
                Timer::Fence(id, serial) => self.fence_timer(id, serial, now),
                Timer::Abandon(row, until) => self.commands.push_back(Command::Abandon { row, until }),
                Timer::GiveUp(id) => self.plan_to_give_up(id),
                Timer::Lost(id) => self.lost_timer(id, now),
                Timer::SessionClose(id) => self.say_goodbye(id, now),
                Timer::Full(id) => {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.full = None;
                    }
                    self.wake(id);
                }
            }
        }
    }

    /// The input of a session's commands has changed. Returns whether the session is in the list of those with work.
    fn wake(&mut self, id: SlotId) -> bool {
        let Some(session) = self.sessions.get_mut(id) else { return false };
        if !session.queued && session.is_to_be_asked() {
            session.queued = true;
            self.ready.push_back(id);
        }
        session.queued
    }
}
