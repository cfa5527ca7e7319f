//! Reads and writes of peers' memory.

use ofi_api::{Call, Context, FiAddr, Lent, OpFlags, Piece, RemotePiece, Result, RmaOp};

use super::Node;
use crate::buffer::{Buffer, BufferMut};
use crate::op::Op;
use crate::remote::RemoteWindow;
use crate::request::{Part, PostError, RmaMsg};
use crate::threading::Level;

impl<L: Level> Node<L> {
    /// Reads `remote`, which is memory of `peer`, into the buffer (`fi_read`). Both must have the same length.
    ///
    /// # Errors
    /// As [`Node::send`]; `FI_EINVAL` if the lengths differ. If the peer refuses the access, the operation fails.
    #[doc(alias = "fi_read")]
    pub fn read<B: BufferMut>(
        &self,
        buffer: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op, PostError<B>> {
        self.post_read(RmaMsg::new(buffer, peer, remote), Call::Plain)
    }

    /// Reads with all options (`fi_readmsg`).
    ///
    /// # Errors
    /// As [`Node::read`]; `FI_EBADFLAGS`.
    #[doc(alias = "fi_readmsg")]
    pub fn read_message<B: BufferMut>(&self, message: RmaMsg<B>) -> Result<Op, PostError<B>> {
        self.post_read(message, Call::Msg)
    }

    fn post_read<B: BufferMut>(&self, message: RmaMsg<B>, call: Call) -> Result<Op, PostError<B>> {
        let (buffer, part, access) = Access::new(message, call);
        // SAFETY: one read into the memory of a `BufferMut`, with one completion.
        unsafe {
            self.desk().transfer(buffer, part, |endpoint, lent, context| {
                access.post(lent, context, |op| endpoint.read(op))
            })
        }
    }

    /// Writes the buffer to `remote`, which is memory of `peer` (`fi_write`). Both must have the same length.
    ///
    /// # Errors
    /// As [`Node::read`].
    #[doc(alias = "fi_write")]
    pub fn write<B: Buffer>(
        &self,
        buffer: B,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op, PostError<B>> {
        self.post_write(RmaMsg::new(buffer, peer, remote), Call::Plain)
    }

    /// Writes, and gives the peer a completion with `data` once the bytes have arrived (`fi_writedata`).
    ///
    /// # Errors
    /// As [`Node::read`].
    #[doc(alias = "fi_writedata")]
    pub fn write_with_data<B: Buffer>(
        &self,
        buffer: B,
        data: u64,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<Op, PostError<B>> {
        self.post_write(RmaMsg::new(buffer, peer, remote).data(data), Call::Plain)
    }

    /// Writes with all options (`fi_writemsg`).
    ///
    /// # Errors
    /// As [`Node::read`]; `FI_EBADFLAGS`.
    #[doc(alias = "fi_writemsg")]
    pub fn write_message<B: Buffer>(&self, message: RmaMsg<B>) -> Result<Op, PostError<B>> {
        self.post_write(message, Call::Msg)
    }

    fn post_write<B: Buffer>(&self, message: RmaMsg<B>, call: Call) -> Result<Op, PostError<B>> {
        let (buffer, part, access) = Access::new(message, call);
        // SAFETY: one write, which reads the memory, with one completion.
        unsafe {
            self.desk().transfer(buffer, part, |endpoint, lent, context| {
                access.post(lent, context, |op| endpoint.write(op))
            })
        }
    }

    /// Writes a few bytes without a completion (`fi_inject_write`): see [`Node::inject`].
    ///
    /// # Errors
    /// As [`Node::read`].
    #[doc(alias = "fi_inject_write")]
    pub fn inject_write(&self, bytes: &[u8], peer: FiAddr, remote: RemoteWindow) -> Result<()> {
        self.post_inject_write(bytes, peer, remote, None)
    }

    /// [`Node::inject_write`] with remote CQ data (`fi_inject_writedata`).
    ///
    /// # Errors
    /// As [`Node::read`].
    #[doc(alias = "fi_inject_writedata")]
    pub fn inject_write_with_data(
        &self,
        bytes: &[u8],
        data: u64,
        peer: FiAddr,
        remote: RemoteWindow,
    ) -> Result<()> {
        self.post_inject_write(bytes, peer, remote, Some(data))
    }

    fn post_inject_write(
        &self,
        bytes: &[u8],
        peer: FiAddr,
        remote: RemoteWindow,
        data: Option<u64>,
    ) -> Result<()> {
        let pieces = [Piece::new(bytes.as_ptr().cast_mut(), bytes.len())];
        // SAFETY: an injected write only reads the memory, and only until it returns.
        let lent = unsafe { Lent::new(&pieces, &[]) };
        let access = Access { peer, remote, data, flags: OpFlags::empty(), call: Call::Inject };
        access.post(lent, Context::NULL, |op| self.endpoint.write(op))
    }
}

/// The arguments of a remote access, except its local memory.
struct Access {
    peer: FiAddr,
    remote: RemoteWindow,
    data: Option<u64>,
    flags: OpFlags,
    call: Call,
}

impl Access {
    fn new<B>(message: RmaMsg<B>, call: Call) -> (B, Part, Self) {
        let RmaMsg { buffer, peer, remote, data, part, flags } = message;
        (buffer, part, Self { peer, remote, data, flags, call })
    }

    fn post(
        self,
        buf: Lent<'_>,
        context: Context,
        post: impl FnOnce(&RmaOp<'_>) -> Result<()>,
    ) -> Result<()> {
        let Self { peer, remote, data, mut flags, call } = self;
        let remote: [RemotePiece; 1] = [remote.piece()?];
        flags |= data.map_or(OpFlags::empty(), |_| OpFlags::REMOTE_CQ_DATA);
        post(&RmaOp { buf, remote: &remote, peer, context, data: data.unwrap_or(0), flags, call })
    }
}
