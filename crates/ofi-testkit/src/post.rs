//! Posts operations from a test: options have defaults, and the memory is kept until the endpoint closes.

use ofi::raw::{
    AtomicOp, Call, Context, Datatype, FiAddr, FiOp, Lent, OpFlags, Piece, ReceiveOp, RemotePiece, Result,
    RmaOp, SendOp, TagMatch,
};

use crate::memory::{Buffers, Slice};
use crate::side::TestEndpoint;

/// A send, write or read to post.
#[derive(Clone)]
#[must_use]
pub struct Out<'a> {
    side: &'a TestEndpoint,
    to: FiAddr,
    buffers: Buffers,
    context: Context,
    data: Option<u64>,
    tag: Option<u64>,
    flags: OpFlags,
    call: Call,
}

/// A receive or a search to post.
#[derive(Clone)]
#[must_use]
pub struct In<'a> {
    side: &'a TestEndpoint,
    buffers: Buffers,
    source: FiAddr,
    context: Context,
    tag: Option<TagMatch>,
    flags: OpFlags,
    call: Call,
}

impl TestEndpoint {
    /// An operation from or into `buffers` with peer `to`.
    pub fn out(&self, to: FiAddr, buffers: impl Into<Buffers>) -> Out<'_> {
        Out {
            side: self,
            to,
            buffers: buffers.into(),
            context: Context::NULL,
            data: None,
            tag: None,
            flags: OpFlags::empty(),
            call: Call::Plain,
        }
    }

    /// A receive into `buffers`.
    pub fn receive(&self, buffers: impl Into<Buffers>) -> In<'_> {
        In {
            side: self,
            buffers: buffers.into(),
            source: FiAddr::UNSPEC,
            context: Context::NULL,
            tag: None,
            flags: OpFlags::empty(),
            call: Call::Plain,
        }
    }
}

fn pieces(buffers: &Buffers) -> Vec<Piece> {
    buffers.0.iter().map(Slice::piece).collect()
}

impl Out<'_> {
    /// Sets its context.
    pub fn context(mut self, context: usize) -> Self {
        self.context = Context(context);
        self
    }

    /// Sets remote CQ data.
    pub fn data(mut self, data: u64) -> Self {
        self.data = Some(data);
        self
    }

    /// Makes it a tagged message.
    pub fn tag(mut self, tag: u64) -> Self {
        self.tag = Some(tag);
        self
    }

    /// Makes it a call like `fi_sendmsg`, whose flags replace the endpoint's.
    pub fn msg(mut self, flags: OpFlags) -> Self {
        (self.call, self.flags) = (Call::Msg, flags);
        self
    }

    /// Makes it a call like `fi_inject`.
    pub fn inject(mut self) -> Self {
        self.call = Call::Inject;
        self
    }

    fn with<T>(&self, post: impl FnOnce(Lent<'_>, u64, OpFlags) -> Result<T>) -> Result<T> {
        let pieces = pieces(&self.buffers);
        // SAFETY: `keep` below holds the memory until the endpoint is closed; tests access it through raw pointers, and
        // write data that is being sent only where that is the point of the test.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let carried = if self.data.is_some() { OpFlags::REMOTE_CQ_DATA } else { OpFlags::empty() };
        self.side.keep(&self.buffers);
        post(lent, self.data.unwrap_or(0), self.flags | carried)
    }

    /// Posts it as a message.
    ///
    /// # Errors
    /// Those of the call.
    pub fn send(&self) -> Result<()> {
        self.with(|buf, data, flags| {
            let op = SendOp { buf, dest: self.to, context: self.context, data, flags, call: self.call };
            self.side.send_op(&op, self.tag)
        })
    }

    fn rma(&self, remote: &[RemotePiece], write: bool) -> Result<()> {
        self.with(|buf, data, flags| {
            let op =
                RmaOp { buf, remote, peer: self.to, context: self.context, data, flags, call: self.call };
            self.side.rma_op(&op, write)
        })
    }

    /// Posts it as a write to the peer's memory.
    ///
    /// # Errors
    /// Those of the call.
    pub fn write(&self, remote: &[RemotePiece]) -> Result<()> {
        self.rma(remote, true)
    }

    /// Posts it as a read from the peer's memory.
    ///
    /// # Errors
    /// Those of the call.
    pub fn read(&self, remote: &[RemotePiece]) -> Result<()> {
        self.rma(remote, false)
    }

    fn post_atomic(
        &self,
        op: (FiOp, Datatype),
        extra: [Option<Buffers>; 2],
        remote: &[RemotePiece],
    ) -> Result<()> {
        let [compare, result] = extra;
        for buffers in compare.iter().chain(&result) {
            self.side.keep(buffers);
        }
        let compared = compare.as_ref().map(pieces);
        let fetched = result.as_ref().map(pieces);
        self.with(|buf, _, flags| {
            let mut op = AtomicOp::new(op.0, op.1, buf, remote, self.to, self.context);
            (op.flags, op.call) = (flags, self.call);
            // SAFETY: kept until the endpoint is closed, as all memory here.
            let lent = |pieces| unsafe { Lent::new(pieces, &[]) };
            let op = match (&compared, &fetched) {
                (Some(compare), Some(result)) => op.compare(lent(compare), lent(result)),
                (None, Some(result)) => op.fetch(lent(result)),
                _ => op,
            };
            self.side.atomic_op(&op)
        })
    }

    /// Posts it as an atomic change of the peer's memory.
    ///
    /// # Errors
    /// Those of the call.
    pub fn atomic(&self, op: FiOp, datatype: Datatype, remote: &[RemotePiece]) -> Result<()> {
        self.post_atomic((op, datatype), [None, None], remote)
    }

    /// Posts it as an atomic change of the peer's memory that fetches the old values.
    ///
    /// # Errors
    /// Those of the call.
    pub fn fetch(
        &self,
        op: FiOp,
        datatype: Datatype,
        result: impl Into<Buffers>,
        remote: &[RemotePiece],
    ) -> Result<()> {
        self.post_atomic((op, datatype), [None, Some(result.into())], remote)
    }

    /// Posts it as an atomic change of the peer's memory if a comparison holds, which fetches the old values.
    ///
    /// # Errors
    /// Those of the call.
    pub fn compare(
        &self,
        op: FiOp,
        datatype: Datatype,
        compare: impl Into<Buffers>,
        result: impl Into<Buffers>,
        remote: &[RemotePiece],
    ) -> Result<()> {
        self.post_atomic((op, datatype), [Some(compare.into()), Some(result.into())], remote)
    }
}

impl In<'_> {
    /// Sets its context.
    pub fn context(mut self, context: usize) -> Self {
        self.context = Context(context);
        self
    }

    /// Receives only from this peer.
    pub fn from(mut self, source: FiAddr) -> Self {
        self.source = source;
        self
    }

    /// Makes it a tagged receive.
    pub fn tag(self, tag: u64) -> Self {
        self.tag_ignoring(tag, 0)
    }

    /// Makes it a tagged receive that ignores some bits.
    pub fn tag_ignoring(mut self, tag: u64, ignore: u64) -> Self {
        self.tag = Some(TagMatch { tag, ignore });
        self
    }

    /// Makes it a call like `fi_recvmsg`, whose flags replace the endpoint's.
    pub fn msg(mut self, flags: OpFlags) -> Self {
        (self.call, self.flags) = (Call::Msg, flags);
        self
    }

    /// Posts it.
    ///
    /// # Errors
    /// Those of the call.
    pub fn post(&self) -> Result<()> {
        let pieces = pieces(&self.buffers);
        self.side.keep(&self.buffers);
        // SAFETY: the memory is kept until the endpoint is closed, and read only through raw pointers.
        let buf = unsafe { Lent::new(&pieces, &[]) };
        let op =
            ReceiveOp { buf, source: self.source, context: self.context, flags: self.flags, call: self.call };
        self.side.receive_op(&op, self.tag)
    }
}
