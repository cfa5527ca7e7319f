//! Groups and collectives: fi_collective(3).

#[cfg(test)]
mod tests;

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use ofi_api::{
    BindFlags, CollectiveKind, CollectiveOp, Datatype, Errno, Error, FiAddr, FiOp, Fid as FidNumber, Group,
    Multicast, OpFlags, Result,
};

use crate::abi::{
    class, fi_collective_addr, fi_collective_attr, fi_ioc, fi_msg_collective, fi_ops, fi_ops_collective, fid,
    fid_domain, fid_ep, fid_mc, flag,
};
use crate::ffi_guard::{self, invalid, null, transfer};
use crate::object::{self, Fid, Graveyard, Hold};
use crate::posting::{One, context, descriptors, of, vector};
use crate::state::Groups;
use crate::{av_list, av_set, directory, state};

/// The kind of group.
enum Joined {
    Collective(Group, Arc<Groups>),
    /// Kept until the endpoint leaves the group.
    Multicast {
        _group: Multicast,
    },
}

/// The state of a group. Keeps the endpoint open.
pub(crate) struct McBody {
    joined: Joined,
    _ep: Hold,
    entry: Mutex<Option<directory::Entry>>,
}

impl Drop for McBody {
    fn drop(&mut self) {
        if let Joined::Collective(group, groups) = &self.joined {
            groups.lock().unwrap_or_else(PoisonError::into_inner).remove(&group.addr().0);
        }
    }
}

// SAFETY: `repr(C)`, and `fid` is first.
unsafe impl Fid for fid_mc {
    type Body = McBody;
    const CLASS: usize = class::MC;

    fn ops() -> &'static fi_ops {
        &FID_OPS
    }

    fn close(&mut self) {
        (self.fid, self.fi_addr) = (object::closed(), FiAddr::NOTAVAIL.0);
    }

    fn graveyard() -> &'static Graveyard {
        static GRAVES: Graveyard = Graveyard::new();
        &GRAVES
    }
}

static FID_OPS: fi_ops = fi_ops { close, ..fi_ops::NOSYS };
pub(crate) static OPS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier,
    broadcast,
    alltoall,
    allreduce,
    allgather,
    reduce_scatter,
    reduce,
    scatter,
    gather,
    msg,
    barrier2,
};

/// `fi_join_collective`, and `fi_join` of a multicast group by its raw address.
pub(crate) unsafe extern "C" fn join(
    handle: *mut fid_ep,
    addr: *const c_void,
    flags: u64,
    out: *mut *mut fid_mc,
    op_context: *mut c_void,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let ep = unsafe { of(handle)? };
        if out.is_null() {
            return Err(null("the pointer for the group"));
        }
        if flags & flag::COLLECTIVE == 0 {
            // SAFETY: as above.
            let address = unsafe { av_list::one_address(ep.addr_format, addr)? };
            let flags = BindFlags::from_bits_retain(flags);
            // SAFETY: not null, and the caller's.
            return unsafe {
                enter(out, || {
                    let group = ep.endpoint.join_multicast(&address, flags, context(op_context))?;
                    let (number, address) = (group.fid(), group.addr().0);
                    let body = (Joined::Multicast { _group: group }, ep.users.hold());
                    Ok((number, address, op_context, body))
                })
            };
        }
        ffi_guard::no_flags("fi_join_collective", flags & !flag::COLLECTIVE)?;
        // SAFETY: as above: with the flag, the address is this structure.
        let addr = unsafe { addr.cast::<fi_collective_addr>().as_ref() };
        let addr = addr.ok_or_else(|| null("struct fi_collective_addr"))?;
        // SAFETY: as above.
        let set = unsafe { av_set::of(addr.set)? };
        let make = || {
            let group = ep.endpoint.join_collective(FiAddr(addr.coll_addr), set, context(op_context))?;
            let (number, address, ranks) = (group.fid(), group.addr().0, group.ranks());
            ep.groups.lock().unwrap_or_else(PoisonError::into_inner).insert(address, ranks);
            let joined = Joined::Collective(group, Arc::clone(&ep.groups));
            Ok((number, address, op_context, (joined, ep.users.hold())))
        };
        // SAFETY: not null, and the caller's.
        unsafe { enter(out, make) }
    })
}

/// A group's number, address, context and state.
type New = (FidNumber, u64, *mut c_void, (Joined, Hold));

/// Creates the handle of the group that `make` joins.
///
/// # Safety
/// `out` may be written.
unsafe fn enter(out: *mut *mut fid_mc, make: impl FnOnce() -> Result<New>) -> Result<()> {
    let (entry, mc) = directory::enter_new(|| {
        let (number, fi_addr, op_context, (joined, hold)) = make()?;
        let fid = fid_mc { fid: object::header::<fid_mc>(op_context, &FID_OPS), fi_addr };
        Ok((number, object::open(fid, McBody { joined, _ep: hold, entry: Mutex::default() })))
    })?;
    // SAFETY: just opened.
    let body = unsafe { object::body(mc)? };
    *body.entry.lock().unwrap_or_else(PoisonError::into_inner) = Some(entry);
    // SAFETY: the caller's promise.
    unsafe { out.write(mc) };
    Ok(())
}

unsafe extern "C" fn close(handle: *mut fid) -> c_int {
    // SAFETY: the C caller's promise.
    ffi_guard::done(|| unsafe { object::close::<fid_mc>(handle) }.map(drop))
}

/// One buffer as C passes it: address and descriptor.
type Buffer = (*const c_void, *mut c_void);

const NO_BUFFER: Buffer = (std::ptr::null(), std::ptr::null_mut());

/// A collective call of C.
#[derive(Clone, Copy)]
struct Posting {
    kind: CollectiveKind,
    group: u64,
    buf: Buffer,
    result: Buffer,
    count: usize,
    datatype: u32,
    op: u32,
    root: u64,
    flags: u64,
    context: *mut c_void,
}

impl Posting {
    /// A collective without data: a barrier, or the basis of another one.
    const fn new(kind: CollectiveKind, group: u64, flags: u64, context: *mut c_void) -> Self {
        Self {
            kind,
            group,
            buf: NO_BUFFER,
            result: NO_BUFFER,
            count: 0,
            datatype: 0,
            op: 0,
            root: FiAddr::NOTAVAIL.0,
            flags,
            context,
        }
    }

    /// Sets the data: source, destination, and the number and type of the elements.
    const fn data(mut self, buf: Buffer, result: Buffer, count: usize, datatype: u32) -> Self {
        (self.buf, self.result, self.count, self.datatype) = (buf, result, count, datatype);
        self
    }

    /// Elements of the buffer and of the result in a group of `ranks`.
    fn elements(&self, ranks: usize) -> Result<(usize, usize)> {
        use CollectiveKind::*;
        let all = self.count.checked_mul(ranks);
        let all = all.ok_or_else(|| invalid("count", "less", self.count.to_string()))?;
        Ok(match self.kind {
            Barrier => (0, 0),
            Broadcast => (self.count, 0),
            Allreduce | Reduce => (self.count, self.count),
            Alltoall => (all, all),
            Allgather | Gather => (self.count, all),
            ReduceScatter | Scatter => (all, self.count),
        })
    }

    /// # Safety
    /// The C caller's promise: the memory is lent until the completion.
    unsafe fn post(self, ep: *mut fid_ep) -> isize {
        // SAFETY: the same promise.
        transfer(|| unsafe { self.try_post(ep) })
    }

    /// # Safety
    /// As [`Posting::post`].
    unsafe fn try_post(self, ep: *mut fid_ep) -> Result<()> {
        // SAFETY: the same promise, here and below.
        let ep = unsafe { of(ep)? };
        let unknown = |what: &str, number: u32| {
            let advice = "use one that fi_query_collective knows";
            Error::wanted(Errno::EOPNOTSUPP, what, "one of C's header", number.to_string(), advice)
        };
        let datatype = Datatype::from_c(self.datatype);
        let datatype = datatype.ok_or_else(|| unknown("the data type", self.datatype))?;
        let op = match self.kind.combines() {
            true => FiOp::from_c(self.op).ok_or_else(|| unknown("the operation", self.op))?,
            false => FiOp::Noop,
        };
        let ranks = ep.groups.lock().unwrap_or_else(PoisonError::into_inner).get(&self.group).copied();
        let ranks = ranks.ok_or_else(|| {
            invalid("coll_addr", "the address of a group that was joined", format!("{:#x}", self.group))
        })?;
        let (elements, results) = self.elements(ranks)?;
        let buffer = |(buf, desc): Buffer, elements: usize| {
            let len = elements.checked_mul(datatype.size());
            let len = len.ok_or_else(|| invalid("count", "less", elements.to_string()))?;
            Ok::<_, Error>(One::new(buf, len, desc))
        };
        let (buf, result) = (buffer(self.buf, elements)?, buffer(self.result, results)?);
        let begin = CollectiveOp::new(self.kind, FiAddr(self.group), context(self.context));
        // SAFETY: as above.
        let buf = unsafe { buf.lend_if_any() };
        // SAFETY: as above.
        let begin = begin.data(datatype, self.count, buf, unsafe { result.lend_if_any() });
        ep.endpoint.collective(&CollectiveOp {
            op,
            root: FiAddr(self.root),
            flags: ep.tx.flags | OpFlags::from_bits_retain(self.flags),
            call: ep.tx.call,
            ..begin
        })
    }
}

unsafe extern "C" fn barrier(ep: *mut fid_ep, group: u64, context: *mut c_void) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { Posting::new(CollectiveKind::Barrier, group, 0, context).post(ep) }
}

unsafe extern "C" fn barrier2(ep: *mut fid_ep, group: u64, flags: u64, context: *mut c_void) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { Posting::new(CollectiveKind::Barrier, group, flags, context).post(ep) }
}

unsafe extern "C" fn broadcast(
    ep: *mut fid_ep,
    buf: *mut c_void,
    count: usize,
    desc: *mut c_void,
    group: u64,
    root: u64,
    datatype: u32,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let begin = Posting::new(CollectiveKind::Broadcast, group, flags, context);
    let posting = Posting { root, ..begin.data((buf, desc), NO_BUFFER, count, datatype) };
    // SAFETY: the C caller's promise.
    unsafe { posting.post(ep) }
}

/// Defines the calls without root and operation.
macro_rules! spreading {
    ($($call:ident: $kind:ident,)+) => { $(
        unsafe extern "C" fn $call(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void,
            group: u64,
            datatype: u32,
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let begin = Posting::new(CollectiveKind::$kind, group, flags, context);
            let posting = begin.data((buf, desc), (result, result_desc), count, datatype);
            // SAFETY: the C caller's promise.
            unsafe { posting.post(ep) }
        }
    )+ };
}

/// Defines the calls with an operation and without root.
macro_rules! combining {
    ($($call:ident: $kind:ident,)+) => { $(
        unsafe extern "C" fn $call(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void,
            group: u64,
            datatype: u32,
            op: u32,
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let begin = Posting::new(CollectiveKind::$kind, group, flags, context);
            let posting = Posting { op, ..begin.data((buf, desc), (result, result_desc), count, datatype) };
            // SAFETY: the C caller's promise.
            unsafe { posting.post(ep) }
        }
    )+ };
}

/// Defines the calls with a root and without operation.
macro_rules! rooted {
    ($($call:ident: $kind:ident,)+) => { $(
        unsafe extern "C" fn $call(
            ep: *mut fid_ep,
            buf: *const c_void,
            count: usize,
            desc: *mut c_void,
            result: *mut c_void,
            result_desc: *mut c_void,
            group: u64,
            root: u64,
            datatype: u32,
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let begin = Posting::new(CollectiveKind::$kind, group, flags, context);
            let posting = Posting { root, ..begin.data((buf, desc), (result, result_desc), count, datatype) };
            // SAFETY: the C caller's promise.
            unsafe { posting.post(ep) }
        }
    )+ };
}

spreading! { alltoall: Alltoall, allgather: Allgather, }
combining! { allreduce: Allreduce, reduce_scatter: ReduceScatter, }
rooted! { scatter: Scatter, gather: Gather, }

unsafe extern "C" fn reduce(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    group: u64,
    root: u64,
    datatype: u32,
    op: u32,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let begin = Posting::new(CollectiveKind::Reduce, group, flags, context);
    let posting = Posting { root, op, ..begin.data((buf, desc), (result, result_desc), count, datatype) };
    // SAFETY: the C caller's promise.
    unsafe { posting.post(ep) }
}

/// The single buffer of a vector: collectives take no more than one.
///
/// # Safety
/// The C caller's promise.
unsafe fn only(iov: *const fi_ioc, desc: *mut *mut c_void, count: usize) -> Result<(Buffer, usize)> {
    // SAFETY: the same promise, here and below.
    let list = unsafe { vector::<fi_ioc>("the buffers", iov, count)? };
    // SAFETY: as above.
    let descs = unsafe { descriptors(desc, count)? };
    let desc =
        descs.first().map_or(std::ptr::null_mut(), |desc| std::ptr::with_exposed_provenance_mut(desc.0));
    match list {
        [] => Ok((NO_BUFFER, 0)),
        [one] => Ok(((one.addr.cast_const(), desc), one.count)),
        more => Err(Error::with(Errno::ENOSYS, format!("a collective takes one buffer, not {}", more.len()))),
    }
}

unsafe extern "C" fn msg(
    ep: *mut fid_ep,
    msg: *const fi_msg_collective,
    result: *mut fi_ioc,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    transfer(|| {
        // SAFETY: the C caller's promise, here and below.
        let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg_collective"))?;
        let kind = CollectiveKind::from_c(msg.coll);
        let kind = kind.ok_or_else(|| invalid("coll", "a collective", msg.coll.to_string()))?;
        // SAFETY: as above.
        let (buf, elements) = unsafe { only(msg.msg_iov, msg.desc, msg.iov_count)? };
        // SAFETY: as above.
        let (result, results) = unsafe { only(result, result_desc, result_count)? };
        // The structure counts the elements of each array, whereas the calls count those of one rank's part.
        let count = match kind {
            CollectiveKind::Scatter | CollectiveKind::ReduceScatter => results,
            CollectiveKind::Alltoall => {
                // SAFETY: as above.
                let groups = unsafe { of(ep)? }.groups.lock().unwrap_or_else(PoisonError::into_inner);
                elements / groups.get(&msg.coll_addr).copied().unwrap_or(1).max(1)
            }
            _ => elements,
        };
        let begin = Posting::new(kind, msg.coll_addr, flags, msg.context);
        let (root, op) = (msg.root_addr, msg.op);
        let posting = Posting { root, op, ..begin.data(buf, result, count, msg.datatype) };
        // SAFETY: as above.
        unsafe { posting.try_post(ep) }
    })
}

/// `fi_query_collective`. The attributes pass the type and the operation in.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    kind: u32,
    attr: *mut fi_collective_attr,
    flags: u64,
) -> c_int {
    ffi_guard::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { state::domain(domain)? };
        ffi_guard::no_flags("fi_query_collective", flags)?;
        // SAFETY: as above.
        let Some(attr) = (unsafe { attr.as_mut() }) else { return Err(null("struct fi_collective_attr")) };
        let unknown = |what: &str, number: u32| {
            let advice = "use one of fi_collective(3)";
            Error::wanted(Errno::EOPNOTSUPP, what, "one of C's header", number.to_string(), advice)
        };
        let kind = CollectiveKind::from_c(kind).ok_or_else(|| unknown("the collective", kind))?;
        let op = match kind.combines() {
            true => FiOp::from_c(attr.op).ok_or_else(|| unknown("the operation", attr.op))?,
            false => FiOp::Noop,
        };
        let datatype = match kind {
            CollectiveKind::Barrier => Datatype::Uint8,
            _ => Datatype::from_c(attr.datatype).ok_or_else(|| unknown("the data type", attr.datatype))?,
        };
        let found = domain.domain.query_collective(kind, op, datatype)?;
        (attr.datatype_attr, attr.max_members, attr.mode) = (found.datatype_attr, found.max_members, 0);
        Ok(())
    })
}
