//! Datagrams as an endpoint takes them and hands them out.

use core::net::SocketAddr;

/// Datagrams that came together from one address.
#[derive(Debug)]
pub struct Arrivals<'a> {
    /// One behind the other.
    pub bytes: &'a mut [u8],
    /// Bytes of each but for the last, which may be shorter.
    pub len: usize,
    /// They were marked on their way: a queue was about to be full (CE, RFC 3168).
    pub marked: bool,
}

/// A datagram to be sent, or a row of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: SocketAddr,
    /// Bytes of it.
    pub len: usize,
    /// Datagrams of this length that lie one behind the other in the buffer.
    pub count: usize,
    /// The peer, unless it goes to a stranger.
    pub peer: Option<u32>,
}
