//! Work requests: their memory, their options, and their operation.

use std::ffi::c_int;

use crate::abi::*;
use crate::error::{Error, Result};

/// Maximum number of pieces of a request.
pub(crate) const MAX_PIECES: usize = 16;

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte.
    pub addr: *mut u8,
    /// Its length in bytes. A work request moves at most 2 GiB.
    pub len: u32,
    /// The key of its registration.
    pub lkey: u32,
}

impl Segment {
    pub(crate) fn into_sge(self) -> ibv_sge {
        ibv_sge { addr: self.addr as u64, length: self.len, lkey: self.lkey }
    }
}

/// A peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Its first byte.
    pub addr: u64,
    /// The key, from the peer.
    pub rkey: u32,
}

/// The options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Post {
    /// The request starts once all earlier reads have completed.
    pub fence: bool,
    /// The bytes are copied into the request ([`crate::QueuePair::inline_size`]): the memory needs no registration, and
    /// the caller owns it again when the call returns.
    pub inline: bool,
    /// Unsignaled: the device does not report success. The request has ended once a later request of the queue pair has
    /// completed. A failure is always reported.
    pub quiet: bool,
}

impl Post {
    pub(crate) fn flags(self) -> u32 {
        let set = |on: bool, flag| if on { flag } else { 0 };
        set(!self.quiet, IBV_SEND_SIGNALED)
            | set(self.fence, IBV_SEND_FENCE)
            | set(self.inline, IBV_SEND_INLINE)
    }
}

/// The operation of a request, with optional immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Sends a message, into a receive of the peer.
    Send(Option<u32>),
    /// Writes the peer's memory. Immediate data consumes a receive of the peer.
    Write(Remote, Option<u32>),
    /// Reads the peer's memory.
    Read(Remote),
    /// Adds to an aligned number of 8 bytes in the peer's memory, and reads its old value.
    FetchAdd(Remote, u64),
    /// Replaces an aligned number of 8 bytes by `new` if it equals `expected`, and reads its old value.
    CompareSwap {
        /// The number.
        at: Remote,
        /// The expected value.
        expected: u64,
        /// The new value.
        new: u64,
    },
}

/// Copies the pieces of a request to the driver's format, and returns their number.
pub(crate) fn gather(
    call: &'static str,
    room: &mut [ibv_sge; MAX_PIECES],
    pieces: &[Segment],
) -> Result<c_int> {
    let Some(room) = room.get_mut(..pieces.len()) else {
        return Err(Error::with(call, libc::EINVAL, "a request takes at most 16 pieces"));
    };
    for (piece, segment) in room.iter_mut().zip(pieces) {
        *piece = segment.into_sge();
    }
    Ok(pieces.len() as c_int)
}
