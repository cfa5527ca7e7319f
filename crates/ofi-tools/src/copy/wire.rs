//! The messages. A client sends requests as JSON; a server answers them in their order: a block begins with
//! [`BLOCK_MARK`], anything else is an [`Answer`] as JSON.

use serde::{Deserialize, Serialize};

/// The greeting of both ends: the protocol and its version.
pub const GREETING: &[u8] = b"ofi-cp 2";
/// Bytes of a block, except for the last of a file.
pub const BLOCK: usize = 1 << 20;
/// Maximum length of a request, and of an answer other than a block, in bytes.
pub const MAX_MESSAGE_LEN: usize = 8 << 10;
/// Bytes before the payload of a block: the mark, its number, its hash.
pub const HEAD: usize = 1 + 8 + 32;
/// The first byte of a block. No JSON begins with it.
pub const BLOCK_MARK: u8 = 0xb1;
/// Maximum length of a file, in bytes. It bounds a client's memory per file.
pub const MAX_FILE_LEN: u64 = 1 << 44;
/// Requests that a client may have outstanding on a connection.
pub const WINDOW: usize = 4;

/// A client's request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CopyRequest {
    /// Open this file for the following reads. The path is relative to the served directory.
    Open(String),
    /// The same. If the file has only one block, the block follows the answer, which saves a round trip.
    Fetch(String),
    /// Read this block of the open file.
    Read(u64),
    /// List this subdirectory of the served directory, which is `.`: the names that sort after `after`.
    List {
        /// The subdirectory.
        dir: String,
        /// The last name received; empty at first.
        after: String,
    },
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The name, without a path.
    pub name: String,
    /// Whether it is a directory; otherwise it is a regular file.
    pub dir: bool,
    /// Properties of a directory; a file's are in its [`FileId`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
}

/// Properties of a file or a directory that a copy may keep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Permission bits.
    pub mode: u32,
    /// Time of the last modification: seconds since 1970.
    pub modified: i64,
    /// Its nanoseconds.
    pub nanos: u32,
}

/// A file and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileId {
    /// Length in bytes.
    pub len: u64,
    /// A string that changes with the file.
    pub version: String,
    /// Mode and time.
    pub kept: Kept,
}

impl FileId {
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK as u64)
    }

    /// Length of a block in bytes.
    pub fn block_len(&self, block: u64) -> usize {
        let left = self.len.saturating_sub(block.saturating_mul(BLOCK as u64));
        usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))
    }
}

/// A server's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The file is open.
    Opened(FileId),
    /// The file cannot be opened, or a block cannot be read.
    Refused(String),
    /// Some entries of a directory, sorted by the bytes of their names.
    Listed {
        /// Regular files and directories.
        entries: Vec<Entry>,
        /// Whether more entries follow the last one.
        more: bool,
        /// The number of links, special files, and names that are not UTF-8, in the whole directory.
        skipped: u64,
    },
}

/// A message of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// An answer other than a block.
    Answer(Answer),
    /// A block. Its hash has been verified.
    Block {
        /// Its number.
        number: u64,
        /// The hash of the payload.
        hash: [u8; 32],
        /// The payload.
        payload: &'a [u8],
    },
}

/// Writes the head of a block in front of its payload, `message[HEAD..]`.
pub fn seal(message: &mut [u8], number: u64) {
    let hash = blake3::hash(&message[HEAD..]);
    message[0] = BLOCK_MARK;
    message[1..9].copy_from_slice(&number.to_le_bytes());
    message[9..HEAD].copy_from_slice(hash.as_bytes());
}

/// Parses a message of a server.
///
/// # Errors
/// A description of the invalid message, or of a payload that does not match its hash.
pub fn parse(message: &[u8]) -> Result<Message<'_>, String> {
    if message.first() != Some(&BLOCK_MARK) {
        let head = &message[..message.len().min(MAX_MESSAGE_LEN)];
        return serde_json::from_slice(head)
            .map(Message::Answer)
            .map_err(|error| format!("an answer: {error}"));
    }
    let (Some(head), Some(payload)) = (message.get(..HEAD), message.get(HEAD..)) else {
        return Err(format!("a block of {} bytes, less than its head", message.len()));
    };
    let mut number = [0; 8];
    let mut hash = [0; 32];
    number.copy_from_slice(&head[1..9]);
    hash.copy_from_slice(&head[9..]);
    if blake3::hash(payload) != hash {
        return Err("a block that does not match its hash".into());
    }
    Ok(Message::Block { number: u64::from_le_bytes(number), hash, payload })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_comes_back_and_every_flipped_bit_of_payload_or_hash_is_found() {
        let mut message = vec![7; HEAD + 100];
        seal(&mut message, 5);
        assert!(
            matches!(parse(&message), Ok(Message::Block { number: 5, payload, .. }) if payload == [7; 100])
        );
        for place in 9..message.len() {
            let mut changed = message.clone();
            changed[place] ^= 1;
            assert!(parse(&changed).is_err(), "{place}");
        }
        assert!(parse(&message[..HEAD - 1]).is_err() && parse(&[]).is_err());
    }

    #[test]
    fn blocks_of_any_length_are_counted() {
        let id = |len| FileId { len, version: String::new(), kept: Kept::default() };
        assert_eq!(
            (id(0).blocks(), id(1).blocks(), id(BLOCK as u64).blocks(), id(BLOCK as u64 + 1).blocks()),
            (0, 1, 1, 2)
        );
        assert_eq!(
            (id(BLOCK as u64 + 1).block_len(1), id(5).block_len(0), id(5).block_len(u64::MAX)),
            (1, 5, 0)
        );
    }

    proptest! {
        #[test]
        fn no_message_panics(message in prop::collection::vec(any::<u8>(), 0..200), marked in any::<bool>()) {
            let mut message = message;
            if let (true, Some(first)) = (marked, message.first_mut()) {
                *first = BLOCK_MARK;
            }
            let _ = parse(&message);
            let _ = serde_json::from_slice::<CopyRequest>(&message);
        }
    }
}
