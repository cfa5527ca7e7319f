//! What is taken away when an operation ends, and the wait until nobody writes there (S1).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ofi_core::transport::Host;
use ofi_ring::{crash_point, ticket};

use crate::lane::Lane;
use crate::lane::link::Link;
use crate::layout::pair;
use crate::token::Sink;
use crate::{Shm, cma, sys};

/// How long ending a receive waits for a sender that writes into it: a chunk, or as long as the sender's process is
/// kept from running in the middle of one.
const BOUND: Duration = Duration::from_secs(5);

/// As [`BOUND`], once a peer of this process has overrun that.
const LESS: Duration = Duration::from_secs(1);

/// A peer has said for as long as [`BOUND`] that it writes. Waits hold the endpoint up, and a peer that lies could make
/// every other of its peers wait: so nothing is opened to writers in this process any more, and receivers copy alone.
static OVERRUN: AtomicBool = AtomicBool::new(false);

/// Whether peers may be let write here.
pub(super) fn trusts_writers() -> bool {
    !OVERRUN.load(Ordering::Relaxed)
}

/// How long closing waits; see [`BOUND`].
pub fn deadline() -> Instant {
    Instant::now() + if trusts_writers() { BOUND } else { LESS }
}

impl Lane {
    /// Takes away what the peer may write to, and waits until it does not (S1), at the latest until `deadline`.
    pub fn withdraw(&mut self, deadline: Instant) {
        let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &self.single) else { return };
        ticket::clear(own.word64(pair::TARGET));
        ticket::settle();
        crash_point!("close.withdraw");
        if single.tickets == 0 {
            return;
        }
        let writing: &AtomicU64 = cma::word(&up.parts.pair, pair::WRITING);
        let mut looks = 0u32;
        while ticket::is_writing(writing, single.tickets) {
            if sys::has_ended(up.parts.process.pid) {
                return;
            }
            if Instant::now() >= deadline {
                OVERRUN.store(true, Ordering::Relaxed);
                tracing::error!(
                    target: "ofi::shm::ep_data",
                    peer = self.peer,
                    "a peer that was writing into a receive has not stopped: its memory may still be written"
                );
                return;
            }
            looks += 1;
            if looks > 64 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Takes away what the peer may read of this end's memory, and write to.
    pub fn close_copies(&mut self, deadline: Instant) {
        if self.single.is_some()
            && let Some(Link { own, .. }) = &self.link
        {
            (0..pair::LENT_SLOTS).for_each(|slot| ticket::clear(own.word64(pair::LENT + 8 * slot)));
            ticket::settle();
        }
        self.withdraw(deadline);
    }

    /// Receives and reads may have ended without this lane: see [`ofi_core::transport::Lanes::settle_receives`].
    pub fn settle_receives<H: Host<Shm>>(&mut self, host: &mut H) {
        let sink = self.single.as_ref().and_then(|single| single.inward.as_ref()).map(|inward| inward.sink);
        if sink.is_some_and(|sink| !self.is_wanted(host, sink)) {
            self.withdraw(deadline());
        }
    }

    /// Reads of this end are about to end.
    pub fn settle_reads(&mut self) {
        let inward = self.single.as_ref().and_then(|single| single.inward.as_ref());
        if inward.is_some_and(|inward| matches!(inward.sink, Sink::Read(_))) {
            self.withdraw(deadline());
        }
    }
}
