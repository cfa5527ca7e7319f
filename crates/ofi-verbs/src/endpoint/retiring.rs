//! Closing idle connections, so that an endpoint serves more peers than its device holds queue pairs.
//!
//! An end with more connections than `FI_VERBS_MAX_CONNECTIONS` asks the peer of the least recently used one to close
//! it, and from then on posts only answers on it. A peer that has nothing in flight and waits for nothing agrees, and
//! also stops posting. Any other peer declines, and both ends continue. If both ends ask at the same time, they have
//! agreed. A connection is ordered, so an end that has received the peer's agreement has received all earlier records.
//! An end disconnects when its own last record has arrived; by then the other end has both records too. Operations
//! posted meanwhile wait for the next connection, which is established when there is something to send.
//!
//! Both ends drop the state of the connection: credits and the device's keys start over. A request to hold payloads
//! (`KEEP`) is sent again.

use std::time::{Duration, Instant};

use ofi_api::Errno;
use ofi_core::transport::record::{Broken, Fields, Words};
use ofi_core::transport::{PeerId, Upcalls};

use super::VerbsEndpoint;
use crate::Verbs;
use crate::peer::{Common, Link, Peer, Retiring};
use crate::probe;
use crate::wire::kind;

/// How long a device may take to return the receive of a message in flight when its queue pair is disconnected.
const RETURN_LIMIT: Duration = Duration::from_millis(100);
/// After so many times in a row without the report, the device is taken to have none.
const MAX_UNRETURNED: u32 = 3;

const ASK: u64 = 0;
const AGREE: u64 = 1;
const DECLINE: u64 = 2;

impl Peer {
    /// Whether no work of this end needs the connection.
    fn is_idle(&self, turn: u64) -> bool {
        let nothing_here = self.outstanding == 0 && self.kept.is_empty() && self.transfers.is_empty();
        let nothing_there = self.stalled.is_empty() && self.write.is_none() && !self.is_wanted(turn);
        self.is_open() && self.mirror.is_none() && !self.waits() && nothing_here && nothing_there
    }

    /// Whether this end may ask the peer now.
    fn may_retire(&self, turn: u64, now: Instant) -> bool {
        self.is_idle(turn) && self.declined.is_none_or(|until| until <= now)
    }

    /// Processes the peer's record about closing the connection.
    pub fn take_retire(&mut self, common: &mut Common, peer: PeerId, body: &[u8]) -> Result<(), Broken> {
        match (Words(body).word()?, self.retiring) {
            (ASK, Some(Retiring::Asked)) | (AGREE, Some(Retiring::Asked)) => {
                self.retiring = Some(Retiring::Agreed);
            }
            (ASK, None) => {
                if !self.is_idle(common.turn) || !self.post_last(common, peer, AGREE, Retiring::Agreed) {
                    let mut fields = Fields::new();
                    fields.word(DECLINE);
                    self.record(common, peer, (kind::RETIRE, 0), fields.bytes(), 0, None, |_| {});
                }
            }
            (DECLINE, Some(Retiring::Asked)) => {
                self.retiring = None;
                self.declined = Some(common.adapter.queues.now() + probe::interval());
            }
            _ => return Err(Broken),
        }
        common.hold(&mut self.is_dirty, peer);
        Ok(())
    }
}

impl VerbsEndpoint {
    /// Asks surplus peers to close their connections, the least recently used first.
    pub fn retire(&mut self) {
        if self.live.len() <= self.common.adapter.connections {
            return;
        }
        let now = self.common.adapter.queues.now();
        let retiring = self.live.iter().filter(|&&peer| self.peers[peer as usize].retiring.is_some()).count();
        let excess = self.live.len().saturating_sub(self.common.adapter.connections + retiring);
        let mut idle: Vec<PeerId> = self.live.clone();
        idle.retain(|&peer| self.peers[peer as usize].may_retire(self.common.turn, now));
        idle.sort_unstable_by_key(|&peer| self.peers[peer as usize].last_use);
        for peer in idle.into_iter().take(excess) {
            self.peers[peer as usize].post_last(&mut self.common, peer, ASK, Retiring::Asked);
        }
    }

    /// Called while a collective waits for a note of this peer. Only a connection shows whether the peer is gone, so a
    /// closed idle one is established again. A peer that was never connected may not have started yet.
    pub fn await_note(&mut self, peer: PeerId) {
        let state = &mut self.peers[peer as usize];
        state.wanted = self.common.turn;
        if matches!(state.link, Link::Closed) && state.ending.is_none() && state.attempt.is_some() {
            self.connect(peer);
        }
    }

    /// Whether [`VerbsEndpoint::retire`] would ask a peer.
    pub fn may_retire(&self) -> bool {
        let of = |&peer: &PeerId| &self.peers[peer as usize];
        let going = |state: &&Peer| state.retiring.is_some() || matches!(state.link, Link::Closed);
        self.live.len() > self.common.adapter.connections
            && self.live.len() - self.live.iter().map(of).filter(going).count()
                > self.common.adapter.connections
            && {
                let now = self.common.adapter.queues.now();
                self.live.iter().map(of).any(|state| state.may_retire(self.common.turn, now))
            }
    }

    /// Closes a peer's idle connection.
    pub fn close_idle<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) {
        self.hang_up(host, peer);
        let state = &mut self.peers[peer as usize];
        state.close_idle(&mut self.common, peer);
        if state.wants_connection() {
            self.connect(peer);
        }
    }

    /// Ends a peer's connection, and processes the records that arrived over it.
    pub fn hang_up<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) {
        self.stop(peer);
        self.take_rest(host);
        self.unlink(peer);
    }

    /// Ends a peer's connection and everything that is in flight on it: see
    /// [`ofi_core::transport::TransportEndpoint::sever`].
    pub fn sever<H: Upcalls<Verbs>>(&mut self, host: &mut H, peer: PeerId) {
        self.hang_up(host, peer);
        let state = &mut self.peers[peer as usize];
        state.refused = None; // accesses that the peer's device has refused end too, instead of going to their owner
        state.lose(&mut self.common, host, peer, Errno::ECONNABORTED);
    }

    /// Stops arrivals over a peer's connection, and drains its completions: some devices discard them with the queue
    /// pair, which would lose the receives.
    pub fn stop(&mut self, peer: PeerId) {
        let state = &self.peers[peer as usize];
        for id in state.link.id().into_iter().chain(state.mirror.as_deref()) {
            let _ = id.disconnect();
        }
        let is_established = matches!(state.link, Link::Open(_) | Link::Accepting(..));
        let link = state.link.id().filter(|_| is_established);
        let pairs = link.into_iter().chain(state.mirror.as_deref()).filter_map(|id| id.qp());
        // One that is no longer in the table was stopped before, and is not followed.
        let pairs: Vec<u32> = pairs.map(|(qp, _)| qp).filter(|qp| self.qps.contains_key(qp)).collect();
        if !pairs.is_empty() {
            self.await_receives(&pairs);
        }
        while self.refill() > 0 {}
    }

    /// Waits until these disconnected queue pairs have returned the receives that they took from the shared queue: a
    /// device may return one late, that of a message in flight, and not at all once the queue pair is destroyed.
    fn await_receives(&mut self, pairs: &[u32]) {
        let end = self.common.adapter.queues.now() + RETURN_LIMIT;
        loop {
            self.take_device_events();
            if pairs.iter().all(|&qp| self.common.adapter.watch.has_drained(qp)) {
                self.unreturned = 0;
                return;
            }
            // A device that does not report this is not waited for again and again.
            if self.common.gone.is_some() || self.unreturned >= MAX_UNRETURNED {
                return;
            }
            if self.common.adapter.queues.now() >= end {
                self.unreturned += 1;
                tracing::debug!(
                    target: "ofi::verbs::ep_ctrl", ?pairs,
                    "the device has not reported that disconnected queue pairs have returned their receives"
                );
                return;
            }
            if self.refill() == 0 {
                std::thread::yield_now();
            }
        }
    }
}
