//! What this end does for the peer.

use ofi_api::{Errno, RemotePiece};
use ofi_core::slots::Slots;
use ofi_core::transport::RemoteData;

use crate::lend::Lend;

/// A long write of the peer, being executed here.
pub struct ServedWrite {
    pub op: u64,
    pub remote: Box<[RemotePiece]>,
    pub got: usize,
    pub len: usize,
    pub data: Option<RemoteData>,
    pub failed: Option<Errno>,
    /// How long it takes is measured (`single/`).
    pub measured: bool,
}

/// A read of the peer that it is asked to choose a way for.
pub struct ServedRead {
    /// The peer's operation.
    pub op: u64,
    pub piece: RemotePiece,
    _lend: Option<Lend>,
}

impl ServedRead {
    /// Of the peer's operation `op`, for which `lend` is open.
    pub const fn new(op: u64, piece: RemotePiece, lend: Option<Lend>) -> Self {
        Self { op, piece, _lend: lend }
    }
}

/// Long accesses of the peer that are being served here.
#[derive(Default)]
pub struct Served {
    /// How many there are: its commands wait.
    pub serving: usize,
    pub writes: Slots<ServedWrite>,
    /// Reads that it is asked to choose a way for.
    pub reads: Vec<ServedRead>,
}
