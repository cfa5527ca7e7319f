//! A mirror's control connection: bounded buffers, and limits on silence. It never blocks.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mxl::Uuid;

use super::source::Source;
use crate::TargetInfo;
use crate::gateway::roles::lines::{Inbox, MAX_LINE};
use crate::gateway::roles::remote::is_nothing;
use crate::gateway::wire::{ControlReply, ControlRequest};

/// Maximum time between two requests. A mirror says more often that it is there.
const SILENCE: Duration = Duration::from_secs(15);
/// Maximum time without progress of a write, and of a farewell.
const STUCK: Duration = Duration::from_secs(5);
/// Maximum bytes that wait to be sent: a list of all flows fits.
const MAX_OUTPUT: usize = 16 << 20;
/// Requests of one turn, so that one connection cannot keep the others waiting.
const REQUESTS: usize = 64;
/// Maximum flows that one connection follows.
pub const MAX_FOLLOWED: usize = 1024;

/// A connection.
pub struct Client {
    stream: TcpStream,
    /// The mirror's address.
    pub from: SocketAddr,
    /// The address of this host that it reached.
    pub node: IpAddr,
    /// The flows that it follows.
    pub follows: BTreeMap<Uuid, Follow>,
    inbox: Inbox,
    /// Whether the inbox may have a whole line.
    has_more: bool,
    output: Vec<u8>,
    heard: Instant,
    /// The last progress of a write.
    wrote: Instant,
    /// Nothing more is read; the connection ends when everything is written, at this time at the latest.
    closing: Option<Instant>,
    is_shut: bool,
    over: Option<String>,
}

/// A flow that a mirror follows.
#[derive(Debug, Default)]
pub struct Follow {
    /// What the mirror knows: a definition, or why there is none. `None` before it was told.
    pub told: Option<Result<String, String>>,
    /// Where to send the flow.
    pub target: Option<TargetInfo>,
    /// What sends to the target, unless it was dropped since.
    pub by: Weak<Source>,
    /// When the flow could last not be sent again.
    pub refused: Option<Instant>,
}

impl Follow {
    /// Whether this sends to the target.
    pub fn is_by(&self, source: &Arc<Source>) -> bool {
        std::ptr::eq(self.by.as_ptr(), Arc::as_ptr(source))
    }
}

impl Client {
    /// A new connection.
    ///
    /// # Errors
    /// The system's.
    pub fn new(stream: TcpStream, from: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (node, now) = (stream.local_addr()?.ip(), Instant::now());
        Ok(Self {
            stream,
            from,
            node,
            follows: BTreeMap::new(),
            inbox: Inbox::default(),
            has_more: false,
            output: Vec::new(),
            heard: now,
            wrote: now,
            closing: None,
            is_shut: false,
            over: None,
        })
    }

    /// Its descriptor, and whether something waits to be written.
    pub fn interest(&self) -> (BorrowedFd<'_>, bool) {
        (self.stream.as_fd(), !self.output.is_empty())
    }

    /// Whether requests wait that the last turn had no room for.
    pub fn has_more(&self) -> bool {
        self.has_more && self.closing.is_none() && self.over.is_none()
    }

    /// Why the connection has ended. `None` while it has not.
    pub fn over(&self) -> Option<&str> {
        self.over.as_deref()
    }

    /// The requests that have arrived. What makes no sense ends the connection.
    pub fn receive(&mut self) -> Vec<ControlRequest> {
        let mut bytes = [0; 64 << 10];
        // Unread requests come first: the inbox does not grow meanwhile.
        if !self.has_more() && self.over.is_none() {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.over = Some("it closed the connection".into()),
                Ok(len) if self.closing.is_none() => self.inbox.push(bytes.get(..len).unwrap_or_default()),
                Ok(_) => {}
                Err(error) if is_nothing(&error) => {}
                Err(error) => self.over = Some(error.to_string()),
            }
        }
        let mut requests = Vec::new();
        while self.closing.is_none() && requests.len() < REQUESTS {
            let request = match self.inbox.next_line() {
                Ok(Some(line)) => ControlRequest::parse(&line),
                Ok(None) => {
                    self.has_more = false;
                    return requests;
                }
                Err(_) => Err(format!("a line has at most {MAX_LINE} bytes")),
            };
            match request {
                Ok(request) => {
                    self.heard = Instant::now();
                    requests.push(request);
                }
                Err(why) => self.close(why),
            }
        }
        self.has_more = self.closing.is_none();
        requests
    }

    /// Queues a reply.
    pub fn say(&mut self, reply: &ControlReply) {
        if self.closing.is_some() || self.over.is_some() {
            return;
        }
        let line = reply.to_line();
        if self.output.len() + line.len() > MAX_OUTPUT {
            self.over = Some("it reads no replies".into());
            return;
        }
        if self.output.is_empty() {
            self.wrote = Instant::now();
        }
        self.output.extend_from_slice(line.as_bytes());
    }

    /// Ends the connection, with the reason.
    pub fn close(&mut self, why: String) {
        self.say(&ControlReply::Refused { id: None, why });
        self.closing.get_or_insert(Instant::now() + STUCK);
    }

    /// Writes what fits, and ends a connection that is silent, or stuck.
    pub fn advance(&mut self) {
        while !self.output.is_empty() && self.over.is_none() {
            match self.stream.write(&self.output) {
                Ok(len) => {
                    self.output.drain(..len.min(self.output.len()));
                    self.wrote = Instant::now();
                }
                Err(error) if is_nothing(&error) => break,
                Err(error) => self.over = Some(error.to_string()),
            }
        }
        if let Some(until) = self.closing {
            // The other end reads the reason before it sees the end: what it still sends is read and dropped.
            if self.output.is_empty() && !self.is_shut {
                self.is_shut = true;
                let _ = self.stream.shutdown(Shutdown::Write);
            }
            if Instant::now() > until {
                self.over.get_or_insert("it was refused".into());
            }
        } else if self.heard.elapsed() > SILENCE {
            self.over.get_or_insert(format!("it was silent for {} seconds", SILENCE.as_secs()));
        }
        if !self.output.is_empty() && self.wrote.elapsed() > STUCK {
            self.over.get_or_insert("it reads no replies".into());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// A connection, and its other end.
    fn pair() -> (Client, TcpStream) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let there = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, from) = listener.accept().unwrap();
        (Client::new(stream, from).unwrap(), there)
    }

    fn received(client: &mut Client) -> Vec<ControlRequest> {
        let begin = Instant::now();
        loop {
            let requests = client.receive();
            client.advance();
            if !requests.is_empty() || client.over().is_some() || begin.elapsed() > Duration::from_secs(20) {
                return requests;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn many_requests_at_once_are_all_answered_in_turns() {
        let (mut client, mut there) = pair();
        let ping = ControlRequest::Ping.to_line();
        there.write_all(ping.repeat(REQUESTS * 2 + 1).as_bytes()).unwrap();
        let begin = Instant::now();
        let mut turns = Vec::new();
        while turns.iter().sum::<usize>() < REQUESTS * 2 + 1 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{turns:?}");
            turns.push(received(&mut client).len());
        }
        assert!(turns.iter().all(|&turn| turn <= REQUESTS), "{turns:?}");
    }

    #[test]
    fn garbage_is_answered_and_ends_the_connection() {
        let (mut client, mut there) = pair();
        let garbage =
            [&ControlRequest::Ping.to_line().into_bytes()[..], b"\xff\x00\n", &[b'x'; 1 << 20]].concat();
        let writer = std::thread::spawn(move || {
            let _ = there.write_all(&garbage);
            let _ = there.shutdown(Shutdown::Write);
            let mut answer = String::new();
            there.read_to_string(&mut answer).unwrap();
            answer
        });
        assert_eq!(received(&mut client), [ControlRequest::Ping]);
        assert_eq!(received(&mut client), []);
        assert_eq!(client.over(), Some("it closed the connection"));
        drop(client);
        let answer = writer.join().unwrap();
        assert!(answer.contains("\"refused\"") && answer.contains("no JSON"), "{answer}");
    }

    #[test]
    fn who_reads_nothing_is_dropped() {
        let (mut client, _there) = pair();
        let text = "x".repeat(1 << 20);
        let reply = ControlReply::Definition { id: Uuid::nil(), text };
        for _ in 0..64 {
            client.say(&reply);
            client.advance();
        }
        assert_eq!(client.over(), Some("it reads no replies"));
        assert!(client.output.len() <= MAX_OUTPUT);
    }
}
