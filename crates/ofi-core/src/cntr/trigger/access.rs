//! A triggered remote access of one piece, which is the common case. It is checked when it is submitted, and stored in
//! the form in which it will be posted.

use ofi_api::{Call, CompletionFlags, Context, DeferredOp, FiAddr, Lent, OpFlags, Piece, RemotePiece, RmaOp};

/// A triggered remote access of one piece, checked and ready to be posted.
pub struct Access {
    local: [Piece; 1],
    remote: [RemotePiece; 1],
    peer: FiAddr,
    context: Context,
    data: u64,
    /// The checked flags, with the endpoint's defaults.
    flags: OpFlags,
    signal: bool,
    write: bool,
}

impl Access {
    /// A copy of `op`, if it is such an access. Injected ones are excluded, because the caller may reuse their memory
    /// at once.
    #[inline]
    pub fn of(op: &DeferredOp<'_>, flags: OpFlags, signal: bool) -> Option<Self> {
        let (op, write) = match op {
            DeferredOp::Write(op) => (op, true),
            DeferredOp::Read(op) => (op, false),
            _ => return None,
        };
        let (&[local], &[remote]) = (op.buf.pieces(), op.remote) else { return None };
        if op.call == Call::Inject || flags.contains(OpFlags::INJECT) {
            return None;
        }
        let RmaOp { peer, context, data, .. } = *op;
        Some(Self { local: [local], remote: [remote], peer, context, data, flags, signal, write })
    }

    /// The application's context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The flags of its completion.
    pub fn flags(&self) -> CompletionFlags {
        CompletionFlags::RMA | if self.write { CompletionFlags::WRITE } else { CompletionFlags::READ }
    }

    /// The operation, whether it writes, and the results of its checks: flags, whether its completion is reported, and
    /// its length.
    #[inline]
    pub fn with<R>(&self, post: impl FnOnce(&RmaOp<'_>, bool, (OpFlags, bool, usize)) -> R) -> R {
        let Self { peer, context, data, flags, signal, write, .. } = *self;
        // SAFETY: the promise made for the operation of which this is a copy: its memory is lent until it ends.
        let buf = unsafe { Lent::new(&self.local, &[]) };
        let op = RmaOp { buf, remote: &self.remote, peer, context, data, flags, call: Call::Msg };
        post(&op, write, (flags, signal, self.local[0].len))
    }
}
