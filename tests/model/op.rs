//! One operation in the model.

use ofi::raw::Errno;
use ofi_testkit::Memory;

/// The effect of an operation.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// Sends a message.
    Send { tag: u64 },
    /// Writes to bytes that no other operation writes to; with or without data.
    Write { at: usize, told: bool },
    /// Reads bytes that do not change.
    Read { at: usize },
    /// Reads bytes that are zero until this end's next operation changes them.
    Before { at: usize },
    /// Adds one.
    Add { fetch: bool },
    /// Adds one to a number that no other operation changes.
    Count { at: usize },
    /// Accesses memory beside the accessible part, of this length.
    Beside(Access),
}

/// The kind of a refused access.
#[derive(Clone, Copy, Debug)]
pub enum Access {
    Read,
    Write,
    Add,
}

/// A posted operation.
pub struct Op {
    pub kind: Kind,
    pub from: usize,
    pub to: usize,
    pub len: usize,
    pub memory: Memory,
    pub ended: Option<Result<(), Errno>>,
    /// Whether it was reported as done when it was posted.
    pub injected: bool,
    /// How often it was received.
    pub arrived: u32,
    /// How often it was reported to its target.
    pub told: u32,
    pub result: Option<Memory>,
}

impl Op {
    /// The old value.
    pub fn fetched(&self) -> Option<u64> {
        let bytes = self.result.as_ref()?.bytes();
        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
    }
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { kind, from, to, len, ended, arrived, told, .. } = self;
        write!(f, "{kind:?} of {len} bytes, {from} to {to}, {ended:?}, arrived {arrived}, told {told}")
    }
}

/// The bytes of an operation.
pub fn pattern(id: usize, len: usize) -> Vec<u8> {
    let first = (id as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let words = (0..len.div_ceil(8) as u64).flat_map(|word| first.wrapping_add(word << 3).to_le_bytes());
    words.take(len).collect()
}
