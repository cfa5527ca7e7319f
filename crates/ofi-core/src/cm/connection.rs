//! The state of one connected endpoint's connection.

use std::sync::Arc;
use std::time::Instant;

use ofi_api::{Address, EqErrorEntry, Errno, Error, Event, EventKind, Fid, Handle, Result, Statistic};

use super::packet::{Kind, Packet};
use super::{ConnectionRequest, cookie, cut};
use crate::eq::EqCore;
use crate::transport::{PeerId, Reaction, RequestData};

/// The progress of the connection.
enum Phase {
    /// No connection was requested.
    Idle,
    /// A request is in flight. Once it is `granted`, the acceptance comes from another endpoint, and the passive
    /// endpoint may close.
    Connecting { deadline: Instant, granted: bool },
    /// This end has accepted and waits for the confirmation. While it is `awaited`, other requests wait for it too.
    Accepted { deadline: Instant, awaited: bool },
    /// It is established.
    Connected,
    /// It has ended or was never established.
    Ended,
}

/// Whether the connection, or an attempt to establish one, has just ended: then posted operations must end too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Ended {
    /// Not now.
    No,
    /// Just now.
    Now,
}

/// The state of one endpoint's connection. All calls are made under the endpoint's lock.
pub struct Connection {
    fid: Fid,
    eq: Option<Arc<EqCore>>,
    /// The request that the endpoint was opened to accept.
    request: Option<Arc<ConnectionRequest>>,
    phase: Phase,
    cookie: u64,
    /// The other end: the passive endpoint while connecting, then the peer.
    other: Option<Address>,
    /// The passive endpoint that was called. Its name is also the visible name of the accepting endpoint.
    called: Option<Address>,
    /// The transport has joined `other`.
    joined: bool,
    /// Rejected packets: malformed, of another connection, from a stranger, or out of turn.
    refused: u64,
    /// Whether the connection was requested, accepted, and established here: 0 or 1, so that a domain can sum them up.
    requests: u64,
    accepts: u64,
    connections: u64,
}

impl Connection {
    /// The connection of a new endpoint, opened with `handle` in its info.
    pub fn new(fid: Fid, handle: Option<&Handle>) -> Self {
        let request = handle.and_then(Handle::downcast::<ConnectionRequest>);
        Self {
            fid,
            eq: None,
            request,
            phase: Phase::Idle,
            cookie: 0,
            other: None,
            called: None,
            joined: false,
            refused: 0,
            requests: 0,
            accepts: 0,
            connections: 0,
        }
    }

    /// Whether it waits to accept.
    pub fn accepts(&self) -> bool {
        self.request.is_some()
    }

    /// The name of an accepting endpoint is that of its passive endpoint, as a socket from accept(2) has its listener's
    /// name. No other peer can reach the endpoint, so its own address would be useless.
    pub fn name(&self) -> Option<&Address> {
        self.request.as_deref().map(ConnectionRequest::to)
    }

    /// The port's data of the request that the endpoint was opened to accept.
    pub fn held(&self) -> Option<&RequestData> {
        self.request.as_deref().and_then(ConnectionRequest::held)
    }

    /// The queue of its events.
    pub fn eq(&self) -> Option<&Arc<EqCore>> {
        self.eq.as_ref()
    }

    /// Binds the queue of its events.
    ///
    /// # Errors
    /// `FI_EBUSY` if it has one.
    pub fn bind(&mut self, eq: Arc<EqCore>) -> Result<()> {
        eq.bind_once(&mut self.eq)
    }

    /// The peer to post to.
    ///
    /// # Errors
    /// `FI_ENOTCONN` before the connection is established, `FI_ESHUTDOWN` after it has ended.
    #[cold]
    pub fn peer(&self) -> Result<PeerId> {
        match self.phase {
            Phase::Connected => Ok(0),
            Phase::Ended => Err(Error::with(
                Errno::ESHUTDOWN,
                "the connection of this endpoint has ended; open a new one",
            )),
            _ => Err(Error::wanted(
                Errno::ENOTCONN,
                "a transfer on an endpoint of FI_EP_MSG",
                "a connection",
                "none yet",
                "wait for FI_CONNECTED on the event queue",
            )),
        }
    }

    /// Whether the confirmation of an acceptance is expected.
    pub fn is_settling(&self) -> bool {
        matches!(self.phase, Phase::Accepted { awaited: true, .. })
    }

    /// Stops making requests wait for the confirmation, because one has waited long enough.
    pub fn stop_settling(&mut self) {
        if let Phase::Accepted { awaited, .. } = &mut self.phase {
            *awaited = false;
        }
    }

    /// Whether the other end's answer is awaited.
    pub fn is_pending(&self) -> bool {
        matches!(self.phase, Phase::Connecting { .. } | Phase::Accepted { .. })
    }

    /// Whether a connection exists or may be established.
    pub fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// `FI_ENOTCONN` before the connection is established.
    pub fn peer_name(&self) -> Result<Address> {
        let there = matches!(self.phase, Phase::Connected | Phase::Ended) && self.joined;
        let other = self.called.as_ref().or(self.other.as_ref());
        other.cloned().filter(|_| there).ok_or_else(|| Error::new(Errno::ENOTCONN))
    }

    /// Starts to connect to `to`. Returns the packet to send there.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::connect`].
    pub fn connect(&mut self, to: Address, data: &[u8], deadline: Instant) -> Result<Vec<u8>> {
        if self.request.is_some() {
            return Err(Error::with(
                Errno::EOPNOTSUPP,
                "this endpoint was opened to accept a connection request; use fi_accept, or another endpoint",
            ));
        }
        match self.phase {
            Phase::Idle => {}
            Phase::Connecting { .. } | Phase::Accepted { .. } => return Err(Error::new(Errno::EALREADY)),
            Phase::Connected => return Err(Error::new(Errno::EISCONN)),
            Phase::Ended => {
                return Err(Error::wanted(
                    Errno::EOPBADSTATE,
                    "fi_connect",
                    "an endpoint that never was connected",
                    "one whose connection is over",
                    "open another endpoint",
                ));
            }
        }
        self.cookie = cookie()?;
        tracing::info!(target: "ofi::core::ep_ctrl", %to, "asks for a connection");
        (self.other, self.called) = (Some(to.clone()), Some(to));
        self.phase = Phase::Connecting { deadline, granted: false };
        self.requests += 1;
        Ok(Packet::new(Kind::Request, self.cookie, cut(data)).encode())
    }

    /// Accepts the request that the endpoint was opened with. Returns the peer to join, and the packet to send there.
    ///
    /// # Errors
    /// See [`ofi_api::Endpoint::accept`].
    pub fn accept(&mut self, data: &[u8], deadline: Instant) -> Result<(Address, Vec<u8>)> {
        let Some(request) = &self.request else {
            return Err(Error::wanted(
                Errno::EOPNOTSUPP,
                "fi_accept",
                "an endpoint that was opened with the info of an FI_CONNREQ event",
                "one without a connection request",
                "open the endpoint with that info, whose handle is the request",
            ));
        };
        if !request.answer() {
            return Err(Error::with(Errno::EALREADY, "the connection request was already answered"));
        }
        request.grant();
        let to = request.from().clone();
        tracing::info!(target: "ofi::core::ep_ctrl", from = %to, "accepts a connection");
        self.cookie = request.cookie();
        self.other = Some(to.clone());
        self.joined = true;
        self.phase = Phase::Accepted { deadline, awaited: true };
        self.accepts += 1;
        Ok((to, Packet::new(Kind::Accept, self.cookie, cut(data)).encode()))
    }

    /// Rejects a request that cannot be accepted.
    pub fn withdraw(&mut self) {
        self.phase = Phase::Ended;
        if let Some(request) = &self.request {
            request.refuse();
        }
    }

    /// Starts to end the connection. Returns the destination and the packet, or `None` if it has already ended. The end
    /// of an established connection is reported at this end too, because libfabric's tcp and verbs do so and programs
    /// wait for it.
    ///
    /// # Errors
    /// `FI_ENOTCONN` if there is neither a connection nor an attempt at one.
    pub fn shutdown(&mut self) -> Result<Option<(Address, Vec<u8>)>> {
        match self.phase {
            Phase::Idle => return Err(Error::new(Errno::ENOTCONN)),
            Phase::Ended => return Ok(None),
            Phase::Connected => self.report(Event::new(EventKind::Shutdown, self.fid)),
            Phase::Connecting { .. } | Phase::Accepted { .. } => {}
        }
        self.phase = Phase::Ended;
        let packet = Packet::new(Kind::Shutdown, self.cookie, &[]).encode();
        Ok(self.other.clone().filter(|_| self.joined).map(|to| (to, packet)))
    }

    fn report(&self, event: Event) {
        let peer = self.called.as_ref().or(self.other.as_ref()).map_or_else(String::new, ToString::to_string);
        match event.kind {
            EventKind::Connected => tracing::info!(target: "ofi::core::ep_ctrl", peer, "connected"),
            _ => tracing::info!(target: "ofi::core::ep_ctrl", peer, "the connection has ended"),
        }
        if let Some(eq) = &self.eq {
            eq.push(event);
        }
    }

    fn fail(&mut self, errno: Errno, data: &[u8]) -> Ended {
        self.phase = Phase::Ended;
        let peer = self.called.as_ref().or(self.other.as_ref()).map_or_else(String::new, ToString::to_string);
        let error = errno.name();
        tracing::info!(target: "ofi::core::ep_ctrl", peer, error, "a connection was not established");
        if let Some(eq) = &self.eq {
            let prov_errno = errno.get();
            eq.push_error(EqErrorEntry {
                prov_errno,
                err_data: data.to_vec(),
                ..EqErrorEntry::new(self.fid, errno)
            });
        }
        Ended::Now
    }

    /// Processes a packet.
    pub fn packet(&mut self, from: &Address, bytes: &[u8]) -> (Reaction, Ended) {
        const NOTHING: (Reaction, Ended) = (Reaction::Nothing, Ended::No);
        let Some(packet) = Packet::parse(bytes).filter(|packet| packet.cookie == self.cookie) else {
            self.refused += 1;
            return NOTHING;
        };
        let of_other = self.other.as_ref() == Some(from);
        match (&self.phase, packet.kind) {
            // From the accepting endpoint, whose address is new here. It knows the cookie, which only the passive
            // endpoint was told.
            (Phase::Connecting { .. }, Kind::Accept) => {
                self.phase = Phase::Connected;
                self.connections += 1;
                (self.other, self.joined) = (Some(from.clone()), true);
                let conn_data = packet.data.to_vec();
                self.report(Event { conn_data, ..Event::new(EventKind::Connected, self.fid) });
                (Reaction::Join(Packet::new(Kind::Confirm, self.cookie, &[]).encode()), Ended::No)
            }
            (&Phase::Connecting { deadline, .. }, Kind::Granted) if of_other => {
                self.phase = Phase::Connecting { deadline, granted: true };
                NOTHING
            }
            // The acceptance arrived first.
            (Phase::Connected | Phase::Ended, Kind::Granted) if self.called.as_ref() == Some(from) => NOTHING,
            // From another endpoint, if the passive one is closed.
            (&Phase::Connecting { granted, .. }, Kind::Reject) if of_other || granted => {
                (Reaction::Nothing, self.fail(Errno::from_raw(packet.errno as i32), packet.data))
            }
            (Phase::Accepted { .. }, Kind::Confirm) if of_other => {
                self.phase = Phase::Connected;
                self.connections += 1;
                self.report(Event::new(EventKind::Connected, self.fid));
                NOTHING
            }
            (Phase::Connected | Phase::Accepted { .. }, Kind::Shutdown) if of_other => {
                (Reaction::Part, Ended::No) // `gone` follows when everything sent before has arrived
            }
            // Too late: this end has given up, and says so.
            (Phase::Ended, Kind::Accept) => {
                let errno = Errno::ECONNREFUSED.get() as u32;
                let packet = Packet { kind: Kind::Reject, cookie: self.cookie, errno, data: &[] };
                (Reaction::Reply(packet.encode()), Ended::No)
            }
            (Phase::Accepted { .. }, Kind::Reject) if of_other => {
                (Reaction::Part, self.fail(Errno::from_raw(packet.errno as i32), packet.data))
            }
            _ => {
                self.refused += 1;
                NOTHING
            }
        }
    }

    /// The number of rejected packets.
    #[cfg(test)]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Its counters.
    pub fn statistics(&self) -> Vec<Statistic> {
        let stat = |name, value, help| Statistic { name, value, help };
        vec![
            stat(
                "cm_refused",
                self.refused,
                "connection management packets that were malformed, from a stranger, or out of turn",
            ),
            stat("cm_requests", self.requests, "connections requested"),
            stat("cm_accepts", self.accepts, "connection requests accepted"),
            stat("cm_connections", self.connections, "connections established"),
        ]
    }

    /// Handles a packet that could not be delivered to `to`, or the loss of `to`.
    pub fn lost(&mut self, to: &Address, errno: Errno) -> Ended {
        let granted = matches!(self.phase, Phase::Connecting { granted: true, .. });
        if granted || self.other.as_ref() != Some(to) { Ended::No } else { self.gone(errno) }
    }

    /// Handles the loss of the peer, or of the passive endpoint that was called.
    pub fn gone(&mut self, errno: Errno) -> Ended {
        match self.phase {
            Phase::Idle | Phase::Ended => Ended::No,
            Phase::Connecting { .. } | Phase::Accepted { .. } => self.fail(errno, &[]),
            Phase::Connected => {
                self.phase = Phase::Ended;
                self.report(Event::new(EventKind::Shutdown, self.fid));
                Ended::Now
            }
        }
    }

    /// The time at which to call [`Connection::tick`].
    pub fn deadline(&self) -> Option<Instant> {
        match self.phase {
            Phase::Connecting { deadline, .. } | Phase::Accepted { deadline, .. } => Some(deadline),
            _ => None,
        }
    }

    /// Abandons an attempt that has taken too long. If that ended it, the transport must disconnect from the peer that
    /// it joined.
    pub fn tick(&mut self) -> Ended {
        if self.deadline().is_some_and(|deadline| Instant::now() >= deadline) {
            return self.fail(Errno::ETIMEDOUT, &[]);
        }
        Ended::No
    }
}
