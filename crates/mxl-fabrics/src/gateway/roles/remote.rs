//! The control connection to a serving host, as a mirror and the list use it.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use mxl::{Uri, Uuid};

use super::lines::{Inbox, MAX_LINE};
use crate::gateway::wire::{ControlReply, ControlRequest};
use crate::{Error, Result};

/// The port if a URI names none.
pub const DEFAULT_PORT: u16 = 7480;
/// Maximum time of one attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time of all attempts to connect, and of one write. A mirror that ends waits longer.
const CALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest read.
const TURN: Duration = Duration::from_millis(100);

/// A serving host, and flows of it.
#[derive(Clone, Debug)]
pub struct Remote {
    host: String,
    port: u16,
    /// The flows' ids. If empty, all flows.
    pub ids: Vec<Uuid>,
}

impl Remote {
    /// The host that a URI names.
    ///
    /// # Errors
    /// [`Error::Argument`] for a URI without a host, and one with the path of a domain.
    pub fn of(uri: &Uri) -> Result<Self> {
        let wrong = |what: &str| Error::Argument(format!("{uri}: {what}"));
        let Some((host, port)) = uri.host()? else {
            return Err(wrong("no host: mxl://HOST:PORT/?id=ID names a flow of another host"));
        };
        if uri.domain.as_os_str() != "/" {
            return Err(wrong("a host serves one domain: mxl://HOST:PORT/, without a path"));
        }
        Ok(Self { host: host.into(), port: port.unwrap_or(DEFAULT_PORT), ids: uri.flows.clone() })
    }

    /// Connects.
    ///
    /// # Errors
    /// The system's, of the last address.
    pub fn connect(&self) -> io::Result<Control> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "no address");
        let addresses = (self.host.as_str(), self.port).to_socket_addrs()?;
        let begin = Instant::now();
        for address in addresses {
            let left = CALL_TIMEOUT.saturating_sub(begin.elapsed());
            if left.is_zero() {
                break;
            }
            match TcpStream::connect_timeout(&address, left.min(CONNECT_TIMEOUT)) {
                Ok(stream) => return Control::new(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (open, close) = if self.host.contains(':') { ("[", "]") } else { ("", "") };
        write!(f, "{open}{}{close}:{}", self.host, self.port)
    }
}

/// A connection to a serving host.
#[derive(Debug)]
pub struct Control {
    stream: TcpStream,
    inbox: Inbox,
    heard: Instant,
}

impl Control {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(CALL_TIMEOUT))?;
        stream.set_read_timeout(Some(TURN))?;
        Ok(Self { stream, inbox: Inbox::default(), heard: Instant::now() })
    }

    /// The address of this host, as the other end sees it.
    pub fn node(&self) -> io::Result<IpAddr> {
        self.stream.local_addr().map(|address| address.ip())
    }

    /// Sends a request.
    ///
    /// # Errors
    /// The system's; a connection that takes nothing for seconds.
    pub fn ask(&mut self, request: &ControlRequest) -> io::Result<()> {
        self.stream.write_all(request.to_line().as_bytes())
    }

    /// The next reply. `None` if there is none within a tenth of a second.
    ///
    /// # Errors
    /// The end of the connection, and a reply that makes no sense.
    pub fn reply(&mut self) -> io::Result<Option<ControlReply>> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        if let Some(reply) = self.parsed()? {
            return Ok(Some(reply));
        }
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the other side closed the connection"))
            }
            Ok(len) => {
                self.heard = Instant::now();
                self.inbox.push(bytes.get(..len).ok_or_else(|| invalid("a read beyond its buffer".into()))?);
                self.parsed()
            }
            Err(error) if is_nothing(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parsed(&mut self) -> io::Result<Option<ControlReply>> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidData, what);
        let line =
            self.inbox.next_line().map_err(|_| invalid(format!("a line of more than {MAX_LINE} bytes")))?;
        line.map(|line| ControlReply::parse(&line).map_err(invalid)).transpose()
    }

    /// The time since anything has arrived.
    pub fn silence(&self) -> Duration {
        self.heard.elapsed()
    }
}

/// Whether a read brought nothing yet.
pub fn is_nothing(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_host_and_flows() {
        let of = |uri: &str| Remote::of(&uri.parse().unwrap());
        let remote = of("mxl://[::1]:9/?id=5fbec3b1-1b0f-417d-9059-8b94a47197ed").unwrap();
        assert_eq!((remote.to_string(), remote.ids.len()), ("[::1]:9".into(), 1));
        assert_eq!(of("mxl://studio-b/").unwrap().to_string(), format!("studio-b:{DEFAULT_PORT}"));
        for (uri, why) in [
            ("mxl:///dev/shm/studio", "no host"),
            ("mxl://b/dev/shm/studio", "without a path"),
            ("mxl://b:0/", "HOST:PORT"),
            ("mxl://b:70000/", "HOST:PORT"),
            ("mxl://[b]:1/", "HOST:PORT"),
        ] {
            let error = of(uri).unwrap_err().to_string();
            assert!(error.contains(why), "{uri}: {error}");
        }
    }
}
