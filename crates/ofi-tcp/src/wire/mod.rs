//! The wire protocol of C libfabric's `tcp` provider: the bytes on a connection, without any I/O.
//!
//! A connection begins with one [connection message](cm) each way; those of `FI_EP_RDM` carry an [`Identity`]. Then
//! come [packets](Packet), each a header of 16 to 120 bytes and a payload. If the byte orders of the ends differ, one
//! end notices it and swaps the numbers in packets, which have the other end's byte order ([`Order`]).

pub mod cm;
mod identity;
mod packet;

pub use identity::Identity;
pub use packet::{MAX_HEADER_LEN, MAX_SHORT_LEN, Malformed, Packet, Pieces, RemotePiece, charge};

/// The byte order of a connection's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// This host's.
    #[default]
    Own,
    /// The other one: the peer's connection message was written in it.
    Swapped,
}

impl Order {
    fn u16(self, value: u16) -> u16 {
        if self == Self::Own { value } else { value.swap_bytes() }
    }

    fn u64(self, value: u64) -> u64 {
        if self == Self::Own { value } else { value.swap_bytes() }
    }
}
