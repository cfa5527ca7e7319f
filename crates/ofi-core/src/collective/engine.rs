//! Runs collectives: which groups an endpoint has joined, what runs in them, and what came too early.
//!
//! A transfer that fits a note goes at once. A longer one is asked for by its receiver when it has come to that round,
//! and then streamed. What comes before its operation was posted here is kept: at most [`CREDITS`] notes of each peer,
//! as a sender waits for credit beyond that; so a rank that runs ahead is slowed down, and memory stays bounded.
//!
//! A group fails as a whole: when a member is gone of which something is wanted, leaves while something runs, or says something else than the others.
//! Whoever notices tells the others. Nothing here waits or locks; [`Collectives::advance`] is called after each poll
//! while there is something to do.

use std::collections::VecDeque;

use ofi_api::{Context, Errno, Error, Fid, Piece, Result};
use rustc_hash::{FxHashMap, FxHashSet};

use super::note::{Kind, Note};
use super::schedule::{Local, Part, Place, Schedule, Transfer};
use crate::atomic::Executor;
use crate::copy;
use crate::transport::{OutNote, Peer, Ticket};

/// Eager notes and questions that a sender may have on their way to one peer.
pub const CREDITS: u32 = 64;
/// Failures of groups that this end has not joined yet, which are remembered. More than that, a join waits until the
/// member that failed is gone.
const EARLY_ABORTS: usize = 1024;
/// This end, among the members of a group.
pub const SELF: Peer = Peer::MAX;

/// What carries notes.
pub trait Wire {
    /// Sends a note.
    ///
    /// # Errors
    /// `FI_EAGAIN` for lack of room.
    fn note(&mut self, out: &OutNote<'_>) -> Result<()>;
}

/// How the end of an operation is told.
#[derive(Clone, Copy, Debug)]
pub enum Report {
    /// By a completion.
    Completion(Ticket),
    /// By an event.
    Join(Fid, Context),
}

/// The caller's memory and this end's.
struct Memory {
    /// Input, result, scratch: first byte and length.
    places: [(*mut u8, usize); 3],
    /// Owns the third.
    _scratch: Box<[u8]>,
}

// SAFETY: the caller's memory is lent until the operation ends, whichever thread moves it on; the rest is owned.
unsafe impl Send for Memory {}

impl Memory {
    fn new(input: Piece, result: Piece, len: usize) -> Result<Self> {
        let mut scratch = Vec::new();
        scratch.try_reserve_exact(len).map_err(|_| Error::new(Errno::ENOMEM))?;
        scratch.resize(len, 0);
        let mut scratch: Box<[u8]> = scratch.into();
        let third = (scratch.as_mut_ptr(), scratch.len());
        Ok(Self { places: [(input.addr, input.len), (result.addr, result.len), third], _scratch: scratch })
    }

    /// Where a part lies.
    fn piece(&self, part: &Part) -> Piece {
        let (addr, len) = self.places[match part.place {
            Place::Input => 0,
            Place::Result => 1,
            Place::Scratch => 2,
        }];
        debug_assert!(part.at + part.len <= len);
        let len = part.len.min(len.saturating_sub(part.at));
        Piece::new(addr.wrapping_add(part.at), len)
    }
}

struct Sending {
    peer: Peer,
    pieces: Vec<Piece>,
    len: usize,
    sent: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Begin,
    Asked,
    Going,
    Done,
}

struct Receiving {
    peer: Peer,
    pieces: Vec<Piece>,
    len: usize,
    got: usize,
    combine: bool,
    is_asked: bool,
    is_done: bool,
}

/// An operation under way.
struct Running {
    group: u64,
    operation: u64,
    schedule: Schedule,
    memory: Memory,
    /// How to combine.
    executor: Option<Executor>,
    round: usize,
    has_entered: bool,
    sends: Vec<Sending>,
    receives: Vec<Receiving>,
    report: Report,
}

impl Running {
    fn local(&self, local: &Local) {
        let (from, to) = (self.memory.piece(&local.from), self.memory.piece(&local.to));
        // SAFETY: both are equally long and lie in memory that is lent or owned by this operation; a schedule does not
        // combine overlapping ranges.
        unsafe { place(from.addr, to, from.len.min(to.len), self.executor.filter(|_| local.combine)) };
    }
}

/// Copies `len` bytes to the front of a piece, or combines them with it.
///
/// # Safety
/// `from` may be read, and the piece written, for `len` bytes.
unsafe fn place(from: *const u8, to: Piece, len: usize, executor: Option<Executor>) {
    match executor {
        // SAFETY: the caller's promise; elements are not split, as schedules and notes cut between them.
        Some(executor) => unsafe { executor.execute_alone(to.addr, from, len / executor.size()) },
        // SAFETY: the caller's promise.
        None => unsafe { copy::overlapping(from, to.addr, len) },
    }
}

impl Receiving {
    /// Takes `len` bytes at `body`, from byte `got` on.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes, and the pieces are lent.
    unsafe fn take(&mut self, body: *const u8, len: usize, executor: Option<Executor>) {
        let mut done = 0;
        let executor = executor.filter(|_| self.combine);
        for (addr, run) in copy::runs(&self.pieces, self.got, len) {
            // SAFETY: `run` bytes lie in a piece, and as many are left of the body.
            unsafe { place(body.wrapping_add(done), Piece::new(addr, run), run, executor) };
            done += run;
        }
        self.got += len;
        self.is_done = self.got == self.len;
    }
}

/// Something that came before its operation.
struct Early {
    what: Content,
    /// [`Flow::epoch`] of its sender.
    epoch: u64,
}

enum Content {
    Eager(Box<[u8]>),
    Ask(u64),
}

/// What a note belongs to: group, operation, round, and who sent it.
type Key = (u64, u64, u32, Peer);

/// A group that this end has joined, or is joining.
struct Group {
    /// Peers by rank; [`SELF`] is this end.
    members: Vec<Peer>,
    next: u64,
    failed: Option<Errno>,
    /// Members that are gone, and why. What they sent before still counts, so only an operation that wants more of one
    /// fails: a member may end when its part in the last operation is done, though others still have theirs to do.
    gone: Vec<(Peer, Errno)>,
}

/// Notes between this end and one peer.
struct Flow {
    /// How many eager notes and questions may be sent.
    credits: u32,
    /// How many of the peer's are kept here.
    held: u32,
    /// How many were done with since the peer was told.
    taken: u32,
    /// Tells this peer from one that had its number before.
    epoch: u64,
}

/// The collectives of one endpoint.
pub struct Collectives {
    /// Most payload of a note: a multiple of every element's size.
    chunk: usize,
    groups: FxHashMap<u64, Group>,
    closed: FxHashSet<u64>,
    aborted: FxHashMap<u64, Errno>,
    running: Vec<Running>,
    early: FxHashMap<Key, Early>,
    flows: FxHashMap<Peer, Flow>,
    epochs: u64,
    outbox: VecDeque<(Peer, Note)>,
    /// How often each list of members was joined.
    joins: FxHashMap<u64, u64>,
}

impl Collectives {
    /// For a transport whose notes have up to `size` bytes of payload.
    pub fn new(size: usize) -> Self {
        Self {
            chunk: (size / 32 * 32).max(32),
            groups: FxHashMap::default(),
            closed: FxHashSet::default(),
            aborted: FxHashMap::default(),
            running: Vec::new(),
            early: FxHashMap::default(),
            flows: FxHashMap::default(),
            epochs: 0,
            outbox: VecDeque::new(),
            joins: FxHashMap::default(),
        }
    }

    /// Whether [`Collectives::advance`] may have something to do.
    #[inline]
    pub fn is_active(&self) -> bool {
        !self.running.is_empty() || !self.outbox.is_empty()
    }

    /// Opens a group of `members`, by rank. `names` says the same to all members: two endpoints with the same list join
    /// the same group, the first time, the second time, and so on. Answers the group's number.
    pub fn open(&mut self, members: Vec<Peer>, names: u64) -> u64 {
        let times = self.joins.entry(names).or_insert(0);
        *times += 1;
        let id = hash(names, &times.to_le_bytes());
        let failed = self.aborted.remove(&id);
        self.groups.insert(id, Group { members, next: 0, failed, gone: Vec::new() });
        id
    }

    /// The ranks of a group that lives, this end's rank among them.
    ///
    /// # Errors
    /// `FI_EINVAL` for one that this end is not in; otherwise why it failed.
    pub fn shape(&self, group: u64) -> Result<(usize, usize)> {
        let found = self.groups.get(&group).ok_or_else(no_group)?;
        if let Some(errno) = found.failed {
            return Err(Error::wanted(
                errno,
                "a collective",
                "a group whose members all take part",
                "one that has failed: a member is gone, has left, or posted something else",
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
    /// Input and result are lent for as much as `schedule` uses of them until the operation ends.
    pub unsafe fn start(
        &mut self,
        group: u64,
        schedule: Schedule,
        memory: [Piece; 2],
        executor: Option<Executor>,
        report: Report,
    ) -> Result<()> {
        self.shape(group)?;
        let memory = Memory::new(memory[0], memory[1], schedule.scratch)?;
        let found = self.groups.get_mut(&group).ok_or_else(no_group)?;
        let operation = found.next;
        found.next += 1;
        let mut running = Running {
            group,
            operation,
            schedule,
            memory,
            executor,
            round: 0,
            has_entered: false,
            sends: Vec::new(),
            receives: Vec::new(),
            report,
        };
        for local in std::mem::take(&mut running.schedule.first) {
            running.local(&local);
        }
        self.running.push(running);
        Ok(())
    }

    /// Leaves a group. What runs in it fails, here at the next [`Collectives::advance`] and at the other members.
    pub fn leave(&mut self, group: u64) {
        if self.running.iter().any(|running| running.group == group) {
            self.fail(group, Errno::ECANCELED);
        }
        self.forget_early(group);
        self.groups.remove(&group);
        self.closed.insert(group);
    }

    /// A group has failed: tells the other members, unless they said so.
    fn fail(&mut self, group: u64, errno: Errno) {
        let Some(found) = self.groups.get_mut(&group) else { return };
        if found.failed.replace(errno).is_some() {
            return;
        }
        let value = errno.get() as u64;
        let note = Note { kind: Kind::Abort, group, operation: 0, round: 0, value };
        let others = found.members.iter().filter(|&&peer| peer != SELF);
        self.outbox.extend(others.map(|&peer| (peer, note)));
        self.forget_early(group);
    }

    /// Drops what is kept for a group.
    fn forget_early(&mut self, group: u64) {
        let keys: Vec<Key> = self.early.keys().filter(|key| key.0 == group).copied().collect();
        for key in keys {
            if let Some(early) = self.early.remove(&key) {
                self.taken(key.3, early.epoch);
            }
        }
    }

    fn flow(&mut self, peer: Peer) -> &mut Flow {
        let epochs = &mut self.epochs;
        self.flows.entry(peer).or_insert_with(|| {
            *epochs += 1;
            Flow { credits: CREDITS, held: 0, taken: 0, epoch: *epochs }
        })
    }

    /// An eager note or a question of a peer is done with.
    fn taken(&mut self, peer: Peer, epoch: u64) {
        let Some(flow) = self.flows.get_mut(&peer).filter(|flow| flow.epoch == epoch) else { return };
        flow.held = flow.held.saturating_sub(1);
        flow.taken += 1;
        if flow.taken >= CREDITS / 2 {
            let value = u64::from(std::mem::take(&mut flow.taken));
            let note = Note { kind: Kind::Credit, group: 0, operation: 0, round: 0, value };
            self.outbox.push_back((peer, note));
        }
    }

    /// A peer is gone, after all that it sent was taken. Operations that want more of it fail at the next
    /// [`Collectives::advance`].
    pub fn peer_gone(&mut self, peer: Peer, errno: Errno) {
        for group in self.groups.values_mut().filter(|group| group.members.contains(&peer)) {
            if group.gone.iter().all(|&(gone, _)| gone != peer) {
                group.gone.push((peer, errno));
            }
        }
        let groups = &self.groups;
        self.early.retain(|key, _| key.3 != peer || groups.contains_key(&key.0));
        self.outbox.retain(|(to, _)| *to != peer);
        self.flows.remove(&peer);
    }

    /// Why an operation cannot go on: it wants something of a member that is gone.
    fn lost(&self, running: &Running) -> Option<Errno> {
        let gone = &self.groups.get(&running.group)?.gone;
        let wants = |peer: Peer| {
            running.sends.iter().any(|send| send.peer == peer && send.state != State::Done)
                || running.receives.iter().any(|receive| receive.peer == peer && !receive.is_done)
        };
        gone.iter().find(|&&(peer, _)| wants(peer)).map(|&(_, errno)| errno)
    }

    /// Whether notes about a group are of no interest any more.
    fn is_over(&self, group: u64) -> bool {
        self.closed.contains(&group) || self.groups.get(&group).is_some_and(|group| group.failed.is_some())
    }

    /// Takes a note of a peer.
    ///
    /// # Errors
    /// A number for the log if the peer does not keep to the protocol: it is to be given up.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes.
    pub unsafe fn noted(
        &mut self,
        peer: Peer,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        let note = Note::from_words(words).ok_or(Errno::EPROTO)?;
        match note.kind {
            Kind::Eager | Kind::Ask => {
                let flow = self.flow(peer);
                flow.held += 1;
                let epoch = flow.epoch;
                if flow.held > CREDITS {
                    return Err(Errno::EPROTO);
                }
                if self.is_over(note.group) {
                    self.taken(peer, epoch);
                    return Ok(());
                }
                // The common case: its receive waits.
                if note.kind == Kind::Eager
                    && let Some(running) = self.running_of(&note)
                {
                    let executor = running.executor;
                    let wanted = |receive: &&mut Receiving| {
                        receive.peer == peer && receive.len == len && !(receive.is_asked || receive.is_done)
                    };
                    if let Some(receive) = running.receives.iter_mut().find(wanted) {
                        // SAFETY: the caller's promise; the pieces are lent while the operation runs.
                        unsafe { receive.take(body, len, executor) };
                        self.taken(peer, epoch);
                        return Ok(());
                    }
                }
                let what = if note.kind == Kind::Ask {
                    Content::Ask(note.value)
                } else {
                    let mut bytes = Box::<[u8]>::new_uninit_slice(len);
                    // SAFETY: the caller's promise, and the box is as long.
                    unsafe { copy::bytes(body, bytes.as_mut_ptr().cast(), len) };
                    // SAFETY: every byte was just written.
                    Content::Eager(unsafe { bytes.assume_init() })
                };
                let key = (note.group, note.operation, note.round, peer);
                if self.early.insert(key, Early { what, epoch }).is_some() {
                    return Err(Errno::EPROTO);
                }
                // Where its receive waits already, it goes on at once.
                let waits = |running: &Running| {
                    (running.group, running.operation) == (note.group, note.operation) && running.has_entered
                };
                if let Some(at) = self.running.iter().position(waits) {
                    let mut running = self.running.swap_remove(at);
                    self.match_early(&mut running);
                    self.running.push(running);
                }
            }
            Kind::Go => {
                if let Some(sending) = self.running_of(&note).and_then(|running| {
                    let wanted = |send: &&mut Sending| send.peer == peer && send.state == State::Asked;
                    running.sends.iter_mut().find(wanted)
                }) {
                    sending.state = State::Going;
                } else if !self.is_over(note.group) {
                    return Err(Errno::EPROTO);
                }
            }
            Kind::Chunk => {
                let Some(running) = self.running_of(&note) else {
                    return if self.is_over(note.group) { Ok(()) } else { Err(Errno::EPROTO) };
                };
                let executor = running.executor;
                let wanted = |receive: &&mut Receiving| {
                    receive.peer == peer && receive.is_asked && receive.got as u64 == note.value
                };
                let receive = running.receives.iter_mut().find(wanted).ok_or(Errno::EPROTO)?;
                let fits = len <= receive.len - receive.got && len > 0;
                if !fits || executor.is_some_and(|executor| !len.is_multiple_of(executor.size())) {
                    return Err(Errno::EPROTO);
                }
                // SAFETY: the caller's promise; the pieces are lent while the operation runs.
                unsafe { receive.take(body, len, executor) };
            }
            Kind::Credit => {
                let flow = self.flow(peer);
                let credits = u64::from(flow.credits).saturating_add(note.value);
                flow.credits = u32::try_from(credits).map_err(|_| Errno::EPROTO)?;
                if flow.credits > CREDITS {
                    return Err(Errno::EPROTO);
                }
            }
            Kind::Abort => {
                let errno = match i32::try_from(note.value) {
                    Ok(number) if number > 0 => Errno::from_raw(number),
                    _ => Errno::EIO,
                };
                match self.groups.get_mut(&note.group) {
                    // Only a member may end a group.
                    Some(group) if group.members.contains(&peer) => {
                        group.failed.get_or_insert(errno);
                        self.forget_early(note.group);
                    }
                    Some(_) => {}
                    None if self.closed.contains(&note.group) => {}
                    None if self.aborted.len() < EARLY_ABORTS => drop(self.aborted.insert(note.group, errno)),
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// The operation that a note is about, if it is in that round.
    fn running_of(&mut self, note: &Note) -> Option<&mut Running> {
        self.running.iter_mut().find(|running| {
            (running.group, running.operation) == (note.group, note.operation)
                && running.round == note.round as usize
                && running.has_entered
        })
    }

    /// Gives the receives of a round what came for them already.
    fn match_early(&mut self, running: &mut Running) {
        let (group, operation, round) = (running.group, running.operation, running.round as u32);
        for index in 0..running.receives.len() {
            let receive = &mut running.receives[index];
            if receive.is_asked || receive.is_done {
                continue;
            }
            let peer = receive.peer;
            let Some(early) = self.early.remove(&(group, operation, round, peer)) else { continue };
            let len = match &early.what {
                Content::Eager(bytes) => bytes.len() as u64,
                Content::Ask(len) => *len,
            };
            let epoch = early.epoch;
            if len != receive.len as u64 {
                self.taken(peer, epoch);
                return self.fail(group, Errno::EINVAL); // the ranks mean different operations
            }
            match early.what {
                // SAFETY: the box has as many bytes as the receive wants, and the pieces are lent.
                Content::Eager(bytes) => unsafe {
                    receive.take(bytes.as_ptr(), bytes.len(), running.executor)
                },
                Content::Ask(_) => {
                    receive.is_asked = true;
                    let note = Note { kind: Kind::Go, group, operation, round, value: 0 };
                    self.outbox.push_back((peer, note));
                }
            }
            self.taken(peer, epoch);
        }
    }

    /// Moves everything on as far as it goes; answers what has ended.
    pub fn advance(&mut self, wire: &mut impl Wire) -> Vec<(Report, Result<(), Errno>)> {
        self.send_outbox(wire);
        let mut finished = Vec::new();
        for mut running in std::mem::take(&mut self.running) {
            match self.step(&mut running, wire) {
                Some(result) => finished.push((running.report, result)),
                None => self.running.push(running),
            }
        }
        self.send_outbox(wire);
        finished
    }

    fn send_outbox(&mut self, wire: &mut impl Wire) {
        for _ in 0..self.outbox.len() {
            let Some((peer, note)) = self.outbox.pop_front() else { return };
            let out = OutNote { peer, words: note.to_words(), pieces: &[], skip: 0, len: 0 };
            match wire.note(&out) {
                Err(error) if error.is_again() => self.outbox.push_back((peer, note)),
                // Told, or nobody is there: then the peer's end is told to this end, too.
                _ => {}
            }
        }
    }

    /// Moves one operation on. Its end, if it has come to it.
    fn step(&mut self, running: &mut Running, wire: &mut impl Wire) -> Option<Result<(), Errno>> {
        loop {
            match self.groups.get(&running.group) {
                None => return Some(Err(Errno::ECANCELED)),
                Some(Group { failed: Some(errno), .. }) => return Some(Err(*errno)),
                Some(_) => {}
            }
            if running.round == running.schedule.rounds.len() {
                return Some(Ok(()));
            }
            if !running.has_entered {
                self.enter(running);
                continue; // what came early may have failed the group
            }
            if let Some(errno) = self.lost(running) {
                self.fail(running.group, errno);
                return Some(Err(errno));
            }
            for index in 0..running.sends.len() {
                if let Err(errno) = self.push(running, index, wire) {
                    self.fail(running.group, errno);
                    return Some(Err(errno));
                }
            }
            let waits = running.sends.iter().any(|send| send.state != State::Done)
                || running.receives.iter().any(|receive| !receive.is_done);
            if waits {
                return None;
            }
            for local in std::mem::take(&mut running.schedule.rounds[running.round].then) {
                running.local(&local);
            }
            (running.round, running.has_entered) = (running.round + 1, false);
        }
    }

    /// Begins a round.
    fn enter(&mut self, running: &mut Running) {
        let Some(group) = self.groups.get(&running.group) else { return };
        let round = &running.schedule.rounds[running.round];
        let pieces = |transfer: &Transfer| -> Vec<Piece> {
            transfer.parts.iter().map(|part| running.memory.piece(part)).collect()
        };
        let sends = round.sends.iter().map(|send| Sending {
            peer: group.members[send.rank],
            pieces: pieces(send),
            len: send.bytes(),
            sent: 0,
            state: State::Begin,
        });
        let receives = round.receives.iter().map(|receive| Receiving {
            peer: group.members[receive.rank],
            pieces: pieces(receive),
            len: receive.bytes(),
            got: 0,
            combine: receive.combine,
            is_asked: false,
            is_done: false,
        });
        (running.sends, running.receives) = (sends.collect(), receives.collect());
        running.has_entered = true;
        self.match_early(running);
    }

    /// Moves one send on.
    fn push(&mut self, running: &mut Running, index: usize, wire: &mut impl Wire) -> Result<(), Errno> {
        let chunk = self.chunk;
        let send = &mut running.sends[index];
        let note = |kind, value| {
            let (group, operation, round) = (running.group, running.operation, running.round as u32);
            Note { kind, group, operation, round, value }.to_words()
        };
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
                    post(note(Kind::Eager, 0), &send.pieces, 0, send.len)?
                } else {
                    post(note(Kind::Ask, send.len as u64), &[], 0, 0)?
                };
                if posted {
                    flow.credits -= 1;
                    send.state = if send.len <= chunk { State::Done } else { State::Asked };
                }
            }
            State::Going => {
                while send.sent < send.len {
                    let part = chunk.min(send.len - send.sent);
                    if !post(note(Kind::Chunk, send.sent as u64), &send.pieces, send.sent, part)? {
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

/// FNV-1a, from a state on: a number that all members of a group find alike.
pub fn hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, &byte| (state ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3))
}

/// The state to begin with.
pub const HASH: u64 = 0xCBF2_9CE4_8422_2325;

#[cold]
fn no_group() -> Error {
    Error::wanted(
        Errno::EINVAL,
        "the address of a group",
        "one that this endpoint has joined",
        "another number",
        "give what fi_mc_addr answers for a group that is open",
    )
}
