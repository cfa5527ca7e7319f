//! Messages and remote accesses that are posted to endpoints.

use crate::{Context, FiAddr, Lent, OpFlags, RemotePiece};

/// The call shape of libfabric that an operation was posted with. It decides where the flags come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Call {
    /// `fi_send`, `fi_sendv`, `fi_senddata` and the like: the endpoint's `op_flags` plus the flags that the call
    /// implies.
    #[default]
    Plain,
    /// `fi_inject` and the like: the buffer may be reused on return, and a queue reports only failure.
    Inject,
    /// `fi_sendmsg` and the like: the flags given here replace the endpoint's.
    Msg,
}

/// A message to send.
#[derive(Clone, Copy, Debug)]
pub struct SendOp<'a> {
    /// The bytes.
    pub buf: Lent<'a>,
    /// The peer.
    pub dest: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// Remote CQ data; sent if `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

impl<'a> SendOp<'a> {
    /// `fi_send`.
    #[inline]
    pub const fn new(buf: Lent<'a>, dest: FiAddr, context: Context) -> Self {
        Self { buf, dest, context, data: 0, flags: OpFlags::empty(), call: Call::Plain }
    }
}

/// A receive to post.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOp<'a> {
    /// Memory for the message.
    pub buf: Lent<'a>,
    /// Only from this peer (with `FI_DIRECTED_RECV`); [`FiAddr::UNSPEC`] for any.
    pub source: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

impl<'a> ReceiveOp<'a> {
    /// `fi_recv` from any source.
    #[inline]
    pub const fn new(buf: Lent<'a>, context: Context) -> Self {
        Self { buf, source: FiAddr::UNSPEC, context, flags: OpFlags::empty(), call: Call::Plain }
    }
}

/// A remote read or write.
#[derive(Clone, Copy, Debug)]
pub struct RmaOp<'a> {
    /// Local memory: the source of a write, the target of a read.
    pub buf: Lent<'a>,
    /// The peer's memory; its total length equals that of the local memory.
    pub remote: &'a [RemotePiece],
    /// The peer.
    pub peer: FiAddr,
    /// Returned with the completion.
    pub context: Context,
    /// Remote CQ data of a write; sent if `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// See [`Call`].
    pub flags: OpFlags,
    /// The call shape, which decides where the flags come from.
    pub call: Call,
}

/// A tag with its mask.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagMatch {
    /// The tag.
    pub tag: u64,
    /// Bits that may differ.
    pub ignore: u64,
}
