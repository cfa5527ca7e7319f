//! The memory that is read and written, and its expected bytes.

use std::fmt;
use std::str::FromStr;

use multirail::memory::cuda::{Cuda, DeviceMemory};
use multirail::{Agent, Local, Region};
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, Result};

/// A kind of memory, as given by its option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(super) enum MemoryKind {
    /// Of the program.
    Host,
    /// Of the library.
    Library,
    /// Of the CUDA device with this ordinal.
    Cuda(u32),
}

impl FromStr for MemoryKind {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "0")) {
            _ if text == "host" => Ok(Self::Host),
            _ if text == "library" => Ok(Self::Library),
            ("cuda", ordinal) => ordinal.parse().map(Self::Cuda).map_err(|_| WANTED.to_string()),
            _ => Err(WANTED.to_string()),
        }
    }
}

const WANTED: &str = "wanted host, library, cuda or cuda:N";

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Library => f.write_str("library"),
            Self::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

impl TryFrom<String> for MemoryKind {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

impl From<MemoryKind> for String {
    fn from(kind: MemoryKind) -> Self {
        kind.to_string()
    }
}

/// Memory of one of these kinds.
pub(super) enum Memory {
    Host(Region<Vec<u8>>),
    Library(Region),
    Cuda(Region<DeviceMemory>),
}

/// Evaluates an expression for a region of any kind.
macro_rules! of_region {
    ($memory:expr, $region:ident => $body:expr) => {
        match $memory {
            Memory::Host($region) => $body,
            Memory::Library($region) => $body,
            Memory::Cuda($region) => $body,
        }
    };
}

impl Memory {
    pub(super) fn new(agent: &Agent, len: u64, kind: MemoryKind) -> Result<Self> {
        let stack = Failure::stack;
        let memory = match kind {
            // Not zeroes: unwritten pages all map the kernel's zero page, which is read from the cache.
            MemoryKind::Host => {
                let region = agent.register(vec![1_u8; len as usize]);
                return region.map(Self::Host).map_err(stack("registering memory"));
            }
            MemoryKind::Library => {
                Self::Library(agent.alloc(len as usize).map_err(stack("allocating memory"))?)
            }
            MemoryKind::Cuda(ordinal) => {
                let memory = Cuda::open(ordinal).and_then(|device| device.alloc(len as usize));
                let memory = memory.map_err(stack("memory of a CUDA device"))?;
                Self::Cuda(agent.register_device(memory).map_err(stack("registering memory"))?)
            }
        };
        fill(&memory, len, 0).map_err(stack("filling memory"))?;
        Ok(memory)
    }

    pub(super) fn slice(&self, start: u64, len: u64) -> ofi::Result<Local> {
        of_region!(self, region => region.slice(start..start + len))
    }

    fn fill_piece(&self, at: u64, bytes: &[u8]) -> ofi::Result<()> {
        of_region!(self, region => region.write_from(at as usize, bytes))
    }

    fn read_piece(&self, at: u64, bytes: &mut [u8]) -> ofi::Result<()> {
        of_region!(self, region => region.read_into(at as usize, bytes))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for kind in [MemoryKind::Host, MemoryKind::Library, MemoryKind::Cuda(0), MemoryKind::Cuda(7)] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert_eq!("cuda".parse(), Ok(MemoryKind::Cuda(0)));
        for wrong in ["", "gpu", "host:0", "library:1", "cuda:", "cuda:-1", "cuda:x", "Host"] {
            assert!(wrong.parse::<MemoryKind>().is_err(), "{wrong}");
        }
    }
}
