//! Opening nodes whose operations are futures.

use ofi_api::{Result, WaitObj};

use super::AsyncNode;
use crate::node::NodeBuilder;
use crate::threading::Level;

impl<L: Level> NodeBuilder<L> {
    /// Opens a node whose operations are futures. Its queue always has the wait object [`WaitObj::Fd`]. If
    /// [`WaitObj::Yield`] was requested, pending futures of a node without a driver busy-poll.
    ///
    /// # Errors
    /// As [`NodeBuilder::open`].
    pub fn open_async(self) -> Result<AsyncNode<L>> {
        let spins = self.busy_polls();
        self.wait_obj(WaitObj::Fd).open().map(|node| AsyncNode::new(node, spins))
    }

    /// As [`NodeBuilder::open_contexts`], with operations that are futures.
    ///
    /// # Errors
    /// Those of [`NodeBuilder::open_contexts`].
    pub fn open_contexts_async(self, count: usize) -> Result<Vec<AsyncNode<L>>> {
        let spins = self.busy_polls();
        let nodes = self.wait_obj(WaitObj::Fd).open_contexts(count)?;
        Ok(nodes.into_iter().map(|node| AsyncNode::new(node, spins)).collect())
    }
}
