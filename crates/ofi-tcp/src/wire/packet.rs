//! Packets: a base header of 16 bytes, words of 8 bytes as the operation has them, and a payload.
//!
//! | bytes | what |
//! |---|---|
//! | 0 | version, 3, which nobody checks |
//! | 1 | operation |
//! | 2..4 | flags |
//! | 4 | 2 in an acknowledgement, and in the refusal of one; the number of an announced message |
//! | 5 | number of remote pieces, in reads, writes and atomic operations |
//! | 6 | bytes of the whole header |
//! | 7 | number of the packet, which debug builds of C check |
//! | 8..16 | bytes of the packet |
//!
//! The words are CQ data, tag, length of an announced message, then address, length and key of each remote piece.
//!
//! C does not have the last seven operations. A refusal has one word, the error number. An atomic operation has a word
//! for what is done, before its remote pieces; its operands and comparands follow. A note has four words. A grant has
//! one, the bytes. The announcement of a message without a tag is as that of a tagged one without its tag. Byte 4 of
//! the packet before a striped payload is the number of its stripes, that of a stripe its index, and the word of a
//! stripe is the number of its payload.

use super::Order;

/// The maximum length of a header, in bytes.
pub const MAX_HEADER_LEN: usize = 120;
/// The maximum length of the payload of an atomic operation or a note, in bytes.
pub const MAX_SHORT_LEN: usize = 8 << 10;
/// Bytes of the base header.
const BASE: usize = 16;
/// Bytes of a remote piece.
const PIECE: usize = 24;
/// The maximum number of remote pieces.
const PIECES: usize = 4;

/// The bytes that a message counts beyond its payload, where its receiver limits what it keeps without a receive
/// ([`super::cm::Extras::window`]): about what the receiver needs to keep it.
const MESSAGE_OVERHEAD: u64 = 128;

/// The bytes that a message with a payload of `len` bytes counts, if it is sent before the receiver asks for it.
#[inline]
pub fn charge(len: u64) -> u64 {
    len.saturating_add(MESSAGE_OVERHEAD)
}

const VERSION: u8 = 3;

mod flag {
    /// There is CQ data.
    pub const DATA: u16 = 0x01;
    /// The sender wants an acknowledgement of the delivery.
    pub const DELIVERED: u16 = 0x04;
    /// The sender wants an acknowledgement of the commitment to persistent memory.
    pub const COMMITTED: u16 = 0x08;
}

mod op {
    pub const MESSAGE: u8 = 0;
    pub const TAGGED: u8 = 1;
    pub const READ: u8 = 2;
    pub const READ_ANSWER: u8 = 3;
    pub const WRITE: u8 = 4;
    pub const RTS: u8 = 5;
    pub const CTS: u8 = 6;
    pub const DATA: u8 = 7;
    // Only to ends that have said that they take them.
    pub const REFUSAL: u8 = 8;
    pub const ATOMIC: u8 = 9;
    pub const NOTE: u8 = 10;
    pub const GRANT: u8 = 11;
    pub const RTS_UNTAGGED: u8 = 12;
    pub const STRIPED: u8 = 13;
    pub const STRIPE: u8 = 14;
}

/// The greatest error number: those of the kernel end there, and libfabric's are smaller.
const MAX_ERRNO: u16 = 4095;

/// What byte 4 of a message says if it is an acknowledgement.
const ACKNOWLEDGES: u8 = 2;

/// A part of a peer's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemotePiece {
    /// Where it begins.
    pub addr: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The key of its registration.
    pub key: u64,
}

/// One to four remote pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    pieces: [RemotePiece; PIECES],
    count: u8,
}

impl Pieces {
    /// These pieces; `None` for none, or for more than four.
    pub fn new(pieces: impl ExactSizeIterator<Item = RemotePiece>) -> Option<Self> {
        let count = pieces.len();
        if !(1..=PIECES).contains(&count) {
            return None;
        }
        let mut all = [RemotePiece::default(); PIECES];
        all.iter_mut().zip(pieces).for_each(|(to, from)| *to = from);
        Some(Self { pieces: all, count: count as u8 })
    }

    /// All of them.
    pub fn as_slice(&self) -> &[RemotePiece] {
        &self.pieces[..usize::from(self.count)]
    }

    /// Their lengths together; `None` if that is no number.
    pub fn total(&self) -> Option<u64> {
        self.as_slice().iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.len))
    }
}

/// The header of a packet, whose fields have been checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A message, with or without a tag.
    Message {
        /// Its tag.
        tag: Option<u64>,
        /// Remote CQ data.
        data: Option<u64>,
        /// The sender wants an acknowledgement.
        confirm: bool,
        /// Bytes of payload.
        len: u64,
    },
    /// Acknowledges the oldest packet of which the sender wanted that.
    Ack,
    /// Asks for bytes of remote memory.
    Read {
        /// Where they are.
        remote: Pieces,
    },
    /// Answers the oldest read.
    ReadAnswer {
        /// Bytes of payload.
        len: u64,
    },
    /// Writes to remote memory: as many bytes as its pieces have.
    Write {
        /// Where to.
        remote: Pieces,
        /// Remote CQ data.
        data: Option<u64>,
        /// The sender wants an acknowledgement.
        confirm: bool,
        /// Bytes of payload.
        len: u64,
    },
    /// Announces a message. Ends of C announce tagged ones alone.
    Rts {
        /// Its number at the sender.
        number: u8,
        /// Its tag.
        tag: Option<u64>,
        /// Remote CQ data.
        data: Option<u64>,
        /// The sender wants an acknowledgement.
        confirm: bool,
        /// Its length in bytes.
        len: u64,
    },
    /// Asks for an announced message.
    Cts {
        /// Its number at its sender.
        number: u8,
    },
    /// An announced message that was asked for.
    Data {
        /// Its number at its sender.
        number: u8,
        /// Bytes of payload.
        len: u64,
    },
    /// Refuses an access: stands where its acknowledgement or its answer would.
    Refusal {
        /// The oldest read, or otherwise the oldest packet of which the sender wanted an acknowledgement.
        of_read: bool,
        /// The error number.
        errno: u16,
    },
    /// Changes remote memory atomically. It is acknowledged, or answered like a read if it fetches.
    Atomic {
        /// What is done with each element, by the core's numbers.
        what: u16,
        /// The elements.
        remote: Pieces,
        /// Bytes of payload: operands, then comparands. At most [`MAX_SHORT_LEN`].
        len: u64,
    },
    /// What the core of an endpoint says to the core of another.
    Note {
        /// Its content.
        words: [u64; 4],
        /// Bytes of payload. At most [`MAX_SHORT_LEN`].
        len: u64,
    },
    /// Lets the other end send this many more bytes of messages unasked.
    Grant {
        /// As they [count](charge).
        bytes: u64,
    },
    /// The payload of the next packet is striped over connections. Its first stripe follows its header.
    Striped {
        /// Stripes, with the first one.
        count: u8,
    },
    /// A stripe, on a bulk connection.
    Stripe {
        /// The payload: the striped ones of the peer's main connection are numbered from 0.
        number: u64,
        /// Which one of the payload, from 1.
        index: u8,
        /// Bytes of it.
        len: u64,
    },
}

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// No such operation.
    Operation(u8),
    /// A length of the header that the operation cannot have.
    Header {
        /// The operation.
        op: u8,
        /// The length.
        len: u8,
    },
    /// A length of the packet that it cannot have.
    Length(u64),
    /// No remote pieces, or more than four.
    Pieces(u8),
    /// A refusal for a reason that is none.
    Reason(u64),
    /// A number of an atomic operation that is none.
    Atomic(u64),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Operation(op) => write!(f, "operation {op}, which does not exist"),
            Self::Header { op, len } => write!(f, "a header of {len} bytes for operation {op}"),
            Self::Length(len) => write!(f, "a packet of {len} bytes"),
            Self::Reason(errno) => write!(f, "a refusal with error number {errno}"),
            Self::Atomic(what) => write!(f, "an atomic operation with number {what}"),
            Self::Pieces(count) => write!(f, "{count} remote pieces, instead of 1 to {PIECES}"),
        }
    }
}

/// Reads the words after a base header.
struct Words<'a>(&'a [u8], Order);

impl Words<'_> {
    fn next(&mut self) -> u64 {
        // The length of the header was checked: there are as many as the operation has.
        let Some((word, rest)) = self.0.split_first_chunk::<8>() else { return 0 };
        self.0 = rest;
        self.1.u64(u64::from_ne_bytes(*word))
    }

    fn next_if(&mut self, there: bool) -> Option<u64> {
        there.then(|| self.next())
    }
}

impl Packet {
    /// Takes a header off the front of `input`, and how many bytes it has; the payload follows. `None` while some of it
    /// are missing.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(input: &[u8], order: Order) -> Result<Option<(Self, usize)>, Malformed> {
        let Some((base, rest)) = input.split_first_chunk::<BASE>() else { return Ok(None) };
        let [_, op, _, _, number, count, header_len, ..] = *base;
        let flags = order.u16(u16::from_ne_bytes([base[2], base[3]]));
        let size = order.u64(u64::from_ne_bytes(std::array::from_fn(|at| base[8 + at])));
        let has_data = flags & flag::DATA != 0;
        let confirm = flags & (flag::DELIVERED | flag::COMMITTED) != 0;
        let word = if has_data { 8 } else { 0 };
        let pieces = usize::from(count) * PIECE;
        if matches!(op, op::READ | op::WRITE | op::ATOMIC) && !(1..=PIECES).contains(&usize::from(count)) {
            return Err(Malformed::Pieces(count));
        }
        let is_ack = op == op::MESSAGE && number == ACKNOWLEDGES;
        let expected = match op {
            op::MESSAGE if is_ack => BASE,
            op::MESSAGE => BASE + word,
            op::TAGGED => BASE + 8 + word,
            op::READ => BASE + pieces,
            op::WRITE => BASE + word + pieces,
            op::RTS => BASE + 16 + word,
            op::RTS_UNTAGGED => BASE + 8 + word,
            op::READ_ANSWER | op::CTS | op::DATA | op::STRIPED => BASE,
            op::REFUSAL | op::GRANT | op::STRIPE => BASE + 8,
            op::ATOMIC => BASE + 8 + pieces,
            op::NOTE => BASE + 32,
            other => return Err(Malformed::Operation(other)),
        };
        if usize::from(header_len) != expected {
            return Err(Malformed::Header { op, len: header_len });
        }
        let len = size.checked_sub(expected as u64).filter(|&len| len <= isize::MAX as u64);
        let len = len.ok_or(Malformed::Length(size))?;
        if len > MAX_SHORT_LEN as u64 && matches!(op, op::ATOMIC | op::NOTE) {
            return Err(Malformed::Length(size));
        }
        let is_bare = matches!(
            op,
            op::READ | op::RTS | op::RTS_UNTAGGED | op::CTS | op::REFUSAL | op::GRANT | op::STRIPED
        );
        if len > 0 && (is_ack || is_bare) {
            return Err(Malformed::Length(size));
        }
        let Some(words) = rest.get(..expected - BASE) else { return Ok(None) };
        let mut words = Words(words, order);
        let packet = match op {
            op::MESSAGE if is_ack => Self::Ack,
            op::MESSAGE => Self::Message { tag: None, data: words.next_if(has_data), confirm, len },
            op::TAGGED => {
                let data = words.next_if(has_data);
                Self::Message { tag: Some(words.next()), data, confirm, len }
            }
            op::READ => Self::Read { remote: remote_pieces(&mut words, count) },
            op::READ_ANSWER => Self::ReadAnswer { len },
            op::WRITE => {
                let data = words.next_if(has_data);
                let remote = remote_pieces(&mut words, count);
                if remote.total() != Some(len) {
                    return Err(Malformed::Length(size));
                }
                Self::Write { remote, data, confirm, len }
            }
            op::RTS | op::RTS_UNTAGGED => {
                let (data, tag) = (words.next_if(has_data), words.next_if(op == op::RTS));
                let len = words.next();
                if len > isize::MAX as u64 {
                    return Err(Malformed::Length(len));
                }
                Self::Rts { number, tag, data, confirm, len }
            }
            op::CTS => Self::Cts { number },
            op::REFUSAL => {
                let errno = words.next();
                let known = u16::try_from(errno).ok().filter(|errno| (1..=MAX_ERRNO).contains(errno));
                Self::Refusal {
                    of_read: number != ACKNOWLEDGES,
                    errno: known.ok_or(Malformed::Reason(errno))?,
                }
            }
            op::ATOMIC => {
                let what = words.next();
                let what = u16::try_from(what).map_err(|_| Malformed::Atomic(what))?;
                Self::Atomic { what, remote: remote_pieces(&mut words, count), len }
            }
            op::GRANT => Self::Grant { bytes: words.next() },
            op::NOTE => Self::Note { words: std::array::from_fn(|_| words.next()), len },
            op::STRIPED => Self::Striped { count: number },
            op::STRIPE => Self::Stripe { number: words.next(), index: number, len },
            _ => Self::Data { number, len },
        };
        Ok(Some((packet, expected)))
    }

    /// Bytes that follow the header.
    pub fn payload_len(&self) -> usize {
        match *self {
            Self::Message { len, .. }
            | Self::ReadAnswer { len }
            | Self::Write { len, .. }
            | Self::Data { len, .. }
            | Self::Atomic { len, .. }
            | Self::Note { len, .. }
            | Self::Stripe { len, .. } => len as usize,
            // An announcement has the length of its message, which comes later.
            Self::Rts { .. } => 0,
            Self::Ack | Self::Read { .. } | Self::Cts { .. } => 0,
            Self::Refusal { .. } | Self::Grant { .. } | Self::Striped { .. } => 0,
        }
    }

    /// Appends the header. `count`: the packets that were sent before on this connection, modulo 256.
    pub fn encode(&self, order: Order, count: u8, to: &mut Vec<u8>) {
        let start = to.len();
        to.extend([0; BASE]);
        let mut word = |value: u64| to.extend(order.u64(value).to_ne_bytes());
        let (mut flags, mut number, mut pieces) = (0, 0, 0);
        let mut data_word = |data: Option<u64>, word: &mut dyn FnMut(u64)| {
            if let Some(data) = data {
                flags |= flag::DATA;
                word(data);
            }
        };
        let (op, len, asks) = match *self {
            Self::Message { tag, data, confirm, len } => {
                data_word(data, &mut word);
                tag.into_iter().for_each(&mut word);
                (if tag.is_some() { op::TAGGED } else { op::MESSAGE }, len, confirm)
            }
            Self::Ack => {
                number = ACKNOWLEDGES;
                (op::MESSAGE, 0, false)
            }
            Self::Read { remote } => {
                pieces = remote.count;
                remote.as_slice().iter().flat_map(|p| [p.addr, p.len, p.key]).for_each(&mut word);
                (op::READ, 0, false)
            }
            Self::ReadAnswer { len } => (op::READ_ANSWER, len, false),
            Self::Write { remote, data, confirm, len } => {
                pieces = remote.count;
                data_word(data, &mut word);
                remote.as_slice().iter().flat_map(|p| [p.addr, p.len, p.key]).for_each(&mut word);
                (op::WRITE, len, confirm)
            }
            Self::Rts { number: own, tag, data, confirm, len } => {
                number = own;
                data_word(data, &mut word);
                tag.into_iter().for_each(&mut word);
                word(len);
                (if tag.is_some() { op::RTS } else { op::RTS_UNTAGGED }, 0, confirm)
            }
            Self::Cts { number: theirs } => {
                number = theirs;
                (op::CTS, 0, false)
            }
            Self::Refusal { of_read, errno } => {
                number = if of_read { 0 } else { ACKNOWLEDGES };
                word(errno.into());
                (op::REFUSAL, 0, false)
            }
            Self::Atomic { what, remote, len } => {
                pieces = remote.count;
                word(what.into());
                remote.as_slice().iter().flat_map(|p| [p.addr, p.len, p.key]).for_each(&mut word);
                (op::ATOMIC, len, false)
            }
            Self::Grant { bytes } => {
                word(bytes);
                (op::GRANT, 0, false)
            }
            Self::Note { words, len } => {
                words.into_iter().for_each(&mut word);
                (op::NOTE, len, false)
            }
            Self::Data { number: own, len } => {
                number = own;
                (op::DATA, len, false)
            }
            Self::Striped { count } => {
                number = count;
                (op::STRIPED, 0, false)
            }
            Self::Stripe { number: payload, index, len } => {
                number = index;
                word(payload);
                (op::STRIPE, len, false)
            }
        };
        if asks {
            flags |= flag::DELIVERED;
        }
        let header_len = to.len() - start;
        let base = &mut to[start..start + BASE];
        (base[0], base[1]) = (VERSION, op);
        base[2..4].copy_from_slice(&order.u16(flags).to_ne_bytes());
        (base[4], base[5], base[6], base[7]) = (number, pieces, header_len as u8, count);
        base[8..].copy_from_slice(&order.u64(len + header_len as u64).to_ne_bytes());
    }
}

fn remote_pieces(words: &mut Words<'_>, count: u8) -> Pieces {
    let mut pieces = [RemotePiece::default(); PIECES];
    for piece in &mut pieces[..usize::from(count)] {
        *piece = RemotePiece { addr: words.next(), len: words.next(), key: words.next() };
    }
    Pieces { pieces, count }
}

#[cfg(test)]
#[path = "packet_tests.rs"]
mod tests;
