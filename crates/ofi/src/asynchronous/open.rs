//! Opening nodes whose operations are futures.

use ofi_api::{Result, WaitObj};

use super::AsyncNode;
use crate::node::NodeBuilder;
use crate::threading::Level;

impl<L: Level> NodeBuilder<L> {
    /// Opens a node whose operations are futures. Its wait object is always [`WaitObj::Fd`].
    ///
    /// # Errors
    /// As [`NodeBuilder::open`].
    pub fn open_async(self) -> Result<AsyncNode<L>> {
        self.wait_obj(WaitObj::Fd).open().map(AsyncNode::new)
    }

    /// As [`NodeBuilder::open_contexts`], with operations that are futures.
    ///
    /// # Errors
    /// Those of [`NodeBuilder::open_contexts`].
    pub fn open_contexts_async(self, count: usize) -> Result<Vec<AsyncNode<L>>> {
        let nodes = self.wait_obj(WaitObj::Fd).open_contexts(count)?;
        Ok(nodes.into_iter().map(AsyncNode::new).collect())
    }
}
