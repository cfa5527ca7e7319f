//! An operation in progress: its memory, and the transfers of its current round.

use std::ops::Range;
use std::sync::Arc;

use ofi_api::{Context, Errno, Error, Fid, Piece, Result};

use super::super::schedule::{Local, MemoryRange, RankMemory, Schedule, Transfer};
use crate::atomic::Executor;
use crate::copy;
use crate::transport::{CompletionInfo, PeerId};

/// Scratch memory that is kept for the next operation, in bytes.
const KEPT_SCRATCH: usize = 4096;

/// How the end of an operation is reported.
#[derive(Clone, Copy, Debug)]
pub enum Report {
    /// By a completion.
    Completion(CompletionInfo),
    /// By an event.
    Join(Fid, Context),
}

/// The caller's memory and this end's.
struct CallMemory {
    input: Piece,
    result: Piece,
    scratch: Vec<u8>,
}

// SAFETY: the caller's memory is lent until the operation ends, whichever thread advances it; the rest is owned.
unsafe impl Send for CallMemory {}

impl CallMemory {
    /// The address of a part.
    fn piece(&mut self, part: &MemoryRange) -> Piece {
        let Piece { addr, len } = match part.place {
            RankMemory::Input => self.input,
            RankMemory::Result => self.result,
            RankMemory::Scratch => Piece::new(self.scratch.as_mut_ptr(), self.scratch.len()),
        };
        debug_assert!(part.at + part.len <= len);
        let len = part.len.min(len.saturating_sub(part.at));
        Piece::new(addr.wrapping_add(part.at), len)
    }

    /// Whether the caller's memory is this.
    fn has(&self, input: &Piece, result: &Piece) -> bool {
        let of = |piece: &Piece| (piece.addr, piece.len);
        (of(&self.input), of(&self.result)) == (of(input), of(result))
    }

    /// Performs local steps.
    fn do_all(&mut self, steps: &[Local], executor: Option<Executor>) {
        for local in steps {
            let (from, to) = (self.piece(&local.from), self.piece(&local.to));
            // SAFETY: both are equally long and lie in memory that is lent or owned by this operation; a schedule does
            // not combine overlapping ranges.
            unsafe { place(from.addr, to, from.len.min(to.len), executor.filter(|_| local.combine)) };
        }
    }
}

/// A send of a round.
pub struct Sending {
    /// The destination rank's peer.
    pub peer: PeerId,
    /// The index among the round's pieces.
    pub pieces: Range<usize>,
    /// Their bytes.
    pub len: usize,
    /// Bytes sent.
    pub sent: usize,
    /// Its progress.
    pub state: State,
}

/// The progress of a send.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing has been sent.
    Begin,
    /// Its receiver was notified, and will request it.
    Asked,
    /// Its receiver has requested it.
    Going,
    /// Everything has been sent.
    Done,
}

/// A receive of a round.
pub struct Receiving {
    /// The source rank's peer.
    pub peer: PeerId,
    /// The index among the round's pieces.
    pub pieces: Range<usize>,
    /// Their bytes.
    pub len: usize,
    /// Bytes received.
    pub got: usize,
    /// Whether the elements are combined with those already there.
    pub combine: bool,
    /// Whether its sender was asked to continue.
    pub is_asked: bool,
    /// Whether everything has been received.
    pub is_done: bool,
}

/// One collective operation in progress. An ended operation is reused with its allocations.
pub struct Running {
    /// The engine's number of its group.
    pub group: u64,
    /// The number of the operation in its group.
    pub operation: u64,
    /// Its schedule.
    pub schedule: Arc<Schedule>,
    memory: CallMemory,
    /// The executor that combines elements.
    pub executor: Option<Executor>,
    /// Its current round.
    pub round: usize,
    /// Whether the round's transfers have been created.
    pub has_entered: bool,
    /// They are those of this operation's only round: the one before was the same, with the same memory.
    is_prepared: bool,
    /// The memory of the round's transfers.
    pub pieces: Vec<Piece>,
    /// The round's sends.
    pub sends: Vec<Sending>,
    /// The round's receives.
    pub receives: Vec<Receiving>,
    /// How its end is reported.
    pub report: Report,
}

impl Running {
    /// An operation that has not started.
    pub fn new(report: Report) -> Self {
        let nothing = Piece::new(std::ptr::null_mut(), 0);
        Self {
            group: 0,
            operation: 0,
            schedule: Arc::default(),
            memory: CallMemory { input: nothing, result: nothing, scratch: Vec::new() },
            executor: None,
            round: 0,
            has_entered: false,
            is_prepared: false,
            pieces: Vec::new(),
            sends: Vec::new(),
            receives: Vec::new(),
            report,
        }
    }

    /// Sets it up for `schedule`, in a group.
    ///
    /// # Errors
    /// `FI_ENOMEM` for scratch memory.
    pub fn begin(
        &mut self,
        group: u64,
        schedule: &Arc<Schedule>,
        [input, result]: [Piece; 2],
        executor: Option<Executor>,
        report: Report,
    ) -> Result<()> {
        let memory = &mut self.memory;
        // Mostly the same as before, which then costs neither a locked instruction nor another look at all transfers.
        let again = Arc::ptr_eq(&self.schedule, schedule)
            && self.group == group
            && memory.has(&input, &result)
            && memory.scratch.len() == schedule.scratch;
        if !again {
            self.is_prepared = false;
            memory.scratch.clear();
            memory.scratch.try_reserve_exact(schedule.scratch).map_err(|_| Error::new(Errno::ENOMEM))?;
            memory.scratch.resize(schedule.scratch, 0);
            (memory.input, memory.result) = (input, result);
            (self.group, self.schedule) = (group, Arc::clone(schedule));
        }
        (self.executor, self.report) = (executor, report);
        (self.round, self.has_entered) = (0, false);
        Ok(())
    }

    /// Drops what only this operation needed.
    pub fn end(&mut self) {
        if self.memory.scratch.capacity() > KEPT_SCRATCH {
            self.memory.scratch = Vec::new();
            self.is_prepared = false;
        }
    }

    /// Whether it is this operation of this group, and its transfers are those of `round`.
    #[inline]
    pub fn is_in(&self, group: u64, operation: u64, round: u32) -> bool {
        (self.group, self.operation) == (group, operation) && self.round == round as usize && self.has_entered
    }

    /// Creates the round's transfers. `members` are the peers by rank.
    pub fn enter(&mut self, members: &[PeerId]) {
        self.has_entered = true;
        if self.is_prepared {
            self.sends.iter_mut().for_each(|send| (send.sent, send.state) = (0, State::Begin));
            for receive in &mut self.receives {
                (receive.got, receive.is_asked, receive.is_done) = (0, false, false);
            }
            return;
        }
        self.pieces.clear();
        self.sends.clear();
        self.receives.clear();
        let (memory, all) = (&mut self.memory, &mut self.pieces);
        let mut pieces = |transfer: &Transfer| {
            let first = all.len();
            all.extend(transfer.parts.iter().map(|part| memory.piece(part)));
            first..all.len()
        };
        let round = &self.schedule.rounds[self.round];
        self.sends.extend(round.sends.iter().map(|send| Sending {
            peer: members[send.rank],
            pieces: pieces(send),
            len: send.bytes(),
            sent: 0,
            state: State::Begin,
        }));
        self.receives.extend(round.receives.iter().map(|receive| Receiving {
            peer: members[receive.rank],
            pieces: pieces(receive),
            len: receive.bytes(),
            got: 0,
            combine: receive.combine,
            is_asked: false,
            is_done: false,
        }));
        self.is_prepared = self.schedule.rounds.len() == 1;
    }

    /// Takes `len` bytes at `body` for a receive of the round.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes, the receive has room for that many, and the operation's memory is lent.
    pub unsafe fn take(&mut self, receive: usize, body: *const u8, len: usize) {
        let receive = &mut self.receives[receive];
        let executor = self.executor.filter(|_| receive.combine);
        let mut done = 0;
        for (addr, run) in copy::runs(&self.pieces[receive.pieces.clone()], receive.got, len) {
            // SAFETY: `run` bytes lie in a piece, and as many are left of the body.
            unsafe { place(body.wrapping_add(done), Piece::new(addr, run), run, executor) };
            done += run;
        }
        receive.got += len;
        receive.is_done = receive.got == receive.len;
    }

    /// Does the steps before the first round.
    pub fn do_first(&mut self) {
        self.memory.do_all(&self.schedule.first, self.executor);
    }

    /// Performs the local steps after the round, and proceeds to the next round.
    pub fn leave_round(&mut self) {
        self.memory.do_all(&self.schedule.rounds[self.round].then, self.executor);
        (self.round, self.has_entered) = (self.round + 1, false);
    }

    /// Whether something of the round is left to do.
    pub fn waits(&self) -> bool {
        self.sends.iter().any(|send| send.state != State::Done)
            || self.receives.iter().any(|receive| !receive.is_done)
    }

    /// Whether a send of the round waits for room or credit.
    pub fn has_to_send(&self) -> bool {
        self.sends.iter().any(|send| matches!(send.state, State::Begin | State::Going))
    }

    /// The peers whose notes the round waits for.
    pub fn awaited(&self) -> impl Iterator<Item = PeerId> {
        let asked = self.sends.iter().filter(|send| send.state == State::Asked).map(|send| send.peer);
        asked.chain(self.receives.iter().filter(|receive| !receive.is_done).map(|receive| receive.peer))
    }

    /// Whether something of the round is left to do with `peer`.
    pub fn wants(&self, peer: PeerId) -> bool {
        self.sends.iter().any(|send| send.peer == peer && send.state != State::Done)
            || self.receives.iter().any(|receive| receive.peer == peer && !receive.is_done)
    }
}

/// Copies `len` bytes to the start of a piece, or combines them with it.
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
