//! The state of operations that have not ended.

use std::sync::Arc;

use ibv::transfer::Source;
use ofi_api::{Piece, RemotePiece, Result};
use ofi_core::copy;
use ofi_core::transport::{OutAccess, OutRma, Payload, RemoteData};

use crate::domain::{Domain, Local};
use crate::errors::failed;
use crate::few::Few;
use crate::rc::Access;

/// The transport's state of an operation that has not ended.
pub enum Op {
    /// A short message that has not arrived yet.
    Sent,
    /// A message that was injected before its peer was connected.
    Injected,
    /// A short message that waits for the peer's `DONE`.
    Confirm,
    /// A short write or an atomic that the peer executes and answers.
    Access,
    /// A read or write by the device.
    Native(Native),
    /// A request of a connected endpoint, which keeps its state.
    Request,
    /// An announced message that the peer may read.
    Message(Exposed),
    /// A long remote write.
    Write(Payload),
    /// A remote read.
    Read {
        /// Destination of the data.
        pieces: Box<[Piece]>,
        /// Bytes that have arrived.
        got: usize,
        /// Total bytes.
        len: usize,
    },
}

impl Op {
    /// Whether the operation ends with the connection.
    pub fn is_lost(&self) -> bool {
        !matches!(self, Self::Native(native) if native.spared)
    }
}

/// Memory that the peer may read. The registrations are declared first, so that they are dropped before their memory.
pub struct Exposed {
    regions: Vec<Local>,
    /// The memory of the pieces.
    pub sources: Vec<Source>,
    kept: Option<Arc<[u8]>>,
}

impl Exposed {
    /// Registers lent memory, or a copy of the data.
    pub fn new(domain: &Domain, pieces: &[Piece], len: usize, copy: bool) -> Result<Self> {
        // SAFETY: the core lends the pieces of the operations that it posts.
        let kept: Option<Arc<[u8]>> = copy.then(|| unsafe { copy::copied(pieces, len) }.into());
        let whole = kept.as_ref().map(|kept| [Piece::new(kept.as_ptr().cast_mut(), kept.len())]);
        let pieces = whole.as_ref().map_or(pieces, |whole| &whole[..]);
        let (mut regions, mut sources) = (Vec::new(), Vec::new());
        for (addr, len) in copy::runs(pieces, 0, len) {
            let region = if copy {
                // SAFETY: the memory is kept here; the device only reads it.
                let register = || unsafe { domain.device.register(addr, len, Access::RemoteRead) };
                domain.cache.with_room(register).map(Arc::new)
            } else {
                // SAFETY: the memory is lent until the operation ends.
                unsafe { domain.exposed(addr, len) }
            };
            let region = region.map_err(|error| failed(&error))?;
            sources.push(Source { addr: addr as u64, len, rkey: region.rkey() });
            regions.push(region);
        }
        debug_assert_eq!(regions.len(), sources.len());
        Ok(Self { regions, sources, kept })
    }

    /// Copies the data for the library, so that the application gets its lent memory back when this value is dropped.
    /// `None` if no memory is lent.
    ///
    /// Afterwards the peer cannot read the lent memory, unless other messages are sent from the same registration: then
    /// the receiver may get bytes that the application wrote later.
    pub fn moved(&self, domain: &Domain) -> Result<Option<Self>> {
        if self.kept.is_some() || self.sources.is_empty() {
            return Ok(None);
        }
        let piece = |source: &Source| Piece::new(source.addr as *mut u8, source.len);
        let pieces: Vec<Piece> = self.sources.iter().map(piece).collect();
        let len = self.sources.iter().map(|source| source.len).sum();
        let moved = Self::new(domain, &pieces, len, true)?;
        self.regions.iter().for_each(|region| domain.cache.retire(region));
        Ok(Some(moved))
    }

    /// Number of registrations.
    pub fn regions(&self) -> usize {
        self.regions.len()
    }
}

/// Identifies a payload at its sender (`Transport::Token`).
#[derive(Clone, Debug)]
pub struct Token {
    /// The sender's operation.
    pub op: u64,
    /// Flags of the announcement.
    pub flags: u8,
    /// The payload's memory at the sender.
    pub sources: Box<[Source]>,
}

/// An access with one piece at both ends.
pub struct One {
    /// A write, or a read.
    pub write: bool,
    /// Local memory.
    pub piece: Piece,
    /// The peer's memory, as long as the piece, which is not empty.
    pub remote: RemotePiece,
    /// Whether the application gets its memory back when the call returns.
    pub injected: bool,
}

impl From<&OutAccess> for One {
    #[inline]
    fn from(out: &OutAccess) -> Self {
        Self { write: out.write, piece: out.piece, remote: out.remote, injected: false }
    }
}

/// Where the device reads or writes the bytes of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMemory {
    /// In the request, which is a write. The application's memory still holds them.
    Request,
    /// In a slot.
    Slot,
    /// In the application's memory.
    Memory,
}

/// The state of an access by the device, which suffices to request it from the memory's owner instead.
pub struct Native {
    /// Memory of this end.
    pub pieces: Few<Piece>,
    pub remote: Few<RemotePiece>,
    place: AccessMemory,
    /// For [`AccessMemory::Request`], a copy of the application's bytes, made when it got its memory back.
    pub kept: Option<Box<[u8]>>,
    pub write: bool,
    pub data: Option<RemoteData>,
    pub len: usize,
    /// Its number among the peer's accesses.
    pub number: u64,
    /// Whether it is sent to the owner instead of ending with the connection.
    pub spared: bool,
}

impl Native {
    /// The state of access `number` of a peer.
    pub fn new(out: &OutRma<'_>, number: u64, place: AccessMemory) -> Self {
        Self {
            pieces: out.pieces.into(),
            remote: out.remote.into(),
            place,
            kept: None,
            write: out.write,
            data: out.remote_data(),
            len: out.len,
            number,
            spared: false,
        }
    }

    /// The same for an access without a message for the peer.
    #[inline(always)]
    pub fn single(one: &One, number: u64, place: AccessMemory) -> Self {
        Self {
            pieces: Few::One([one.piece]),
            remote: Few::One([one.remote]),
            place,
            kept: None,
            write: one.write,
            data: None,
            len: one.piece.len,
            number,
            spared: false,
        }
    }

    /// Whether the peer reports the end of the access, too.
    pub const fn is_told(&self) -> bool {
        self.data.is_some()
    }

    /// Returns this end's memory to the application: the data of a read is discarded. `false`: the device uses that
    /// memory itself.
    pub fn forget(&mut self) -> bool {
        match self.place {
            AccessMemory::Memory => return false,
            // SAFETY: the pieces are lent until this call returns.
            AccessMemory::Request => self.kept = Some(unsafe { copy::copied(&self.pieces, self.len) }),
            AccessMemory::Slot => {}
        }
        self.pieces = Few::default();
        true
    }

    /// For a read, its destination and length.
    pub fn read_into(&self) -> Option<(&[Piece], usize)> {
        (!self.write).then_some((&self.pieces, self.len))
    }
}
