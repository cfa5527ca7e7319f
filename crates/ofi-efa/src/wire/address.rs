//! An endpoint's address (table 1.5): 32 bytes, of which the last 8 are 0 on the wire.

/// The address of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawAddress {
    /// The GID of its device.
    pub gid: [u8; 16],
    /// Number of its queue pair on the device.
    pub qpn: u16,
    /// Its connection id, which is its queue pair's Q-Key: random, so that it distinguishes endpoints that had the same
    /// number.
    pub connid: u32,
}

impl RawAddress {
    /// Length of an address in bytes.
    pub const LEN: usize = 32;

    /// The wire format, which `fi_getname` also returns.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..18].copy_from_slice(&self.qpn.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.connid.to_le_bytes());
        bytes
    }

    /// Parses an address; `None` if it is too short. Bytes after the fields have no meaning here.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<{ Self::LEN }>()?;
        let [gid @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *bytes;
        let qpn = u16::from_le_bytes([bytes[16], bytes[17]]);
        let connid = u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]]);
        Some(Self { gid, qpn, connid })
    }
}
