//! Metadata: an agent hands it to others, over any channel, so that they reach the agent and its memory.

use crate::memory::Export;

use super::{Malformed, RailInfo, Reader, VERSION, put_name, put_rails, take_name, take_rails};

const MAGIC: [u8; 4] = *b"MRMD";
/// Maximum length of metadata that is parsed, in bytes.
pub const MAX_METADATA_LEN: usize = 64 << 20;

/// The data that peers need to reach an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The agent's name.
    pub name: String,
    /// Distinguishes the agent from its predecessors of the same name.
    pub incarnation: u64,
    /// The addresses of its rails.
    pub rails: Vec<RailInfo>,
    /// Its memory.
    pub regions: Vec<RegionInfo>,
}

/// A region's description for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// The region's number, which the agent never uses for another region.
    pub id: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its keys, in ascending order of their rails. Other rails do not reach the region.
    pub keys: Vec<RegionKey>,
    /// The owner's processor does not touch the memory: the owner copies it.
    pub is_staged: bool,
    /// With this, processes on the owner's host map the memory.
    pub export: Option<Export>,
}

/// The name of a region on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKey {
    /// The rail, as an index of [`Metadata::rails`].
    pub rail: u8,
    /// The registration's key.
    pub key: u64,
    /// The remote address of the first byte.
    pub base: u64,
}

impl Metadata {
    /// Encodes the metadata.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 64 * self.regions.len());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        put_name(&mut out, &self.name);
        put_rails(&mut out, &self.rails);
        out.extend_from_slice(&(self.regions.len() as u32).to_le_bytes());
        self.regions.iter().for_each(|region| region.put(&mut out));
        out
    }

    /// Reads metadata.
    ///
    /// # Errors
    /// The reason why the bytes are not valid metadata.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > MAX_METADATA_LEN {
            return Err(Malformed::TooLong(bytes.len()));
        }
        let mut reader = Reader::new(bytes);
        if reader.bytes(4)? != MAGIC {
            return Err(Malformed::Magic);
        }
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let incarnation = reader.u64()?;
        let (name, rails) = (take_name(&mut reader)?, take_rails(&mut reader)?);
        let count = reader.u32()?;
        let mut regions: Vec<RegionInfo> = Vec::new(); // grows with the received bytes, not with the count
        for _ in 0..count {
            let region = RegionInfo::parse(&mut reader, rails.len())?;
            if regions.last().is_some_and(|last| last.id >= region.id) {
                return Err(Malformed::Field("region id"));
            }
            regions.push(region);
        }
        reader.end()?;
        Ok(Self { name, incarnation, rails, regions })
    }
}

/// Values of the byte for the kind of access to a region.
const BY_RAILS: u8 = 0;
const STAGED: u8 = 1;
const EXPORTED: u8 = 2;

impl RegionInfo {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_le_bytes());
        out.extend_from_slice(&self.len.to_le_bytes());
        put_keys(out, &self.keys);
        match (&self.export, self.is_staged) {
            (None, false) => out.push(BY_RAILS),
            (None, true) => out.push(STAGED),
            (Some(export), _) => {
                out.push(EXPORTED);
                out.extend_from_slice(&export.host);
                out.extend_from_slice(&export.device);
                out.extend_from_slice(&export.handle);
                out.extend_from_slice(&export.offset.to_le_bytes());
            }
        }
    }

    pub(super) fn parse(reader: &mut Reader<'_>, rails: usize) -> Result<Self, Malformed> {
        let (id, len) = (reader.u64()?, reader.u64()?);
        let keys = take_keys(reader, rails)?;
        if keys.iter().any(|key| key.base.checked_add(len).is_none()) {
            return Err(Malformed::Field("base"));
        }
        if len == 0 {
            return Err(Malformed::Field("region length"));
        }
        let is_staged = match reader.u8()? {
            BY_RAILS => false,
            STAGED => true,
            EXPORTED => {
                let export = Export {
                    host: reader.array()?,
                    device: reader.array()?,
                    handle: reader.array()?,
                    offset: reader.u64()?,
                };
                return Ok(Self { id, len, keys, is_staged: true, export: Some(export) });
            }
            _ => return Err(Malformed::Field("way to a region")),
        };
        Ok(Self { id, len, keys, is_staged, export: None })
    }
}

pub(super) fn put_keys(out: &mut Vec<u8>, keys: &[RegionKey]) {
    out.push(keys.len() as u8);
    for key in keys {
        out.push(key.rail);
        out.extend_from_slice(&key.key.to_le_bytes());
        out.extend_from_slice(&key.base.to_le_bytes());
    }
}

/// Takes the keys of a region whose owner has at most `rails` rails.
pub(super) fn take_keys(reader: &mut Reader<'_>, rails: usize) -> Result<Vec<RegionKey>, Malformed> {
    let mut keys: Vec<RegionKey> = Vec::new();
    for _ in 0..reader.u8()? {
        let key = RegionKey { rail: reader.u8()?, key: reader.u64()?, base: reader.u64()? };
        let is_ascending = keys.last().is_none_or(|last| last.rail < key.rail);
        if usize::from(key.rail) >= rails || !is_ascending {
            return Err(Malformed::Field("rail of a key"));
        }
        keys.push(key);
    }
    Ok(keys)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn metadata() -> impl Strategy<Value = Metadata> {
        let keys = vec((any::<u64>(), 0..1_u64 << 40), 0..=3).prop_map(|keys| {
            let keys = keys.into_iter().enumerate();
            keys.map(|(rail, (key, base))| RegionKey { rail: rail as u8, key, base }).collect::<Vec<_>>()
        });
        let export = (any::<[u8; 16]>(), any::<[u8; 16]>(), any::<[u8; 32]>(), any::<u64>());
        let export = export.prop_map(|(host, device, half, offset)| {
            let mut handle = [0; 64];
            handle[16..48].copy_from_slice(&half);
            Export { host, device, handle, offset }
        });
        let regions = vec((1..1_u64 << 40, keys, proptest::option::of(export)), 0..5).prop_map(|regions| {
            let regions = regions.into_iter().enumerate();
            let region = |(id, (len, keys, export)): (usize, (u64, Vec<RegionKey>, Option<Export>))| {
                // A NIC may reach memory that others reach through windows.
                let is_staged = keys.is_empty() || export.is_some();
                RegionInfo { id: id as u64 * 3, len, keys, is_staged, export }
            };
            regions.map(region).collect::<Vec<_>>()
        });
        (any::<u64>(), regions).prop_map(|(incarnation, regions)| {
            let rail = RailInfo { provider: "udp".into(), format: 2, address: vec![1; 16] };
            Metadata { name: "prefill-0".into(), incarnation, rails: vec![rail; 3], regions }
        })
    }

    proptest! {
        #[test]
        fn parse_inverts_encode_and_every_prefix_is_refused(metadata in metadata(), cut in any::<u16>()) {
            let bytes = metadata.encode();
            prop_assert_eq!(Metadata::parse(&bytes), Ok(metadata));
            prop_assert!(Metadata::parse(&bytes[..usize::from(cut) % bytes.len()]).is_err());
            prop_assert_eq!(Metadata::parse(&[&bytes[..], &[0]].concat()), Err(Malformed::Trailing));
        }

        #[test]
        fn a_changed_byte_is_refused_or_changes_the_value(metadata in metadata(), at in any::<u16>(), by in 1..=255_u8) {
            let mut bytes = metadata.encode();
            let at = usize::from(at) % bytes.len();
            bytes[at] ^= by;
            if let Ok(other) = Metadata::parse(&bytes) {
                prop_assert_ne!(&other, &metadata);
                prop_assert_eq!(other.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_count_of_strangers_allocates_nothing() {
        let rails = vec![RailInfo { provider: "shm".into(), format: 1, address: vec![1] }];
        let mut bytes = Metadata { name: "a".into(), incarnation: 0, rails, regions: Vec::new() }.encode();
        let at = bytes.len() - 4;
        bytes[at..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Metadata::parse(&bytes), Err(Malformed::Truncated));
    }

    #[test]
    fn metadata_that_is_too_long_is_not_looked_at() {
        let mut bytes = vec![0; MAX_METADATA_LEN + 1];
        assert_eq!(Metadata::parse(&bytes), Err(Malformed::TooLong(MAX_METADATA_LEN + 1)));
        bytes.pop();
        assert_eq!(Metadata::parse(&bytes), Err(Malformed::Magic));
    }
}
