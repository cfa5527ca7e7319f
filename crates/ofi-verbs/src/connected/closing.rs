//! Closing a connected endpoint's connection: waits for injected messages, and ends all other requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::Errno;
use ofi_core::slots::SlotId;
use ofi_core::sys::is_readable;
use ofi_core::transport::{Fault, Upcalls};

use super::{Connected, Link, PEER, link};
use crate::adapter::RECEIVE;
use crate::completions::Look;
use crate::rc::msg::Pair;
use crate::rc::{Status, WorkCompletion};
use crate::{Verbs, settings};

/// Time limit for the device to report the unexecuted requests of a queue pair in error.
const SETTLED: Duration = Duration::from_millis(100);
/// Interval between polls while this end waits for the device.
const PAUSE: Duration = Duration::from_micros(50);

impl Connected {
    /// See [`ofi_core::transport::TransportEndpoint::part`].
    pub fn part<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.await_injected(|this| this.take_all(host) > 0);
        self.lose(host);
    }

    /// Waits until each injected message has arrived or failed. `take` processes completions, and returns whether there
    /// were any.
    fn await_injected(&mut self, mut take: impl FnMut(&mut Self) -> bool) {
        let mut end = Instant::now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        while let Some(pair) = self.link.open()
            && self.requests.owes()
            && !self.broken
            && Instant::now() < end
            && self.requests.ask(pair)
        {
            end = self.patience(end);
            if !take(self) {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// The deadline of a closing end, `end` at the latest. A peer that has disconnected receives nothing more, and its
    /// acknowledgements arrive soon.
    fn patience(&mut self, end: Instant) -> Instant {
        self.take_end();
        if self.going.is_some() { end.min(Instant::now() + link::UNSEEN) } else { end }
    }

    /// Processes events of an established connection until its end. Other events, such as a bond's change of address,
    /// are ignored: the peer still receives.
    fn take_end(&mut self) {
        let Link::Open(id) = &self.link else { return };
        while self.going.is_none() && is_readable(self.channel.fd()) {
            let is_over = match Arc::clone(&self.channel).next() {
                Ok(Some(event)) => event.id == id.number() && event.kind.is_end(),
                Ok(None) => return,
                Err(error) => {
                    tracing::error!(target: "ofi::verbs::ep_ctrl", %error, "the device is lost");
                    true
                }
            };
            self.going = is_over.then(|| self.channel.now());
        }
    }

    /// Makes the device report the quiet requests that a queue pair in error did not execute. The other quiet requests
    /// have succeeded.
    pub(super) fn settle<H: Upcalls<Verbs>>(&mut self, host: &mut H, pair: &dyn Pair) {
        if self.is_deaf {
            return;
        }
        let end = Instant::now() + SETTLED;
        while self.requests.has_quiet() && Instant::now() < end && self.requests.ask(pair) {
            if self.take_all(host) == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Drops a message that arrived after the application closed the endpoint. Its receive may serve another endpoint.
    fn unread(&self, entry: &WorkCompletion) {
        if let Some(shared) = self.shared.as_ref().filter(|_| entry.id & RECEIVE != 0) {
            shared.put_back(SlotId::from_wire(entry.id & !RECEIVE)); // logs a receive that is lost
        }
    }

    /// Ends the requests of a destroyed queue pair, as if the device had flushed them.
    pub(super) fn flush<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        let fault = Fault { errno: self.end(), number: Status::FLUSHED.raw() as i32 };
        for id in self.claimed.ids(|_| true) {
            if let Some(claimed) = self.claimed.remove(id) {
                host.receive_failed(claimed.into, fault);
            }
        }
        for op in self.requests.clear() {
            host.finish_failed(PEER, op, fault);
        }
        self.ready.clear();
        self.broken = false;
        if self.going.take().is_some() {
            self.waiter.wake_after(None);
        }
    }

    /// The error of operations that end with the connection.
    pub(super) fn end(&self) -> Errno {
        self.gone.unwrap_or(Errno::ECANCELED)
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.await_injected(|this| {
            match this.next(Look::Now) {
                Some(entry) if entry.id & RECEIVE == 0 => {
                    let id = SlotId::from_wire(entry.id);
                    while this.requests.end_before(id).is_some() {}
                    this.requests.remove(id);
                    this.broken |= entry.status != Status::SUCCESS;
                }
                Some(entry) => this.unread(&entry),
                None => return false,
            }
            true
        });
        if let Link::Open(id) = &self.link {
            let _ = id.disconnect();
        }
        while self.shared.is_some()
            && let Some(entry) = self.next(Look::Now)
        {
            self.unread(&entry);
        }
    }
}
