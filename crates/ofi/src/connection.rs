//! Connections (`FI_EP_MSG`): blocking calls that listen, connect and accept.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{
    Address, Caps, EpType, EqAttr, Errno, Error, Event, EventKind, EventQueue, Fabric, FiAddr, GetinfoFlags,
    Hints, Info, PassiveEndpoint, Result, WaitObj,
};

use crate::buffer::Buffer;
use crate::domain::Domain;
use crate::node::{Node, NodeBuilder};
use crate::op::Op;
use crate::request::PostError;
use crate::threading::Safe;

/// The reason why a connection failed, and the data that the peer attached.
///
/// `Debug`, which a `main` that returns the error prints, gives the text of `Display` and the data, if there is any.
pub struct ConnectError {
    /// `FI_ECONNREFUSED`, `FI_ETIMEDOUT`, or the error of opening the endpoint.
    pub error: Error,
    /// The data that the peer attached to its rejection.
    pub data: Vec<u8>,
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl fmt::Debug for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)?;
        if self.data.is_empty() {
            Ok(())
        } else {
            write!(f, "; the peer says {:?}", self.data.escape_ascii().to_string())
        }
    }
}

impl std::error::Error for ConnectError {}

impl From<Error> for ConnectError {
    fn from(error: Error) -> Self {
        Self { error, data: Vec::new() }
    }
}

impl From<ConnectError> for Error {
    fn from(refused: ConnectError) -> Self {
        refused.error
    }
}

pub(crate) fn connected(hints: &Hints) -> Hints {
    hints.clone().ep_type(EpType::Msg)
}

pub(crate) fn open_eq(fabric: &Arc<dyn Fabric>) -> Result<Arc<dyn EventQueue>> {
    fabric.open_eq(&EqAttr { wait_obj: WaitObj::Fd, ..EqAttr::default() })
}

/// The next event; `None` if none arrives within `limit`. Without a limit, it waits until one arrives.
fn next(eq: &Arc<dyn EventQueue>, limit: Option<Duration>) -> Result<Option<Event>, ConnectError> {
    outcome(eq, eq.read_wait(limit)).transpose()
}

/// Why a connection attempt failed, in words for the connecting side.
fn failure(errno: Errno) -> &'static str {
    match errno {
        Errno::ECONNREFUSED => "there is no listener at the peer's address, or it rejected the request",
        Errno::ETIMEDOUT => "the peer did not answer; check its address and port, and the firewall",
        _ => "the connection was not established",
    }
}

/// The result of a read; `None` if the queue was empty.
pub(crate) fn outcome(eq: &Arc<dyn EventQueue>, read: Result<Event>) -> Option<Result<Event, ConnectError>> {
    match read {
        Ok(event) => Some(Ok(event)),
        Err(error) if error.is_again() => None,
        Err(error) if error.errno() == Errno::EAVAIL => match eq.read_error() {
            Ok(entry) => {
                let error = Error::with(entry.err, failure(entry.err));
                Some(Err(ConnectError { error, data: entry.err_data }))
            }
            Err(error) if error.is_again() => None, // another reader has it
            Err(error) => Some(Err(error.into())),
        },
        Err(error) => Some(Err(error.into())),
    }
}

/// A listener for connection requests (a passive endpoint).
///
/// ```
/// use std::time::Duration;
/// use ofi::{Connection, Hints, Listener};
///
/// const LIMIT: Duration = Duration::from_secs(5);
/// let hints = Hints::new().provider("shm");
/// let listener = Listener::open(&hints)?;
/// let address = listener.name()?;
/// let client = std::thread::spawn(move || -> ofi::Result<Vec<u8>> {
///     let connection = Connection::open(&hints, &address, b"my name", LIMIT)?;
///     connection.recv(vec![0; 64])?;
///     let message = connection.wait(LIMIT)?.expect("within five seconds").into_result()?;
///     Ok(message.bytes().to_vec())
/// });
/// let request = listener.wait(LIMIT)?.expect("within five seconds");
/// assert_eq!(request.data(), b"my name");
/// let connection = request.accept(b"welcome", LIMIT)?;
/// connection.send(b"hello".to_vec())?;
/// connection.wait(LIMIT)?.expect("within five seconds").into_result()?;
/// assert_eq!(client.join().expect("no panic")?, b"hello");
/// # Ok::<(), ofi::Error>(())
/// ```
#[derive(Debug)]
pub struct Listener {
    pep: Arc<dyn PassiveEndpoint>,
    pub(crate) eq: Arc<dyn EventQueue>,
}

impl Listener {
    /// Listens at an address that the transport chooses.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening.
    pub fn open(hints: &Hints) -> Result<Self> {
        Self::open_as(hints, None, None)
    }

    /// Listens at the address that `node` and `service` name.
    ///
    /// # Errors
    /// As [`Listener::open`]; `FI_EADDRINUSE` if the address is taken.
    pub fn open_at(hints: &Hints, node: &str, service: &str) -> Result<Self> {
        Self::open_as(hints, Some(node), Some(service))
    }

    fn open_as(hints: &Hints, node: Option<&str>, service: Option<&str>) -> Result<Self> {
        Ok(Self::open_with_domain(hints, node, service)?.0)
    }

    /// Listens, and also returns the domain in which connections can be accepted.
    pub(crate) fn open_with_domain(
        hints: &Hints,
        node: Option<&str>,
        service: Option<&str>,
    ) -> Result<(Self, Domain)> {
        let domain =
            Domain::<Safe>::open_as(&connected(hints), Caps::empty(), (node, service), GetinfoFlags::SOURCE)?;
        let fabric = &domain.opened().fabric;
        let (pep, eq) = (fabric.open_passive(domain.info())?, open_eq(fabric)?);
        pep.bind_eq(&eq)?;
        pep.listen()?;
        Ok((Self { pep, eq }, domain))
    }

    /// The listener's address, for peers to connect to.
    ///
    /// # Errors
    /// An error of the transport.
    pub fn name(&self) -> Result<Address> {
        self.pep.name()
    }

    /// Sets the maximum number of unanswered requests; further ones are rejected.
    ///
    /// # Errors
    /// `FI_EINVAL` for 0.
    pub fn set_backlog(&self, requests: usize) -> Result<()> {
        self.pep.set_backlog(requests)
    }

    /// The next request; `None` if none arrives within `limit`. Without a limit this waits until one arrives.
    ///
    /// # Errors
    /// An error of the event queue.
    pub fn wait(&self, limit: impl Into<Option<Duration>>) -> Result<Option<Incoming>> {
        let event = next(&self.eq, limit.into())?;
        Ok(event.and_then(|event| self.incoming(event)))
    }

    /// Whether `request` came to this listener.
    pub(crate) fn is_mine(&self, request: &Incoming) -> bool {
        Arc::ptr_eq(&self.pep, &request.pep)
    }

    /// The request in an event.
    pub(crate) fn incoming(&self, event: Event) -> Option<Incoming> {
        let Event { kind: EventKind::ConnReq, info: Some(info), conn_data, .. } = event else {
            return None;
        };
        Some(Incoming { pep: Arc::clone(&self.pep), info, data: conn_data })
    }
}

/// A peer's connection request. Dropping it rejects the request.
pub struct Incoming {
    pep: Arc<dyn PassiveEndpoint>,
    /// Boxed: an info has a kilobyte.
    pub(crate) info: Box<Info>,
    data: Vec<u8>,
}

impl Incoming {
    /// The data that the peer attached.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The address of the requesting process.
    pub fn peer(&self) -> Option<&Address> {
        self.info.dest_addr.as_ref()
    }

    /// Accepts the request, attaches `data`, and waits until the connection is established.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT`; `FI_ECONNREFUSED` if the peer is gone; an error of opening the endpoint.
    pub fn accept(self, data: &[u8], limit: Duration) -> Result<Connection, ConnectError> {
        let domain = Domain::of_info(Info::clone(&self.info))?;
        Connection::establish(domain, Some(&self.info), limit, |node| node.raw_endpoint().accept(data))
    }

    /// Rejects the request and attaches `data`.
    ///
    /// # Errors
    /// An error of the transport.
    #[doc(alias = "fi_reject")]
    pub fn reject(self, data: &[u8]) -> Result<()> {
        let Some(handle) = &self.info.handle else { return Err(Error::new(Errno::EINVAL)) };
        self.pep.reject(handle, data)
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("peer", &self.peer())
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// A node with one peer. Messages need no address; everything else that a [`Node`] can do takes the address
/// [`Connection::peer`].
#[derive(Debug)]
pub struct Connection {
    node: Node<Safe>,
    eq: Events,
    greeting: Vec<u8>,
}

/// An event queue, for `Debug`.
pub(crate) struct Events(pub Arc<dyn EventQueue>);

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EventQueue")
    }
}

impl Connection {
    /// Connects to the listener at `address`, passes it `data`, and waits until the connection is established.
    ///
    /// # Errors
    /// `FI_ECONNREFUSED`, with the peer's data; `FI_ETIMEDOUT`; the errors of [`getinfo`](crate::getinfo) and of
    /// opening.
    pub fn open(
        hints: &Hints,
        address: &Address,
        data: &[u8],
        limit: Duration,
    ) -> Result<Self, ConnectError> {
        let hints = connected(hints).addr_format(address.format());
        let domain = Domain::<Safe>::open(&hints)?;
        Self::establish(domain, None, limit, |node| node.raw_endpoint().connect(address, data))
    }

    fn establish(
        domain: Domain<Safe>,
        info: Option<&Info>,
        limit: Duration,
        begin: impl FnOnce(&Node<Safe>) -> Result<()>,
    ) -> Result<Self, ConnectError> {
        // A deadline beyond the clock's range means no limit.
        let deadline = Instant::now().checked_add(limit);
        let eq = open_eq(&domain.opened().fabric)?;
        let node = NodeBuilder::in_domain(domain).open_connected(info, &eq)?;
        begin(&node)?;
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match next(&eq, left)? {
            Some(event) if event.kind == EventKind::Connected => {
                Ok(Self { node, eq: Events(eq), greeting: event.conn_data })
            }
            Some(_) => Err(Error::new(Errno::ECONNABORTED).into()),
            None => Err(Error::with(Errno::ETIMEDOUT, failure(Errno::ETIMEDOUT)).into()),
        }
    }

    /// The peer, as operations name it.
    pub fn peer(&self) -> FiAddr {
        FiAddr(0)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// An error of the transport.
    #[doc(alias = "fi_getpeer")]
    pub fn peer_name(&self) -> Result<Address> {
        self.node.raw_endpoint().peer_name()
    }

    /// Sends a message to the peer. See [`Node::send`].
    ///
    /// # Errors
    /// Those of [`Node::send`].
    pub fn send<B: Buffer>(&self, buffer: B) -> Result<Op, PostError<B>> {
        self.node.send(buffer, self.peer())
    }

    /// Sends a short message to the peer; the call copies it. See [`Node::inject`].
    ///
    /// # Errors
    /// Those of [`Node::inject`].
    pub fn inject(&self, bytes: &[u8]) -> Result<()> {
        self.node.inject(bytes, self.peer())
    }

    /// The data that the peer attached to its acceptance; empty at the end that accepted.
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// Ends the connection. Outstanding operations complete with `FI_ECANCELED`; the peer still receives everything
    /// sent before.
    ///
    /// # Errors
    /// An error of the transport.
    #[doc(alias = "fi_shutdown")]
    pub fn shutdown(&self) -> Result<()> {
        self.node.raw_endpoint().shutdown()
    }

    /// Waits until the peer has closed the connection or is lost. `false` if neither happens within `limit`; without a
    /// limit, it waits until then.
    ///
    /// # Errors
    /// An error of the event queue.
    pub fn wait_shutdown(&self, limit: impl Into<Option<Duration>>) -> Result<bool> {
        Ok(next(&self.eq.0, limit.into())?.is_some_and(|event| event.kind == EventKind::Shutdown))
    }
}

impl Deref for Connection {
    type Target = Node<Safe>;

    fn deref(&self) -> &Node<Safe> {
        &self.node
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_connection_is_printed_with_its_reason_and_the_peer_s_data() {
        let of = |errno, data: &[u8]| ConnectError {
            error: Error::with(errno, failure(errno)),
            data: data.into(),
        };
        let refused = of(Errno::ECONNREFUSED, b"");
        assert_eq!(format!("{refused:?}"), refused.to_string());
        assert!(refused.to_string().contains("no listener"), "{refused}");
        let rejected = format!("{:?}", of(Errno::ECONNREFUSED, b"wrong\0password"));
        assert!(rejected.ends_with("; the peer says \"wrong\\\\x00password\""), "{rejected}");
    }
}
