//! Accesses of the peer that this end executes in parts.

use ofi_api::{Errno, RemotePiece};
use ofi_core::transport::RemoteData;

/// A long write of the peer that this end executes.
pub struct ServedWrite {
    pub op: u64,
    pub remote: Vec<RemotePiece>,
    pub got: usize,
    pub len: usize,
    pub data: Option<RemoteData>,
    pub failed: Option<Errno>,
}

/// A read of the peer that this end executes.
pub struct ServedRead {
    pub op: u64,
    pub remote: Vec<RemotePiece>,
    pub done: usize,
    pub len: usize,
}
