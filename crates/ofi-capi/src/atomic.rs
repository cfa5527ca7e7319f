//! Atomic operations. C counts elements, the library bytes.

use std::ffi::{c_int, c_void};

use ofi_api::{
    AtomicKind, AtomicOp, Call, Context, Datatype, Desc, Errno, Error, FiAddr, FiOp, Lent, OpFlags, Piece,
    RemotePiece, Result,
};

use crate::abi::{fi_ioc, fi_msg_atomic, fi_ops_atomic, fi_rma_ioc, fid_domain, fid_ep};
use crate::border::{self, invalid, null, transfer};
use crate::domain;
use crate::msg::{context, of, vector};

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write,
    writev,
    writemsg,
    inject,
    readwrite,
    readwritev,
    readwritemsg,
    compwrite,
    compwritev,
    compwritemsg,
    writevalid,
    readwritevalid,
    compwritevalid,
};

/// Most pieces of a vector: any limit of an endpoint is below.
const MOST: usize = 16;
/// `FI_FETCH_ATOMIC` and `FI_COMPARE_ATOMIC`.
const FETCH: u64 = 1 << 58;
const COMPARE: u64 = 1 << 59;

/// What is done, to which type.
#[derive(Clone, Copy)]
struct Verb {
    datatype: Datatype,
    op: FiOp,
}

impl Verb {
    fn new(datatype: u32, op: u32) -> Result<Self> {
        let unknown = |what: &str, number: u32| {
            let advice = "use one that fi_query_atomic knows";
            Error::wanted(Errno::EOPNOTSUPP, what, "one of C's header", number.to_string(), advice)
        };
        Ok(Self {
            datatype: Datatype::from_c(datatype).ok_or_else(|| unknown("the data type", datatype))?,
            op: FiOp::from_c(op).ok_or_else(|| unknown("the operation", op))?,
        })
    }

    fn bytes(self, count: usize) -> Result<usize> {
        let size = self.datatype.size();
        count.checked_mul(size).ok_or_else(|| invalid("count", "less", count.to_string()))
    }
}

/// Memory of C, counted in bytes.
struct Memory {
    pieces: [Piece; MOST],
    descs: [Desc; MOST],
    count: usize,
    described: bool,
}

impl Memory {
    const NONE: Self = Self {
        pieces: [Piece::new(std::ptr::null_mut(), 0); MOST],
        descs: [Desc::NONE; MOST],
        count: 0,
        described: false,
    };

    /// One buffer. Null is none: `FI_ATOMIC_READ` has no operand.
    fn one(verb: Verb, buf: *const c_void, count: usize, desc: *mut c_void) -> Result<Self> {
        let mut memory = Self::NONE;
        if buf.is_null() {
            return Ok(memory);
        }
        memory.pieces[0] = Piece::new(buf.cast_mut().cast(), verb.bytes(count)?);
        memory.descs[0] = Desc(desc.addr());
        (memory.count, memory.described) = (1, !desc.is_null());
        Ok(memory)
    }

    /// A vector of buffers.
    ///
    /// # Safety
    /// The C caller's promise.
    unsafe fn many(verb: Verb, iov: *const fi_ioc, desc: *const *mut c_void, count: usize) -> Result<Self> {
        let mut memory = Self::NONE;
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_ioc>("the buffers", iov, count)? };
        if list.len() > MOST {
            return Err(invalid("the buffers", &format!("at most {MOST}"), list.len().to_string()));
        }
        for (place, ioc) in memory.pieces.iter_mut().zip(list) {
            let len = verb.bytes(ioc.count)?;
            *place = Piece::new(ioc.addr.cast(), if ioc.addr.is_null() { 0 } else { len });
        }
        if !desc.is_null() {
            // SAFETY: as above; `Desc` is laid out like a pointer.
            let descs = unsafe { vector::<Desc>("desc", desc.cast(), count)? };
            memory.descs[..descs.len()].copy_from_slice(descs);
            memory.described = true;
        }
        memory.count = list.len();
        Ok(memory)
    }

    /// # Safety
    /// The promise of [`Lent::new`], which a C program makes by its call.
    unsafe fn lend(&self) -> Lent<'_> {
        let descs = if self.described { &self.descs[..self.count] } else { &[] };
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.pieces[..self.count], descs) }
    }
}

/// The peer's memory.
struct Remote {
    pieces: [RemotePiece; MOST],
    count: usize,
}

impl Remote {
    /// One piece of `count` elements.
    fn one(verb: Verb, addr: u64, key: u64, count: usize) -> Result<Self> {
        let mut pieces = [RemotePiece { addr: 0, len: 0, key: 0 }; MOST];
        pieces[0] = RemotePiece { addr, len: verb.bytes(count)?, key };
        Ok(Self { pieces, count: 1 })
    }

    /// # Safety
    /// The C caller's promise.
    unsafe fn many(verb: Verb, iov: *const fi_rma_ioc, count: usize) -> Result<Self> {
        let mut pieces = [RemotePiece { addr: 0, len: 0, key: 0 }; MOST];
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_rma_ioc>("rma_iov", iov, count)? };
        if list.len() > MOST {
            return Err(invalid("rma_iov", &format!("at most {MOST}"), list.len().to_string()));
        }
        for (place, ioc) in pieces.iter_mut().zip(list) {
            *place = RemotePiece { addr: ioc.addr, len: verb.bytes(ioc.count)?, key: ioc.key };
        }
        Ok(Self { pieces, count: list.len() })
    }
}

/// How many elements a vector has.
///
/// # Safety
/// The C caller's promise.
unsafe fn elements(iov: *const fi_ioc, count: usize) -> Result<usize> {
    // SAFETY: the same promise.
    let list = unsafe { vector::<fi_ioc>("the buffers", iov, count)? };
    Ok(list.iter().fold(0, |sum, ioc| sum.saturating_add(ioc.count)))
}

/// An operation, and the memory of C that it works on.
struct Posting<'a> {
    kind: AtomicKind,
    verb: Verb,
    buf: &'a Memory,
    compare: &'a Memory,
    result: &'a Memory,
    remote: &'a Remote,
    peer: u64,
    context: Context,
    /// Flags of a msg call; otherwise the endpoint's own hold.
    flags: Option<u64>,
    inject: bool,
}

impl Posting<'_> {
    /// # Safety
    /// The C caller's promise: the memory is lent until the completion, or, injected, until the call returns.
    unsafe fn post(self, ep: *mut fid_ep) -> Result<()> {
        // SAFETY: the same promise, here and below.
        let ep = unsafe { of(ep)? };
        let (flags, call) = match (self.flags, self.inject) {
            (_, true) => (OpFlags::empty(), Call::Inject),
            (Some(flags), _) => (OpFlags::from_bits_retain(flags), Call::Msg),
            (None, _) => (ep.tx.flags, ep.tx.call),
        };
        // SAFETY: as above.
        let buf = unsafe { self.buf.lend() };
        // SAFETY: as above.
        let compare = unsafe { self.compare.lend() };
        // SAFETY: as above.
        let result = unsafe { self.result.lend() };
        ep.endpoint.atomic(&AtomicOp {
            kind: self.kind,
            op: self.verb.op,
            datatype: self.verb.datatype,
            buf,
            compare,
            result,
            remote: &self.remote.pieces[..self.remote.count],
            peer: FiAddr(self.peer),
            context: self.context,
            flags,
            call,
        })
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        let call = Posting {
            kind: AtomicKind::Base,
            verb,
            buf: &Memory::one(verb, buf, count, desc)?,
            compare: &Memory::NONE,
            result: &Memory::NONE,
            remote: &Remote::one(verb, addr, key, count)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: the C caller's promise.
        unsafe { call.post(ep) }
    })
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        // SAFETY: the C caller's promise, here and below.
        let total = unsafe { elements(iov.cast(), count)? };
        let call = Posting {
            kind: AtomicKind::Base,
            verb,
            // SAFETY: as above.
            buf: &unsafe { Memory::many(verb, iov.cast(), desc, count)? },
            compare: &Memory::NONE,
            result: &Memory::NONE,
            remote: &Remote::one(verb, addr, key, total)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: as above.
        unsafe { call.post(ep) }
    })
}

/// Vectors of the msg calls beside the message itself.
struct Sides {
    compare: (*const fi_ioc, *const *mut c_void, usize),
    result: (*const fi_ioc, *const *mut c_void, usize),
}

/// Nothing beside the message.
const NO_SIDE: (*const fi_ioc, *const *mut c_void, usize) = (std::ptr::null(), std::ptr::null(), 0);

/// All three msg calls.
///
/// # Safety
/// The C caller's promise.
unsafe fn message(
    ep: *mut fid_ep,
    msg: *const c_void,
    kind: AtomicKind,
    sides: Sides,
    flags: u64,
) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let msg = unsafe { msg.cast::<fi_msg_atomic>().as_ref() }.ok_or_else(|| null("struct fi_msg_atomic"))?;
    let verb = Verb::new(msg.datatype, msg.op)?;
    let call = Posting {
        kind,
        verb,
        // SAFETY: as above.
        buf: &unsafe { Memory::many(verb, msg.msg_iov, msg.desc, msg.iov_count)? },
        // SAFETY: as above.
        compare: &unsafe { Memory::many(verb, sides.compare.0, sides.compare.1, sides.compare.2)? },
        // SAFETY: as above.
        result: &unsafe { Memory::many(verb, sides.result.0, sides.result.1, sides.result.2)? },
        // SAFETY: as above.
        remote: &unsafe { Remote::many(verb, msg.rma_iov, msg.rma_iov_count)? },
        peer: msg.addr,
        context: context(msg.context),
        flags: Some(flags),
        inject: false,
    };
    // SAFETY: as above.
    unsafe { call.post(ep) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const c_void, flags: u64) -> isize {
    let sides = Sides { compare: NO_SIDE, result: NO_SIDE };
    // SAFETY: the C caller's promise.
    transfer(|| unsafe { message(ep, msg, AtomicKind::Base, sides, flags) })
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const c_void,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = (result.cast_const().cast(), result_desc.cast_const(), result_count);
    let sides = Sides { compare: NO_SIDE, result };
    // SAFETY: the C caller's promise.
    transfer(|| unsafe { message(ep, msg, AtomicKind::Fetch, sides, flags) })
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const c_void,
    compare: *const c_void,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let compare = (compare.cast(), compare_desc.cast_const(), compare_count);
    let result = (result.cast_const().cast(), result_desc.cast_const(), result_count);
    // SAFETY: the C caller's promise.
    transfer(|| unsafe { message(ep, msg, AtomicKind::Compare, Sides { compare, result }, flags) })
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        let call = Posting {
            kind: AtomicKind::Base,
            verb,
            buf: &Memory::one(verb, buf, count, std::ptr::null_mut())?,
            compare: &Memory::NONE,
            result: &Memory::NONE,
            remote: &Remote::one(verb, addr, key, count)?,
            peer,
            context: Context::NULL,
            flags: None,
            inject: true,
        };
        // SAFETY: the C caller's promise.
        unsafe { call.post(ep) }
    })
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        let call = Posting {
            kind: AtomicKind::Fetch,
            verb,
            buf: &Memory::one(verb, buf, count, desc)?,
            compare: &Memory::NONE,
            result: &Memory::one(verb, result, count, result_desc)?,
            remote: &Remote::one(verb, addr, key, count)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: the C caller's promise.
        unsafe { call.post(ep) }
    })
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        // SAFETY: the C caller's promise, here and below. The result says how much, for a read has no operand.
        let total = unsafe { elements(result.cast_const().cast(), result_count)? };
        let call = Posting {
            kind: AtomicKind::Fetch,
            verb,
            // SAFETY: as above.
            buf: &unsafe { Memory::many(verb, iov.cast(), desc, count)? },
            compare: &Memory::NONE,
            // SAFETY: as above.
            result: &unsafe { Memory::many(verb, result.cast_const().cast(), result_desc, result_count)? },
            remote: &Remote::one(verb, addr, key, total)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: as above.
        unsafe { call.post(ep) }
    })
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    desc: *mut c_void,
    compare: *const c_void,
    compare_desc: *mut c_void,
    result: *mut c_void,
    result_desc: *mut c_void,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        let call = Posting {
            kind: AtomicKind::Compare,
            verb,
            buf: &Memory::one(verb, buf, count, desc)?,
            compare: &Memory::one(verb, compare, count, compare_desc)?,
            result: &Memory::one(verb, result, count, result_desc)?,
            remote: &Remote::one(verb, addr, key, count)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: the C caller's promise.
        unsafe { call.post(ep) }
    })
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const c_void,
    desc: *mut *mut c_void,
    count: usize,
    compare: *const c_void,
    compare_desc: *mut *mut c_void,
    compare_count: usize,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    peer: u64,
    addr: u64,
    key: u64,
    datatype: u32,
    op: u32,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        // SAFETY: the C caller's promise, here and below.
        let total = unsafe { elements(result.cast_const().cast(), result_count)? };
        let call = Posting {
            kind: AtomicKind::Compare,
            verb,
            // SAFETY: as above.
            buf: &unsafe { Memory::many(verb, iov.cast(), desc, count)? },
            // SAFETY: as above.
            compare: &unsafe { Memory::many(verb, compare.cast(), compare_desc, compare_count)? },
            // SAFETY: as above.
            result: &unsafe { Memory::many(verb, result.cast_const().cast(), result_desc, result_count)? },
            remote: &Remote::one(verb, addr, key, total)?,
            peer,
            context: context(op_context),
            flags: None,
            inject: false,
        };
        // SAFETY: as above.
        unsafe { call.post(ep) }
    })
}

/// # Safety
/// The C caller's promise.
unsafe fn valid(ep: *mut fid_ep, kind: AtomicKind, datatype: u32, op: u32, count: *mut usize) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let ep = unsafe { of(ep)? };
    let verb = Verb::new(datatype, op)?;
    let most = ep.endpoint.atomic_valid(kind, verb.op, verb.datatype)?;
    if count.is_null() {
        return Err(null("the place of the count"));
    }
    // SAFETY: as above.
    unsafe { count.write(most) };
    Ok(())
}

unsafe extern "C" fn writevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller's promise.
    border::done(|| unsafe { valid(ep, AtomicKind::Base, datatype, op, count) })
}

unsafe extern "C" fn readwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller's promise.
    border::done(|| unsafe { valid(ep, AtomicKind::Fetch, datatype, op, count) })
}

unsafe extern "C" fn compwritevalid(ep: *mut fid_ep, datatype: u32, op: u32, count: *mut usize) -> c_int {
    // SAFETY: the C caller's promise.
    border::done(|| unsafe { valid(ep, AtomicKind::Compare, datatype, op, count) })
}

/// `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut fid_domain,
    datatype: u32,
    op: u32,
    attr: *mut c_void,
    flags: u64,
) -> c_int {
    border::done(|| {
        // SAFETY: the C caller's promise, here and below.
        let domain = unsafe { domain::of(domain)? };
        let kind = match flags {
            0 => AtomicKind::Base,
            FETCH => AtomicKind::Fetch,
            COMPARE => AtomicKind::Compare,
            other => {
                return Err(Error::wanted(
                    Errno::EBADFLAGS,
                    "the flags of fi_query_atomic",
                    "FI_FETCH_ATOMIC, FI_COMPARE_ATOMIC or none",
                    format!("{other:#x}"),
                    "ask for one kind at a time",
                ));
            }
        };
        let verb = Verb::new(datatype, op)?;
        let found = domain.domain.query_atomic(kind, verb.op, verb.datatype)?;
        if attr.is_null() {
            return Err(null("struct fi_atomic_attr"));
        }
        // SAFETY: as above; `AtomicAttr` is laid out like C's.
        unsafe { attr.cast::<ofi_api::AtomicAttr>().write_unaligned(found) };
        Ok(())
    })
}
