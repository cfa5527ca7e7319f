//! An initiator from its target's side: how it is accepted, notified and dismissed.
#![allow(unsafe_code)]

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use ofi::FiAddr;
use ofi_ring::crash_point;

use super::publish::Pending;
use super::{Received, Ring, Target, random};
use crate::Result;
use crate::driven::sealed::Polled as _;
use crate::link::{Happened, Memory, MessageKind, OpId, Window};
use crate::message::{Message, Remote, Why};
use crate::rest::Sleeper;

/// Maximum queue reads for completions of an old initiator's writes, so that messages do not keep a target busy.
const DRAINED: usize = 64;
/// Maximum messages that an initiator may leave unread, beyond those that its provider buffers. The target sends a few
/// per grain.
const UNHEARD: usize = 1024;
/// Maximum refusals and farewells whose completion the target awaits. A newer one displaces the oldest.
const DISMISSED: usize = 16;
/// Time that a refusal or a farewell waits for room.
const ROOM_WITHIN: Duration = Duration::from_secs(1);
/// Time that a closing target waits for its farewell to arrive.
const LINGER: Duration = Duration::from_millis(50);
/// Shortest and longest pause between attempts to close memory that is still being written.
const STUCK_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(16));
/// Maximum queued greetings.
const GREETINGS: usize = 16;
/// Maximum replaced attempts whose late greetings are recognised.
const REPLACED: usize = 16;
/// Maximum former initiators that come back before strangers.
const PROVEN: usize = 16;

/// A dismissed initiator: a refusal or a farewell is on its way to it.
pub(super) struct Dismissed {
    addr: FiAddr,
    nonce: u64,
    why: Why,
    since: Instant,
    /// The message's operation, once there was room for it.
    op: Option<OpId>,
}

/// The dismissed initiators.
#[derive(Default)]
pub(super) struct Dismissals {
    awaited: Vec<Dismissed>,
    /// Messages in flight that the target no longer awaits. Over shared memory they end when their receiver reads or
    /// dies.
    given_up: HashSet<OpId>,
}

/// Memory of former initiators in which an access is still running, seconds after it was withdrawn. No initiator is
/// accepted until it has ended: it could write into what the next one sends (I2).
#[derive(Default)]
pub(super) struct Stuck {
    windows: Vec<Window>,
    /// The time of the next attempt to close them, and the pause after it: each may take a second.
    next: Option<(Instant, Duration)>,
}

impl Stuck {
    /// Closes windows; keeps those in which an access is running.
    fn revoke(&mut self, windows: impl IntoIterator<Item = Window>) {
        self.windows.extend(windows.into_iter().filter_map(|window| window.close().err()));
    }

    /// Whether all are closed. Tries again, unless it did so just now.
    fn is_over(&mut self) -> bool {
        let now = Instant::now();
        let (due, pause) = self.next.unwrap_or((now, STUCK_PAUSE.0));
        if !self.windows.is_empty() && now >= due {
            while let Some(window) = self.windows.pop() {
                if let Err(window) = window.close() {
                    self.windows.push(window);
                    break;
                }
            }
            self.next = Some((Instant::now() + pause, STUCK_PAUSE.1.min(pause * 2)));
        }
        if self.windows.is_empty() {
            self.next = None;
        }
        self.windows.is_empty()
    }
}

/// The connected initiator.
pub(super) struct InitiatorPeer {
    // Dropped first: then no further writes of this initiator arrive.
    pub(super) windows: HashMap<u64, Window>,
    pub(super) addr: FiAddr,
    pub(super) nonce: u64,
    pub(super) token: u64,
    /// Operations up to this one began before it was accepted.
    pub(super) since: OpId,
    /// Indices whose slots are open.
    pub(super) granted: VecDeque<u64>,
    /// The number of the next commit.
    pub(super) next: u64,
    /// The number up to which the initiator was told what is published, and when.
    pub(super) told: u64,
    pub(super) told_at: Instant,
    pub(super) pending: BTreeMap<u64, Pending>,
    /// Time of the last publication for it.
    pub(super) published: Option<Instant>,
    pub(super) outbox: VecDeque<Message>,
    /// Samples up to this index may be written.
    pub(super) until: u64,
    /// Its payloads come in messages: it gets no memory to write.
    pub(super) by_messages: bool,
    /// The format of its address, and the address.
    address: (u32, Vec<u8>),
    /// It was one of the last initiators: its welcome waits behind no stranger's.
    is_known: bool,
    /// It has named the token of its welcome, so it reads at its address.
    pub(super) is_proven: bool,
}

impl InitiatorPeer {
    /// The oldest message that waits for room, and the kind of its place.
    pub(super) fn next_message(&self) -> Option<(MessageKind, &Message)> {
        let message = self.outbox.front()?;
        let is_stranger = matches!(message, Message::Welcome { .. }) && !self.is_known;
        Some((if is_stranger { MessageKind::Greeting } else { MessageKind::Connected }, message))
    }
}

impl Target {
    /// Disconnects the initiator, sends it the reason unless it has left by itself, and withdraws its memory.
    pub(super) fn part(&mut self, why: Option<Why>) {
        if let Some(peer) = self.peer.take() {
            if peer.is_proven {
                self.proven.retain(|address| *address != peer.address);
                if self.proven.len() == PROVEN {
                    self.proven.pop_front();
                }
                self.proven.push_back(peer.address);
            }
            match why {
                // Sent before its writes fail, so that it knows why they do.
                Some(why) => {
                    self.stats.parted += 1;
                    if self.link.takes_refusals() {
                        self.dismiss(peer.addr, peer.nonce, why);
                    } else {
                        self.link.remove(peer.addr);
                    }
                }
                None => self.link.remove(peer.addr),
            }
            self.stuck.revoke(peer.windows.into_values());
            self.tell(Received::Disconnected);
        }
    }

    /// Sends an initiator the reason for its refusal or the end of its connection, and then removes its address. The
    /// message may be lost.
    fn dismiss(&mut self, addr: FiAddr, nonce: u64, why: Why) {
        if self.dismissed.awaited.len() >= DISMISSED {
            self.give_up();
        }
        self.dismissed.awaited.push(Dismissed { addr, nonce, why, since: Instant::now(), op: None });
        self.send_dismissals();
    }

    /// Stops awaiting the oldest refusal or farewell. If it was sent, it can still be read.
    fn give_up(&mut self) {
        let Dismissals { awaited, given_up } = &mut self.dismissed;
        let oldest = awaited.iter().enumerate().min_by_key(|(_, there)| (there.op.is_none(), there.since));
        if let Some(at) = oldest.map(|(at, _)| at) {
            let there = awaited.swap_remove(at);
            given_up.extend(there.op);
            self.link.remove(there.addr);
        }
    }

    /// Sends the refusals and farewells that had no room before.
    fn send_dismissals(&mut self) {
        let Self { dismissed, link, .. } = self;
        dismissed.awaited.retain_mut(|Dismissed { addr, nonce, why, since, op }| {
            if op.is_some() {
                return true;
            }
            let sent = link.send(*addr, &Message::Refused { nonce: *nonce, why: *why });
            match sent {
                Ok(there) if there.is_some() || since.elapsed() < ROOM_WITHIN => *op = there,
                Ok(_) | Err(_) => {
                    link.remove(*addr);
                    return false;
                }
            }
            true
        });
    }

    /// Whether an ended operation was a refusal or a farewell.
    pub(super) fn dismissed(&mut self, op: OpId) -> bool {
        let Dismissals { awaited, given_up } = &mut self.dismissed;
        let Some(at) = awaited.iter().position(|there| there.op == Some(op)) else {
            return given_up.remove(&op);
        };
        let there = awaited.swap_remove(at);
        self.link.remove(there.addr);
        true
    }

    /// Whether a refusal or a farewell waits for room.
    pub(super) fn has_dismissals(&self) -> bool {
        self.dismissed.awaited.iter().any(|there| there.op.is_none())
    }

    /// Tells the initiator that the target closes. Afterwards the target may only be dropped.
    pub(crate) fn leave(&mut self) {
        if !self.link.is_here() {
            return; // only the parent closes it
        }
        self.part(Some(Why::Closed));
        self.left.get_or_insert_with(Instant::now);
    }

    /// Waits until the message of [`leave`](Self::leave) has arrived, for a limited time.
    fn linger(&mut self) {
        let since = *self.left.get_or_insert_with(Instant::now);
        let (mut happened, mut sleeper) = (Vec::new(), Sleeper::default());
        while !self.is_broken && !self.dismissed.awaited.is_empty() && since.elapsed() < LINGER {
            let Ok(was_busy) = self.link.poll(&mut happened) else { return };
            for happened in happened.drain(..) {
                match happened {
                    Happened::Ended(op, _) => drop(self.dismissed(op)),
                    Happened::Piece(receive) => self.link.release(receive),
                    Happened::Message(_) | Happened::Arrived(_) | Happened::Nonsense => {}
                }
            }
            self.send_dismissals();
            if !was_busy {
                sleeper.wait(&self.queues(), self.rest(), LINGER.saturating_sub(since.elapsed()));
            }
        }
    }

    pub(super) fn hello(
        &mut self,
        nonce: u64,
        (format, address): (u32, &[u8]),
        messages: bool,
        why: Option<Why>,
    ) -> Result<()> {
        if self.peer.as_ref().is_some_and(|peer| peer.nonce == nonce) {
            return Ok(()); // a repeated greeting
        }
        // A repeated greeting may come after the one that replaced it.
        let why = why.or_else(|| self.replaced.contains(&nonce).then_some(Why::Replaced));
        if why.is_some() && !self.link.takes_refusals() {
            self.stats.nonsense += 1;
            return Ok(());
        }
        // Anybody may name its address, but the answer goes there.
        let current = self.peer.as_ref().filter(|peer| peer.is_proven).map(|peer| &peer.address);
        let is_known =
            self.proven.iter().chain(current).any(|known| (known.0, &*known.1) == (format, address));
        let addr = match self.link.insert(format, address) {
            Ok(addr) => addr,
            Err(error) => {
                tracing::debug!(target: "mxl::fabrics", %error, "an initiator has an unusable address");
                self.stats.nonsense += 1;
                return Ok(());
            }
        };
        if let Some(why) = why {
            if why != Why::Replaced {
                self.stats.refused += 1;
            }
            self.dismiss(addr, nonce, why);
            return Ok(());
        }
        if !is_known && !self.link.takes_answer(addr) {
            // Strangers that read nothing have all places for answers. It greets again.
            self.stats.refused += 1;
            self.link.remove(addr);
            return Ok(());
        }
        if let Some(old) = &self.peer {
            if self.replaced.len() == REPLACED {
                self.replaced.pop_front();
            }
            self.replaced.push_back(old.nonce);
            // At the same address it is the same initiator, or the next one in its place.
            let is_other = old.addr != addr;
            self.part(is_other.then_some(Why::Replaced));
        }
        if !self.stuck.is_over() {
            // It greets again.
            self.stats.refused += 1;
            self.link.remove(addr);
            return Ok(());
        }
        self.leave_foreign();
        // Completions of the old initiator's writes from before its memory was withdrawn do not belong to the new one.
        let mut ended = Vec::new();
        self.drain(&mut ended)?;
        let token = random()?;
        let mut peer = InitiatorPeer {
            windows: HashMap::new(),
            addr,
            nonce,
            token,
            since: self.link.newest(),
            granted: VecDeque::new(),
            next: 0,
            told: 0,
            told_at: Instant::now(),
            pending: BTreeMap::new(),
            published: None,
            outbox: VecDeque::new(),
            until: 0,
            by_messages: messages || !self.link.writes,
            address: (format, address.to_vec()),
            is_known,
            is_proven: false,
        };
        let (mut rings, mut length) = (Remote::default(), 0);
        if let Ring::Samples(writer) = &self.ring {
            let (_, base) = writer.begin(0, 0)?;
            let (word, stride) = writer.strides();
            length = (stride / word) as u64;
            if !peer.by_messages {
                let memory = Memory { addr: base, len: stride * writer.channels() as usize };
                // SAFETY: the ring is mapped as long as the writer, which outlives the windows; there are no references
                // to it.
                let window = unsafe { self.link.open_window(memory) }?;
                rings = window.remote();
                peer.windows.insert(0, window);
            }
        }
        let receive = if peer.by_messages { self.link.receive as u64 } else { 0 };
        peer.outbox.push_back(Message::Welcome { nonce, token, rings, length, receive });
        self.peer = Some(peer);
        crash_point!("target.welcome");
        self.stats.taken += 1;
        self.tell(Received::Connected);
        ended.into_iter().try_for_each(|ended| self.handle(ended))
    }

    /// Drains the queue before a greeting is accepted. None of the drained events concerns the new initiator, so only
    /// completions of this target's own messages and further greetings are kept. They are handled later, because
    /// handling a greeting here would recurse.
    fn drain(&mut self, ended: &mut Vec<Happened>) -> Result<()> {
        let mut happened = Vec::new();
        for _ in 0..DRAINED {
            if !self.link.poll(&mut happened)? {
                break;
            }
            for happened in happened.drain(..) {
                match happened {
                    Happened::Ended(..) => ended.push(happened),
                    // A dropped greeting is repeated.
                    Happened::Message(greeting @ Message::Hello { .. })
                        if self.greetings.len() < GREETINGS =>
                    {
                        self.greetings.push_back(greeting);
                    }
                    Happened::Piece(receive) => {
                        self.link.release(receive);
                        self.stats.nonsense += 1;
                    }
                    Happened::Arrived(_) => {}
                    Happened::Message(_) | Happened::Nonsense => self.stats.nonsense += 1,
                }
            }
        }
        Ok(())
    }

    /// Sends the pending messages, as far as there is room.
    pub(super) fn flush(&mut self) {
        self.send_dismissals();
        let Some(peer) = &mut self.peer else { return };
        peer.report(&self.link);
        if peer.outbox.len() > UNHEARD {
            tracing::debug!(target: "mxl::fabrics", "an initiator sends requests and reads no answers");
            return self.part(Some(Why::Unheard));
        }
        while let Some((kind, message)) = peer.next_message() {
            match self.link.send_as(kind, peer.addr, message) {
                Ok(Some(_)) => drop(peer.outbox.pop_front()),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "a message to an initiator failed");
                    return self.part(Some(Why::Failed));
                }
            }
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.leave();
        if self.link.is_here() {
            self.linger();
        }
    }
}

#[cfg(test)]
mod tests;
