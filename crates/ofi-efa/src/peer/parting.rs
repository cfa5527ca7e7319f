//! The end of a peer: this end closes, or the peer is given up.

use ofi_api::Errno;
use ofi_core::transport::{PeerId, Upcalls};

use super::{DISMISSALS, Peer, REST, greeting, put};
use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::{Common, Entry};
use crate::srd::Status;
use crate::wire::{self, Header};

impl Peer {
    /// Called after an operation was posted. If the peer is already lost, the next poll ends the operation.
    pub fn posted(&mut self, common: &mut Common, peer: PeerId) {
        if self.dead.is_some() {
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Sends a peer of this library the notice that this end closes, after everything else has arrived.
    pub fn part(&mut self, common: &mut Common, peer: PeerId) {
        if self.is_own() == Some(true) && self.dead.is_none() && self.ending.is_none() {
            let bye = Header::of_bye(common.adapter.address.connid);
            self.packet(common, peer, &bye, 0, Mark::Nothing, |_| {});
        }
    }

    /// Notifies a peer that was given up, if its packet shows that it does not know.
    pub fn dismiss(&mut self, common: &mut Common, peer: PeerId, packet: &wire::Packet<'_>) {
        match packet {
            wire::Packet::Bye => return,
            wire::Packet::Handshake(shake) => _ = self.learn(common, peer, shake),
            _ => {}
        }
        if self.dead.is_none() {
            return;
        }
        match self.is_own() {
            Some(true) => {
                self.dismissals = DISMISSALS;
                self.say_bye(common, peer);
            }
            None if !self.greeted => self.introduce(common, peer),
            _ => {}
        }
    }

    /// Notifies a peer that it was given up, once earlier packets have completed.
    pub(super) fn say_bye(&mut self, common: &mut Common, peer: PeerId) {
        if self.dismissals > 0 && self.inflight == 0 {
            self.dismissals -= 1;
            let bye = Header::of_bye(common.adapter.address.connid);
            self.last_word(common, peer, &bye);
        }
    }

    /// Sends the handshake to a peer that was given up before its own handshake arrived. The answer shows whether the
    /// peer understands the notice.
    fn introduce(&mut self, common: &mut Common, peer: PeerId) {
        let greeting = greeting(common);
        self.greeted = self.last_word(common, peer, &greeting);
    }

    /// Posts a packet ahead of the queue, if a slot is free. Its completion has no effect. Returns whether it was
    /// posted.
    fn last_word(&mut self, common: &mut Common, peer: PeerId, header: &Header) -> bool {
        let Some(slot) = common.adapter.take_slot(0) else { return false };
        put(common.adapter.outgoing(slot), header.bytes());
        self.post(common, Packet::new(peer, slot, header.bytes().len(), Mark::Nothing));
        true
    }

    /// Handles the completion of a packet while the endpoint closes.
    pub fn sent_last(&mut self, common: &mut Common, packet: Packet, status: Status) {
        self.inflight = self.inflight.saturating_sub(1);
        if status == Status::NotReady {
            self.again.push_back(packet);
            self.rest = Some(common.adapter.now() + REST.0);
            return;
        }
        if status != Status::Done && packet.is_former {
            common.adapter.give_slot(packet.slot);
            return self.forget(packet.mark);
        }
        if status != Status::Done && self.may_repeat(common, &packet) {
            return self.keep(common, packet, status);
        }
        common.adapter.give_slot(packet.slot);
        let mark = match packet.mark {
            Mark::Repeat(number) => self.has_arrived(common, packet.peer, number),
            mark => mark,
        };
        self.forget(mark);
        if status != Status::Done {
            self.ending.get_or_insert(Errno::ECONNRESET);
        }
    }

    /// Clears the state of a lost peer.
    pub fn lose<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId, errno: Errno) {
        let inflight = self.inflight;
        common.adapter.retire_all(peer);
        let old = std::mem::replace(self, Self::new(self.address, self.to.handle));
        (self.dead, self.features, self.greeted) = (Some(errno), old.features, old.greeted);
        (self.native, self.bare) = (old.native, old.bare);
        (self.repeated, self.round, self.reborn) = (old.repeated, old.round, old.reborn);
        // Its address may have been inserted again since it was lost.
        self.dead_since = if old.dead.is_some() { old.dead_since } else { host.insertion(peer) };
        self.is_replaced = old.is_replaced;
        self.dismissals = old.dismissals;
        // Their slots return with their completions.
        (self.inflight, self.is_dirty, self.is_stalled) = (inflight, old.is_dirty, old.is_stalled);
        self.is_resting = old.is_resting;
        self.met = old.met;
        for packet in old.again {
            common.adapter.give_slot(packet.slot);
        }
        for entry in common.ids.take(|entry| entry.peer() == peer) {
            if let Entry::Incoming(incoming) = entry
                && let Some(into) = incoming.receive()
            {
                host.received(into, Err(errno));
            }
        }
        host.fail_peer(peer, errno);
        if self.reborn.is_some() {
            return self.be_reborn(common, peer);
        }
        if old.dead.is_none() && old.greeted && self.features.is_none() {
            self.introduce(common, peer);
        }
    }
}
