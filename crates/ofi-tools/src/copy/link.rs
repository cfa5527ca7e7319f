//! One connection: messages in both directions, with a limit on every wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi::raw::CompletionFlags;
use ofi::{Completion, Connection, Op};

use crate::failure::{Failure, Result};

/// Pause before another attempt to post.
const RETRY: Duration = Duration::from_millis(1);
/// Interval of checks whether the peer still exists.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// The reason why work over a connection ends early.
pub enum End {
    /// Retry over another connection.
    Lost(Failure),
    /// A retry would not help.
    Final(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure)
    }
}

/// A buffer, and the length of the message in it.
type Received = (Vec<u8>, usize);

/// A connection and its messages, in the order in which the peer sent them.
pub struct Link {
    connection: Connection,
    /// The posted receives, oldest first, with their messages. A short message may be complete before a long one that
    /// was sent earlier.
    receives: VecDeque<(Op, Option<Received>)>,
    /// Sends in flight.
    sending: usize,
    /// Buffers of completed sends.
    spare: Vec<Vec<u8>>,
}

impl Link {
    /// Wraps a connection.
    pub fn new(connection: Connection) -> Self {
        Self { connection, receives: VecDeque::new(), sending: 0, spare: Vec::new() }
    }

    /// Receives into `buffer`.
    ///
    /// # Errors
    /// The connection is lost, or accepts no receive within `limit`.
    pub fn receive(&mut self, buffer: Vec<u8>, limit: Duration) -> Result<()> {
        let mut buffer = Some(buffer);
        self.until("posting a receive", limit, RETRY, |link| {
            let Some(posted) = buffer.take() else { return Ok(true) };
            match link.connection.recv(posted) {
                Ok(op) => {
                    link.receives.push_back((op, None));
                    Ok(true)
                }
                Err(rejected) if rejected.is_again() => {
                    buffer = Some(rejected.buffer);
                    Ok(false)
                }
                Err(rejected) => Err(lost(&rejected.error)),
            }
        })
    }

    /// Sends `message`. At most `most` sends are in flight.
    ///
    /// # Errors
    /// The connection is lost, or accepts no message within `limit`.
    pub fn send(&mut self, message: Vec<u8>, most: usize, limit: Duration) -> Result<()> {
        let mut message = Some(message);
        self.until("sending", limit, RETRY, |link| {
            if link.sending >= most {
                return Ok(false);
            }
            let Some(posted) = message.take() else { return Ok(true) };
            match link.connection.send(posted) {
                Ok(_) => {
                    link.sending += 1;
                    Ok(true)
                }
                Err(rejected) if rejected.is_again() => {
                    message = Some(rejected.buffer);
                    Ok(false)
                }
                Err(rejected) => Err(lost(&rejected.error)),
            }
        })
    }

    /// The next message: its buffer, and its length.
    ///
    /// # Errors
    /// The connection is lost, or nothing arrives within `limit`.
    pub fn next(&mut self, doing: &str, limit: Duration) -> Result<Received> {
        self.until(doing, limit, PEER_CHECK_INTERVAL, |link| {
            Ok(link.receives.front().is_some_and(|(_, found)| found.is_some()))
        })?;
        let first = self.receives.pop_front().and_then(|(_, found)| found);
        first.ok_or_else(|| Failure::Peer("nothing arrived".into()))
    }

    /// A buffer to send from; it may have old contents.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Waits up to `limit` until all sends have completed.
    pub fn finish(mut self, limit: Duration) {
        // A lost peer needs nothing more.
        let _ = self.until("ending", limit, PEER_CHECK_INTERVAL, |link| Ok(link.sending == 0));
        let _ = self.connection.shutdown();
    }

    /// Takes completions until `done` returns true. `done` is called after each completion, and at least every `pause`.
    fn until(
        &mut self,
        doing: &str,
        limit: Duration,
        pause: Duration,
        mut done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let begin = Instant::now();
        while !done(self)? {
            // Blocks: on a busy host a thread that yields instead loses its turn to all other programs.
            if let Some(completion) = self.connection.wait(pause).map_err(|error| lost(&error))? {
                self.take(completion)?;
                continue;
            }
            if self.connection.wait_shutdown(Duration::ZERO).map_err(|error| lost(&error))? {
                return Err(Failure::Peer("the peer ended the connection".into()));
            }
            if begin.elapsed() > limit {
                return Err(Failure::Silent { doing: doing.into(), limit });
            }
        }
        Ok(())
    }

    fn take(&mut self, mut completion: Completion) -> Result<()> {
        if let Err(error) = &completion.result {
            return Err(Failure::Peer(format!("the connection is lost: {error}")));
        }
        let buffer = completion.take_buffer::<Vec<u8>>().unwrap_or_default();
        if completion.flags.contains(CompletionFlags::RECV) {
            let posted = self.receives.iter_mut().find(|(op, _)| completion.op == Some(*op));
            let Some((_, found)) = posted else {
                return Err(Failure::Peer("a message without a receive".into()));
            };
            *found = Some((buffer, completion.len));
        } else {
            self.sending = self.sending.saturating_sub(1);
            self.spare.push(buffer);
        }
        Ok(())
    }
}

fn lost(error: &ofi::Error) -> Failure {
    Failure::Peer(format!("the connection is lost: {error}"))
}
