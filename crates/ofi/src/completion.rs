//! What polling a node gives: operations that have ended, with their buffers.

use std::fmt;

use ofi_api::{CompletionFlags, CqErrorEntry, Errno, Error, FiAddr};

use crate::any_buffer::AnyBuffer;
use crate::buffer::Buffer;
use crate::element::{Element, numbers_of};
use crate::multi_recv::{MultiRecvBuffer, MultiRecvRange};
use crate::operations::{Claim, Op};

/// An operation that has ended, well or not, or something that a peer did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// Which operation; `None` for a peer's write with remote CQ data, and for an inject that failed.
    pub op: Option<Op>,
    /// What it was.
    pub flags: CompletionFlags,
    /// How it ended.
    pub result: Result<(), OpError>,
    /// Bytes received, sent, read or written; for a search, the length of the message; for a failed receive, bytes
    /// that were placed.
    pub len: usize,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The tag, of a tagged receive or a search.
    pub tag: Option<u64>,
    /// Who sent it: with `FI_SOURCE`, and if the node's address vector has the sender.
    pub source: Option<FiAddr>,
    /// The buffer of the operation, whole.
    pub buffer: Option<AnyBuffer>,
    /// The message, where it came to a multi-receive buffer.
    pub range: Option<MultiRecvRange>,
    /// The multi-receive buffer: it is not posted any more.
    pub released: Option<MultiRecvBuffer>,
    /// The message that a search claimed.
    pub claim: Option<Claim>,
    /// Where in the buffer the operation's part begins.
    pub(crate) start: usize,
    /// More completions of the operation follow.
    pub(crate) goes_on: bool,
    /// The operation is one of a shared context, not of the node.
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

    /// The bytes of the operation: the message that was received, whole or as far as it came, or what was sent, read
    /// or written.
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

    /// The numbers of [`Completion::bytes`]: what a fetching atomic found, or a collective gave.
    pub fn values<T: Element>(&self) -> impl Iterator<Item = T> + '_ {
        numbers_of(self.bytes())
    }

    /// The first of them.
    pub fn value<T: Element>(&self) -> Option<T> {
        self.values().next()
    }

    /// Takes the buffer out, if it is a `B`.
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

    /// The completion, if the operation went well.
    ///
    /// # Errors
    /// Why it did not; the buffer is dropped.
    pub fn ok(self) -> Result<Self, OpError> {
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

    /// The number.
    pub fn errno(&self) -> Errno {
        self.0.0.err
    }

    /// Bytes that did not fit, for `FI_ETRUNC`.
    pub fn olen(&self) -> usize {
        self.0.0.olen
    }

    /// The transport's own number.
    pub fn prov_errno(&self) -> i32 {
        self.0.0.prov_errno
    }

    /// More about it: the raw address, for `FI_EADDRNOTAVAIL`.
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
