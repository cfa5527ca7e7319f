//! An HTTP/1.1 server of one thread: it never blocks on a connection, and bounds connections, requests and time.
//!
//! `httparse` parses the heads of requests. A body has a `Content-Length`; other transfer codings are refused.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::gateway::http::{HttpRequest, HttpResponse, Parsed, parse};
use crate::gateway::roles::remote::is_nothing;
use crate::gateway::roles::stop::timespec;
use crate::{Error, Result};

/// Maximum connections. Further ones are closed at once.
pub const MAX_CONNECTIONS: usize = 64;
/// Maximum time from the end of an answer to the end of the next request, and from there to the end of its answer.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time that a connection is kept after its last answer, so that the client can read it.
const LINGER: Duration = Duration::from_secs(1);

/// What a server answers with. It is called by the server's thread.
pub trait Site: Send + 'static {
    /// The answer to a request.
    fn answer(&mut self, request: &HttpRequest) -> HttpResponse;
}

/// A running server. It ends with this value.
#[derive(Debug)]
pub struct Server {
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Listens at `ADDRESS:PORT`.
///
/// # Errors
/// [`Error::Argument`] for an address where nobody can listen.
pub fn listen(at: &str) -> Result<(TcpListener, SocketAddr)> {
    let failed = |error: io::Error| Error::Argument(format!("--http {at}: {error}"));
    let listener = TcpListener::bind(at).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

impl Server {
    /// Answers in a thread of its own. A client that takes longer than `limit` for a request, or to read its answer, is
    /// dropped. Where it listens at a loopback address, requests to a host by name are refused, except to `localhost`.
    ///
    /// # Errors
    /// [`Error::Argument`] if the system cannot start a thread.
    pub fn start(listener: TcpListener, limit: Duration, site: impl Site) -> Result<Self> {
        let failed = |error: io::Error| Error::Argument(format!("--http: {error}"));
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = Arc::new(bell.map_err(|error| failed(error.into()))?);
        let is_over = Arc::new(AtomicBool::new(false));
        let is_local = listener.local_addr().map_err(failed)?.ip().to_canonical().is_loopback();
        let server = Running {
            listener,
            is_local,
            limit,
            site,
            bell: Arc::clone(&bell),
            is_over: Arc::clone(&is_over),
            connections: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("mxl-http".into()).spawn(move || server.run());
        Ok(Self { bell, is_over, thread: Some(thread.map_err(failed)?) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // A full counter is readable too.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

struct Running<S> {
    listener: TcpListener,
    /// Whether it listens at a loopback address.
    is_local: bool,
    limit: Duration,
    site: S,
    bell: Arc<OwnedFd>,
    is_over: Arc<AtomicBool>,
    connections: Vec<Connection>,
}

impl<S: Site> Running<S> {
    fn run(mut self) {
        while !self.is_over.load(Ordering::Relaxed) {
            if self.wait() {
                self.accept();
            }
            for connection in &mut self.connections {
                connection.advance(&mut self.site, self.is_local);
            }
            let now = Instant::now();
            self.connections.retain(|connection| !connection.is_over && connection.deadline > now);
        }
    }

    /// Sleeps until a connection can go on. Returns whether there is a new one.
    fn wait(&self) -> bool {
        let mut fds = vec![
            PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN),
        ];
        fds.extend(self.connections.iter().map(|connection| {
            let flags = if connection.output.is_empty() { PollFlags::IN } else { PollFlags::OUT };
            PollFd::from_borrowed_fd(connection.stream.as_fd(), flags)
        }));
        let now = Instant::now();
        let due = self.connections.iter().map(|connection| connection.deadline).min();
        let left = due.map_or(self.limit, |due| due.saturating_duration_since(now));
        let is_busy = |connection: &Connection| connection.has_more && connection.output.is_empty();
        let limit = if self.connections.iter().any(is_busy) {
            Duration::ZERO
        } else {
            left + Duration::from_millis(1)
        };
        if poll(&mut fds, Some(&timespec(limit))).is_err() {
            // Interrupted, or out of memory: the next turn asks again.
            std::thread::sleep(Duration::from_millis(1));
            return false;
        }
        !fds[0].revents().is_empty()
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            // Closed at once, without reading.
            Ok(_) if self.connections.len() >= MAX_CONNECTIONS => {}
            Ok((stream, _)) => self.connections.extend(Connection::new(stream, self.limit).ok()),
            Err(error) if is_nothing(&error) => {}
            // No descriptors are left: a pause, since the listener stays readable.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// A connection. It reads a request, writes its answer, and begins again.
struct Connection {
    stream: TcpStream,
    limit: Duration,
    input: Vec<u8>,
    /// Whether the input may have a whole request.
    has_more: bool,
    output: Vec<u8>,
    /// Bytes of the output that are written.
    written: usize,
    deadline: Instant,
    /// The answer is the last one.
    is_last: bool,
    /// The last answer is written; what else arrives is dropped.
    is_shut: bool,
    is_over: bool,
}

impl Connection {
    fn new(stream: TcpStream, limit: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let deadline = Instant::now() + limit;
        Ok(Self {
            stream,
            limit,
            input: Vec::new(),
            has_more: false,
            output: Vec::new(),
            written: 0,
            deadline,
            is_last: false,
            is_shut: false,
            is_over: false,
        })
    }

    /// Reads, answers and writes what is possible without waiting. A request of a turn has at most one answer.
    fn advance(&mut self, site: &mut impl Site, is_local: bool) {
        if self.output.is_empty() {
            // Requests that are there come first: the input does not grow meanwhile.
            if !self.has_more {
                self.read();
            }
            if !self.is_shut && !self.is_over {
                self.answer(site, is_local);
            }
        }
        self.write();
    }

    fn read(&mut self) {
        let mut bytes = [0; 16 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => self.is_over = true,
            Ok(len) if !self.is_shut => self.input.extend_from_slice(bytes.get(..len).unwrap_or_default()),
            Ok(_) => {}
            Err(error) if is_nothing(&error) => {}
            Err(_) => self.is_over = true,
        }
    }

    fn answer(&mut self, site: &mut impl Site, is_local: bool) {
        let (response, is_head) = match parse(&self.input) {
            Parsed::More => {
                self.has_more = false;
                return;
            }
            Parsed::Request { request, len, is_last } => {
                self.input.drain(..len);
                (self.is_last, self.has_more) = (is_last, !is_last && !self.input.is_empty());
                let response = if is_local && !request.is_to_address() {
                    HttpResponse::error(421, "name this host by its IP address, or localhost")
                } else {
                    site.answer(&request)
                };
                (response, request.method == "HEAD")
            }
            Parsed::Refused(response) => {
                (self.is_last, self.has_more) = (true, false);
                (response, false)
            }
        };
        (self.output, self.written) = (response.to_bytes(self.is_last, is_head), 0);
        self.deadline = Instant::now() + self.limit;
    }

    fn write(&mut self) {
        while self.written < self.output.len() && !self.is_over {
            match self.stream.write(&self.output[self.written..]) {
                Ok(0) => self.is_over = true,
                Ok(len) => self.written += len,
                Err(error) if is_nothing(&error) => return,
                Err(_) => self.is_over = true,
            }
        }
        if self.output.is_empty() {
            return;
        }
        self.output = Vec::new();
        let now = Instant::now();
        self.deadline = now + self.limit;
        if self.is_last {
            (self.is_shut, self.deadline) = (true, now + LINGER);
            // One that the client has closed is as good as shut.
            let _ = self.stream.shutdown(Shutdown::Write);
        }
    }
}

#[cfg(test)]
mod tests;
