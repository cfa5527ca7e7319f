//! Completions that belong to no operation of the node: peers' accesses, receives of a shared context, failed injects.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use ofi_api::Result;

use super::AsyncNode;
use super::table::Chores;
use crate::completion::Completion;
use crate::threading::{Level, Safe};

/// The next event of a node: see [`AsyncNode::event`]. Dropping it loses nothing.
#[derive(Debug)]
#[must_use = "it does nothing unless it is awaited"]
pub struct Event<'a, L: Level = Safe>(&'a AsyncNode<L>);

impl<L: Level> AsyncNode<L> {
    /// Waits for the next completion that belongs to no operation of the node: a peer's write with remote CQ data
    /// ([`write_with_data`](AsyncNode::write_with_data)), or a receive of a [shared context](crate::SharedReceive). The
    /// node keeps up to 65,536 of them; more are dropped and [counted](AsyncNode::lost).
    ///
    /// # Errors
    /// The future returns the queue's error if the queue can no longer be read.
    pub fn event(&self) -> Event<'_, L> {
        Event(self)
    }
}

impl<L: Level> Future for Event<'_, L> {
    type Output = Result<Completion>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let node = self.0;
        let mut chores = Chores::default();
        let waker = context.waker().clone();
        let mut is_undriven = false;
        let event = {
            let mut table = node.table();
            let event = table.event().transpose().or_else(|| {
                let _ = table.drive(&node.inner.node, &mut chores); // an error is an event too
                table.rouse(&mut chores);
                table.event().transpose()
            });
            match &event {
                None => {
                    table.listen(waker, &mut chores);
                    is_undriven = table.drivers == 0;
                }
                Some(_) => chores.later(waker),
            }
            event
        };
        chores.run();
        if is_undriven {
            node.undriven(context.waker());
        }
        event.map_or(Poll::Pending, Poll::Ready)
    }
}
