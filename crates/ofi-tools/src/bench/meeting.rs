//! The control connection of the processes of a measurement: frames over TCP, each with a length of 32 bits.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::memory::MemoryKind;
use crate::failure::{Failure, Result};

/// Maximum length of a frame, in bytes.
const MAX_FRAME_LEN: usize = 1 << 20;
/// Time that one end waits for the other.
pub(super) const PEER_TIMEOUT: Duration = Duration::from_secs(120);

/// A request of the initiator to the target.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum BenchRequest {
    /// Open an agent. The target answers with its metadata; the initiator's metadata follows.
    Open(Opening),
    /// Fill the memory with a pattern.
    Fill { len: u64, seed: u64 },
    /// Compare the memory with a pattern.
    Check { len: u64, seed: u64 },
    /// The end of the run.
    End,
}

/// An initiator's requirements on a target.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    /// The name of the target's agent.
    pub name: String,
    /// Providers of its rails.
    pub rails: Vec<String>,
    /// Bytes of memory for this initiator.
    pub len: u64,
    /// The kind of memory.
    pub memory: MemoryKind,
    /// Total number of initiators.
    pub initiators: usize,
}

/// One end of the control connection.
pub(super) struct Meeting {
    stream: TcpStream,
}

impl Meeting {
    /// Connects to a target, which may not be listening yet.
    pub(super) fn join(address: &str) -> Result<Self> {
        let doing = || format!("connecting to {address}");
        let resolved = address.to_socket_addrs().map_err(|error| Failure::system(doing(), error))?;
        let addresses: Vec<_> = resolved.collect();
        let began = Instant::now();
        loop {
            match TcpStream::connect(&addresses[..]) {
                Ok(stream) => return Self::of(stream),
                Err(_) if began.elapsed() < Duration::from_secs(5) => {
                    std::thread::sleep(Duration::from_millis(50))
                }
                Err(error) => return Err(Failure::system(doing(), error)),
            }
        }
    }

    pub(super) fn of(stream: TcpStream) -> Result<Self> {
        let set = stream.set_read_timeout(Some(PEER_TIMEOUT)).and_then(|()| stream.set_nodelay(true));
        set.map_err(|error| Failure::system("preparing a connection", error))?;
        Ok(Self { stream })
    }

    pub(super) fn say_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let frame = [&(bytes.len() as u32).to_le_bytes()[..], bytes].concat();
        self.stream.write_all(&frame).map_err(|error| Failure::system("sending to the other process", error))
    }

    pub(super) fn hear_bytes(&mut self) -> Result<Vec<u8>> {
        let heard = |error| Failure::system("receiving from the other process", error);
        let mut len = [0; 4];
        self.stream.read_exact(&mut len).map_err(heard)?;
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_FRAME_LEN {
            return Err(Failure::Peer(format!("a frame of {len} bytes; the longest is {MAX_FRAME_LEN}")));
        }
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).map_err(heard)?;
        Ok(bytes)
    }

    pub(super) fn say(&mut self, request: &BenchRequest) -> Result<()> {
        let text = serde_json::to_vec(request).map_err(|error| Failure::Peer(error.to_string()))?;
        self.say_bytes(&text)
    }

    /// Sends a request, and waits until it is done.
    pub(super) fn ask(&mut self, request: &BenchRequest) -> Result<()> {
        self.say(request)?;
        match self.hear_bytes()?.as_slice() {
            b"done" => Ok(()),
            other => Err(Failure::Data(String::from_utf8_lossy(other).into_owned())),
        }
    }

    pub(super) fn hear(&mut self) -> Result<BenchRequest> {
        let bytes = self.hear_bytes()?;
        serde_json::from_slice(&bytes).map_err(|error| Failure::Peer(format!("not a request: {error}")))
    }

    /// Whether data has arrived.
    pub(super) fn has_news(&self) -> Result<bool> {
        let system = |error| Failure::system("polling a connection", error);
        self.stream.set_nonblocking(true).map_err(system)?;
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).map_err(system)?;
        match peeked {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            _ => Ok(true),
        }
    }
}
