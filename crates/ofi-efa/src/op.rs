//! What is kept of an operation that has not ended.

use ofi_api::Piece;
use ofi_core::transport::Payload;

use crate::native::Native;
use crate::single::Alone;
use crate::srd::Region;
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
