//! Metadata: what an agent hands to others, by whatever way, so that they reach it and its memory.

use super::{Malformed, RailInfo, Reader, VERSION, put_name, put_rails, take_name, take_rails};

const MAGIC: [u8; 4] = *b"MRMD";
/// Longest metadata that is read.
pub const LONGEST: usize = 64 << 20;

/// What peers need of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// Distinguishes it from its predecessors of the same name.
    pub incarnation: u64,
    /// How it is reached.
    pub rails: Vec<RailInfo>,
    /// Its memory.
    pub regions: Vec<RegionInfo>,
}

/// A region as its peers need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionInfo {
    /// Its number, which the agent never gives to another.
    pub id: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its keys, by rails, ascending. It is reached on no others.
    pub keys: Vec<RegionKey>,
}

/// How a region is named on a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionKey {
    /// The rail, as an index of [`Metadata::rails`].
    pub rail: u8,
    /// The registration's key.
    pub key: u64,
    /// What its first byte is called.
    pub base: u64,
}

impl Metadata {
    /// The bytes to hand over.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + 64 * self.regions.len());
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        put_name(&mut out, &self.name);
        put_rails(&mut out, &self.rails);
        out.extend_from_slice(&(self.regions.len() as u32).to_le_bytes());
        for region in &self.regions {
            out.extend_from_slice(&region.id.to_le_bytes());
            out.extend_from_slice(&region.len.to_le_bytes());
            out.push(region.keys.len() as u8);
            for key in &region.keys {
                out.push(key.rail);
                out.extend_from_slice(&key.key.to_le_bytes());
                out.extend_from_slice(&key.base.to_le_bytes());
            }
        }
        out
    }

    /// Reads metadata.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() > LONGEST {
            return Err(Malformed::Trailing);
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
        let mut regions: Vec<RegionInfo> = Vec::new(); // grows with what is there, not with the count
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

impl RegionInfo {
    fn parse(reader: &mut Reader<'_>, rails: usize) -> Result<Self, Malformed> {
        let (id, len) = (reader.u64()?, reader.u64()?);
        let mut keys: Vec<RegionKey> = Vec::new();
        for _ in 0..reader.u8()? {
            let key = RegionKey { rail: reader.u8()?, key: reader.u64()?, base: reader.u64()? };
            let is_ascending = keys.last().is_none_or(|last| last.rail < key.rail);
            if usize::from(key.rail) >= rails || !is_ascending {
                return Err(Malformed::Field("rail of a key"));
            }
            if key.base.checked_add(len).is_none() {
                return Err(Malformed::Field("base"));
            }
            keys.push(key);
        }
        if len == 0 {
            return Err(Malformed::Field("region length"));
        }
        Ok(Self { id, len, keys })
    }
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
        let regions = vec((1..1_u64 << 40, keys), 0..5).prop_map(|regions| {
            let regions = regions.into_iter().enumerate();
            regions.map(|(id, (len, keys))| RegionInfo { id: id as u64 * 3, len, keys }).collect::<Vec<_>>()
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
}
