//! Runs collectives: the groups that an endpoint has joined, the operations in them, and early notes.
//!
//! A transfer that fits into a note is sent at once. A longer one is requested by its receiver when the receiver
//! reaches the round, and then streamed. Notes that arrive before their operation is posted are kept, at most
//! [`CREDITS`] from each peer; beyond that the sender waits for credit. So a rank that runs ahead is slowed down, and
//! memory stays bounded.
//!
//! A group fails as a whole when a needed member is gone, leaves during an operation, or posts a different operation
//! than the others. The member that notices this tells the others. Nothing here waits or locks;
//! [`Collectives::advance`] is called after each poll while there is work.

mod arriving;
mod numbers;
mod running;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;

use ofi_api::{Errno, Error, Piece, Result};
use rustc_hash::FxHashMap;

use super::note::{ControlKind, Note};
use super::schedule::Schedule;
use crate::atomic::Executor;
use crate::transport::{OutNote, PeerId};
use arriving::Early;
use numbers::Numbers;
pub use running::Report;
use running::{Running, State};

/// Eager notes and questions that a sender may have in flight to one peer.
pub const CREDITS: u32 = 64;
/// How many failures of groups that this end has not joined yet are remembered. Beyond that, a join waits until the
/// failed member is gone.
const EARLY_ABORTS: usize = 1024;
/// Operations that are kept for reuse.
const SPARES: usize = 4;
/// Stands for this end among the members of a group.
pub const SELF: PeerId = PeerId::MAX;

/// The carrier of notes.
pub trait Wire {
    /// Sends a note.
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room.
    fn note(&mut self, out: &OutNote<'_>) -> Result<()>;

    /// Announces that a note of this peer is expected.
    fn await_note(&mut self, peer: PeerId);
}

/// The key of a note: group, operation, round and sender.
type Key = (u64, u64, u32, PeerId);

/// A group that this end has joined, or is joining.
struct JoinedGroup {
    /// Peers by rank; [`SELF`] is this end.
    members: Vec<PeerId>,
    next: u64,
    failed: Option<Errno>,
    /// Members that are gone, and why. Notes that they sent before still count, so an operation fails only if it needs
    /// more from one of them: a member may end once it has done its part of the last operation, before the others have
    /// done theirs.
    gone: Vec<(PeerId, Errno)>,
}

impl JoinedGroup {
    /// Why an operation cannot continue, if it needs more from a member that is gone.
    fn lost(&self, running: &Running) -> Option<Errno> {
        self.gone.iter().find(|&&(peer, _)| running.wants(peer)).map(|&(_, errno)| errno)
    }
}

/// Boxed, because an operation moves from list to list at each step.
type OneRunning = Box<Running>;

/// Notes between this end and one peer.
struct PeerNotes {
    /// How many eager notes and questions may be sent.
    credits: u32,
    /// The number of the peer's notes that are kept here.
    held: u32,
    /// Notes processed since the last report to the peer.
    taken: u32,
    /// Distinguishes this peer from an earlier one with the same number.
    epoch: u64,
}

impl PeerNotes {
    /// Those of a peer.
    fn of<'a>(flows: &'a mut FxHashMap<PeerId, Self>, epochs: &mut u64, peer: PeerId) -> &'a mut Self {
        flows.entry(peer).or_insert_with(|| {
            *epochs += 1;
            Self { credits: CREDITS, held: 0, taken: 0, epoch: *epochs }
        })
    }

    /// Counts an eager note or question as processed. Returns the report of many to the peer, if it is due.
    fn taken(&mut self) -> Option<Note> {
        self.taken += 1;
        (self.taken >= CREDITS / 2).then(|| {
            let value = u64::from(std::mem::take(&mut self.taken));
            Note { kind: ControlKind::Credit, group: 0, operation: 0, round: 0, value }
        })
    }
}

/// The collectives of one endpoint.
pub struct Collectives {
    /// The maximum payload of a note, in bytes: a multiple of every element's size.
    chunk: usize,
    groups: FxHashMap<u64, JoinedGroup>,
    numbers: Numbers,
    aborted: FxHashMap<u64, Errno>,
    running: Vec<OneRunning>,
    /// Empty, but for its memory: see [`Collectives::advance`].
    moved: Vec<OneRunning>,
    /// Ended operations, for reuse.
    spare: Vec<OneRunning>,
    early: FxHashMap<Key, Early>,
    flows: FxHashMap<PeerId, PeerNotes>,
    epochs: u64,
    outbox: VecDeque<(PeerId, Note)>,
    /// Something has happened since the last [`Collectives::advance`], or that had no room for all that it had to send.
    /// Most polls find nothing new.
    is_due: bool,
}

impl Collectives {
    /// For a transport whose notes have up to `size` bytes of payload.
    pub fn new(size: usize) -> Self {
        Self {
            chunk: (size / 32 * 32).max(32),
            groups: FxHashMap::default(),
            numbers: Numbers::default(),
            aborted: FxHashMap::default(),
            running: Vec::new(),
            moved: Vec::new(),
            spare: Vec::new(),
            early: FxHashMap::default(),
            flows: FxHashMap::default(),
            epochs: 0,
            outbox: VecDeque::new(),
            is_due: false,
        }
    }

    /// Whether [`Collectives::advance`] may have something to do.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.running.is_empty() || !self.outbox.is_empty()
    }

    /// Opens a group of `members`, by rank. `names` is the same at all members: endpoints that join the same list for
    /// the `n`th time join the same group. Returns the group's number.
    pub fn open(&mut self, members: Vec<PeerId>, names: u64) -> u64 {
        let id = self.numbers.next(names);
        let failed = self.aborted.remove(&id);
        self.groups.insert(id, JoinedGroup { members, next: 0, failed, gone: Vec::new() });
        id
    }

    /// The number of ranks of a live group, and this end's rank.
    ///
    /// # Errors
    /// `FI_EINVAL` for a group that this end is not in; otherwise the error that the group failed with.
    pub fn shape(&self, group: u64) -> Result<(usize, usize)> {
        let found = self.groups.get(&group).ok_or_else(no_group)?;
        if let Some(errno) = found.failed {
            return Err(Error::wanted(
                errno,
                "a collective",
                "a group whose members all take part",
                "a failed one: a member is gone, has left, or posted a different operation",
                "join a new group",
            ));
        }
        let me = found.members.iter().position(|&peer| peer == SELF).unwrap_or(0);
        Ok((found.members.len(), me))
    }

    /// Starts an operation.
    ///
    /// # Errors
    /// As [`Collectives::shape`]; `FI_ENOMEM` for the operation's own memory.
    ///
    /// # Safety
    /// Input and result, as far as `schedule` uses them, are lent until the operation ends.
    pub unsafe fn start(
        &mut self,
        group: u64,
        schedule: &Arc<Schedule>,
        memory: [Piece; 2],
        executor: Option<Executor>,
        report: Report,
    ) -> Result<()> {
        let Some(found) = self.groups.get_mut(&group).filter(|found| found.failed.is_none()) else {
            return self.shape(group).map(drop);
        };
        let mut running = self.spare.pop().unwrap_or_else(|| Box::new(Running::new(report)));
        running.begin(group, schedule, memory, executor, report)?;
        running.operation = found.next;
        found.next += 1;
        running.do_first();
        self.running.push(running);
        self.is_due = true;
        Ok(())
    }

    /// Leaves a group. Operations in it fail, here at the next [`Collectives::advance`] and at the other members.
    pub fn leave(&mut self, group: u64) {
        if self.running.iter().any(|running| running.group == group) {
            self.fail(group, Errno::ECANCELED);
        }
        self.forget_early(group);
        self.groups.remove(&group);
        self.is_due = true;
    }

    /// Fails a group, and tells its members unless they reported the failure.
    fn fail(&mut self, group: u64, errno: Errno) {
        let Some(found) = self.groups.get_mut(&group) else { return };
        if found.failed.replace(errno).is_some() {
            return;
        }
        self.is_due = true;
        let value = errno.get() as u64;
        let note = Note { kind: ControlKind::Abort, group, operation: 0, round: 0, value };
        let others = found.members.iter().filter(|&&peer| peer != SELF);
        self.outbox.extend(others.map(|&peer| (peer, note)));
        self.forget_early(group);
    }

    /// Drops early notes for a group.
    fn forget_early(&mut self, group: u64) {
        let keys: Vec<Key> = self.early.keys().filter(|key| key.0 == group).copied().collect();
        for key in keys {
            if let Some(early) = self.early.remove(&key) {
                self.taken(key.3, early.epoch);
            }
        }
    }

    fn flow(&mut self, peer: PeerId) -> &mut PeerNotes {
        PeerNotes::of(&mut self.flows, &mut self.epochs, peer)
    }

    /// Records that an eager note or question of a peer has been processed.
    fn taken(&mut self, peer: PeerId, epoch: u64) {
        let Some(flow) = self.flows.get_mut(&peer).filter(|flow| flow.epoch == epoch) else { return };
        flow.held = flow.held.saturating_sub(1);
        self.outbox.extend(flow.taken().map(|note| (peer, note)));
    }

    /// Whether a peer is in a group.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.groups.values().any(|group| group.members.contains(&peer))
    }

    /// Handles the loss of a peer, once everything that it sent has been processed. Operations that need more from it
    /// fail at the next [`Collectives::advance`].
    pub fn peer_gone(&mut self, peer: PeerId, errno: Errno) {
        self.is_due = true;
        for group in self.groups.values_mut().filter(|group| group.members.contains(&peer)) {
            if group.gone.iter().all(|&(gone, _)| gone != peer) {
                group.gone.push((peer, errno));
            }
        }
        let groups = &self.groups;
        self.early.retain(|key, _| {
            key.3 != peer || groups.get(&key.0).is_some_and(|group| group.members.contains(&peer))
        });
        self.outbox.retain(|(to, _)| *to != peer);
        self.flows.remove(&peer);
    }

    /// Whether notes about a group are obsolete.
    fn is_over(&self, group: u64) -> bool {
        match self.groups.get(&group) {
            Some(group) => group.failed.is_some(),
            None => self.numbers.was_given(group),
        }
    }

    /// Advances all operations as far as possible. Appends those that have ended to `finished`.
    pub fn advance(&mut self, wire: &mut impl Wire, finished: &mut Vec<(Report, Result<(), Errno>)>) {
        if std::mem::take(&mut self.is_due) {
            self.send_outbox(wire);
            // An operation is taken out of the list while it advances, because that needs the whole engine.
            let mut moved = std::mem::take(&mut self.moved);
            std::mem::swap(&mut moved, &mut self.running);
            for mut running in moved.drain(..) {
                match self.step(&mut running, wire) {
                    Some(result) => {
                        finished.push((running.report, result));
                        running.end();
                        if self.spare.len() < SPARES {
                            self.spare.push(running);
                        }
                    }
                    None => {
                        self.is_due |= running.has_to_send();
                        self.running.push(running);
                    }
                }
            }
            self.moved = moved;
            self.send_outbox(wire);
            self.is_due |= !self.outbox.is_empty();
        }
        for peer in self.running.iter().flat_map(|running| running.awaited()).filter(|&peer| peer != SELF) {
            wire.await_note(peer);
        }
    }

    fn send_outbox(&mut self, wire: &mut impl Wire) {
        if self.outbox.is_empty() {
            return;
        }
        for _ in 0..self.outbox.len() {
            let Some((peer, note)) = self.outbox.pop_front() else { return };
            let out = OutNote { peer, words: note.to_words(), pieces: &[], skip: 0, len: 0 };
            match wire.note(&out) {
                Err(error) if error.is_again() => self.outbox.push_back((peer, note)),
                // Delivered, or the peer is gone, which is reported to this end too.
                _ => {}
            }
        }
    }

    /// Advances one operation. Returns its result if it has ended.
    fn step(&mut self, running: &mut Running, wire: &mut impl Wire) -> Option<Result<(), Errno>> {
        loop {
            let Some(group) = self.groups.get(&running.group) else { return Some(Err(Errno::ECANCELED)) };
            if let Some(errno) = group.failed {
                return Some(Err(errno));
            }
            if running.round == running.schedule.rounds.len() {
                return Some(Ok(()));
            }
            if !running.has_entered {
                running.enter(&group.members);
                if !self.early.is_empty() {
                    self.match_early(running);
                    continue; // an early note may have failed the group
                }
            }
            if let Some(errno) = group.lost(running) {
                self.fail(running.group, errno);
                return Some(Err(errno));
            }
            for index in 0..running.sends.len() {
                if let Err(errno) = self.push(running, index, wire) {
                    self.fail(running.group, errno);
                    return Some(Err(errno));
                }
            }
            if running.waits() {
                return None;
            }
            running.leave_round();
        }
    }

    /// Advances one send.
    fn push(&mut self, running: &mut Running, index: usize, wire: &mut impl Wire) -> Result<(), Errno> {
        let chunk = self.chunk;
        let (group, operation, round) = (running.group, running.operation, running.round as u32);
        let note = |kind, value| Note { kind, group, operation, round, value }.to_words();
        let send = &mut running.sends[index];
        let pieces = &running.pieces[send.pieces.clone()];
        let mut post = |words, pieces: &[Piece], skip, len| match wire.note(&OutNote {
            peer: send.peer,
            words,
            pieces,
            skip,
            len,
        }) {
            Ok(()) => Ok(true),
            Err(error) if error.is_again() => Ok(false),
            Err(error) => Err(error.errno()),
        };
        match send.state {
            State::Begin => {
                let flow = self.flow(send.peer);
                if flow.credits == 0 {
                    return Ok(());
                }
                let posted = if send.len <= chunk {
                    post(note(ControlKind::Eager, 0), pieces, 0, send.len)?
                } else {
                    post(note(ControlKind::Ask, send.len as u64), &[], 0, 0)?
                };
                if posted {
                    flow.credits -= 1;
                    send.state = if send.len <= chunk { State::Done } else { State::Asked };
                }
            }
            State::Going => {
                while send.sent < send.len {
                    let part = chunk.min(send.len - send.sent);
                    if !post(note(ControlKind::Chunk, send.sent as u64), pieces, send.sent, part)? {
                        return Ok(());
                    }
                    send.sent += part;
                }
                send.state = State::Done;
            }
            State::Asked | State::Done => {}
        }
        Ok(())
    }
}

/// FNV-1a from a given state: a number that all members of a group compute identically.
pub fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// The initial state.
pub const HASH: u64 = 0xCBF2_9CE4_8422_2325;

#[cold]
fn no_group() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "the address of a group",
        "one that this endpoint has joined",
        "another number",
        "use the result of fi_mc_addr for an open group",
    )
}
