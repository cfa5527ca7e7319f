//! Notes about collectives between the cores of two endpoints: four words and a payload.
//!
//! ```text
//! word 0  the group
//! word 1  which of the group's operations
//! word 2  kind (8 bits), round (24 bits), 0
//! word 3  value:  Ask: length   Chunk: offset   Credit: how many   Abort: errno
//! ```

/// The content of a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlKind {
    /// A whole transfer.
    Eager,
    /// A transfer of this many bytes waits for a request.
    Ask,
    /// Requests the transfer.
    Go,
    /// A part of the transfer.
    Chunk,
    /// Says how many of the receiver's eager notes and questions have been processed.
    Credit,
    /// The group has failed.
    Abort,
}

impl ControlKind {
    const ALL: [Self; 6] = [Self::Eager, Self::Ask, Self::Go, Self::Chunk, Self::Credit, Self::Abort];
}

/// A note, without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its content.
    pub kind: ControlKind,
    /// The group.
    pub group: u64,
    /// The number of the operation in its group.
    pub operation: u64,
    /// In which round.
    pub round: u32,
    /// The value of word 3, whose meaning depends on `kind`.
    pub value: u64,
}

impl Note {
    /// As words.
    pub fn to_words(self) -> [u64; 4] {
        let second = (self.kind as u64) << 56 | u64::from(self.round & 0xFF_FFFF) << 32;
        [self.group, self.operation, second, self.value]
    }

    /// From words; `None` for an unknown kind.
    pub fn from_words(words: [u64; 4]) -> Option<Self> {
        let [group, operation, second, value] = words;
        let kind = *ControlKind::ALL.get((second >> 56) as usize)?;
        Some(Self { kind, group, operation, round: (second >> 32) as u32 & 0xFF_FFFF, value })
    }
}
