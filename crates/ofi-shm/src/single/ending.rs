//! Revokes a peer's access when an operation ends, and waits until the peer no longer writes (S1).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ofi_core::transport::Upcalls;
use ofi_ring::{access_token, crash_point};

use crate::layout::pair;
use crate::peer::Peer;
use crate::peer::link::Link;
use crate::token::Sink;
use crate::{Shm, cma, sys};

/// The maximum time that the end of a receive waits for a sender that writes into it: for a chunk, or while the
/// sender's process is descheduled in the middle of one.
const WRITER_TIMEOUT: Duration = Duration::from_secs(5);

/// As [`WRITER_TIMEOUT`], after a peer of this process has exceeded it.
const REDUCED_WRITER_TIMEOUT: Duration = Duration::from_secs(1);

/// A peer has claimed to write for longer than [`WRITER_TIMEOUT`]. Such waits block the endpoint, so a lying peer could
/// delay all other peers. From then on this process opens no memory to writers, and receivers copy without their help.
static OVERRUN: AtomicBool = AtomicBool::new(false);

/// Whether peers may write here.
pub(super) fn trusts_writers() -> bool {
    !OVERRUN.load(Ordering::Relaxed)
}

/// The time until which closing waits; see [`WRITER_TIMEOUT`].
pub fn deadline() -> Instant {
    Instant::now() + if trusts_writers() { WRITER_TIMEOUT } else { REDUCED_WRITER_TIMEOUT }
}

impl Peer {
    /// Revokes the peer's write access and waits until it does not write (S1), at the latest until `deadline`.
    pub fn withdraw(&mut self, deadline: Instant) {
        let (Some(Link { own, up: Some(up), .. }), Some(single)) = (&self.link, &self.single) else { return };
        access_token::clear(own.word64(pair::TARGET));
        access_token::settle();
        crash_point!("close.withdraw");
        if single.tickets == 0 {
            return;
        }
        let writing: &AtomicU64 = cma::word(&up.parts.pair, pair::WRITING);
        let mut looks = 0u32;
        while access_token::is_writing(writing, single.tickets) {
            if sys::has_ended(up.parts.process.pid) {
                return;
            }
            if Instant::now() >= deadline {
                OVERRUN.store(true, Ordering::Relaxed);
                tracing::error!(
                    target: "ofi::shm::ep_data",
                    peer = self.peer,
                    "a peer has not stopped writing into a receive: that memory may still change"
                );
                return;
            }
            looks += 1;
            if looks > 64 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

    /// Revokes the peer's read and write access to this end's memory.
    pub fn close_copies(&mut self, deadline: Instant) {
        if self.single.is_some()
            && let Some(Link { own, .. }) = &self.link
        {
            (0..pair::LENT_SLOTS).for_each(|slot| access_token::clear(own.word64(pair::LENT + 8 * slot)));
            access_token::settle();
        }
        self.withdraw(deadline);
    }

    /// Called when receives and reads may have ended without this peer; see
    /// [`ofi_core::transport::TransportEndpoint::settle_receives`].
    pub fn settle_receives<H: Upcalls<Shm>>(&mut self, host: &mut H) {
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
