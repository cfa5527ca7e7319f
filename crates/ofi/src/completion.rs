//! Completions: ended operations with their buffers, as polling a node returns them.

use std::fmt;

use ofi_api::{Address, CompletionFlags, CqErrorEntry, Errno, Error, FiAddr};

use crate::any_buffer::AnyBuffer;
use crate::buffer::Buffer;
use crate::element::{Element, numbers_of};
use crate::multi_recv::{MultiRecvBuffer, MultiRecvRange};
use crate::op::{Claim, Op};

/// The kind of a [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CompletionKind {
    /// A message of this node was sent.
    Send,
    /// A message was received, or a search for one has ended.
    Receive,
    /// This node read a peer's memory.
    Read,
    /// This node wrote to a peer's memory.
    Write,
    /// An atomic operation of this node has ended.
    Atomic,
    /// A collective operation has ended.
    Collective,
    /// A peer wrote to this node's memory: with remote CQ data, or in an access that is reported (`FI_RMA_EVENT`).
    PeerWrote,
    /// A peer read this node's memory, in an access that is reported.
    PeerRead,
    /// None of the above; see its flags.
    Other,
}

/// An operation that has ended, successfully or not, or an access by a peer.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The operation; `None` for a peer's write with remote CQ data, and for an inject that failed.
    pub op: Option<Op>,
    /// The kind of operation, and its properties.
    pub flags: CompletionFlags,
    /// How it ended.
    pub result: Result<(), OpError>,
    /// Bytes received, sent, read or written. For a search, the length of the message. For a failed receive, the bytes
    /// that were stored.
    pub len: usize,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The tag of a tagged receive or of a peek.
    pub tag: Option<u64>,
    /// The sender, with `FI_SOURCE`, if it is in the node's address vector.
    pub source: Option<FiAddr>,
    /// The buffer of the operation, whole.
    pub buffer: Option<AnyBuffer>,
    /// The message, if it arrived in a multi-receive buffer.
    pub range: Option<MultiRecvRange>,
    /// The multi-receive buffer, in the last completion that uses it: the buffer is no longer posted.
    pub released: Option<MultiRecvBuffer>,
    /// The message that a search claimed.
    pub claim: Option<Claim>,
    /// The start of the operation's part of the buffer.
    pub(crate) start: usize,
    /// More completions of the operation follow.
    pub(crate) goes_on: bool,
    /// The operation belongs to a shared context, not to the node.
    pub(crate) shared: bool,
}

impl Completion {
    pub(crate) const fn new(flags: CompletionFlags, len: usize) -> Self {
        Self {
            op: None,
            flags,
            result: Ok(()),
            len,
            data: None,
            tag: None,
            source: None,
            buffer: None,
            range: None,
            released: None,
            claim: None,
            start: 0,
            goes_on: false,
            shared: false,
        }
    }

    /// The kind of operation that ended, or of a peer's access.
    pub fn kind(&self) -> CompletionKind {
        use CompletionFlags as Flag;
        let is = |flags| self.flags.contains(flags);
        match () {
            () if is(Flag::REMOTE_WRITE) => CompletionKind::PeerWrote,
            () if is(Flag::REMOTE_READ) => CompletionKind::PeerRead,
            () if is(Flag::COLLECTIVE) => CompletionKind::Collective,
            () if is(Flag::ATOMIC) => CompletionKind::Atomic,
            () if is(Flag::RECV) => CompletionKind::Receive,
            () if is(Flag::SEND) => CompletionKind::Send,
            () if is(Flag::READ) => CompletionKind::Read,
            () if is(Flag::WRITE) => CompletionKind::Write,
            () => CompletionKind::Other,
        }
    }

    /// The bytes of the operation: the message that was received (as much of it as fit), or the payload that was sent,
    /// read or written.
    pub fn bytes(&self) -> &[u8] {
        match (&self.range, &self.buffer) {
            (Some(range), _) => range,
            (None, Some(buffer)) => {
                let bytes = buffer.bytes().get(self.start..).unwrap_or_default();
                &bytes[..self.len.min(bytes.len())]
            }
            (None, None) => &[],
        }
    }

    /// [`Completion::bytes`] as numbers: the old values that a fetching atomic returned, or the result of a collective.
    pub fn values<T: Element>(&self) -> impl Iterator<Item = T> + '_ {
        numbers_of(self.bytes())
    }

    /// The first of them.
    pub fn value<T: Element>(&self) -> Option<T> {
        self.values().next()
    }

    /// Takes the buffer, if it is a `B`.
    ///
    /// ```no_run
    /// # fn f(mut completion: ofi::Completion) {
    /// let buffer: Option<Vec<u8>> = completion.take_buffer();
    /// # }
    /// ```
    pub fn take_buffer<B: Buffer>(&mut self) -> Option<B> {
        match self.buffer.take()?.downcast() {
            Ok(buffer) => Some(buffer),
            Err(other) => {
                self.buffer = Some(other);
                None
            }
        }
    }

    /// The completion, if the operation succeeded.
    ///
    /// # Errors
    /// The reason of the failure; the buffer is dropped.
    pub fn into_result(self) -> Result<Self, OpError> {
        match self.result {
            Ok(()) => Ok(self),
            Err(error) => Err(error),
        }
    }
}

/// Why an operation failed: the error entry of the queue (`struct fi_cq_err_entry`).
#[derive(Clone, PartialEq, Eq)]
pub struct OpError(Box<(CqErrorEntry, String)>);

impl OpError {
    pub(crate) fn new(entry: CqErrorEntry, text: impl FnOnce(i32) -> String) -> Self {
        let text = text(entry.prov_errno);
        Self(Box::new((entry, text)))
    }

    /// The error number.
    pub fn errno(&self) -> Errno {
        self.0.0.err
    }

    /// Bytes that did not fit, with `FI_ETRUNC`.
    pub fn olen(&self) -> usize {
        self.0.0.olen
    }

    /// The address of the peer, if the operation failed at the peer or on the way to it.
    pub fn peer(&self) -> Option<&Address> {
        self.0.0.peer.as_deref()
    }

    /// The transport's own number.
    pub fn prov_errno(&self) -> i32 {
        self.0.0.prov_errno
    }

    /// Further data about the error: the sender's raw address with `FI_EADDRNOTAVAIL`, and, with `FI_SOURCE_ERR`, with
    /// an `FI_ETRUNC` whose sender is unknown.
    pub fn err_data(&self) -> &[u8] {
        &self.0.0.err_data
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entry, text) = &*self.0;
        write!(f, "{}: {}: {}", entry.err.name(), entry.err, entry.flags)?;
        if entry.olen > 0 {
            write!(f, ": {} bytes did not fit", entry.olen)?;
        }
        if let Some(peer) = self.peer() {
            write!(f, ": peer {peer}")?;
        }
        if entry.prov_errno != 0 && entry.prov_errno != entry.err.get() {
            write!(f, ": {text}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for OpError {}

impl PartialEq<Errno> for OpError {
    fn eq(&self, other: &Errno) -> bool {
        self.errno() == *other
    }
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        Self::with(error.errno(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_is_of_one_kind() {
        use CompletionFlags as Flag;
        for (flags, kind) in [
            (Flag::SEND | Flag::MSG, CompletionKind::Send),
            (Flag::RECV | Flag::TAGGED | Flag::REMOTE_CQ_DATA, CompletionKind::Receive),
            (Flag::RMA | Flag::READ, CompletionKind::Read),
            (Flag::RMA | Flag::WRITE, CompletionKind::Write),
            (Flag::ATOMIC | Flag::READ, CompletionKind::Atomic),
            (Flag::COLLECTIVE, CompletionKind::Collective),
            (Flag::RMA | Flag::REMOTE_WRITE | Flag::REMOTE_CQ_DATA, CompletionKind::PeerWrote),
            (Flag::RMA | Flag::REMOTE_READ, CompletionKind::PeerRead),
            (Flag::empty(), CompletionKind::Other),
        ] {
            assert_eq!(Completion::new(flags, 0).kind(), kind, "{flags:?}");
        }
    }
}
