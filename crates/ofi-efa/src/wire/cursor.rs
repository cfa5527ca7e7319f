//! Parses fields from the front of a packet, and collects the fields of a new one.

use super::{Malformed, VERSION};

/// The rest of a packet.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (chunk, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*chunk)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.chunk::<1>().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.chunk().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.chunk().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.chunk().map(u64::from_le_bytes)
    }

    /// A 64-bit number of bytes, checked to be a valid object size of this process.
    pub fn len(&mut self, field: &'static str) -> Result<usize, Malformed> {
        let len = self.u64()?;
        usize::try_from(len).ok().filter(|&len| len <= isize::MAX as usize).ok_or(Malformed::Field(field))
    }

    pub fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }
}

/// A packet without its payload.
#[derive(Clone, Copy)]
pub struct Header {
    bytes: [u8; Self::MAX_LEN],
    len: usize,
}

impl Header {
    /// Maximum length of a header in bytes: a long-read tagged message with four pieces and every optional header.
    pub const MAX_LEN: usize = 256;

    /// The base header.
    pub(super) fn new(kind: u8, flags: u16) -> Self {
        let mut header = Self { bytes: [0; Self::MAX_LEN], len: 0 };
        header.put(&[kind, VERSION]).put(&flags.to_le_bytes());
        header
    }

    pub(super) fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
        self
    }

    pub(super) fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_le_bytes())
    }

    pub(super) fn len_of(&mut self, value: usize) -> &mut Self {
        self.u64(value as u64)
    }

    /// The encoded header.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
