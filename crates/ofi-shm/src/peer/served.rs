//! Operations of the peer that this end serves.

use ofi_api::RemotePiece;
use ofi_core::slots::Slots;
use ofi_core::transport::served::WriteInParts;

use crate::exposed_buffer::ExposedBuffer;

/// A long write of the peer, being executed here.
pub struct ServedWrite {
    pub write: WriteInParts,
    /// Its duration is measured (`single/`).
    pub is_measured: bool,
}

/// A read for which the peer chooses the path.
pub struct ServedRead {
    /// The peer's operation.
    pub op: u64,
    pub piece: RemotePiece,
    _lend: Option<ExposedBuffer>,
}

impl ServedRead {
    /// For the peer's operation `op`, with `lend` open.
    pub const fn new(op: u64, piece: RemotePiece, lend: Option<ExposedBuffer>) -> Self {
        Self { op, piece, _lend: lend }
    }
}

/// Long accesses of the peer that are being served here.
#[derive(Default)]
pub struct Served {
    /// Their number: the peer's commands wait.
    pub serving: usize,
    pub writes: Slots<ServedWrite>,
    /// Reads for which the peer chooses the path.
    pub reads: Vec<ServedRead>,
}
