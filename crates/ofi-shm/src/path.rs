//! The two paths of a large payload. A measurement is the time that one message took, counted from the end of the
//! previous one if that used the same path; `single/` makes sure that messages on different paths do not overlap.

use crate::choice::{Choice, Ways};

/// The path of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// In parts through the bulk ring.
    Ring,
    /// Directly from memory to memory.
    Single,
}

impl Ways for Path {
    const BOTH: [Self; 2] = [Self::Ring, Self::Single];
    const FIRST_CLASS: u32 = 12;
    /// The first message creates a ring, or faults pages in.
    const TRIAL: u32 = 4;
    const SKIPPED: u32 = 1;

    fn index(self) -> usize {
        self as usize
    }
}

/// Chooses the path of payloads from 4 KiB to 2 GiB and above.
pub type PathChoice = Choice<Path, 20>;
