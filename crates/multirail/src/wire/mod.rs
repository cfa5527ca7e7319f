//! The protocol between agents: the messages of a session, and the metadata that is handed over out of band.
//!
//! All numbers are little-endian. The parsers take bytes from untrusted peers. A parser allocates in proportion to the
//! received bytes, rejects input beyond the bounds below, and accepts only the exact encoding that the encoder writes,
//! to the last byte.

pub mod blob;
pub mod message;
mod reader;
pub(crate) mod staging;

use std::fmt;

pub use blob::{Metadata, RegionInfo, RegionKey};
pub use message::{FRAGMENT, MESSAGE, Message};
pub(crate) use reader::Reader;

/// Version of messages and metadata. Other versions are refused: their fields may have other meanings.
pub const VERSION: u8 = 2;
/// Maximum length of an agent's name, in bytes.
pub const MAX_NAME_LEN: usize = 255;
/// Maximum rails of an agent. Their addresses fit into one message.
pub const MAX_RAILS: usize = 32;
/// Maximum number of rails that an agent has in its life, open at the same time or not: a rail that is opened again has
/// a number of its own. A set of rails and their number fit into 64 bits.
pub const MAX_RAIL_NUMBERS: usize = 56;
/// Maximum length of a provider's name, in bytes.
pub const MAX_PROVIDER_LEN: usize = 64;
/// Maximum length of a rail's address, in bytes.
pub const MAX_ADDRESS_LEN: usize = 96;

/// A rail's description for peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RailInfo {
    /// The provider: only rails of the same provider reach each other.
    pub provider: String,
    /// The layout of the address (`fi_info.addr_format`, C's number).
    pub format: u32,
    /// The endpoint's address.
    pub address: Vec<u8>,
}

/// The reason why bytes are not a valid message or metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There are more bytes than the limit.
    TooLong(usize),
    /// The bytes end too early.
    Truncated,
    /// There are bytes after the end.
    Trailing,
    /// The bytes begin with another magic word.
    Magic,
    /// The bytes have this unknown version.
    Version(u8),
    /// The message is of this unknown kind.
    Kind(u8),
    /// A field has an invalid value.
    Field(&'static str),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(len) => write!(f, "too long, with {len} bytes"),
            Self::Truncated => write!(f, "truncated"),
            Self::Trailing => write!(f, "bytes after the end"),
            Self::Magic => write!(f, "not from multirail"),
            Self::Version(other) => write!(f, "of version {other}; this program knows version {VERSION}"),
            Self::Kind(other) => write!(f, "of the unknown kind {other}"),
            Self::Field(name) => write!(f, "field {name} has an invalid value"),
        }
    }
}

impl std::error::Error for Malformed {}

/// Checks the name of an agent.
///
/// # Errors
/// `FI_EINVAL` for a name that is empty, too long, or has control characters.
pub fn check_name(name: &str) -> ofi::Result<()> {
    if is_name(name) {
        return Ok(());
    }
    Err(ofi::Error::wanted(
        ofi::Errno::EINVAL,
        "the name of an agent",
        format!("1 to {MAX_NAME_LEN} bytes without control characters"),
        format!("{name:?}"),
        "choose another name",
    ))
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME_LEN && !name.chars().any(char::is_control)
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.push(name.len() as u8);
    out.extend_from_slice(name.as_bytes());
}

fn take_name(reader: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = reader.u8()?;
    let text = std::str::from_utf8(reader.bytes(usize::from(len))?).map_err(|_| Malformed::Field("name"))?;
    if is_name(text) { Ok(text.to_string()) } else { Err(Malformed::Field("name")) }
}

fn put_rails(out: &mut Vec<u8>, rails: &[RailInfo]) {
    out.push(rails.len() as u8);
    rails.iter().for_each(|rail| put_rail(out, rail));
}

fn put_rail(out: &mut Vec<u8>, rail: &RailInfo) {
    put_name(out, &rail.provider);
    out.extend_from_slice(&rail.format.to_le_bytes());
    out.push(rail.address.len() as u8);
    out.extend_from_slice(&rail.address);
}

fn take_rails(reader: &mut Reader<'_>) -> Result<Vec<RailInfo>, Malformed> {
    let count = usize::from(reader.u8()?);
    if count == 0 || count > MAX_RAILS {
        return Err(Malformed::Field("rails"));
    }
    (0..count).map(|_| take_rail(reader)).collect()
}

fn take_rail(reader: &mut Reader<'_>) -> Result<RailInfo, Malformed> {
    let (provider, format, len) = (take_name(reader)?, reader.u32()?, usize::from(reader.u8()?));
    if provider.len() > MAX_PROVIDER_LEN {
        return Err(Malformed::Field("provider"));
    }
    if len == 0 || len > MAX_ADDRESS_LEN {
        return Err(Malformed::Field("address"));
    }
    Ok(RailInfo { provider, format, address: reader.bytes(len)?.to_vec() })
}
