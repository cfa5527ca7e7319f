//! Atomic operations. C counts elements, the library bytes.

use std::ffi::{c_int, c_void};

use ofi_api::{
    AtomicKind, AtomicOp, Call, Context, Datatype, Desc, Errno, Error, FiAddr, FiOp, Lent, OpFlags, Piece,
    RemotePiece, Result,
};

use crate::abi::{fi_ioc, fi_msg_atomic, fi_ops_atomic, fi_rma_ioc, fid_domain, fid_ep};
use crate::border::{self, invalid, null, transfer};
use crate::domain;
use crate::endpoint::EpBody;
use crate::posting::{One, context, descriptors, of, vector};

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

/// One buffer of C; null is none, since `FI_ATOMIC_READ` has no operand.
#[inline(always)]
fn one(verb: Verb, buf: *const c_void, count: usize, desc: *mut c_void) -> Result<One> {
    One::new(buf, if buf.is_null() { 0 } else { verb.bytes(count)? }, desc)
}

/// A vector of buffers of C, counted in bytes.
struct Many<'a> {
    pieces: [Piece; MOST],
    count: usize,
    descs: &'a [Desc],
}

impl<'a> Many<'a> {
    /// # Safety
    /// The C caller's promise.
    unsafe fn new(verb: Verb, Iov(iov, desc, count): Iov) -> Result<Self> {
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_ioc>("the buffers", iov, count)? };
        if list.len() > MOST {
            return Err(invalid("the buffers", &format!("at most {MOST}"), list.len().to_string()));
        }
        let mut pieces = [Piece::new(std::ptr::null_mut(), 0); MOST];
        for (place, ioc) in pieces.iter_mut().zip(list) {
            let len = verb.bytes(ioc.count)?;
            *place = Piece::new(ioc.addr.cast(), if ioc.addr.is_null() { 0 } else { len });
        }
        // SAFETY: the same promise.
        Ok(Self { pieces, count: list.len(), descs: unsafe { descriptors(desc, count)? } })
    }

    /// # Safety
    /// The promise of [`Lent::new`], which a C program makes by its call.
    unsafe fn lend(&self) -> Lent<'_> {
        // SAFETY: the same promise.
        unsafe { Lent::new(&self.pieces[..self.count], self.descs) }
    }
}

/// A vector as C gives it: buffers, their descriptors, how many.
#[derive(Clone, Copy)]
pub(crate) struct Iov(pub *const fi_ioc, pub *const *mut c_void, pub usize);

impl Iov {
    pub(crate) const NONE: Self = Self(std::ptr::null(), std::ptr::null(), 0);

    /// How many elements it has.
    ///
    /// # Safety
    /// The C caller's promise.
    unsafe fn elements(self) -> Result<usize> {
        // SAFETY: the same promise.
        let list = unsafe { vector::<fi_ioc>("the buffers", self.0, self.2)? };
        Ok(list.iter().fold(0, |sum, ioc| sum.saturating_add(ioc.count)))
    }
}

/// An operation: what all calls say of it. The local memory comes with the call.
#[derive(Clone, Copy)]
struct Posting<'a> {
    kind: AtomicKind,
    verb: Verb,
    remote: &'a [RemotePiece],
    peer: u64,
    context: Context,
    /// Flags of a msg call; otherwise the endpoint's own hold.
    flags: Option<u64>,
    inject: bool,
}

impl<'a> Posting<'a> {
    /// A call without flags of its own.
    fn new(
        kind: AtomicKind,
        verb: Verb,
        peer: u64,
        remote: &'a [RemotePiece],
        op_context: *mut c_void,
    ) -> Self {
        Self { kind, verb, remote, peer, context: context(op_context), flags: None, inject: false }
    }

    #[inline(always)]
    fn post(self, ep: &EpBody, buf: Lent<'_>, compare: Lent<'_>, result: Lent<'_>) -> Result<()> {
        ep.atomic(self.op(ep, buf, compare, result))
    }

    #[inline(always)]
    fn op<'b>(self, ep: &EpBody, buf: Lent<'b>, compare: Lent<'b>, result: Lent<'b>) -> AtomicOp<'b>
    where
        'a: 'b,
    {
        let (flags, call) = match (self.flags, self.inject) {
            (_, true) => (OpFlags::empty(), Call::Inject),
            (Some(flags), _) => (OpFlags::from_bits_retain(flags), Call::Msg),
            (None, _) => (ep.tx.flags, ep.tx.call),
        };
        let Self { kind, verb: Verb { datatype, op }, remote, peer, context, .. } = self;
        let peer = FiAddr(peer);
        AtomicOp { kind, op, datatype, buf, compare, result, remote, peer, context, flags, call }
    }
}

/// What a call with one buffer for each side has.
struct Ones {
    buf: One,
    compare: One,
    result: One,
}

/// A buffer that a call does not have.
const NO_BUFFER: (*const c_void, *mut c_void) = (std::ptr::null(), std::ptr::null_mut());

/// The peer's side of a call: who, where, and by which key.
#[derive(Clone, Copy)]
struct Far(u64, u64, u64);

impl Far {
    fn piece(self, verb: Verb, count: usize) -> Result<[RemotePiece; 1]> {
        Ok([RemotePiece { addr: self.1, len: verb.bytes(count)?, key: self.2 }])
    }
}

/// All calls with one buffer for each side: buffer and descriptor of each.
///
/// # Safety
/// The C caller's promise: the memory is lent until the completion, or, injected, until the call returns.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // C's calls have up to 14
unsafe fn single(
    ep: *mut fid_ep,
    kind: AtomicKind,
    (datatype, op): (u32, u32),
    count: usize,
    [buf, compare, result]: [(*const c_void, *mut c_void); 3],
    far: Far,
    op_context: *mut c_void,
    inject: bool,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        // SAFETY: the same promise, here and below.
        let ep = unsafe { of(ep)? };
        let side = |(buf, desc): (*const c_void, *mut c_void)| one(verb, buf, count, desc);
        let ones = Ones { buf: side(buf)?, compare: side(compare)?, result: side(result)? };
        let remote = far.piece(verb, count)?;
        let posting = Posting { inject, ..Posting::new(kind, verb, far.0, &remote, op_context) };
        // SAFETY: as above.
        let buf = unsafe { ones.buf.lend_if_any() };
        // SAFETY: as above.
        let compare = unsafe { ones.compare.lend_if_any() };
        // SAFETY: as above.
        posting.post(ep, buf, compare, unsafe { ones.result.lend_if_any() })
    })
}

/// All calls with vectors of buffers.
///
/// # Safety
/// As [`single`].
unsafe fn vectors(
    ep: *mut fid_ep,
    kind: AtomicKind,
    (datatype, op): (u32, u32),
    [buf, compare, result]: [Iov; 3],
    far: Far,
    op_context: *mut c_void,
) -> isize {
    transfer(|| {
        let verb = Verb::new(datatype, op)?;
        // SAFETY: the same promise, here and below.
        let ep = unsafe { of(ep)? };
        // The result says how much, where there is one: a read has no operand.
        let counted = if kind == AtomicKind::Base { buf } else { result };
        // SAFETY: as above.
        let remote = far.piece(verb, unsafe { counted.elements()? })?;
        let posting = Posting::new(kind, verb, far.0, &remote, op_context);
        // SAFETY: as above.
        let buf = unsafe { Many::new(verb, buf)? };
        // SAFETY: as above.
        let compare = unsafe { Many::new(verb, compare)? };
        // SAFETY: as above.
        let result = unsafe { Many::new(verb, result)? };
        // SAFETY: as above.
        let (buf, compare) = (unsafe { buf.lend() }, unsafe { compare.lend() });
        // SAFETY: as above.
        posting.post(ep, buf, compare, unsafe { result.lend() })
    })
}

/// Has `then` take the operation that a message structure describes, with the vectors beside it.
///
/// # Errors
/// Those of the arguments, and of `then`.
///
/// # Safety
/// As [`single`].
pub(crate) unsafe fn with_message(
    ep: &EpBody,
    msg: *const fi_msg_atomic,
    kind: AtomicKind,
    [compare, result]: [Iov; 2],
    flags: u64,
    then: impl FnOnce(AtomicOp<'_>) -> Result<()>,
) -> Result<()> {
    // SAFETY: the same promise, here and below.
    let msg = unsafe { msg.as_ref() }.ok_or_else(|| null("struct fi_msg_atomic"))?;
    let verb = Verb::new(msg.datatype, msg.op)?;
    // SAFETY: as above.
    let list = unsafe { vector::<fi_rma_ioc>("rma_iov", msg.rma_iov, msg.rma_iov_count)? };
    if list.len() > MOST {
        return Err(invalid("rma_iov", &format!("at most {MOST}"), list.len().to_string()));
    }
    let mut remote = [RemotePiece { addr: 0, len: 0, key: 0 }; MOST];
    for (place, ioc) in remote.iter_mut().zip(list) {
        *place = RemotePiece { addr: ioc.addr, len: verb.bytes(ioc.count)?, key: ioc.key };
    }
    let posting = Posting {
        flags: Some(flags),
        ..Posting::new(kind, verb, msg.addr, &remote[..list.len()], msg.context)
    };
    // SAFETY: as above.
    let buf = unsafe { Many::new(verb, Iov(msg.msg_iov, msg.desc, msg.iov_count))? };
    // SAFETY: as above.
    let compare = unsafe { Many::new(verb, compare)? };
    // SAFETY: as above.
    let result = unsafe { Many::new(verb, result)? };
    // SAFETY: as above.
    let (buf, compare) = (unsafe { buf.lend() }, unsafe { compare.lend() });
    // SAFETY: as above.
    then(posting.op(ep, buf, compare, unsafe { result.lend() }))
}

/// All three msg calls.
///
/// # Safety
/// As [`single`].
unsafe fn message(
    ep: *mut fid_ep,
    msg: *const c_void,
    kind: AtomicKind,
    sides: [Iov; 2],
    flags: u64,
) -> isize {
    transfer(|| {
        // SAFETY: the same promise, here and below.
        let ep = unsafe { of(ep)? };
        // SAFETY: as above.
        unsafe { with_message(ep, msg.cast(), kind, sides, flags, |op| ep.atomic(op)) }
    })
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
    context: *mut c_void,
) -> isize {
    let (verb, sides, far) = ((datatype, op), [(buf, desc), NO_BUFFER, NO_BUFFER], Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Base, verb, count, sides, far, context, false) }
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
    let none = std::ptr::null_mut();
    let (verb, sides, far) = ((datatype, op), [(buf, none), NO_BUFFER, NO_BUFFER], Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Base, verb, count, sides, far, none, true) }
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
    context: *mut c_void,
) -> isize {
    let sides = [(buf, desc), NO_BUFFER, (result.cast_const(), result_desc)];
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Fetch, verb, count, sides, far, context, false) }
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
    context: *mut c_void,
) -> isize {
    let sides = [(buf, desc), (compare, compare_desc), (result.cast_const(), result_desc)];
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    // SAFETY: the C caller's promise.
    unsafe { single(ep, AtomicKind::Compare, verb, count, sides, far, context, false) }
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
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let sides = [Iov(iov.cast(), desc, count), Iov::NONE, Iov::NONE];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Base, verb, sides, far, context) }
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
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    let sides = [Iov(iov.cast(), desc, count), Iov::NONE, result];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Fetch, verb, sides, far, context) }
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
    context: *mut c_void,
) -> isize {
    let (verb, far) = ((datatype, op), Far(peer, addr, key));
    let compare = Iov(compare.cast(), compare_desc, compare_count);
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    let sides = [Iov(iov.cast(), desc, count), compare, result];
    // SAFETY: the C caller's promise.
    unsafe { vectors(ep, AtomicKind::Compare, verb, sides, far, context) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const c_void, flags: u64) -> isize {
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Base, [Iov::NONE; 2], flags) }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const c_void,
    result: *mut c_void,
    result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Fetch, [Iov::NONE, result], flags) }
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
    let compare = Iov(compare.cast(), compare_desc, compare_count);
    let result = Iov(result.cast_const().cast(), result_desc, result_count);
    // SAFETY: the C caller's promise.
    unsafe { message(ep, msg, AtomicKind::Compare, [compare, result], flags) }
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
