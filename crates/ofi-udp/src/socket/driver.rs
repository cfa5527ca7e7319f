//! Receives datagrams from the kernel: by io_uring if that is requested and permitted, otherwise by recvmmsg(2).
//! Threads that do not own the ring use recvmmsg(2) too.

use std::net::UdpSocket;

use ofi_api::Result;

use super::incoming::Incoming;
use super::placed::Expected;
use super::ring::Ring;
use super::segments::GroBatch;
use crate::settings::Choice;

/// Number of consecutive batches that another thread receives before the ring moves to it.
const BATCHES_BEFORE_MOVE: u32 = 64;

/// The receiving half of a socket: io_uring or recvmmsg(2).
pub struct Driver {
    calls: Incoming,
    ring: Option<Box<Ring>>,
    /// The last batch came through the ring.
    by_ring: bool,
    /// Batches that other threads have received since the owner's last.
    foreign_batches: u32,
    /// Kernel entries of earlier rings.
    entries: u64,
}

impl Driver {
    /// Creates the driver that `choice` requests, for `socket`.
    ///
    /// # Errors
    /// `FI_ENOMEM`.
    pub fn new(socket: &UdpSocket, choice: Choice) -> Result<Self> {
        let mut new =
            Self { calls: Incoming::new()?, ring: None, by_ring: false, foreign_batches: 0, entries: 0 };
        if choice == Choice::Ring {
            new.make_ring(socket);
        }
        Ok(new)
    }

    /// Makes the calling thread the owner of the ring.
    #[cold]
    fn make_ring(&mut self, socket: &UdpSocket) {
        self.entries += self.ring.take().map_or(0, |ring| ring.calls);
        match Ring::new(socket) {
            Ok(ring) => self.ring = Some(Box::new(ring)),
            Err(error) => {
                tracing::warn!(
                    target: "ofi::udp::ep_ctrl",
                    "io_uring is unavailable ({error}), so recvmmsg is used; FI_UDP_DRIVER=calls skips the attempt"
                );
            }
        }
        self.foreign_batches = 0;
    }

    /// Receives a batch. Returns the number of datagrams, and whether there may be more. System calls receive
    /// `expected` payloads in place.
    ///
    /// # Errors
    /// Errors that the socket reports, such as `ECONNREFUSED`; there may be datagrams nevertheless.
    #[inline]
    pub fn receive(
        &mut self,
        socket: &UdpSocket,
        expected: Option<&mut Expected>,
    ) -> Result<(usize, bool), i32> {
        let Some(ring) = &mut self.ring else { return self.calls.receive(socket, expected) };
        let got = ring.receive(socket);
        self.by_ring = got.is_some();
        match got {
            Some(got) => {
                self.foreign_batches = 0;
                got
            }
            None => self.receive_beside(socket),
        }
    }

    /// Receives for a thread that does not own the ring.
    #[cold]
    fn receive_beside(&mut self, socket: &UdpSocket) -> Result<(usize, bool), i32> {
        let got = self.calls.receive(socket, None);
        if self.ring.as_ref().is_some_and(|ring| ring.has_failed()) {
            tracing::warn!(target: "ofi::udp::ep_data", "io_uring failed; recvmmsg is used from now on");
            self.entries += self.ring.take().map_or(0, |ring| ring.calls);
        } else if got.is_ok_and(|(count, _)| count > 0) {
            self.foreign_batches += 1;
            if self.foreign_batches == BATCHES_BEFORE_MOVE {
                self.make_ring(socket);
            }
        }
        got
    }

    /// The datagrams of the last batch from `index` on that came in one message.
    #[inline]
    pub fn row(&mut self, index: usize) -> GroBatch<'_> {
        match &mut self.ring {
            Some(ring) if self.by_ring => ring.row(index),
            _ => self.calls.row(index),
        }
    }

    /// Moves payloads that were received in place back into the buffer, starting with that of datagram `index`.
    ///
    /// # Safety
    /// As of [`Incoming::bring_back`].
    pub unsafe fn bring_back(&mut self, index: usize) {
        if !self.by_ring {
            // SAFETY: the caller's promise.
            unsafe { self.calls.bring_back(index) };
        }
    }

    /// Whether datagrams have left the socket that no call has returned yet.
    pub fn holds(&mut self) -> bool {
        self.ring.as_mut().is_some_and(|ring| ring.holds())
    }

    /// Number of mispredicted payloads so far.
    pub fn undone(&self) -> u64 {
        self.calls.undone()
    }

    /// Whether there is a ring.
    pub fn has_ring(&self) -> bool {
        self.ring.is_some()
    }

    /// Number of kernel entries for rings.
    pub fn entries(&self) -> u64 {
        self.entries + self.ring.as_ref().map_or(0, |ring| ring.calls)
    }

    /// Releases the socket. Returns whether the kernel has released it too; otherwise the kernel does so later.
    pub fn end(&mut self) -> bool {
        self.ring.as_mut().is_none_or(|ring| ring.end())
    }
}
