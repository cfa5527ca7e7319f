//! Driving nodes from tokio: its reactor watches a node's wait descriptor, so no thread polls. Feature `tokio`.

use std::convert::Infallible;
use std::future::poll_fn;
use std::ops::Deref;
use std::sync::Arc;
use std::task::Poll;

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::task::JoinHandle;

use ofi_api::{Errno, Error, Result};

pub use super::tokio_hub::HubEvents;
use super::{AsyncNode, Turn};
use crate::threading::Level;

/// Drives `node` while the future is polled: futures of the node then sleep until they are ready. Spawn it as a task,
/// or run it beside other futures of one task (`select!`, `join!`).
///
/// # Errors
/// The queue's error if it can no longer be read, or the error of registering its descriptor.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub async fn drive<L: Level>(node: &AsyncNode<L>) -> Result<Infallible> {
    let failed =
        |error: std::io::Error| Error::with(Errno::EIO, format!("tokio cannot watch the queue: {error}"));
    let fd = node.wait_fd().ok_or_else(|| {
        Error::wanted(
            Errno::EINVAL,
            "a node that tokio drives",
            "one whose queue has a descriptor",
            "one without",
            "drive it on a thread",
        )
    })?;
    // SAFETY: the descriptor is open and does not change while the queue exists. The node holds the queue, and the
    // future borrows the node.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
    let fd = fd.map_err(|error| failed(error.into()))?;
    let driver = node.driver();
    poll_fn(|context| {
        loop {
            match driver.turn(context.waker()) {
                Err(error) => return Poll::Ready(Err(error)),
                Ok(Turn::Again) => {
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Ok(Turn::Sleep) => match fd.poll_read_ready(context) {
                    // The readiness may date from before or after the turn, so take another turn.
                    Poll::Ready(Ok(mut guard)) => guard.clear_ready(),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(failed(error))),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
    })
    .await
}

/// A node with a task that drives it. It dereferences to the node. Clones of [`Driven::node`] may outlive it; then the
/// library's thread drives their futures.
///
/// ```
/// # #[::tokio::main(flavor = "current_thread")]
/// # async fn main() -> ofi::Result<()> {
/// use ofi::{AsyncNode, Hints, rt::tokio::Driven};
/// let hints = Hints::new().provider("shm");
/// let (a, b) = (Driven::new(AsyncNode::open(&hints)?), Driven::new(AsyncNode::open(&hints)?));
/// let to_b = a.insert(&b.name()?)?;
/// let receive = b.recv(vec![0; 16]);
/// a.send(&b"hello"[..], to_b).await?;
/// assert_eq!(receive.await?.bytes(), b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Driven {
    node: Arc<AsyncNode>,
    task: JoinHandle<()>,
}

impl Driven {
    /// Starts the task on the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(node: impl Into<Arc<AsyncNode>>) -> Self {
        let node = node.into();
        let own = Arc::clone(&node);
        let task = ::tokio::spawn(async move {
            let Err(error) = drive(&own).await;
            tracing::error!(target: "ofi::core::cq", %error, "a node is no longer driven");
        });
        Self { node, task }
    }

    /// The node, for tasks to share.
    pub fn node(&self) -> &Arc<AsyncNode> {
        &self.node
    }
}

impl Deref for Driven {
    type Target = AsyncNode;

    fn deref(&self) -> &AsyncNode {
        &self.node
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        self.task.abort();
    }
}
