//! A peer that was given up, and whose address the application has inserted again.
//!
//! Both ends have forgotten what was under way, or one has and the other still waits, and messages are in flight. So
//! two endpoints of this library agree to begin anew, with message ids from 0: one sends RESTART with the next round,
//! and the other ends its operations, waits until its device has none of its packets, and answers. Until then the
//! first one sends nothing else, and drops everything. If both begin, the higher round counts; if the rounds are
//! equal, both requests count as one. Packets of before that the device reports as failed are not sent again.
//!
//! Peers of C libfabric forget a peer whose address is removed, and need no agreement.

use ofi_api::Errno;
use ofi_core::transport::{PeerId, Upcalls};

use super::repeats::Awaited;
use super::{PacketStream, Peer};
use crate::Efa;
use crate::common::{Common, Entry};
use crate::moving::{End, Transfer};
use crate::ranges::Ranges;
use crate::window::Window;
use crate::wire::Header;

impl Peer {
    /// Whether the peer was given up, and its address was inserted since.
    pub(super) fn may_revive<H: Upcalls<Efa>>(&self, host: &H, peer: PeerId) -> bool {
        let now = host.insertion(peer);
        self.dead.is_some_and(|errno| errno != Errno::ENODEV)
            && !self.is_replaced
            // Older endpoints of this library cannot begin anew.
            && (self.knows_repeats() || self.is_own() != Some(true))
            && now.is_some()
            && now != self.dead_since
    }

    /// Ends the state of having been given up.
    pub(super) fn revive(&mut self, common: &mut Common, peer: PeerId) {
        (self.dead, self.ending, self.dismissals) = (None, None, 0);
        if self.knows_repeats() {
            return self.begin_anew(common, peer);
        }
        common.adapter.retire_all(peer);
        self.greeted = false;
        if self.is_own().is_none() {
            self.ask_first(common, peer);
        }
    }

    /// Asks the peer to begin anew.
    pub(super) fn begin_anew(&mut self, common: &mut Common, peer: PeerId) {
        self.round = self.round.wrapping_add(1);
        common.adapter.retire_all(peer);
        self.greeted = false; // the peer has forgotten this end
        let word = Header::of_restart(common.adapter.address.connid, self.round, false);
        self.restarts_after_drain = true;
        self.send_first(common, peer, word.bytes(), Awaited::Restart);
    }

    /// Forgets what the peer has sent while it was unknown whether it begins anew. `false`: the device still writes
    /// some of it to memory.
    pub(super) fn forget_arrivals<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
    ) -> bool {
        (self.window, self.accesses) = (Window::default(), Ranges::default());
        (self.paused, self.pausing) = (0, 0);
        self.late.clear();
        self.doubtful.clear();
        self.streams.retain(|stream| !matches!(stream, PacketStream::Answer { .. }));
        let is_payload =
            |transfer: &Transfer| transfer.peer == peer && matches!(transfer.end, End::Payload(_));
        for id in common.transfers.ids(is_payload) {
            self.stop_transfer(common, host, id);
        }
        // What could not be read was requested as a message.
        self.nacked.clear();
        for entry in common.ids.take(|entry| entry.peer() == peer && !matches!(entry, Entry::Op(..))) {
            if let Entry::Incoming(incoming) = entry
                && let Some(into) = incoming.receive()
            {
                host.received(into, Err(Errno::ECONNRESET));
            }
        }
        common.transfers.ids(is_payload).is_empty()
    }

    /// Whether packets of the peer are dropped, because they may be from before it begins anew.
    pub fn is_restarting(&self) -> bool {
        self.awaited() == Awaited::Restart
    }

    /// Handles the peer's request to begin anew, or its answer.
    pub fn take_restart(&mut self, common: &mut Common, peer: PeerId, round: u32, answer: bool) {
        let newer = round.wrapping_sub(self.round);
        let is_same = newer == 0;
        if answer || newer >= 1 << 31 {
            match answer && is_same && self.is_restarting() {
                true => self.has_begun_anew(common, peer),
                false => common.counts.stale += 1,
            }
            return;
        }
        if self.is_restarting() {
            // Neither end has anything of before.
            self.round = round;
            return self.answer_restart(common, peer);
        }
        if is_same && (self.dead.is_some() || self.ending.is_some()) {
            // This end has given the peer up since its answer, so a next round is due. If it is about to, the peer asks
            // again.
            if self.dead.is_some() && !self.is_replaced {
                (self.dead, self.ending, self.dismissals) = (None, None, 0);
                self.begin_anew(common, peer);
            }
            return;
        }
        if is_same {
            // Its packet was repeated, and so is the answer.
            let word = Header::of_restart(common.adapter.address.connid, round, true);
            return self.packet(common, peer, &word, 0, crate::adapter::Mark::Nothing, |_| {});
        }
        self.reborn = Some(round);
        match self.dead {
            Some(_) => self.be_reborn(common, peer),
            None => {
                self.ending.get_or_insert(Errno::ECONNRESET);
                common.hold(&mut self.is_dirty, peer);
            }
        }
    }

    /// Begins anew as the peer has asked, after everything of before has ended.
    pub(super) fn be_reborn(&mut self, common: &mut Common, peer: PeerId) {
        let Some(round) = self.reborn.take() else { return };
        (self.dead, self.ending, self.dismissals, self.round) = (None, None, 0, round);
        self.restarts_after_drain = true;
        common.adapter.retire_all(peer);
        self.greeted = false;
        self.answer_restart(common, peer);
    }

    fn answer_restart(&mut self, common: &mut Common, peer: PeerId) {
        // Later packets wait until the answer has arrived, because they could overtake it.
        let word = Header::of_restart(common.adapter.address.connid, self.round, true);
        self.send_first(common, peer, word.bytes(), Awaited::Nothing);
    }

    fn has_begun_anew(&mut self, common: &mut Common, peer: PeerId) {
        self.end_repeats(common);
        common.hold(&mut self.is_dirty, peer);
    }
}
