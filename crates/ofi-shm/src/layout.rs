//! The layout of shared memory. Offsets are in bytes; all words are atomic, all memories sealed.
//!
//! ```text
//! endpoint memory   one for each endpoint, written by its owner, read-only for every peer
//! doorbell memory   one for each endpoint, written by everybody: a byte for each peer, which is only a hint
//! pair memory       two for each pair of endpoints, each written by one end and read-only for the other
//! ring of commands  beside each pair memory, written by its owner; the other end, which reads it, may write it too
//! bulk memory       like the ring of commands, created for the first large payload
//! ```

/// A cache line.
pub const LINE: usize = 64;

/// Endpoint memory.
pub mod endpoint {
    /// Whether the owner may be asleep (`u32`): see `ofi_ring::doorbell`.
    pub const SLEEPING: usize = 64;
    /// Not 0 if the owner lacks the barrier that spares its peers a fence (`u32`).
    pub const FENCE: usize = 128;
    /// Generation of each grant slot (`u32` each): a grant of another generation is void.
    pub const GRANTS: usize = 1024;
    /// Number of grant slots.
    pub const GRANT_SLOTS: usize = 768;
    /// Size of the memory.
    pub const SIZE: usize = 4096;
}

/// Doorbell memory.
pub mod doorbell {
    /// One hint byte for each peer.
    pub const HINTS: usize = 16_384;
    /// Size of the memory.
    pub const SIZE: usize = HINTS;
}

/// Size classes of `pair::COPY_COSTS`, by powers of two from 1 KiB on.
pub const COPY_CLASSES: usize = 5;

/// Pair memory.
pub mod pair {
    /// How far the owner has read the other end's commands (`u64`, lines).
    pub const COMMANDS_READ: usize = 128;
    /// How far the owner has read the other end's replies (`u64`, lines).
    pub const REPLIES_READ: usize = 256;
    /// How far the owner has read the other end's bulk memory (`u64`, lines).
    pub const BULK_READ: usize = 320;
    /// Whether the owner wants its doorbell rung (`u32`): see `ofi_ring::doorbell`.
    pub const ATTENTION: usize = 384;
    /// The owner's wish ([`wish`](super::wish), `u32`). Next to `ATTENTION`, because the sender reads both.
    pub const WISH: usize = 388;
    /// One more than the grant slot that the owner is copying through, 0 for none (`u64`).
    pub const COPYING: usize = 512;
    /// Single copies (`single/`) into the owner's memory: the ticket of the copy that the other end may write, 0 for
    /// none, and the owner's progress from the front (`u64` each).
    pub const TARGET: usize = 576;
    pub const FRONT: usize = 584;
    /// Single copies from the owner's memory: the ticket of the copy that it is writing now, the bytes from the end
    /// that it has claimed, and the bytes that it has written (`u64` each).
    pub const WRITING: usize = 640;
    pub const CLAIMED: usize = 648;
    pub const WRITTEN: usize = 656;
    /// What it costs the owner to copy a byte of the other end's payloads out of its rings, by size class: two `f32` in
    /// a `u64`, for payloads written by plain and by streaming stores (`stores.rs`); 0 while unknown.
    pub const COPY_COSTS: usize = 704;
    /// Messages whose payload the other end may read from the owner's memory: a ticket each, 0 for none (`u64` each).
    pub const LENT: usize = 1024;
    /// The maximum number at a time. Others go through the bulk ring.
    pub const LENT_SLOTS: usize = 64;
    /// The ring of replies.
    pub const REPLIES: usize = 4096;
    /// Lines of the ring of replies.
    pub const REPLY_LINES: usize = 64;
    /// Size of the memory.
    pub const SIZE: usize = REPLIES + REPLY_LINES * super::LINE;
}

/// What the owner of a pair memory asks of the other end.
pub mod wish {
    /// None: send without restriction.
    pub const NONE: u32 = 0;
    /// Keep payloads, because the budget for unexpected ones is used up. Announce messages instead.
    pub const KEEP: u32 = 1;
    /// The owner has closed its endpoint.
    pub const CLOSED: u32 = 2;
}
