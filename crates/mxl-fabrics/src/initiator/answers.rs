//! Handles completions of operations, and messages of targets.

use std::time::Instant;

use super::peer::{CommitInFlight, GIVEN_UP, PeerState, TargetPeer, Transfer, Way};
use super::silence::Heard;
use super::{GREET_EVERY, Initiator, REPLY_TIMEOUT, Source};
use crate::link::OpId;
use crate::message::{Message, Why};

/// Maximum samples in a target's ring: hours of them.
const MAX_RING_SAMPLES: u64 = 1 << 32;
/// Maximum grants of a target that are kept.
const GRANTS: usize = 1024;

impl Initiator {
    pub(super) fn ended(&mut self, op: OpId, is_ok: bool) {
        let Some(at) = self.peers.iter().position(|peer| peer.flights.contains_key(&op)) else { return };
        let peer = &mut self.peers[at];
        let number = peer.flights.remove(&op).flatten();
        if !is_ok {
            peer.stats.failed += 1;
            return self.part(at);
        }
        peer.heard.sign(Instant::now());
        let Some(number) = number else {
            if let Some(asked) = peer.asked.as_mut().filter(|asked| asked.op == op) {
                asked.arrived = Some(Instant::now());
            }
            return;
        };
        if let Some(sent) = peer.sent.get_mut(&number) {
            sent.left -= 1;
        }
        self.judge(at, number);
    }

    /// Records the verdict on a commit, once all of its writes are complete.
    pub(super) fn judge(&mut self, at: usize, number: u64) {
        let peer = &mut self.peers[at];
        let Some(&sent) = peer.sent.get(&number) else { return };
        if !sent.is_posted || sent.left > 0 {
            return;
        }
        peer.sent.remove(&number);
        let CommitInFlight {
            index, count, committed, bytes, is_judged, is_flagged, is_given_up, since, ..
        } = sent;
        let target = peer.info.id;
        peer.stats.bytes += bytes;
        let is_whole = match &self.source {
            _ if is_given_up => false,
            _ if !is_judged => true,
            Source::Grains(reader) => reader.holds(index),
            Source::Samples(reader) => reader.holds(index.saturating_sub(count), committed),
        };
        if is_judged {
            let worth = if is_given_up { GIVEN_UP } else { u64::from(is_whole && !is_flagged) };
            peer.verdicts.push_back((number, worth));
        }
        if is_whole {
            peer.stats.done += 1;
            // The target's report may come before the completion of a message.
            let is_published = number < peer.published;
            if is_published {
                peer.stats.published += 1;
            } else {
                peer.arrived.insert(number, index);
            }
            peer.latency.record(since.elapsed());
            self.tell(Transfer::Done { target, index });
            if is_published {
                self.tell(Transfer::Published { target, index });
            }
        } else {
            peer.stats.torn += 1;
            self.tell(Transfer::Torn { target, index });
        }
    }

    /// Counts a message that is not for a connection, unless it is a late one from a target.
    fn drop_message(&mut self, is_late: impl Fn(&TargetPeer) -> bool) {
        self.nonsense += u64::from(!self.peers.iter().any(is_late));
    }

    /// The connection with this token. Without one, the message is dropped.
    fn by_token(&mut self, of: u64) -> Option<&mut TargetPeer> {
        let is_there = |peer: &TargetPeer| peer.state == PeerState::Connected && peer.token == of;
        let at = self.peers.iter().position(is_there);
        if at.is_none() {
            self.drop_message(|peer| of != 0 && peer.token == of);
        }
        at.map(|at| &mut self.peers[at])
    }

    /// The same, for a message that has news.
    fn heard(&mut self, of: u64) -> Option<&mut TargetPeer> {
        let peer = self.by_token(of)?;
        peer.heard.sign(Instant::now());
        Some(peer)
    }

    /// Handles a refusal of a target, or the end of its connection.
    fn farewell(&mut self, nonce: u64, why: Why) {
        let Some(at) = self.peers.iter().position(|peer| peer.is_named(nonce)) else {
            self.nonsense += 1;
            return;
        };
        let peer = &self.peers[at];
        // The reason may come after the connection was lost, but not once the target was greeted again; and a greeting
        // that was repeated may be refused several times.
        if peer.nonce != nonce && (peer.nonce != 0 || peer.former.1) {
            return;
        }
        let target = peer.info.id;
        self.part(at);
        let peer = &mut self.peers[at];
        peer.former.1 = true;
        let wait = match why {
            Why::Closed | Why::Failed => GREET_EVERY,
            _ => REPLY_TIMEOUT,
        };
        peer.greet = Instant::now() + wait;
        if !why.is_farewell() {
            peer.state = PeerState::Refused(why);
            return;
        }
        peer.state = PeerState::Parted(why);
        peer.stats.parted += 1;
        if why == Why::Closed {
            tracing::info!(target: "mxl::fabrics", target, "{why}");
        } else {
            tracing::warn!(target: "mxl::fabrics", target, "{why}");
        }
        self.tell(Transfer::Parted { target, why });
    }

    pub(super) fn said(&mut self, message: Message) {
        match message {
            Message::Welcome { nonce, token, rings, length, receive } => {
                let greeted = |peer: &TargetPeer| {
                    nonce != 0 && peer.nonce == nonce && peer.state != PeerState::Connected
                };
                let Some(at) = self.peers.iter().position(greeted) else {
                    return self.drop_message(|peer| peer.is_named(nonce));
                };
                let (way, limits) = if receive == 0 {
                    (Way::Writes, Some(self.link.write_limits()).filter(|_| self.link.writes))
                } else {
                    (Way::Messages, self.link.piece_limits(receive))
                };
                let limits = limits.filter(|_| length <= MAX_RING_SAMPLES);
                let peer = &mut self.peers[at];
                let Some(limits) = limits else {
                    let target = peer.info.id;
                    tracing::warn!(
                        target: "mxl::fabrics", target, receive, length, "no way to send payloads to a target"
                    );
                    return;
                };
                (peer.way, peer.limits) = (way, limits);
                (peer.token, peer.rings, peer.state) = (token, (rings, length), PeerState::Connected);
                peer.heard = Heard::new(Instant::now());
                peer.stats.connected += 1;
                let target = peer.info.id;
                self.tell(Transfer::Connected { target });
            }
            Message::Refused { nonce, why } => self.farewell(nonce, why),
            Message::Grant { token, index, payload } => {
                let Some(peer) = self.heard(token) else { return };
                if peer.grants.len() < GRANTS {
                    peer.grants.insert(index, payload);
                    peer.asked = None;
                }
            }
            Message::Room { token, until } => {
                let Some(peer) = self.heard(token) else { return };
                (peer.until, peer.asked) = (peer.until.max(until), None);
            }
            Message::Published { token, number } => {
                let Some(peer) = self.by_token(token) else { return };
                if number > peer.number {
                    return;
                }
                match number > peer.published {
                    true => peer.heard.sign(Instant::now()),
                    false => peer.heard.repeated(Instant::now()),
                }
                if number > peer.published {
                    (peer.published, peer.full) = (number, None);
                }
                let later = peer.arrived.split_off(&number);
                let published = std::mem::replace(&mut peer.arrived, later);
                peer.stats.published += published.len() as u64;
                let target = peer.info.id;
                for index in published.into_values() {
                    self.tell(Transfer::Published { target, index });
                }
            }
            // Only initiators send these.
            Message::Hello { .. }
            | Message::Open { .. }
            | Message::Invalid { .. }
            | Message::Bye { .. }
            | Message::Verdict { .. } => self.nonsense += 1,
        }
    }
}
