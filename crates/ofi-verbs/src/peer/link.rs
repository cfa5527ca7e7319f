//! The connection of a peer, from the request to its close.

use std::time::Instant;

use ofi_api::Errno;

use crate::rc::Connection;

/// The connection of a peer.
pub enum Link {
    /// There is no connection.
    Closed,
    /// The device and the route are being resolved.
    Resolving(Box<dyn Connection>, Instant),
    /// This end has sent its request.
    Asking(Box<dyn Connection>, Instant),
    /// This end's request was not served. It asks again at this time, unless the peer's request arrives first.
    Pausing(Instant),
    /// This end has accepted the peer's request.
    Accepting(Box<dyn Connection>, Instant),
    /// The connection is established.
    Open(Box<dyn Connection>),
}

impl Link {
    /// The connection, if it is established.
    pub fn open(&self) -> Option<&dyn Connection> {
        match self {
            Self::Open(id) => Some(&**id),
            _ => None,
        }
    }

    /// The connection in any state.
    pub fn id(&self) -> Option<&dyn Connection> {
        match self {
            Self::Resolving(id, _) | Self::Asking(id, _) | Self::Accepting(id, _) | Self::Open(id) => {
                Some(&**id)
            }
            Self::Closed | Self::Pausing(_) => None,
        }
    }

    /// The deadline of the present step.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Resolving(_, at) | Self::Asking(_, at) | Self::Accepting(_, at) | Self::Pausing(at) => {
                Some(*at)
            }
            Self::Closed | Self::Open(_) => None,
        }
    }

    /// The event that the current step waits for, and the error if it does not arrive.
    pub fn awaited(&self) -> (Errno, &'static str) {
        match self {
            Self::Resolving(..) => (
                Errno::EHOSTUNREACH,
                "the network has not found the peer's address or route (FI_VERBS_RESOLVE_TIMEOUT_MS): check the address, and that the peer's interface is up",
            ),
            Self::Asking(..) => (
                Errno::ETIMEDOUT,
                "the peer has not answered the request to connect (FI_VERBS_CONNECT_TIMEOUT_MS): its program must poll a queue or a counter of its endpoint",
            ),
            Self::Accepting(..) => (
                Errno::ETIMEDOUT,
                "the peer has not confirmed the connection that it requested (FI_VERBS_CONNECT_TIMEOUT_MS): its program must poll a queue or a counter of its endpoint",
            ),
            Self::Pausing(_) | Self::Closed | Self::Open(_) => (
                Errno::ETIMEDOUT,
                "the peer has served no request to connect in time (FI_VERBS_CONNECT_TIMEOUT_MS)",
            ),
        }
    }
}

/// The progress of closing an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retiring {
    /// This end has asked the peer. It posts nothing but answers.
    Asked,
    /// Neither end posts anything more.
    Agreed,
}
