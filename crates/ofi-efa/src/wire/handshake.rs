//! The handshake (section 2.1): an endpoint's features and requests.

use super::cursor::Reader;
use super::{Header, Malformed, Origin, flag, kind};

/// Extra features and requests, 64 to a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features([u64; Features::WORDS]);

impl Features {
    /// The number of words that C libfabric keeps.
    pub const WORDS: usize = 4;
    /// Its memory may be read by RDMA.
    pub const RDMA_READ: usize = 0;
    /// It sends receipts.
    pub const DELIVERY_COMPLETE: usize = 1;
    /// It wants packets to have its connection id and that of the sender.
    pub const CONNID: usize = 3;
    /// It receives runt-read messages: the first bytes are sent, and it reads the rest.
    pub const RUNT: usize = 4;
    /// Its memory may be written by RDMA.
    pub const RDMA_WRITE: usize = 5;
    /// It sends a READ_NACK for a message that it cannot read.
    pub const READ_NACK: usize = 6;
    /// It receives messages only at another queue pair (libfabric 1.22 to 2.5).
    pub const USER_RECV_QP: usize = 7;
    /// RDMA writes with data consume none of its receives.
    pub const UNSOLICITED_WRITE_RECV: usize = 8;
    /// It understands PEER_ERROR.
    pub const PEER_ERROR: usize = 9;
    /// It is an endpoint of this library that recognizes repeated packets, and understands RESTART.
    pub const REPEATS: usize = 253;
    /// It is an endpoint of this library, and devices access its registrations under their own keys.
    pub const OWN_KEYS: usize = 254;
    /// It is an endpoint of this library. C libfabric has room for this bit, its last, but does not read it.
    pub const OWN: usize = 255;

    /// The set of these features.
    pub fn of(bits: &[usize]) -> Self {
        let mut features = Self::default();
        for bit in bits {
            features.0[bit / 64] |= 1 << (bit % 64);
        }
        features
    }

    /// Whether the set has a feature.
    pub fn has(&self, bit: usize) -> bool {
        self.0[bit / 64] >> (bit % 64) & 1 != 0
    }
}

/// A handshake.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handshake {
    /// The endpoint's features.
    pub features: Features,
    /// The id of its host.
    pub host_id: Option<u64>,
    /// The version of its device.
    pub device_version: Option<u32>,
    /// The queue pair at which it receives messages: number and Q-Key.
    pub user_recv_qp: Option<(u32, u32)>,
    /// Whether its device can access accelerators' memory.
    pub p2p: Option<bool>,
}

const HOST_ID: u16 = 1;
const DEVICE_VERSION: u16 = 2;
const USER_RECV_QP: u16 = 4;
const P2P: u16 = 8;
/// Maximum number of feature words in a handshake. Those beyond [`Features::WORDS`] belong to future versions.
const MAX_FEATURE_WORDS: u32 = 64;

impl Handshake {
    /// Encodes the whole packet.
    pub fn encode(&self, connid: u32) -> Header {
        let mut flags = flag::CONNID;
        for (there, bit) in [
            (self.host_id.is_some(), HOST_ID),
            (self.device_version.is_some(), DEVICE_VERSION),
            (self.user_recv_qp.is_some(), USER_RECV_QP),
            (self.p2p.is_some(), P2P),
        ] {
            flags |= if there { bit } else { 0 };
        }
        let mut header = Header::new(kind::HANDSHAKE, flags);
        header.u32(Features::WORDS as u32 + 3);
        for word in self.features.0 {
            header.u64(word);
        }
        header.u32(connid).u32(0);
        if let Some(host) = self.host_id {
            header.u64(host);
        }
        if let Some(version) = self.device_version {
            header.u32(version).u32(0);
        }
        if let Some((qpn, qkey)) = self.user_recv_qp {
            header.u32(qpn).u32(qkey);
        }
        if let Some(p2p) = self.p2p {
            header.u64(p2p.into());
        }
        header
    }
}

pub(super) fn parse(flags: u16, mut reader: Reader<'_>) -> Result<(Origin, Handshake), Malformed> {
    let words = reader.u32()?.checked_sub(3).filter(|&words| words <= MAX_FEATURE_WORDS);
    let mut features = Features::default();
    for at in 0..words.ok_or(Malformed::Field("nextra_p3"))? as usize {
        let word = reader.u64()?;
        if let Some(here) = features.0.get_mut(at) {
            *here = word;
        }
    }
    let mut origin = Origin::Unsaid;
    if flags & flag::CONNID != 0 {
        origin = Origin::Connid(reader.u32()?);
        reader.u32()?;
    }
    let mut shake = Handshake { features, ..Handshake::default() };
    if flags & HOST_ID != 0 {
        shake.host_id = Some(reader.u64()?);
    }
    if flags & DEVICE_VERSION != 0 {
        shake.device_version = Some(reader.u32()?);
        reader.u32()?;
    }
    if flags & USER_RECV_QP != 0 {
        shake.user_recv_qp = Some((reader.u32()?, reader.u32()?));
    }
    if flags & P2P != 0 {
        shake.p2p = Some(reader.u64()? & 0xFF != 0);
    }
    Ok((origin, shake))
}
