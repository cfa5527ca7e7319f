//! One connection: messages in and out, with an end to every wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi::raw::CompletionFlags;
use ofi::{Completion, Connection};

use crate::failure::{Failure, Result};

/// Why the work over a connection ends early.
pub enum End {
    /// Another connection may do.
    Lost(Failure),
    /// Nothing will do.
    Final(Failure),
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        Self::Lost(failure)
    }
}

/// A connection, and what has arrived over it.
pub struct Link {
    connection: Connection,
    arrived: VecDeque<(Vec<u8>, usize)>,
    /// Sends under way.
    sending: usize,
    /// Buffers of sends that have ended.
    spare: Vec<Vec<u8>>,
}

impl Link {
    /// Over this connection.
    pub fn new(connection: Connection) -> Self {
        Self { connection, arrived: VecDeque::new(), sending: 0, spare: Vec::new() }
    }

    /// Receives into `buffer`.
    ///
    /// # Errors
    /// When the connection is gone, or takes no receive within `limit`.
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

    /// Sends `message`. At most `most` are under way.
    ///
    /// # Errors
    /// When the connection is gone, or takes no message within `limit`.
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

    /// The next message: its buffer, and how much of it is the message.
    ///
    /// # Errors
    /// When the connection is gone, or nothing comes within `limit`.
    pub fn next(&mut self, doing: &str, limit: Duration) -> Result<(Vec<u8>, usize)> {
        self.until(doing, limit, |link| Ok(!link.arrived.is_empty()))?;
        self.arrived.pop_front().ok_or_else(|| Failure::Peer("nothing arrived".into()))
    }

    /// A buffer to send from, empty or with old bytes.
    pub fn spare(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Waits until all sends have ended, as far as the peer lets them within `limit`.
    pub fn finish(mut self, limit: Duration) {
        // A peer that is gone needs no more.
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
            // Answers come within microseconds, or take a while.
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
