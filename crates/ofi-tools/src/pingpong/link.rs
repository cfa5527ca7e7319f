//! The control connection: lines of [`Message`]s over TCP or a socket pair, with a limit on every wait.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::Message;
use crate::failure::{Failure, Result};

/// Silence of the peer after which the program gives up.
pub const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum length of a line, in bytes. The longest messages, a hello or a failure, are far shorter.
const MAX_LINE: usize = 64 << 10;

/// Sleep between checks of a quiet connection.
const NAP: Duration = Duration::from_micros(50);

/// Checks before the first sleep.
const AWAKE: u32 = 200;

/// One end of the control connection.
#[derive(Debug)]
pub struct Link {
    stream: Stream,
    /// Received bytes: incomplete lines, and lines that were not read yet.
    arrived: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(buffer),
            Stream::Unix(stream) => (&*stream).read(buffer),
        }
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).write(bytes),
            Stream::Unix(stream) => (&*stream).write(bytes),
        }
    }
}

impl Link {
    /// Uses a TCP connection.
    ///
    /// # Errors
    /// The socket cannot be set up.
    pub fn tcp(stream: TcpStream) -> Result<Link> {
        let set_up = || stream.set_nonblocking(true).and_then(|()| stream.set_nodelay(true));
        set_up().map_err(|error| Failure::system("setting up the control connection", error))?;
        Ok(Link { stream: Stream::Tcp(stream), arrived: Vec::new() })
    }

    /// Uses one end of a socket pair.
    ///
    /// # Errors
    /// As [`Link::tcp`].
    pub fn unix(stream: UnixStream) -> Result<Link> {
        let set_up = stream.set_nonblocking(true);
        set_up.map_err(|error| Failure::system("setting up the control connection", error))?;
        Ok(Link { stream: Stream::Unix(stream), arrived: Vec::new() })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The peer is gone, or accepts nothing for [`SILENCE_TIMEOUT`].
    pub fn send(&mut self, message: &Message) -> Result<()> {
        let mut line = serde_json::to_vec(message)
            .map_err(|error| Failure::system("writing a control message", io::Error::from(error)))?;
        line.push(b'\n');
        let mut rest = &line[..];
        let since = Instant::now();
        while !rest.is_empty() {
            match self.stream.write(rest) {
                Ok(0) => return Err(gone()),
                Ok(count) => rest = &rest[count..],
                Err(error) if is_later(&error) => nap(since, "sending on the control connection")?,
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    /// Waits for a message; `while_waiting` runs between checks.
    ///
    /// # Errors
    /// The peer is gone, gave up, speaks another protocol, or is silent for [`SILENCE_TIMEOUT`].
    pub fn receive(&mut self, doing: &str, mut while_waiting: impl FnMut() -> Result<()>) -> Result<Message> {
        let since = Instant::now();
        let mut looks = 0;
        loop {
            if let Some(message) = self.try_receive()? {
                return Ok(message);
            }
            while_waiting()?;
            looks += 1;
            if looks > AWAKE {
                nap(since, doing)?;
            }
        }
    }

    /// Checks briefly for news. Returns whether the peer reported that it works.
    ///
    /// # Errors
    /// The peer is gone or gave up.
    pub fn check(&mut self) -> Result<bool> {
        self.take_in()?;
        match self.first_line()? {
            Some((_, Message::Failed { why, code })) => Err(Failure::Told { why, code }),
            Some((len, Message::Working)) => {
                self.arrived.drain(..len);
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    fn try_receive(&mut self) -> Result<Option<Message>> {
        let end = match self.first_line()? {
            Some(found) => Some(found),
            None => {
                self.take_in()?;
                self.first_line()?
            }
        };
        match end {
            Some((_, Message::Failed { why, code })) => Err(Failure::Told { why, code }),
            Some((len, Message::Working)) => {
                self.arrived.drain(..len);
                Ok(None)
            }
            Some((len, message)) => {
                self.arrived.drain(..len);
                Ok(Some(message))
            }
            None => Ok(None),
        }
    }

    /// The first complete line, and its length.
    fn first_line(&self) -> Result<Option<(usize, Message)>> {
        let Some(end) = self.arrived.iter().position(|&byte| byte == b'\n') else {
            return if self.arrived.len() > MAX_LINE { Err(stranger()) } else { Ok(None) };
        };
        let message = serde_json::from_slice(&self.arrived[..end]).map_err(|_| stranger())?;
        Ok(Some((end + 1, message)))
    }

    /// Reads the available bytes. The end of the connection is an error only after all lines were read.
    fn take_in(&mut self) -> Result<()> {
        let mut buffer = [0; 4096];
        match self.stream.read(&mut buffer) {
            Ok(0) if self.arrived.contains(&b'\n') => Ok(()),
            Ok(0) => Err(gone()),
            Ok(count) => {
                self.arrived.extend_from_slice(&buffer[..count]);
                Ok(())
            }
            Err(error) if is_later(&error) => Ok(()),
            Err(error) => Err(lost(error)),
        }
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn nap(since: Instant, doing: &str) -> Result<()> {
    if since.elapsed() > SILENCE_TIMEOUT {
        return Err(Failure::Silent { doing: doing.to_owned(), limit: SILENCE_TIMEOUT });
    }
    std::thread::sleep(NAP);
    Ok(())
}

fn gone() -> Failure {
    Failure::Peer("the peer is gone: it closed the control connection before the end".into())
}

fn lost(error: io::Error) -> Failure {
    Failure::Peer(format!("the control connection is lost: {error}"))
}

fn stranger() -> Failure {
    Failure::Peer(
        "the peer does not speak this program's control protocol; use the fi_pingpong of the same version on both \
         sides (C's is another program)"
            .into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Link::unix(ours).unwrap(), theirs)
    }

    #[test]
    fn lines_arrive_whole_and_in_order() {
        let (mut link, mut raw) = pair();
        raw.write_all(b"{\"say\":\"done\"}\n{\"say\":\"b").unwrap();
        assert_eq!(link.receive("testing", || Ok(())).unwrap(), Message::Done);
        assert_eq!(link.try_receive().unwrap(), None);
        raw.write_all(b"ye\"}\n").unwrap();
        drop(raw);
        assert_eq!(link.receive("testing", || Ok(())).unwrap(), Message::Bye);
        let failure = link.receive("testing", || Ok(())).unwrap_err();
        assert_eq!(failure.code(), 104);
    }

    #[test]
    fn a_peer_that_gives_up_is_heard_at_once() {
        let (mut link, raw) = pair();
        assert!(link.check().is_ok());
        Link::unix(raw).unwrap().send(&Message::Failed { why: "no memory".into(), code: 12 }).unwrap();
        let failure = link.check().unwrap_err();
        assert_eq!((failure.code(), failure.to_string()), (12, "the peer gave up: no memory".into()));
    }

    #[test]
    fn a_peer_that_works_is_heard_and_says_nothing_else_by_it() {
        let (mut link, raw) = pair();
        let mut peer = Link::unix(raw).unwrap();
        assert!(!link.check().unwrap());
        peer.send(&Message::Working).unwrap();
        assert!(link.check().unwrap());
        assert!(!link.check().unwrap());
        [Message::Working, Message::Working, Message::Done]
            .iter()
            .for_each(|message| peer.send(message).unwrap());
        assert_eq!(link.receive("testing", || Ok(())).unwrap(), Message::Done);
    }

    #[test]
    fn a_stranger_is_told_from_a_peer() {
        let (mut link, mut raw) = pair();
        raw.write_all(b"GET / HTTP/1.1\r\n").unwrap();
        let text = link.receive("testing", || Ok(())).unwrap_err().to_string();
        assert!(text.contains("control protocol"), "{text}");
        let (mut link, mut raw) = pair();
        let writer = std::thread::spawn(move || raw.write_all(&[b'a'; 2 * MAX_LINE]));
        assert!(link.receive("testing", || Ok(())).is_err());
        drop(link);
        let _ = writer.join();
    }
}
