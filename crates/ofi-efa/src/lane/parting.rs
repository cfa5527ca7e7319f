//! Packets that do not arrive, and the end of operations with a peer: it is silent or gone, or this end closes.
//!
//! The loss of a message in one packet ends that message alone. Any other loss ends all operations with the peer, at
//! both ends: a [`Bye`] tells the peer, and which messages will not arrive. Packets wait for its answer, so that no end
//! takes a later packet for an earlier one. Message ids go on, and later operations are as good as any. C's endpoints
//! know no such notice, but which messages will not arrive.

use ofi_api::Errno;
use ofi_core::transport::{Host, Peer};

use super::{Broken, Lane, MAX_GAPS, REST, put};
use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::{Common, Entry};
use crate::srd::Status;
use crate::wire::{self, Abandoned, Bye, Control, Features, Form, Header, Message, parse};

/// Whether packets to a peer wait for the exchange of notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// They do not.
    No,
    /// This end's answer is due, once the device has no earlier packet any more.
    Answer,
    /// The same for this end's notice.
    Due,
    /// The peer's answer is awaited: before it, the peer may take a later packet for an earlier one.
    Awaits,
    /// Nothing follows: the peer is barred.
    Over,
}

/// The numbers of notices.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rounds {
    /// The number of this end's last notice.
    own: u32,
    /// The number of the peer's last notice.
    peer: u32,
    /// The peer's notice that is to be answered.
    answer: Option<u32>,
    /// The id of the next message when this end last gave up all operations: earlier ones have arrived, or will not.
    voided: u32,
    /// A notice is due once the peer is known to be of this library.
    is_owed: bool,
}

/// What a packet that did not arrive was.
enum Lost {
    /// A notice that operations were given up.
    Bye,
    /// A notice about other losses, or a handshake. It has the same effect if it arrives twice.
    Notice,
    /// A message of one packet.
    Message(u32),
    /// A part of something larger.
    Part,
}

impl Lost {
    fn of(bytes: &[u8]) -> Self {
        match parse(bytes).map(|(_, packet)| packet) {
            Ok(wire::Packet::Bye(_)) => Self::Bye,
            Ok(wire::Packet::Handshake(_) | wire::Packet::Control(Control::PeerError { .. })) => Self::Notice,
            Ok(wire::Packet::Message(Message {
                msg_id,
                form: Form::Eager { .. } | Form::LongRead { .. },
                ..
            })) => Self::Message(msg_id),
            Ok(wire::Packet::Atomic(atomic)) => Self::Message(atomic.msg_id),
            _ => Self::Part,
        }
    }
}

/// The id of a message that a packet is, or begins.
fn message_id(bytes: &[u8]) -> Option<u32> {
    parse(bytes).ok().and_then(|(_, packet)| packet.msg_id())
}

impl Lane {
    /// Sends a peer of this library the notice that this end closes, after everything else has arrived.
    pub fn part(&mut self, common: &mut Common, peer: Peer) {
        if self.is_own() == Some(true) && self.dead.is_none() && self.ending.is_none() {
            let bye = Bye { next: self.next_msg, round: self.rounds.own.wrapping_add(1), answers: false };
            let bye = Header::of_bye(common.adapter.address.connid, bye);
            self.packet(common, peer, &bye, 0, Mark::Nothing, |_| {});
        }
    }

    /// Handles a packet that did not arrive, or whose arrival is unknown.
    #[cold]
    pub(super) fn undelivered<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        packet: Packet,
        status: Status,
    ) {
        let peer = packet.peer;
        common.counts.lost += 1;
        tracing::debug!(target: "ofi::efa::ep_data", ?status, to = ?self.address, "a packet did not arrive");
        // Nobody is there, or this end's queue pair takes nothing any more.
        let is_final = matches!(status, Status::NoDestination | Status::Flushed);
        let lost = match common.direct || packet.bare {
            true => None,
            false => Some(Lost::of(&common.adapter.undelivered(&packet))),
        };
        if matches!(lost, Some(Lost::Bye)) && self.parting == Parting::Awaits {
            if is_final {
                self.parting = self.parted(); // nobody is there who could answer
            }
            if self.outstanding > 0 {
                self.lost(status);
            }
        }
        if matches!(lost, Some(Lost::Bye | Lost::Notice)) && !is_final {
            self.again.push_back(packet);
            return self.rest(common, peer);
        }
        common.adapter.give_slot(packet.slot);
        match lost {
            Some(Lost::Bye) => {}
            None => self.fail_one(common, host, packet, status),
            Some(Lost::Message(id)) if !is_final => {
                self.fail_one(common, host, packet, status);
                self.skip(common, peer, id);
            }
            // This end may say nothing more, but nobody listens.
            Some(Lost::Notice) => self.greeted = false,
            Some(Lost::Message(_) | Lost::Part) => self.lost(status),
        }
    }

    /// Ends the operation of a packet that did not arrive.
    fn fail_one<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, packet: Packet, status: Status) {
        match packet.mark {
            Mark::Op(id) => {
                let errno = self.failure(status);
                self.finish(common, host, packet.peer, id, Err(errno));
            }
            Mark::Detached => self.detached = self.detached.saturating_sub(1),
            Mark::Nothing => {}
        }
    }

    /// Tells the peer that a message will not arrive, so that it does not wait for it before later ones.
    fn skip(&mut self, common: &mut Common, peer: Peer, msg_id: u32) {
        match self.features {
            Some(features) if features.has(Features::PEER_ERROR) => {
                let errno = Errno::ECANCELED.get() as u32;
                let what = Abandoned::Skipped(msg_id);
                self.control(common, peer, Control::PeerError { what, errno });
            }
            None if self.gaps.len() < MAX_GAPS => self.gaps.push(msg_id),
            _ => {}
        }
    }

    /// Says what could not be said before the peer's library was known.
    pub fn tell_gaps(&mut self, common: &mut Common, peer: Peer) {
        let is_owed = std::mem::take(&mut self.rounds.is_owed);
        for id in std::mem::take(&mut self.gaps) {
            self.skip(common, peer, id);
        }
        // The peer will give up later operations too, because it cannot tell them from earlier ones.
        if is_owed && self.is_own() == Some(true) {
            self.ending.get_or_insert(Errno::ECONNRESET);
            common.hold(&mut self.is_dirty, peer);
        }
    }

    /// Handles the device's report that the peer is gone, or lacks a packet without which it cannot go on.
    pub fn lost(&mut self, status: Status) {
        let lost = match status {
            Status::Refused(errno) => errno,
            _ if self.features.is_some() => Errno::ECONNRESET,
            _ => Errno::ECONNREFUSED,
        };
        self.ending.get_or_insert(lost);
    }

    /// Processes the peer's notice that it has given up all operations with this end, or its answer.
    pub fn take_bye<H: Host<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: Peer,
        &Bye { next, round, answers }: &Bye,
    ) -> Result<(), Broken> {
        common.hold(&mut self.is_dirty, peer);
        if answers {
            if self.parting == Parting::Awaits && round == self.rounds.own {
                self.parting = self.parted();
            }
        } else {
            self.rounds.answer = Some(round);
            if round.wrapping_sub(self.rounds.peer).wrapping_sub(1) < 1 << 31 {
                self.rounds.peer = round;
                match self.parting {
                    // Both have given up.
                    Parting::Awaits => self.parting = self.parted(),
                    Parting::Due => self.parting = Parting::Answer,
                    Parting::No | Parting::Answer => _ = self.ending.get_or_insert(Errno::ECONNRESET),
                    Parting::Over => {}
                }
            }
        }
        self.window.void(next).map_err(|_| Broken)?;
        self.advance(common, host, peer)
    }

    /// What follows the exchange of notices.
    fn parted(&self) -> Parting {
        if self.is_barred { Parting::Over } else { Parting::No }
    }

    /// Whether the peer's answer is awaited, and nothing else is under way.
    pub fn awaits_answer(&self) -> bool {
        self.parting == Parting::Awaits && self.inflight == 0 && self.again.is_empty()
    }

    /// Sends the notice again that the peer has not answered.
    pub fn ask_for_answer(&mut self, common: &mut Common, peer: Peer) {
        self.parting = Parting::Due;
        self.say_bye(common, peer);
    }

    /// Sends the notices that are due, once the device has no earlier packet any more.
    pub fn say_bye(&mut self, common: &mut Common, peer: Peer) {
        let waits = matches!(self.parting, Parting::Answer | Parting::Due) && self.inflight > 0;
        let is_due = self.rounds.answer.is_some() || self.parting == Parting::Due;
        if waits || !is_due {
            return;
        }
        let next = self.rounds.voided;
        if let Some(round) = self.rounds.answer {
            if self.last_word(common, peer, Bye { next, round, answers: true }) {
                self.rounds.answer = None;
                if self.parting == Parting::Answer {
                    self.parting = self.parted();
                }
            }
        } else if self.last_word(common, peer, Bye { next, round: self.rounds.own, answers: false }) {
            self.parting = Parting::Awaits;
        }
        common.hold(&mut self.is_dirty, peer); // a slot is awaited, or packets follow
    }

    /// Starts the exchange of notices with a peer of this library: all operations were given up.
    fn part_with(&mut self, common: &mut Common, peer: Peer) {
        self.parting = match self.rounds.answer {
            Some(_) => Parting::Answer,
            None if self.is_own() == Some(true) => {
                self.rounds.own = self.rounds.own.wrapping_add(1);
                Parting::Due
            }
            None => {
                self.rounds.is_owed = self.features.is_none();
                self.parted()
            }
        };
        self.say_bye(common, peer);
    }

    /// Handles a protocol violation: only this peer is given up.
    pub fn bar(&mut self, common: &mut Common, peer: Peer) {
        common.counts.malformed += 1;
        self.is_barred = true;
        self.ending.get_or_insert(Errno::EIO);
        common.hold(&mut self.is_dirty, peer);
    }

    /// The application has inserted the peer's address again: what it did before is forgotten.
    pub(super) fn pardon(&mut self) {
        self.is_barred = false;
        if self.parting == Parting::Over {
            self.parting = Parting::No;
        }
    }

    /// Tells a barred peer, whose packet shows that it does not know.
    pub fn dismiss(&mut self, common: &mut Common, peer: Peer, packet: &wire::Packet<'_>) {
        common.counts.stale += 1;
        match packet {
            wire::Packet::Bye(bye) if bye.answers => {
                let is_awaited = self.parting == Parting::Awaits && bye.round == self.rounds.own;
                self.parting = if is_awaited { Parting::Over } else { self.parting };
            }
            wire::Packet::Bye(bye) => {
                self.rounds.answer = Some(bye.round);
                common.hold(&mut self.is_dirty, peer);
            }
            wire::Packet::Handshake(shake) if self.learn(common, shake).is_ok() => {
                self.tell_gaps(common, peer)
            }
            _ if self.parting == Parting::Over => self.part_with(common, peer),
            _ => {}
        }
    }

    /// Posts a packet ahead of the queue, if a slot is free. Returns whether it was posted.
    fn last_word(&mut self, common: &mut Common, peer: Peer, bye: Bye) -> bool {
        let Some(slot) = common.adapter.take_slot() else { return false };
        let header = Header::of_bye(common.adapter.address.connid, bye);
        put(common.adapter.outgoing(slot), header.bytes());
        self.post(
            common,
            Packet { peer, slot, len: header.bytes().len(), data: None, mark: Mark::Nothing, bare: false },
        );
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
        common.adapter.give_slot(packet.slot);
        if packet.mark == Mark::Detached {
            self.detached = self.detached.saturating_sub(1);
        }
        if status != Status::Done {
            self.ending.get_or_insert(Errno::ECONNRESET);
        }
    }

    /// Ends all operations with the peer. Message ids go on.
    pub fn lose<H: Host<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: Peer, errno: Errno) {
        let old = std::mem::replace(self, Self::new(self.address, self.to.handle));
        (self.dead, self.features, self.greeted) = (Some(errno), old.features, old.greeted);
        (self.native, self.bare, self.told, self.is_met) = (old.native, old.bare, old.told, old.is_met);
        (self.next_msg, self.counted, self.window) = (old.next_msg, old.counted, old.window);
        (self.looked, self.may_restart, self.gaps) = (old.looked, old.may_restart, old.gaps);
        // A peer that is silent may have asked for a pause, and may never ask for more.
        (self.paused, self.pausing) = (old.paused & !1, old.pausing);
        // Their slots return with their completions.
        (self.inflight, self.is_dirty, self.is_stalled) = (old.inflight, old.is_dirty, old.is_stalled);
        (self.rest, self.pause) = (old.rest, old.pause);
        let mut dropped: Vec<u32> = old.queue.iter().filter_map(|frame| message_id(&frame.bytes)).collect();
        for packet in old.again {
            let bytes = common.adapter.undelivered(&packet);
            match Lost::of(&bytes) {
                Lost::Notice if !packet.bare && !common.direct => self.again.push_back(packet),
                _ => {
                    dropped.extend(message_id(&bytes));
                    common.adapter.give_slot(packet.slot);
                }
            }
        }
        for entry in common.ids.take(|entry| entry.peer() == peer) {
            if let Entry::Incoming(incoming) = entry
                && let Some(into) = incoming.receive()
            {
                host.received(into, Err(errno));
            }
        }
        host.fail_peer(peer, errno);
        self.is_barred = old.is_barred;
        if self.is_barred {
            self.window.clear();
        }
        self.rounds = Rounds { voided: self.next_msg, ..old.rounds };
        self.part_with(common, peer);
        match self.is_own() {
            Some(true) => {}
            Some(false) | None => {
                let streams = old.streams.iter().filter_map(|stream| match stream {
                    super::Stream::Medium { message, .. } => Some(message.msg_id),
                    super::Stream::Data { .. } | super::Stream::Answer { .. } => None,
                });
                dropped.extend(streams);
                for id in dropped {
                    self.skip(common, peer, id);
                }
            }
        }
    }
}
