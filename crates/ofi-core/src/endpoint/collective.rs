//! Groups that an endpoint joins, and the collectives that it posts to them.

use std::any::Any;
use std::sync::{Arc, Weak};

use ofi_api::{
    AvSet, Call, Caps, CollectiveAttr, CollectiveGroup, CollectiveKind, CollectiveOp, CompletionFlags,
    Context, CqErrorEntry, Datatype, EqErrorEntry, Errno, Error, Event, EventKind, FiAddr, FiOp, Fid, Group,
    Lent, OpFlags, Piece, Result,
};
use rustc_hash::FxHashMap;

use super::post::not_enabled;
use super::transmit::{bad_flags, not_opened_for, success};
use super::{EpCore, State};
use crate::atomic::Executor;
use crate::av::set::{Set, new_address};
use crate::collective::engine::{self, Collectives, Report, SELF, Wire};
use crate::collective::schedule::{Schedule, Shape, plan};
use crate::cq::Credit;
use crate::eq::{Driven, EqCore};
use crate::transport::{CompletionInfo, CounterTarget, OutNote, PeerId, Transport, TransportEndpoint};

/// Data of up to this many bytes (two notes) uses the algorithm with the fewest rounds. Beyond it, sending each byte
/// only once matters more than the number of rounds.
const SMALL: usize = 16 << 10;

/// The state of an endpoint with `FI_COLLECTIVE`.
pub struct CollectiveSide {
    engine: Collectives,
    /// The shape and schedule of the last operation, because programs mostly repeat one.
    planned: Option<(Shape, Arc<Schedule>)>,
    /// Empty, but for its memory: see `move_collectives`.
    finished: Vec<(Report, Result<(), Errno>)>,
    /// Groups by the application's number.
    joined: FxHashMap<FiAddr, Joined>,
    eq: Option<Arc<EqCore>>,
}

struct Joined {
    /// The engine's number.
    group: u64,
    members: Vec<FiAddr>,
}

impl CollectiveSide {
    /// The side of an endpoint with these capabilities; `None` if it has no collectives.
    pub fn new<T: Transport>(caps: Caps) -> Option<Box<Self>> {
        let has = caps.contains(Caps::COLLECTIVE) && T::note_size() > 0;
        let engine = Collectives::new(T::note_size());
        let joined = FxHashMap::default();
        has.then(|| Box::new(Self { engine, planned: None, finished: Vec::new(), joined, eq: None }))
    }

    /// The schedule of this rank for an operation of that shape.
    fn schedule(planned: &mut Option<(Shape, Arc<Schedule>)>, shape: Shape) -> &Arc<Schedule> {
        if planned.as_ref().is_none_or(|(known, _)| *known != shape) {
            *planned = None;
        }
        &planned.get_or_insert_with(|| (shape, Arc::new(plan(&shape)))).1
    }

    /// Binds an event queue, for joins.
    ///
    /// # Errors
    /// `FI_EBUSY` if there is one.
    pub fn bind(&mut self, eq: Arc<EqCore>) -> Result<()> {
        eq.bind_once(&mut self.eq)
    }

    /// Whether an event queue is bound. It drives the endpoint as long as the endpoint is enabled.
    pub fn has_queue(&self) -> bool {
        self.eq.is_some()
    }

    /// Takes a note.
    ///
    /// # Errors
    /// As [`Collectives::noted`].
    ///
    /// # Safety
    /// As [`Collectives::noted`].
    pub unsafe fn noted(
        &mut self,
        peer: PeerId,
        words: [u64; 4],
        body: *const u8,
        len: usize,
    ) -> Result<(), Errno> {
        // SAFETY: the caller's promise.
        unsafe { self.engine.noted(peer, words, body, len) }
    }

    /// Whether a peer is in a group.
    pub fn knows(&self, peer: PeerId) -> bool {
        self.engine.knows(peer)
    }

    /// A peer is gone.
    pub fn peer_gone(&mut self, peer: PeerId, errno: Errno) {
        self.engine.peer_gone(peer, errno);
    }
}

/// The transport carries notes.
struct OnEndpoint<'a, T: Transport>(&'a mut T::Endpoint);

impl<T: Transport> Wire for OnEndpoint<'_, T> {
    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        self.0.note(out)
    }

    fn await_note(&mut self, peer: PeerId) {
        self.0.await_note(peer);
    }
}

impl<T: Transport> State<T> {
    /// Advances collectives after a poll.
    #[cold]
    #[inline(never)]
    pub(super) fn move_collectives(&mut self) {
        let (Some(side), Some(transport)) = (&mut self.ends.collectives, &mut self.transport) else { return };
        if !side.engine.is_active() {
            return;
        }
        let mut finished = std::mem::take(&mut side.finished);
        side.engine.advance(&mut OnEndpoint::<T>(transport), &mut finished);
        for (report, result) in finished.drain(..) {
            match (report, result) {
                (Report::Completion(ticket), Ok(())) if ticket.signal => {
                    self.ends.staging.transmitted(success(&ticket));
                }
                (Report::Completion(_), Ok(())) => {
                    self.ends.staging.credits[Credit::Transmit as usize] += 1;
                }
                (Report::Completion(ticket), Err(errno)) => {
                    self.ends.tx.counts.failed += 1;
                    let mut error = CqErrorEntry::new(ticket.context, ticket.flags, errno);
                    error.prov_errno = errno.get();
                    self.ends.staging.transmit_failed(error, ticket.route);
                }
                (Report::Join(fid, context), result) => {
                    let Some(eq) = &side.eq else { continue };
                    match result {
                        Ok(()) => eq.push(Event { context, ..Event::new(EventKind::JoinComplete, fid) }),
                        Err(errno) => {
                            eq.push_error(EqErrorEntry { context, ..EqErrorEntry::new(fid, errno) })
                        }
                    }
                }
            }
        }
        side.finished = finished;
    }
}

/// A group, as the application holds it.
struct GroupHandle<T: Transport> {
    core: Weak<EpCore<T>>,
    fid: Fid,
    addr: FiAddr,
    rank: usize,
    ranks: usize,
}

impl<T: Transport> CollectiveGroup for GroupHandle<T> {
    fn fid(&self) -> Fid {
        self.fid
    }

    fn addr(&self) -> FiAddr {
        self.addr
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }
}

impl<T: Transport> Drop for GroupHandle<T> {
    fn drop(&mut self) {
        // In a child of fork(2) the group belongs to the parent.
        let Some(core) = self.core.upgrade().filter(|core| core.born.is_here()) else { return };
        let mut guard = core.state.lock();
        if let Some(side) = &mut guard.ends.collectives
            && let Some(joined) = side.joined.remove(&self.addr)
        {
            side.engine.leave(joined.group);
        }
        guard.move_collectives();
    }
}

impl<T: Transport> EpCore<T> {
    /// Makes the event queue drive the endpoint, once there is something to drive.
    pub(super) fn watch_joins(self: &Arc<Self>) -> Result<()> {
        let Some(eq) = self.eq_of_joins() else { return Ok(()) };
        self.be_driven_by(&eq)
    }

    /// Reverts [`EpCore::watch_joins`]. Call it before the transport's part is closed.
    pub(super) fn forget_joins(self: &Arc<Self>) {
        self.state.lock().forget_groups(&**self);
        let Some(eq) = self.eq_of_joins() else { return };
        let source: Arc<dyn Driven> = Arc::clone(self) as _;
        eq.remove(&source);
    }

    fn eq_of_joins(&self) -> Option<Arc<EqCore>> {
        self.state.lock().ends.collectives.as_ref()?.eq.clone()
    }

    /// See [`ofi_api::Endpoint::join_collective`].
    pub(super) fn join(
        self: &Arc<Self>,
        coll_addr: FiAddr,
        set: &dyn AvSet,
        context: Context,
    ) -> Result<Group> {
        let any: &dyn Any = set;
        let Some(set) = any.downcast_ref::<Set>() else { return Err(super::foreign("the set of addresses")) };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let Some(side) = &state.ends.collectives else {
            return Err(not_opened_for("fi_join_collective", "FI_COLLECTIVE"));
        };
        if side.eq.is_none() {
            return Err(Error::wanted(
                Errno::ENOEQ,
                "fi_join_collective",
                "an endpoint with an event queue, where the end of the join is reported",
                "one without",
                "open one with fi_eq_open and bind it before fi_enable",
            ));
        }
        let local = coll_addr == FiAddr::NOTAVAIL;
        if !local && coll_addr != set.addr() && !side.joined.contains_key(&coll_addr) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the address to join",
                "that of the set, of a group that was joined, or FI_ADDR_NOTAVAIL",
                format!("{coll_addr:?}"),
                "ask fi_av_set_addr",
            ));
        }
        if !state.ends.peers.is_bound_to(set.av()) {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the set to join with",
                "one of the address vector that the endpoint is bound to",
                "one of another vector",
                "make the set from the endpoint's vector",
            ));
        }
        let own = state.name.clone().filter(|_| state.transport.is_some()).ok_or_else(not_enabled)?;
        let members = set.members();
        let (mut peers, mut names, mut rank) = (Vec::with_capacity(members.len()), engine::HASH, None);
        for (index, &member) in members.iter().enumerate() {
            let address = set.av().address(member)?;
            names = engine::hash(names, address.bytes());
            names = engine::hash(names, &[0xFF]);
            if address == own {
                rank = Some(index);
                peers.push(SELF);
            } else {
                peers.push(state.peer(member)?);
            }
        }
        let Some(rank) = rank else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the set to join with",
                "one that contains the endpoint's own address",
                format!("{} others", members.len()),
                "insert the address from fi_getname, at the same position at all members",
            ));
        };
        let Some(side) = &mut state.ends.collectives else { return Err(not_enabled()) };
        let (fid, addr, ranks) = (Fid::next(), new_address(false), peers.len());
        let group = side.engine.open(peers, names);
        let shape = Shape {
            kind: CollectiveKind::Barrier,
            ranks,
            me: rank,
            root: 0,
            count: 0,
            size: 1,
            small: SMALL,
        };
        let schedule = Arc::new(if local { Schedule::default() } else { plan(&shape) });
        side.joined.insert(addr, Joined { group, members });
        let nothing = [Piece::new(std::ptr::null_mut(), 0); 2];
        // SAFETY: a barrier uses no memory.
        let started =
            unsafe { side.engine.start(group, &schedule, nothing, None, Report::Join(fid, context)) };
        if let Err(error) = started {
            // A member failed before this one joined.
            side.joined.remove(&addr);
            side.engine.leave(group);
            return Err(error);
        }
        state.move_collectives();
        let core = Arc::downgrade(self);
        Ok(Arc::new(GroupHandle { core, fid, addr, rank, ranks }))
    }

    /// See [`ofi_api::Endpoint::collective`].
    pub(super) fn collective(&self, op: &CollectiveOp<'_>) -> Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.transport.is_none() {
            return Err(not_enabled());
        }
        let Some(side) = &state.ends.collectives else {
            return Err(not_opened_for("a collective", "FI_COLLECTIVE"));
        };
        let executor = executor(op)?;
        state.ends.only_host("a collective", &[op.buf.pieces(), op.result.pieces()])?;
        let (mut flags, signal) = state.ends.tx.flags(op.call, op.flags)?;
        if op.call == Call::Plain {
            flags -= state.ends.tx.op_flags & OpFlags::INJECT; // a default that means nothing here
        }
        let bad = flags & (OpFlags::INJECT | OpFlags::REMOTE_CQ_DATA);
        if !bad.is_empty() {
            return Err(bad_flags(bad));
        }
        let Some(joined) = side.joined.get(&op.group) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the address of a collective's group",
                "that of a group that this endpoint has joined",
                format!("{:?}", op.group),
                "pass the address that fi_mc_addr returns",
            ));
        };
        let group = joined.group;
        let root = if op.kind.has_root() {
            joined.members.iter().position(|&member| member == op.root).ok_or_else(|| {
                Error::wanted(
                    Errno::EINVAL,
                    "the root of a collective",
                    "the address of a member of the group",
                    format!("{:?}", op.root),
                    "give the root's number in the address vector",
                )
            })?
        } else {
            0
        };
        let (ranks, me) = side.engine.shape(group)?;
        let size = op.datatype.size();
        let shape = Shape { kind: op.kind, ranks, me, root, count: op.count, size, small: SMALL };
        let most = op.count.checked_mul(size).and_then(|bytes| bytes.checked_mul(ranks));
        if most.is_none_or(|bytes| bytes > isize::MAX as usize) {
            return Err(Error::wanted(
                Errno::EMSGSIZE,
                "the number of elements",
                "as many as memory can hold",
                op.count.to_string(),
                "split the operation",
            ));
        }
        let lengths = shape.lengths();
        let buf = piece("buf", &op.buf, lengths[0])?;
        let result = piece("result", &op.result, lengths[1])?;
        if state.ends.no_transmit_credit(0) {
            return Err(state.no_credit());
        }
        let Some(side) = &mut state.ends.collectives else { return Err(not_enabled()) };
        let flags = CompletionFlags::COLLECTIVE;
        let ticket = CompletionInfo {
            context: op.context,
            flags,
            signal,
            len: lengths[0],
            route: CounterTarget::ENDPOINT,
            at: 0,
        };
        let schedule = CollectiveSide::schedule(&mut side.planned, shape);
        // SAFETY: both pieces are as long as the schedule for this shape uses them, and lent until the completion.
        unsafe {
            side.engine.start(group, schedule, [buf, result], executor, Report::Completion(ticket))?;
        }
        state.ends.staging.credits[Credit::Transmit as usize] -= 1;
        state.move_collectives();
        Ok(())
    }
}

/// How to combine, where the kind does.
fn executor(op: &CollectiveOp<'_>) -> Result<Option<Executor>> {
    query(op.kind, op.op, op.datatype)
}

/// The executor of a collective, if it needs one.
///
/// # Errors
/// `FI_EOPNOTSUPP` for an operation that it cannot do.
pub fn query(kind: CollectiveKind, op: FiOp, datatype: Datatype) -> Result<Option<Executor>> {
    let refused = |wanted: &str| {
        Err(Error::wanted(
            Errno::EOPNOTSUPP,
            kind.c_name(),
            wanted.to_string(),
            format!("{op} on {datatype}"),
            "ask fi_query_collective first",
        ))
    };
    if datatype == Datatype::Void && kind != CollectiveKind::Barrier {
        return refused("a type with a size");
    }
    if !kind.combines() {
        return Ok(None);
    }
    if op.as_c() > FiOp::Bxor.as_c() {
        return refused("FI_MIN, FI_MAX, FI_SUM, FI_PROD, or a logical or bitwise operation");
    }
    Executor::find(ofi_api::AtomicKind::Base, op, datatype).map(Some)
}

/// The limits of one collective on a transport with notes.
///
/// # Errors
/// As [`query`].
pub fn attributes(kind: CollectiveKind, op: FiOp, datatype: Datatype) -> Result<CollectiveAttr> {
    query(kind, op, datatype)?;
    let size = datatype.size();
    let datatype_attr = ofi_api::AtomicAttr { count: isize::MAX as usize / size, size };
    Ok(CollectiveAttr { datatype_attr, max_members: 1 << 23 })
}

/// The one piece of a collective's memory.
fn piece(what: &str, lent: &Lent<'_>, len: usize) -> Result<Piece> {
    match lent.pieces() {
        _ if len == 0 => Ok(Piece::new(std::ptr::null_mut(), 0)),
        [one] if one.len == len && !one.addr.is_null() => Ok(*one),
        other => Err(Error::wanted(
            Errno::EINVAL,
            format!("the memory of a collective ({what})"),
            format!("one piece of {len} bytes"),
            format!("{} pieces with {} bytes", other.len(), lent.len()),
            "see ofi_api::CollectiveOp for the length of each side's memory",
        )),
    }
}
