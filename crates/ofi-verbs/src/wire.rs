//! The records of a peer. All numbers are in network byte order.
//!
//! A record is a message of its queue pair: 8 bytes of header (kind, flags, returned credits, 4 bytes of 0), the fields
//! of the kind, and a payload.

use ofi_core::transport::record::{Broken, Fields, flag};

/// Kinds of records.
pub mod kind {
    /// A short message: op if `CONFIRM`, tag, data, payload.
    pub const MESSAGE: u8 = 1;
    /// A long message, whose payload stays with the sender: op, length, its pieces there, tag, data.
    pub const ANNOUNCE: u8 = 2;
    /// A short remote write: op, pieces, data, payload.
    pub const WRITE: u8 = 3;
    /// A long remote write: op, pieces, data; its payload follows as `WRITE_PART`s.
    pub const WRITE_LONG: u8 = 4;
    /// The next part of the last long write: op, bytes.
    pub const WRITE_PART: u8 = 5;
    /// A remote read: op, pieces.
    pub const READ: u8 = 6;
    /// An atomic operation: op, operation and type, pieces, operands, comparands. Answered like a read, or by `DONE`.
    pub const ATOMIC: u8 = 7;
    /// A note of the core: four words, payload.
    pub const NOTE: u8 = 8;
    /// Several queued records of the above kinds, each after its length in 2 bytes. All of them use one credit.
    pub const PACK: u8 = 9;
    /// The device has written, and this record has the remote CQ data: op, pieces, data.
    pub const WRITTEN: u8 = 10;
    /// The payload of an announced message has moved, into one piece: op, address, the device's key.
    pub const MOVED: u8 = 11;

    /// The first kind of answers, which are processed at once, before all waiting records.
    pub const ANSWERS: u8 = 16;
    /// An operation of the receiver has ended: op, errno.
    pub const DONE: u8 = 16;
    /// The next part of a read: op, bytes.
    pub const READ_PART: u8 = 17;
    /// 1: the sender of this record wants payloads to be announced only. 0: it no longer does.
    pub const KEEP: u8 = 18;
    /// Only credits. The record itself needs none.
    pub const CREDIT: u8 = 19;
    /// The receiver's device may access a registration of the sender: key, its address in accesses, length, rights (1
    /// to read, 2 to write), its address for the device, the device's key; address and device's key of a word to read
    /// after writes.
    pub const KEY: u8 = 20;
    /// The receiver's device may no longer access a registration: key.
    pub const KEY_GONE: u8 = 21;
    /// About closing the connection: 0 asks for it, 1 agrees, 2 declines (`endpoint/retiring.rs`).
    pub const RETIRE: u8 = 22;
}

/// Length of a record's header in bytes.
pub const HEAD: usize = 8;
/// Maximum payload of a record in bytes.
pub const PAYLOAD: usize = 8 << 10;
/// Maximum length of a record in bytes.
pub const SLOT: usize = 8704;
const _: () = assert!(HEAD + Fields::MAX_LEN + PAYLOAD <= SLOT);

/// Encodes a header.
pub fn header(kind: u8, flags: u8) -> [u8; HEAD] {
    [kind, flags, 0, 0, 0, 0, 0, 0]
}

/// Size of a length field inside a [`kind::PACK`], in bytes.
pub const PREFIX: usize = 2;

/// The records of a pack: offset and length of each, in the slot of `record`, whose header is included.
///
/// # Errors
/// If the records do not fill the pack, or one is of a kind that cannot be packed.
pub fn unpack(record: &[u8]) -> Result<Vec<(usize, usize)>, Broken> {
    let (mut parts, mut at) = (Vec::new(), HEAD);
    while at < record.len() {
        let prefix = record[at..].first_chunk::<PREFIX>().ok_or(Broken)?;
        let len = usize::from(u16::from_be_bytes(*prefix));
        at += PREFIX;
        let part = record.get(at..at + len).ok_or(Broken)?;
        match part.first_chunk::<HEAD>() {
            Some([kind::MESSAGE..=kind::NOTE | kind::WRITTEN | kind::MOVED, flags, 0, 0, 0, 0, 0, 0])
                if flag::are_known(*flags) => {}
            _ => return Err(Broken),
        }
        parts.push((at, len));
        at += len;
    }
    if parts.is_empty() { Err(Broken) } else { Ok(parts) }
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
}
