//! A hostile peer by TLS that has the key, for the fuzz targets (`fuzz/`). Not part of the interface.

use std::net::TcpStream;
use std::os::fd::AsFd;

use crate::tls::{Security, Session};

/// One end of a connection, which connects.
pub struct Insider {
    session: Box<Session>,
}

impl Insider {
    /// Of a connected socket that does not block. Returns it with its first message, which is not sent.
    pub fn new(socket: &TcpStream, key: &[u8]) -> Option<(Self, Vec<u8>)> {
        let mut session = Security::for_fuzzing(key).ok()?.connect(socket.as_fd()).ok()?;
        let hello = session.take_sealed();
        Some((Self { session }, hello))
    }

    /// Goes on with the handshake, as an honest peer. Returns whether it has ended, with success.
    pub fn advance(&mut self, socket: &TcpStream) -> bool {
        let _ = self.session.receive_into(socket.as_fd(), &mut Vec::new());
        self.session.established().is_ok()
    }

    /// An authentic record, of this kind and with these bytes of it, at most 32,768; none before the end of the
    /// handshake.
    pub fn record(&mut self, kind: u8, bytes: &[u8]) -> Vec<u8> {
        let bytes = &bytes[..bytes.len().min(1 << 15)];
        self.session.established().map_or(Vec::new(), |established| established.seal_as(kind, bytes))
    }
}
