//! The messages of a pair's two worker processes before and after a measurement.
//!
//! The parent creates a connected pair of UNIX sockets and gives each worker one end as its standard input, so that no
//! name is needed and nothing has to be cleaned up. Messages are lines of JSON.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::{Duration, Instant},
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Result, sys};

/// Time limit for the other worker. It exceeds any measurement, so a worker whose partner died or hangs ends.
const PARTNER_TIMEOUT: Duration = Duration::from_secs(60);

/// One end of the channel between two workers.
#[derive(Debug)]
pub struct Link {
    lines: BufReader<UnixStream>,
}

impl Link {
    /// The end that the parent passed as this process's standard input.
    pub fn from_stdin() -> Result<Self> {
        let fd = io::stdin().as_fd().try_clone_to_owned().map_err(Error::io("taking the link from stdin"))?;
        Self::new(UnixStream::from(fd))
    }

    /// Uses `stream`.
    pub fn new(stream: UnixStream) -> Result<Self> {
        stream
            .set_read_timeout(Some(PARTNER_TIMEOUT))
            .map_err(Error::io("standard input is not a socket"))?;
        Ok(Self { lines: BufReader::new(stream) })
    }

    /// Sends `value` to the other side.
    pub fn send<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<()> {
        let mut line = serde_json::to_string(value).map_err(|error| Error::Link(error.to_string()))?;
        line.push('\n');
        self.lines.get_mut().write_all(line.as_bytes()).map_err(Error::io("telling the other worker"))
    }

    /// Waits for a value from the other side.
    pub fn recv<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        let len = self.lines.read_line(&mut line).map_err(Error::io("listening to the other worker"))?;
        if len == 0 {
            return Err(Error::Link("it ended early".into()));
        }
        serde_json::from_str(&line).map_err(|error| Error::Link(format!("{error} in {line:?}")))
    }

    /// Sends `mine` and receives the other side's value: addresses, keys.
    pub fn exchange<T: Serialize + DeserializeOwned>(&mut self, mine: &T) -> Result<T> {
        self.send(mine)?;
        self.recv()
    }

    /// Returns when both sides have called it; calls `meanwhile` repeatedly until then.
    pub fn barrier(&mut self, mut meanwhile: impl FnMut()) -> Result<()> {
        let deadline = Instant::now() + PARTNER_TIMEOUT;
        self.barrier_with(|| {
            meanwhile();
            if Instant::now() < deadline {
                Ok(())
            } else {
                Err(Error::Link("it did not reach the barrier".into()))
            }
        })
    }

    /// As [`Link::barrier`], but `meanwhile` decides how long to wait.
    pub fn barrier_with(&mut self, mut meanwhile: impl FnMut() -> Result<()>) -> Result<()> {
        self.send(&"ready")?;
        while self.lines.buffer().is_empty()
            && !sys::is_readable(self.lines.get_ref().as_fd()).map_err(Error::io("looking at the link"))?
        {
            meanwhile()?;
        }
        match self.recv::<String>()?.as_str() {
            "ready" => Ok(()),
            other => Err(Error::Link(format!("expected it to be ready, heard {other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sides_exchange_and_meet() {
        let (a, b) = UnixStream::pair().unwrap();
        let (mut a, mut b) = (Link::new(a).unwrap(), Link::new(b).unwrap());
        let other = std::thread::spawn(move || {
            let heard = b.exchange(&vec![4_u8]).unwrap();
            b.barrier(|| ()).unwrap();
            heard
        });
        assert_eq!(a.exchange(&vec![1_u8, 2]).unwrap(), vec![4]);
        a.barrier(|| ()).unwrap();
        assert_eq!(other.join().unwrap(), vec![1, 2]);
        assert!(matches!(a.recv::<u8>(), Err(Error::Link(_))), "the other side is gone");
    }
}
