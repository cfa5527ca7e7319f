//! The queued records of a peer.

use ofi_core::slots::SlotId;

/// A record that waits for credits or room.
pub struct Frame {
    pub bytes: Box<[u8]>,
    pub mark: Option<u64>,
}

impl Frame {
    /// Its length.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// An entry of the command queue.
pub enum Item {
    Frame(Frame),
    /// The parts of a long write.
    Parts {
        id: SlotId,
        done: usize,
        len: usize,
    },
}
