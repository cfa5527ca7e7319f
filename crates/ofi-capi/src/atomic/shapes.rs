//! The three shapes of a call: one buffer per side, a vector per side, or a message structure.

use std::ffi::c_void;

use ofi_api::{AtomicKind, AtomicOp, Call, Context, FiAddr, Lent, OpFlags, RemotePiece, Result};

use super::buffers::{Iov, MAX_PIECES, Many, Verb};
use crate::abi::{fi_msg_atomic, fi_rma_ioc, fid_ep};
use crate::ffi_guard::{invalid, null, transfer};
use crate::object;
use crate::posting::{One, context, of, vector};
use crate::state::EpBody;

/// The arguments that all calls share. The local memory is passed separately.
#[derive(Clone, Copy)]
struct Posting<'a> {
    kind: AtomicKind,
    verb: Verb,
    remote: &'a [RemotePiece],
    peer: u64,
    context: Context,
    /// The flags of a msg call. `None`: the endpoint's own flags apply.
    flags: Option<u64>,
    inject: bool,
}

impl<'a> Posting<'a> {
    /// A call without flags of its own.
    #[inline(always)]
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
        ep.atomic(&self.op(ep, buf, compare, result))
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

/// A buffer of a call and its descriptor. `None` if the call has no such buffer.
pub(super) type LocalBuffer = Option<(*const c_void, *mut c_void)>;

/// The remote side of a call: peer, address and key.
#[derive(Clone, Copy)]
pub(super) struct Far(pub u64, pub u64, pub u64);

impl Far {
    #[inline(always)]
    fn piece(self, len: usize) -> [RemotePiece; 1] {
        [RemotePiece { addr: self.1, len, key: self.2 }]
    }
}

/// Posts any call with one buffer per side, given as buffer and descriptor.
///
/// # Safety
/// The C caller's promise: the memory is lent until the completion, or, injected, until the call returns.
#[inline(always)]
#[allow(clippy::too_many_arguments)] // C's calls have up to 14
pub(super) unsafe fn single(
    ep: *mut fid_ep,
    kind: AtomicKind,
    (datatype, op): (u32, u32),
    count: usize,
    [buf, compare, result]: [LocalBuffer; 3],
    far: Far,
    op_context: *mut c_void,
    inject: bool,
) -> isize {
    // As in `posting::with_one`, errors are returned at once.
    // SAFETY: the same promise, here and below.
    let Some(ep) = (unsafe { object::alive(ep) }) else { return unsafe { object::stale(ep) } };
    let Some((verb, len)) = Verb::with_bytes(datatype, op, count) else {
        return unknown(datatype, op, count);
    };
    let one = |side: LocalBuffer| side.map(|(buf, desc)| One::new(buf, len, desc));
    let (buf, compare, result) = (one(buf), one(compare), one(result));
    let remote = far.piece(len);
    let posting = Posting { inject, ..Posting::new(kind, verb, far.0, &remote, op_context) };
    // SAFETY: as above.
    let (buf, compare) = (unsafe { lent(&buf) }, unsafe { lent(&compare) });
    // SAFETY: as above.
    let op = posting.op(ep, buf, compare, unsafe { lent(&result) });
    transfer(|| ep.atomic(&op))
}

/// # Safety
/// The promise of [`Lent::new`], which a C program makes by its call.
#[inline(always)]
unsafe fn lent(side: &Option<One>) -> Lent<'_> {
    // SAFETY: the same promise.
    side.as_ref().map_or(Lent::EMPTY, |one| unsafe { one.lend_if_any() })
}

/// The error for arguments that [`Verb::with_bytes`] rejects.
#[cold]
#[inline(never)]
fn unknown(datatype: u32, op: u32, count: usize) -> isize {
    transfer(|| Verb::new(datatype, op)?.bytes(count).map(drop))
}

/// Posts any call with vectors of buffers.
///
/// # Safety
/// As [`single`].
pub(super) unsafe fn vectors(
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
        // The result, if there is one, determines the length: a read has no operand.
        let counted = if kind == AtomicKind::Base { buf } else { result };
        // SAFETY: as above.
        let remote = far.piece(verb.bytes(unsafe { counted.elements()? })?);
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

/// Passes the operation that a message structure and the vectors describe to `then`.
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
    if list.len() > MAX_PIECES {
        return Err(invalid("rma_iov", &format!("at most {MAX_PIECES}"), list.len().to_string()));
    }
    let mut remote = [RemotePiece { addr: 0, len: 0, key: 0 }; MAX_PIECES];
    for (out, ioc) in remote.iter_mut().zip(list) {
        *out = RemotePiece { addr: ioc.addr, len: verb.bytes(ioc.count)?, key: ioc.key };
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

/// Posts any of the three msg calls.
///
/// # Safety
/// As [`single`].
pub(super) unsafe fn message(
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
        unsafe { with_message(ep, msg.cast(), kind, sides, flags, |op| ep.atomic(&op)) }
    })
}
