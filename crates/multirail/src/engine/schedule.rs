//! Assigns chunks to paths.
//!
//! Paths pull: a chunk is cut when a path has room for it, and goes to the path that is expected to deliver it first,
//! or that has had less than its part (`shares.rs`). So a fast path gets more, and a stalled path nothing new. A path
//! that is much slower than its equals gets no more than it carries; for one that is a little slower they wait. If the
//! best path is full, the chunk waits for it when that costs less than another path.

use std::time::Duration;

use ofi_core::slots::SlotId;

use super::accounts::Kind;
use super::fence::Keys;
use super::operations::nanos;
use super::path::Path;
use super::row::{Found, MAX_ROW_LEN, PostedRun, row_of};
use super::transfer::{Chunk, Outcome, Transfer, Unfinished, Way};
use super::{Access, Command, Config, Core, OpId, PathId, Refused, Sink, Time, Timer, TransferId, shares};
use crate::near::{RailSet, bit};
use crate::wire::RegionKey;

/// Minimum time after which a session with full paths is examined again, unless an operation ends.
const SOON: Duration = Duration::from_micros(10);

/// Maximum accesses that are posted in one run while no other transfer waits for its turn.
const MAX_ACCESSES_PER_RUN: u32 = 256;

/// The path for a chunk.
enum Choice {
    /// A path, the length of the part, the key to use there, and whether it is a leased one.
    Path(usize, u64, RegionKey, bool),
    /// Wait until a path has room, or until this time, when another path may be better.
    Wait(Option<Time>),
    /// A path would do, but has no key for the region.
    Keyless,
    /// No path: each has failed with the chunk.
    Nowhere,
}

impl<G> Core<G> {
    /// Posts the next accesses of a session's transfers, or puts a due message into the commands. Returns the number,
    /// or `None` if there is nothing to do, or the session is gone.
    pub(super) fn post_transfers(&mut self, id: SlotId, now: Time, sink: &mut impl Sink<G>) -> Option<u64> {
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
            let longest = longest(transfer, &session.paths, session.later_rails(), &self.config, now);
            let Some(chunk) = transfer.next_chunk(longest) else {
                session.transfers.pop_front();
                transfer.queued = false;
                turns -= 1;
                if self.send_notice(transfer_id) {
                    self.send_held(id);
                }
                if let Some(command) = self.control_command(id, now) {
                    self.commands.push_back(command);
                    return Some(0);
                }
                continue;
            };
            if session.later.is_some() && session.renews(transfer, &chunk) {
                let command = self.control_command(id, now);
                self.commands.extend(command);
                continue;
            }
            let choice = match session.keys_for(transfer, &chunk, now) {
                Keys::Leased(leased) => choose(
                    transfer,
                    &chunk,
                    &session.paths,
                    RemoteKeys {
                        leased,
                        wide: session.wide_keys(transfer, &chunk),
                        later: session.later_rails(),
                    },
                    &self.config,
                    |path| !self.stalled.is_shut(path) && self.places.share(path) > 0,
                    now,
                ),
                Keys::Awaited(until) => Choice::Wait(Some(until)),
                Keys::Unasked => {
                    session.transfers.rotate_left(1);
                    turns -= 1;
                    if let Some(until) = self.ask_for_keys(id, transfer_id, &chunk, now) {
                        self.look_again(id, until);
                    }
                    continue;
                }
            };
            match choice {
                Choice::Path(path, len, key, is_leased) => {
                    if transfer.chunks == 0 && transfer.number.is_none() && self.config.count_writes {
                        let is_wide = session.paths.iter().all(|path| self.rails[path.rail].wide_data);
                        let is_counted = matches!(transfer.notice, Unfinished::Unsent(_))
                            && transfer.plan.way == Way::Write
                            && is_wide
                            && most_chunks(transfer, &self.config) <= u64::from(u16::MAX);
                        transfer.number = if is_counted { session.take_number() } else { None };
                    }
                    let chunk = Chunk { len, ..chunk };
                    return self.post_run(id, transfer_id, chunk, (path, key, is_leased), now, sink);
                }
                Choice::Wait(until) => {
                    session.transfers.rotate_left(1);
                    turns -= 1;
                    if let Some(until) = until {
                        self.look_again(id, until.max(now + SOON));
                    }
                }
                Choice::Keyless => {
                    let error = transfer.error;
                    session.transfers.rotate_left(1);
                    turns -= 1;
                    match self.ask_to_widen(id, transfer_id, &chunk, now) {
                        Some(until) => self.look_again(id, until),
                        None => {
                            if let Some(session) = self.sessions.get_mut(id) {
                                session.transfers.pop_back();
                            }
                            self.finish(transfer_id, Outcome::Failed(error));
                        }
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

    /// Schedules another examination of a session at this time, in case no event causes one before.
    fn look_again(&mut self, id: SlotId, at: Time) {
        let Some(session) = self.sessions.get(id) else { return };
        if session.full.is_some_and(|(earlier, _)| earlier <= at) {
            return;
        }
        if let Some(timer) = session.full {
            self.timers.remove(&timer);
        }
        let timer = self.remind(at, Timer::Full(id));
        if let Some(session) = self.sessions.get_mut(id) {
            session.full = Some(timer);
        }
    }

    /// Posts a chunk, and the short descriptors that follow it and stay on its path. Returns the number.
    fn post_run(
        &mut self,
        session_id: SlotId,
        transfer_id: SlotId,
        first: Chunk,
        (index, key, is_leased): (usize, RegionKey, bool),
        now: Time,
        sink: &mut impl Sink<G>,
    ) -> Option<u64> {
        let session = self.sessions.get_mut(session_id)?;
        let transfer = self.transfers.get_mut(transfer_id)?;
        let is_only = session.paths.len() == 1;
        let path = &mut session.paths[index];
        let tag = session.theirs & 0xFFFF_FFFF_0000_0000;
        let lease = is_leased.then_some(key.key);
        let number = transfer.number.map(|number| tag | u64::from(number as u16) << 16);
        let left = match transfer.last {
            // No other transfer waits for its turn.
            _ if is_only && session.transfers.len() == 1 => MAX_ACCESSES_PER_RUN,
            (last, left) if last == index && left > 0 => left,
            _ => self.config.batch.max(1),
        };
        transfer.took(&first);
        let may_follow = transfer.retry.is_empty();
        let (mut at, mut chunks) = (transfer.cursor, transfer.chunks);
        let plan = &*transfer.plan;
        let remote_region = plan.pieces.get(first.piece as usize)?.remote_region;
        let room = path.room(self.config.largest_access);
        let longest = if is_only { u64::MAX } else { self.config.striping_threshold };
        let whole = longest.min(self.config.largest_access.saturating_add(1));
        let most = left.min(self.places.share(path).max(1));
        let mut access = Access {
            op: OpId::from_bits(0),
            rail: path.rail,
            addr: path.addr?,
            way: plan.way,
            region: 0,
            local: 0,
            remote: 0,
            key: key.key,
            len: 0,
            data: None,
            transfer: TransferId(transfer_id),
        };
        let (mut chunk, mut posted, mut bytes, mut failure) = (first, 0, 0_u64, None);
        let mut is_refused = false;
        loop {
            let pieces = plan.pieces.get(chunk.piece as usize..)?;
            let piece = pieces.first()?;
            let is_whole = at == (chunk.piece + 1, 0) && chunk.len == piece.len && chunk.number + 1 == chunks;
            let mut found = Found::one(chunk.len);
            if may_follow && is_whole && chunk.len < longest {
                found = row_of(pieces, MAX_ROW_LEN.min(most - posted), room.saturating_sub(bytes), whole);
                (at.0, chunks) = (at.0 + found.count - 1, chunks + found.count - 1);
            }
            let count = found.count;
            bytes += found.bytes;
            posted += count;
            let next = plan.pieces.get(at.0 as usize).filter(|next| {
                let len = (next.len - at.1).min(self.config.largest_access);
                let fits = bytes.saturating_add(len) <= room;
                posted < most
                    && may_follow
                    && next.len < longest
                    && fits
                    && next.remote_region == remote_region
            });
            let mut row = PostedRun::new(transfer_id, chunk, &found, index as u32, lease, nanos(now));
            row.load = path.in_flight + bytes;
            let id = self.rows.insert(row);
            access.op = OpId::access(id);
            (access.region, access.len) = (piece.region, chunk.len);
            access.local = piece.local + chunk.offset;
            access.remote = key.base + piece.remote + chunk.offset;
            access.data = number.map(|number| number | u64::from(chunk.number as u16));
            if let Err(refused) = sink.row(&mut access, &pieces[..count as usize], plan, next.is_some()) {
                // The refused access counts as posted: it waits, or has ended.
                let left_out = count - 1 - access.op.place();
                if let Some(row) = self.rows.get_mut(id) {
                    row.cut(count - left_out);
                }
                (at.0, chunks, posted) = (at.0 - left_out, chunks - left_out, posted - left_out);
                let left_out = pieces[..count as usize].iter().rev().take(left_out as usize);
                bytes -= left_out.map(|piece| piece.len).sum::<u64>();
                match refused {
                    Refused::Full => {
                        path.is_stalled = true;
                        let path = PathId { session: session_id, path: index };
                        self.stalled.refused(access.rail, path, Command::Access(path, access));
                        is_refused = true;
                    }
                    Refused::Failed(errno) => failure = Some((access.op, errno)),
                }
                break;
            }
            let Some(next) = next else { break };
            let len = (next.len - at.1).min(self.config.largest_access);
            chunk = Chunk { piece: at.0, offset: at.1, len, number: chunks, tried: 0, refusals: 0 };
            chunks += 1;
            at = if at.1 + len == next.len { (at.0 + 1, 0) } else { (at.0, at.1 + len) };
        }
        (transfer.cursor, transfer.chunks) = (at, chunks);
        transfer.in_flight += posted - 1;
        session.operations += posted as usize;
        path.posted(posted, bytes, now);
        self.places.begin(path, Kind::Access, posted, is_refused);
        if !is_only {
            shares::given(&mut session.paths, index, bytes, now);
        }
        let left = left - posted;
        transfer.last = (index, left);
        if transfer.is_posted() && matches!(transfer.notice, Unfinished::Nothing) {
            session.transfers.pop_front();
            transfer.queued = false;
        } else if left == 0 && session.transfers.len() > 1 {
            session.transfers.rotate_left(1);
        }
        self.watch(session_id, index, now);
        if let Some((op, errno)) = failure {
            self.ended(op, Err(errno), now);
        }
        Some(u64::from(posted))
    }
}

/// The maximum length of a transfer's next chunk. A descriptor over the threshold is cut so that every path gets about
/// two parts.
fn longest<G>(transfer: &Transfer<G>, paths: &[Path], later: RailSet, config: &Config, now: Time) -> u64 {
    let Some(piece) = transfer.next_piece() else { return config.largest_access };
    if piece.len < config.striping_threshold || paths.len() < 2 {
        return config.largest_access;
    }
    let near = transfer.plan.near(piece);
    let keyed = transfer.plan.regions.get(piece.remote_region as usize);
    let keyed =
        keyed.map_or(0, |region| region.keys.iter().fold(later, |set, key| set | bit(key.rail.into())));
    // The paths that `choose` spreads chunks over: those near both ends, else those near the remote one, else all.
    let count = |near: RailSet, keyed: RailSet| {
        let is_used = |path: &&Path| near >> path.rail & 1 == 1 && keyed >> path.remote & 1 == 1;
        paths.iter().filter(|path| path.is_up(now) && is_used(path)).count() as u64
    };
    let all = RailSet::MAX;
    let up = [(near, keyed), (all, keyed), (all, all)].into_iter().map(|(near, keyed)| count(near, keyed));
    let up = up.into_iter().find(|&up| up > 0).unwrap_or(1);
    if up == 1 {
        return config.largest_access;
    }
    let share = piece.len.div_ceil(2 * up).next_multiple_of(4096);
    share.clamp(config.smallest_chunk, config.largest_access.max(config.smallest_chunk))
}

/// The maximum number of chunks of a plan.
fn most_chunks<G>(transfer: &Transfer<G>, config: &Config) -> u64 {
    let shortest = config.smallest_chunk.min(config.largest_access).max(1);
    transfer.plan.pieces.iter().map(|piece| piece.len.div_ceil(shortest)).fold(0, u64::saturating_add)
}

/// What a session knows of a chunk's remote region beside its metadata.
struct RemoteKeys<'a> {
    leased: &'a [RegionKey],
    /// Keys that the owner was asked for.
    wide: &'a [RegionKey],
    /// The rails that the owner has opened later.
    later: RailSet,
}

fn choose<G>(
    transfer: &Transfer<G>,
    chunk: &Chunk,
    paths: &[Path],
    RemoteKeys { leased, wide, later }: RemoteKeys<'_>,
    config: &Config,
    is_free: impl Fn(&Path) -> bool,
    now: Time,
) -> Choice {
    let Some(piece) = transfer.plan.pieces.get(chunk.piece as usize) else { return Choice::Nowhere };
    let region = &transfer.plan.regions[piece.remote_region as usize];
    let key = |path: &Path| {
        let is_its = |key: &&RegionKey| usize::from(key.rail) == path.remote;
        let is_valid = |key: &&RegionKey| key.base.checked_add(region.len).is_some();
        let leased = leased.iter().find(is_its).filter(is_valid).map(|key| (*key, true));
        let own = || region.keys.iter().find(is_its).or_else(|| wide.iter().find(is_its).filter(is_valid));
        leased.or_else(|| own().map(|key| (*key, false)))
    };
    let near = transfer.plan.near(piece);
    // A path is near the remote memory if the owner gave its key without being asked for more.
    let is_own = |path: &Path| {
        wide.is_empty()
            || later >> path.remote & 1 == 1
            || region.keys.iter().any(|key| usize::from(key.rail) == path.remote)
    };
    let rank = |path: &Path| 2 * u8::from(is_own(path)) + u8::from(near >> path.rail & 1 == 1);
    let may = |at: usize| {
        let untried = 1_u64.checked_shl(at as u32).is_none_or(|bit| chunk.tried & bit == 0);
        untried && paths[at].is_up(now)
    };
    // Parts that are posted again stay as they were counted, and short descriptors are whole.
    let may_cut = transfer.retry.is_empty() && piece.len >= config.striping_threshold;
    let len =
        |path: &Path| if may_cut { path.share.part_of(chunk.len, config.smallest_chunk) } else { chunk.len };
    let has_room = |path: &Path| path.has_room(len(path), config.largest_access) && is_free(path);
    let cost = |path: &Path| {
        // In an idle session nobody is to wait for a trial.
        let is_tried = path.is_due(now) && paths.iter().any(|path| path.in_flight > 0);
        if is_tried { 0.0 } else { path.cost(len(path), now) }
    };
    // Successive short descriptors stay together, so that the rail can put them into one packet or behind one doorbell.
    let (last, left) = transfer.last;
    let stays = left > 0 && piece.len < config.striping_threshold;
    let last = if paths.len() == 1 { 0 } else { last };
    if (stays || paths.len() == 1)
        && paths.get(last).is_some_and(has_room)
        && may(last)
        && let Some((key, is_leased)) = key(&paths[last])
    {
        return Choice::Path(last, len(&paths[last]), key, is_leased);
    }
    let mut best: Option<(usize, (RegionKey, bool), f64)> = None;
    let (mut is_waiting, mut is_keyless, mut nearest) = (false, false, 0);
    for (at, path) in paths.iter().enumerate() {
        let Some(key) = key(path) else {
            is_keyless |= may(at);
            continue;
        };
        // An address whose insertion is pending is not a failure.
        is_waiting |= path.addr.is_none();
        if !may(at) {
            continue;
        }
        let (cost, rank) = (cost(path), rank(path));
        // A path that is far from the memory of an end is used only if no nearer one can be.
        if best.is_none_or(|(_, _, least)| rank > nearest || (rank == nearest && cost < least)) {
            best = Some((at, key, cost));
            nearest = rank;
        }
    }
    match best {
        Some((at, (key, is_leased), _)) if has_room(&paths[at]) => {
            Choice::Path(at, len(&paths[at]), key, is_leased)
        }
        None if !is_waiting && is_keyless => Choice::Keyless,
        None if !is_waiting => Choice::Nowhere,
        best => {
            // The longer no operation ends on the best path, the later its expected completion; and a resting path
            // becomes usable again.
            let when = |at: usize| match best {
                _ if paths[at].addr.is_none() => None, // the end of the insertion triggers another look
                _ if paths[at].is_shut() => None,
                _ if !paths[at].is_up(now) => Some(paths[at].rests_until()),
                Some((full, ..)) if full != at && has_room(&paths[at]) => {
                    paths[full].behind(cost(&paths[at]))
                }
                _ => None,
            };
            let is_tried = |at: usize| 1_u64.checked_shl(at as u32).is_some_and(|bit| chunk.tried & bit != 0);
            let is_other = |at: usize| !is_tried(at) && rank(&paths[at]) >= nearest;
            let others = (0..paths.len()).filter(|&at| is_other(at) && key(&paths[at]).is_some());
            Choice::Wait(others.filter_map(when).min())
        }
    }
}
