//! Waits for completions: counts them, and ends a wait that makes no progress.

use std::time::Instant;

use ofi::raw::{CompletionFlags, Context, CqMsgEntry};

use super::link::{Link, SILENCE_TIMEOUT};
use super::message::Message;
use super::node::Node;
use crate::failure::{Failure, Result};

/// Maximum completions per read.
const BATCH: usize = 64;

/// Empty reads between checks of the clock and the control connection: about a millisecond.
const QUIET: u32 = 1 << 16;

/// Reads a node's queue for one job.
pub struct Pump<'a> {
    node: &'a Node,
    link: &'a mut Link,
    doing: &'a str,
    /// Completed transfers that this side started.
    pub sent: u64,
    /// Completed receives.
    pub received: u64,
    /// Bytes of these receives.
    pub bytes: u64,
    entries: [CqMsgEntry; BATCH],
    empty: u32,
    since: Option<Instant>,
}

impl<'a> Pump<'a> {
    /// `doing` describes the activity in failures.
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

    /// Reads once; `on_receive` gets the context of each receive.
    ///
    /// # Errors
    /// A failed operation, a peer that is gone, or silence for [`SILENCE_TIMEOUT`].
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

    /// Reads until the given numbers of sends and receives of this job are complete.
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

    /// Repeats `post` until it is accepted, and reads completions in between.
    ///
    /// # Errors
    /// As [`Pump::turn`], and the error of `post`.
    #[inline]
    pub fn post(&mut self, post: impl Fn() -> Result<bool>) -> Result<()> {
        while !post()? {
            self.turn(|_| Ok(()))?;
        }
        Ok(())
    }

    /// Tells the peer that accesses to its memory continue, since the peer does not see them.
    ///
    /// # Errors
    /// The peer is gone.
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
        if self.since.get_or_insert_with(Instant::now).elapsed() > SILENCE_TIMEOUT {
            let doing = format!("{} ({} sent, {} received)", self.doing, self.sent, self.received);
            return Err(Failure::Silent { doing, limit: SILENCE_TIMEOUT });
        }
        Ok(())
    }
}
