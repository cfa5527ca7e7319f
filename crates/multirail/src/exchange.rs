//! Metadata over TCP: an agent serves its own, and loads its visitors' metadata.
//!
//! A visitor sends its metadata and gets the server's. Each is `MRX1`, a length of 32 bits (little-endian), and that
//! many bytes. The server serves one visitor after the other, each for at most [`VISITOR_TIMEOUT`]. The stream is
//! neither encrypted nor authenticated: it is for trusted networks (`docs/threat-model.md`).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ofi::{Errno, Error, Result};
use ofi_core::fork::Born;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::agent::Agent;
use crate::deadline::end_of;
use crate::wire::blob::MAX_METADATA_LEN;

const MAGIC: [u8; 4] = *b"MRX1";
/// Time limit for one visitor, from its connection to the end of the exchange.
const VISITOR_TIMEOUT: Duration = Duration::from_secs(5);
const LATE: &str =
    "the exchange of metadata took too long; check the network, and that the other end is an agent";
/// Maximum sleep of the server. A visitor or the server's end interrupts it.
const SLEEP: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Pause after a failed accept, for example for lack of descriptors.
const REST: Duration = Duration::from_millis(5);

/// Serves an agent's metadata until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    /// Interrupts the thread's sleep.
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The process of the thread, with which a forked child shares the descriptor.
    born: Born,
}

impl Server {
    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.born.is_here() {
            return std::mem::forget(self.thread.take());
        }
        self.over.store(true, Ordering::Relaxed);
        // Cannot fail, because it is written once. Without it the thread would notice after `SLEEP`.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Agent {
    /// Serves this agent's metadata, as it is at each visit, at `address` (port 0 chooses one). The agent loads the
    /// metadata of visitors.
    ///
    /// # Errors
    /// The error of binding or listening; `FI_EINVAL` in a forked child.
    pub fn serve(&self, address: impl ToSocketAddrs) -> Result<Server> {
        self.shared.born.check()?;
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(io::Error::from)?);
        let (agent, ends, woken) = (self.clone(), Arc::clone(&over), Arc::clone(&wake));
        let run = move || {
            while !ends.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, visitor)) => {
                        if let Err(error) = agent.receive(&stream) {
                            tracing::warn!(target: "multirail", %error, %visitor, "an exchange of metadata failed");
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let mut fds =
                            [PollFd::new(&listener, PollFlags::IN), PollFd::new(&*woken, PollFlags::IN)];
                        // A signal ends the sleep early, which is harmless.
                        let _ = poll(&mut fds, Some(&SLEEP));
                    }
                    Err(error) => {
                        tracing::warn!(target: "multirail", %error, "a visitor could not be accepted");
                        std::thread::sleep(REST);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("multirail-meta".into()).spawn(run)?;
        Ok(Server { address, over, wake, thread: Some(thread), born: Born::here() })
    }

    /// Exchanges metadata with an agent that [serves](Agent::serve) its own, and returns that agent's name.
    ///
    /// # Errors
    /// `FI_ETIMEDOUT` after `timeout`; the error of connecting; those of [`Agent::load`].
    pub fn visit(&self, address: impl ToSocketAddrs, timeout: Duration) -> Result<Arc<str>> {
        let deadline = end_of(timeout);
        let mut last = Error::with(Errno::EINVAL, "the server's name resolves to no address; give HOST:PORT");
        for address in address.to_socket_addrs()? {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::with(
                    Errno::ETIMEDOUT,
                    "no agent serves metadata there; check the address, and that Agent::serve runs",
                ));
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => {
                    send(&stream, &self.metadata()?, deadline)?;
                    return self.load(&receive(&stream, deadline)?);
                }
                Err(error) => last = error.into(),
            }
        }
        Err(last)
    }

    fn receive(&self, stream: &TcpStream) -> Result<()> {
        stream.set_nonblocking(false)?;
        let deadline = Instant::now() + VISITOR_TIMEOUT;
        let metadata = receive(stream, deadline)?;
        self.load(&metadata)?;
        send(stream, &self.metadata()?, deadline)
    }
}

fn left(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Error::with(Errno::ETIMEDOUT, LATE)) } else { Ok(left) }
}

fn send(mut stream: &TcpStream, metadata: &[u8], deadline: Instant) -> Result<()> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    let head = [&MAGIC[..], &(metadata.len() as u32).to_le_bytes()].concat();
    stream.write_all(&head)?;
    for part in metadata.chunks(1 << 16) {
        stream.set_write_timeout(Some(left(deadline)?))?;
        stream.write_all(part)?;
    }
    Ok(())
}

fn receive(mut stream: &TcpStream, deadline: Instant) -> Result<Vec<u8>> {
    let mut fill = |bytes: &mut [u8]| -> Result<()> {
        let mut at = 0;
        while at < bytes.len() {
            stream.set_read_timeout(Some(left(deadline)?))?;
            match stream.read(&mut bytes[at..]) {
                Ok(0) => {
                    return Err(Error::with(
                        Errno::ECONNRESET,
                        "the other agent closed the stream in the middle of its metadata; see its log",
                    ));
                }
                Ok(len) => at += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(Error::with(Errno::ETIMEDOUT, LATE));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    };
    let mut head = [0; 8];
    fill(&mut head)?;
    let (magic, len) = head.split_at(4);
    let len = u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize;
    if magic != MAGIC || len > MAX_METADATA_LEN {
        return Err(Error::wanted(
            Errno::EINVAL,
            "metadata over TCP",
            format!("MRX1 and at most {MAX_METADATA_LEN} bytes"),
            format!("{magic:02x?} and {len} bytes"),
            "check the address: something else listens there",
        ));
    }
    // Grows with the received bytes, not with the announced length.
    let mut metadata = Vec::new();
    while metadata.len() < len {
        let start = metadata.len();
        metadata.resize(len.min(start + (1 << 16)), 0);
        fill(&mut metadata[start..])?;
    }
    Ok(metadata)
}
