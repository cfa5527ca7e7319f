//! The table in the server's window: fixed slots, found by the hash of the key and a short search.
//!
//! ```text
//! slot, 128 bytes: checksum of the rest (8) | key length (1) | value length (1) | 6 zeroes | key (48) | value (64)
//! ```
//!
//! A client reads while the server writes, so it may get a mix of old and new bytes. The checksum detects that, and the
//! client reads again. An empty slot is all zeroes.

use std::error::Error;
use std::fmt;
use std::ops::Range;

/// Bytes of a slot.
pub const SLOT: usize = 128;
/// Longest key and longest value, in bytes.
pub const KEY: usize = 48;
pub const VALUE: usize = 64;
/// The number of slots in which a key may be, starting with the one that its hash selects.
pub const PROBES: usize = 16;

const KEY_AT: usize = 16;
const VALUE_AT: usize = KEY_AT + KEY;

/// Bytes of a table of `slots` slots, plus room for searches that start at the last ones.
pub const fn bytes(slots: usize) -> usize {
    (slots + PROBES) * SLOT
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    })
}

/// The slots that may hold `key`, in a table of `slots` slots.
pub fn range(key: &[u8], slots: usize) -> Range<usize> {
    let mixed = hash(key);
    let first = ((mixed ^ mixed >> 32) % slots.max(1) as u64) as usize * SLOT;
    first..first + PROBES * SLOT
}

/// A key or value that is too long, or an empty key.
#[derive(Debug)]
pub struct BadEntry {
    key: usize,
    value: usize,
}

impl fmt::Display for BadEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value } = self;
        write!(f, "a key of {key} and a value of {value} bytes: 1 to {KEY} and up to {VALUE} are possible")
    }
}

impl Error for BadEntry {}

/// The slot of a key and a value.
pub fn slot(key: &[u8], value: &[u8]) -> Result<[u8; SLOT], BadEntry> {
    if key.is_empty() || key.len() > KEY || value.len() > VALUE {
        return Err(BadEntry { key: key.len(), value: value.len() });
    }
    let mut slot = [0; SLOT];
    (slot[8], slot[9]) = (key.len() as u8, value.len() as u8);
    slot[KEY_AT..KEY_AT + key.len()].copy_from_slice(key);
    slot[VALUE_AT..VALUE_AT + value.len()].copy_from_slice(value);
    let sum = hash(&slot[8..]);
    slot[..8].copy_from_slice(&sum.to_le_bytes());
    Ok(slot)
}

/// The result of a search.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    /// The key, in this slot of the searched ones.
    Value(usize, &'a [u8]),
    /// No key; this slot is empty.
    Empty(usize),
    /// No key, and no empty slot.
    Full,
    /// A slot that was being written.
    Torn,
}

/// Looks for `key` in the slots of its [`range`].
pub fn search<'a>(slots: &'a [u8], key: &[u8]) -> Found<'a> {
    for (number, slot) in slots.chunks_exact(SLOT).enumerate() {
        if slot.iter().all(|&byte| byte == 0) {
            return Found::Empty(number);
        }
        let (sum, rest) = slot.split_at(8);
        if sum != hash(rest).to_le_bytes() {
            return Found::Torn;
        }
        // The lengths come from another process: if they are out of range, there is no key.
        let part = |at: usize, len: u8, most: usize| slot.get(at..at + usize::from(len).min(most));
        if part(KEY_AT, slot[8], KEY) == Some(key) {
            return Found::Value(number, part(VALUE_AT, slot[9], VALUE).unwrap_or_default());
        }
    }
    Found::Full
}
