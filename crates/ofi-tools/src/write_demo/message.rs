//! The messages of the two processes, byte for byte as the C++ demo `16_write_cpu` lays them out on x86-64.
//!
//! ```text
//! CONNECT                          RANDOM_FILL
//! @0   u8  type = 0                @0   u8  type = 1
//! @1   u8  address[32]             @4   u32 remote_context
//! @40  u64 regions                 @8   u64 seed
//! @48  { u64 addr, size, rkey }..  @16  u64 page_size
//!                                  @24  u64 pages
//!                                  @32  u32 page_index[pages]
//! ```
//!
//! Two messages are specific to this program. `CONNECT_NAMED` (2) carries an address of more than 32 bytes: its length
//! at @4, its bytes after the regions. `REPEATED_FILL` (3) has the number of rounds at @32, the announcement mode at @1
//! (0 the last write, 1 every write), and the page indices from @40 on. Everything is little-endian.

use ofi::RemoteWindow;

use crate::failure::{Failure, Result};

/// Maximum length of a message, in bytes: the size of the C++ demo's receive buffers.
pub const MAX_MESSAGE_LEN: usize = 8192;
/// Length of an address in `CONNECT`.
const ADDRESS: usize = 32;
const REGION: usize = 24;

/// The way in which the writer announces pages to the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Arrival {
    /// The last write carries data, and is posted when all others are complete at the writer.
    Last,
    /// Every write carries data, and the reader counts them. Correct on networks that reorder, and needs no wait.
    Counted,
}

/// "Here is my address, and memory that you may write."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The address in the provider's format. Padded with zeros to 32 bytes if it is shorter.
    pub address: Vec<u8>,
    /// The regions.
    pub regions: Vec<RemoteWindow>,
}

/// "Fill these pages of each region with random bytes."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fill {
    /// The remote CQ data of the writes that carry data.
    pub context: u32,
    /// Seed of the first region; the next one has the next seed.
    pub seed: u64,
    /// Bytes of a page, a multiple of 8.
    pub page_size: u64,
    /// The destination of each page, as a page index in the region.
    pub pages: Vec<u32>,
    /// Number of times that all pages are written.
    pub rounds: u64,
    /// Which writes carry data.
    pub arrival: Arrival,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// `CONNECT` or `CONNECT_NAMED`.
    Connect(Connect),
    /// `RANDOM_FILL` or `REPEATED_FILL`.
    Fill(Fill),
}

impl Connect {
    /// Encodes the message.
    ///
    /// # Errors
    /// The message is longer than [`MAX_MESSAGE_LEN`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let named = self.address.len() > ADDRESS;
        let mut bytes = vec![0; 40];
        if named {
            bytes[0] = 2;
            bytes[4..8].copy_from_slice(&(self.address.len() as u32).to_le_bytes());
        } else {
            bytes[1..1 + self.address.len()].copy_from_slice(&self.address);
        }
        bytes.extend((self.regions.len() as u64).to_le_bytes());
        for region in &self.regions {
            [region.base, region.len, region.key].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        }
        if named {
            bytes.extend(&self.address);
        }
        checked(bytes)
    }
}

impl Fill {
    /// Encodes the message, in the C++ demo's format if that can express it.
    ///
    /// # Errors
    /// The message is longer than [`MAX_MESSAGE_LEN`].
    pub fn encode(&self) -> Result<Vec<u8>> {
        let ours = self.rounds != 1 || self.arrival == Arrival::Counted;
        let mut bytes = vec![0; 4];
        bytes[0] = if ours { 3 } else { 1 };
        bytes[1] = u8::from(self.arrival == Arrival::Counted);
        bytes.extend(self.context.to_le_bytes());
        for word in [self.seed, self.page_size, self.pages.len() as u64] {
            bytes.extend(word.to_le_bytes());
        }
        if ours {
            bytes.extend(self.rounds.to_le_bytes());
        }
        self.pages.iter().for_each(|page| bytes.extend(page.to_le_bytes()));
        checked(bytes)
    }

    /// Bytes of a round per region; `None` if that exceeds 64 bits.
    pub fn region_bytes(&self) -> Option<u64> {
        self.page_size.checked_mul(self.pages.len() as u64)
    }

    /// Checks the request against these regions.
    ///
    /// # Errors
    /// The page size is not a positive multiple of 8, there are no pages or rounds, or a page lies outside of a region.
    pub fn check(&self, regions: &[RemoteWindow]) -> Result<()> {
        let refuse = |text: String| Err(Failure::Peer(text));
        if self.page_size == 0 || !self.page_size.is_multiple_of(8) {
            return refuse(format!(
                "a page of {} bytes; a positive multiple of 8 was wanted",
                self.page_size
            ));
        }
        if self.pages.is_empty() || self.rounds == 0 || regions.is_empty() {
            return refuse("an empty request: no pages, no rounds or no regions".to_string());
        }
        for page in &self.pages {
            let end = (u64::from(*page) + 1).checked_mul(self.page_size);
            let outside = |region: &&RemoteWindow| end.is_none_or(|end| end > region.len);
            if let Some(region) = regions.iter().find(outside) {
                return refuse(format!(
                    "page {page} of {} bytes in a region of {}",
                    self.page_size, region.len
                ));
            }
        }
        Ok(())
    }
}

impl Message {
    /// Parses a message.
    ///
    /// # Errors
    /// The bytes are not a message, or are shorter or longer than its counts require.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut rest = MessageReader { bytes, at: 0 };
        let parsed = match bytes.first() {
            Some(&kind @ (0 | 2)) => rest.connect(kind == 2).map(Self::Connect),
            Some(&kind @ (1 | 3)) => rest.fill(kind == 3).map(Self::Fill),
            other => return Err(Failure::Peer(format!("a message of type {other:?}; 0 to 3 are known"))),
        };
        let whole = parsed.filter(|_| rest.at == bytes.len());
        whole.ok_or_else(|| {
            let text = "a message of type {} whose {} bytes are not as many as its counts say";
            let kind = bytes.first().copied().unwrap_or_default();
            Failure::Peer(text.replacen("{}", &kind.to_string(), 1).replacen(
                "{}",
                &bytes.len().to_string(),
                1,
            ))
        })
    }
}

fn checked(bytes: Vec<u8>) -> Result<Vec<u8>> {
    if bytes.len() <= MAX_MESSAGE_LEN {
        return Ok(bytes);
    }
    let text = format!("a request of {} bytes does not fit into a message of {MAX_MESSAGE_LEN}", bytes.len());
    Err(Failure::Usage(format!("{text}; ask for fewer pages (2,038 always fit)")))
}

struct MessageReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl MessageReader<'_> {
    fn take(&mut self, len: usize) -> Option<&[u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(taken)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// The number of pieces of `size` bytes that follow, if the message is long enough for them.
    fn count(&mut self, size: usize) -> Option<usize> {
        let count = usize::try_from(self.u64()?).ok()?;
        (count <= self.bytes.len() / size).then_some(count)
    }

    fn connect(&mut self, named: bool) -> Option<Connect> {
        let address = self.take(40)?[1..=ADDRESS].to_vec();
        let regions = self.count(REGION)?;
        let region = |reader: &mut Self| {
            let (base, len, key) = (reader.u64()?, reader.u64()?, reader.u64()?);
            base.checked_add(len).map(|_| RemoteWindow { key, base, len })
        };
        let regions = (0..regions).map(|_| region(self)).collect::<Option<_>>()?;
        let address = if named {
            let len = self.bytes.get(4..8)?.try_into().ok().map(u32::from_le_bytes)?;
            self.take(usize::try_from(len).ok()?)?.to_vec()
        } else {
            address
        };
        Some(Connect { address, regions })
    }

    fn fill(&mut self, ours: bool) -> Option<Fill> {
        let arrival = match (ours, self.take(4)?[1]) {
            (true, 1) => Arrival::Counted,
            (true, 0) | (false, _) => Arrival::Last,
            (true, _) => return None,
        };
        let (context, seed, page_size) = (self.u32()?, self.u64()?, self.u64()?);
        let pages = self.count(4)?;
        let rounds = if ours { self.u64()? } else { 1 };
        let pages = (0..pages).map(|_| self.u32()).collect::<Option<_>>()?;
        Some(Fill { context, seed, page_size, pages, rounds, arrival })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connect(address: Vec<u8>) -> Connect {
        let region = |key| RemoteWindow { key, base: 0x7f00_0000_0000 + key, len: 16 << 20 };
        Connect { address, regions: vec![region(1), region(2)] }
    }

    fn request(rounds: u64, arrival: Arrival) -> Fill {
        let pages = vec![1, 3, 5, 6, 7, 9, 11, 14];
        Fill { context: 0x123, seed: 0xb584_035f, page_size: 1 << 20, pages, rounds, arrival }
    }

    #[test]
    fn messages_have_the_bytes_of_the_cpp_demo() {
        let bytes = connect((1..=32).collect()).encode().unwrap();
        assert_eq!(bytes.len(), 96);
        assert_eq!((bytes[0], bytes[1], bytes[32], &bytes[33..40]), (0, 1, 32, &[0; 7][..]));
        assert_eq!(bytes[40..48], 2_u64.to_le_bytes());
        assert_eq!(bytes[48..56], 0x7f00_0000_0001_u64.to_le_bytes());
        assert_eq!(bytes[56..64], (16_u64 << 20).to_le_bytes());
        assert_eq!(bytes[64..72], 1_u64.to_le_bytes());

        let bytes = request(1, Arrival::Last).encode().unwrap();
        assert_eq!(bytes.len(), 64);
        assert_eq!(bytes[..8], [1, 0, 0, 0, 0x23, 1, 0, 0]);
        assert_eq!(bytes[8..16], 0xb584_035f_u64.to_le_bytes());
        assert_eq!(bytes[16..24], (1_u64 << 20).to_le_bytes());
        assert_eq!(bytes[24..32], 8_u64.to_le_bytes());
        assert_eq!(bytes[32..40], [1, 0, 0, 0, 3, 0, 0, 0]);
    }

    #[test]
    fn messages_read_back() {
        for address in [vec![7; 32], vec![9; 33], vec![1; 200]] {
            let sent = connect(address);
            assert_eq!(Message::parse(&sent.encode().unwrap()).unwrap(), Message::Connect(sent));
        }
        // A short address returns with its padding.
        let short = Message::parse(&connect(vec![5; 16]).encode().unwrap()).unwrap();
        let Message::Connect(short) = short else { panic!("{short:?}") };
        assert_eq!(short.address, [[5; 16], [0; 16]].concat());
        for (rounds, arrival) in [(1, Arrival::Last), (9, Arrival::Last), (1, Arrival::Counted)] {
            let sent = request(rounds, arrival);
            assert_eq!(Message::parse(&sent.encode().unwrap()).unwrap(), Message::Fill(sent));
        }
    }

    #[test]
    fn messages_that_are_cut_or_lie_about_their_lengths_are_refused() {
        let fill = request(2, Arrival::Counted).encode().unwrap();
        let hello = connect(vec![1; 40]).encode().unwrap();
        for whole in [fill, hello] {
            for len in 0..whole.len() {
                assert!(Message::parse(&whole[..len]).is_err(), "{len} bytes");
            }
            assert!(Message::parse(&[&whole[..], &[0]].concat()).is_err());
        }
        let mut many = request(1, Arrival::Last).encode().unwrap();
        many[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(Message::parse(&many).is_err());
        assert!(Message::parse(&[4; 64]).is_err());
        assert!(Fill { pages: vec![0; 2050], ..request(1, Arrival::Last) }.encode().is_err());
    }

    #[test]
    fn requests_are_checked_against_the_regions() {
        let regions = connect(vec![]).regions;
        let good = request(1, Arrival::Last);
        good.check(&regions).unwrap();
        assert!(good.check(&[]).is_err());
        let bad = [
            Fill { page_size: 0, ..good.clone() },
            Fill { page_size: 12, ..good.clone() },
            Fill { page_size: u64::MAX - 7, ..good.clone() },
            Fill { pages: vec![16], ..good.clone() },
            Fill { pages: vec![], ..good.clone() },
            Fill { rounds: 0, ..good.clone() },
        ];
        for request in bad {
            assert!(request.check(&regions).is_err(), "{request:?}");
        }
    }
}
