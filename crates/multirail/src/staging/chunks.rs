//! A transfer's chunks, from step to step.
#![allow(unsafe_code)] // starts copies

use std::sync::Arc;

use ofi::{Errno, Error};

use super::{Chunk, Lent, PLACE, PLACES, Plan, Staging, Step, Transfer, log, tell};
use crate::engine::{self, Audience, Core, Outcome, PeerId, Time, Way};
use crate::region::{Guard, Inner as Region};
use crate::wire::RegionInfo;
use crate::wire::staging::{Order, Through};

/// The result of one step of a chunk.
enum Turn {
    Waits,
    Goes(Step),
    Ends(Result<(), Errno>),
}

/// An engine plan with one descriptor.
fn one(
    way: Way,
    local: &Arc<Region>,
    at: u64,
    remote: &Arc<RegionInfo>,
    offset: u64,
    len: u64,
    incarnation: u64,
) -> engine::Plan<Guard> {
    let piece = engine::Piece { region: 0, local: at, remote_region: 0, remote: offset, len };
    let (regions, guard) = (vec![Arc::clone(remote)], vec![Arc::clone(local)]);
    engine::Plan { way, pieces: vec![piece], regions, incarnation, total: len, guard }
}

impl Staging {
    pub(super) fn look_at_chunks(
        &mut self,
        core: &mut Core<Guard>,
        transfer: &mut Transfer,
        now: Time,
    ) -> bool {
        let mut was_busy = false;
        let mut at = 0;
        while at < transfer.chunks.len() {
            let is_over = transfer.outcome.is_some();
            let chunk = &mut transfer.chunks[at];
            match self.look_at(core, &transfer.plan, chunk, is_over, transfer.deadline, now) {
                Turn::Waits => at += 1,
                Turn::Goes(step) => {
                    (chunk.step, was_busy) = (step, true);
                }
                Turn::Ends(result) => {
                    was_busy = true;
                    let chunk = transfer.chunks.swap_remove(at);
                    match result {
                        Ok(()) => transfer.moved += chunk.len,
                        Err(errno) => drop(transfer.outcome.get_or_insert(Outcome::Failed(errno))),
                    }
                    self.give_back(transfer.plan.peer, &chunk, result.is_ok() || chunk.answer.is_some());
                }
            }
        }
        was_busy
    }

    /// Frees a chunk's places; that in the window only if the peer has finished with it.
    fn give_back(&mut self, peer: PeerId, chunk: &Chunk, is_clean: bool) {
        self.free.extend(chunk.pooled);
        let Some((window, place)) = &chunk.place else { return };
        let Some(Lent::Window { info, free, used }) = self.lent.get_mut(&peer) else { return };
        if !Arc::ptr_eq(info, window) {
            return; // of an earlier session
        }
        *used = used.saturating_sub(1);
        if is_clean {
            free.push(*place);
        }
        if free.is_empty() && *used == 0 {
            self.lent.remove(&peer); // the next chunk asks for another window
        }
    }

    fn look_at(
        &mut self,
        core: &mut Core<Guard>,
        plan: &Plan,
        chunk: &mut Chunk,
        is_over: bool,
        deadline: Time,
        now: Time,
    ) -> Turn {
        let is_write = plan.way == Way::Write;
        match &mut chunk.step {
            Step::Copy(copying) => match copying.is_done() {
                Ok(false) => Turn::Waits,
                Ok(true) if is_over && is_write && chunk.mapped.is_none() => {
                    Turn::Ends(Err(Errno::ECANCELED))
                }
                Ok(true) if is_write && chunk.mapped.is_none() => self.go(core, plan, chunk, deadline, now),
                Ok(true) => Turn::Ends(Ok(())),
                Err(error) => failed(&error),
            },
            Step::Move { id, is_data } => {
                let (id, is_data) = (*id, *is_data);
                if is_over {
                    core.cancel(id);
                }
                let progress = core.progress(id);
                if progress.is_some_and(|progress| !progress.is_quiet) {
                    return Turn::Waits;
                }
                core.release(id);
                match progress.and_then(|progress| progress.outcome) {
                    Some(Outcome::Done) => {}
                    Some(Outcome::Failed(errno)) => return Turn::Ends(Err(errno)),
                    _ => return Turn::Ends(Err(Errno::ECANCELED)),
                }
                match (is_data, is_write, chunk.pooled) {
                    (false, ..) => Turn::Goes(Step::Answer),
                    (true, true, _) if chunk.place.is_some() => Turn::Goes(Step::Answer),
                    (true, false, Some(_)) if is_over => Turn::Ends(Err(Errno::ECANCELED)),
                    (true, false, Some(_)) => self.copy(plan, chunk),
                    _ => Turn::Ends(Ok(())),
                }
            }
            Step::Answer => match chunk.answer {
                Some(0) if is_write => Turn::Ends(Ok(())),
                Some(0) if !is_over => self.go(core, plan, chunk, deadline, now),
                Some(errno) if errno != 0 => Turn::Ends(Err(Errno::from_raw(errno.cast_signed()))),
                _ if is_over => Turn::Ends(Err(Errno::ECANCELED)),
                _ => Turn::Waits,
            },
        }
    }

    /// Cuts the next chunk and starts it; `false` if the chunk must wait for a place.
    pub(super) fn start(
        &mut self,
        core: &mut Core<Guard>,
        transfer: &mut Transfer,
        now: Time,
    ) -> Result<bool, Errno> {
        let plan = Arc::clone(&transfer.plan);
        let (nth, offset) = transfer.cursor;
        let piece = &plan.pieces[nth];
        let device = piece.local.device();
        if piece.local.is_revoked() {
            return Err(Errno::EFAULT);
        }
        let mapped = if piece.remote.is_staged { self.map(plan.peer, piece) } else { None };
        let needs_window =
            piece.remote.is_staged && mapped.is_none() && !self.is_direct(core, plan.peer, piece);
        if mapped.is_some() && transfer.chunks.len() >= PLACES {
            return Ok(false);
        }
        let needs_pool = device.is_some() && mapped.is_none();
        if let (Some(device), true) = (device, needs_pool) {
            self.make_pool(device)?;
            if self.free.is_empty() {
                return Ok(false);
            }
        }
        let place = if needs_window { self.place(core, plan.peer, transfer.deadline, now)? } else { None };
        if needs_window && place.is_none() {
            return Ok(false);
        }
        let pooled = if needs_pool { self.free.pop() } else { None };
        let is_plain = mapped.is_none() && pooled.is_none() && place.is_none();
        let left = piece.len - offset;
        let len = if is_plain { left } else { left.min(PLACE) };
        let op = self.next_op;
        self.next_op += 1;
        let mut chunk =
            Chunk { piece: nth, offset, len, op, pooled, place, mapped, answer: None, step: Step::Answer };
        transfer.cursor = if len == left { (nth + 1, 0) } else { (nth, offset + len) };
        let first = match (plan.way, chunk.mapped.is_some(), chunk.place.is_some(), pooled.is_some()) {
            (_, true, ..) | (Way::Write, _, _, true) => self.copy(&plan, &chunk),
            (Way::Read, _, true, _) => {
                let order = Order::Fetch(through(&plan, &chunk));
                match tell(core, plan.peer, &order, transfer.deadline, now) {
                    Ok(id) => Turn::Goes(Step::Move { id, is_data: false }),
                    Err(errno) => Turn::Ends(Err(errno)),
                }
            }
            _ => self.go(core, &plan, &chunk, transfer.deadline, now),
        };
        match first {
            Turn::Goes(step) => {
                chunk.step = step;
                transfer.chunks.push(chunk);
                Ok(true)
            }
            Turn::Ends(Err(errno)) => {
                self.give_back(plan.peer, &chunk, true);
                Err(errno)
            }
            Turn::Waits | Turn::Ends(Ok(())) => Err(Errno::EIO),
        }
    }

    /// Starts a chunk's local copy.
    fn copy(&self, plan: &Plan, chunk: &Chunk) -> Turn {
        let piece = &plan.pieces[chunk.piece];
        let ours = piece.at + chunk.offset;
        let theirs = match (&chunk.mapped, chunk.pooled, &self.pool) {
            (Some(mapped), ..) => mapped.at() + piece.offset + chunk.offset,
            (None, Some(place), Some(pool)) => pool.address() + place,
            _ => return Turn::Ends(Err(Errno::EIO)),
        };
        let (to, from) = match plan.way {
            Way::Write => (theirs, ours),
            Way::Read => (ours, theirs),
        };
        let device = match &chunk.mapped {
            Some(mapped) => Some(mapped.device()),
            None => piece.local.device().map(|device| &**device),
        };
        let Some(device) = device else {
            return Turn::Ends(Err(Errno::ENODEV));
        };
        // SAFETY: the plan keeps our memory and the chunk its place and mapping until the copy has ended; both ranges
        // were checked when the plan was prepared and the memory was mapped.
        match unsafe { device.copy(to, from, chunk.len) } {
            Ok(copying) => Turn::Goes(Step::Copy(copying)),
            Err(error) => failed(&error),
        }
    }

    /// Moves a chunk's bytes over the rails.
    fn go(&self, core: &mut Core<Guard>, plan: &Plan, chunk: &Chunk, deadline: Time, now: Time) -> Turn {
        let piece = &plan.pieces[chunk.piece];
        let (local, at) = match (chunk.pooled, &self.pool) {
            (Some(place), Some(pool)) => (pool, pool.address() + place),
            _ => (&piece.local, piece.at + chunk.offset),
        };
        let (remote, offset) = match &chunk.place {
            None => (&piece.remote, piece.offset + chunk.offset),
            Some((window, place)) => (window, *place),
        };
        let moving = Arc::new(one(plan.way, local, at, remote, offset, chunk.len, plan.incarnation));
        let notice = (plan.way == Way::Write && chunk.place.is_some())
            .then(|| Order::Land(through(plan, chunk)).encode());
        match core.post_to(Audience::Memory, plan.peer, moving, notice, deadline, now) {
            Ok(id) => Turn::Goes(Step::Move { id, is_data: true }),
            Err((errno, _)) => Turn::Ends(Err(errno)),
        }
    }
}

fn through(plan: &Plan, chunk: &Chunk) -> Through {
    let piece = &plan.pieces[chunk.piece];
    Through {
        op: chunk.op,
        region: piece.remote.id,
        offset: piece.offset + chunk.offset,
        len: chunk.len,
        place: chunk.place.as_ref().map_or(0, |&(_, place)| place),
    }
}

#[cold]
fn failed(error: &Error) -> Turn {
    Turn::Ends(Err(log(error)))
}
