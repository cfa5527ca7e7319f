//! The contents of datagrams. `docs/protocol.md` has them in tables.
//!
//! All numbers are in network byte order. Parsing checks everything that can be checked without a session, and never
//! reads past the input.

pub mod frame;
pub mod handshake;
pub mod header;
pub mod record;
mod stream;
pub mod suites;

pub use frame::{Ack, Frame};
pub use handshake::{Accept, Init, Params, Retry};
pub use header::{Header, Kind};
pub use record::Record;
pub use stream::Stream;

/// The version of the protocol that this crate speaks.
pub const VERSION: u8 = 2;

/// Why a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The datagram ends before an announced length.
    Truncated,
    /// Another version of the protocol, or another protocol.
    Version(u8),
    /// An unknown kind of packet, frame or record.
    Kind(u8),
    /// A field has an invalid value.
    Field(&'static str),
    /// The checksum does not match.
    Checksum,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Truncated => write!(f, "it is truncated"),
            Self::Version(found) => write!(f, "version {found} instead of {VERSION}"),
            Self::Kind(found) => write!(f, "unknown kind {found:#x}"),
            Self::Field(name) => write!(f, "bad value in {name}"),
            Self::Checksum => write!(f, "wrong checksum"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Reads fields off the front of a slice.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(head)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed::Truncated)?;
        self.0 = rest;
        Ok(*head)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(|[byte]| byte)
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_be_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_be_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Writes fields into a buffer of fixed size. A field that does not fit is not written, and [`Writer::done`] then
/// returns `None`.
pub(crate) struct Writer<'a> {
    buf: &'a mut [u8],
    at: usize,
}

impl<'a> Writer<'a> {
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self { buf, at: 0 }
    }

    pub fn put(&mut self, bytes: &[u8]) -> &mut Self {
        let end = self.at + bytes.len();
        if let Some(to) = self.buf.get_mut(self.at..end) {
            to.copy_from_slice(bytes);
        }
        self.at = end;
        self
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.put(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    pub fn u64(&mut self, value: u64) -> &mut Self {
        self.put(&value.to_be_bytes())
    }

    /// The number of bytes written, if all of them fitted.
    pub fn done(&self) -> Option<usize> {
        (self.at <= self.buf.len()).then_some(self.at)
    }
}
