//! The events of a hub on tokio: its reactor watches the hub's two descriptors, so no thread polls.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::time::{Sleep, sleep};

use ofi_api::{Errno, Error, Result};

use crate::hub::{Hub, HubEvent};

/// The events of a [`Hub`], for a task of a tokio runtime. `H` is a reference to the hub, an `Arc`, or a `Box`.
///
/// ```
/// # #[::tokio::main(flavor = "current_thread")]
/// # async fn main() -> ofi::Result<()> {
/// use std::sync::Arc;
/// use ofi::rt::tokio::{Driven, HubEvents};
/// use ofi::{AsyncConnection, CompletionKind, Hints, Hub, HubEvent};
///
/// let hints = Hints::new().provider("shm");
/// let hub = Arc::new(Hub::open(&hints)?);
/// let mut events = HubEvents::new(Arc::clone(&hub))?;
/// let address = hub.name()?;
/// let server = tokio::spawn(async move {
///     loop {
///         match events.next().await? {
///             HubEvent::Request(request) => drop(hub.accept(request, b"")?.recv(vec![0; 64])?),
///             HubEvent::Completed { connection: Some(connection), completion } => {
///                 if completion.kind() == CompletionKind::Receive && completion.result.is_ok() {
///                     connection.inject(completion.bytes())?;
///                 }
///             }
///             HubEvent::Closed { .. } => return Ok::<(), ofi::Error>(()),
///             _ => {}
///         }
///     }
/// });
/// let client = AsyncConnection::open(&hints, &address, b"")?.await?;
/// let _driven = Driven::new(client.node().clone());
/// let echo = client.recv(vec![0; 64]);
/// client.send(&b"hello"[..]).await?;
/// assert_eq!(echo.await?.bytes(), b"hello");
/// client.shutdown()?;
/// server.await.expect("no panic")
/// # }
/// ```
pub struct HubEvents<H: Deref<Target = Hub>> {
    /// Duplicates of the hub's descriptors, which leave the reactor whenever the hub closes.
    fds: Vec<AsyncFd<OwnedFd>>,
    hub: H,
}

impl<H: Deref<Target = Hub>> HubEvents<H> {
    /// Registers the hub's queues with the current runtime.
    ///
    /// # Errors
    /// The system's error if a descriptor cannot be duplicated or registered.
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(hub: H) -> Result<Self> {
        let register = |fd| {
            // SAFETY: the hub, which is borrowed here, holds its queues, and these keep their descriptors open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned()?;
            // SAFETY: an `OwnedFd` that nothing else can reach names the same open descriptor while it exists.
            let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
            fd.map_err(io::Error::from)
        };
        let fds = hub.fds().into_iter().map(register).collect::<io::Result<Vec<_>>>().map_err(failed)?;
        Ok(Self { fds, hub })
    }

    /// The hub.
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// Waits for the next event. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The errors of [`Hub::poll`], and the reactor's error if it can no longer watch the queues.
    ///
    /// # Panics
    /// If the runtime has no timers.
    pub async fn next(&mut self) -> Result<HubEvent> {
        let mut bound = None;
        let this = &*self;
        poll_fn(|context| this.poll_next(&mut bound, context)).await
    }

    fn poll_next(
        &self,
        bound: &mut Option<Pin<Box<Sleep>>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<HubEvent>> {
        loop {
            if let Some(event) = self.hub.poll()? {
                return Poll::Ready(Ok(event));
            }
            if !self.hub.try_wait()? {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let mut again = false;
            for fd in &self.fds {
                // The readiness may be older than the poll above, so poll again.
                if let Poll::Ready(guard) = fd.poll_read_ready(context) {
                    guard.map_err(failed)?.clear_ready();
                    again = true;
                }
            }
            let sleep = bound.get_or_insert_with(|| Box::pin(sleep(self.hub.longest_sleep())));
            if sleep.as_mut().poll(context).is_ready() {
                *bound = None;
                again = true;
            }
            if !again {
                return Poll::Pending;
            }
        }
    }
}

fn failed(error: io::Error) -> Error {
    Error::with(Errno::EIO, format!("tokio cannot watch the hub's queues: {error}"))
}

impl<H: Deref<Target = Hub>> fmt::Debug for HubEvents<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HubEvents").field(&*self.hub).finish()
    }
}
