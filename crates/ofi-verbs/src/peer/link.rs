//! The connection of a peer, from the request to its close.

use std::time::Instant;

use crate::rc::Connection;

/// The connection of a peer.
pub enum Link {
    /// There is no connection.
    Closed,
    /// The device and the route are being resolved.
    Resolving(Box<dyn Connection>, Instant),
    /// This end has sent its request.
    Asking(Box<dyn Connection>, Instant),
    /// This end's request crossed the peer's, which wins and will arrive.
    Crossed(Instant),
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
            Self::Closed | Self::Crossed(_) => None,
        }
    }

    /// The deadline of the present step.
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Resolving(_, at) | Self::Asking(_, at) | Self::Accepting(_, at) | Self::Crossed(at) => {
                Some(*at)
            }
            Self::Closed | Self::Open(_) => None,
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
