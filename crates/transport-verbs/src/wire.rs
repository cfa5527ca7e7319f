//! What the records of a lane say. All numbers are in network byte order.
//!
//! A record is a message of its queue pair: 8 bytes of header (kind, flags, credits that are given back, 4 bytes of 0), fields as the kind
//! has them, and a payload.

use ofi_api::RemotePiece;
use ofi_core::transport::{RemoteData, RxName};

/// Kinds of records.
pub mod kind {
    /// A short message: op if `CONFIRM`, tag, data, payload.
    pub const MESSAGE: u8 = 1;
    /// A long one, whose payload stays with the sender: op, length, its pieces there, tag, data.
    pub const ANNOUNCE: u8 = 2;
    /// A short remote write: op, pieces, data, payload.
    pub const WRITE: u8 = 3;
    /// A long one: op, pieces, data; its payload follows as `WRITE_PART`s.
    pub const WRITE_LONG: u8 = 4;
    /// The next part of the last long write: op, bytes.
    pub const WRITE_PART: u8 = 5;
    /// A remote read: op, pieces.
    pub const READ: u8 = 6;
    /// An atomic operation: op, what it does, pieces, operands, comparands. Answered like a read, or by `DONE`.
    pub const ATOMIC: u8 = 7;
    /// A note of the core: four words, payload.
    pub const NOTE: u8 = 8;
    /// Several of the above that waited together: each behind its length in 2 bytes. One credit takes all of them.
    pub const PACK: u8 = 9;
    /// The device has written, and this is the remote CQ data of it: op, pieces, data.
    pub const WRITTEN: u8 = 10;

    /// Kinds from here on answer something, and are taken at once whatever else waits.
    pub const ANSWERS: u8 = 16;
    /// An operation of the receiver has ended: op, errno.
    pub const DONE: u8 = 16;
    /// The next part of what is read: op, bytes.
    pub const READ_PART: u8 = 17;
    /// 1: the sender of this wants payloads announced. 0: no longer.
    pub const KEEP: u8 = 18;
    /// Nothing but credits. It needs none itself.
    pub const CREDIT: u8 = 19;
    /// The receiver's device may access a registration of the sender: key, its address in accesses, length, rights (1 to read, 2 to
    /// write), its address for the device, the device's key; address and device's key of a word to read behind writes.
    pub const KEY: u8 = 20;
    /// It may not any more: key.
    pub const KEY_GONE: u8 = 21;
}

/// Flags of records.
pub mod flag {
    /// There is a tag.
    pub const TAGGED: u8 = 1;
    /// There is remote CQ data.
    pub const DATA: u8 = 2;
    /// The sender wants to know when the message has been delivered.
    pub const CONFIRM: u8 = 4;
    /// The operation's number is one of a message that the sending library keeps.
    pub const KEPT: u8 = 8;
    /// A receive context of the receiver is named.
    pub const NAMED: u8 = 16;

    /// Whether flags are those that a record may have.
    pub const fn are_known(flags: u8) -> bool {
        flags & !(TAGGED | DATA | CONFIRM | KEPT | NAMED) == 0
    }
}

/// Bytes of a record's header.
pub const HEAD: usize = 8;
/// Longest payload of a record.
pub const PAYLOAD: usize = 8 << 10;
/// Longest record.
pub const SLOT: usize = 8704;
const _: () = assert!(HEAD + Fields::MOST + PAYLOAD <= SLOT);

/// The header.
pub fn header(kind: u8, flags: u8) -> [u8; HEAD] {
    [kind, flags, 0, 0, 0, 0, 0, 0]
}

/// Most remote pieces in one operation (`rma_iov_limit`).
pub const RMA_IOV_LIMIT: usize = 8;

/// Bytes of a length inside a [`kind::PACK`].
pub const PREFIX: usize = 2;

/// Where the records of a pack are: offset and length of each, in the slot of `record`, whose header is included.
///
/// # Errors
/// If they do not fill it, or one is of a kind that is not packed.
pub fn unpack(record: &[u8]) -> Result<Vec<(usize, usize)>, Broken> {
    let (mut parts, mut at) = (Vec::new(), HEAD);
    while at < record.len() {
        let prefix = record[at..].first_chunk::<PREFIX>().ok_or(Broken)?;
        let len = usize::from(u16::from_be_bytes(*prefix));
        at += PREFIX;
        let part = record.get(at..at + len).ok_or(Broken)?;
        match part.first_chunk::<HEAD>() {
            Some([kind::MESSAGE..=kind::NOTE | kind::WRITTEN, flags, 0, 0, 0, 0, 0, 0])
                if flag::are_known(*flags) => {}
            _ => return Err(Broken),
        }
        parts.push((at, len));
        at += len;
    }
    if parts.is_empty() { Err(Broken) } else { Ok(parts) }
}

/// Collects the fixed fields of a record.
pub struct Fields {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl Fields {
    /// Bytes of the longest.
    pub const MOST: usize = 8 * (8 + 3 * RMA_IOV_LIMIT);

    /// None yet.
    pub fn new() -> Self {
        Self { bytes: [0; Self::MOST], len: 0 }
    }

    /// Appends a word.
    pub fn word(&mut self, word: u64) -> &mut Self {
        self.bytes[self.len..self.len + 8].copy_from_slice(&word.to_be_bytes());
        self.len += 8;
        self
    }

    /// Appends remote pieces: their number, then address, length and key of each. At most [`RMA_IOV_LIMIT`].
    pub fn pieces(&mut self, pieces: &[RemotePiece]) -> &mut Self {
        self.word(pieces.len() as u64);
        for piece in pieces {
            self.word(piece.addr).word(piece.len as u64).word(piece.key);
        }
        self
    }

    /// Appends which receive context is meant, if that is said; answers the flag that says so.
    pub fn rx(&mut self, rx: RxName) -> u8 {
        if rx == RxName::ANY {
            return 0;
        }
        self.word(rx.to_wire().into());
        flag::NAMED
    }

    /// All of them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// A record breaks the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// Takes words off the front of a record's body.
pub struct Words<'a>(pub &'a [u8]);

impl Words<'_> {
    /// The next one.
    pub fn next(&mut self) -> Result<u64, Broken> {
        let (word, rest) = self.0.split_first_chunk::<8>().ok_or(Broken)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*word))
    }

    /// The next one, if `there`.
    pub fn next_if(&mut self, there: bool) -> Result<Option<u64>, Broken> {
        there.then(|| self.next()).transpose()
    }

    /// The receive context that the record's `flags` say is named.
    pub fn rx(&mut self, flags: u8) -> Result<RxName, Broken> {
        let named = self.next_if(flags & flag::NAMED != 0)?.unwrap_or(0);
        u16::try_from(named).map(RxName::from_wire).map_err(|_| Broken)
    }

    /// Remote CQ data, where `flags` say that there is some.
    pub fn remote_data(&mut self, flags: u8) -> Result<Option<RemoteData>, Broken> {
        let value = self.next_if(flags & flag::DATA != 0)?;
        let rx = self.rx(flags)?;
        Ok(value.map(|value| RemoteData { value, rx }))
    }

    /// Remote pieces: 1 to [`RMA_IOV_LIMIT`].
    pub fn pieces(&mut self) -> Result<Vec<RemotePiece>, Broken> {
        let count = self.next()?;
        if count == 0 || count > RMA_IOV_LIMIT as u64 {
            return Err(Broken);
        }
        (0..count)
            .map(|_| {
                let (addr, len, key) = (self.next()?, self.next()?, self.next()?);
                let len = usize::try_from(len).map_err(|_| Broken)?;
                Ok(RemotePiece { addr, len, key })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_come_apart_and_bad_ones_are_refused() {
        let message = [kind::MESSAGE, flag::TAGGED, 0, 0, 0, 0, 0, 0, 7, 7];
        let note = header(kind::NOTE, 0);
        let pack = |parts: &[&[u8]]| {
            let mut bytes = header(kind::PACK, 0).to_vec();
            for part in parts {
                bytes.extend((part.len() as u16).to_be_bytes());
                bytes.extend(*part);
            }
            bytes
        };
        assert_eq!(unpack(&pack(&[&message, &note])), Ok(vec![(10, 10), (22, 8)]));
        let whole = pack(&[&message, &note]);
        for cut in (0..whole.len()).filter(|&cut| cut != HEAD + PREFIX + message.len()) {
            assert_eq!(unpack(&whole[..cut]), Err(Broken), "cut at {cut}");
        }
        for bad in
            [header(kind::PACK, 0), header(kind::CREDIT, 0), header(kind::DONE, 0), header(kind::NOTE, 64)]
        {
            assert_eq!(unpack(&pack(&[&message, &bad])), Err(Broken));
        }
        assert_eq!(unpack(&pack(&[&message, &[kind::NOTE, 0, 0, 1, 0, 0, 0, 0]])), Err(Broken));
    }

    #[test]
    fn fields_come_back_and_bad_counts_are_refused() {
        let pieces = [RemotePiece { addr: 1, len: 2, key: u64::MAX }; RMA_IOV_LIMIT];
        let mut fields = Fields::new();
        fields.word(7).pieces(&pieces).word(9);
        let mut words = Words(fields.bytes());
        assert_eq!((words.next(), words.pieces()), (Ok(7), Ok(pieces.to_vec())));
        assert_eq!((words.next(), words.next()), (Ok(9), Err(Broken)));
        for count in [0, RMA_IOV_LIMIT as u64 + 1, u64::MAX] {
            let mut fields = Fields::new();
            fields.word(count).word(1).word(1).word(1);
            assert_eq!(Words(fields.bytes()).pieces(), Err(Broken));
        }
    }
}
