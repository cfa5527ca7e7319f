//! Datagrams as an endpoint accepts and returns them.

use core::net::SocketAddr;

/// Datagrams that came together from one address.
#[derive(Debug)]
pub struct Arrivals<'a> {
    /// The datagrams, without gaps.
    pub bytes: &'a mut [u8],
    /// Bytes of each datagram; the last may be shorter.
    pub len: usize,
    /// Whether the datagrams carry a congestion mark: a queue on the path was nearly full (CE, RFC 3168).
    pub marked: bool,
}

/// A datagram to send, or a row of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The destination.
    pub to: SocketAddr,
    /// Bytes of each datagram.
    pub len: usize,
    /// The number of datagrams of this length. They follow each other in the buffer without gaps.
    pub count: usize,
    /// The peer that they go to; `None` for a stranger.
    pub peer: Option<u32>,
}
