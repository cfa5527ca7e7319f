//! Staged transfers: the owner of the memory copies it.
//!
//! If no NIC registers a device's memory, each end copies between this memory and pinned host memory, which rails
//! transfer: an agent's own pool for its devices, and a *window* for each peer that requests one, which only that peer
//! writes and reads. A transfer is cut into chunks, several of which are in flight, each a small state machine:
//!
//! - write: copy to the pool, if our memory is a device's; move to the peer's memory, or to its window with `Land`
//!   behind the data; the peer copies from the window, and answers `Done`.
//! - read: with `Fetch` the peer copies to its window, and answers `Done`; move from the window, or from the peer's
//!   memory, to our memory or to the pool; copy from the pool.
//! - if the peer's NICs have registered its device memory (dma-buf), the rails move the bytes there without a window;
//!   if our own have registered ours, they move them without the pool (`direct.rs`).
//! - if the peer's memory can be mapped (`Export`), one copy is enough: by our device, or, if our memory is the host's,
//!   by the peer's device if this process has it open.
//!
//! Orders travel as notifications with an audience of their own ([`Order`]), so they arrive after their data. If the
//! use of a window's place did not end with the peer's answer, the place is not used again: late data must not
//! overwrite new data. Windows and mappings end with the session of their peer.

mod chunks;
mod direct;
mod mappings;
mod pool;
mod serve;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, Weak};

use ofi::{Errno, Error, Result};
use ofi_core::slots::{SlotId, Slots};

use crate::engine::{self, Audience, Core, Outcome, PeerId, Progress, Time, TransferId, Way};
use crate::memory::{Copying, Export, Mapping};
use crate::near::Domains;
use crate::region::{Guard, Inner as Region, Shares};
use crate::wire::RegionInfo;
use crate::wire::staging::Order;
use mappings::Mappings;
use pool::{Pool, Pooled};
use serve::Served;

/// Bytes of a place in the pool or in a window: the maximum length of a chunk.
pub(crate) const PLACE: u64 = 1 << 20;
/// Number of places in the pool, and in a window.
pub(crate) const PLACES: usize = 8;
/// The number of the pool, which is not published.
const NO_REGION: u64 = u64::MAX;

/// A prepared transfer.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) way: Way,
    pub(crate) peer: PeerId,
    pub(crate) incarnation: u64,
    pub(crate) pieces: Vec<Piece>,
    pub(crate) total: u64,
    /// Counts the transfers that are not quiet.
    pub(crate) uses: engine::PlanUses,
}

/// Equally long ranges of a local and a remote region.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) local: Arc<Region>,
    /// The first local byte's address.
    pub(crate) at: u64,
    pub(crate) remote: Arc<RegionInfo>,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The agent's regions by number.
pub(crate) type Regions = Arc<Mutex<BTreeMap<u64, Weak<Region>>>>;

/// The state of the window that a peer lends.
enum Lent {
    Asked { op: u64, note: Option<TransferId> },
    Window { info: Arc<RegionInfo>, free: Vec<u64>, used: usize },
}

struct Transfer {
    plan: Arc<Plan>,
    /// The first piece that is not wholly cut into chunks, and the number of its bytes that are.
    cursor: (usize, u64),
    /// Ranges of bytes in pieces that our NICs cannot access directly: they go through the pool.
    refused: Vec<(usize, u64, u64)>,
    chunks: Vec<Chunk>,
    /// Opens the session.
    ping: Option<TransferId>,
    notice: Option<Vec<u8>>,
    /// The transfer that sends the notification.
    note: Option<TransferId>,
    outcome: Option<Outcome>,
    is_released: bool,
    moved: u64,
    deadline: Time,
    /// The transfer is not quiet.
    in_use: Option<engine::InUse>,
}

struct Chunk {
    piece: usize,
    offset: u64,
    len: u64,
    op: u64,
    /// The chunk's place in the pool.
    pooled: Option<Pooled>,
    /// The chunk's place in this window of the peer.
    place: Option<(Arc<RegionInfo>, u64)>,
    mapped: Option<Arc<dyn Mapping>>,
    /// Our NICs access our device's memory directly.
    is_direct: bool,
    /// The engine transfer that has completed it, if a rail still reads its memory here (`engine/fence.rs`).
    lent: Option<TransferId>,
    answer: Option<u32>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Copy(Box<dyn Copying>),
    /// An engine transfer: of the data, or of `Fetch`.
    Move {
        id: TransferId,
        is_data: bool,
    },
    Answer,
    /// It has ended, but this engine transfer is not quiet, so the chunk's memory here is still in use.
    Lingers(TransferId),
}

/// The state of staged transfers. The agent's lock protects it.
pub(crate) struct Staging {
    domains: Arc<Domains>,
    transfers: Slots<Transfer>,
    pool: Pool,
    lent: HashMap<PeerId, Lent>,
    mappings: Mappings,
    served: Served,
    next_op: u64,
    direct: direct::Direct,
    /// Whether peers' memory may be mapped.
    may_map: bool,
    /// The id of this host in exports.
    host: Option<[u8; 16]>,
}

/// An engine plan that moves nothing.
fn nothing() -> Arc<engine::Plan<Guard>> {
    let (pieces, regions, guard) = (Vec::new(), Vec::new(), Guard::new());
    let near = Vec::new();
    let uses = engine::PlanUses::default();
    Arc::new(engine::Plan { way: Way::Write, pieces, regions, near, incarnation: 0, total: 0, guard, uses })
}

fn tell(
    core: &mut Core<Guard>,
    peer: PeerId,
    order: &Order,
    deadline: Time,
    now: Time,
) -> Result<TransferId, Errno> {
    let notice = Some(order.encode());
    core.post_to(Audience::Memory, peer, nothing(), notice, deadline, now).map_err(|(errno, _)| errno)
}

impl Staging {
    /// `windows` receives the windows granted to peers, by number.
    pub(crate) fn new(domains: Arc<Domains>, regions: Regions, windows: Regions, shares: Shares) -> Self {
        Self {
            served: Served::new(Arc::clone(&domains), regions, windows),
            domains,
            transfers: Slots::default(),
            pool: Pool::default(),
            lent: HashMap::new(),
            mappings: Mappings::new(),
            next_op: 1,
            direct: direct::Direct::new(shares.memory),
            may_map: shares.exports,
            host: crate::memory::host().ok(),
        }
    }

    pub(crate) fn post(&mut self, plan: Arc<Plan>, notice: Option<Vec<u8>>, deadline: Time) -> SlotId {
        let in_use = Some(plan.uses.hold());
        self.transfers.insert(Transfer {
            plan,
            cursor: (0, 0),
            refused: Vec::new(),
            chunks: Vec::new(),
            ping: None,
            notice,
            note: None,
            outcome: None,
            is_released: false,
            moved: 0,
            deadline,
            in_use,
        })
    }

    pub(crate) fn progress(&self, id: SlotId) -> Option<Progress> {
        let transfer = self.transfers.get(id)?;
        Some(Progress {
            outcome: transfer.outcome,
            moved: transfer.moved,
            total: transfer.plan.total,
            is_quiet: transfer.in_use.is_none(),
        })
    }

    pub(crate) fn cancel(&mut self, id: SlotId) {
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.outcome.get_or_insert(Outcome::Cancelled);
            transfer.settle();
        }
    }

    pub(crate) fn release(&mut self, id: SlotId) {
        self.cancel(id);
        if let Some(transfer) = self.transfers.get_mut(id) {
            transfer.is_released = true;
            if transfer.chunks.is_empty() && transfer.note.is_none() && transfer.ping.is_none() {
                self.transfers.remove(id);
            }
        }
    }

    /// The number of transfers in the table.
    pub(crate) fn kept(&self) -> usize {
        self.transfers.len()
    }

    /// Whether copies are in flight; no descriptor reports their end.
    pub(crate) fn is_copying(&self) -> bool {
        let copies =
            |transfer: &Transfer| transfer.chunks.iter().any(|chunk| matches!(chunk.step, Step::Copy(_)));
        self.served.is_copying() || self.transfers.values().any(copies)
    }

    /// The next deadline of a transfer.
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let open = self.transfers.values().filter(|transfer| transfer.outcome.is_none());
        open.map(|transfer| transfer.deadline).min()
    }

    /// Whether a peer's copy from or to a region is under way.
    pub(crate) fn serves(&self, region: &Arc<Region>) -> bool {
        self.served.is_used(region)
    }

    /// Advances all transfers as far as possible. Returns whether there was any work.
    #[inline]
    pub(crate) fn advance(&mut self, core: &mut Core<Guard>, now: Time) -> bool {
        let has_something = core.has_orders() || !self.transfers.is_empty() || !self.served.is_idle();
        has_something && self.advance_all(core, now)
    }

    fn advance_all(&mut self, core: &mut Core<Guard>, now: Time) -> bool {
        let mut was_busy = false;
        for peer in core.take_gone() {
            self.gone(core, peer);
        }
        while let Some((peer, bytes)) = core.take_order() {
            was_busy = true;
            match Order::parse(&bytes) {
                Ok(order) => self.take(core, peer, order, now),
                Err(error) => {
                    tracing::warn!(target: "multirail", %error, "a malformed order was dropped")
                }
            }
        }
        was_busy |= self.served.advance(core, now);
        for id in self.transfers.ids(|_| true) {
            let Some(mut transfer) = self.transfers.get_mut(id).map(Transfer::take) else { continue };
            was_busy |= self.turn(core, &mut transfer, now);
            transfer.settle();
            let is_over = transfer.is_released && transfer.chunks.is_empty();
            match self.transfers.get_mut(id) {
                Some(slot) if !is_over => *slot = transfer,
                _ => drop(self.transfers.remove(id)),
            }
        }
        was_busy
    }

    /// Forgets a peer's window, or the pending request for one.
    fn forget_window(&mut self, core: &mut Core<Guard>, peer: PeerId) {
        if let Some(Lent::Asked { note: Some(note), .. }) = self.lent.remove(&peer) {
            core.release(note);
        }
    }

    /// Handles the end of the session with a peer.
    fn gone(&mut self, core: &mut Core<Guard>, peer: PeerId) {
        self.forget_window(core, peer);
        self.mappings.gone(peer);
        self.direct.gone(peer);
        self.served.gone(peer);
        for id in self.transfers.ids(|transfer| transfer.plan.peer == peer && transfer.outcome.is_none()) {
            if let Some(transfer) = self.transfers.get_mut(id)
                && transfer.cursor != (0, 0)
            {
                transfer.outcome = Some(Outcome::Failed(Errno::ECONNRESET));
            }
        }
    }

    fn take(&mut self, core: &mut Core<Guard>, peer: PeerId, order: Order, now: Time) {
        match order {
            Order::Ping => {}
            Order::Ask(op) => self.served.ask(core, peer, op, now),
            Order::Land(it) => self.served.begin(core, peer, it, true, now),
            Order::Fetch(it) => self.served.begin(core, peer, it, false, now),
            Order::Where => {
                if let Some(host) = self.host {
                    self.served.answer(core, peer, &Order::Here(host), now);
                }
            }
            Order::Here(host) => self.direct.is_at(peer, host),
            Order::Grant(op, window) => {
                let is_asked =
                    |lent: &&mut Lent| matches!(lent, Lent::Asked { op: asked, .. } if *asked == op);
                if self.lent.get_mut(&peer).filter(is_asked).is_none() {
                    return;
                }
                self.forget_window(core, peer);
                match window {
                    Ok(info) => {
                        let places = (info.len / PLACE).min(PLACES as u64);
                        let free = (0..places).map(|nth| nth * PLACE).collect();
                        self.lent.insert(peer, Lent::Window { info: Arc::new(info), free, used: 0 });
                    }
                    Err(errno) => self.refuse(peer, Errno::from_raw(errno.cast_signed())),
                }
            }
            Order::Done(op, errno) => {
                let its = |transfer: &Transfer| transfer.plan.peer == peer;
                for id in self.transfers.ids(its) {
                    let Some(transfer) = self.transfers.get_mut(id) else { continue };
                    if let Some(chunk) = transfer.chunks.iter_mut().find(|chunk| chunk.op == op) {
                        chunk.answer = Some(errno);
                    }
                }
            }
        }
    }

    /// Handles a peer's refusal of a window: transfers that need one fail.
    fn refuse(&mut self, peer: PeerId, errno: Errno) {
        for id in self.transfers.ids(|transfer| transfer.plan.peer == peer && transfer.outcome.is_none()) {
            if let Some(transfer) = self.transfers.get_mut(id) {
                transfer.outcome = Some(Outcome::Failed(errno));
            }
        }
    }

    fn turn(&mut self, core: &mut Core<Guard>, transfer: &mut Transfer, now: Time) -> bool {
        if transfer.outcome.is_none() && now >= transfer.deadline {
            transfer.outcome = Some(Outcome::Failed(Errno::ETIMEDOUT));
        }
        let mut was_busy = self.look_at_chunks(core, transfer, now);
        if transfer.outcome.is_some() {
            for id in [transfer.ping.take(), transfer.note.take()].into_iter().flatten() {
                core.release(id);
            }
            return was_busy;
        }
        if !self.is_open(core, transfer, now) {
            return was_busy;
        }
        while transfer.outcome.is_none() && !transfer.is_cut() {
            match self.start(core, transfer, now) {
                Ok(true) => was_busy = true,
                Ok(false) => return was_busy,
                Err(errno) => transfer.outcome = Some(Outcome::Failed(errno)),
            }
        }
        if transfer.outcome.is_none() && transfer.chunks.iter().all(Chunk::has_ended) {
            self.tell_end(core, transfer, now);
        }
        was_busy
    }

    /// Whether the session is open; starts to open one otherwise.
    fn is_open(&mut self, core: &mut Core<Guard>, transfer: &mut Transfer, now: Time) -> bool {
        if let Some(ping) = transfer.ping {
            let Some(outcome) = core.progress(ping).map_or(Some(Outcome::Cancelled), |found| found.outcome)
            else {
                return false;
            };
            core.release(ping);
            transfer.ping = None;
            if outcome != Outcome::Done {
                transfer.outcome = Some(outcome);
                return false;
            }
        } else if !core.is_up(transfer.plan.peer) {
            match tell(core, transfer.plan.peer, &Order::Ping, transfer.deadline, now) {
                Ok(ping) => transfer.ping = Some(ping),
                Err(errno) => transfer.outcome = Some(Outcome::Failed(errno)),
            }
            return false;
        }
        true
    }

    /// Notifies the peer's program when all bytes are in place, if the transfer has a notification.
    fn tell_end(&mut self, core: &mut Core<Guard>, transfer: &mut Transfer, now: Time) {
        if let Some(notice) = transfer.notice.take() {
            let note = core.post(transfer.plan.peer, nothing(), Some(notice), transfer.deadline, now);
            match note {
                Ok(note) => transfer.note = Some(note),
                Err((errno, _)) => transfer.outcome = Some(Outcome::Failed(errno)),
            }
            return;
        }
        let outcome = match transfer.note {
            Some(note) => core.progress(note).map_or(Some(Outcome::Cancelled), |found| found.outcome),
            None => Some(Outcome::Done),
        };
        if outcome.is_some() {
            transfer.outcome = outcome;
            transfer.note.take().into_iter().for_each(|note| _ = core.release(note));
        }
    }

    /// A place in the peer's window, if one is free; asks for a window if there is none.
    fn place(
        &mut self,
        core: &mut Core<Guard>,
        peer: PeerId,
        deadline: Time,
        now: Time,
    ) -> Result<Option<(Arc<RegionInfo>, u64)>, Errno> {
        match self.lent.get_mut(&peer) {
            Some(Lent::Window { info, free, used }) => {
                let place = free.pop();
                *used += usize::from(place.is_some());
                return Ok(place.map(|place| (Arc::clone(info), place)));
            }
            Some(Lent::Asked { note, .. }) => {
                let outcome = note.and_then(|note| core.progress(note)?.outcome);
                match (outcome, *note) {
                    (Some(Outcome::Done), Some(id)) => {
                        core.release(id);
                        *note = None;
                    }
                    (Some(_), Some(id)) => {
                        core.release(id);
                        self.lent.remove(&peer);
                    }
                    _ => {}
                }
                return Ok(None);
            }
            None => {}
        }
        let op = self.next_op;
        self.next_op += 1;
        let note = tell(core, peer, &Order::Ask(op), deadline, now)?;
        self.lent.insert(peer, Lent::Asked { op, note: Some(note) });
        Ok(None)
    }

    /// Whether the peer's NICs access its device memory by themselves (`RegionInfo::keys`). Not from this host: rails
    /// may lead there through shared memory.
    fn is_direct(&self, core: &Core<Guard>, peer: PeerId, piece: &Piece) -> bool {
        let is_here = |export: &Export| self.host.is_some_and(|host| host == export.host);
        core.leads_to(peer, &piece.remote.keys) && !piece.remote.export.as_ref().is_some_and(is_here)
    }

    /// The peer's memory, mapped here, if that is possible.
    fn map(&mut self, peer: PeerId, piece: &Piece) -> Option<Arc<dyn Mapping>> {
        let export = piece.remote.export.as_ref().filter(|_| self.may_map)?;
        if export.handle == Export::NO_HANDLE {
            return None;
        }
        if let Some(known) = self.mappings.get(peer, piece.remote.id) {
            return known.clone();
        }
        if !self.mappings.has_place(peer) {
            return None;
        }
        // A process may open the device later, so its absence is not cached.
        let device = piece.local.device().cloned().or_else(|| crate::memory::opened(export))?;
        let mapped = device.import(export, piece.remote.len);
        let mapped = mapped.inspect_err(|error| {
            tracing::debug!(target: "multirail", %error, "a peer's memory cannot be mapped: the rails carry the bytes");
        });
        let mapped = mapped.ok();
        self.mappings.insert(peer, piece.remote.id, mapped.clone());
        mapped
    }
}

#[cold]
fn log(error: &Error) -> Errno {
    tracing::warn!(target: "multirail", %error, "a device returned an error");
    error.errno()
}

impl Chunk {
    /// Whether its bytes are in place, or will not be.
    fn has_ended(&self) -> bool {
        matches!(self.step, Step::Lingers(_))
    }
}

impl Transfer {
    /// Whether every byte is, or has been, in a chunk.
    fn is_cut(&self) -> bool {
        self.refused.is_empty() && self.cursor.0 >= self.plan.pieces.len()
    }

    /// Its plan no longer counts a transfer that has ended with all its chunks.
    fn settle(&mut self) {
        if self.outcome.is_some() && self.chunks.is_empty() {
            self.in_use = None;
        }
    }

    /// Takes the transfer out of its slot while it is processed.
    fn take(&mut self) -> Self {
        Self {
            plan: Arc::clone(&self.plan),
            refused: std::mem::take(&mut self.refused),
            chunks: std::mem::take(&mut self.chunks),
            notice: self.notice.take(),
            in_use: self.in_use.take(),
            ..*self
        }
    }
}
