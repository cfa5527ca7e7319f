//! Ends that the helper learns of, and why it tells them a round later.
//!
//! The endpoints of a process hear of their peers by sockets of their own, and of ends by other ways as well: the
//! descriptor of a process, a socket that nobody has any more. So an end could overtake what was sent before it, by the
//! same peer or by others. It is noticed in one round of the helper and told in the next one, when every socket has
//! been read that was readable after it was noticed.

use std::sync::{Arc, Weak};

use ofi_api::Errno;
use ofi_core::cm::packet::{Kind, Packet};

use crate::event::Event;
use crate::shared::Shared;
use crate::sys;

/// What has ended, or was found to be gone.
pub enum End {
    /// The peer said goodbye.
    Goodbye { incarnation: u64 },
    /// The peer has ended its connection, and says so by this packet.
    Shutdown(Vec<u8>),
    /// The process of the peer has ended.
    Death { incarnation: u64 },
    /// A greeting could not be delivered.
    Ungreeted(Errno),
    /// A packet could not be delivered, or the socket that an answer is expected from is gone.
    Unreached(Errno),
}

/// An end that an endpoint has not been told of.
pub struct Farewell {
    endpoint: Weak<Shared>,
    peer: Vec<u8>,
    end: End,
}

impl Farewell {
    pub fn new(endpoint: &Arc<Shared>, peer: Vec<u8>, end: End) -> Self {
        Self { endpoint: Arc::downgrade(endpoint), peer, end }
    }

    /// Whether it was read from the socket of `endpoint`: what follows there waits until it is told.
    pub fn holds_up(&self, endpoint: &Weak<Shared>) -> bool {
        matches!(self.end, End::Goodbye { .. } | End::Shutdown(_)) && self.endpoint.ptr_eq(endpoint)
    }

    /// Tells the endpoint.
    pub fn tell(self) {
        let Some(endpoint) = self.endpoint.upgrade() else { return };
        let peer = self.peer;
        match self.end {
            End::Goodbye { incarnation } | End::Death { incarnation } => {
                endpoint.forget(&peer, Some(incarnation));
                endpoint.tell(Event::Gone { peer, incarnation });
            }
            End::Shutdown(packet) => endpoint.take_packet(peer, &packet),
            // Who has been met since was there, and its end is noticed as that of any other.
            End::Ungreeted(_) | End::Unreached(_) if endpoint.incarnation_of(&peer).is_some() => {}
            End::Ungreeted(errno) => {
                endpoint.forget(&peer, None);
                endpoint.tell(Event::Refused { peer, errno });
            }
            End::Unreached(errno) => endpoint.tell(Event::PacketLost { peer, errno }),
        }
    }
}

/// Whether a packet of connection management ends the connection.
pub fn is_shutdown(packet: &[u8]) -> bool {
    Packet::parse(packet).is_some_and(|packet| packet.kind == Kind::Shutdown)
}

impl Shared {
    /// Notices if the watched socket is gone.
    pub fn look_after(self: &Arc<Self>) -> Option<Farewell> {
        let connection = self.connection.as_ref()?;
        let watched = connection.watched()?;
        let met = self.incarnation_of(&watched).is_some(); // its process is watched, then
        if !met && sys::is_bound(&watched) {
            return None;
        }
        connection.unwatch(&watched);
        (!met).then(|| Farewell::new(self, watched, End::Unreached(Errno::ECONNREFUSED)))
    }
}
