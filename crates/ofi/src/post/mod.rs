//! Posting: the only place where memory is lent to the raw layer.

mod receiving;

use std::ops::Range;

use ofi_api::{Caps, Context, Desc, Endpoint, Errno, Error, FiAddr, Lent, MrMode, Piece, Result};
use ofi_core::lock::Lock;

use crate::any_buffer::AnyBuffer;
use crate::buffer::Buffer;
use crate::multi_recv::MultiRecvBuffer;
use crate::op::{Claim, Op};
use crate::opened::OpenedDomain;
use crate::operations::{Operations, Slot};
use crate::request::{Part, PostError};

/// The memory of a slot, before it is lent.
struct Memory {
    piece: Piece,
    desc: Desc,
}

impl Memory {
    fn of(buffer: &AnyBuffer, part: &Range<usize>) -> Self {
        let raw = buffer.raw();
        Self { piece: Piece::new(raw.addr.wrapping_add(part.start), part.len()), desc: raw.desc }
    }

    /// Lends the memory for the call `post` and, if that succeeds, until the operation ends.
    ///
    /// # Safety
    /// A slot owns the memory, under the context that `post` passes on. The memory leaves the table only with the
    /// operation's last completion, after the endpoint is closed, or at once if `post` fails. If the operation writes,
    /// the buffer is a `BufferMut`.
    unsafe fn lend(&self, post: impl FnOnce(Lent<'_>) -> Result<()>) -> Result<()> {
        let pieces = std::slice::from_ref(&self.piece);
        let descs = if self.desc == Desc::NONE { &[] } else { std::slice::from_ref(&self.desc) };
        // SAFETY: the caller promises that the memory stays. `Buffer::into_raw` took it out of the program's hands, so
        // it has no other user.
        post(unsafe { Lent::new(pieces, descs) })
    }
}

/// The place where operations are posted: an endpoint, and the table that owns their resources.
#[derive(Clone, Copy)]
pub struct Desk<'a> {
    pub endpoint: &'a dyn Endpoint,
    pub operations: &'a Lock<Operations>,
    pub opened: &'a OpenedDomain,
    /// See [`Operations::insert_for`].
    pub owner: u32,
}

impl Desk<'_> {
    /// Moves `buffer` into a slot and posts an operation on the range `part` of it.
    ///
    /// # Safety
    /// `post` posts one operation on the memory, under the context, and that operation ends with one completion. If
    /// `post` returns an error, it posted nothing. If the operation writes, `B` is a `BufferMut`.
    #[inline]
    pub unsafe fn transfer<B: Buffer>(
        &self,
        buffer: B,
        part: Part,
        post: impl FnOnce(&dyn Endpoint, Lent<'_>, Context) -> Result<()>,
    ) -> Result<Op, PostError<B>> {
        let buffer = AnyBuffer::from(buffer);
        let part = match self.checked(&buffer, part) {
            Ok(part) => part,
            Err(error) => return Err(rejected(error, buffer)),
        };
        let memory = Memory::of(&buffer, &part);
        let op = self.operations.lock().insert_for(self.owner, Slot::Transfer { buffer, part });
        // SAFETY: the slot owns the buffer, and the caller promises the rest.
        let posted = unsafe { memory.lend(|lent| post(self.endpoint, lent, op.context())) };
        let Err(error) = posted else { return Ok(op) };
        let slot = self.operations.lock().remove(op);
        match slot {
            Some(Slot::Transfer { buffer, .. }) => Err(rejected(error, buffer)),
            _ => unreachable!("an operation that was not posted does not end"),
        }
    }

    /// As [`Desk::transfer`], for a receive of a claimed message.
    ///
    /// # Safety
    /// Those of [`Desk::transfer`].
    pub unsafe fn transfer_claimed<B: Buffer>(
        &self,
        claim: Claim,
        buffer: B,
        post: impl FnOnce(&dyn Endpoint, Lent<'_>, Context) -> Result<()>,
    ) -> Result<Op, PostError<(Claim, B)>> {
        let buffer = AnyBuffer::from(buffer);
        let part = match self.checked(&buffer, Part::ALL) {
            Ok(part) => part,
            Err(error) => return Err(rejected(error, buffer).map(|buffer| (claim, buffer))),
        };
        let memory = Memory::of(&buffer, &part);
        let claimed = self.operations.lock().claimed(&claim, Slot::Transfer { buffer, part });
        if let Err(slot) = claimed {
            let Slot::Transfer { buffer, .. } = slot else { unreachable!("it is the slot just given") };
            return Err(rejected(not_claimed(), buffer).map(|buffer| (claim, buffer)));
        }
        // SAFETY: the slot owns the buffer, and the caller promises the rest.
        let posted = unsafe { memory.lend(|lent| post(self.endpoint, lent, claim.0.context())) };
        let Err(error) = posted else { return Ok(claim.0) };
        let slot = self.operations.lock().unclaimed(&claim);
        match slot {
            Some(Slot::Transfer { buffer, .. }) => Err(rejected(error, buffer).map(|buffer| (claim, buffer))),
            _ => unreachable!("an operation that was not posted does not end"),
        }
    }

    /// As [`Desk::transfer`], for a multi-receive: it has several completions, and the last one has `FI_MULTI_RECV`.
    ///
    /// # Safety
    /// Those of [`Desk::transfer`].
    pub unsafe fn transfer_multi(
        &self,
        mut buffer: MultiRecvBuffer,
        post: impl FnOnce(&dyn Endpoint, Lent<'_>, Context) -> Result<()>,
    ) -> Result<Op, PostError<MultiRecvBuffer>> {
        if !buffer.is_unused() {
            let error = Error::wanted(
                Errno::EBUSY,
                "the buffer of a multi-receive",
                "one without ranges",
                "one with ranges that the program still holds",
                "drop them first",
            );
            return Err(PostError { error, buffer });
        }
        let part = match self.checked(buffer.buffer(), Part::ALL) {
            Ok(part) => part,
            Err(error) => return Err(PostError { error, buffer }),
        };
        let memory = Memory::of(buffer.buffer(), &part);
        let op = self.operations.lock().insert_for(self.owner, Slot::Multi(buffer));
        // SAFETY: the slot owns the buffer, and no ranges of it exist; the caller promises the rest.
        let posted = unsafe { memory.lend(|lent| post(self.endpoint, lent, op.context())) };
        let Err(error) = posted else { return Ok(op) };
        let slot = self.operations.lock().remove(op);
        match slot {
            Some(Slot::Multi(buffer)) => Err(PostError { error, buffer }),
            _ => unreachable!("an operation that was not posted does not end"),
        }
    }

    /// Posts an operation that uses no memory.
    pub fn search(&self, claim: bool, post: impl FnOnce(&dyn Endpoint, Context) -> Result<()>) -> Result<Op> {
        let op = self.operations.lock().insert_for(self.owner, Slot::Search { claim });
        let posted = post(self.endpoint, op.context());
        if posted.is_err() {
            self.operations.lock().remove(op);
        }
        posted.map(|()| op)
    }

    /// Posts an operation on a claimed message that uses no memory.
    pub fn search_claimed(
        &self,
        claim: Claim,
        post: impl FnOnce(&dyn Endpoint, Context) -> Result<()>,
    ) -> Result<Op, PostError<Claim>> {
        let claimed = self.operations.lock().claimed(&claim, Slot::Search { claim: false });
        if claimed.is_err() {
            return Err(PostError { error: not_claimed(), buffer: claim });
        }
        match post(self.endpoint, claim.0.context()) {
            Ok(()) => Ok(claim.0),
            Err(error) => {
                self.operations.lock().unclaimed(&claim);
                Err(PostError { error, buffer: claim })
            }
        }
    }

    /// Checks that the buffer may be used here. Returns the range that `part` selects.
    #[inline]
    fn checked(&self, buffer: &AnyBuffer, part: Part) -> Result<Range<usize>> {
        let (raw, opened) = (buffer.raw(), self.opened);
        if raw.domain != opened.id
            && (raw.domain != 0 || opened.info.domain_attr.mr_mode.contains(MrMode::LOCAL))
        {
            return Err(unregistered(raw.domain != 0));
        }
        part.of(raw.len)
    }

    /// Refuses a directed receive if the transport would accept messages from any sender.
    pub fn check_source(&self, source: FiAddr, tagged: bool) -> Result<()> {
        let enough =
            if tagged { Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV } else { Caps::DIRECTED_RECV };
        if source == FiAddr::UNSPEC || self.opened.info.caps.intersects(enough) {
            return Ok(());
        }
        Err(Error::wanted(
            Errno::EOPNOTSUPP,
            "the source of a receive",
            "none, as the node was opened without FI_DIRECTED_RECV",
            format!("{source:?}"),
            "ask for the capability in the hints",
        ))
    }
}

fn rejected<B: Buffer>(error: Error, buffer: AnyBuffer) -> PostError<B> {
    match buffer.downcast() {
        Ok(buffer) => PostError { error, buffer },
        Err(_) => unreachable!("the buffer is of the type that was given"),
    }
}

#[cold]
fn not_claimed() -> Error {
    Error::wanted(Errno::EINVAL, "a claim", "one of this node", "another node's", "use it where it was made")
}

#[cold]
fn unregistered(elsewhere: bool) -> Error {
    if elsewhere {
        let found = "one of another domain";
        Error::wanted(
            Errno::EDOMAIN,
            "a registered buffer",
            "one of the node's domain",
            found,
            "register it there",
        )
    } else {
        let wanted = "a registered one, as mr_mode has FI_MR_LOCAL";
        Error::wanted(
            Errno::EINVAL,
            "a buffer",
            wanted,
            "one that is not",
            "register it with Domain::register",
        )
    }
}
