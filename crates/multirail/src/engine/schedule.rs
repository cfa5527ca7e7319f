//! Which chunk goes by which path.
//!
//! Paths pull: a chunk is cut when a path has room for it, and goes to the path that is expected to have it there first. So a fast path gets
//! more, a slow one no more than it carries, and one that stands still nothing new. Where the best path is full, the chunk
//! waits for it: a path that is so much slower that waiting is faster gets nothing.

use ofi_core::slots::SlotId;

use super::path::Path;
use super::transfer::{Chunk, Outcome, Transfer, Unfinished, Way};
use super::{Access, Command, Config, Core, InFlight, OpId, Time, TransferId};
use crate::wire::RegionKey;

/// Where a chunk may go.
enum Choice {
    Path(usize, RegionKey),
    /// Not now.
    Wait,
    /// Nowhere: every path that is there has failed with it, or does not know the region.
    Nowhere,
}

impl<G> Core<G> {
    /// The next access of a session's transfers.
    pub(super) fn transfer_command(&mut self, id: SlotId, blocked: u64, now: Time) -> Option<Command> {
        let mut turns = self.sessions.get(id)?.transfers.len();
        while turns > 0 {
            let session = self.sessions.get_mut(id)?;
            let transfer_id = *session.transfers.front()?;
            let Some(transfer) =
                self.transfers.get_mut(transfer_id).filter(|transfer| transfer.outcome.is_none())
            else {
                session.transfers.pop_front();
                turns -= 1;
                continue;
            };
            let longest = longest(transfer, &session.paths, &self.config, now);
            let Some(chunk) = transfer.next_chunk(longest) else {
                session.transfers.pop_front();
                transfer.queued = false;
                turns -= 1;
                self.send_notice(transfer_id);
                if let Some(command) = self.control_command(id, blocked, now) {
                    return Some(command);
                }
                continue;
            };
            match choose(transfer, &chunk, &session.paths, &self.config, blocked, now) {
                Choice::Path(path, key) => {
                    if transfer.chunks == 0 && transfer.number.is_none() && self.config.count_writes {
                        let is_wide = session.paths.iter().all(|path| self.rails[path.rail].wide_data);
                        let is_counted = matches!(transfer.notice, Unfinished::Unsent(_))
                            && transfer.plan.way == Way::Write
                            && is_wide
                            && most_chunks(transfer, &self.config) <= u64::from(u16::MAX);
                        transfer.number = if is_counted { session.take_number() } else { None };
                    }
                    let command = self.post_chunk(id, transfer_id, chunk, path, key, now);
                    let session = self.sessions.get_mut(id)?;
                    let is_turn_over =
                        self.transfers.get(transfer_id).is_some_and(|transfer| transfer.last.1 == 0);
                    if is_turn_over && session.transfers.len() > 1 {
                        session.transfers.rotate_left(1);
                    }
                    return command;
                }
                Choice::Wait => {
                    session.transfers.rotate_left(1);
                    turns -= 1;
                    if turns == 0 {
                        self.stuck.push(id);
                    }
                }
                Choice::Nowhere => {
                    let error = transfer.error;
                    session.transfers.pop_front();
                    turns -= 1;
                    self.finish(transfer_id, Outcome::Failed(error));
                }
            }
        }
        None
    }

    fn post_chunk(
        &mut self,
        session_id: SlotId,
        transfer_id: SlotId,
        chunk: Chunk,
        index: usize,
        key: RegionKey,
        now: Time,
    ) -> Option<Command> {
        let session = self.sessions.get_mut(session_id)?;
        let transfer = self.transfers.get_mut(transfer_id)?;
        let path = &mut session.paths[index];
        let addr = path.addr?;
        let piece = transfer.plan.pieces.get(chunk.piece as usize)?;
        let way = transfer.plan.way;
        let data = transfer.number.map(|number| {
            (session.theirs & 0xFFFF_FFFF_0000_0000)
                | u64::from(number as u16) << 16
                | u64::from(chunk.number as u16)
        });
        let flight =
            InFlight::Chunk { transfer: transfer_id, session: session_id, path: index, chunk, since: now };
        let op = OpId(self.ops.insert(flight));
        let access = Access {
            op,
            rail: path.rail,
            addr,
            way,
            region: piece.region,
            local: piece.local + chunk.offset,
            remote: key.base + piece.remote + chunk.offset,
            key: key.key,
            len: chunk.len,
            data,
            transfer: TransferId(transfer_id),
        };
        path.posted(chunk.len, now);
        session.operations += 1;
        transfer.last = match transfer.last {
            (last, left) if last == index && left > 0 => (index, left - 1),
            _ => (index, self.config.batch.saturating_sub(1)),
        };
        transfer.took(&chunk);
        self.watch(session_id, index, now);
        Some(Command::Access(access))
    }
}

/// How long the next chunk of a transfer may be: a descriptor over the threshold is cut so that every path gets about two parts.
fn longest<G>(transfer: &Transfer<G>, paths: &[Path], config: &Config, now: Time) -> u64 {
    let Some(piece) = transfer.next_piece() else { return config.largest_access };
    if piece.len < config.striping_threshold || paths.len() < 2 {
        return config.largest_access;
    }
    let up = paths.iter().filter(|path| path.is_up(now)).count().max(1) as u64;
    if up == 1 {
        return config.largest_access;
    }
    let share = piece.len.div_ceil(2 * up).next_multiple_of(4096);
    share.clamp(config.smallest_chunk, config.largest_access.max(config.smallest_chunk))
}

/// The most chunks that a plan may become.
fn most_chunks<G>(transfer: &Transfer<G>, config: &Config) -> u64 {
    let shortest = config.smallest_chunk.min(config.largest_access).max(1);
    transfer.plan.pieces.iter().map(|piece| piece.len.div_ceil(shortest)).fold(0, u64::saturating_add)
}

fn choose<G>(
    transfer: &Transfer<G>,
    chunk: &Chunk,
    paths: &[Path],
    config: &Config,
    blocked: u64,
    now: Time,
) -> Choice {
    let Some(piece) = transfer.plan.pieces.get(chunk.piece as usize) else { return Choice::Nowhere };
    let region = &transfer.plan.regions[piece.remote_region as usize];
    let key = |path: &Path| region.keys.iter().find(|key| usize::from(key.rail) == path.remote).copied();
    let may = |at: usize| {
        let untried = 1_u64.checked_shl(at as u32).is_none_or(|bit| chunk.tried & bit == 0);
        untried && paths[at].is_up(now)
    };
    let has_room = |path: &Path| {
        let room = path.operations == 0 || path.in_flight + chunk.len <= path.window(config.largest_access);
        room && blocked >> path.rail & 1 == 0
    };
    // Successive short descriptors stay together, so that the rail can put them into one packet or behind one doorbell.
    let (last, left) = transfer.last;
    if left > 0
        && chunk.len < config.striping_threshold
        && paths.get(last).is_some_and(has_room)
        && may(last)
        && let Some(key) = key(&paths[last])
    {
        return Choice::Path(last, key);
    }
    let mut best: Option<(usize, RegionKey, f64)> = None;
    let mut is_waiting = false;
    for (at, path) in paths.iter().enumerate() {
        let Some(key) = key(path) else { continue };
        // An address that is still being inserted is no failure.
        is_waiting |= path.addr.is_none();
        if !may(at) {
            continue;
        }
        let finish = path.finish(chunk.len, now);
        if best.is_none_or(|(_, _, least)| finish < least) {
            best = Some((at, key, finish));
        }
    }
    match best {
        Some((at, key, _)) if has_room(&paths[at]) => Choice::Path(at, key),
        Some(_) => Choice::Wait,
        None if is_waiting => Choice::Wait,
        None => Choice::Nowhere,
    }
}
