//! The connection of an endpoint of type `FI_EP_MSG`, over one of two transports.
//!
//! A connection is near or far as a whole. The requester chooses: a request over the near transport is answered there.
//! The endpoint identifies both ends by far addresses, the near transport by near ones; this file maps between them.

use std::sync::Arc;

use ofi_api::{Address, Errno, Error, Result};

use crate::transport::{MAX_PACKET, RequestData};

/// The far and the near address of one end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    pub far: Address,
    pub near: Address,
}

/// The route of the connection.
#[derive(Default)]
enum Way {
    /// No connection was requested.
    #[default]
    Open,
    Far,
    /// Over the near transport: the passive endpoint that was called, and the peer.
    Near {
        asked: Option<Names>,
        peer: Option<Names>,
    },
}

/// The route of one endpoint's connection: near, far, or undecided.
#[derive(Default)]
pub struct RouteLink(Way);

impl RouteLink {
    /// Whether the route of the connection is undecided.
    pub fn is_open(&self) -> bool {
        matches!(self.0, Way::Open)
    }

    /// Chooses the far transport.
    pub fn go_far(&mut self) {
        self.0 = Way::Far;
    }

    /// Records that this end calls the passive endpoint with these names over the near transport.
    pub fn ask(&mut self, asked: Names) {
        self.0 = Way::Near { asked: Some(asked), peer: None };
    }

    /// Records the peer's names over the near transport.
    pub fn join(&mut self, names: Names) {
        let asked = match std::mem::take(&mut self.0) {
            Way::Near { asked, .. } => asked,
            _ => None,
        };
        self.0 = Way::Near { asked, peer: Some(names) };
    }

    /// Whether it uses the near transport.
    pub fn is_near(&self) -> bool {
        matches!(self.0, Way::Near { .. })
    }

    fn find(&self, which: impl Fn(&Names) -> bool) -> Option<&Names> {
        let Way::Near { asked, peer } = &self.0 else { return None };
        [peer, asked].into_iter().flatten().find(|names| which(names))
    }

    /// Whether this near address is that of the called passive endpoint.
    pub fn has_asked(&self, near: &Address) -> bool {
        matches!(&self.0, Way::Near { asked: Some(names), .. } if names.near == *near)
    }

    /// The near address of the end at `far`.
    pub fn near(&self, far: &Address) -> Option<Address> {
        self.find(|names| names.far == *far).map(|names| names.near.clone())
    }

    /// The far address of the end at `near`.
    pub fn far(&self, near: &Address) -> Option<Address> {
        self.find(|names| names.near == *near).map(|names| names.far.clone())
    }
}

/// A packet for a passive endpoint, which has one near name but may have several far addresses. The result includes the
/// far address that was called.
///
/// # Errors
/// `FI_E2BIG` if the packet has no room for it.
pub fn wrap(asked: &Address, packet: &[u8]) -> Result<Vec<u8>> {
    let text = asked.to_string();
    let len = u8::try_from(text.len()).map_err(|_| Error::new(Errno::E2BIG))?;
    let wrapped = [&[len], text.as_bytes(), packet].concat();
    if wrapped.len() > MAX_PACKET { Err(Error::new(Errno::E2BIG)) } else { Ok(wrapped) }
}

/// The content of a [wrapped](wrap) packet; `None` if it is not one.
pub fn unwrap(bytes: &[u8]) -> Option<(Address, &[u8])> {
    let (&len, rest) = bytes.split_first()?;
    let (text, packet) = rest.split_at_checked(len.into())?;
    Some((std::str::from_utf8(text).ok()?.parse().ok()?, packet))
}

/// A port's data of a request over the near transport.
pub struct NearRequest(pub Names);

impl NearRequest {
    /// Converts the names into the core's form.
    pub fn held(names: Names) -> RequestData {
        Arc::new(Self(names))
    }

    /// The requester's names, if the request came over the near transport.
    pub fn of(held: &RequestData) -> Option<&Names> {
        held.downcast_ref::<Self>().map(|request| &request.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(far: &str, near: &str) -> Names {
        Names { far: Address::from_text(far), near: Address::from_text(near) }
    }

    #[test]
    fn both_ends_of_a_near_connection_are_known_by_both_names() {
        let mut link = RouteLink::default();
        assert!(link.is_open() && !link.is_near());
        link.ask(names("passive", "near-passive"));
        link.join(names("peer", "near-peer"));
        assert!(link.is_near() && !link.is_open());
        for name in ["passive", "peer"] {
            let near = Address::from_text(&format!("near-{name}"));
            assert_eq!(link.near(&Address::from_text(name)), Some(near.clone()));
            assert_eq!(link.far(&near), Some(Address::from_text(name)));
        }
        assert_eq!(link.near(&Address::from_text("near-peer")), None);
    }

    #[test]
    fn a_far_connection_has_no_near_names() {
        let mut link = RouteLink::default();
        link.go_far();
        assert!(!link.is_open() && !link.is_near());
        assert_eq!(link.near(&Address::from_text("peer")), None);
    }

    #[test]
    fn a_packet_for_a_passive_endpoint_says_which_address_was_asked() {
        let address: Address = "[2001:db8::1]:7471".parse().unwrap();
        let wrapped = wrap(&address, b"packet").unwrap();
        assert_eq!(unwrap(&wrapped), Some((address.clone(), &b"packet"[..])));
        assert!((0..wrapped.len() - 6).all(|len| unwrap(&wrapped[..len]).is_none()));
        assert_eq!(unwrap(b"\x03abc"), None);
        assert_eq!(wrap(&address, &[0; MAX_PACKET]).unwrap_err().errno(), Errno::E2BIG);
    }

    #[test]
    fn a_request_is_known_by_what_the_port_kept() {
        let held = NearRequest::held(names("a", "b"));
        assert_eq!(NearRequest::of(&held), Some(&names("a", "b")));
        let other: RequestData = Arc::new(7u64);
        assert_eq!(NearRequest::of(&other), None);
    }
}
