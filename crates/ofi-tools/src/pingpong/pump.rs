//! Waiting for completions: counts them, and ends a wait that leads nowhere.

use std::time::Instant;

use ofi::raw::{CompletionFlags, Context, CqMsgEntry};

use super::link::{Link, PATIENCE};
use super::message::Message;
use super::node::Node;
use crate::failure::{Failure, Result};

/// Completions that are read at once.
const BATCH: usize = 64;

/// Empty reads between looks at the clock and the control connection: about a millisecond's worth.
const QUIET: u32 = 1 << 16;

/// Reads a node's queue for one job.
pub struct Pump<'a> {
    node: &'a Node,
    link: &'a mut Link,
    doing: &'a str,
    /// Transfers that this side started and that are complete.
    pub sent: u64,
    /// Receives that are complete.
    pub received: u64,
    /// Bytes that those brought.
    pub bytes: u64,
    entries: [CqMsgEntry; BATCH],
    empty: u32,
    since: Option<Instant>,
}

impl<'a> Pump<'a> {
    /// `doing` is what a failure says was going on.
    pub fn new(node: &'a Node, link: &'a mut Link, doing: &'a str) -> Self {
        let nothing = CqMsgEntry { op_context: Context::NULL, flags: CompletionFlags::empty(), len: 0 };
        Pump {
            node,
            link,
            doing,
            sent: 0,
            received: 0,
            bytes: 0,
            entries: [nothing; BATCH],
            empty: 0,
            since: None,
        }
    }

    /// Reads once; `on_receive` is told the context of each receive.
    ///
    /// # Errors
    /// A failed operation, a peer that is gone, or silence for [`PATIENCE`].
    #[inline]
    pub fn turn(&mut self, mut on_receive: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let count = self.node.poll(&mut self.entries)?;
        if count == 0 {
            self.empty += 1;
            return if self.empty.is_multiple_of(QUIET) || self.node.crowded { self.idle() } else { Ok(()) };
        }
        self.since = None;
        for entry in &self.entries[..count] {
            if entry.flags.contains(CompletionFlags::RECV) {
                self.received += 1;
                self.bytes += entry.len as u64;
                on_receive(entry.op_context.0)?;
            } else {
                self.sent += 1;
            }
        }
        Ok(())
    }

    /// Reads until so many sends and receives of this job are complete.
    ///
    /// # Errors
    /// As [`Pump::turn`].
    #[inline]
    pub fn until(&mut self, sent: u64, received: u64) -> Result<()> {
        while self.sent < sent || self.received < received {
            self.turn(|_| Ok(()))?;
        }
        Ok(())
    }

    /// Repeats `post` until it is accepted, reading in between.
    ///
    /// # Errors
    /// As [`Pump::turn`], and what `post` answers.
    #[inline]
    pub fn post(&mut self, post: impl Fn() -> Result<bool>) -> Result<()> {
        while !post()? {
            self.turn(|_| Ok(()))?;
        }
        Ok(())
    }

    /// Tells the peer, which hears of no accesses to its memory, that they go on.
    ///
    /// # Errors
    /// When the peer is gone.
    pub fn tell_working(&mut self) -> Result<()> {
        self.link.send(&Message::Working)
    }

    #[cold]
    fn idle(&mut self) -> Result<()> {
        if self.node.crowded {
            std::thread::yield_now();
            if !self.empty.is_multiple_of(QUIET >> 8) {
                return Ok(());
            }
        }
        if self.link.check()? {
            self.since = None;
        }
        if self.since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
            let doing = format!("{} ({} sent, {} received)", self.doing, self.sent, self.received);
            return Err(Failure::Silent { doing, limit: PATIENCE });
        }
        Ok(())
    }
}
