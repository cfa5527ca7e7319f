//! The memory that is read and written, and its expected bytes.

use multirail::{Agent, Local, Region};

use crate::failure::{Failure, Result};

/// Memory of either kind.
pub(super) enum Memory {
    Application(Region<Vec<u8>>),
    Library(Region),
}

impl Memory {
    pub(super) fn new(agent: &Agent, len: u64, library: bool) -> Result<Self> {
        let stack = Failure::stack("registering memory");
        let memory = match library {
            true => Self::Library(agent.alloc(len as usize).map_err(stack)?),
            // Not zeroes: pages that were never written all map the kernel's zero page, which is read from the cache.
            false => Self::Application(agent.register(vec![1_u8; len as usize]).map_err(stack)?),
        };
        if library {
            fill(&memory, len, 0).map_err(Failure::stack("filling memory"))?;
        }
        Ok(memory)
    }

    pub(super) fn slice(&self, start: u64, len: u64) -> ofi::Result<Local> {
        match self {
            Self::Application(region) => region.slice(start..start + len),
            Self::Library(region) => region.slice(start..start + len),
        }
    }

    fn fill_piece(&self, at: u64, bytes: &[u8]) -> ofi::Result<()> {
        match self {
            Self::Application(region) => region.write_from(at as usize, bytes),
            Self::Library(region) => region.write_from(at as usize, bytes),
        }
    }

    fn read_piece(&self, at: u64, bytes: &mut [u8]) -> ofi::Result<()> {
        match self {
            Self::Application(region) => region.read_into(at as usize, bytes),
            Self::Library(region) => region.read_into(at as usize, bytes),
        }
    }
}

/// The value of byte `at` after a row with `seed`.
fn byte(seed: u64, at: u64) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 7) as u8 ^ seed as u8
}

/// The size of the pieces in which memory is filled and compared.
const PIECE: usize = 1 << 20;

/// Fills the first `len` bytes.
pub(super) fn fill(memory: &Memory, len: u64, seed: u64) -> ofi::Result<()> {
    for start in (0..len).step_by(PIECE) {
        let piece: Vec<u8> = (start..len.min(start + PIECE as u64)).map(|at| byte(seed, at)).collect();
        memory.fill_piece(start, &piece)?;
    }
    Ok(())
}

/// The offset of the first wrong byte among the first `len`.
pub(super) fn wrong(memory: &Memory, len: u64, seed: u64) -> ofi::Result<Option<u64>> {
    for start in (0..len).step_by(PIECE) {
        let mut piece = vec![0; (len - start).min(PIECE as u64) as usize];
        memory.read_piece(start, &mut piece)?;
        let bad = piece.iter().zip(start..).find(|&(&found, at)| found != byte(seed, at));
        if let Some((_, at)) = bad {
            return Ok(Some(at));
        }
    }
    Ok(None)
}
