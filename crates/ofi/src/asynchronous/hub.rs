//! The events of a hub as futures, for any executor: the thread of `watch.rs` wakes them.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ofi_api::Result;

use super::watch::{self, Queues};
use crate::hub::{Hub, HubEvent};

impl Hub {
    /// Waits for the next event, as a future for any executor: [`Hub::wait`] without blocking the thread. A thread of
    /// the library watches the hub's queues while the future waits; on tokio, `ofi::rt::tokio::HubEvents` does without
    /// that thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ofi::{AsyncConnection, AsyncNode, CompletionKind, Hints, Hub, HubEvent};
    ///
    /// let hints = Hints::new().provider("shm");
    /// let hub = Hub::open(&hints)?;
    /// let address = hub.name()?;
    /// let client = std::thread::spawn(move || -> ofi::Result<Vec<u8>> {
    ///     let executor = AsyncNode::open(&hints)?; // any executor does; this one is at hand
    ///     executor.block_on(async {
    ///         let connection = AsyncConnection::open(&hints, &address, b"")?.await?;
    ///         let answer = connection.recv(vec![0; 64]);
    ///         connection.send(&b"question"[..]).await?;
    ///         Ok(answer.await?.bytes().to_vec())
    ///     })
    /// });
    /// AsyncNode::open(&Hints::new().provider("shm"))?.block_on(async {
    ///     loop {
    ///         match hub.next_event().await? {
    ///             HubEvent::Request(request) => drop(hub.accept(request, b"")?.recv(vec![0; 64])?),
    ///             HubEvent::Completed { connection: Some(connection), completion } => {
    ///                 if completion.kind() == CompletionKind::Receive && completion.result.is_ok() {
    ///                     connection.inject(&completion.bytes().to_ascii_uppercase())?;
    ///                 }
    ///             }
    ///             HubEvent::Closed { .. } => return Ok::<(), ofi::Error>(()),
    ///             _ => {}
    ///         }
    ///     }
    /// })?;
    /// assert_eq!(client.join().expect("no panic")?, b"QUESTION");
    /// # Ok::<(), ofi::Error>(())
    /// ```
    ///
    /// Dropping the future loses nothing: the next call returns the event. Several tasks may wait at once; each event
    /// goes to one of them, and it is not defined to which.
    ///
    /// # Errors
    /// The future returns the errors of [`Hub::poll`], or `FI_EAGAIN` if the thread cannot be started.
    pub fn next_event(&self) -> NextHubEvent<'_> {
        NextHubEvent(self)
    }

    /// As the future of [`Hub::next_event`], for streams of other crates: `Ready` with the next event.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<HubEvent>> {
        if let Some(event) = self.poll()? {
            return Poll::Ready(Ok(event));
        }
        let (cq, eq) = self.queues();
        let queues = Queues { eq: Arc::clone(eq), cq: Some(Arc::clone(cq)) };
        watch::wake_for(queues, context.waker(), self.is_establishing())?;
        Poll::Pending
    }
}

/// The next event of a [`Hub`]: see [`Hub::next_event`].
#[must_use = "it does nothing unless it is awaited"]
pub struct NextHubEvent<'a>(&'a Hub);

impl Future for NextHubEvent<'_> {
    type Output = Result<HubEvent>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_next(context)
    }
}

impl fmt::Debug for NextHubEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NextHubEvent")
    }
}
