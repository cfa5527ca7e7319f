//! The messages. A client sends requests as JSON; a server answers each, in any order: a block begins with
//! [`BLOCK_MARK`], anything else is an [`Answer`] as JSON.

use serde::{Deserialize, Serialize};

/// What both ends say when they connect: the protocol and its version.
pub const GREETING: &[u8] = b"ofi-cp 2";
/// Bytes of a block, but for the last of a file.
pub const BLOCK: usize = 1 << 20;
/// The longest request, and the longest answer that is no block.
pub const LONGEST: usize = 8 << 10;
/// What is before the payload of a block: the mark, its number, its hash.
pub const HEAD: usize = 1 + 8 + 32;
/// The first byte of a block. No JSON begins with it.
pub const BLOCK_MARK: u8 = 0xb1;
/// The longest file. It bounds what a client keeps about one.
pub const LONGEST_FILE: u64 = 1 << 44;
/// Requests that a client may have under way on a connection.
pub const WINDOW: usize = 4;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// For this file, from now on. Its path below the directory that is served.
    Open(String),
    /// The same. The block of a file that has only one follows the answer, which saves a round trip.
    Fetch(String),
    /// For this block of it.
    Read(u64),
    /// For what is in this directory below the one that is served, which is `.`: the names that sort behind `after`.
    List {
        /// Which directory.
        dir: String,
        /// The last name that is known; empty at first.
        after: String,
    },
}

/// Something in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name, without a path.
    pub name: String,
    /// A directory; else a regular file.
    pub dir: bool,
    /// Of a directory; a file's come with it ([`FileId`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
}

/// What a copy may keep of a file or a directory besides its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Permission bits.
    pub mode: u32,
    /// Time of the last modification: seconds since 1970.
    pub modified: i64,
    /// And nanoseconds.
    pub nanos: u32,
}

/// Which file, in which state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileId {
    /// Bytes.
    pub len: u64,
    /// Changes when the file does.
    pub version: String,
    /// Its mode and time.
    pub kept: Kept,
}

impl FileId {
    /// How many blocks it has.
    pub fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK as u64)
    }

    /// Bytes of a block that it has.
    pub fn block_len(&self, block: u64) -> usize {
        let left = self.len.saturating_sub(block.saturating_mul(BLOCK as u64));
        usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))
    }
}

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Answer {
    /// The file is open.
    Opened(FileId),
    /// It is not, or a block cannot be read.
    Refused(String),
    /// Some of what is in a directory, sorted by the bytes of the names.
    Listed {
        /// Regular files and directories.
        entries: Vec<Entry>,
        /// There are more behind the last of them.
        more: bool,
        /// Links, special files, and names that are no UTF-8, in the whole directory.
        skipped: u64,
    },
}

/// A message of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// No block.
    Answer(Answer),
    /// A block; its payload has the hash that came with it.
    Block {
        /// Which.
        number: u64,
        /// Of the payload.
        hash: [u8; 32],
        /// The bytes.
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

/// Reads a message of a server.
///
/// # Errors
/// What was found instead; a payload that has not the hash of its head.
pub fn parse(message: &[u8]) -> Result<Message<'_>, String> {
    if message.first() != Some(&BLOCK_MARK) {
        let head = &message[..message.len().min(LONGEST)];
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
        return Err("a block that is not what its hash says".into());
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
            let _ = serde_json::from_slice::<Request>(&message);
        }
    }
}
