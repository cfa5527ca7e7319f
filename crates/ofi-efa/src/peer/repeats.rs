//! Packets that the device reports as failed.
//!
//! A device that got no acknowledgement cannot tell whether the packet arrived. What follows depends on the peer:
//!
//! - A peer of this library recognizes repeated packets: messages by their ids, accesses by their numbers, data by
//!   its place. So a failed packet is sent again, one packet of the peer at a time, after pauses that grow, until it
//!   arrives or the peer is given up. Nothing is lost, and operations do not learn of it.
//! - A peer of C libfabric ends its process when a message is repeated. A lost message of one packet ends with an
//!   error, and the peer is told to skip its id, if it understands that. Any other loss ends all operations with the
//!   peer.
//! - An older endpoint of this library does not announce that it recognizes repeated packets ([`Features::REPEATS`]),
//!   and is treated like one of C's. Its address may be inserted again, but it cannot begin anew.
//! - A peer whose library is unknown is asked for its handshake first. That packet may be repeated for any peer.
//! - Where packets have no headers, each ends alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ofi_api::{CompletionFlags, Context, Errno};
use ofi_core::transport::{CompletionInfo, CounterTarget, PeerId, Upcalls};

use super::{Peer, nothing, put};
use crate::Efa;
use crate::adapter::{Mark, Packet};
use crate::common::{Common, Entry};
use crate::op::{Op, Work};
use crate::srd::Status;
use crate::wire::{self, Abandoned, Control, Features, Form, Message, Read, Write, parse};

/// First and maximum pause before a failed packet is sent again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// How often a packet is sent again at least before the peer is given up.
const ATTEMPTS: u32 = 3;
/// How long a peer may be silent before it is given up. The time that the device waits for each packet comes on top.
const MAX_SILENCE: Duration = Duration::from_secs(5);
/// How long a peer that was asked for its handshake, or to begin anew, may take until it is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(500);
/// A pause that the completion of a packet ends.
const UNTIL_COMPLETION: Duration = Duration::from_secs(3600);

/// A failed packet. Its slot was given back.
struct Failed {
    bytes: Box<[u8]>,
    mark: Mark,
    /// Whether the packet may be sent again.
    may_repeat: bool,
}

/// What a peer must answer before anything else is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    Nothing,
    /// Its handshake, which shows what it understands.
    Handshake,
    /// The answer to a RESTART.
    Restart,
}

/// The failed packets of a peer. While a peer has some, nothing else is posted to it ([`Peer::may_flush`]).
pub(super) struct Repeats {
    failed: VecDeque<Failed>,
    pub(super) awaited: Awaited,
    /// The number of the packet under way, which is the first of `failed`.
    under_way: Option<u32>,
    /// How often a packet has failed since the last one arrived, and since when.
    failures: u32,
    since: Option<Instant>,
}

/// What a failed packet means.
enum Meaning {
    /// It may be sent again.
    Repeat,
    /// It may be sent again with the number of bytes that were cleared before.
    Number { control: (u32, u32, bool), len: u64 },
    /// Its operation is lost, and nothing else.
    Alone,
    /// Its message is lost, and the peer is told to skip it.
    Skip(u32),
    /// Everything with the peer ends.
    Lost,
}

impl Peer {
    /// Handles the failure of a packet.
    #[cold]
    pub(super) fn failed<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        packet: Packet,
        status: Status,
    ) {
        tracing::debug!(target: "ofi::efa::ep_data", ?status, to = ?self.address, "a packet did not arrive");
        if common.direct || packet.bare {
            return self.lose_packet(common, host, packet, status);
        }
        common.counts.failed += 1;
        self.keep(common, packet, status);
        self.sort(common, host, packet.peer);
    }

    /// Keeps a failed packet, to send it again. Gives the peer up if that was tried often enough, or is futile.
    pub(super) fn keep(&mut self, common: &mut Common, packet: Packet, status: Status) {
        let Packet { peer, slot, len, mark, .. } = packet;
        if self.dead.is_some() || self.ending.is_some() || status == Status::Flushed {
            common.adapter.give_slot(slot);
            if self.dead.is_none() {
                self.lost();
            }
            return;
        }
        let now = common.adapter.now();
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: the slot has the packet, of which the device has no use any more.
        unsafe { ofi_core::copy::bytes(common.adapter.outgoing(slot), bytes.as_mut_ptr(), len) };
        common.adapter.give_slot(slot);
        let is_repeat = matches!(mark, Mark::Repeat(_));
        let repeats = match &mut self.repeats {
            Some(repeats) => repeats,
            None if is_repeat => return, // of an earlier life of the peer
            none => none.insert(Box::new(Repeats::new(Awaited::Nothing))),
        };
        match mark {
            Mark::Repeat(number) if repeats.under_way != Some(number) => return,
            Mark::Repeat(_) => {
                repeats.under_way = None;
                repeats.failures += 1;
            }
            mark => {
                let may_repeat = meaning(&bytes, self.features).may_repeat();
                // The peer's answer may wait for what needs no answer of the peer.
                let at = match may_repeat && self.features.is_none() {
                    true => usize::from(repeats.under_way.is_some()),
                    false => repeats.failed.len(),
                };
                repeats.failed.insert(at, Failed { bytes, mark, may_repeat });
            }
        }
        let since = *repeats.since.get_or_insert(now);
        // No queue pair has the peer's number and Q-Key, and none will.
        let patience = if status == Status::NoDestination { Duration::ZERO } else { MAX_SILENCE };
        if repeats.failures >= ATTEMPTS && now >= since + patience {
            self.lost();
        } else if repeats.under_way.is_none() && (is_repeat || self.rest.is_none()) {
            let pause = (PAUSE.0 * (1 << repeats.failures.min(16))).min(PAUSE.1);
            self.rest_until(common, peer, now + pause);
        }
    }

    /// Decides about the failed packets of a peer whose library is known.
    pub(super) fn sort<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        let Some(repeats) = &mut self.repeats else { return };
        if self.features.is_none() {
            return;
        }
        // The first one stays while it is under way: it was found fit before.
        let first = usize::from(repeats.under_way.is_some());
        let mut kept: VecDeque<Failed> = repeats.failed.drain(..first).collect();
        let mut others = Vec::new();
        for failed in repeats.failed.drain(..) {
            let may_repeat = failed.may_repeat || meaning(&failed.bytes, self.features).may_repeat();
            match may_repeat {
                true => kept.push_back(Failed { may_repeat, ..failed }),
                false => others.push(failed),
            }
        }
        repeats.failed = kept;
        for failed in others {
            match meaning(&failed.bytes, self.features) {
                Meaning::Repeat => {}
                Meaning::Number { control, len } => self.number(common, host, peer, control, len),
                Meaning::Alone => self.lose_alone(common, host, peer, failed.mark, Status::Unresponsive),
                Meaning::Skip(id) => {
                    self.lose_alone(common, host, peer, failed.mark, Status::Unresponsive);
                    let (what, errno) = (Abandoned::Skipped(id), Errno::ECONNRESET.get() as u32);
                    let notice = Control::PeerError { what, errno };
                    self.control(common, peer, notice);
                }
                Meaning::Lost => {
                    self.forget(failed.mark);
                    self.lost();
                }
            }
        }
        self.resume(common, peer);
    }

    /// Repeats a CTS packet from before the peer's handshake, unless it has arrived.
    fn number<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        (send_id, recv_id, read): (u32, u32, bool),
        len: u64,
    ) {
        let cleared = match common.ids.get_mut(recv_id).filter(|entry| entry.peer() == peer) {
            Some(Entry::Incoming(incoming)) => Some(incoming.cleared),
            Some(&mut Entry::Op(_, id)) => host.op(peer, id).and_then(|op| match op.work {
                Work::In { cleared, .. } => Some(cleared),
                _ => None,
            }),
            _ => None,
        };
        // A read clears more only after everything of before has arrived: the failed packet has arrived too.
        let is_later = |frame: &super::Frame| {
            matches!(
                parse(&frame.bytes),
                Ok((_, wire::Packet::Control(Control::Cts { recv_id: later, read: true, before: None, .. })))
                    if later == recv_id
            )
        };
        if read && self.queue.iter().any(is_later) {
            return;
        }
        if let Some(before) = cleared.and_then(|cleared| (cleared as u64).checked_sub(len)) {
            self.control(common, peer, Control::Cts { send_id, recv_id, len, read, before: Some(before) });
        }
    }

    /// Continues without failed packets if there are none left.
    fn resume(&mut self, common: &mut Common, peer: PeerId) {
        if let Some(repeats) = &mut self.repeats
            && repeats.failed.is_empty()
            && repeats.awaited == Awaited::Nothing
        {
            self.end_repeats(common);
        }
        common.hold(&mut self.is_dirty, peer);
    }

    /// Ends the precedence of packets that failed.
    pub(super) fn end_repeats(&mut self, common: &Common) {
        self.repeats = None;
        self.rest = (!self.again.is_empty()).then(|| common.adapter.now());
    }

    /// The peer's handshake has arrived.
    pub fn resolve_failed<H: Upcalls<Efa>>(&mut self, common: &mut Common, host: &mut H, peer: PeerId) {
        let Some(repeats) = &mut self.repeats else { return };
        if repeats.awaited == Awaited::Handshake {
            repeats.awaited = Awaited::Nothing;
            match self.is_own() {
                Some(true) if self.knows_repeats() && self.forget_arrivals(common, host, peer) => {
                    self.begin_anew(common, peer);
                }
                // An older endpoint of this library cannot begin anew.
                Some(true) => self.lost(),
                _ => {}
            }
        }
        let now = common.adapter.now();
        if self.repeats.as_ref().is_some_and(|repeats| repeats.under_way.is_none()) {
            self.rest_until(common, peer, now);
        }
        self.sort(common, host, peer);
    }

    /// Sends the next failed packet again, after its pause. A peer whose library is unknown is asked instead.
    pub(super) fn repeat(&mut self, common: &mut Common, peer: PeerId) {
        let now = common.adapter.now();
        let question = match self.features {
            None => Some(nothing().encode(self.origin(common))),
            Some(_) => None,
        };
        // The packets of an earlier life of the peer must not be mistaken for later ones.
        let drains = self.restarts_after_drain && self.inflight > 0;
        let Some(repeats) = &mut self.repeats else { return };
        if repeats.under_way.is_some() {
            self.rest = Some(now + UNTIL_COMPLETION);
            return;
        }
        if let Some(question) = question
            && !repeats.failed.front().is_some_and(|failed| failed.may_repeat)
        {
            repeats.failed.push_front(Failed {
                bytes: question.bytes().into(),
                mark: Mark::Nothing,
                may_repeat: true,
            });
        }
        if drains {
            self.rest = Some(now + PAUSE.0);
            return;
        }
        self.restarts_after_drain = false;
        let Some(failed) = repeats.failed.front() else {
            return self.resume(common, peer);
        };
        let Some(slot) = common.adapter.take_slot(0) else {
            self.rest = Some(now + PAUSE.0);
            return;
        };
        put(common.adapter.outgoing(slot), &failed.bytes);
        let (len, number) = (failed.bytes.len(), self.repeated);
        repeats.under_way = Some(number);
        self.repeated = self.repeated.wrapping_add(1);
        self.rest = Some(now + UNTIL_COMPLETION);
        common.counts.repeated += 1;
        self.post(common, Packet::new(peer, slot, len, Mark::Repeat(number)));
    }

    /// A packet that was sent again has arrived. Returns its mark.
    pub(super) fn has_arrived(&mut self, common: &mut Common, peer: PeerId, number: u32) -> Mark {
        let is_known = self.features.is_some();
        let Some(repeats) = &mut self.repeats else { return Mark::Nothing };
        if repeats.under_way != Some(number) {
            return Mark::Nothing; // of an earlier life of the peer
        }
        (repeats.under_way, repeats.failures, repeats.since) = (None, 0, None);
        let failed = repeats.failed.pop_front();
        // Only the peer's process can answer, when it polls. Its device answers repeated questions.
        let asks_on = match repeats.awaited {
            Awaited::Nothing => !is_known && repeats.failed.front().is_some_and(|next| !next.may_repeat),
            Awaited::Handshake => !is_known && repeats.failed.front().is_none_or(|next| !next.may_repeat),
            Awaited::Restart => true,
        };
        let awaits_restart = repeats.awaited == Awaited::Restart;
        if awaits_restart && repeats.failed.is_empty() {
            let bytes =
                wire::Header::of_restart(common.adapter.address.connid, self.round, false).bytes().into();
            repeats.failed.push_back(Failed { bytes, mark: Mark::Nothing, may_repeat: true });
        }
        let now = common.adapter.now();
        self.rest = Some(if asks_on { now + ASK_AGAIN } else { now });
        self.resume(common, peer);
        failed.map_or(Mark::Nothing, |failed| failed.mark)
    }

    /// Sends this packet before anything else, and waits for the answer.
    pub(super) fn send_first(&mut self, common: &mut Common, peer: PeerId, bytes: &[u8], awaited: Awaited) {
        let mut repeats = Box::new(Repeats::new(awaited));
        repeats.failed.push_back(Failed { bytes: bytes.into(), mark: Mark::Nothing, may_repeat: true });
        self.repeats = Some(repeats);
        let now = common.adapter.now();
        self.rest_until(common, peer, now);
        common.hold(&mut self.is_dirty, peer);
    }

    /// As [`Peer::send_first`], where the packet is the handshake's question.
    pub(super) fn ask_first(&mut self, common: &mut Common, peer: PeerId) {
        let question = nothing().encode(self.origin(common));
        self.send_first(common, peer, question.bytes(), Awaited::Handshake);
    }

    /// What the peer must answer first.
    pub(super) fn awaited(&self) -> Awaited {
        self.repeats.as_ref().map_or(Awaited::Nothing, |repeats| repeats.awaited)
    }

    /// Ends what a lost packet was a part of, and nothing else.
    pub(super) fn lose_alone<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        peer: PeerId,
        mark: Mark,
        status: Status,
    ) {
        let errno = self.failure(status);
        match mark {
            Mark::Nothing | Mark::Repeat(_) => {}
            Mark::Op(id) => self.finish(common, host, peer, id, Err(errno)),
            Mark::Detached => {
                self.detached = self.detached.saturating_sub(1);
                // It was reported as sent, so only an error without a context can report the loss.
                let id = host.open(peer, injected(), Op::packed(false));
                host.finish(peer, id, Err(errno));
            }
        }
    }

    /// Whether a failed packet may be sent again while this end closes.
    pub(super) fn may_repeat(&self, common: &Common, packet: &Packet) -> bool {
        let is_own = self.knows_repeats() && !packet.bare;
        // SAFETY: the slot has the packet, which nothing writes to.
        is_own && meaning(unsafe { &*common.adapter.content(packet) }, self.features).may_repeat()
    }

    /// Ends what was lost with a packet that is not sent again: one of an earlier life of the peer
    /// ([`Packet::is_former`]), or one without headers.
    #[cold]
    pub(super) fn lose_packet<H: Upcalls<Efa>>(
        &mut self,
        common: &mut Common,
        host: &mut H,
        packet: Packet,
        status: Status,
    ) {
        common.counts.failed += 1;
        common.adapter.give_slot(packet.slot);
        self.lose_alone(common, host, packet.peer, packet.mark, status);
    }

    /// Sends this packet, for which the peer may wait, before the failed packets that wait for the peer's handshake.
    /// `false`: there are none.
    pub(super) fn repeat_early(&mut self, common: &mut Common, peer: PeerId, bytes: &[u8]) -> bool {
        let Some(repeats) = &mut self.repeats else { return false };
        let is_under_way = repeats.under_way.is_some();
        let early = Failed { bytes: bytes.into(), mark: Mark::Nothing, may_repeat: true };
        repeats.failed.insert(usize::from(is_under_way), early);
        if !is_under_way {
            let now = common.adapter.now();
            self.rest_until(common, peer, now);
        }
        true
    }

    /// Drops failed packets.
    pub(super) fn drop_failed(&mut self, common: &mut Common, peer: PeerId, which: impl Fn(&[u8]) -> bool) {
        let Some(repeats) = &mut self.repeats else { return };
        if repeats.under_way.is_some() && repeats.failed.front().is_some_and(|failed| which(&failed.bytes)) {
            repeats.under_way = None;
            let now = common.adapter.now();
            self.rest_until(common, peer, now);
        }
        let Some(repeats) = &mut self.repeats else { return };
        repeats.failed.retain(|failed| !which(&failed.bytes));
        self.resume(common, peer);
    }

    /// Stops counting a packet that was lost.
    pub(super) fn forget(&mut self, mark: Mark) {
        if mark == Mark::Detached {
            self.detached = self.detached.saturating_sub(1);
        }
    }
}

impl Repeats {
    fn new(awaited: Awaited) -> Self {
        Self { failed: VecDeque::new(), awaited, under_way: None, failures: 0, since: None }
    }
}

impl Meaning {
    fn may_repeat(&self) -> bool {
        matches!(self, Self::Repeat)
    }
}

/// What the failure of this packet means to a peer with these features; `None`: they are unknown.
fn meaning(bytes: &[u8], features: Option<Features>) -> Meaning {
    use wire::Packet::{Atomic, Handshake, Message as Text, Read as Reads, Write as Writes};
    let Ok((_, packet)) = parse(bytes) else { return Meaning::Lost };
    let is_question = |write: &Write<'_>| write.remote.is_empty() && !write.confirm && write.data.is_none();
    match (&packet, features) {
        (Handshake(_), _) => Meaning::Repeat,
        (Writes(write), _) if is_question(write) => Meaning::Repeat,
        (_, None) => Meaning::Lost,
        (packet, Some(features)) if features.has(Features::REPEATS) => {
            // Accesses and CTS packets from before the peer's handshake have no number, by which it recognizes them.
            match *packet {
                Writes(Write { number: 0, .. }) | Reads(Read { number: 0, .. }) => Meaning::Alone,
                wire::Packet::Control(Control::Cts { send_id, recv_id, len, read, before: None }) => {
                    Meaning::Number { control: (send_id, recv_id, read), len }
                }
                _ => Meaning::Repeat,
            }
        }
        (wire::Packet::Control(Control::PeerError { what, .. }), _)
            if !matches!(what, Abandoned::Operation(_)) =>
        {
            Meaning::Repeat
        }
        (Text(Message { msg_id, form: Form::Eager { .. }, .. }), Some(features))
        | (Atomic(wire::Atomic { msg_id, .. }), Some(features))
            if features.has(Features::PEER_ERROR) =>
        {
            Meaning::Skip(*msg_id)
        }
        _ => Meaning::Lost,
    }
}

/// The report of an injected message that was lost.
fn injected() -> CompletionInfo {
    CompletionInfo {
        context: Context::default(),
        flags: CompletionFlags::SEND,
        signal: false,
        len: 0,
        route: CounterTarget::ENDPOINT,
        at: 0,
    }
}
