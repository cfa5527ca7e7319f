//! What goes into the engine and comes out of it.

use std::sync::Arc;
use std::time::Duration;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::row::LONGEST_ROW;
use super::transfer::{Piece, Way};
use crate::wire::RailInfo;

/// Time since the engine began.
pub type Time = Duration;

/// What the engine's choices are made by.
#[derive(Clone, Debug)]
pub struct Config {
    /// Descriptors of this length and more are cut over the paths.
    pub striping_threshold: u64,
    /// Shortest part that a descriptor is cut into.
    pub smallest_chunk: u64,
    /// Longest access that is posted at once.
    pub largest_access: u64,
    /// Successive short descriptors that use one path.
    pub batch: u32,
    /// How long a session may take to open.
    pub connect_timeout: Duration,
    /// Time between greetings.
    pub greeting_interval: Duration,
    /// How long nothing is heard of a message before it is repeated on another path. The time doubles with each
    /// repetition.
    pub repeat_after: Duration,
    /// How long operations of a path may be under way without one that ends, while some end on another path. Then the
    /// path is left alone, and transfers with a part there fail with `FI_ETIMEDOUT`: the part may still arrive, so it
    /// cannot go elsewhere. The slowest rail must carry `largest_access` in this time.
    pub stall_timeout: Duration,
    /// Most peers.
    pub most_peers: usize,
    /// Longest notification.
    pub longest_notification: usize,
    /// Whether the receiver counts writes, so that the notification travels beside them; otherwise it follows when all
    /// of them have ended.
    pub count_writes: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            striping_threshold: 128 << 10,
            smallest_chunk: 64 << 10,
            largest_access: 4 << 20,
            batch: 16,
            connect_timeout: Duration::from_secs(10),
            greeting_interval: Duration::from_millis(250),
            repeat_after: Duration::from_millis(500),
            stall_timeout: Duration::from_secs(10),
            most_peers: 1 << 20,
            longest_notification: 16 << 20,
            count_writes: true,
        }
    }
}

/// One of our rails.
#[derive(Clone, Debug)]
pub struct RailSpec {
    /// As peers know it.
    pub info: RailInfo,
    /// Bytes per second of its NIC, if that is known.
    pub bandwidth: Option<f64>,
    /// Whether writes carry 64 bits of remote CQ data.
    pub wide_data: bool,
}

/// Names an operation: an access of a row, or a message.
///
/// The upper half is the generation of its slot. Of the lower half, [`OpId::MESSAGE`] is set for messages, and the rest
/// is their slot's index; without it, the lowest bits say which access of its row it is, and the others are the row's
/// index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(u64);

impl OpId {
    const MESSAGE: u64 = 1 << 31;
    /// Bits for the place in a row. They leave 25 for its index: more rows than that have more operations under way
    /// than a rail takes.
    const PLACE: u32 = LONGEST_ROW.trailing_zeros();

    /// As the context of an operation.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// From the context of an operation; any bits.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The first access of a row.
    pub(super) const fn access(row: SlotId) -> Self {
        let bits = row.to_wire();
        Self(bits & GENERATION | (bits & !GENERATION) << Self::PLACE)
    }

    /// The access that follows in its row.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub(super) const fn message(slot: SlotId) -> Self {
        Self(slot.to_wire() | Self::MESSAGE)
    }

    /// What it is.
    #[inline]
    pub(super) const fn named(self) -> Named {
        if self.0 & Self::MESSAGE != 0 {
            return Named::Message(SlotId::from_wire(self.0 & !Self::MESSAGE));
        }
        let index = (self.0 & !GENERATION) >> Self::PLACE;
        Named::Access(SlotId::from_wire(self.0 & GENERATION | index), self.place())
    }

    /// Which access of its row it is.
    pub(super) const fn place(self) -> u32 {
        self.0 as u32 & (LONGEST_ROW - 1)
    }
}

/// The bits of a slot's generation.
const GENERATION: u64 = 0xFFFF_FFFF_0000_0000;

/// What an [`OpId`] names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// An access: its row, and its place there.
    Access(SlotId, u32),
    Message(SlotId),
}

/// Names a transfer: 64 bits that no other transfer of the agent has while it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId(pub(crate) SlotId);

/// Names a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerId(pub(crate) SlotId);

/// Names a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PathId {
    pub(super) session: SlotId,
    pub(super) path: usize,
}

/// Something to do that is not handed to the rails at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Insert an address into a rail's vector.
    Insert { path: PathId, rail: usize, format: u32, address: Vec<u8> },
    /// Remove an address.
    Remove { rail: usize, addr: u64 },
    /// Send a message.
    Send { op: OpId, rail: usize, addr: u64, bytes: Vec<u8> },
    /// Read or write: the rail had no room for it.
    Access(Access),
}

impl Command {
    /// The rail whose room it needs.
    pub(super) fn rail(&self) -> Option<usize> {
        match self {
            Self::Send { rail, .. } => Some(*rail),
            Self::Access(access) => Some(access.rail),
            Self::Insert { .. } | Self::Remove { .. } => None,
        }
    }
}

/// A remote access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The operation.
    pub op: OpId,
    /// The rail.
    pub rail: usize,
    /// The peer there.
    pub addr: u64,
    /// Whether to read or to write.
    pub way: Way,
    /// Which of the plan's local regions.
    pub region: u32,
    /// First local byte: what [`Piece::local`] says, and the offset.
    pub local: u64,
    /// First remote byte.
    pub remote: u64,
    /// Key of the remote region.
    pub key: u64,
    /// Length in bytes.
    pub len: u64,
    /// Remote CQ data.
    pub data: Option<u64>,
    /// The transfer.
    pub transfer: TransferId,
}

impl Access {
    /// Becomes the next access of a row: from the descriptor `this` to the one that follows it.
    #[inline]
    pub(super) fn follow(&mut self, this: &Piece, next: &Piece) {
        self.op = self.op.next();
        (self.region, self.local) = (next.region, next.local);
        self.remote = self.remote.wrapping_sub(this.remote).wrapping_add(next.remote);
        if let Some(data) = &mut self.data {
            *data += 1;
        }
    }
}

/// Something that happened to a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is open.
    Up(Arc<str>),
    /// The session is over, for this reason.
    Down(Arc<str>, Errno),
    /// The peer is another incarnation than before: its memory has new keys.
    Restarted(Arc<str>),
}

/// For whom a notification is. It travels as the last byte, which is taken off again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The peer's program.
    Program,
    /// What serves the peer's memory that rails do not touch.
    Memory,
}

impl Audience {
    pub(super) const fn byte(self) -> u8 {
        match self {
            Self::Program => 0,
            Self::Memory => 1,
        }
    }

    pub(super) fn of(byte: Option<u8>) -> Option<Self> {
        [Self::Program, Self::Memory].into_iter().find(|audience| Some(audience.byte()) == byte)
    }
}

/// A notification of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    /// Who sent it.
    pub peer: Arc<str>,
    /// What it says.
    pub bytes: Vec<u8>,
}

/// What was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that were none, or of another version.
    pub malformed: u64,
    /// Messages and writes of no session, such as late ones of one that is over.
    pub strays: u64,
    /// Fragments that contradict others or the bounds.
    pub refused: u64,
    /// Completions of no operation.
    pub stale: u64,
    /// Parts of transfers that moved to another path.
    pub moved: u64,
    /// Messages that were repeated on another path.
    pub repeated: u64,
    /// Paths that were left alone because nothing ended there.
    pub fenced: u64,
}

/// A path as it is now.
#[derive(Clone, Debug, PartialEq)]
pub struct PathState {
    /// Our rail.
    pub rail: usize,
    /// The peer's.
    pub remote: usize,
    /// Whether it is used.
    pub up: bool,
    /// Bytes per second, as measured.
    pub bandwidth: f64,
    /// Bytes that have ended well.
    pub moved: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Bytes on their way.
    pub in_flight: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever the slot, operations have names of their own, and their slot is found again.
        #[test]
        fn names_are_taken_apart_as_they_were_made(generation in 1..=u32::MAX, index in 0_u32..1 << 25, place in 0..LONGEST_ROW) {
            let slot = SlotId::from_wire(u64::from(generation) << 32 | u64::from(index));
            let access = (0..place).fold(OpId::access(slot), |op, _| op.next());
            prop_assert_eq!(OpId::from_bits(access.to_bits()).named(), Named::Access(slot, place));
            prop_assert_eq!(OpId::message(slot).named(), Named::Message(slot));
        }
    }
}
