//! Operations of the peer that this end serves.

use ofi_api::{Errno, RemotePiece};
use ofi_core::transport::RemoteData;

/// A long write of the peer that is being executed here.
pub struct ServedWrite {
    pub op: u64,
    pub remote: Vec<RemotePiece>,
    pub got: usize,
    pub len: usize,
    pub data: Option<RemoteData>,
    pub failed: Option<Errno>,
}

/// A read of the peer that is being executed here.
pub struct ServedRead {
    pub op: u64,
    pub remote: Vec<RemotePiece>,
    pub done: usize,
    pub len: usize,
}
