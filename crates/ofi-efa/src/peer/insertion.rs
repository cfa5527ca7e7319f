//! Message ids of a peer whose address the application removes and inserts again.

use ofi_core::transport::{PeerId, Upcalls};

use super::{Broken, Peer};
use crate::Efa;
use crate::common::Common;
use crate::wire;

impl Peer {
    /// Whether the application has removed and reinserted the peer's address since the message ids of a direction (0:
    /// to the peer, 1: from it) started. C's endpoints forget a peer with its address, and both sides restart their
    /// ids; endpoints of this library do not.
    fn is_inserted_again<H: Upcalls<Efa>>(&mut self, host: &H, peer: PeerId, direction: usize) -> bool {
        let Some(now) = host.insertion(peer) else { return false };
        self.counted[direction].replace(now).is_some_and(|before| before != now)
    }

    /// The application's address vector contains the peer.
    pub fn named<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &H, peer: PeerId) {
        let is_again = self.is_inserted_again(host, peer, 0);
        if self.may_revive(host, peer) {
            return self.revive(common, peer);
        }
        if !is_again || self.next_msg == 0 {
            return;
        }
        match self.is_own() {
            Some(true) => {}
            Some(false) => self.count_anew(common, peer),
            // C's endpoints have forgotten this one, and send their handshake again at the next packet.
            None => {
                self.is_unsure = true;
                self.ask_again(common, peer);
            }
        }
    }

    /// Decides whether message ids restart. Called when the peer's handshake has arrived.
    pub fn resolve(&mut self, common: &mut Common, peer: PeerId) {
        if std::mem::take(&mut self.is_unsure) && self.is_own() == Some(false) {
            self.count_anew(common, peer);
        }
    }

    fn count_anew(&mut self, common: &mut Common, peer: PeerId) {
        (self.next_msg, self.greeted) = (0, false);
        // What was lost of the old count must not be skipped in the new one.
        common.adapter.retire(peer, |bytes| is_notice(bytes) || is_whole(bytes));
        for mut packet in std::mem::take(&mut self.again) {
            // SAFETY: the slot has the packet, which nothing writes to.
            let bytes = unsafe { &*common.adapter.content(&packet) };
            if is_notice(bytes) {
                common.adapter.give_slot(packet.slot);
                continue;
            }
            packet.is_former |= is_whole(bytes);
            self.again.push_back(packet);
        }
        self.queue.retain(|frame| !is_notice(&frame.bytes));
        self.waiting = self.queue.iter().map(|frame| frame.bytes.len()).sum();
        self.drop_failed(common, peer, is_notice);
    }

    /// Checks the id of a packet from the peer before the packet is processed, and restarts the ids if the peer has.
    /// C's endpoints restart them after a reinsertion, those of this library do not. `true`: the packet is deferred,
    /// because the peer's library is unknown and the id may belong to the old or the new count.
    pub fn defers<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &H,
        peer: PeerId,
        packet: &wire::Packet<'_>,
        bytes: &[u8],
    ) -> Result<bool, Broken> {
        let Some(msg_id) = packet.msg_id() else { return Ok(false) };
        // The address vector is looked up only when it may have changed.
        let insertions = host.insertions();
        if std::mem::replace(&mut self.looked, insertions) != insertions {
            self.may_restart |= self.is_inserted_again(host, peer, 1);
        }
        // A message may be given up after its turn. Only peers of this library send one again.
        let is_reused = !self.window.admits(msg_id) && !matches!(packet, wire::Packet::Control(_));
        if is_reused && self.counted[1].is_some() && host.insertion(peer).is_none() {
            // The peer has reinserted this end, which so far has only removed the peer.
            (self.counted[1], self.may_restart) = (None, true);
        }
        if !self.may_restart {
            return Ok(false);
        }
        match self.is_own() {
            Some(true) => self.may_restart = false,
            None if !self.window.is_new() => {
                if !self.window.has_room(bytes.len()) {
                    return Err(Broken);
                }
                if !self.window.has_deferred() {
                    self.ask_again(common, peer);
                }
                self.window.defer(bytes.into());
                return Ok(true);
            }
            _ => {
                self.may_restart = false;
                common.counts.stale += self.window.restart() as u64;
                self.greeted = false;
                self.greet(common, peer);
            }
        }
        Ok(false)
    }

    /// Removes and returns the deferred packets, once they need not wait any more.
    pub fn take_deferred(&mut self) -> Vec<Box<[u8]>> {
        if self.may_restart && self.features.is_none() { Vec::new() } else { self.window.take_deferred() }
    }
}

/// Whether a packet is a notice that skips a message id.
fn is_notice(bytes: &[u8]) -> bool {
    use wire::{Abandoned, Control, Packet};
    match wire::parse(bytes) {
        Ok((_, Packet::Control(Control::PeerError { what, .. }))) => !matches!(what, Abandoned::Operation(_)),
        _ => false,
    }
}

/// Whether a packet is a whole operation that has a message id.
fn is_whole(bytes: &[u8]) -> bool {
    use wire::{Form, Message, Packet};
    matches!(
        wire::parse(bytes),
        Ok((_, Packet::Message(Message { form: Form::Eager { .. }, .. }) | Packet::Atomic(_)))
    )
}
