//! Matching of messages with posted receives: one engine for all transports.
//!
//! The rules (fi_msg(3), fi_tagged(3)): untagged and tagged messages are separate spaces. A receive may be
//! directed at one source and may ignore bits of the tag. A message goes to the receive that was *posted
//! first* of all that match it, whether directed, exact or wildcard; a receive gets the message that *arrived
//! first* of all that match it. A message that no receive waits for is unexpected and kept, within a budget.
//!
//! The owner moves bytes and reports completions; this module only pairs messages with receives. `R` is the owner's
//! data of a posted receive (32 bytes fit into a cache line with the data for matching), `U` its data of an unexpected
//! message: the bytes, or a token for a payload that was left at its sender.
//!
//! ```text
//! receive posted     post ─> Matched(oldest unexpected message) | Queued(id)
//! message arrives    arrive ─> Match: recv, then take unless it stays | none ─> store ─> id | Refused
//! ```
//!
//! Invariants:
//! M1. No queued receive matches an unclaimed unexpected message: `post` looks at messages before it queues,
//!     and the owner calls `store` only right after `arrive` found no receive.
//! M2. Every unexpected message, claimed ones too, is held in the budget until it leaves.
//!
//! Cost: with `n` receives posted or messages stored, everything is O(1) and allocates nothing once the tables have
//! grown to the load, with two exceptions. A receive with ignored bits waits in a list that arrivals scan, and scans
//! messages when it is posted. A cancel checks all posted receives, but many in a row do so only once.

mod budget;
mod cancel;
#[cfg(test)]
mod model;
mod posted;
mod slab;
mod table;
#[cfg(test)]
mod tests;
mod unexpected;

use ofi_api::{UnexpectedEvent, Watcher};

use budget::UnexpectedBudget;
use posted::{Found, PostedReceives};
use table::KeyHash;
use unexpected::UnexpectedMessages;

/// A source of messages: the endpoint's own number for it, counted from 0 without gaps, because state is kept in
/// arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourceId(pub u32);

/// Messages and receives match only within their space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// `fi_send` and `fi_recv`.
    Untagged = 0,
    /// `fi_tsend` and `fi_trecv`.
    Tagged = 1,
}

/// The sources of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceFilter {
    /// Anyone's: `FI_ADDR_UNSPEC`, or the endpoint has no directed receives.
    Any,
    /// One peer's (`FI_DIRECTED_RECV`).
    From(SourceId),
}

/// The condition of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Want {
    /// Untagged receives disregard `tag` and `ignore`.
    pub space: Space,
    /// The sender.
    pub source: SourceFilter,
    /// The tag; only bits that are not set in `ignore` are compared.
    pub tag: u64,
    /// Bits of the tag that may differ; 0 is the fast case.
    pub ignore: u64,
}

impl Want {
    /// An untagged receive.
    #[inline]
    pub const fn untagged(source: SourceFilter) -> Self {
        Self { space: Space::Untagged, source, tag: 0, ignore: 0 }
    }

    /// A tagged receive.
    #[inline]
    pub const fn tagged(source: SourceFilter, tag: u64, ignore: u64) -> Self {
        Self { space: Space::Tagged, source, tag, ignore }
    }

    /// Whether a message satisfies it.
    #[inline]
    pub fn matches(&self, envelope: &Envelope) -> bool {
        let tag = self.space == Space::Untagged || self.tag | self.ignore == envelope.tag | self.ignore;
        let source = self.source == SourceFilter::Any || self.source == SourceFilter::From(envelope.peer);
        self.space == envelope.space && source && tag
    }
}

/// The properties of a message without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Untagged or tagged.
    pub space: Space,
    /// The sender.
    pub peer: SourceId,
    /// The tag; meaningless in an untagged message.
    pub tag: u64,
    /// Length of the whole payload in bytes, wherever it is.
    pub len: u64,
    /// Remote CQ data (`FI_REMOTE_CQ_DATA`).
    pub data: Option<u64>,
}

/// The part of the owner's `R` that matching needs.
pub trait PostedReceive {
    /// The application's context, by which it cancels. It does not change while the receive is queued.
    fn context(&self) -> usize;

    /// The address of its memory, which is fetched when a message for it arrives. Any number is harmless.
    fn memory(&self) -> usize;
}

/// Names a queued receive until it is taken; afterwards it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecvId {
    index: u32,
    generation: u32,
}

/// Names an unexpected message until it leaves; afterwards it names nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UnexpectedId {
    index: u32,
    generation: u32,
}

/// An unexpected message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unexpected<U> {
    /// As it arrived.
    pub envelope: Envelope,
    /// Its share of the byte budget.
    pub bytes_held: usize,
    /// The owner's data.
    pub content: U,
}

/// The outcome of posting a receive.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum PostOutcome<R, U> {
    /// It waits.
    Queued(RecvId),
    /// The oldest message that matches, which is no longer stored, and the receive. A multi-receive buffer with room
    /// left must be posted again.
    Matched {
        /// The receive that was not queued.
        recv: R,
        /// The message for it.
        message: Unexpected<U>,
    },
}

/// The receive that a message goes to, still in the queue.
///
/// A plain receive is to be taken; a multi-receive buffer stays, first in line, until the owner finds it full. Dropping
/// a `Match` leaves the receive in the queue.
#[must_use]
pub struct Match<'a, R> {
    posted: &'a mut PostedReceives<R>,
    found: Found,
}

impl<R: PostedReceive> Match<'_, R> {
    /// The receive.
    #[inline]
    pub fn recv(&mut self) -> &mut R {
        self.posted.found_mut(self.found)
    }

    /// Its id, to use it or take it later.
    #[inline]
    pub fn id(&self) -> RecvId {
        self.posted.id(self.found)
    }

    /// Takes it out of the queue, without a second look-up.
    #[inline]
    pub fn take(self) -> R {
        self.posted.take_found(self.found)
    }
}

/// Why a message cannot be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No room for the payload: leave it at the sender and store the envelope alone.
    Bytes,
    /// No room for the envelope: stop this sender until [`Matcher::poll_resume`] names it.
    Envelopes,
}

/// A message that was not stored.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused<U> {
    /// The exhausted budget.
    pub limit: Limit,
    /// The content back.
    pub content: U,
}

/// Limits of one endpoint's matcher.
#[derive(Clone, Debug)]
pub struct MatcherConfig {
    /// Bytes of payload that unexpected messages may hold. Default: 64 MiB, enough for 64 KiB from each of a thousand
    /// senders.
    pub bytes: usize,
    /// Unexpected messages, whether or not they hold bytes. Default: 1,000,000, of about 170 bytes each.
    pub envelopes: usize,
    /// A fixed seed makes the hash of tags the same in every run, for benchmarks that count instructions. Default:
    /// `None`, a random secret; otherwise a peer could choose tags that collide.
    pub hash_seed: Option<u64>,
}

impl Default for MatcherConfig {
    fn default() -> Self {
        Self { bytes: 64 << 20, envelopes: 1_000_000, hash_seed: None }
    }
}

/// The posted receives and unexpected messages of one endpoint.
pub struct Matcher<R, U> {
    posted: PostedReceives<R>,
    unexpected: UnexpectedMessages<U>,
    budget: UnexpectedBudget,
    watcher: Option<Watcher>,
}

/// Receives.
impl<R: PostedReceive, U> Matcher<R, U> {
    /// An empty matcher.
    pub fn new(config: &MatcherConfig) -> Self {
        let hash = KeyHash::new(config.hash_seed);
        Self {
            posted: PostedReceives::new(hash),
            unexpected: UnexpectedMessages::new(hash),
            budget: UnexpectedBudget::new(config),
            watcher: None,
        }
    }

    /// Posts a receive: it gets the oldest unexpected message that matches, or is queued.
    #[inline(always)] // so that `recv` is written in place; what is rare is in functions of its own
    pub fn post(&mut self, want: Want, recv: R) -> PostOutcome<R, U> {
        if !self.unexpected.is_empty(want.space)
            && let Some(message) = self.discard(&want)
        {
            return PostOutcome::Matched { recv, message };
        }
        PostOutcome::Queued(self.posted.push(&want, recv))
    }

    /// As [`post`](Self::post), for a receive from anyone without ignored bits, if no message waits in its space.
    #[inline(always)]
    pub fn queue<const TAGGED: bool>(&mut self, tag: u64, recv: R) -> bool {
        let space = if TAGGED { Space::Tagged } else { Space::Untagged };
        if !self.unexpected.is_empty(space) {
            return false;
        }
        if TAGGED {
            self.posted.push_tagged(tag, recv)
        } else {
            self.posted.push_untagged(recv)
        }
        true
    }

    /// Finds the first posted receive that matches. The owner takes it or leaves it.
    #[inline]
    pub fn arrive(&mut self, envelope: &Envelope) -> Option<Match<'_, R>> {
        let found = self.posted.find(envelope)?;
        Some(Match { posted: &mut self.posted, found })
    }

    /// As [`arrive`](Self::arrive) and [`Match::take`] in one, for receives that `accept` can use by reference. After
    /// `None`, call `arrive`: a receive may still match.
    #[inline(always)]
    pub fn accept<X>(&mut self, envelope: &Envelope, accept: impl FnOnce(&R) -> Option<X>) -> Option<X> {
        self.posted.accept(envelope, accept)
    }

    /// A queued receive, or `None` if it was taken.
    #[inline]
    pub fn get(&self, id: RecvId) -> Option<&R> {
        self.posted.get(id)
    }

    /// A queued receive, or `None` if it was taken.
    #[inline]
    pub fn get_mut(&mut self, id: RecvId) -> Option<&mut R> {
        self.posted.get_mut(id)
    }

    /// Takes a receive out of the queue, or returns `None` if it was taken before.
    pub fn take(&mut self, id: RecvId) -> Option<R> {
        self.posted.take(id)
    }

    /// Takes the first posted receive that satisfies `wanted`. Checks all receives.
    pub fn cancel(&mut self, wanted: impl FnMut(&R) -> bool) -> Option<R> {
        self.posted.take_first(wanted)
    }

    /// Takes the first posted receive with this context (`fi_cancel`), and returns its space. The first of several
    /// successive cancels checks all posted receives, later ones do not.
    pub fn cancel_by_context(&mut self, context: usize) -> Option<(Space, R)> {
        self.posted.cancel(context)
    }

    /// Takes all receives that satisfy `wanted`, in the order of posting: for example those directed at a lost peer, or
    /// all on close. The `Want` passed to it has the ignored bits of its tag set.
    pub fn extract_posted(&mut self, wanted: impl FnMut(&Want, &R) -> bool) -> Vec<R> {
        self.posted.extract(wanted)
    }

    /// Whether a receive is directed at this peer. Checks all receives.
    pub fn has_directed_at(&mut self, peer: SourceId) -> bool {
        let mut found = false;
        drop(self.posted.extract(|want, _| {
            found |= want.source == SourceFilter::From(peer);
            false
        }));
        found
    }

    /// Receives that wait.
    #[inline]
    pub fn posted_len(&self) -> usize {
        self.posted.len()
    }
}

/// Unexpected messages.
impl<R: PostedReceive, U> Matcher<R, U> {
    /// Keeps a message for which [`arrive`](Self::arrive) has just found no receive. `bytes_held` is what its
    /// content occupies here: 0 if the payload was left at the sender.
    ///
    /// # Errors
    /// [`Refused`] with the content if a budget is full; for want of an envelope the sender then counts as
    /// stopped.
    pub fn store(
        &mut self,
        envelope: &Envelope,
        content: U,
        bytes_held: usize,
    ) -> Result<UnexpectedId, Refused<U>> {
        let held = self.budget.hold(envelope.peer, bytes_held);
        self.keep(held, envelope, content, bytes_held)
    }

    /// As [`store`](Self::store), for a payload whose sender could not know that the budget is exhausted. A sender may
    /// have `most` bytes of such messages here; one that sends more violates the protocol.
    ///
    /// # Errors
    /// The message, if it is refused.
    #[cold]
    pub fn store_beyond(
        &mut self,
        envelope: &Envelope,
        content: U,
        bytes_held: usize,
        most: usize,
    ) -> Result<UnexpectedId, Refused<U>> {
        let held = self.budget.hold_beyond(envelope.peer, bytes_held, most);
        self.keep(held, envelope, content, bytes_held)
    }

    #[inline]
    fn keep(
        &mut self,
        held: Result<(), Limit>,
        envelope: &Envelope,
        content: U,
        bytes_held: usize,
    ) -> Result<UnexpectedId, Refused<U>> {
        debug_assert!(self.posted.find(envelope).is_none(), "a posted receive matches");
        match held {
            Ok(()) => {
                self.tell(UnexpectedEvent::Received);
                Ok(self.unexpected.push(Unexpected { envelope: *envelope, bytes_held, content }))
            }
            Err(limit) => Err(Refused { limit, content }),
        }
    }

    /// A stored message, for instance to add to its content as more of it arrives; `None` once it has left.
    #[inline]
    pub fn unexpected_mut(&mut self, id: UnexpectedId) -> Option<&mut U> {
        self.unexpected.get_mut(id).map(|message| &mut message.content)
    }

    /// The oldest message that matches, left where it is (`FI_PEEK`).
    #[inline]
    pub fn peek(&self, want: &Want) -> Option<&Unexpected<U>> {
        self.unexpected.find(want).map(|index| self.unexpected.at(index))
    }

    /// Sets the oldest message that matches aside for `context` (`FI_PEEK | FI_CLAIM`): nothing else will
    /// match it.
    pub fn claim(&mut self, want: &Want, context: usize) -> Option<&Unexpected<U>> {
        let index = self.unexpected.find(want)?;
        self.unexpected.claim(index, context);
        Some(self.unexpected.at(index))
    }

    /// Removes the message claimed for `context`, to receive or discard it (`FI_CLAIM`, with or without `FI_DISCARD`).
    /// If several were claimed for one context, the one claimed first.
    pub fn take_claimed(&mut self, context: usize) -> Option<Unexpected<U>> {
        let index = self.unexpected.claimed(context)?;
        Some(self.remove(index))
    }

    /// Removes the oldest message that matches (`FI_PEEK | FI_DISCARD`). The owner must notify the sender, if it waits.
    #[inline(never)] // so that `post` stays small where it is inlined
    pub fn discard(&mut self, want: &Want) -> Option<Unexpected<U>> {
        let index = self.unexpected.find(want)?;
        Some(self.remove(index))
    }

    /// Handles the loss of a peer. It no longer counts as stopped, and those of its messages for which `lost` returns
    /// true are removed and returned. `lost` gets the context of a claimed message. It may also mark the content and
    /// keep the message, so that its receiver is told of the loss. Complete messages stay.
    pub fn drop_peer(
        &mut self,
        peer: SourceId,
        mut lost: impl FnMut(&mut U, Option<usize>) -> bool,
    ) -> Vec<Unexpected<U>> {
        self.budget.forget(peer);
        let removed = self.unexpected.extract(peer, |message, claim| lost(&mut message.content, claim));
        removed.iter().for_each(|message| self.budget.release(peer, message.bytes_held));
        removed
    }

    /// Empties the matcher, for example when the endpoint closes. Returns the receives in the order of posting, and the
    /// messages.
    pub fn drain(&mut self) -> (Vec<R>, Vec<Unexpected<U>>) {
        let messages = self.unexpected.drain();
        messages.iter().for_each(|message| self.budget.release(message.envelope.peer, message.bytes_held));
        (self.posted.extract(|_, _| true), messages)
    }

    /// Messages that wait, claimed ones included.
    #[inline]
    pub fn unexpected_len(&self) -> usize {
        self.unexpected.len()
    }

    fn remove(&mut self, index: u32) -> Unexpected<U> {
        let message = self.unexpected.remove(index);
        self.budget.release(message.envelope.peer, message.bytes_held);
        self.tell(UnexpectedEvent::Matched);
        message
    }

    /// Installs `watcher`, which is called, under the caller's lock, for each message that is stored or found. Returns
    /// the previous watcher, to be dropped without the lock, because it belongs to the application.
    #[must_use]
    pub fn watch(&mut self, watcher: Option<Watcher>) -> Option<Watcher> {
        std::mem::replace(&mut self.watcher, watcher)
    }

    fn tell(&self, event: UnexpectedEvent) {
        if let Some(watcher) = &self.watcher {
            watcher(event);
        }
    }
}

/// The budget of unexpected messages. How it is shared is described in `budget.rs`.
impl<R: PostedReceive, U> Matcher<R, U> {
    /// Whether `peer` may leave `len` bytes of payload here. If not, they stay at the sender, and the message is stored
    /// with `bytes_held` 0.
    #[inline]
    pub fn may_hold_bytes(&self, peer: SourceId, len: usize) -> bool {
        self.budget.may_hold_bytes(peer, len)
    }

    /// Whether `peer` may have one more unexpected message here. If not, it alone must stop: see
    /// [`stop`](Self::stop).
    #[inline]
    pub fn may_hold_envelope(&self, peer: SourceId) -> bool {
        self.budget.may_hold_envelope(peer)
    }

    /// Records that the owner no longer reads from `peer`, for [`poll_resume`](Self::poll_resume) to name it
    /// later. [`store`](Self::store) does so itself when it refuses an envelope.
    pub fn stop(&mut self, peer: SourceId) {
        self.budget.stop(peer);
    }

    /// A stopped sender that may resume; it no longer counts as stopped. After messages were received, call it until it
    /// returns `None`; it costs one comparison while no sender is stopped. An owner whose senders retry by themselves
    /// need not call it, because a sender also stops counting as stopped when a message of it is accepted.
    #[inline]
    pub fn poll_resume(&mut self) -> Option<SourceId> {
        self.budget.resume()
    }

    /// Senders stopped now.
    pub fn stopped_len(&self) -> usize {
        self.budget.stopped()
    }

    /// The number of times that a sender was stopped since the start.
    pub fn stops(&self) -> u64 {
        self.budget.stops()
    }

    /// Bytes that unexpected messages hold.
    pub fn bytes_held(&self) -> usize {
        self.budget.bytes()
    }

    /// The bytes and the number of one sender's unexpected messages, claimed ones included.
    pub fn held_by(&self, peer: SourceId) -> (usize, usize) {
        (self.budget.bytes_of(peer), self.budget.envelopes_of(peer))
    }

    /// Unexpected messages of one sender, claimed ones included.
    pub fn envelopes_of(&self, peer: SourceId) -> usize {
        self.budget.envelopes_of(peer)
    }
}
