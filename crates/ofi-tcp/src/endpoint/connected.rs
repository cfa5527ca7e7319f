//! The connection of a connected endpoint (`FI_EP_MSG`): translates the core's packets into connection messages.
//!
//! | packet | here |
//! |---|---|
//! | Request | connect, and send the request |
//! | Accept | the answer, on the socket of the request; at the other end: the connection is established |
//! | Confirm | the answer is sent |
//! | Reject | by the port; at the other end: a refusal |
//! | Shutdown | the end of the stream |

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use ofi_api::{Address, Errno, Error, Result};
use ofi_core::cm::packet::{Kind, Packet};
use ofi_core::slots::SlotId;
use ofi_core::transport::{Reaction, RequestData, Upcalls};

use super::TcpEndpoint;
use super::lingering::Lingering;
use crate::conn::{Conn, Peer, Phase};
use crate::port::PendingCaller;
use crate::sys::{self, Interest};
use crate::wire::Order;
use crate::wire::cm;
use crate::{Tcp, address, ports};

/// The one peer.
const PEER: u32 = 0;
/// The core has its own time for attempts, which is shorter.
const LONG: Duration = Duration::from_secs(24 * 3600);

/// An event that the next poll reports to the core.
enum ConnectedEvent {
    Accepted(Vec<u8>),
    Refused(Vec<u8>),
    Failed(Errno),
    Confirmed,
}

/// The additional state of a connected endpoint.
#[derive(Default)]
pub struct Connected {
    /// The other end: the passive endpoint that was called, or the caller.
    to: Option<Address>,
    cookie: u64,
    /// The application's data for the request.
    data: Vec<u8>,
    events: Vec<ConnectedEvent>,
    /// The socket to connect with, whose name is the endpoint's.
    own: Option<OwnedFd>,
    /// It was opened to accept a request.
    accepts: bool,
    /// Connections that this end has ended, until the other end has ended them too.
    pub(super) lingering: Vec<Lingering>,
}

impl Connected {
    /// An endpoint bound to `address`, and its name. One that accepts has the name of its passive endpoint.
    ///
    /// # Errors
    /// Errors of bind(2).
    pub fn new(address: SocketAddr, accepts: bool) -> Result<(Self, SocketAddr)> {
        if accepts {
            return Ok((Self { accepts, ..Self::default() }, address));
        }
        let (own, name) = ports::bind(address)?;
        Ok((Self { own: Some(own), ..Self::default() }, name))
    }
}

impl TcpEndpoint {
    /// The socket that the endpoint connects with.
    pub(super) fn own_socket(&mut self) -> Option<OwnedFd> {
        self.connected.as_mut()?.own.take()
    }

    /// Whether it was opened to accept a request.
    pub(crate) fn accepts(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| connected.accepts)
    }

    fn connected_state(&mut self) -> Result<&mut Connected> {
        self.connected.as_deref_mut().ok_or_else(|| Error::new(Errno::EOPNOTSUPP))
    }

    /// The payload of the request that this end sends.
    pub(super) fn request(&self) -> Option<Vec<u8>> {
        self.connected.as_ref().map(|connected| connected.data.clone())
    }

    /// Adds the only connection, which is being established.
    fn place(&mut self, to: &Address, mut conn: Conn) -> Result<SlotId> {
        let socket = address::socket(to)?;
        conn.deadline = Instant::now() + LONG;
        let id = self.conns.insert(Some(Box::new(conn)));
        self.peers = vec![Peer { conn: Some(id), ..Peer::new(socket) }];
        self.connected_state()?.to = Some(to.clone());
        Ok(id)
    }

    /// See [`ofi_core::transport::TransportEndpoint::packet`].
    pub(crate) fn packet(&mut self, to: &Address, packet: &[u8]) -> Result<()> {
        let Some(packet) = Packet::parse(packet) else { return Ok(()) };
        match packet.kind {
            Kind::Request if self.peers.is_empty() => {
                let socket = address::socket(to)?;
                if socket.is_ipv4() != self.bound.is_ipv4() || socket.port() == 0 {
                    return Err(self.unreachable(socket));
                }
                let connected = self.connected_state()?;
                (connected.cookie, connected.data) = (packet.cookie, packet.data.to_vec());
                let id = self.place(to, Conn::new(Phase::Connecting, Some(PEER), Instant::now()))?;
                self.attempt(id);
            }
            Kind::Accept => {
                let id = self.peers.first().and_then(|entry| entry.conn);
                let id = id.ok_or_else(|| Error::new(Errno::ECONNREFUSED))?;
                let answer = self.saying(cm::CmKind::Response, packet.data, 0).encode();
                let Some(conn) = self.conn(id) else { return Err(Error::new(Errno::ECONNREFUSED)) };
                let event = match answer_on(conn, &answer) {
                    Ok(()) => ConnectedEvent::Confirmed,
                    Err(errno) => ConnectedEvent::Failed(errno),
                };
                let connected = self.connected_state()?;
                connected.cookie = packet.cookie;
                connected.events.push(event);
            }
            _ => {} // the stream tells the rest
        }
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::adopt`].
    pub(crate) fn adopt(&mut self, held: &RequestData) -> Result<()> {
        let gone = || Error::with(Errno::ECONNREFUSED, "the connection request is withdrawn");
        let caller = held.downcast_ref::<PendingCaller>().and_then(PendingCaller::take).ok_or_else(gone)?;
        let from = sys::peer_name(caller.socket.as_fd()).map(address::canonical).ok_or_else(gone)?;
        if caller.auth != self.common.auth || caller.tls.is_some() != self.common.encrypts {
            let why = "an endpoint that accepts needs its passive endpoint's authorization key";
            return Err(Error::with(Errno::EKEYREJECTED, why));
        }
        let mut conn = Conn::new(Phase::Called, Some(PEER), Instant::now());
        conn.tls = caller.tls;
        (conn.socket, conn.order, conn.extras) = (Some(caller.socket), caller.order, caller.extras);
        self.place(&from.into(), conn)?;
        Ok(())
    }

    /// An attempt has failed, or was refused.
    pub(super) fn not_connected(&mut self, errno: Errno, refusal: Option<&[u8]>) {
        // A listener that closes resets what waits for it.
        let is_reset = errno == Errno::ECONNRESET || errno.get() == libc::EPIPE;
        let errno = if is_reset { Errno::ECONNREFUSED } else { errno };
        if let Some(connected) = &mut self.connected {
            connected.events.push(
                refusal.map_or(ConnectedEvent::Failed(errno), |data| ConnectedEvent::Refused(data.to_vec())),
            );
        }
    }

    /// The peer has accepted.
    pub(super) fn accepted(&mut self, id: SlotId, data: &[u8], order: Order) {
        if let Some(conn) = self.conn(id) {
            conn.order = order;
        }
        if let Some(connected) = &mut self.connected {
            connected.events.push(ConnectedEvent::Accepted(data.to_vec()));
        }
    }

    /// Whether there are events for the core.
    pub(super) fn has_events(&self) -> bool {
        self.connected.as_ref().is_some_and(|connected| !connected.events.is_empty())
    }

    /// Whether the connection, if there is one, is established or over, and everything is sent.
    pub(crate) fn is_settled(&self) -> bool {
        let ready =
            |id| self.conns.get(id).and_then(|conn| conn.as_deref()).is_none_or(|c| c.phase == Phase::Ready);
        !self.has_events()
            && self.lingering_deadline().is_none()
            && self.peers.first().and_then(|entry| entry.conn).is_none_or(ready)
    }

    /// Reports events of the connection to the core.
    pub(super) fn move_connection<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        self.move_lingering();
        let Some(connected) = &mut self.connected else { return };
        let (Some(to), cookie) = (connected.to.clone(), connected.cookie) else { return };
        for event in std::mem::take(&mut connected.events) {
            let Some(id) = self.peers.first().and_then(|entry| entry.conn) else { return };
            let packet = match &event {
                ConnectedEvent::Accepted(data) => Packet::new(Kind::Accept, cookie, data),
                ConnectedEvent::Confirmed => Packet::new(Kind::Confirm, cookie, &[]),
                ConnectedEvent::Refused(data) => {
                    let errno = Errno::ECONNREFUSED.get() as u32;
                    Packet { kind: Kind::Reject, cookie, errno, data }
                }
                ConnectedEvent::Failed(errno) => {
                    host.packet_lost(&to, *errno);
                    self.lose(host, id, *errno);
                    continue;
                }
            };
            let reaction = host.packet(&to, &packet.encode());
            let goes_on = match event {
                ConnectedEvent::Accepted(_) => matches!(reaction, Reaction::Join(_)),
                ConnectedEvent::Confirmed => true,
                _ => false,
            };
            if !goes_on {
                self.lose(host, id, Errno::ECONNREFUSED); // refused, or given up meanwhile
                continue;
            }
            if matches!(event, ConnectedEvent::Accepted(_)) {
                host.introduce(PEER, &to);
            }
            self.open(host, id);
        }
    }

    fn open<H: Upcalls<Tcp>>(&mut self, host: &mut H, id: SlotId) {
        let Some(conn) = self.conn(id) else { return };
        conn.begin_ready();
        let encrypted = conn.tls.is_some();
        if let Some(socket) = &conn.socket {
            sys::begin_stream(socket.as_fd());
        }
        let interest = Interest { read: true, write: false };
        let is_new = std::mem::replace(&mut conn.interest, interest) == Interest::default();
        let number = id.to_wire();
        let Some(socket) = self.conns.get(id).and_then(|conn| conn.as_deref()?.socket.as_ref()) else {
            return;
        };
        // An accepted one was in no set yet.
        if !is_new || self.ready.add(socket, number, interest).is_err() {
            self.ready.change(socket, number, interest);
        }
        self.common.counts.connections += 1;
        self.common.counts.encrypted += u64::from(encrypted);
        self.pending.retain(|&other| other != id);
        self.begin_atomics(host, id);
        self.flush(host, id);
        self.read(host, id, true);
    }

    /// See [`ofi_core::transport::TransportEndpoint::join`].
    pub(crate) fn join<H: Upcalls<Tcp>>(&mut self, host: &mut H, to: &Address) -> Result<()> {
        self.connected_state()?;
        host.introduce(PEER, to);
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::part`].
    pub(crate) fn part<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        let Some(id) = self.peers.first().and_then(|entry| entry.conn) else { return };
        if self.connected.is_none() {
            return;
        }
        self.flush(host, id);
        for op in self.begin_lingering(id) {
            host.finish(PEER, op, Ok(()));
        }
        self.lose(host, id, Errno::ECANCELED);
    }
}

/// Sends the answer to a request, unless the caller has gone.
fn answer_on(conn: &mut Conn, answer: &[u8]) -> Result<(), Errno> {
    if conn.socket.as_ref().is_none_or(|socket| sys::has_ended(socket.as_fd())) {
        return Err(Errno::ECONNREFUSED);
    }
    conn.send_message(answer).map_err(|errno| if errno == Errno::EIO { errno } else { Errno::ECONNREFUSED })
}
