//! The transport's state of an operation that has not ended.

use ofi_api::{Piece, RemotePiece};
use ofi_core::transport::{Payload, PeerId, RemoteData};

use crate::domain::{Domain, Local};
use crate::held::InUse;
use crate::ranges::Ranges;
use crate::srd::Remote;
use crate::wire::Message;

/// This transport's state of an operation that has not ended.
pub struct Op {
    pub work: Work,
    /// Number of packets of the operation that have not arrived yet.
    pub unacked: u32,
    /// Whether packets of the operation remain to be built.
    pub making: bool,
    /// Whether the operation waits for the peer.
    pub awaits: bool,
    /// The operation's number for the peer; 0 if it has none.
    pub id: u32,
}

/// The kind of work of an operation.
pub enum Work {
    /// The bytes are in packets.
    Packed,
    /// The bytes are to be sent.
    Out {
        payload: Payload,
        /// Total bytes.
        len: usize,
        /// Bytes that are in packets or streams.
        done: usize,
    },
    /// The bytes will arrive.
    In {
        /// Their destination.
        pieces: Box<[Piece]>,
        len: usize,
        got: usize,
        /// The parts that have arrived.
        arrived: Ranges,
        /// Bytes that the peer was cleared to send.
        cleared: usize,
        /// The peer's number of the operation, once known.
        peer_id: Option<u32>,
    },
    /// The peer reads the bytes.
    Lent(Box<Lent>),
    /// The device reads or writes the peer's memory.
    Native(Native),
    /// The operation is one request of the device.
    SingleWr(SingleWr),
}

/// A message that its receiver reads.
pub struct Lent {
    pub payload: Payload,
    pub len: usize,
    /// Bytes that are sent ahead in packets.
    pub runt: usize,
    /// The message that announced the payload.
    pub message: Message<'static>,
    /// The registrations through which the peer reads.
    pub regions: Vec<Local>,
}

impl Lent {
    /// Ends its registrations, unless other messages are sent from them. A peer that does not know that the message has
    /// ended would otherwise read, and deliver, what the application writes there later.
    pub fn retire(&self, domain: &Domain) {
        self.regions.iter().for_each(|region| domain.cache.retire(region));
    }
}

/// An access by the device. Its state suffices to request the access from the memory's owner instead.
pub struct Native {
    pub write: bool,
    pub pieces: Box<[Piece]>,
    pub remote: Box<[RemotePiece]>,
    pub len: usize,
    pub told: Option<RemoteData>,
}

/// An operation of one request, with all state that its completion needs. The completion contains the operation's
/// number.
#[derive(Debug)]
pub struct SingleWr {
    pub peer: PeerId,
    pub kind: SingleKind,
    /// The application's memory.
    pub piece: Piece,
    /// Its registration.
    pub lkey: u32,
    /// The peer's memory.
    pub at: Remote,
    /// Immediate data for the peer.
    pub data: Option<u32>,
    pub memory: HeldMemory,
    /// The application has given the operation up.
    pub given_up: bool,
}

/// The kind of a one-request operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SingleKind {
    Send,
    Read,
    Write,
}

/// The memory that an operation holds while the device has its request.
#[derive(Debug)]
pub enum HeldMemory {
    /// None: the operation has no bytes.
    Nothing,
    /// The slot that holds its bytes.
    Slot(u32),
    /// The registration of the application's memory.
    Region(InUse),
}

impl SingleWr {
    /// Whether the device uses the application's memory.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, HeldMemory::Region(_))
    }
}

impl Op {
    /// An operation of one packet.
    pub fn packed(awaits: bool) -> Self {
        Self { work: Work::Packed, unacked: 1, making: false, awaits, id: 0 }
    }

    /// An operation of one request of the device.
    #[inline(always)]
    pub fn alone(alone: SingleWr) -> Self {
        Self { work: Work::SingleWr(alone), unacked: 0, making: false, awaits: true, id: 0 }
    }
}
