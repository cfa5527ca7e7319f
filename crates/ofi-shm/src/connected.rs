//! What the helper must know of a connected endpoint (`FI_EP_MSG`): only the one peer is let in.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Packets that an endpoint takes in before it looks at them. Only a hostile peer sends more.
const PACKETS: usize = 64;

/// See the module. Sockets go by their names.
#[derive(Default)]
pub struct Connected(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    /// The one peer.
    admitted: Option<Vec<u8>>,
    /// Whose end has to be noticed, before the peer's process is watched.
    watched: Option<Vec<u8>>,
    /// Packets that the endpoint has not taken.
    waiting: usize,
}

impl Connected {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `peer` may be met.
    pub fn admits(&self, peer: &[u8]) -> bool {
        self.inner().admitted.as_deref() == Some(peer)
    }

    /// Admits `peer`, and nobody else.
    pub fn admit(&self, peer: Vec<u8>) {
        self.inner().admitted = Some(peer);
    }

    /// The one peer.
    pub fn admitted(&self) -> Option<Vec<u8>> {
        self.inner().admitted.clone()
    }

    /// Admits nobody any more, and watches nobody.
    pub fn shut_out(&self) {
        let mut inner = self.inner();
        (inner.admitted, inner.watched) = (None, None);
    }

    /// Has the end of `peer` noticed, before its process is watched; or of nobody.
    pub fn watch(&self, peer: Option<Vec<u8>>) {
        self.inner().watched = peer;
    }

    /// Whose end has to be noticed.
    pub fn watched(&self) -> Option<Vec<u8>> {
        self.inner().watched.clone()
    }

    /// Notices the end of `peer` no more.
    pub fn unwatch(&self, peer: &[u8]) {
        let mut inner = self.inner();
        if inner.watched.as_deref() == Some(peer) {
            inner.watched = None;
        }
    }

    /// Makes room for a packet that the endpoint is to take, if there is any.
    pub fn begin_packet(&self) -> bool {
        let mut inner = self.inner();
        let fits = inner.waiting < PACKETS;
        inner.waiting += usize::from(fits);
        fits
    }

    /// The endpoint has taken a packet.
    pub fn end_packet(&self) {
        self.inner().waiting -= 1;
    }
}
