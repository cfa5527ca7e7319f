//! The ends of peers. The helper reports an end one round after it has noticed it.
//!
//! Each endpoint hears from its peers through its own socket, but learns that they have ended in other ways too: from a
//! pidfd, or because a socket has disappeared. So an end could overtake datagrams that the same peer or others sent
//! before it. Therefore the helper notices an end in one round and reports it in the next, once it has read every
//! socket that was readable after it noticed the end.

use std::sync::{Arc, Weak};

use ofi_api::Errno;
use ofi_core::cm::packet::{Kind, Packet};

use crate::event::HelperEvent;
use crate::shared::SharedEndpoint;
use crate::sys;

/// The end of a peer, of its connection, or of its process.
pub enum PeerExitKind {
    /// The peer has announced that it closes.
    Closed { incarnation: u64 },
    /// The peer has ended its connection with this packet.
    Shutdown(Vec<u8>),
    /// The process of the peer has ended.
    Death { incarnation: u64 },
    /// A greeting could not be delivered.
    Ungreeted(Errno),
    /// A packet could not be delivered, or the socket that should answer is gone.
    Unreached(Errno),
}

/// The end of a peer that has not been reported to its endpoint.
pub struct PeerExit {
    endpoint: Weak<SharedEndpoint>,
    socket: Vec<u8>,
    end: PeerExitKind,
}

impl PeerExit {
    pub fn new(endpoint: &Arc<SharedEndpoint>, socket: Vec<u8>, end: PeerExitKind) -> Self {
        Self { endpoint: Arc::downgrade(endpoint), socket, end }
    }

    /// Whether the end was read from the socket of `endpoint`: later datagrams there wait until it is reported.
    pub fn holds_up(&self, endpoint: &Weak<SharedEndpoint>) -> bool {
        matches!(self.end, PeerExitKind::Closed { .. } | PeerExitKind::Shutdown(_))
            && self.endpoint.ptr_eq(endpoint)
    }

    /// Reports it to the endpoint.
    pub fn tell(self) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        let socket = self.socket;
        match self.end {
            PeerExitKind::Closed { incarnation } | PeerExitKind::Death { incarnation } => {
                endpoint.forget(&socket, Some(incarnation));
                endpoint.tell(HelperEvent::Gone { socket, incarnation });
            }
            PeerExitKind::Shutdown(packet) => endpoint.take_packet(socket, &packet),
            // A peer that has been attached since does exist; its end is noticed like any other.
            PeerExitKind::Ungreeted(_) | PeerExitKind::Unreached(_)
                if endpoint.incarnation_of(&socket).is_some() => {}
            PeerExitKind::Ungreeted(errno) => {
                endpoint.forget(&socket, None);
                endpoint.tell(HelperEvent::Refused { socket, errno });
            }
            PeerExitKind::Unreached(errno) => endpoint.tell(HelperEvent::PacketLost { socket, errno }),
        }
    }
}

/// Whether a packet of connection management ends the connection.
pub fn is_shutdown(packet: &[u8]) -> bool {
    Packet::parse(packet).is_some_and(|packet| packet.kind == Kind::Shutdown)
}

impl SharedEndpoint {
    /// Checks whether the watched socket is gone.
    pub fn look_after(self: &Arc<Self>) -> Option<PeerExit> {
        let connection = self.connection.as_ref()?;
        let watched = connection.watched()?;
        let met = self.incarnation_of(&watched).is_some(); // then its process is watched
        if !met && sys::is_bound(&watched) {
            return None;
        }
        connection.unwatch(&watched);
        (!met).then(|| PeerExit::new(self, watched, PeerExitKind::Unreached(Errno::ECONNREFUSED)))
    }
}
