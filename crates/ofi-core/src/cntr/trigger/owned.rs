//! An operation that outlives the call that submitted it: its own copy of everything except the memory to transfer.

use ofi_api::{
    AtomicKind, AtomicOp, CompletionFlags, Context, Datatype, DeferredOp, FiAddr, FiOp, Lent, OpFlags, Piece,
    ReceiveOp, RemotePiece, RmaOp, SendOp, TagMatch,
};

use ofi_api::Call;

/// A slice, usually of one element, which needs no allocation.
enum Few<T> {
    One([T; 1]),
    Many(Box<[T]>),
}

impl<T: Copy> Few<T> {
    #[inline]
    fn new(all: &[T]) -> Self {
        match all {
            [one] => Self::One([*one]),
            many => Self::Many(many.into()),
        }
    }

    #[inline]
    fn all(&self) -> &[T] {
        match self {
            Self::One(one) => one,
            Self::Many(many) => many,
        }
    }
}

#[derive(Clone, Copy)]
enum DeferredKind {
    Send,
    SendTagged,
    Receive,
    ReceiveTagged,
    Write,
    Read,
    Atomic,
}

/// The additional parts of atomics.
struct Arithmetic {
    kind: AtomicKind,
    op: FiOp,
    datatype: Datatype,
    compare: Few<Piece>,
    result: Few<Piece>,
}

/// A copy of a submitted operation, without the memory that it transfers.
pub struct Owned {
    kind: DeferredKind,
    call: Call,
    pieces: Few<Piece>,
    remote: Few<RemotePiece>,
    peer: FiAddr,
    context: Context,
    /// Remote CQ data, or the bits of the tag that are ignored.
    data: u64,
    tag: u64,
    flags: OpFlags,
    atomic: Option<Box<Arithmetic>>,
    /// A copy of the payload, to which `pieces` points.
    _kept: Option<Box<[u8]>>,
}

// SAFETY: the pieces were lent to the operation until it ends (`Lent::new`), whichever thread that happens on.
unsafe impl Send for Owned {}

impl Owned {
    /// A copy of `op`. With `keep`, also copies an injected operation's payload, whose memory belongs to the caller
    /// again when the call returns.
    pub fn new(op: &DeferredOp<'_>, keep: bool) -> Self {
        let nothing: &[RemotePiece] = &[];
        let (kind, buf, remote, peer) = match op {
            DeferredOp::Send(op) => (DeferredKind::Send, op.buf, nothing, op.dest),
            DeferredOp::SendTagged(op, _) => (DeferredKind::SendTagged, op.buf, nothing, op.dest),
            DeferredOp::Receive(op) => (DeferredKind::Receive, op.buf, nothing, op.source),
            DeferredOp::ReceiveTagged(op, _) => (DeferredKind::ReceiveTagged, op.buf, nothing, op.source),
            DeferredOp::Write(op) => (DeferredKind::Write, op.buf, op.remote, op.peer),
            DeferredOp::Read(op) => (DeferredKind::Read, op.buf, op.remote, op.peer),
            DeferredOp::Atomic(op) => (DeferredKind::Atomic, op.buf, op.remote, op.peer),
        };
        let (context, data, tag, flags, call) = match op {
            DeferredOp::Send(op) => (op.context, op.data, 0, op.flags, op.call),
            DeferredOp::SendTagged(op, tag) => (op.context, op.data, *tag, op.flags, op.call),
            DeferredOp::Receive(op) => (op.context, 0, 0, op.flags, op.call),
            DeferredOp::ReceiveTagged(op, tag) => (op.context, tag.ignore, tag.tag, op.flags, op.call),
            DeferredOp::Write(op) | DeferredOp::Read(op) => (op.context, op.data, 0, op.flags, op.call),
            DeferredOp::Atomic(op) => (op.context, 0, 0, op.flags, op.call),
        };
        let atomic = match op {
            DeferredOp::Atomic(op) => Some(Box::new(Arithmetic {
                kind: op.kind,
                op: op.op,
                datatype: op.datatype,
                compare: Few::new(op.compare.pieces()),
                result: Few::new(op.result.pieces()),
            })),
            _ => None,
        };
        let injected = call == Call::Inject || flags.contains(OpFlags::INJECT);
        let kept = (keep && injected).then(|| copied(&buf));
        let pieces = match &kept {
            Some(bytes) => Few::One([Piece::new(bytes.as_ptr().cast_mut(), bytes.len())]),
            None => Few::new(buf.pieces()),
        };
        let remote = if remote.is_empty() { Few::Many(Box::default()) } else { Few::new(remote) };
        Self { kind, call, pieces, remote, peer, context, data, tag, flags, atomic, _kept: kept }
    }

    /// The application's context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The flags of its completion.
    pub fn flags(&self) -> CompletionFlags {
        let message = CompletionFlags::MSG;
        match self.kind {
            DeferredKind::Send => CompletionFlags::SEND | message,
            DeferredKind::SendTagged => CompletionFlags::SEND | CompletionFlags::TAGGED,
            DeferredKind::Receive => CompletionFlags::RECV | message,
            DeferredKind::ReceiveTagged => CompletionFlags::RECV | CompletionFlags::TAGGED,
            DeferredKind::Write => CompletionFlags::RMA | CompletionFlags::WRITE,
            DeferredKind::Read => CompletionFlags::RMA | CompletionFlags::READ,
            DeferredKind::Atomic => {
                let base = self.atomic.as_ref().is_none_or(|atomic| atomic.kind == AtomicKind::Base);
                CompletionFlags::ATOMIC | if base { CompletionFlags::WRITE } else { CompletionFlags::READ }
            }
        }
    }

    /// The operation as submitted.
    #[inline]
    pub fn with<R>(&self, post: impl FnOnce(&DeferredOp<'_>) -> R) -> R {
        // SAFETY: the promise made for the operation of which this is a copy; for the library's own copy it holds
        // anyway.
        let buf = unsafe { Lent::new(self.pieces.all(), &[]) };
        let Self { peer, context, data, tag, flags, call, .. } = *self;
        let send = || SendOp { buf, dest: peer, context, data, flags, call };
        let receive = || ReceiveOp { buf, source: peer, context, flags, call };
        let rma = || RmaOp { buf, remote: self.remote.all(), peer, context, data, flags, call };
        match (self.kind, &self.atomic) {
            (DeferredKind::Send, _) => post(&DeferredOp::Send(send())),
            (DeferredKind::SendTagged, _) => post(&DeferredOp::SendTagged(send(), tag)),
            (DeferredKind::Receive, _) => post(&DeferredOp::Receive(receive())),
            (DeferredKind::ReceiveTagged, _) => {
                post(&DeferredOp::ReceiveTagged(receive(), TagMatch { tag, ignore: data }))
            }
            (DeferredKind::Write, _) => post(&DeferredOp::Write(rma())),
            (DeferredKind::Read, _) | (DeferredKind::Atomic, None) => post(&DeferredOp::Read(rma())),
            (DeferredKind::Atomic, Some(atomic)) => {
                // SAFETY: as above.
                let compare = unsafe { Lent::new(atomic.compare.all(), &[]) };
                // SAFETY: as above.
                let result = unsafe { Lent::new(atomic.result.all(), &[]) };
                post(&DeferredOp::Atomic(AtomicOp {
                    kind: atomic.kind,
                    op: atomic.op,
                    datatype: atomic.datatype,
                    buf,
                    compare,
                    result,
                    remote: self.remote.all(),
                    peer,
                    context,
                    flags,
                    call,
                }))
            }
        }
    }
}

/// The bytes of lent memory.
fn copied(lent: &Lent<'_>) -> Box<[u8]> {
    let mut bytes = vec![0u8; lent.len()];
    // SAFETY: the pieces are lent during the call that posts the operation, and the vector is as long.
    unsafe { crate::copy::gather(lent.pieces(), 0, bytes.as_mut_ptr(), bytes.len()) };
    bytes.into()
}
