//! The formats of queue entries: requests (`efa_io_tx_wqe`, `efa_io_tx_wqe_128`), receives (`efa_io_rx_desc`),
//! completions (`efa_io_tx_cdesc`, `efa_io_rx_cdesc`, `efa_io_rx_cdesc_ex`), all little-endian, as in `efa_io_defs.h`
//! of rdma-core.

/// A device's global identifier.
pub type Gid = [u8; 16];

/// Size of a request in bytes, and its maximum inline bytes.
pub const REQUEST: usize = 64;
pub const INLINE: u32 = 32;
/// The same for the requests of a queue that was created for more inline bytes.
pub const LONG_REQUEST: usize = 128;
pub const LONG_INLINE: u32 = 80;
/// Size of a piece of a receive in bytes.
pub const RECEIVE: usize = 16;

/// The status of a completed request (`enum efa_io_comp_status`).
#[allow(missing_docs, reason = "as the enumeration has them")]
pub mod status {
    pub const OK: u8 = 0;
    pub const FLUSHED: u8 = 1;
    pub const UNSUPPORTED: u8 = 3;
    pub const INVALID_AH: u8 = 4;
    pub const INVALID_LKEY: u8 = 5;
    pub const LOCAL_LENGTH: u8 = 6;
    pub const BAD_ADDRESS: u8 = 7;
    pub const ABORT: u8 = 8;
    pub const BAD_QPN: u8 = 9;
    pub const RNR: u8 = 10;
    pub const REMOTE_LENGTH: u8 = 11;
    pub const UNRESPONSIVE: u8 = 13;
    pub const UNKNOWN_PEER: u8 = 14;
    pub const UNREACHABLE: u8 = 15;
    pub const FEATURE: u8 = 18;
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Send,
    Read,
    Write,
}

impl Operation {
    fn number(self) -> u8 {
        match self {
            Self::Send => 0,
            Self::Read => 1,
            Self::Write => 2,
        }
    }
}

/// A piece of registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub addr: u64,
    pub len: u32,
    pub key: u32,
}

/// A request of a send queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendRequest {
    pub id: u16,
    pub operation: Operation,
    pub immediate: Option<u32>,
    pub qp: u16,
    pub ah: u16,
    pub qkey: u32,
    /// The inline bytes of the request; `None` if `pieces` has their memory.
    pub inline: Option<Vec<u8>>,
    pub pieces: Vec<Piece>,
    /// The peer's memory, for a read or a write.
    pub remote: Piece,
}

impl SendRequest {
    /// Parses a request of 64 or 128 bytes.
    ///
    /// # Errors
    /// `(number, status)` of the completion for an unsupported request.
    pub fn parse(bytes: &[u8]) -> Result<Self, (u16, u8)> {
        let id = u16_at(bytes, 0);
        let (control, length) = (bytes[2], u16_at(bytes, 6));
        let unsupported = Err((id, status::UNSUPPORTED));
        // Bit 7 marks the first part of a request, bit 6 an undefined extension.
        if control & 0xc0 != 0x80 {
            return unsupported;
        }
        let operation = match control & 0xf {
            0 => Operation::Send,
            1 => Operation::Read,
            2 => Operation::Write,
            _ => return unsupported,
        };
        let inline = control & 0x20 != 0;
        let is_long = bytes.len() == LONG_REQUEST;
        let most = if is_long { LONG_INLINE } else { INLINE };
        let (mut pieces, mut remote) = (Vec::new(), piece(bytes, 32));
        match operation {
            Operation::Send | Operation::Write if inline && u32::from(length) > most => {
                return Err((id, status::LOCAL_LENGTH));
            }
            Operation::Send if inline => {}
            Operation::Write if inline && is_long => {}
            Operation::Send if length > 2 => return Err((id, status::LOCAL_LENGTH)),
            Operation::Send => pieces.extend((0..usize::from(length)).map(|n| piece(bytes, 32 + 16 * n))),
            _ if inline || length > 1 => return unsupported,
            _ => pieces.extend((0..usize::from(length)).map(|_| piece(bytes, 48))),
        }
        let here = match inline {
            true => u64::from(length),
            false => pieces.iter().map(|piece| u64::from(piece.len)).sum(),
        };
        // The inline bytes of a write follow the peer's memory.
        let at = if operation == Operation::Send { 32 } else { 48 };
        if operation == Operation::Send {
            remote = Piece { addr: 0, len: 0, key: 0 };
        } else if here != u64::from(remote.len) {
            return Err((id, status::LOCAL_LENGTH));
        }
        Ok(Self {
            id,
            operation,
            immediate: (control & 0x10 != 0).then(|| u32_at(bytes, 8)),
            qp: u16_at(bytes, 4),
            ah: u16_at(bytes, 12),
            qkey: u32_at(bytes, 16),
            inline: inline.then(|| bytes[at..at + usize::from(length)].to_vec()),
            pieces,
            remote,
        })
    }

    /// Number of bytes that the request moves.
    pub fn len(&self) -> u64 {
        self.inline.as_ref().map_or_else(
            || self.pieces.iter().map(|piece| u64::from(piece.len)).sum(),
            |bytes| bytes.len() as u64,
        )
    }
}

/// A piece of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receive {
    pub id: u16,
    pub piece: Piece,
    pub first: bool,
    pub last: bool,
}

impl Receive {
    /// Parses a piece of a receive.
    pub fn parse(bytes: &[u8; RECEIVE]) -> Self {
        let control = u32_at(bytes, 12);
        let addr = u64::from(u32_at(bytes, 0)) | u64::from(u32_at(bytes, 4)) << 32;
        let piece = Piece { addr, len: u32::from(u16_at(bytes, 10)), key: control & KEY };
        Self { id: u16_at(bytes, 8), piece, first: control & 1 << 30 != 0, last: control & 1 << 31 != 0 }
    }
}

/// A completion, without its phase bit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    Sent { id: u16, status: u8, qp: u16, operation: Operation },
    Received { id: u16, status: u8, qp: u16, arrival: Arrival },
}

/// A received message, or a write with immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub operation: Operation,
    pub len: u32,
    /// The address handle of the sender, if the domain has one.
    pub ah: Option<u16>,
    pub source_qp: u16,
    pub immediate: Option<u32>,
    pub gid: Gid,
    pub unsolicited: bool,
}

impl Completion {
    /// Encodes the entry, for a queue with entries of 16 or 32 bytes.
    pub fn encode(&self, phase: bool) -> [u8; 32] {
        let mut bytes = [0; 32];
        let (id, status, qp, mut flags) = match *self {
            Self::Sent { id, status, qp, operation } => (id, status, qp, 1 << 1 | operation.number() << 4),
            Self::Received { id, status, qp, arrival } => {
                bytes[6..8].copy_from_slice(&(arrival.len as u16).to_le_bytes());
                bytes[8..10].copy_from_slice(&arrival.ah.unwrap_or(0xffff).to_le_bytes());
                bytes[10..12].copy_from_slice(&arrival.source_qp.to_le_bytes());
                bytes[12..16].copy_from_slice(&arrival.immediate.unwrap_or(0).to_le_bytes());
                match (arrival.operation, arrival.ah) {
                    (Operation::Write, _) => {
                        bytes[16..18].copy_from_slice(&((arrival.len >> 16) as u16).to_le_bytes());
                    }
                    (_, None) => bytes[16..].copy_from_slice(&arrival.gid),
                    _ => {}
                }
                let immediate = u8::from(arrival.immediate.is_some()) << 3;
                let operation = arrival.operation.number() << 4;
                (id, status, qp, 2 << 1 | immediate | operation | u8::from(arrival.unsolicited) << 7)
            }
        };
        flags |= u8::from(phase);
        bytes[..2].copy_from_slice(&id.to_le_bytes());
        (bytes[2], bytes[3]) = (status, flags);
        bytes[4..6].copy_from_slice(&qp.to_le_bytes());
        bytes
    }
}

const KEY: u32 = 0xff_ffff;

fn piece(bytes: &[u8], at: usize) -> Piece {
    let addr = u64::from(u32_at(bytes, at + 8)) | u64::from(u32_at(bytes, at + 12)) << 32;
    Piece { addr, len: u32_at(bytes, at), key: u32_at(bytes, at + 4) & KEY }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_request_or_a_status() {
        for size in [REQUEST, LONG_REQUEST] {
            let most = if size == REQUEST { 32 } else { 80 };
            let mut bytes = vec![0; size];
            for control in 0..=255 {
                for length in [0, 1, 2, 3, 32, 33, 80, 81, u16::MAX] {
                    bytes[2] = control;
                    bytes[6..8].copy_from_slice(&length.to_le_bytes());
                    match SendRequest::parse(&bytes) {
                        Ok(request) => assert!(request.len() <= most && control & 0xc0 == 0x80),
                        Err((_, status)) => {
                            assert!([status::UNSUPPORTED, status::LOCAL_LENGTH].contains(&status))
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn inline_bytes_follow_the_header_and_in_a_write_the_peer_s_memory() {
        let mut bytes = [0; LONG_REQUEST];
        bytes[32..].copy_from_slice(&std::array::from_fn::<u8, 96, _>(|at| at as u8));
        (bytes[2], bytes[6]) = (0xa0, 80);
        let request = SendRequest::parse(&bytes).unwrap();
        assert_eq!(request.inline.unwrap(), (0..80).collect::<Vec<u8>>());
        bytes[2] = 0xa2;
        bytes[32..48].copy_from_slice(&[80, 0, 0, 0, 3, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0]);
        let request = SendRequest::parse(&bytes).unwrap();
        assert_eq!(request.remote, Piece { addr: 4096, len: 80, key: 3 });
        assert_eq!(request.inline.unwrap(), (16..96).collect::<Vec<u8>>());
        bytes[32] = 79;
        assert_eq!(SendRequest::parse(&bytes).unwrap_err().1, status::LOCAL_LENGTH, "of another length");
        bytes[32] = 80;
        assert_eq!(SendRequest::parse(&bytes[..REQUEST]).unwrap_err().1, status::LOCAL_LENGTH, "in 64 bytes");
        (bytes[6], bytes[32]) = (8, 8);
        assert_eq!(SendRequest::parse(&bytes[..REQUEST]).unwrap_err().1, status::UNSUPPORTED, "in 64 bytes");
    }

    #[test]
    fn a_send_of_two_pieces_is_understood() {
        let mut bytes = [0; REQUEST];
        bytes[..8].copy_from_slice(&[7, 0, 0x90, 0, 0x34, 0x12, 2, 0]);
        bytes[8..12].copy_from_slice(&5u32.to_le_bytes());
        bytes[12] = 9;
        bytes[16..20].copy_from_slice(&0xabcd_u32.to_le_bytes());
        bytes[32..40].copy_from_slice(&[10, 0, 0, 0, 3, 0, 0, 0xff]);
        bytes[44] = 1;
        bytes[48] = 20;
        let request = SendRequest::parse(&bytes).unwrap();
        assert_eq!((request.id, request.qp, request.ah, request.qkey), (7, 0x1234, 9, 0xabcd));
        assert_eq!((request.immediate, request.len()), (Some(5), 30));
        assert_eq!(request.pieces[0], Piece { addr: 1 << 32, len: 10, key: 3 });
    }

    #[test]
    fn a_write_that_came_has_all_of_its_length() {
        let arrival = Arrival {
            operation: Operation::Write,
            len: 0x0012_3456,
            ah: Some(4),
            source_qp: 8,
            immediate: Some(0x0a0b_0c0d),
            gid: [9; 16],
            unsolicited: true,
        };
        let bytes = Completion::Received { id: 1, status: 0, qp: 2, arrival }.encode(true);
        assert_eq!(bytes[..6], [1, 0, 0, 0b1010_1101, 2, 0]);
        assert_eq!((bytes[6..8].to_vec(), bytes[16..18].to_vec()), (vec![0x56, 0x34], vec![0x12, 0]));
    }
}
