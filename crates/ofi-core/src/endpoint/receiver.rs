//! Handles a message that has arrived for one of an endpoint's receive contexts. Most endpoints have one.

use ofi_api::Errno;

use super::peers::Peers;
use super::queue::{Arrival, Filling, Incoming};
use super::receive::{self, RxSide};
use super::staging::CompletionStaging;
use crate::copy;
use crate::hmem::Staged;
use crate::transport::{Arrived, Delivery, Fault, Transport};

/// Copies what has arrived to the memory of a receive, if any of it is a device's.
#[cold]
fn unstage(mut staged: Staged, placed: usize) -> Result<(), Fault> {
    // SAFETY: the memory was lent for writing until the completion is read, which is created next; the transport has
    // ended the receive, so it does not use the buffer.
    unsafe { staged.empty(placed) }.map_err(|error| {
        tracing::warn!(target: "ofi::core::hmem", %error, "a message does not reach memory of a device");
        Fault { errno: Errno::EIO, number: Errno::EIO.get() }
    })
}

/// A receive context, and the parts of its endpoint that it needs.
pub struct Receiver<'a, T: Transport> {
    pub rx: &'a mut RxSide<T>,
    pub staging: &'a mut CompletionStaging,
    pub peers: &'a mut Peers,
    /// See [`Filling::at`].
    pub at: u16,
}

impl<T: Transport> Receiver<'_, T> {
    /// Finds the receive of a message, or keeps the message.
    ///
    /// # Safety
    /// An [`Incoming::Body`] may be read for `arrived.len` bytes during the call.
    pub unsafe fn arrive(&mut self, arrived: &Arrived, incoming: Incoming<T>) -> Arrival<T> {
        let ways = (self.staging.has_room(), !self.rx.lossy);
        let mut arrival = match &mut self.rx.shared {
            None => {
                let envelope = receive::envelope(arrived);
                // SAFETY: the caller's promise.
                unsafe { self.rx.queue.arrive(&envelope, arrived, 0, ways, incoming) }
            }
            // SAFETY: the caller's promise.
            Some(part) => unsafe { part.arrive(self.peers, arrived, ways, incoming) },
        };
        let counts = &mut self.rx.counts;
        match &mut arrival {
            Arrival::Receive(filling, _) => {
                filling.at = self.at;
                if self.rx.shared.is_some() {
                    filling.signal = self.rx.reports_shared(filling.signal);
                }
            }
            Arrival::Kept { over } => {
                counts.unexpected += 1;
                counts.over_budget += u64::from(*over);
            }
            Arrival::Refused(_) => counts.stopped += 1,
        }
        arrival
    }

    /// See [`crate::transport::Upcalls::deliver`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn deliver(&mut self, arrived: &Arrived, body: *const u8) -> Delivery {
        // SAFETY: the caller's promise.
        match unsafe { self.arrive(arrived, Incoming::Body(body)) } {
            Arrival::Receive(filling, _) => {
                // SAFETY: the pieces were lent for writing until their completion is read, which is created below;
                // `body` is readable by the caller's promise.
                unsafe { copy::scatter(body, filling.placed(), filling.buffer.pieces(), 0) };
                self.complete(filling);
                Delivery::Taken
            }
            Arrival::Kept { .. } => Delivery::Kept,
            Arrival::Refused(_) if self.rx.lossy => {
                self.rx.counts.dropped += 1;
                Delivery::Taken
            }
            Arrival::Refused(_) => Delivery::Stopped,
        }
    }

    /// Reports a receive that failed before anything was placed.
    #[cold]
    pub fn fail(&mut self, filling: &Filling, fault: Fault) {
        self.rx.fail(self.staging, self.peers, filling, fault, 0);
    }

    /// Reports a filled receive.
    pub fn complete(&mut self, mut filling: Filling) {
        if let Some(staged) = filling.staged.take()
            && let Err(fault) = unstage(*staged, filling.placed())
        {
            return self.fail(&filling, fault);
        }
        self.rx.complete(self.staging, self.peers, &filling);
    }
}
