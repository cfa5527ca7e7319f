//! The state of one peer of an endpoint: its operations in flight. `ofi-rdm` has the state of the protocol.

pub mod ahead;
pub mod asked;
pub mod common;
pub mod pull;
pub mod sessionless;

use std::collections::VecDeque;

use ofi_api::Errno;
use ofi_core::log::Told;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::transport::record::Fields;
use ofi_core::transport::served::{ReadInParts, WriteInParts};
use ofi_core::transport::{PeerId, Upcalls};
use ofi_rdm::{Lost, Sender};
use rustc_hash::FxHashMap;

use self::asked::PendingPulls;
use self::common::Common;
use self::pull::Pull;
use crate::Udp;
use crate::answer::{Answers, BufPool};
use crate::command::kind;

/// The mark of messages that were reported as sent before they arrived.
pub const DETACHED: u64 = u64::MAX;

/// Operations that take more than one command. Most peers never have any, so this is allocated on first use.
#[derive(Default)]
pub struct Long {
    /// Requested payloads that are not complete.
    pub asked: PendingPulls,
    /// Payloads that are being pulled, by their receives.
    pub pulls: FxHashMap<u64, Pull>,
    /// The peer's reads in progress. Its later commands wait.
    pub reads: VecDeque<ReadInParts>,
    /// Unacknowledged answers to these reads.
    pub answers: Answers,
    /// The peer's long write in progress.
    pub write: Option<Box<WriteInParts>>,
    /// The peer's message whose payload arrives ahead of a request.
    pub ahead: Option<ahead::Ahead>,
    /// Short messages that were reported as sent and wait for the peer's request.
    pub kept: Slots<Box<[u8]>>,
}

/// The error of operations whose session has ended.
pub fn errno_of(reason: Lost) -> Errno {
    match reason {
        Lost::Silent => Errno::ETIMEDOUT,
        Lost::Refused => Errno::ECONNREFUSED,
        Lost::Closed | Lost::Reset => Errno::ECONNRESET,
        Lost::Broken | Lost::Forged => Errno::EIO,
        Lost::Address => Errno::EADDRNOTAVAIL,
        Lost::Version | Lost::Suites => Errno::ENOPROTOOPT,
        Lost::Key => Errno::EKEYREJECTED,
    }
}

/// The state of one peer: the operations in flight in both directions.
#[derive(Default)]
pub struct Peer {
    /// This end's operations in flight.
    pub outstanding: usize,
    /// Messages that were reported as sent and have not arrived.
    pub detached: usize,
    /// This end asked the peer to hold its payloads.
    pub peer_keeps: bool,
    /// The peer asked this end to hold its payloads.
    pub keeps: bool,
    /// The peer had a receive when the last announcement arrived: the next lone message is sent ahead of its request.
    pub peer_is_ready: bool,
    /// It is in [`sessionless::SessionlessPeers`].
    pub is_sessionless: bool,
    /// It is in [`Common::serving`].
    pub is_served: bool,
    /// It is in [`Common::keeping`].
    pub in_keeping: bool,
    /// Protocols of messages to the peer that were logged.
    pub told: Told,
    pub long: Option<Box<Long>>,
}

impl Peer {
    /// Resets the state for another peer or session: only its membership in the endpoint's lists stays.
    pub fn renew(&mut self) {
        let Self { is_sessionless, is_served, in_keeping, .. } = *self;
        *self = Self { is_sessionless, is_served, in_keeping, ..Self::default() };
    }

    /// Lists the peer, whose reads and later commands continue when its answers are acknowledged.
    pub fn await_service(&mut self, common: &mut Common, peer: PeerId) {
        if !std::mem::replace(&mut self.is_served, true) {
            common.serving.push(peer);
        }
    }

    /// Whether an answer of the peer is expected.
    pub fn expects(&self) -> bool {
        let comes = |long: &Long| !long.pulls.is_empty() || long.ahead.is_some();
        self.outstanding > 0 || self.long.as_deref().is_some_and(comes)
    }

    /// Operations of more than one command.
    pub fn long(&mut self) -> &mut Long {
        self.long.get_or_insert_default()
    }

    /// Whether no operation is in flight in either direction.
    pub fn is_idle(&self) -> bool {
        let empty = |long: &Long| {
            long.pulls.is_empty()
                && long.reads.is_empty()
                && long.answers.is_empty()
                && long.write.is_none()
                && long.ahead.is_none()
                && long.kept.is_empty()
        };
        self.outstanding == 0 && self.detached == 0 && self.long.as_deref().is_none_or(empty)
    }

    /// Whether reads of the peer are being served.
    pub fn is_read(&self) -> bool {
        self.long.as_ref().is_some_and(|long| !long.reads.is_empty())
    }

    /// Copies the memory that answers to the peer's reads still refer to.
    #[inline]
    pub fn settle_answers(&mut self, spare: &mut BufPool) {
        if let Some(long) = self.long.as_deref_mut() {
            long.answers.settle(spare);
        }
    }

    /// Whether a long write of the peer is being served.
    pub fn is_written(&self) -> bool {
        self.long.as_ref().is_some_and(|long| long.write.is_some())
    }

    /// The kind of the peer's next command, if it must be a part of a payload.
    pub fn next_part(&self) -> Option<u8> {
        let long = self.long.as_deref()?;
        let ahead = long.ahead.as_ref().map(|_| kind::PART_AHEAD);
        long.write.as_ref().map(|_| kind::WRITE_PART).or(ahead)
    }

    /// An operation of this end has begun.
    pub fn begin(&mut self, common: &mut Common, peer: PeerId) {
        if !self.expects() {
            common.changed.push(peer);
        }
        self.outstanding += 1;
    }

    /// An operation of this end has ended.
    pub fn finish<H: Upcalls<Udp>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        id: SlotId,
        result: Result<(), Errno>,
    ) {
        if host.finish(peer, id, result).is_some() {
            self.outstanding = self.outstanding.saturating_sub(1);
            if !self.expects() {
                common.changed.push(peer);
            }
        }
    }

    /// Reports the result of the peer's operation to the peer.
    pub fn done(sender: &mut Sender, flags: u8, op: u64, result: Result<(), Errno>) {
        let errno = result.err().map_or(0, |errno| errno.get() as u64);
        sender.bulk.record(kind::DONE, flags, Fields::new().word(op).word(errno).bytes(), 0, None);
    }

    /// The session is over: clears its state.
    pub fn lose<H: Upcalls<Udp>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId, errno: Errno) {
        if let Some(long) = &mut self.long {
            for id in long.kept.ids(|_| true) {
                common.kept -= long.kept.remove(id).map_or(0, |bytes| bytes.len());
            }
        }
        common.detached -= self.detached;
        self.renew();
        common.changed.push(peer);
        if common.connection.is_none() {
            common.sessionless.add(self, peer);
        }
        host.fail_peer(peer, errno);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of the 1,024 bytes that an idle peer may cost, `ofi-rdm` takes up to 640
    /// (`ofi-testkit/tests/protocol/peers.rs`), and the core's lists and address vector some 240.
    /// `benches/tests/crowd.rs` checks the total.
    #[test]
    fn an_idle_peer_is_small() {
        assert!(size_of::<Peer>() <= 32, "{}", size_of::<Peer>());
    }
}
