//! Outgoing operations, as the core passes them to transports.

use ofi_api::{OpFlags, Piece, RemotePiece};

use super::{CompletionInfo, PeerId, RemoteData, RxName};
use crate::atomic::Executor;

/// An outgoing message.
#[derive(Clone, Copy)]
pub struct OutMessage<'a> {
    /// The bytes, in the application's memory.
    pub pieces: &'a [Piece],
    /// Their number.
    pub len: usize,
    /// The destination.
    pub peer: PeerId,
    /// The destination's receive context.
    pub rx: RxName,
    /// Whether `tag` counts.
    pub tagged: bool,
    /// The tag.
    pub tag: u64,
    /// Carried if `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// Completion level, inject, fence, more.
    pub flags: OpFlags,
    /// The argument of [`Upcalls::open`](super::Upcalls::open).
    pub ticket: CompletionInfo,
}

/// An outgoing remote read or write. Local and remote lengths are equal.
#[derive(Clone, Copy)]
pub struct OutRma<'a> {
    /// A write, or a read.
    pub write: bool,
    /// Local memory.
    pub pieces: &'a [Piece],
    /// The peer's memory.
    pub remote: &'a [RemotePiece],
    /// Bytes in all.
    pub len: usize,
    /// The peer that has it.
    pub peer: PeerId,
    /// Carried by a write if `flags` has `FI_REMOTE_CQ_DATA`.
    pub data: u64,
    /// The receive context of the peer that reports `data`.
    pub rx: RxName,
    /// Completion level, inject, fence, more.
    pub flags: OpFlags,
    /// The argument of [`Upcalls::open`](super::Upcalls::open).
    pub ticket: CompletionInfo,
}

impl OutRma<'_> {
    /// The message for the peer, if any.
    #[inline]
    pub fn remote_data(&self) -> Option<RemoteData> {
        let told = self.flags.contains(OpFlags::REMOTE_CQ_DATA);
        told.then_some(RemoteData { value: self.data, rx: self.rx })
    }
}

/// A common message: of one piece, not injected, without flags.
#[derive(Clone, Copy)]
pub struct OutPlain {
    /// The bytes.
    pub piece: Piece,
    /// The destination.
    pub peer: PeerId,
    /// The tag, of one that has it.
    pub tag: Option<u64>,
    /// The argument of [`Upcalls::open`](super::Upcalls::open).
    pub ticket: CompletionInfo,
}

/// A common remote read or write: of one piece at either end, not empty, without a message for the peer, and with no
/// flags except those that its completion satisfies anyway (`FI_COMPLETION`, `FI_TRANSMIT_COMPLETE`).
#[derive(Clone, Copy)]
pub struct OutAccess {
    /// A write, or a read.
    pub write: bool,
    /// Local memory.
    pub piece: Piece,
    /// The peer's memory, as long as the piece.
    pub remote: RemotePiece,
    /// The peer that has it.
    pub peer: PeerId,
    /// The argument of [`Upcalls::open`](super::Upcalls::open).
    pub ticket: CompletionInfo,
}

/// An outgoing atomic operation. All lengths are those of the target.
#[derive(Clone, Copy)]
pub struct OutAtomic<'a> {
    /// The operation on each element.
    pub executor: Executor,
    /// The operands: none for `FI_ATOMIC_READ`.
    pub operands: &'a [Piece],
    /// The comparands, if it compares.
    pub comparands: &'a [Piece],
    /// The destination of the old values, if it fetches.
    pub results: &'a [Piece],
    /// The peer's memory: each piece a multiple of the element's size.
    pub remote: &'a [RemotePiece],
    /// Bytes in all; at most [`Transport::atomic_size`](super::Transport::atomic_size), and not 0.
    pub len: usize,
    /// The peer that has it.
    pub peer: PeerId,
    /// Completion level, inject, fence, more.
    pub flags: OpFlags,
    /// The argument of [`Upcalls::open`](super::Upcalls::open).
    pub ticket: CompletionInfo,
}

/// An outgoing note: a small message from the core of one endpoint to the core of another
/// ([`Upcalls::noted`](super::Upcalls::noted)).
#[derive(Clone, Copy)]
pub struct OutNote<'a> {
    /// The destination.
    pub peer: PeerId,
    /// Its content.
    pub words: [u64; 4],
    /// Memory with its payload.
    pub pieces: &'a [Piece],
    /// The number of their bytes to skip.
    pub skip: usize,
    /// Its length: at most [`Transport::note_size`](super::Transport::note_size).
    pub len: usize,
}
