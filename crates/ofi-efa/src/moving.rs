//! The state of payloads in flight, and their memory at both ends.

use std::collections::VecDeque;

use ibv::transfer::Step;
use ofi_api::RemotePiece;
use ofi_core::domain::RegionData;
use ofi_core::keys::Grant;
use ofi_core::slots::SlotId;
use ofi_core::transport::{PeerId, RemoteData};

use crate::domain::Local;
use crate::ranges::Ranges;
use crate::srd::Status;
use crate::wire::{Iov, Iovs};

/// The destination of incoming data.
pub enum Target {
    /// Into a receive.
    Receive(SlotId),
    /// Into registered memory, for a write of the peer.
    Region { remote: Vec<RemotePiece>, data: Option<RemoteData> },
    /// The data is discarded.
    Nowhere,
}

/// Incoming data of the peer.
pub struct Incoming {
    pub peer: PeerId,
    pub target: Target,
    /// Total bytes.
    pub len: usize,
    pub got: usize,
    /// The parts that have arrived.
    pub arrived: Ranges,
    /// Bytes that the peer was cleared to send.
    pub cleared: usize,
    /// The sender's number of the payload.
    pub send_id: u32,
    /// The id of the message for which the sender wants a receipt.
    pub receipt: Option<u32>,
    /// The message id, if it is a message.
    pub msg_id: u32,
    /// The sender's memory, if this end reads the payload.
    pub source: Option<Box<Iovs>>,
    /// Whether this end reads the payload, and reports when it is done.
    pub is_read: bool,
}

impl Incoming {
    /// Creates the state of a payload of `len` bytes, none of which have arrived.
    pub fn new(peer: PeerId, len: usize, send_id: u32) -> Self {
        Self {
            peer,
            target: Target::Nowhere,
            len,
            got: 0,
            arrived: Ranges::default(),
            cleared: 0,
            send_id,
            receipt: None,
            msg_id: 0,
            source: None,
            is_read: false,
        }
    }

    /// The receive that it fills.
    pub fn receive(&self) -> Option<SlotId> {
        match self.target {
            Target::Receive(into) => Some(into),
            _ => None,
        }
    }
}

/// A read by the peer that this end serves.
pub struct Answering {
    pub peer: PeerId,
    pub remote: Vec<RemotePiece>,
    /// Total bytes.
    pub len: usize,
    pub done: usize,
    /// Bytes that the peer has cleared.
    pub cleared: usize,
    /// The reader's number of the read.
    pub recv_id: u32,
    /// Whether the first packet was posted. The first packet has another header.
    pub begun: bool,
}

/// The operation that a transfer completes.
pub enum End {
    /// An access of this end.
    Access(SlotId),
    /// A payload that this end reads from its sender.
    Payload(Incoming),
}

/// A transfer of the device.
pub struct Transfer {
    pub peer: PeerId,
    pub end: End,
    /// Requests that are not posted yet.
    pub todo: VecDeque<Step>,
    /// Requests in flight.
    pub posted: usize,
    pub failed: Option<Status>,
    /// Immediate data of the last request.
    pub data: Option<u32>,
    /// The slot that a short access uses.
    pub slot: Option<u32>,
    /// Registrations of this end's memory.
    pub regions: Vec<Local>,
    /// Grants that keep registered memory of this end open while it is written.
    pub grants: Vec<Grant<RegionData>>,
}

/// A payload that has not been received yet (`Transport::Token`).
pub enum Token {
    /// The whole payload has arrived. A receipt may be due when it is received.
    Here {
        /// The payload.
        bytes: Box<[u8]>,
        /// The sender's number and the message id, for the receipt.
        receipt: Option<(u32, u32)>,
    },
    /// Only the first bytes have arrived.
    There {
        /// The bytes from the request.
        first: Box<[u8]>,
        /// The remaining data.
        rest: Incoming,
    },
}

/// Remote pieces in their wire format.
pub fn iovs(remote: &[RemotePiece]) -> Option<Iovs> {
    Iovs::new(remote.iter().map(|piece| Iov { addr: piece.addr, len: piece.len as u64, key: piece.key }))
}

/// Remote pieces from their wire format.
pub fn pieces(iovs: &Iovs) -> Vec<RemotePiece> {
    iovs.iter().map(|iov| RemotePiece { addr: iov.addr, len: iov.len as usize, key: iov.key }).collect()
}
