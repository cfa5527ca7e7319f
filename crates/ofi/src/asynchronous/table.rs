//! The operations of an async node: those whose futures wait, those that wait for room, and results not yet fetched.
//!
//! Foreign code (wakers, drops of buffers) does not run here: it is collected in [`Chores`] and runs after the lock is
//! released.

use std::collections::VecDeque;
use std::task::Waker;

use ofi_api::{CompletionFlags, Errno, Error, FiAddr, Result};
use ofi_core::slots::{SlotId, Slots};

use crate::any_buffer::AnyBuffer;
use crate::completion::Completion;
use crate::multi_recv::MultiRecvBuffer;
use crate::node::Node;
use crate::op::{Claim, Op};
use crate::threading::Level;

/// Whether a completion only announces the end of its operation.
fn is_cancelled(done: &Completion) -> bool {
    done.range.is_none() && done.result.as_ref().is_err_and(|error| error.errno() == Errno::ECANCELED)
}

/// The maximum number of events that are kept for [`event`](super::AsyncNode::event).
const EVENTS: usize = 1 << 16;

/// The arguments of an operation, which are returned if it is not posted.
pub enum Given {
    Nothing,
    Buffer(AnyBuffer),
    Multi(MultiRecvBuffer),
}

/// How an operation ended.
pub enum Ended {
    /// With its completion.
    Done(Completion),
    /// The operation was not posted and left nothing in flight.
    Refused(Error, Given),
    /// The outcome is unknown, because the queue is unreadable. The node keeps the buffer.
    Lost(Error),
}

/// The waiting line of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitingLine {
    /// Receives.
    Receive,
    /// Operations to this peer.
    To(FiAddr),
}

/// The result of trying to post.
pub enum Attempt {
    Posted(Op),
    /// `FI_EAGAIN`.
    Again,
    Refused(Error, Given),
}

/// An operation that waits for room. Called with a node, it posts itself; called without one, it returns its buffer.
pub type Retry<L> = Box<dyn FnMut(Option<&Node<L>>) -> Attempt + Send>;

/// The state of an operation.
enum OpState {
    /// Waiting in a line for room.
    Queued(WaitingLine),
    InFlight(Op),
    /// A multi-receive in flight, with its messages that were not fetched yet.
    Stream(Op, VecDeque<Completion>),
    Over(Ended),
}

struct Cell {
    place: OpState,
    waker: Option<Waker>,
}

/// The owner of an operation in flight.
#[derive(Clone, Copy)]
enum Owner {
    /// No future.
    Nobody,
    Cell(SlotId),
    /// A future that was dropped.
    Dropped,
    /// For the table itself: the completion of a peek that discards a claimed message, which was already counted.
    Discard,
}

struct RetryQueue<L: Level> {
    line: WaitingLine,
    queue: VecDeque<(SlotId, Retry<L>)>,
}

/// Work to do after releasing the lock: wakers to wake, and values whose drop may run foreign code.
#[derive(Default)]
#[must_use]
pub struct Chores {
    wake: Vec<Waker>,
    drop: Vec<Box<dyn Send>>,
}

impl Chores {
    /// Wakes the wakers and drops the values.
    pub fn run(self) {
        drop(self.drop);
        self.wake.into_iter().for_each(Waker::wake);
    }

    /// Drops `value` later.
    pub fn later(&mut self, value: impl Send + 'static) {
        self.drop.push(Box::new(value));
    }
}

/// The table. One lock protects the table and serialises reads of the node's queue.
pub struct Table<L: Level> {
    cells: Slots<Cell>,
    /// Indexed by [`Op::index`].
    owners: Vec<Owner>,
    lines: Vec<RetryQueue<L>>,
    events: VecDeque<Completion>,
    listeners: Vec<Waker>,
    /// The number of drivers.
    pub drivers: usize,
    /// Sleeping drivers that have armed the queue. Every reader of the queue wakes them, because a read disarms it.
    sleepers: Vec<Waker>,
    /// Messages and events that were dropped.
    pub lost: u64,
    broken: Option<Error>,
    /// Claims of dropped futures.
    unclaimed: Vec<Claim>,
    /// Scratch space of [`Table::drive`].
    batch: Vec<Completion>,
}

impl<L: Level> Table<L> {
    pub fn new() -> Self {
        Self {
            cells: Slots::default(),
            owners: Vec::new(),
            lines: Vec::new(),
            events: VecDeque::new(),
            listeners: Vec::new(),
            drivers: 0,
            sleepers: Vec::new(),
            lost: 0,
            broken: None,
            unclaimed: Vec::new(),
            batch: Vec::new(),
        }
    }

    /// Adds an operation. Posts it, unless earlier operations of its line wait or there is no room; then it waits too.
    pub fn start(
        &mut self,
        node: &Node<L>,
        line: WaitingLine,
        mut retry: impl FnMut(Option<&Node<L>>) -> Attempt + Send + 'static,
        chores: &mut Chores,
    ) -> SlotId {
        let waiting = self.lines.iter_mut().position(|waiting| waiting.line == line);
        let attempt = if waiting.is_some() { Attempt::Again } else { retry(Some(node)) };
        // The queue may no longer be armed: wake the sleeping drivers so that they poll for the new operation.
        self.rouse(chores);
        let place = match attempt {
            Attempt::Posted(op) => OpState::InFlight(op),
            Attempt::Refused(error, buffer) => OpState::Over(Ended::Refused(error, buffer)),
            Attempt::Again => OpState::Queued(line),
        };
        let (queued, op) = (
            matches!(place, OpState::Queued(_)),
            if let OpState::InFlight(op) = place { Some(op) } else { None },
        );
        let id = self.cells.insert(Cell { place, waker: None });
        if let Some(op) = op {
            self.own(op, Owner::Cell(id));
        }
        if queued {
            let at = waiting.unwrap_or_else(|| {
                self.lines.push(RetryQueue { line, queue: VecDeque::new() });
                self.lines.len() - 1
            });
            self.lines[at].queue.push_back((id, Box::new(retry)));
        }
        id
    }

    fn own(&mut self, op: Op, owner: Owner) {
        if self.owners.len() <= op.index() {
            self.owners.resize(op.index() + 1, Owner::Nobody);
        }
        self.owners[op.index()] = owner;
    }

    /// Takes the result of an operation, if it has ended.
    pub fn take(&mut self, id: SlotId) -> Option<Ended> {
        match &self.cells.get(id)?.place {
            OpState::Over(_) => {}
            OpState::InFlight(op) => {
                let (op, error) = (*op, self.broken.clone()?);
                self.own(op, Owner::Dropped);
                self.cells.remove(id);
                return Some(Ended::Lost(error));
            }
            OpState::Stream(..) => return self.take_message(id),
            OpState::Queued(_) => return None,
        }
        match self.cells.remove(id)?.place {
            OpState::Over(ended) => Some(ended),
            _ => None,
        }
    }

    /// Takes the next message of a multi-receive. The last one ends it.
    fn take_message(&mut self, id: SlotId) -> Option<Ended> {
        let OpState::Stream(op, messages) = &mut self.cells.get_mut(id)?.place else { return None };
        let op = *op;
        if let Some(done) = messages.pop_front() {
            if done.released.is_some() {
                self.cells.remove(id);
            }
            return Some(Ended::Done(done));
        }
        let error = self.broken.clone()?;
        self.own(op, Owner::Dropped);
        self.cells.remove(id);
        Some(Ended::Lost(error))
    }

    /// Whether `waker` is the registered waker of the operation.
    pub fn is_waking(&self, id: SlotId, waker: &Waker) -> bool {
        self.cells.get(id).and_then(|cell| cell.waker.as_ref()).is_some_and(|old| old.will_wake(waker))
    }

    /// Sets the waker of the operation.
    pub fn set_waker(&mut self, id: SlotId, waker: Waker, chores: &mut Chores) {
        if let Some(cell) = self.cells.get_mut(id)
            && let Some(old) = cell.waker.replace(waker)
        {
            chores.later(old);
        }
    }

    /// The operation, while it is in flight.
    pub fn in_flight(&self, id: SlotId) -> Option<Op> {
        match &self.cells.get(id)?.place {
            OpState::InFlight(op) | OpState::Stream(op, _) => Some(*op),
            _ => None,
        }
    }

    /// Removes a waiting operation from its line. It ends with `FI_ECANCELED`.
    pub fn withdraw(&mut self, id: SlotId, chores: &mut Chores) {
        let Some(Cell { place: OpState::Queued(line), .. }) = self.cells.get(id) else { return };
        let line = *line;
        let Some(at) = self.lines.iter().position(|waiting| waiting.line == line) else { return };
        let queue = &mut self.lines[at].queue;
        let mut given = Given::Nothing;
        if let Some(index) = queue.iter().position(|(other, _)| *other == id)
            && let Some((_, mut retry)) = queue.remove(index)
        {
            if let Attempt::Refused(_, back) = retry(None) {
                given = back;
            }
            chores.later(retry);
        }
        if queue.is_empty() {
            self.lines.swap_remove(at);
        }
        self.end(id, Ended::Refused(Error::new(Errno::ECANCELED), given), chores);
    }

    /// Handles the drop of an operation's future. Returns the operation if it is still in flight.
    pub fn forget(&mut self, id: SlotId, chores: &mut Chores) -> Option<Op> {
        self.withdraw(id, chores);
        let Cell { place, waker } = self.cells.remove(id)?;
        if let Some(waker) = waker {
            chores.later(waker);
        }
        match place {
            OpState::InFlight(op) => {
                self.own(op, Owner::Dropped);
                Some(op)
            }
            OpState::Stream(op, messages) => {
                messages.iter().for_each(|done| self.lose(done));
                let is_over = messages.back().is_some_and(|done| done.released.is_some());
                chores.later(messages);
                if is_over {
                    return None;
                }
                self.own(op, Owner::Dropped);
                Some(op)
            }
            OpState::Over(ended) => {
                let mut ended = ended;
                if let Ended::Done(done) = &mut ended {
                    self.lose(done);
                    self.unclaimed.extend(done.claim.take());
                }
                chores.later(ended);
                None
            }
            OpState::Queued(_) => None,
        }
    }

    /// Counts a completion that has no receiver, if it was of a message.
    fn lose(&mut self, done: &Completion) {
        self.lost += u64::from(done.result.is_ok() && done.flags.contains(CompletionFlags::RECV));
    }

    /// Adds a message of a multi-receive.
    fn push(&mut self, id: SlotId, done: Completion, chores: &mut Chores) {
        let Some(cell) = self.cells.get_mut(id) else { return };
        match &mut cell.place {
            OpState::Stream(_, messages) => messages.push_back(done),
            place @ OpState::InFlight(_) => {
                if let Some(op) = done.op {
                    *place = OpState::Stream(op, VecDeque::from([done]));
                }
            }
            OpState::Queued(_) | OpState::Over(_) => chores.later(done),
        }
        chores.wake.extend(cell.waker.take());
    }

    fn end(&mut self, id: SlotId, ended: Ended, chores: &mut Chores) {
        if let Some(cell) = self.cells.get_mut(id) {
            cell.place = OpState::Over(ended);
            chores.wake.extend(cell.waker.take());
        }
    }

    /// Reads the queue, distributes the completions, and posts operations that waited for room. Does not wake sleeping
    /// drivers: see [`Table::rouse`].
    ///
    /// # Errors
    /// The queue's error; all operations in flight end with it.
    pub fn drive(&mut self, node: &Node<L>, chores: &mut Chores) -> Result<()> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let mut batch = std::mem::take(&mut self.batch);
        let read = node.poll_many(&mut batch, usize::MAX >> 1);
        for done in batch.drain(..) {
            self.dispatch(done, chores);
        }
        self.batch = batch;
        self.discard_unclaimed(node);
        if let Err(error) = read {
            return Err(self.break_down(error, chores));
        }
        if !self.lines.is_empty() {
            self.retry(node, chores);
        }
        Ok(())
    }

    fn dispatch(&mut self, mut done: Completion, chores: &mut Chores) {
        // A multi-receive that takes more messages, or that was cancelled while some were partly received.
        let goes_on = done.goes_on;
        let owner = match done.op {
            // Its number belongs to the context.
            Some(_) if done.shared => Owner::Nobody,
            Some(op) => match self.owners.get_mut(op.index()) {
                Some(owner) if goes_on => *owner,
                Some(owner) => std::mem::replace(owner, Owner::Nobody),
                None => Owner::Nobody,
            },
            None => Owner::Nobody,
        };
        match owner {
            // The buffer comes with the last message.
            Owner::Cell(_) if goes_on && is_cancelled(&done) => chores.later(done),
            Owner::Cell(id) if goes_on || done.released.is_some() => self.push(id, done, chores),
            Owner::Cell(id) => self.end(id, Ended::Done(done), chores),
            Owner::Dropped => {
                self.lose(&done);
                self.unclaimed.extend(done.claim.take());
                chores.later(done);
            }
            Owner::Discard => chores.later(done),
            Owner::Nobody if self.events.len() < EVENTS => {
                self.events.push_back(done);
                chores.wake.append(&mut self.listeners);
            }
            Owner::Nobody => {
                self.lost += 1;
                chores.later(done);
            }
        }
    }

    /// Discards the messages that were claimed for dropped futures.
    fn discard_unclaimed(&mut self, node: &Node<L>) {
        while let Some(claim) = self.unclaimed.pop() {
            match node.discard_claimed(claim) {
                Ok(op) => self.own(op, Owner::Discard),
                Err(rejected) => {
                    if rejected.is_again() {
                        self.unclaimed.push(rejected.buffer);
                    }
                    return; // try again at the next turn
                }
            }
        }
    }

    #[cold]
    fn break_down(&mut self, error: Error, chores: &mut Chores) -> Error {
        tracing::error!(target: "ofi::core::cq", %error, "the queue of an async node cannot be read");
        self.broken = Some(error.clone());
        for id in self.cells.ids(|_| true) {
            chores.wake.extend(self.cells.get_mut(id).and_then(|cell| cell.waker.take()));
        }
        chores.wake.append(&mut self.listeners);
        error
    }

    /// Posts operations that waited for room, in order within each line.
    #[cold]
    fn retry(&mut self, node: &Node<L>, chores: &mut Chores) {
        let mut at = 0;
        while let Some(waiting) = self.lines.get_mut(at) {
            let Some((id, retry)) = waiting.queue.front_mut() else {
                self.lines.swap_remove(at);
                continue;
            };
            let id = *id;
            let attempt = retry(Some(node));
            if matches!(attempt, Attempt::Again) {
                at += 1;
                continue;
            }
            if let Some((_, retry)) = waiting.queue.pop_front() {
                chores.later(retry);
            }
            match attempt {
                Attempt::Posted(op) => {
                    self.own(op, Owner::Cell(id));
                    if let Some(cell) = self.cells.get_mut(id) {
                        cell.place = OpState::InFlight(op);
                    }
                }
                Attempt::Refused(error, buffer) => self.end(id, Ended::Refused(error, buffer), chores),
                Attempt::Again => {}
            }
        }
    }

    /// Whether operations wait for room. No descriptor signals when there is room.
    pub fn is_short(&self) -> bool {
        !self.lines.is_empty()
    }

    /// Whether no future exists, neither of an operation nor of an event.
    pub fn is_idle(&self) -> bool {
        self.cells.is_empty() && self.listeners.is_empty()
    }

    /// Wakes the sleeping drivers.
    pub fn rouse(&mut self, chores: &mut Chores) {
        if !self.sleepers.is_empty() {
            chores.wake.append(&mut self.sleepers);
        }
    }

    /// Adds a driver that has armed the queue and is about to sleep.
    pub fn sleep(&mut self, waker: Waker, chores: &mut Chores) {
        match self.sleepers.iter().any(|other| other.will_wake(&waker)) {
            true => chores.later(waker),
            false => self.sleepers.push(waker),
        }
    }

    /// Removes a driver. After the last one, all waiting futures are woken, so that they drive progress themselves.
    pub fn undriven(&mut self, chores: &mut Chores) {
        self.drivers -= 1;
        if self.drivers == 0 {
            self.rouse(chores);
            for id in self.cells.ids(|_| true) {
                chores.wake.extend(self.cells.get_mut(id).and_then(|cell| cell.waker.take()));
            }
            chores.wake.append(&mut self.listeners);
        }
    }

    /// The next event.
    ///
    /// # Errors
    /// The error of an unreadable queue.
    pub fn event(&mut self) -> Result<Option<Completion>> {
        match (self.events.pop_front(), &self.broken) {
            (None, Some(error)) => Err(error.clone()),
            (event, _) => Ok(event),
        }
    }

    /// Adds a waker that waits for an event.
    pub fn listen(&mut self, waker: Waker, chores: &mut Chores) {
        match self.listeners.iter().any(|other| other.will_wake(&waker)) {
            true => chores.later(waker),
            false => self.listeners.push(waker),
        }
    }
}
