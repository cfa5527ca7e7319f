//! Connections as futures: requests, connecting, accepting, and the end of a connection.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ofi_api::{Address, Errno, Error, Event, EventKind, EventQueue, FiAddr, Hints, Info, Result, WaitObj};

use super::watch::{self, Queues};
use super::{AsyncNode, Operation, Transferred};
use crate::buffer::Buffer;
use crate::connection::{ConnectError, Events, Incoming, Listener, connected, open_eq, outcome};
use crate::domain::Domain;
use crate::node::{Node, NodeBuilder};
use crate::threading::Safe;

/// Reads a queue. If it is empty, arranges for the task to be woken when it no longer is.
fn poll_event(
    eq: &Arc<dyn EventQueue>,
    context: &Context<'_>,
    under_way: bool,
) -> Poll<Result<Event, ConnectError>> {
    if let Some(outcome) = outcome(eq, eq.read()) {
        return Poll::Ready(outcome);
    }
    match watch::wake_for(Queues { eq: Arc::clone(eq), cq: None }, context.waker(), under_way) {
        Ok(()) => Poll::Pending,
        Err(error) => Poll::Ready(Err(error.into())),
    }
}

impl Listener {
    /// The next request, as a future for any executor; a listener needs no driver.
    ///
    /// ```
    /// use ofi::{AsyncConnection, AsyncNode, Hints, Listener};
    ///
    /// let hints = Hints::new().provider("shm");
    /// let listener = Listener::open(&hints)?;
    /// let address = listener.name()?;
    /// let client = std::thread::spawn(move || -> ofi::Result<Vec<u8>> {
    ///     let executor = AsyncNode::open(&hints)?; // any executor does; this one is at hand
    ///     executor.block_on(async {
    ///         let connection = AsyncConnection::open(&hints, &address, b"my name")?.await?;
    ///         Ok(connection.recv(vec![0; 16]).await?.bytes().to_vec())
    ///     })
    /// });
    /// AsyncNode::open(&Hints::new().provider("shm"))?.block_on(async {
    ///     let request = listener.next_request().await?;
    ///     assert_eq!(request.data(), b"my name");
    ///     let connection = request.accept_async(b"welcome").await?;
    ///     connection.send(b"hello".to_vec()).await?;
    ///     connection.ended().await // the client closes
    /// })?;
    /// assert_eq!(client.join().expect("no panic")?, b"hello");
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// Dropping the future loses nothing: the next call returns the request.
    pub fn next_request(&self) -> NextRequest<'_> {
        NextRequest(self)
    }

    /// As the future of [`Listener::next_request`], for streams of other crates: `Ready` with the next request.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Incoming>> {
        loop {
            return match poll_event(&self.eq, context, false) {
                Poll::Ready(Ok(event)) => match self.incoming(event) {
                    Some(request) => Poll::Ready(Ok(request)),
                    None => continue,
                },
                Poll::Ready(Err(refused)) => Poll::Ready(Err(refused.error)),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}

/// The next request of a [`Listener`]: see [`Listener::next_request`].
#[must_use = "it does nothing unless it is awaited"]
pub struct NextRequest<'a>(&'a Listener);

impl Future for NextRequest<'_> {
    type Output = Result<Incoming>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for NextRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextRequest")
    }
}

impl Incoming {
    /// [`Incoming::accept`] as a future. It accepts at once, and resolves when the connection is established.
    pub fn accept_async(self, data: &[u8]) -> Connecting {
        let begun = Domain::of_info(Info::clone(&self.info))
            .and_then(|domain| begin(domain, Some(&self.info), |node| node.raw_endpoint().accept(data)));
        Connecting(Some(begun))
    }
}

fn begin(
    domain: Domain<Safe>,
    info: Option<&Info>,
    call: impl FnOnce(&Node<Safe>) -> Result<()>,
) -> Result<Begun> {
    let eq = open_eq(&domain.opened().fabric)?;
    let node = NodeBuilder::in_domain(domain).wait_obj(WaitObj::Fd).open_connected(info, &eq)?;
    call(&node)?;
    Ok((node, eq))
}

/// A future of a connection in progress. The attempt starts with the call that creates this future and advances only
/// while the future is polled; meanwhile the peer waits. It fails with `FI_ETIMEDOUT` after `FI_CONNECT_TIMEOUT`.
/// Dropping the future ends the attempt at once and notifies the peer.
///
/// # Panics
/// When polled after completion, as futures may.
#[must_use = "dropping it gives the connection up"]
pub struct Connecting(Option<Result<Begun>>);

/// An endpoint that connects or accepts, and the queue that reports the outcome.
type Begun = (Node<Safe>, Arc<dyn EventQueue>);

impl Future for Connecting {
    type Output = Result<AsyncConnection, ConnectError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (node, eq) = match self.0.take().expect("polled after it was ready") {
            Ok(begun) => begun,
            Err(error) => return Poll::Ready(Err(error.into())),
        };
        match poll_event(&eq, context, true) {
            Poll::Pending => {
                self.0 = Some(Ok((node, eq)));
                Poll::Pending
            }
            Poll::Ready(Ok(event)) if event.kind == EventKind::Connected => {
                let (node, greeting) = (Arc::new(AsyncNode::new(node, false)), event.conn_data);
                Poll::Ready(Ok(AsyncConnection { node, eq: Events(eq), greeting }))
            }
            Poll::Ready(Ok(_)) => Poll::Ready(Err(Error::new(Errno::ECONNABORTED).into())),
            Poll::Ready(Err(refused)) => Poll::Ready(Err(refused)),
        }
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connecting").finish_non_exhaustive()
    }
}

/// An async node with one peer. Messages need no address; all other operations of an [`AsyncNode`] take the address
/// [`AsyncConnection::peer`]. It is driven like any other node: see [`AsyncNode`].
#[derive(Debug)]
pub struct AsyncConnection {
    node: Arc<AsyncNode<Safe>>,
    eq: Events,
    greeting: Vec<u8>,
}

impl AsyncConnection {
    /// Starts connecting to the listener at `address` and attaches `data`. The future fails with `FI_ECONNREFUSED` and
    /// the data of the peer's rejection, or with `FI_ETIMEDOUT`.
    ///
    /// # Errors
    /// The errors of [`getinfo`](crate::getinfo) and of opening.
    pub fn open(hints: &Hints, address: &Address, data: &[u8]) -> Result<Connecting> {
        let domain = Domain::<Safe>::open(&connected(hints).addr_format(address.format()))?;
        let begun = begin(domain, None, |node| node.raw_endpoint().connect(address, data))?;
        Ok(Connecting(Some(Ok(begun))))
    }

    /// The node, for drivers. The connection stays open while a clone of this `Arc` exists.
    pub fn node(&self) -> &Arc<AsyncNode> {
        &self.node
    }

    /// The peer, as operations name it.
    pub fn peer(&self) -> FiAddr {
        FiAddr(0)
    }

    /// The peer's address.
    ///
    /// # Errors
    /// An error of the transport.
    pub fn peer_name(&self) -> Result<Address> {
        self.node.inner.node.raw_endpoint().peer_name()
    }

    /// Sends a message to the peer, as [`Connection::send`](crate::Connection::send).
    pub fn send<B: Buffer>(&self, buffer: B) -> Operation<'_, Transferred<B>> {
        self.node.send(buffer, self.peer())
    }

    /// The data that the peer attached to its acceptance; empty at the end that accepted.
    pub fn greeting(&self) -> &[u8] {
        &self.greeting
    }

    /// As [`Connection::shutdown`](crate::Connection::shutdown).
    ///
    /// # Errors
    /// An error of the transport.
    pub fn shutdown(&self) -> Result<()> {
        self.node.inner.node.raw_endpoint().shutdown()
    }

    /// Waits until either end has closed the connection, or the peer is gone. Dropping a pending future loses nothing.
    pub fn ended(&self) -> ConnectionEnd<'_> {
        ConnectionEnd(self)
    }
}

impl Deref for AsyncConnection {
    type Target = AsyncNode<Safe>;

    fn deref(&self) -> &AsyncNode<Safe> {
        &self.node
    }
}

/// The end of a connection: see [`AsyncConnection::ended`].
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited"]
pub struct ConnectionEnd<'a>(&'a AsyncConnection);

impl Future for ConnectionEnd<'_> {
    type Output = Result<()>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            return match poll_event(&self.0.eq.0, context, false) {
                Poll::Ready(Ok(event)) if event.kind == EventKind::Shutdown => Poll::Ready(Ok(())),
                Poll::Ready(Ok(_)) => continue,
                Poll::Ready(Err(refused)) => Poll::Ready(Err(refused.error)),
                Poll::Pending => Poll::Pending,
            };
        }
    }
}
