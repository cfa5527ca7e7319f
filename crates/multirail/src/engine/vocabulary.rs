//! The input and output types of the engine.

use std::sync::Arc;
use std::time::Duration;

use ofi::Errno;
use ofi_core::slots::SlotId;

use super::row::MAX_ROW_LEN;
use super::transfer::{Piece, Way};
use crate::wire::RailInfo;
use crate::wire::message::LeasedKey;

/// Time since the start of the engine.
pub type Time = Duration;

/// Limits and timeouts of an agent. `Config::default()` has the defaults given with each field.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time after which the agent looks again for devices that `auto` and patterns ([`RailList`](crate::RailList)) name
    /// and that have no rail yet, and for lost devices of any rail: they become rails, at most 32 in all, lost ones
    /// included. With 0 it does not. Default: 10 s.
    pub rails_interval: Duration,
    /// Minimum length of a descriptor, in bytes, that is cut over the paths. Default: 128 KiB.
    pub striping_threshold: u64,
    /// Minimum length of a part of a descriptor, in bytes. Default: 64 KiB.
    pub smallest_chunk: u64,
    /// Maximum length of an access, in bytes. Default: 4 MiB.
    pub largest_access: u64,
    /// Successive short descriptors that use one path. Default: 16.
    pub batch: u32,
    /// Time after which a session that did not open fails. Default: 10 s.
    pub connect_timeout: Duration,
    /// Time between greetings. Default: 250 ms.
    pub greeting_interval: Duration,
    /// Time after which an unanswered message is repeated on another path. It doubles with each repetition. Default:
    /// 500 ms.
    pub repeat_after: Duration,
    /// A path is abandoned if no operation completes on it for this time, while some complete on another path. Its
    /// parts move to other paths if its rail and the peer ensure within half of this time that none arrives late;
    /// otherwise transfers with a part on it fail with `FI_ETIMEDOUT`. The slowest rail must carry `largest_access` in
    /// this time. Default: 10 s.
    pub stall_timeout: Duration,
    /// Maximum number of known peers. Default: 2^20.
    pub most_peers: usize,
    /// Maximum number of peers that are known by their greeting alone. Any process that knows the agent's incarnation
    /// can greet, under any names. The one without an open session for longest is forgotten for a new one, unless
    /// transfers wait for its session; if there is none, the new one is refused. Peers whose metadata was loaded do not
    /// count. Default: 65,536.
    pub most_greeters: usize,
    /// Maximum known regions of one peer. Default: 262,144.
    pub most_regions: usize,
    /// Maximum length of a notification that is sent or received, in bytes. Default: 16 MiB.
    pub longest_notification: usize,
    /// Maximum bytes that all peers together may make the agent keep: notifications that are incomplete or that the
    /// program has not taken, and the marks of counted writes. Beyond it, the session that keeps the most ends; its
    /// peer's transfers fail, and [`Event::Down`] has `FI_ENOBUFS`. At least twice `longest_notification`. Default:
    /// 32 MiB.
    pub most_kept: usize,
    /// Maximum bytes that devices register a second time for one peer's writes, so that the writes of a mute rail can
    /// be fenced. For rails of `efa`; other providers need no second registration. Registering takes time and pins the
    /// memory once more (`RLIMIT_MEMLOCK`). Regions beyond the limit share one second registration among all peers, so
    /// fencing one peer makes the others request new keys. With 0 there is no second registration, and transfers fail
    /// if such a rail goes mute. Default: 1 GiB.
    pub most_leased: u64,
    /// Whether the receiver counts the writes of a transfer, so that the notification travels beside them. Otherwise
    /// the notification follows when all writes have completed. Default: true.
    pub count_writes: bool,
    /// Whether a transfer of a peer is done only when this agent's program has taken its notification. Otherwise it is
    /// done when the notification has arrived, if there is room: at most 8 MiB for each peer, and half of `most_kept`
    /// for all peers. A notification that was not taken is lost if this agent ends. Either way a peer may have 512
    /// notifications or 8 MiB here that the program has not taken; its next one waits. Default: true.
    pub acknowledge_taken: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            rails_interval: Duration::from_secs(10),
            striping_threshold: 128 << 10,
            smallest_chunk: 64 << 10,
            largest_access: 4 << 20,
            batch: 16,
            connect_timeout: Duration::from_secs(10),
            greeting_interval: Duration::from_millis(250),
            repeat_after: Duration::from_millis(500),
            stall_timeout: Duration::from_secs(10),
            most_peers: 1 << 20,
            most_greeters: 1 << 16,
            most_regions: 1 << 18,
            longest_notification: 16 << 20,
            most_kept: 32 << 20,
            most_leased: 1 << 30,
            count_writes: true,
            acknowledge_taken: true,
        }
    }
}

/// One of our rails.
#[derive(Clone, Debug)]
pub struct RailSpec {
    /// The rail's description for peers.
    pub info: RailInfo,
    /// Bytes per second of its NIC, if known.
    pub bandwidth: Option<f64>,
    /// Whether writes carry 64 bits of remote CQ data.
    pub wide_data: bool,
    /// Whether each peer has a connection of its own, which [`Sink::sever`](super::Sink::sever) ends.
    pub severs: bool,
    /// Operations that the endpoint takes at a time, to all peers together.
    pub operations: u32,
}

/// Names an operation: an access of a row, or a message.
///
/// The upper half is the generation of its slot. In the lower half, the highest bit is set for a message, and the other
/// bits are its slot's index. For an access that bit is 0, the lowest bits are its place in the row, and the others are
/// the row's index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OpId(u64);

impl OpId {
    const MESSAGE: u64 = 1 << 31;
    /// Bits for the place in a row. They leave 25 for the index, which is enough for more operations in flight than a
    /// rail takes.
    const PLACE: u32 = MAX_ROW_LEN.trailing_zeros();

    /// The id as the context of an operation.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The id from the context of an operation; any bits are permitted.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The first access of a row.
    pub(super) const fn access(row: SlotId) -> Self {
        let bits = row.to_wire();
        Self(bits & GENERATION | (bits & !GENERATION) << Self::PLACE)
    }

    /// The next access in the row.
    pub(super) const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Access `nth` of the row whose first access this is.
    pub(super) const fn nth(self, nth: u32) -> Self {
        Self(self.0 + nth as u64)
    }

    pub(super) const fn message(slot: SlotId) -> Self {
        Self(slot.to_wire() | Self::MESSAGE)
    }

    /// The operation that the id names.
    #[inline]
    pub(super) const fn named(self) -> Named {
        if self.0 & Self::MESSAGE != 0 {
            return Named::Message(SlotId::from_wire(self.0 & !Self::MESSAGE));
        }
        let index = (self.0 & !GENERATION) >> Self::PLACE;
        Named::Access(SlotId::from_wire(self.0 & GENERATION | index), self.place())
    }

    /// The most accesses that a row has from this one on.
    #[inline]
    pub(crate) const fn left_in_row(self) -> u32 {
        MAX_ROW_LEN - self.place()
    }

    /// The place of the access in its row.
    pub(super) const fn place(self) -> u32 {
        self.0 as u32 & (MAX_ROW_LEN - 1)
    }
}

/// The bits of a slot's generation.
const GENERATION: u64 = 0xFFFF_FFFF_0000_0000;

/// The operation that an [`OpId`] names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// An access: its row, and its place there.
    Access(SlotId, u32),
    Message(SlotId),
}

/// Names a transfer: 64 bits that are unique among the agent's transfers as long as it lives.
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

/// Work that is handed to the rails later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Insert an address into a rail's vector.
    Insert { path: PathId, rail: usize, format: u32, address: Vec<u8> },
    /// Remove an address.
    Remove { rail: usize, addr: u64 },
    /// Send a message.
    Send { path: PathId, op: OpId, rail: usize, addr: u64, bytes: Vec<u8> },
    /// A read or write of this path for which the rail had no room.
    Access(PathId, Access),
    /// Abandon the accesses of a row; reads by this time.
    Abandon { row: SlotId, until: Time },
    /// Give up the accesses of transfers that have failed or were cancelled.
    GiveUp,
    /// End the connection of a session's path.
    Sever { session: SlotId, path: usize },
    /// Ask the peer to fence the lost chunks of a session.
    Fence { session: SlotId },
    /// Lease keys of our region to a peer.
    Lease { session: SlotId, region: u64 },
    /// Give a peer keys of our region on all rails, or on those near it.
    Widen { session: SlotId, region: u64, is_all: bool },
    /// Close keys that were leased to a peer, and answer it. `out` is a part of the answer.
    Close { session: SlotId, serial: u64, keys: Vec<LeasedKey>, out: Vec<u64> },
    /// Close all keys that were leased to the session with this tag.
    EndLeases { tag: u64 },
}

impl Command {
    /// The path and the rail on which the command needs room.
    pub(super) fn needs_room(&self) -> Option<(PathId, usize)> {
        match self {
            Self::Send { path, rail, .. } => Some((*path, *rail)),
            Self::Access(path, access) => Some((*path, access.rail)),
            Self::Insert { .. }
            | Self::Remove { .. }
            | Self::Abandon { .. }
            | Self::GiveUp
            | Self::Sever { .. }
            | Self::Fence { .. }
            | Self::Lease { .. }
            | Self::Widen { .. }
            | Self::Close { .. }
            | Self::EndLeases { .. } => None,
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
    /// The peer's number in the rail's address vector.
    pub addr: u64,
    /// The direction.
    pub way: Way,
    /// Index of the plan's local region.
    pub region: u32,
    /// First local byte: [`Piece::local`] plus the offset.
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
    /// Advances to the next access of a row: from the descriptor `this` to its successor.
    #[inline]
    pub(crate) fn follow(&mut self, this: &Piece, next: &Piece) {
        self.op = self.op.next();
        (self.region, self.local, self.len) = (next.region, next.local, next.len);
        self.remote = self.remote.wrapping_sub(this.remote).wrapping_add(next.remote);
        if let Some(data) = &mut self.data {
            *data += 1;
        }
    }
}

/// An event of a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A session is open.
    Up(Arc<str>),
    /// The session has ended, for this reason.
    Down(Arc<str>, Errno),
    /// The peer has restarted (another incarnation): its memory has new keys.
    Restarted(Arc<str>),
}

/// The receiver of a notification. It travels as the last byte, which the receiving agent removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The peer's program.
    Program,
    /// The peer's code that serves device memory.
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
    /// The sender's name.
    pub peer: Arc<str>,
    /// Its bytes, as the sender gave them.
    pub bytes: Vec<u8>,
}

/// Counters of an agent, since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages that could not be parsed, or have another version.
    pub malformed: u64,
    /// Messages and writes that belong to no session, for example late ones of an ended session.
    pub strays: u64,
    /// Fragments that contradict others or the bounds.
    pub refused: u64,
    /// Completions that belong to no operation.
    pub stale: u64,
    /// Parts of transfers that moved to another path.
    pub moved: u64,
    /// Messages that were repeated on another path.
    pub repeated: u64,
    /// Paths that were abandoned because no operation completed on them.
    pub fenced: u64,
    /// Sessions that were ended because peers made the agent keep too much ([`Config::most_kept`]).
    pub evicted: u64,
}

/// The current state of a path: one of our rails to one of the peer's.
#[derive(Clone, Debug, PartialEq)]
pub struct PathState {
    /// Our rail.
    pub rail: usize,
    /// The peer's.
    pub remote: usize,
    /// Whether new operations use it.
    pub up: bool,
    /// Measured bandwidth, in bytes per second.
    pub bandwidth: f64,
    /// Bytes of successful operations.
    pub moved: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Bytes in flight.
    pub in_flight: u64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any slot, different operations have different names, and a name leads back to its slot.
        #[test]
        fn names_are_taken_apart_as_they_were_made(generation in 1..=u32::MAX, index in 0_u32..1 << 25, place in 0..MAX_ROW_LEN) {
            let slot = SlotId::from_wire(u64::from(generation) << 32 | u64::from(index));
            let access = (0..place).fold(OpId::access(slot), |op, _| op.next());
            prop_assert_eq!(OpId::from_bits(access.to_bits()).named(), Named::Access(slot, place));
            prop_assert_eq!(OpId::message(slot).named(), Named::Message(slot));
        }
    }
}
