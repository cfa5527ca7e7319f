//! Operations with all options of libfabric's `…msg` calls. Plain calls are methods of [`Node`](crate::Node).

use std::fmt;
use std::ops::{Range, RangeBounds};

use ofi_api::{Error, FiAddr, OpFlags, Result, TagMatch};

use crate::buffer::{Buffer, BufferMut};
use crate::remote::{self, RemoteWindow};

/// The error of a failed call, with the buffer that was passed to it. `?` in a function that returns [`Result`] drops
/// the buffer.
pub struct PostError<B> {
    /// The reason.
    pub error: Error,
    /// The buffer that was passed.
    pub buffer: B,
}

impl<B> PostError<B> {
    /// `FI_EAGAIN`: not a failure; poll the queue, then try again.
    pub fn is_again(&self) -> bool {
        self.error.is_again()
    }

    pub(crate) fn map<C>(self, change: impl FnOnce(B) -> C) -> PostError<C> {
        PostError { error: self.error, buffer: change(self.buffer) }
    }
}

impl<B> From<PostError<B>> for Error {
    fn from(rejected: PostError<B>) -> Self {
        rejected.error
    }
}

impl<B> fmt::Debug for PostError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<B> fmt::Display for PostError<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<B> std::error::Error for PostError<B> {}

/// A part of a buffer, resolved when the operation is posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part(u64, Option<u64>);

impl Part {
    pub const ALL: Self = Self(0, None);

    pub fn new(range: &impl RangeBounds<usize>) -> Self {
        use std::ops::Bound::{Excluded, Included, Unbounded};
        let start = match range.start_bound() {
            Included(&start) => start as u64,
            Excluded(&start) => (start as u64).saturating_add(1),
            Unbounded => 0,
        };
        let end = match range.end_bound() {
            Included(&end) => Some((end as u64).saturating_add(1)),
            Excluded(&end) => Some(end as u64),
            Unbounded => None,
        };
        Self(start, end)
    }

    /// The range of the part in a buffer of `len` bytes.
    pub fn of(self, len: usize) -> Result<Range<usize>> {
        let range = remote::resolve(&(self.0..self.1.unwrap_or(len as u64)), len as u64)?;
        Ok(range.start as usize..range.end as usize)
    }
}

/// A message to send (`fi_sendmsg`, `fi_tsendmsg`).
///
/// ```no_run
/// # fn send(node: &ofi::Node, peer: ofi::FiAddr) -> ofi::Result<()> {
/// use ofi::{OpFlags, SendMsg};
/// let message = SendMsg::new(vec![0; 4096], peer).tag(7).range(..100).flags(OpFlags::DELIVERY_COMPLETE);
/// let op = node.send_message(message)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use]
pub struct SendMsg<B> {
    pub(crate) buffer: B,
    pub(crate) dest: FiAddr,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) part: Part,
    pub(crate) flags: OpFlags,
}

impl<B: Buffer> SendMsg<B> {
    /// An untagged message of the whole buffer, to `dest`.
    pub fn new(buffer: B, dest: FiAddr) -> Self {
        Self { buffer, dest, tag: None, data: None, part: Part::ALL, flags: OpFlags::empty() }
    }

    /// Makes it a tagged message.
    pub fn tag(self, tag: u64) -> Self {
        Self { tag: Some(tag), ..self }
    }

    /// Remote CQ data for the peer's completion.
    pub fn data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Sends only a part of the buffer.
    pub fn range(self, range: impl RangeBounds<usize>) -> Self {
        Self { part: Part::new(&range), ..self }
    }

    /// Replaces the flags that the node was opened with (`tx_attr.op_flags`). Possible are a completion level,
    /// `FI_FENCE`, `FI_MORE` and `FI_INJECT`.
    pub fn flags(self, flags: OpFlags) -> Self {
        Self { flags, ..self }
    }
}

/// A receive to post (`fi_recvmsg`, `fi_trecvmsg`).
#[derive(Debug)]
#[must_use]
pub struct RecvMsg<B> {
    pub(crate) buffer: B,
    pub(crate) source: FiAddr,
    pub(crate) tag: Option<TagMatch>,
    pub(crate) part: Part,
}

impl<B: BufferMut> RecvMsg<B> {
    /// A receive of an untagged message from any sender, into the whole buffer.
    pub fn new(buffer: B) -> Self {
        Self { buffer, source: FiAddr::UNSPEC, tag: None, part: Part::ALL }
    }

    /// Takes a tagged message instead. Bits set in `ignore` are not compared with `tag`.
    pub fn tag(self, tag: u64, ignore: u64) -> Self {
        Self { tag: Some(TagMatch { tag, ignore }), ..self }
    }

    /// Accepts messages from this peer only (`FI_DIRECTED_RECV`).
    pub fn source(self, source: FiAddr) -> Self {
        Self { source, ..self }
    }

    /// Receives into a part of the buffer.
    pub fn range(self, range: impl RangeBounds<usize>) -> Self {
        Self { part: Part::new(&range), ..self }
    }
}

/// A remote read or write (`fi_readmsg`, `fi_writemsg`). The selected part of the buffer and the range of the peer's
/// memory have the same length.
#[derive(Debug)]
#[must_use]
pub struct RmaMsg<B> {
    pub(crate) buffer: B,
    pub(crate) peer: FiAddr,
    pub(crate) remote: RemoteWindow,
    pub(crate) data: Option<u64>,
    pub(crate) part: Part,
    pub(crate) flags: OpFlags,
}

impl<B: Buffer> RmaMsg<B> {
    /// An access of the whole buffer to `remote`, which is memory of `peer`.
    pub fn new(buffer: B, peer: FiAddr, remote: RemoteWindow) -> Self {
        Self { buffer, peer, remote, data: None, part: Part::ALL, flags: OpFlags::empty() }
    }

    /// Remote CQ data: the peer gets a completion when the bytes of this write have arrived.
    pub fn data(self, data: u64) -> Self {
        Self { data: Some(data), ..self }
    }

    /// Uses only a part of the buffer.
    pub fn range(self, range: impl RangeBounds<usize>) -> Self {
        Self { part: Part::new(&range), ..self }
    }

    /// As [`SendMsg::flags`].
    pub fn flags(self, flags: OpFlags) -> Self {
        Self { flags, ..self }
    }
}
