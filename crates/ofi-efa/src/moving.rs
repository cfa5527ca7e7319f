//! Payloads under way: what is kept of each, and where it lies at either end.

use std::collections::VecDeque;

use ibv::transfer::Step;
use ofi_api::RemotePiece;
use ofi_core::domain::RegionData;
use ofi_core::keys::Grant;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Peer, RemoteData};

use crate::domain::Local;
use crate::srd::Status;
use crate::wire::{Iov, Iovs};

/// Where data goes.
pub enum Target {
    /// Into a receive.
    Receive(SlotId),
    /// Into registered memory, for a write of the peer.
    Region { remote: Vec<RemotePiece>, data: Option<RemoteData> },
    /// Nobody wants it.
    Nowhere,
}

/// Data of the peer on its way here.
pub struct Incoming {
    pub peer: Peer,
    pub target: Target,
    /// Bytes in all.
    pub len: usize,
    pub got: usize,
    /// Bytes that the peer may have sent.
    pub cleared: usize,
    /// Its number at the sender.
    pub send_id: u32,
    /// The sender wants a receipt, for this message.
    pub receipt: Option<u32>,
    /// Its place among the peer's messages, if it is one.
    pub msg_id: u32,
    /// Where it lies, if this end is to read it.
    pub source: Option<Box<Iovs>>,
    /// This end reads it, and says when it has.
    pub is_read: bool,
}

impl Incoming {
    /// Of `len` bytes, of which none is here.
    pub fn new(peer: Peer, len: usize, send_id: u32) -> Self {
        Self {
            peer,
            target: Target::Nowhere,
            len,
            got: 0,
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

/// A read of the peer, being served.
pub struct Answering {
    pub peer: Peer,
    pub remote: Vec<RemotePiece>,
    /// Bytes in all.
    pub len: usize,
    pub done: usize,
    /// Bytes that the peer has cleared.
    pub cleared: usize,
    /// Its number at the reader.
    pub recv_id: u32,
    /// The first packet is another one.
    pub begun: bool,
}

/// What ends with a transfer.
pub enum End {
    /// An access of this end.
    Access(SlotId),
    /// A payload that this end reads from its sender.
    Payload(Incoming),
}

/// What the device moves.
pub struct Transfer {
    pub peer: Peer,
    pub end: End,
    /// Requests that are not posted.
    pub todo: VecDeque<Step>,
    /// Requests that are under way.
    pub posted: usize,
    pub failed: Option<Status>,
    /// What the peer is told with the last request.
    pub data: Option<u32>,
    /// A slot that a short access goes through.
    pub slot: Option<u32>,
    /// Registrations of this end's memory.
    pub regions: Vec<Local>,
    /// What holds registered memory of this end while it is written.
    pub grants: Vec<Grant<RegionData>>,
}

/// A payload that has not been received yet (`Transport::Token`).
pub enum Token {
    /// All of it is here; the sender wants to know when it is received.
    Here {
        /// The payload.
        bytes: Box<[u8]>,
        /// The sender's number and the message's, for the receipt.
        receipt: Option<(u32, u32)>,
    },
    /// Its first bytes are.
    There {
        /// What came in the request.
        first: Box<[u8]>,
        /// The rest.
        rest: Incoming,
    },
}

/// Remote pieces as they go over the wire.
pub fn iovs(remote: &[RemotePiece]) -> Option<Iovs> {
    Iovs::new(remote.iter().map(|piece| Iov { addr: piece.addr, len: piece.len as u64, key: piece.key }))
}

/// The other way.
pub fn pieces(iovs: &Iovs) -> Vec<RemotePiece> {
    iovs.iter().map(|iov| RemotePiece { addr: iov.addr, len: iov.len as usize, key: iov.key }).collect()
}
