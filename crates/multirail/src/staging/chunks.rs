//! A transfer's chunks, from step to step.
#![allow(unsafe_code)] // starts copies

use std::sync::Arc;

use ofi::{Errno, Error};

use super::{Chunk, Lent, PLACE, PLACES, Plan, Staging, Step, Transfer, log, tell};
use crate::engine::{self, Audience, Core, Outcome, PeerId, Progress, Time, Way};
use crate::region::{Guard, Inner as Region};
use crate::wire::RegionInfo;
use crate::wire::staging::{Order, Through};

/// The result of one step of a chunk.
enum Turn {
    Waits,
    Goes(Step),
    Ends(Result<(), Errno>),
    /// An ended chunk no longer uses its memory here.
    Leaves,
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
    let near = if local.has_near() { vec![local.near()] } else { Vec::new() };
    let uses = engine::PlanUses::default();
    engine::Plan { way, pieces: vec![piece], regions, near, incarnation, total: len, guard, uses }
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
                    let mut chunk = transfer.chunks.swap_remove(at);
                    match result {
                        Ok(()) => transfer.moved += chunk.len,
                        Err(errno) if self.is_refused(transfer, &chunk, errno) => {}
                        Err(errno) => drop(transfer.outcome.get_or_insert(Outcome::Failed(errno))),
                    }
                    let is_clean = result.is_ok() || chunk.answer.is_some();
                    self.leave_window(transfer.plan.peer, &mut chunk, is_clean);
                    match (chunk.lent.take(), &chunk.pooled) {
                        (Some(id), pooled) => {
                            pooled.iter().for_each(|pooled| self.pool.lend(pooled));
                            chunk.step = Step::Lingers(id);
                            transfer.chunks.push(chunk);
                        }
                        (None, Some(pooled)) => self.pool.give_back(pooled, false),
                        (None, None) => {}
                    }
                }
                Turn::Leaves => {
                    was_busy = true;
                    let chunk = transfer.chunks.swap_remove(at);
                    chunk.pooled.iter().for_each(|pooled| self.pool.give_back(pooled, true));
                }
            }
        }
        was_busy
    }

    /// Frees a chunk's place in the window, if the peer has finished with it.
    fn leave_window(&mut self, peer: PeerId, chunk: &mut Chunk, is_clean: bool) {
        let Some((window, place)) = chunk.place.take() else { return };
        let Some(Lent::Window { info, free, used }) = self.lent.get_mut(&peer) else { return };
        if !Arc::ptr_eq(info, &window) {
            return; // of an earlier session
        }
        *used = used.saturating_sub(1);
        if is_clean {
            free.push(place);
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
                Ok(true) if is_write && chunk.mapped.is_none() => Self::go(core, plan, chunk, deadline, now),
                Ok(true) => Turn::Ends(Ok(())),
                Err(error) => failed(&error),
            },
            Step::Move { id, is_data } => {
                let (id, is_data) = (*id, *is_data);
                if is_over {
                    core.cancel(id);
                }
                let progress = core.progress(id);
                match progress.filter(|progress| !progress.is_quiet) {
                    None => _ = core.release(id),
                    // A mute rail keeps a write's memory after its bytes have moved to another rail.
                    Some(Progress { outcome: Some(Outcome::Done), .. }) if is_write => chunk.lent = Some(id),
                    Some(_) => return Turn::Waits,
                }
                match progress.and_then(|progress| progress.outcome) {
                    Some(Outcome::Done) => {}
                    Some(Outcome::Failed(errno)) => return Turn::Ends(Err(errno)),
                    _ => return Turn::Ends(Err(Errno::ECANCELED)),
                }
                match (is_data, is_write, &chunk.pooled) {
                    (false, ..) => Turn::Goes(Step::Answer),
                    (true, true, _) if chunk.place.is_some() => Turn::Goes(Step::Answer),
                    (true, false, Some(_)) if is_over => Turn::Ends(Err(Errno::ECANCELED)),
                    (true, false, Some(_)) => Self::copy(plan, chunk),
                    _ => Turn::Ends(Ok(())),
                }
            }
            Step::Answer => match chunk.answer {
                Some(0) if is_write => Turn::Ends(Ok(())),
                Some(0) if !is_over => Self::go(core, plan, chunk, deadline, now),
                Some(errno) if errno != 0 => Turn::Ends(Err(Errno::from_raw(errno.cast_signed()))),
                _ if is_over => Turn::Ends(Err(Errno::ECANCELED)),
                _ => Turn::Waits,
            },
            Step::Lingers(id) => {
                let id = *id;
                if core.progress(id).is_some_and(|progress| !progress.is_quiet) {
                    return Turn::Waits;
                }
                core.release(id);
                Turn::Leaves
            }
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
        let refused = transfer.refused.last().copied();
        let (nth, offset) = refused.map_or(transfer.cursor, |(nth, offset, _)| (nth, offset));
        let piece = &plan.pieces[nth];
        let end = refused.map_or(piece.len, |(.., end)| end);
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
        let is_direct = device.is_some()
            && mapped.is_none()
            && refused.is_none()
            && self.may_be_direct(core, plan.peer, piece, now);
        let needs_pool = device.is_some() && mapped.is_none() && !is_direct;
        if let (Some(device), true) = (device, needs_pool) {
            self.pool.make(device, &self.domains)?;
            if self.pool.is_full() {
                return Ok(false);
            }
        }
        let place = if needs_window { self.place(core, plan.peer, transfer.deadline, now)? } else { None };
        if needs_window && place.is_none() {
            return Ok(false);
        }
        let pooled = if needs_pool { self.pool.take() } else { None };
        let is_plain = mapped.is_none() && pooled.is_none() && place.is_none();
        let left = end - offset;
        let len = if is_plain { left } else { left.min(PLACE) };
        let op = self.next_op;
        self.next_op += 1;
        let (lent, answer, step) = (None, None, Step::Answer);
        let mut chunk =
            Chunk { piece: nth, offset, len, op, pooled, place, mapped, is_direct, lent, answer, step };
        match transfer.refused.last_mut() {
            Some(_) if len == left => drop(transfer.refused.pop()),
            Some((_, begin, _)) => *begin += len,
            None => transfer.cursor = if len == left { (nth + 1, 0) } else { (nth, offset + len) },
        }
        let is_pooled = chunk.pooled.is_some();
        let first = match (plan.way, chunk.mapped.is_some(), chunk.place.is_some(), is_pooled) {
            (_, true, ..) | (Way::Write, _, _, true) => Self::copy(&plan, &chunk),
            (Way::Read, _, true, _) => {
                let order = Order::Fetch(through(&plan, &chunk));
                match tell(core, plan.peer, &order, transfer.deadline, now) {
                    Ok(id) => Turn::Goes(Step::Move { id, is_data: false }),
                    Err(errno) => Turn::Ends(Err(errno)),
                }
            }
            _ => Self::go(core, &plan, &chunk, transfer.deadline, now),
        };
        match first {
            Turn::Goes(step) => {
                chunk.step = step;
                transfer.chunks.push(chunk);
                Ok(true)
            }
            Turn::Ends(Err(errno)) => {
                self.leave_window(plan.peer, &mut chunk, true);
                chunk.pooled.iter().for_each(|pooled| self.pool.give_back(pooled, false));
                Err(errno)
            }
            Turn::Waits | Turn::Leaves | Turn::Ends(Ok(())) => Err(Errno::EIO),
        }
    }

    /// Starts a chunk's local copy.
    fn copy(plan: &Plan, chunk: &Chunk) -> Turn {
        let piece = &plan.pieces[chunk.piece];
        let ours = piece.at + chunk.offset;
        let theirs = match (&chunk.mapped, &chunk.pooled) {
            (Some(mapped), _) => mapped.at() + piece.offset + chunk.offset,
            (None, Some(pooled)) => pooled.address(),
            (None, None) => return Turn::Ends(Err(Errno::EIO)),
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
    fn go(core: &mut Core<Guard>, plan: &Plan, chunk: &Chunk, deadline: Time, now: Time) -> Turn {
        let piece = &plan.pieces[chunk.piece];
        let (local, at) = match &chunk.pooled {
            Some(pooled) => (&pooled.region, pooled.address()),
            None => (&piece.local, piece.at + chunk.offset),
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
