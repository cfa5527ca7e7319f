//! What the helper knows about a connected endpoint (`FI_EP_MSG`), which admits a single peer.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum packets that wait for the endpoint. Only a hostile peer sends more.
const PACKETS: usize = 64;

/// The peer that a connected endpoint admits, and the peer whose exit is watched, both by the names of their sockets.
#[derive(Default)]
pub struct Connected(Mutex<ConnectedInner>);

#[derive(Default)]
struct ConnectedInner {
    /// The only peer that may connect.
    admitted: Option<Vec<u8>>,
    /// The peer whose exit must be noticed, although its process is not known yet.
    watched: Option<Vec<u8>>,
    /// Packets that the endpoint has not taken yet.
    waiting: usize,
}

impl Connected {
    fn inner(&self) -> MutexGuard<'_, ConnectedInner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `socket` may connect.
    pub fn admits(&self, socket: &[u8]) -> bool {
        self.inner().admitted.as_deref() == Some(socket)
    }

    /// Admits only `socket`.
    pub fn admit(&self, socket: Vec<u8>) {
        self.inner().admitted = Some(socket);
    }

    /// The only peer that may connect, if any.
    pub fn admitted(&self) -> Option<Vec<u8>> {
        self.inner().admitted.clone()
    }

    /// Stops admitting and watching peers.
    pub fn shut_out(&self) {
        let mut inner = self.inner();
        (inner.admitted, inner.watched) = (None, None);
    }

    /// Sets the socket to watch until its process is known; `None` stops watching.
    pub fn watch(&self, socket: Option<Vec<u8>>) {
        self.inner().watched = socket;
    }

    /// The peer whose exit must be noticed.
    pub fn watched(&self) -> Option<Vec<u8>> {
        self.inner().watched.clone()
    }

    /// Stops watching for the exit of `socket`.
    pub fn unwatch(&self, socket: &[u8]) {
        let mut inner = self.inner();
        if inner.watched.as_deref() == Some(socket) {
            inner.watched = None;
        }
    }

    /// Reserves room for a packet to the endpoint. `false` if it is full.
    pub fn begin_packet(&self) -> bool {
        let mut inner = self.inner();
        let fits = inner.waiting < PACKETS;
        inner.waiting += usize::from(fits);
        fits
    }

    /// Returns the room of a packet that the endpoint has taken.
    pub fn end_packet(&self) {
        self.inner().waiting -= 1;
    }
}
