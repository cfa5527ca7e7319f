//! The sending end: a queue for each target, which is emptied as credits and room allow.

mod answers;
mod begun;
pub(crate) mod egress;
mod foreign;
mod pace;
mod peer;
mod post;
mod silence;
mod submit;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::{Domain, Geometry, GrainReader, SampleReader, Uuid};
use ofi::raw::CompletionQueue;
use ofi::{Errno, FiAddr};

use crate::driven::sealed::Polled;
use crate::initiator::egress::{Called, Egress};
use crate::link::{Happened, Link, LinkEnd};
use crate::message::{Message, VERSION};
use crate::rest::WaitFor;
use crate::sdk::plant::{self, Plant};
use crate::{Beside, Error, Histogram, Options, Protocol, Provider, Result, TargetInfo, beside, shape};
use pace::Pace;
use peer::TargetPeer;
pub(crate) use peer::{Job, Payload, What};
pub use peer::{PeerState, PeerStats, Transfer};

/// Interval of greetings to a silent target.
const GREET_EVERY: Duration = Duration::from_millis(250);
/// Interval of attempts to send a greeting for which there is no room: transfers to a removed target are still ending.
const ROOM_EVERY: Duration = Duration::from_millis(2);
/// Time that a target may leave a delivered request unanswered before the initiator greets it again. A target
/// that is not running receives no request; if it has died, the request fails.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum unread events.
const EVENTS: usize = 4096;

enum Source {
    Grains(GrainReader),
    Samples(SampleReader),
}

/// Sends a flow to targets.
pub struct Initiator {
    // Dropped in this order: the endpoint is closed before the rings that it reads from are unmapped.
    link: Link,
    /// Targets of the C++ SDK.
    foreign: Option<Egress>,
    source: Source,
    geometry: Geometry,
    provider: Provider,
    peers: Vec<TargetPeer>,
    /// The target whose turn is first.
    first: usize,
    events: VecDeque<Transfer>,
    nonsense: u64,
    pace: Option<Pace>,
}

impl Initiator {
    /// Opens a flow of `domain` for sending.
    ///
    /// # Errors
    /// [`Error::Flow`] if the flow cannot be read; [`Error::Stack`] and [`Error::Argument`] if the provider is not
    /// available there.
    pub fn open(
        domain: &Domain,
        flow: Uuid,
        provider: Provider,
        place: (Option<&str>, Option<&str>),
    ) -> Result<Self> {
        Self::open_with(domain, flow, provider, place, &Options::default())
    }

    /// Opens a flow like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Error::Argument`] for options that the provider cannot fulfil.
    pub fn open_with(
        domain: &Domain,
        flow: Uuid,
        provider: Provider,
        place: (Option<&str>, Option<&str>),
        options: &Options,
    ) -> Result<Self> {
        let geometry = domain.definition(flow)?.geometry();
        let source = match geometry {
            Geometry::Grains { .. } => Source::Grains(domain.read_grains_on_demand(flow)?),
            Geometry::Samples { .. } => Source::Samples(domain.read_samples(flow)?),
        };
        let link = Link::open(provider, place, LinkEnd::Initiator, options)?;
        if let Geometry::Grains { payload, .. } = geometry {
            let limits = link.write_limits();
            let parts = shape::most_parts(4, payload.into(), limits);
            if link.writes && parts > shape::GRAIN_PARTS {
                let (bytes, most) = (limits.bytes, shape::GRAIN_PARTS);
                return Err(Error::Argument(format!(
                    "a grain of {payload} bytes takes up to {parts} writes of {bytes} bytes, more than {most}: \
                     raise max_message"
                )));
            }
        }
        let pace = options.pacing.as_ref().map(Pace::new).transpose()?;
        let foreign = if plant::carries(provider) && options.key.is_none() && !options.messages_only {
            let plant = Plant::open(provider, (place.0, None), options)?;
            Some(Egress { called: Vec::new(), plant })
        } else {
            None
        };
        let (peers, events) = (Vec::new(), VecDeque::new());
        Ok(Self { link, foreign, source, geometry, provider, peers, first: 0, events, nonsense: 0, pace })
    }

    /// Adds a target. [`poll`](Self::poll) connects to it, and reconnects whenever the connection is lost. If a target
    /// was set up again under its id, possibly at another address, its new info replaces the older one. If another
    /// initiator has replaced this one at the target ([`PeerState::Parted`]), adding the target again replaces that
    /// initiator.
    ///
    /// # Errors
    /// [`Error::Info`] for a target that this library or provider cannot reach, or with another kind of flow;
    /// [`Error::Exists`]; [`Error::Argument`] for a target of the C++ SDK if [`Options::max_message`] has no room for a
    /// header and a byte of payload.
    pub fn add(&mut self, info: &TargetInfo) -> Result<()> {
        if info.protocol() == Protocol::Sdk {
            return self.add_foreign(info);
        }
        info.check(&self.geometry)?;
        if info.provider.of_stack() != self.provider.of_stack() {
            let what = format!("the target is reached over {}, not {}", info.provider, self.provider);
            return Err(Error::Info(what));
        }
        let there = self.peers.iter().position(|peer| peer.info.id == info.id);
        if let Some(there) = there.map(|at| &self.peers[at]) {
            let is_again = there.is_replaced() && !there.info.is_newer_than(info);
            if !is_again && !info.is_newer_than(&there.info) {
                return Err(Error::Exists(info.id));
            }
        }
        let addr = self.reach(info)?;
        // The C++ SDK's target of this id has made way for one of this library.
        self.replace_foreign(info.id);
        let Some(at) = there else {
            self.peers.push(TargetPeer { addr, ..TargetPeer::new(info.clone()) });
            return Ok(());
        };
        // Operations in flight to the same address end below only if this is its last insertion.
        if let Some(addr) = addr {
            self.link.remove(addr);
        }
        // The previous target is gone, or has another initiator.
        self.part(at);
        let peer = &mut self.peers[at];
        (peer.info, peer.greet, peer.state) = (info.clone(), Instant::now(), PeerState::Connecting);
        Ok(())
    }

    /// The endpoint's number for a target's address. `None` if there is no room now; the next greeting tries again.
    fn reach(&mut self, info: &TargetInfo) -> Result<Option<FiAddr>> {
        let (format, address) = info.own_address();
        match self.link.insert(format, address) {
            Ok(addr) => Ok(Some(addr)),
            // Repetition would not help.
            Err(error) if error == Errno::EINVAL || error == Errno::EADDRNOTAVAIL => {
                let (len, provider) = (address.len(), self.provider);
                Err(Error::Info(format!(
                    "the address ({len} bytes of format {format}) cannot be reached over {provider}: {error}"
                )))
            }
            Err(_) => Ok(None),
        }
    }

    /// Removes a target. Queued transfers to it are dropped.
    ///
    /// # Errors
    /// [`Error::NotFound`].
    pub fn remove(&mut self, id: u64) -> Result<()> {
        if self.remove_foreign(id) {
            return Ok(());
        }
        let at = self.peers.iter().position(|peer| peer.info.id == id).ok_or(Error::NotFound(id))?;
        let peer = self.peers.swap_remove(at);
        if let Some(addr) = peer.addr {
            if peer.state == PeerState::Connected {
                // If this message is lost, the target notices when the next initiator connects.
                let _ = self.link.send(addr, &Message::Bye { token: peer.token });
            }
            self.link.remove(addr);
        }
        Ok(())
    }

    /// Each target's id, state and statistics.
    pub fn targets(&self) -> impl Iterator<Item = (u64, PeerState, PeerStats)> {
        let own = self.peers.iter().map(|peer| (peer.info.id, peer.state, peer.stats));
        own.chain(self.foreign_targets().map(|there| (there.info.id, there.state(), there.stats)))
    }

    /// The protocol that this initiator speaks to a target; `None` for a target that was not added.
    pub fn protocol(&self, id: u64) -> Option<Protocol> {
        let is_own = self.peers.iter().any(|peer| peer.info.id == id);
        let is_foreign = self.foreign_targets().any(|there| there.info.id == id);
        if is_own { Some(Protocol::Own) } else { is_foreign.then_some(Protocol::Sdk) }
    }

    /// A target's state and statistics.
    pub fn target(&self, id: u64) -> Option<(PeerState, PeerStats)> {
        self.targets().find(|(other, ..)| *other == id).map(|(_, state, stats)| (state, stats))
    }

    /// Whether a target is left to send to.
    ///
    /// # Errors
    /// [`Error::Replaced`] if there are targets, and another initiator has replaced this one at all of them.
    pub fn check(&self) -> Result<()> {
        match self.peers.first() {
            Some(first)
                if self.foreign_targets().next().is_none()
                    && self.peers.iter().all(TargetPeer::is_replaced) =>
            {
                Err(Error::Replaced(first.info.id))
            }
            _ => Ok(()),
        }
    }

    /// Dropped messages: invalid ones, and those from senders that are not targets of this initiator.
    pub fn nonsense(&self) -> u64 {
        self.nonsense
    }

    /// The flow that is sent.
    pub fn flow(&self) -> Uuid {
        match &self.source {
            Source::Grains(reader) => reader.id(),
            Source::Samples(reader) => reader.id(),
        }
    }

    /// Latencies of transfers to a target, from submission to arrival in its ring.
    pub fn latency(&self, id: u64) -> Option<&Histogram> {
        let own = self.peers.iter().find(|peer| peer.info.id == id).map(|peer| &peer.latency);
        own.or_else(|| self.foreign_targets().find(|there| there.info.id == id).map(|there| &there.latency))
    }

    /// Drives all targets. Never blocks. Returns whether an event occurred.
    ///
    /// # Errors
    /// [`Error::Stack`] when the endpoint is broken; a target's failure is its [`PeerState`].
    pub fn poll(&mut self) -> Result<bool> {
        let mut happened = Vec::new();
        let was_busy = self.link.poll(&mut happened)?;
        for happened in happened {
            match happened {
                Happened::Ended(op, result) => self.ended(op, result.is_ok()),
                Happened::Message(message) => self.said(message),
                // An initiator grants no memory, so no peer writes to it.
                Happened::Piece(receive) => {
                    self.link.release(receive);
                    self.nonsense += 1;
                }
                Happened::Arrived(_) | Happened::Nonsense => self.nonsense += 1,
            }
        }
        self.pump_all();
        let was_served = self.serve_foreign()?;
        Ok(was_busy || was_served)
    }

    /// Whether all targets are connected and nothing is queued or in flight. Targets where another initiator has
    /// replaced this one do not count: see [`check`](Self::check).
    pub fn is_idle(&self) -> bool {
        let is_idle = |peer: &TargetPeer| peer.state == PeerState::Connected && peer.is_idle();
        self.peers.iter().all(|peer| peer.is_replaced() || is_idle(peer))
            && self.foreign_targets().all(|there| there.is_connected() && there.is_idle())
    }

    /// The oldest unread event.
    pub fn event(&mut self) -> Option<Transfer> {
        self.events.pop_front()
    }

    /// Polls until every submitted transfer has arrived or is lost. Returns false if `timeout` expires first. See
    /// [`confirm`](Self::confirm) for when readers see it.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    pub fn flush(&mut self, timeout: Duration) -> Result<bool> {
        self.wait(timeout, |this| {
            this.peers.iter().all(TargetPeer::is_idle) && this.foreign_targets().all(Called::is_idle)
        })
    }

    /// Polls until the targets have published every submitted transfer, or it is lost, torn or unconfirmed. Returns
    /// false if `timeout` expires first: a target of an older build says that it has published only for every sixteenth
    /// transfer.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll).
    pub fn confirm(&mut self, timeout: Duration) -> Result<bool> {
        self.wait(timeout, |this| {
            this.peers.iter().all(|peer| peer.is_idle() && peer.arrived.is_empty())
                && this.foreign_targets().all(Called::is_idle)
        })
    }

    /// Polls until all targets are connected. Returns false if `timeout` expires first.
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll), and [`Error::Replaced`] once another initiator has replaced this one at a
    /// target.
    pub fn connect(&mut self, timeout: Duration) -> Result<bool> {
        let replaced =
            |this: &Self| this.peers.iter().find(|peer| peer.is_replaced()).map(|peer| peer.info.id);
        let are_connected = |this: &Self| this.targets().all(|(_, state, _)| state == PeerState::Connected);
        self.wait(timeout, |this| are_connected(this) || replaced(this).is_some())?;
        replaced(self).map_or_else(|| Ok(are_connected(self)), |id| Err(Error::Replaced(id)))
    }

    /// Polls until [`is_idle`](Self::is_idle). Returns false if `timeout` expires first. Targets must be driven
    /// meanwhile: a thread that drives them too calls [`settle_beside`](Self::settle_beside).
    ///
    /// # Errors
    /// The errors of [`poll`](Self::poll) and [`check`](Self::check).
    pub fn settle(&mut self, timeout: Duration) -> Result<bool> {
        self.settle_beside(timeout, &mut ())
    }

    /// Does the same as [`settle`](Self::settle), and drives other ends meanwhile, such as a target that this thread
    /// reads.
    ///
    /// # Errors
    /// Those of [`settle`](Self::settle), and of the other ends.
    pub fn settle_beside(&mut self, timeout: Duration, others: &mut dyn Beside) -> Result<bool> {
        let is_idle = beside::wait(self, others, timeout, Self::is_idle)?;
        self.check()?;
        Ok(is_idle)
    }

    fn wait(&mut self, timeout: Duration, is_done: impl Fn(&Self) -> bool) -> Result<bool> {
        beside::wait(self, &mut (), timeout, is_done)
    }

    fn tell(&mut self, event: Transfer) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    fn lose(&mut self, at: usize, index: u64) {
        let peer = &mut self.peers[at];
        peer.stats.lost += 1;
        let target = peer.info.id;
        self.tell(Transfer::Lost { target, index });
    }

    /// Greets a target that is not connected.
    fn greet(&mut self, at: usize) {
        let Self { link, peers, .. } = self;
        let peer = &mut peers[at];
        if peer.state == PeerState::Connected || peer.is_replaced() || Instant::now() < peer.greet {
            return;
        }
        peer.greet = Instant::now() + GREET_EVERY;
        if !peer.flights.is_empty() {
            return; // the last greeting has not arrived, and hung targets must leave places to those of others
        }
        // One nonce for each attempt: the first answer counts, however often the greeting was repeated
        // meanwhile. No other target can guess it.
        if peer.nonce == 0 {
            let Ok(nonce) = getrandom::u64() else { return };
            peer.nonce = nonce.max(1);
        }
        let (nonce, geometry) = (peer.nonce, shape::numbers(&self.geometry));
        let (format, address) = link.name.clone();
        let messages = u8::from(!link.writes);
        if peer.addr.is_none() {
            let (format, address) = peer.info.own_address();
            peer.addr = link.insert(format, address).ok();
        }
        let Some(addr) = peer.addr else { return };
        let hello = Message::Hello {
            version: VERSION,
            target: peer.info.id,
            nonce,
            geometry,
            messages,
            format,
            address,
        };
        match link.send(addr, &hello) {
            Ok(Some(op)) => {
                peer.flights.insert(op, None);
            }
            Ok(None) => peer.greet = Instant::now() + ROOM_EVERY,
            Err(_) => self.part(at),
        }
    }

    /// Drops the connection to a target and the transfers that wait for it.
    pub(crate) fn part(&mut self, at: usize) {
        let peer = &mut self.peers[at];
        let was_connected = peer.state == PeerState::Connected;
        let gone: Vec<u64> = peer.jobs.drain(..).map(|job| job.index).collect();
        // The rest of a batch that was posted in part is still a job.
        let sent = std::mem::take(&mut peer.sent).into_values().filter(|sent| sent.is_posted);
        let gone: Vec<u64> = sent.map(|sent| sent.index).chain(gone).collect();
        let unconfirmed = std::mem::take(&mut peer.arrived);
        peer.stats.unconfirmed += unconfirmed.len() as u64;
        peer.begun.clear();
        peer.flights.clear();
        peer.grants.clear();
        peer.parts.clear();
        peer.verdicts.clear();
        (peer.asked, peer.position, peer.number, peer.published, peer.until) = (None, None, 0, 0, 0);
        peer.full = None;
        // The target's last statement holds until it answers again.
        if !matches!(peer.state, PeerState::Parted(_)) {
            peer.state = PeerState::Connecting;
        }
        if peer.nonce != 0 {
            (peer.former, peer.nonce) = ((peer.nonce, false), 0);
        }
        peer.greet = Instant::now() + GREET_EVERY;
        if let Some(addr) = peer.addr.take() {
            self.link.remove(addr);
        }
        let target = peer.info.id;
        for index in unconfirmed.into_values() {
            self.tell(Transfer::Unconfirmed { target, index });
        }
        gone.into_iter().for_each(|index| self.lose(at, index));
        if was_connected {
            self.tell(Transfer::Disconnected { target });
        }
    }
}

impl Polled for Initiator {
    type Event = Transfer;

    fn turn(&mut self) -> Result<bool> {
        self.poll()
    }

    fn take(&mut self) -> Option<Transfer> {
        self.events.pop_front()
    }

    fn rest(&self) -> WaitFor {
        let rest = |peer: &TargetPeer| match peer.state {
            PeerState::Connected => {
                peer.silence_due().map_or(peer.rest, |due| peer.rest.or(WaitFor::Until(due)))
            }
            _ if peer.is_replaced() => WaitFor::Announced,
            _ => WaitFor::Until(peer.greet),
        };
        let foreign = self.foreign_targets().map(Called::due);
        self.peers.iter().map(rest).chain(foreign).fold(WaitFor::Announced, WaitFor::or)
    }

    fn is_quiet(&self) -> bool {
        !self.link.is_sending() && self.is_idle() && self.peers.iter().all(|peer| peer.arrived.is_empty())
    }

    fn queues(&self) -> Vec<Arc<dyn CompletionQueue>> {
        let foreign = self.foreign.as_ref().map(|foreign| Arc::clone(&foreign.plant.cq));
        std::iter::once(self.link.queue()).chain(foreign).collect()
    }
}

#[cfg(test)]
mod tests;
