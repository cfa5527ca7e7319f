//! Splits a transfer between several pieces at both ends into requests with one local and one remote piece each.

use std::collections::VecDeque;

use crate::work::{Remote, Segment};

/// The maximum length of one request in bytes. Every device supports this length.
pub const MAX_REQUEST_LEN: usize = 1 << 20;

/// A piece of a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The device's address of its first byte.
    pub addr: u64,
    /// Its length in bytes.
    pub len: usize,
    /// The key of its registration.
    pub rkey: u32,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Whether the peer's memory is written rather than read.
    pub write: bool,
    /// This end's memory.
    pub local: Segment,
    /// The peer's memory.
    pub remote: Remote,
}

// SAFETY: only numbers and addresses; the code that posts the step relies on the memory being lent.
unsafe impl Send for Step {}

/// The requests that transfer bytes between `sources`, the peer's pieces, and `runs`, the local ones, from the start.
/// Each has one piece at both ends, and at most `longest` bytes (less than 4 GiB).
pub fn plan(
    write: bool,
    runs: &[(*mut u8, usize, u32)],
    sources: &[Source],
    longest: usize,
) -> VecDeque<Step> {
    let mut todo = VecDeque::new();
    let mut from = sources.iter();
    let mut source: Option<Source> = None;
    for &(mut addr, mut len, lkey) in runs {
        while len > 0 {
            let Some(mut here) = source.take().or_else(|| from.next().copied()) else { return todo };
            let part = len.min(here.len).min(longest);
            if part > 0 {
                let local = Segment { addr, len: part as u32, lkey };
                todo.push_back(Step { write, local, remote: Remote { addr: here.addr, rkey: here.rkey } });
            }
            (addr, len) = (addr.wrapping_add(part), len - part);
            (here.addr, here.len) = (here.addr + part as u64, here.len - part);
            source = Some(here).filter(|here| here.len > 0);
        }
    }
    todo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cover_every_byte_once_whatever_the_pieces_are() {
        let base = 0x1000 as *mut u8;
        let runs = [(base, 5, 1), (base.wrapping_add(100), MAX_REQUEST_LEN + 3, 2)];
        let source = |addr, len| Source { addr, len, rkey: addr as u32 };
        let sources = [source(10, 2), source(20, 0), source(30, MAX_REQUEST_LEN + 1), source(5_000_000, 900)];
        let todo = plan(false, &runs, &sources, MAX_REQUEST_LEN);
        let total: usize = todo.iter().map(|step| step.local.len as usize).sum();
        assert_eq!(total, MAX_REQUEST_LEN + 8);
        let all: Vec<_> = todo
            .iter()
            .map(|step| (step.local.addr as u64, step.local.len as usize, step.remote.addr))
            .collect();
        let first = MAX_REQUEST_LEN + 1 - 3;
        assert_eq!(
            all,
            [(0x1000, 2, 10), (0x1002, 3, 30), (0x1064, first, 33), (0x1064 + first as u64, 5, 5_000_000)]
        );
    }
}
