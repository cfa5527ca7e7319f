//! An endpoint's socket, its batches of datagrams, and the descriptor that it sleeps on.

use std::net::{SocketAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::time::Duration;

use ofi_api::Result;
use ofi_core::sys::WaitSet;
use rdm_proto::{Instant, Transmit};

use crate::sys::{Batch, Timer, bind};

/// Datagrams received by one system call.
const RECEIVE: usize = 32;
/// Datagrams sent by one system call.
const SEND: usize = 16;

/// The time, as `rdm-proto` counts it.
pub fn now() -> Instant {
    static START: OnceLock<std::time::Instant> = OnceLock::new();
    let start = START.get_or_init(std::time::Instant::now);
    // Not 0, so that what was never is always earlier.
    Instant::from_nanos(1_000_000 + start.elapsed().as_nanos() as u64)
}

/// What became of a try to send.
pub enum Sent {
    /// Everything went.
    All,
    /// The socket is full. The rest waits.
    Full,
    /// The datagram is too long for the path: to this peer, of so many bytes. The rest waits.
    TooLong(Option<u32>, usize),
}

/// See the module.
pub struct Socket {
    socket: UdpSocket,
    /// Bytes that the kernel lets it receive ahead.
    pub granted: usize,
    /// What it is bound to.
    pub address: SocketAddr,
    pub incoming: Batch,
    outgoing: Batch,
    /// Datagrams in `outgoing` that have not been sent.
    waiting: Range<usize>,
    peers: [Option<u32>; SEND],
    set: WaitSet,
    timer: Timer,
    timer_set: Option<Instant>,
    /// Datagrams that the system would not send.
    pub unsendable: u64,
}

impl Socket {
    /// Binds a socket with buffers of about `buffer` bytes.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`, `FI_ENOMEM`.
    pub fn new(address: SocketAddr, buffer: usize) -> Result<Self> {
        let (socket, granted) = bind(address, buffer)?;
        let address = socket.local_addr().map_err(|_| ofi_core::sys::os_error("getsockname"))?;
        let (set, timer) = (WaitSet::new()?, Timer::new()?);
        set.add(socket.as_raw_fd())?;
        set.add(timer.fd())?;
        Ok(Self {
            socket,
            granted,
            address,
            incoming: Batch::new(RECEIVE)?,
            outgoing: Batch::new(SEND)?,
            waiting: 0..0,
            peers: [None; SEND],
            set,
            timer,
            timer_set: None,
            unsendable: 0,
        })
    }

    /// Receives a batch: how many datagrams, and whether there may be more.
    pub fn receive(&mut self) -> (usize, bool) {
        let got = self.incoming.receive(&self.socket);
        (got, got == RECEIVE)
    }

    /// The buffer of the next datagram to be sent, unless a batch is full.
    pub fn next(&mut self) -> Option<&mut [u8]> {
        if self.waiting.is_empty() {
            self.waiting = 0..0;
        }
        let index = self.waiting.end;
        (index < SEND).then(|| self.outgoing.buffer(index))
    }

    /// The datagram in the buffer of [`Socket::next`] is to be sent.
    pub fn push(&mut self, transmit: &Transmit) {
        let index = self.waiting.end;
        self.outgoing.address(index, transmit.to, transmit.len);
        self.peers[index] = transmit.peer;
        self.waiting.end += 1;
    }

    /// Whether datagrams wait to be sent.
    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Sends what waits.
    pub fn flush(&mut self) -> Sent {
        while !self.waiting.is_empty() {
            match self.outgoing.send(&self.socket, self.waiting.clone()) {
                Ok(sent) => self.waiting.start += sent,
                Err(libc::EAGAIN | libc::ENOBUFS | libc::EINTR) => return Sent::Full,
                Err(libc::EMSGSIZE) => {
                    let index = self.waiting.start;
                    self.waiting.start += 1;
                    return Sent::TooLong(self.peers[index], self.outgoing.len(index));
                }
                // Nobody there, no route, forbidden: what the protocol repeats until its patience ends.
                Err(_) => {
                    self.waiting.start += 1;
                    self.unsendable += 1;
                }
            }
        }
        Sent::All
    }

    /// Makes the descriptor readable at `time`.
    pub fn wake_at(&mut self, now: Instant, time: Option<Instant>) {
        if self.timer_set.is_none() && time.is_none() {
            return;
        }
        if self.timer_set != time || time.is_some_and(|time| time <= now) {
            self.timer.set(time.map(|time| time.since(now).max(Duration::from_nanos(1))));
            self.timer_set = time;
        }
    }

    /// Readable when there is something to receive, or the timer is due.
    pub fn fd(&self) -> RawFd {
        self.set.fd()
    }

    /// Whether datagrams wait to be received.
    pub fn is_readable(&self) -> bool {
        ofi_core::sys::wait_readable(&[self.socket.as_raw_fd()], Some(std::time::Instant::now()))
    }

    /// Blocks until something may have come, for at most `time`.
    pub fn wait(&self, time: Duration) {
        let deadline = std::time::Instant::now() + time;
        ofi_core::sys::wait_readable(&[self.socket.as_raw_fd()], Some(deadline));
    }
}
