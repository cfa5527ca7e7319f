//! The connection of a connected endpoint: translates the core's packets into calls of rdma_cm.
//!
//! | packet | here |
//! |---|---|
//! | Request | resolve the address and the route, `rdma_connect` |
//! | Accept | `rdma_accept` on the identifier of the request; at the other end: the connection is established |
//! | Confirm | the accepted connection is established |
//! | Reject | `rdma_reject`; at the other end: the event |
//! | Shutdown | `rdma_disconnect`, by [`Connected::part`]; at the other end: the event |

use std::sync::Arc;
use std::time::Duration;

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::cm::packet::{Kind, Packet};
use ofi_core::domain::DomainPart;
use ofi_core::transport::{Reaction, RequestData, Upcalls};

use super::port::PendingIdentifier;
use super::{Connected, PEER, private};
use crate::completions::Member;
use crate::errors::failed;
use crate::rc::msg::{IdEvent, Identifier, Pair, PairAttr};
use crate::rc::{self, CmEventKind, ConnParam};
use crate::settings::resolve_timeout;
use crate::{Verbs, address};

/// How long to wait for acknowledgements that a peer sent before it disconnected.
const ACKNOWLEDGED: Duration = Duration::from_millis(200);
/// The same if no completion would report them, so that the wait always takes the whole time.
pub const UNSEEN: Duration = Duration::from_millis(50);
/// Requests the device's maximum of concurrent remote reads.
const READS: u8 = u8::MAX;

/// The state of an endpoint's connection, from before the request to the disconnect.
pub enum Link {
    /// No connection was requested. An endpoint that connects actively already has its name.
    Idle(Option<Box<dyn Identifier>>),
    /// This end resolves the peer's address, or has sent its request.
    Calling(Box<Call>),
    /// This end has accepted a request.
    Answering(Box<Call>),
    /// The connection is established.
    Open(Box<dyn Identifier>),
    /// The attempt could not start. The next poll reports it.
    Failed(Address, Errno),
    /// The connection is over, and this end is notifying the peer.
    Parting(Box<dyn Identifier>),
    /// The connection is over.
    Over,
}

/// A connection in progress.
pub struct Call {
    id: Box<dyn Identifier>,
    to: Address,
    cookie: u64,
    /// The application's private data.
    data: Vec<u8>,
}

impl Call {
    /// The other end's address.
    pub fn to(&self) -> &Address {
        &self.to
    }
}

impl Link {
    fn id(&self) -> Option<&dyn Identifier> {
        match self {
            Self::Calling(call) | Self::Answering(call) => Some(&*call.id),
            Self::Open(id) | Self::Parting(id) => Some(&**id),
            Self::Idle(id) => id.as_deref(),
            Self::Failed(..) | Self::Over => None,
        }
    }

    /// The queue pair, which exists as soon as receives may be posted.
    pub fn pair(&self) -> Option<&dyn Pair> {
        self.id()?.pair()
    }

    /// The queue pair of an established connection.
    pub fn open(&self) -> Option<&dyn Pair> {
        match self {
            Self::Open(id) => id.pair(),
            _ => None,
        }
    }

    /// Whether every poll must check for events.
    pub fn is_moving(&self) -> bool {
        !matches!(self, Self::Open(_) | Self::Idle(_) | Self::Over)
    }
}

/// The error that the application gets for an event that ends an attempt. As in C's provider, it is a timeout unless
/// the peer refused.
fn reason(kind: CmEventKind) -> Errno {
    match kind {
        CmEventKind::DeviceRemoved => Errno::ENODEV,
        CmEventKind::Failed => Errno::ETIMEDOUT,
        _ => Errno::ECONNREFUSED,
    }
}

/// Creates the queue pair of an identifier.
fn create_pair(
    domain: &DomainPart<Verbs>,
    id: &mut dyn Identifier,
    attr: &PairAttr,
    completions: &mut Member,
) -> rc::Result<()> {
    match domain.transport.device.connects() {
        Some(device) => {
            device.create_pair(id, attr)?;
            if let Some(pair) = id.pair() {
                completions.serve(pair.number());
            }
            Ok(())
        }
        None => Err(rc::Error {
            call: "rdma_create_qp",
            errno: libc::ENOSYS,
            advice: "the device has no connected endpoints".into(),
        }),
    }
}

impl Connected {
    fn param<'a>(&self, private_data: &'a [u8]) -> ConnParam<'a> {
        self.timers.param(private_data, READS, self.retries)
    }

    /// See [`ofi_core::transport::TransportEndpoint::packet`].
    pub fn packet(&mut self, to: &Address, packet: &[u8]) -> Result<()> {
        let Some(packet) = Packet::parse(packet) else { return Ok(()) };
        match (packet.kind, std::mem::replace(&mut self.link, Link::Over)) {
            (Kind::Request, Link::Idle(_)) if self.gone.is_some() => {
                self.link = Link::Failed(to.clone(), self.end());
            }
            (Kind::Request, Link::Idle(Some(id))) => {
                let resolved = address::socket(to).and_then(|socket| {
                    id.resolve_address(socket, resolve_timeout()).map_err(|error| failed(&error))
                });
                self.link = match resolved {
                    Ok(()) => {
                        let data = packet.data.to_vec();
                        Link::Calling(Box::new(Call { id, to: to.clone(), cookie: packet.cookie, data }))
                    }
                    Err(error) => {
                        tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, %to, "cannot connect");
                        Link::Failed(to.clone(), error.errno())
                    }
                };
            }
            (Kind::Accept, Link::Answering(mut call)) => {
                call.cookie = packet.cookie;
                self.timers.before(|code| call.id.set_ack_timeout(code));
                let accepted = call.id.accept(self.param(&private::encode(packet.data)));
                self.link = Link::Answering(call);
                if let Err(error) = accepted {
                    self.cannot(&error, to);
                }
            }
            (_, link) => self.link = link,
        }
        Ok(())
    }

    /// Records that the connection cannot be established. The next poll reports it.
    fn cannot(&mut self, error: &rc::Error, to: &Address) {
        tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, %to, "no connection");
        // An identifier whose peer has given up cannot continue.
        let errno = match error.errno {
            libc::EINVAL => Errno::ECONNREFUSED,
            errno => Errno::from_raw(errno),
        };
        self.link = Link::Failed(to.clone(), errno);
    }

    /// See [`ofi_core::transport::TransportEndpoint::adopt`].
    pub fn adopt(&mut self, held: &RequestData) -> Result<()> {
        let id = held.downcast_ref::<PendingIdentifier>().and_then(PendingIdentifier::take);
        let mut id = id.ok_or_else(|| {
            Error::with(Errno::ECONNREFUSED, "the requester has withdrawn the connection request")
        })?;
        id.migrate(&self.channel).map_err(|error| failed(&error))?;
        let to = id.peer_address().map(address::canonical);
        let to = to.ok_or_else(|| {
            Error::with(Errno::ECONNREFUSED, "the connection request has no source address")
        })?;
        self.link = Link::Answering(Box::new(Call { id, to: to.into(), cookie: 0, data: Vec::new() }));
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::join`]. An accepting endpoint calls it before it accepts.
    pub fn join<H: Upcalls<Verbs>>(&mut self, host: &mut H, to: &Address) {
        self.take_device_events(host); // of earlier queue pairs, which may have had the new one's number
        let Link::Answering(call) = &mut self.link else { return };
        match create_pair(&self.domain, &mut *call.id, &self.attr, &mut self.completions) {
            Ok(()) => {
                host.introduce(PEER, to);
                self.claim(host);
            }
            Err(error) => self.cannot(&error, to),
        }
    }

    /// Handles the device's and the connection's events.
    pub fn handle_events<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.take_device_events(host);
        if let Link::Failed(to, errno) = &self.link {
            let (to, errno) = (to.clone(), *errno);
            return self.give_up(host, &to, errno);
        }
        loop {
            match Arc::clone(&self.channel).next() {
                Ok(Some(event)) => self.take_event(host, event),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(target: "ofi::verbs::ep_ctrl", %error, "the device is lost");
                    return self.lose(host);
                }
            }
        }
    }

    /// Ends a failed attempt to connect: its initiator gets the error, and posted operations end.
    pub(super) fn give_up<H: Upcalls<Verbs>>(&mut self, host: &mut H, to: &Address, errno: Errno) {
        host.packet_lost(to, errno);
        self.lose(host);
    }

    fn take_event<H: Upcalls<Verbs>>(&mut self, host: &mut H, event: IdEvent) {
        if self.link.id().map(Identifier::number) != Some(event.id) {
            return;
        }
        match (std::mem::replace(&mut self.link, Link::Over), event.kind) {
            (Link::Calling(call), CmEventKind::AddressResolved) => {
                let result = call.id.resolve_route(resolve_timeout());
                self.calling(host, call, result);
            }
            (Link::Calling(mut call), CmEventKind::RouteResolved) => {
                match create_pair(&self.domain, &mut *call.id, &self.attr, &mut self.completions) {
                    Ok(()) => {
                        host.introduce(PEER, &call.to);
                        self.link = Link::Calling(call);
                        self.claim(host); // the peer may send before this end learns of the acceptance
                        let Link::Calling(call) = std::mem::replace(&mut self.link, Link::Over) else {
                            return;
                        };
                        self.timers.before(|code| call.id.set_ack_timeout(code));
                        let result = call.id.connect(self.param(&private::encode(&call.data)));
                        self.calling(host, call, result);
                    }
                    Err(error) => self.calling(host, call, Err(error)),
                }
            }
            (Link::Calling(call), CmEventKind::Established) => self.established(host, *call, &event),
            (Link::Calling(call), CmEventKind::Rejected) => {
                let data = self.given(&event.private_data);
                let errno = Errno::ECONNREFUSED.get() as u32;
                let packet = Packet { kind: Kind::Reject, cookie: call.cookie, errno, data };
                host.packet(&call.to, &packet.encode());
                self.link = Link::Calling(call);
                self.lose(host);
            }
            (Link::Answering(call), CmEventKind::Established) => {
                let packet = Packet::new(Kind::Confirm, call.cookie, &[]).encode();
                self.open(call.id);
                host.packet(&call.to, &packet);
            }
            (link @ (Link::Calling(_) | Link::Answering(_)), kind) if kind != CmEventKind::Other => {
                let to = match &link {
                    Link::Calling(call) | Link::Answering(call) => call.to.clone(),
                    _ => return,
                };
                self.link = link;
                self.give_up(host, &to, reason(kind));
            }
            // Messages that the peer received before it disconnected may still be acknowledged.
            (link @ Link::Open(_), CmEventKind::Disconnected) if !self.requests.is_empty() => {
                self.link = link;
                let time = if self.requests.are_quiet() { UNSEEN } else { ACKNOWLEDGED };
                self.going.get_or_insert_with(|| self.channel.now() + time);
            }
            // If a peer disconnects before it learns that the connection is established, the kernel reports a
            // rejection.
            (link @ Link::Open(_), kind) if kind.is_end() => {
                self.link = link;
                self.lose(host);
            }
            (
                Link::Parting(_),
                CmEventKind::Disconnected | CmEventKind::Rejected | CmEventKind::DeviceRemoved,
            ) => {}
            (link, _) => self.link = link,
        }
    }

    /// Continues a call, or ends it with an error.
    fn calling<H: Upcalls<Verbs>>(&mut self, host: &mut H, call: Box<Call>, result: rc::Result<()>) {
        let to = call.to.clone();
        self.link = Link::Calling(call);
        if let Err(error) = result {
            tracing::warn!(target: "ofi::verbs::ep_ctrl", %error, %to, "cannot connect");
            self.give_up(host, &to, Errno::from_raw(error.errno));
        }
    }

    /// The application's private data. Data of another program counts as none.
    fn given<'a>(&mut self, private_data: &'a [u8]) -> &'a [u8] {
        let data = private::parse(private_data);
        self.counts.malformed += u64::from(data.is_none());
        data.unwrap_or_default()
    }

    /// Handles the peer's acceptance.
    fn established<H: Upcalls<Verbs>>(&mut self, host: &mut H, call: Call, event: &IdEvent) {
        let data = self.given(&event.private_data);
        let packet = Packet::new(Kind::Accept, call.cookie, data).encode();
        self.open(call.id);
        if !matches!(host.packet(&call.to, &packet), Reaction::Join(_)) {
            self.lose(host); // the connection was given up meanwhile
        }
    }

    fn open(&mut self, id: Box<dyn Identifier>) {
        if let Some(pair) = id.pair() {
            self.timers.after(|code| pair.set_rnr_timer(code));
        }
        self.counts.connections += 1;
        self.link = Link::Open(id);
    }

    /// Ends the connection, or the attempt: processes messages that have arrived, and ends all other operations.
    pub fn lose<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        while self.link.open().is_some() && self.take_all(host) > 0 {}
        let gone = match std::mem::replace(&mut self.link, Link::Over) {
            Link::Open(mut id) => {
                let _ = id.disconnect(); // fails if the peer has disconnected first
                if let Some(pair) = id.pair() {
                    self.settle(host, pair);
                }
                if self.shared.is_some() {
                    while self.take_all(host) > 0 {} // receives that the queue pair took from the shared queue
                }
                id.destroy_pair();
                Some(id)
            }
            Link::Calling(_) | Link::Answering(_) => None, // the kernel tells the peer
            Link::Parting(id) => Some(id),
            Link::Idle(_) | Link::Failed(..) | Link::Over => None,
        };
        // From here on the device no longer uses the memory of posted requests.
        self.flush(host);
        self.link = gone.map_or(Link::Over, Link::Parting);
        host.fail_peer(PEER, self.end());
    }
}
