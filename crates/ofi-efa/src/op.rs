//! What is kept of an operation that has not ended.

use ofi_api::{Piece, RemotePiece};
use ofi_core::transport::{Payload, Peer, RemoteData};

use crate::held::InUse;
use crate::srd::{Region, Remote};
use crate::wire::Message;

/// What this transport keeps of an operation that has not ended.
pub struct Op {
    pub work: Work,
    /// Packets of it that have not arrived yet.
    pub unacked: u32,
    /// Packets of it are still to be made.
    pub making: bool,
    /// The peer is to say something.
    pub awaits: bool,
    /// Its number for the peer; 0: none.
    pub id: u32,
}

/// What an operation is about.
pub enum Work {
    /// Its bytes are in packets.
    Packed,
    /// Its bytes are to be sent.
    Out {
        payload: Payload,
        /// Bytes in all.
        len: usize,
        /// Bytes in packets, or in streams.
        done: usize,
    },
    /// Bytes are to come.
    In {
        /// Where they go.
        pieces: Box<[Piece]>,
        len: usize,
        got: usize,
        /// Bytes that the peer may send.
        cleared: usize,
        /// Its number at the peer, once that is known.
        peer_id: Option<u32>,
    },
    /// The peer reads its bytes.
    Lent(Box<Lent>),
    /// The device reads or writes the peer's memory.
    Native(Native),
    /// It is one request of the device.
    Alone(Alone),
}

/// A message that its receiver reads.
pub struct Lent {
    pub payload: Payload,
    pub len: usize,
    /// Bytes that are sent ahead in packets.
    pub runt: usize,
    /// What it was announced by.
    pub message: Message<'static>,
    /// What lets the peer read it.
    pub regions: Vec<Box<dyn Region>>,
}

/// An access, as its owner would have to be asked for it.
pub struct Native {
    pub write: bool,
    pub pieces: Box<[Piece]>,
    pub remote: Box<[RemotePiece]>,
    pub len: usize,
    pub told: Option<RemoteData>,
}

/// An operation of one request: all that the request's end needs, as it ends under the operation's number.
#[derive(Debug)]
pub struct Alone {
    pub peer: Peer,
    pub kind: Kind,
    /// The application's memory.
    pub piece: Piece,
    /// Its registration.
    pub lkey: u32,
    /// The peer's memory.
    pub at: Remote,
    /// What the peer is told.
    pub data: Option<u32>,
    pub memory: Memory,
}

/// What such an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Send,
    Read,
    Write,
}

/// What an operation holds while its request is the device's.
#[derive(Debug)]
pub enum Memory {
    /// Nothing: it has no bytes.
    Nothing,
    /// A slot, which its bytes go through.
    Slot(u32),
    /// The registration of the application's memory.
    Region(InUse),
}

impl Alone {
    /// Whether the device uses the application's memory.
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Region(_))
    }
}

impl Op {
    /// Of one packet.
    pub fn packed(awaits: bool) -> Self {
        Self { work: Work::Packed, unacked: 1, making: false, awaits, id: 0 }
    }

    /// Of one request of the device.
    #[inline(always)]
    pub fn alone(alone: Alone) -> Self {
        Self { work: Work::Alone(alone), unacked: 0, making: false, awaits: true, id: 0 }
    }
}
