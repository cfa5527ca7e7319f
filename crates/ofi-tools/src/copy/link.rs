//! One connection: messages in both directions, with a limit on every wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi::raw::CompletionFlags;
use ofi::{Completion, Connection};

use crate::failure::{Failure, Result};

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

/// A connection and its received messages.
pub struct Link {
    connection: Connection,
    arrived: VecDeque<(Vec<u8>, usize)>,
    /// Sends in flight.
    sending: usize,
    /// Buffers of completed sends.
    spare: Vec<Vec<u8>>,
}

impl Link {
    /// Wraps a connection.
    pub fn new(connection: Connection) -> Self {
        Self { connection, arrived: VecDeque::new(), sending: 0, spare: Vec::new() }
    }

    /// Receives into `buffer`.
    ///
    /// # Errors
    /// The connection is lost, or accepts no receive within `limit`.
    pub fn receive(&mut self, buffer: Vec<u8>, limit: Duration) -> Result<()> {
        let mut buffer = Some(buffer);
        self.until("posting a receive", limit, |link| {
            let Some(posted) = buffer.take() else { return Ok(true) };
            match link.connection.recv(posted) {
                Ok(_) => Ok(true),
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
        self.until("sending", limit, |link| {
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
    pub fn next(&mut self, doing: &str, limit: Duration) -> Result<(Vec<u8>, usize)> {
        self.until(doing, limit, |link| Ok(!link.arrived.is_empty()))?;
        self.arrived.pop_front().ok_or_else(|| Failure::Peer("nothing arrived".into()))
    }

    /// A buffer to send from; it may have old contents.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Waits up to `limit` until all sends have completed.
    pub fn finish(mut self, limit: Duration) {
        // A lost peer needs nothing more.
        let _ = self.until("ending", limit, |link| Ok(link.sending == 0));
        let _ = self.connection.shutdown();
    }

    /// Polls until `done`.
    fn until(
        &mut self,
        doing: &str,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut idle = 0_u32;
        while !done(self)? {
            match self.connection.poll().map_err(|error| lost(&error))? {
                Some(completion) => {
                    self.take(completion)?;
                    idle = 0;
                    continue;
                }
                None => idle += 1,
            }
            // Answers arrive within microseconds, or take a while.
            if idle < 256 {
                std::thread::yield_now();
                continue;
            }
            if self.connection.wait_shutdown(Duration::ZERO).map_err(|error| lost(&error))? {
                return Err(Failure::Peer("the peer ended the connection".into()));
            }
            if begin.elapsed() > limit {
                return Err(Failure::Silent { doing: doing.into(), limit });
            }
            std::thread::sleep(Duration::from_micros(if idle < 4096 { 50 } else { 1000 }));
        }
        Ok(())
    }

    fn take(&mut self, mut completion: Completion) -> Result<()> {
        if let Err(error) = &completion.result {
            return Err(Failure::Peer(format!("the connection is lost: {error}")));
        }
        let buffer = completion.take_buffer::<Vec<u8>>().unwrap_or_default();
        if completion.flags.contains(CompletionFlags::RECV) {
            self.arrived.push_back((buffer, completion.len));
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
