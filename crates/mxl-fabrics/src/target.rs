//! The receiving end: creates the flow, opens slots for its initiator, and publishes arriving data.

mod events;
mod foreign;
pub(crate) mod ingress;
mod peer;
mod pieces;
mod publish;
mod slots;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mxl::layout::PAYLOAD_OFFSET;
use mxl::{Domain, FlowDefinition, Geometry, GrainWriter, SampleWriter, Uuid};
use ofi::raw::CompletionQueue;

pub use events::{Received, TargetStats, TargetTimes};
use peer::{Dismissals, InitiatorPeer, Stuck};
pub(crate) use slots::silence;

use crate::driven::sealed::Polled;
use crate::info::MAX_REGIONS;
use crate::link::{Happened, Link, LinkEnd};
use crate::message::{Message, VERSION, Why};
use crate::rest::WaitFor;
use crate::sdk::{plant, wire};
use crate::target::ingress::Ingress;
use crate::{
    Beside, Error, Options, OwnKeys, Protocol, Provider, RegionInfo, Result, TargetInfo, beside, shape,
};

/// Maximum unread events.
pub(crate) const EVENTS: usize = 4096;

enum Ring {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

/// Receives a flow.
pub struct Target {
    // Dropped in this order, after the farewell: memory is withdrawn, the endpoint closed, the flow released.
    peer: Option<InitiatorPeer>,
    link: Link,
    /// For initiators of the C++ SDK.
    ingress: Option<Ingress>,
    /// After the endpoint, which ends the accesses to them.
    stuck: Stuck,
    ring: Ring,
    geometry: Geometry,
    info: TargetInfo,
    events: VecDeque<Received>,
    dismissed: Dismissals,
    /// The nonces of the last attempts that another one replaced.
    replaced: VecDeque<u64>,
    /// The addresses of the last initiators, each of which has read its welcome.
    proven: VecDeque<(u32, Vec<u8>)>,
    /// Greetings in order of arrival: each is accepted after everything that arrived before it.
    greetings: VecDeque<Message>,
    /// The time when the target began to close.
    left: Option<Instant>,
    /// The endpoint or the flow has failed.
    is_broken: bool,
    /// The next index if nothing is lost.
    expected: Option<u64>,
    stats: TargetStats,
    times: TargetTimes,
}

/// An unpredictable number.
fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| Error::Argument(format!("no random numbers: {error}")))
}

/// The regions of a target without memory for the C++ SDK's initiators: their sizes alone. Initiators of the C++ SDK
/// divide by their number.
fn regions(ring: &Ring, geometry: &Geometry) -> Vec<RegionInfo> {
    let (count, len) = match (ring, geometry) {
        (Ring::Grains(writer), Geometry::Grains { payload, .. }) => {
            (writer.grains().min(MAX_REGIONS as u64), PAYLOAD_OFFSET as u64 + u64::from(*payload))
        }
        (Ring::Samples(writer), _) => (1, writer.strides().1 as u64 * u64::from(writer.channels())),
        _ => (0, 0),
    };
    (0..count).map(|_| RegionInfo { addr: 0, len, rkey: 0 }).collect()
}

/// The number and length of the regions for the C++ SDK's initiators: a slot for each grain, or entries for samples.
/// `None` if its protocol has no room for the ring.
fn lent(ring: &Ring, geometry: &Geometry) -> Option<(usize, usize)> {
    let (count, len) = match (ring, geometry) {
        (Ring::Grains(writer), Geometry::Grains { payload, .. }) => {
            (writer.grains(), PAYLOAD_OFFSET as u64 + u64::from(*payload))
        }
        (Ring::Samples(writer), Geometry::Samples { channels, word, .. }) => {
            let (word, length) = (u64::from(*word), writer.max_write() * 2);
            let batch = u64::from(writer.info().config.common.max_sync_batch);
            wire::entries(length, batch, *channels, word)?
        }
        _ => return None,
    };
    let is_fine = count <= MAX_REGIONS as u64;
    is_fine.then_some((usize::try_from(count).ok()?, usize::try_from(len).ok()?))
}

/// The service after one that is given, for the endpoint of this library's protocol beside that of the C++ SDK's.
fn next_service(service: Option<&str>) -> Option<String> {
    let port: u16 = service?.parse().ok()?;
    port.checked_add(1).filter(|_| port > 0).map(|port| port.to_string())
}

impl Target {
    /// Creates (or opens) a flow in `domain` that initiators may write.
    ///
    /// `node` and `service` are its address. A target that must be found again after a restart needs a fixed service
    /// and the `id` of its old [`TargetInfo`].
    ///
    /// Over [`Provider::Tcp`] and [`Provider::Verbs`] it listens at two ports: `service` for initiators of the C++ SDK,
    /// and the next one for those of this library. Without a service, both are any ports. With
    /// [`Options::messages_only`] or [`Options::key`] it serves this library's alone, at `service`.
    ///
    /// # Errors
    /// [`Error::Flow`] if the flow cannot be created; [`Error::Stack`] and [`Error::Argument`] if the provider is not
    /// available there.
    pub fn open(
        domain: &Domain,
        definition: &FlowDefinition,
        provider: Provider,
        place: (Option<&str>, Option<&str>),
        id: Option<u64>,
    ) -> Result<Self> {
        Self::open_with(domain, definition, provider, place, id, &Options::default())
    }

    /// Opens a target like [`open`](Self::open), with options.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and [`Error::Argument`] for options that the provider cannot fulfil.
    pub fn open_with(
        domain: &Domain,
        definition: &FlowDefinition,
        provider: Provider,
        place: (Option<&str>, Option<&str>),
        id: Option<u64>,
        options: &Options,
    ) -> Result<Self> {
        let geometry = definition.geometry();
        let hints = &options.batches;
        let ring = match geometry {
            Geometry::Grains { .. } => Ring::Grains(domain.create_grains(definition, hints)?.writer),
            Geometry::Samples { .. } => {
                Ring::Samples(Box::new(domain.create_samples(definition, hints)?.writer))
            }
        };
        let (link, ingress) = Self::ends(provider, place, options, lent(&ring, &geometry))?;
        let id = id.map_or_else(random, Ok)?;
        let own = link.name.clone();
        let ((format, address), own, lent) = match &ingress {
            Some(ingress) => (ingress.name.clone(), Some(own), ingress.regions()),
            None => (own, None, regions(&ring, &geometry)),
        };
        let bounce = match (&ingress, &ring) {
            (Some(ingress), Ring::Samples(_)) => Some((ingress.count() as u64, ingress.len())),
            _ => None,
        };
        let ours = OwnKeys {
            version: VERSION,
            geometry: Some(shape::numbers(&geometry)),
            has_writes: link.writes,
            epoch: mxl::time::now(),
            address: own,
        };
        let info = TargetInfo { id, provider, format, address, regions: lent, bounce, ours: Some(ours) };
        Ok(Self {
            peer: None,
            link,
            ingress,
            stuck: Stuck::default(),
            ring,
            geometry,
            info,
            events: VecDeque::new(),
            dismissed: Dismissals::default(),
            replaced: VecDeque::new(),
            proven: VecDeque::new(),
            greetings: VecDeque::new(),
            left: None,
            is_broken: false,
            expected: None,
            stats: TargetStats::default(),
            times: TargetTimes::default(),
        })
    }

    /// The endpoint of this library's protocol, and that of the C++ SDK's if the provider carries it: at the given
    /// service, and the former at the next one.
    fn ends(
        provider: Provider,
        (node, service): (Option<&str>, Option<&str>),
        options: &Options,
        lent: Option<(usize, usize)>,
    ) -> Result<(Link, Option<Ingress>)> {
        let Some(lent) =
            lent.filter(|_| plant::carries(provider) && !options.messages_only && options.key.is_none())
        else {
            return Ok((Link::open(provider, (node, service), LinkEnd::Target, options)?, None));
        };
        let ingress = Ingress::open(provider, (node, service), options, lent)?;
        let link = match next_service(service) {
            None => Link::open(provider, (node, None), LinkEnd::Target, options)?,
            Some(next) => Link::open(provider, (node, Some(&next)), LinkEnd::Target, options)?,
        };
        Ok((link, Some(ingress)))
    }

    /// The protocol of the connected initiator; `None` without one.
    pub fn protocol(&self) -> Option<Protocol> {
        let is_foreign = self.ingress.as_ref().is_some_and(Ingress::is_connected);
        match &self.peer {
            Some(_) => Some(Protocol::Own),
            None => is_foreign.then_some(Protocol::Sdk),
        }
    }

    /// The target's address and identity, for [`Initiator::add`](crate::Initiator::add).
    pub fn info(&self) -> &TargetInfo {
        &self.info
    }

    /// The flow that is received.
    pub fn flow(&self) -> Uuid {
        match &self.ring {
            Ring::Grains(writer) => writer.id(),
            Ring::Samples(writer) => writer.id(),
        }
    }

    /// The statistics.
    pub fn stats(&self) -> TargetStats {
        self.stats
    }

    /// Histograms of its times.
    pub fn times(&self) -> &TargetTimes {
        &self.times
    }

    /// Whether an initiator is connected, as far as the target knows.
    pub fn is_connected(&self) -> bool {
        self.protocol().is_some()
    }

    /// Publishes everything that has arrived, and returns the oldest event not returned before. It waits
    /// for no data; closing the memory of a former initiator may take a second for each slot that is still written.
    ///
    /// # Errors
    /// [`Error::Stack`] when the endpoint is broken.
    pub fn poll(&mut self) -> Result<Option<Received>> {
        self.turn()?;
        Ok(self.events.pop_front())
    }

    /// Does the same as [`poll`](Self::poll), but sleeps until there is an event, at most until the timeout expires.
    /// The initiator must be driven meanwhile: a thread that drives it too calls [`read_beside`](Self::read_beside).
    ///
    /// # Errors
    /// Those of [`poll`](Self::poll).
    pub fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        self.read_beside(timeout, &mut ())
    }

    /// Does the same as [`read`](Self::read), and drives other ends meanwhile, such as an initiator of this thread.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and of the other ends.
    pub fn read_beside(&mut self, timeout: Duration, others: &mut dyn Beside) -> Result<Option<Received>> {
        beside::wait(self, others, timeout, |this| !this.events.is_empty())?;
        Ok(self.events.pop_front())
    }

    fn turn(&mut self) -> Result<bool> {
        let turned = self.advance();
        self.is_broken = turned.is_err();
        if self.is_broken {
            self.part(Some(Why::Broken));
        }
        turned
    }

    fn advance(&mut self) -> Result<bool> {
        let mut happened = Vec::new();
        let was_busy = self.link.poll(&mut happened)?;
        let taken = self.stats.taken;
        for happened in happened {
            // A new initiator has no memory yet: writes from before its greeting are those of another one.
            if self.stats.taken == taken || !matches!(happened, Happened::Arrived(_)) {
                self.handle(happened)?;
            }
        }
        // Each may bring further greetings, but a sender cannot prolong one turn for ever.
        let waiting = self.greetings.len();
        for _ in 0..waiting {
            if let Some(greeting) = self.greetings.pop_front() {
                self.said(greeting)?;
            }
        }
        let was_served = self.serve_foreign()?;
        self.flush();
        Ok(was_busy || was_served || waiting > 0)
    }

    fn tell(&mut self, event: Received) {
        if self.events.len() == EVENTS {
            self.events.pop_front();
            self.stats.missed += 1;
        }
        self.events.push_back(event);
    }

    fn handle(&mut self, happened: Happened) -> Result<()> {
        match happened {
            Happened::Nonsense => self.stats.nonsense += 1,
            Happened::Arrived(data) => self.arrived(data)?,
            Happened::Piece(receive) => self.piece(receive)?,
            Happened::Message(message) => self.said(message)?,
            Happened::Ended(op, result) => {
                let is_of_peer =
                    !self.dismissed(op) && self.peer.as_ref().is_some_and(|peer| op > peer.since);
                if result.is_err() && is_of_peer {
                    // Only messages to initiators end here. One to an initiator that was killed may fail long after the
                    // next one was accepted.
                    self.part(Some(Why::Failed));
                }
            }
        }
        Ok(())
    }

    fn said(&mut self, message: Message) -> Result<()> {
        let token = self.peer.as_ref().map(|peer| peer.token);
        if let Some(peer) = self.peer.as_mut().filter(|peer| message.token_of_initiator() == Some(peer.token))
        {
            peer.is_proven = true;
        }
        match message {
            Message::Hello { version, target, nonce, geometry, messages, format, address } => {
                let why = if version != VERSION {
                    Some(Why::Version)
                } else if target != self.info.id {
                    Some(Why::Target)
                } else {
                    (geometry != shape::numbers(&self.geometry)).then_some(Why::Geometry)
                };
                self.hello(nonce, (format, &address), messages == 1, why)
            }
            Message::Open { token: of, index, floor } if token == Some(of) => self.open_for(index, floor),
            Message::Invalid { token: of, number, index } if token == Some(of) => self.invalid(number, index),
            Message::Verdict { token: of, number, whole } if token == Some(of) => {
                let peer = self.peer.as_mut();
                let pending = peer.and_then(|peer| peer.pending.get_mut(&number));
                let Some(pending) = pending.filter(|_| whole <= 2) else {
                    self.stats.nonsense += 1;
                    return Ok(());
                };
                if whole == 2 {
                    // No further parts follow, and everything that was sent has arrived.
                    (pending.parts, pending.invalid) = (pending.arrived, true);
                }
                (pending.is_judged, pending.invalid) = (true, pending.invalid || whole == 0);
                self.publish()
            }
            Message::Bye { token: of } if token == Some(of) => {
                self.part(None);
                Ok(())
            }
            // From a replaced initiator, or from an unknown sender.
            _ => {
                self.stats.nonsense += 1;
                Ok(())
            }
        }
    }
}

impl Polled for Target {
    type Event = Received;

    fn turn(&mut self) -> Result<bool> {
        self.turn()
    }

    fn take(&mut self) -> Option<Received> {
        self.events.pop_front()
    }

    fn has_room(&self) -> bool {
        self.events.len() < EVENTS / 2
    }

    fn rest(&self) -> WaitFor {
        let peer = self.peer.as_ref();
        let full = peer.and_then(|peer| Some((peer.addr, peer.next_message()?.0)));
        let report = peer.and_then(|peer| peer.report_due(&self.link)).map(WaitFor::Until);
        let dismissals = self.has_dismissals().then_some(WaitFor::Room);
        let room = full.map(|(addr, kind)| self.link.wait_for_room(addr, kind));
        [report, dismissals, room].into_iter().flatten().fold(WaitFor::Announced, WaitFor::or)
    }

    fn is_quiet(&self) -> bool {
        let is_quiet = |peer: &InitiatorPeer| peer.pending.is_empty() && peer.outbox.is_empty();
        // No descriptor announces a request for a connection.
        let is_called = self.ingress.is_some() && self.peer.is_none();
        !is_called
            && !self.link.is_sending()
            && self.greetings.is_empty()
            && self.peer.as_ref().is_none_or(is_quiet)
    }

    fn queues(&self) -> Vec<Arc<dyn CompletionQueue>> {
        let foreign = self.ingress.as_ref().map(|ingress| Arc::clone(&ingress.plant.cq));
        std::iter::once(self.link.queue()).chain(foreign).collect()
    }
}
