//! The keys of a peer's device that the peer has sent to this end.

use ibv::transfer::Source;
use ofi_api::RemotePiece;
use ofi_core::transport::record::{Broken, Words};

/// The right to read.
pub const READ: u64 = 1;
/// The right to write.
pub const WRITE: u64 = 2;

/// A registration of the peer, with its device key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Address of its first byte in accesses.
    base: u64,
    len: u64,
    /// `READ`, `WRITE`.
    rights: u64,
    /// Address of its first byte for the device.
    addr: u64,
    rkey: u32,
    /// The word of the peer that this end reads after writes.
    pub witness: Source,
}

impl Key {
    /// Parses a record with a key. Returns the name of the registration and its key.
    pub fn parse(words: &mut Words<'_>) -> Result<(u64, Self), Broken> {
        let (key, base, len, rights) = (words.word()?, words.word()?, words.word()?, words.word()?);
        let (addr, rkey, at, with) = (words.word()?, words.word()?, words.word()?, words.word()?);
        let number = |word| u32::try_from(word).map_err(|_| Broken);
        let fits = base.checked_add(len).is_some() && addr.checked_add(len).is_some();
        if !fits || !words.0.is_empty() {
            return Err(Broken);
        }
        let witness = Source { addr: at, len: 8, rkey: number(with)? };
        Ok((key, Self { base, len, rights, addr, rkey: number(rkey)?, witness }))
    }

    /// The memory of an access, if the access is allowed.
    pub fn source(&self, piece: &RemotePiece, right: u64) -> Option<Source> {
        let offset = piece.addr.checked_sub(self.base)?;
        let end = offset.checked_add(piece.len as u64)?;
        let allowed = self.rights & right != 0 && end <= self.len;
        allowed.then(|| Source { addr: self.addr + offset, len: piece.len, rkey: self.rkey })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(all: [u64; 8]) -> Vec<u8> {
        all.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    #[test]
    fn keys_lead_where_they_say_and_nowhere_else() {
        let bytes = words([5, 0x1000, 100, READ, 0x9000, 7, 0xA000, 8]);
        let (name, key) = Key::parse(&mut Words(&bytes)).unwrap();
        assert_eq!((name, key.witness.addr, key.witness.rkey), (5, 0xA000, 8));
        let at = |addr, len, right| key.source(&RemotePiece { addr, len, key: 5 }, right).map(|to| to.addr);
        assert_eq!(at(0x1000, 100, READ), Some(0x9000));
        assert_eq!(at(0x1063, 1, READ), Some(0x9063));
        for (addr, len, right) in [
            (0xFFF, 1, READ),
            (0x1000, 101, READ),
            (0x1064, 1, READ),
            (0x1000, 1, WRITE),
            (u64::MAX, 2, READ),
            (0x1001, usize::MAX, READ),
        ] {
            assert_eq!(at(addr, len, right), None, "{addr:#x} {len}");
        }
    }

    #[test]
    fn keys_that_cannot_be_are_refused() {
        for bad in [
            [5, u64::MAX, 2, READ, 0, 0, 0, 0],
            [5, 0, 2, READ, u64::MAX, 0, 0, 0],
            [5, 0, 2, READ, 0, 1 << 32, 0, 0],
            [5, 0, 2, READ, 0, 0, 0, 1 << 32],
        ] {
            assert_eq!(Key::parse(&mut Words(&words(bad))), Err(Broken));
        }
        let whole = words([5, 0, 2, READ, 0, 0, 0, 0]);
        for cut in 0..whole.len() {
            assert_eq!(Key::parse(&mut Words(&whole[..cut])), Err(Broken));
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(Key::parse(&mut Words(&longer)), Err(Broken));
    }
}
