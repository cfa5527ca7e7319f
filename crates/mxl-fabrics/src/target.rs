//! The end that receives: makes the flow, opens slots for its initiator, and publishes what arrives.
#![allow(unsafe_code)]

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use mxl::{BatchHints, Domain, FlowDefinition, Geometry, GrainInfo, GrainWriter, SampleWriter, Uuid};
use ofi::FiAddr;

use crate::link::{Happened, Link, Memory, OpId, Window};
use crate::message::{Commit, Message, Remote, VERSION, Why, widen};
use crate::{Error, Provider, RegionInfo, Result, TargetInfo, shape};

/// Slots that are open beyond the one that is written: the next grain need not wait for its slot. Readers of the target's
/// flow have as much less history.
const AHEAD: usize = 2;
/// Commits that may be told before one that comes earlier.
const EARLY: u64 = 64;
/// Queue reads that fetch what an old initiator's writes completed, at most: nobody keeps a target busy by talking.
const DRAINED: usize = 64;
/// Refusals under way.
const DISMISSED: usize = 16;
/// What a caller who does not look may miss.
const EVENTS: usize = 4096;
/// How long a wait sleeps between two looks.
const NAP: Duration = Duration::from_micros(50);

/// What arrived. It is published already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Received {
    /// Slices of a grain are there.
    Grain {
        /// Which.
        index: u64,
        /// How many slices are valid now.
        slices: u16,
        /// The payload means nothing.
        invalid: bool,
    },
    /// Samples are there.
    Samples {
        /// They end before this one.
        index: u64,
        /// How many.
        count: u64,
    },
    /// Grains or samples that will not come.
    Lost {
        /// The first of them.
        first: u64,
        /// How many.
        count: u64,
    },
    /// An initiator begins to write; one that did before does no more.
    Connected,
    /// The initiator has gone.
    Disconnected,
}

/// What a target has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TargetStats {
    /// Commits that were published.
    pub published: u64,
    /// Grains or samples that did not come.
    pub lost: u64,
    /// Grains without a valid payload.
    pub invalid: u64,
    /// Initiators that were taken.
    pub taken: u64,
    /// Initiators that were refused.
    pub refused: u64,
    /// Messages and writes that made no sense.
    pub nonsense: u64,
    /// Events that nobody fetched.
    pub missed: u64,
}

enum Ring {
    Grains(GrainWriter),
    Samples(Box<SampleWriter>),
}

/// A commit of which something has arrived.
struct Pending {
    index: u64,
    /// Valid slices, or samples.
    amount: u64,
    invalid: bool,
    parts: u32,
    arrived: u32,
    /// The initiator has said what it is worth.
    is_judged: bool,
}

struct Peer {
    // Dropped first: then nothing of its writes arrives any more.
    windows: HashMap<u64, Window>,
    addr: FiAddr,
    nonce: u64,
    token: u64,
    /// Indices whose slots are open.
    granted: VecDeque<u64>,
    /// The number of the next commit.
    next: u64,
    pending: BTreeMap<u64, Pending>,
    outbox: VecDeque<Message>,
    /// Samples up to here may be written.
    until: u64,
}

/// Receives a flow.
pub struct Target {
    // In this order: memory is withdrawn, the endpoint closed, the flow given up.
    peer: Option<Peer>,
    link: Link,
    ring: Ring,
    geometry: Geometry,
    info: TargetInfo,
    events: VecDeque<Received>,
    dismissed: Vec<(OpId, FiAddr)>,
    /// What comes next if nothing is lost.
    expected: Option<u64>,
    stats: TargetStats,
}

/// A number that nobody guesses.
fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| Error::Argument(format!("no random numbers: {error}")))
}

impl Target {
    /// Makes (or opens) a flow in `domain` that initiators may write.
    ///
    /// `node` and `service` say where it is reached; a target that is to be found again after a restart has a fixed service and
    /// the `id` of its old [`TargetInfo`].
    ///
    /// # Errors
    /// [`Error::Flow`] if the flow cannot be made; [`Error::Stack`] and [`Error::Argument`] if the provider offers nothing there.
    pub fn open(
        domain: &Domain,
        definition: &FlowDefinition,
        provider: Provider,
        (node, service): (Option<&str>, Option<&str>),
        id: Option<u64>,
    ) -> Result<Self> {
        let geometry = definition.geometry();
        let hints = BatchHints::default();
        let ring = match geometry {
            Geometry::Grains { .. } => Ring::Grains(domain.create_grains(definition, &hints)?.writer),
            Geometry::Samples { .. } => {
                Ring::Samples(Box::new(domain.create_samples(definition, &hints)?.writer))
            }
        };
        let link = Link::open(provider, node, service)?;
        let (format, address) = link.name.clone();
        let id = id.map_or_else(random, Ok)?;
        // Memory is granted to an initiator that was taken: the list is of those who need no grants.
        let regions: Vec<RegionInfo> = Vec::new();
        let info =
            TargetInfo { id, provider, format, address, regions, bounce: None, version: Some(VERSION) };
        Ok(Self {
            peer: None,
            link,
            ring,
            geometry,
            info,
            events: VecDeque::new(),
            dismissed: Vec::new(),
            expected: None,
            stats: TargetStats::default(),
        })
    }

    /// Where it is, for [`Initiator::add`](crate::Initiator::add).
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

    /// What was counted.
    pub fn stats(&self) -> TargetStats {
        self.stats
    }

    /// Takes what has arrived, publishes it, and answers the oldest that was not answered before. Never blocks.
    ///
    /// # Errors
    /// [`Error::Stack`] when the endpoint is broken.
    pub fn poll(&mut self) -> Result<Option<Received>> {
        let mut happened = Vec::new();
        self.link.poll(&mut happened)?;
        for happened in happened {
            self.handle(happened)?;
        }
        self.flush();
        Ok(self.events.pop_front())
    }

    /// As [`poll`](Self::poll), and waits for something until the time is over: it looks every 50 us.
    ///
    /// # Errors
    /// As there.
    pub fn read(&mut self, timeout: Duration) -> Result<Option<Received>> {
        let begin = Instant::now();
        loop {
            let received = self.poll()?;
            if received.is_some() || begin.elapsed() >= timeout {
                return Ok(received);
            }
            std::thread::sleep(NAP);
        }
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
            Happened::Message(message) => self.said(message)?,
            Happened::Ended(op, result) => {
                if let Some(at) = self.dismissed.iter().position(|(other, _)| *other == op) {
                    let (_, addr) = self.dismissed.swap_remove(at);
                    self.link.remove(addr);
                } else if result.is_err() && self.peer.is_some() {
                    // Only messages to the initiator end here.
                    self.part();
                }
            }
        }
        Ok(())
    }

    fn said(&mut self, message: Message) -> Result<()> {
        let token = self.peer.as_ref().map(|peer| peer.token);
        match message {
            Message::Hello { version, target, nonce, geometry, format, address } => {
                let why = if version != VERSION {
                    Some(Why::Version)
                } else if target != self.info.id {
                    Some(Why::Target)
                } else {
                    (geometry != shape::numbers(&self.geometry)).then_some(Why::Geometry)
                };
                self.hello(nonce, (format, &address), why)
            }
            Message::Open { token: of, index, floor } if token == Some(of) => self.open_for(index, floor),
            Message::Invalid { token: of, number, index } if token == Some(of) => self.invalid(number, index),
            Message::Verdict { token: of, number, whole } if token == Some(of) => {
                let peer = self.peer.as_mut();
                let Some(pending) = peer.and_then(|peer| peer.pending.get_mut(&number)) else {
                    self.stats.nonsense += 1;
                    return Ok(());
                };
                (pending.is_judged, pending.invalid) = (true, pending.invalid || whole == 0);
                self.publish()
            }
            Message::Bye { token: of } if token == Some(of) => {
                self.part();
                Ok(())
            }
            // Of an initiator that was replaced, or of nobody.
            _ => {
                self.stats.nonsense += 1;
                Ok(())
            }
        }
    }

    /// The initiator goes, and its memory is withdrawn.
    fn part(&mut self) {
        if let Some(peer) = self.peer.take() {
            drop(peer.windows);
            self.link.remove(peer.addr);
            self.tell(Received::Disconnected);
        }
    }

    fn dismiss(&mut self, addr: FiAddr, nonce: u64, why: Why) {
        self.stats.refused += 1;
        match self.link.send(addr, &Message::Refused { nonce, why }) {
            Ok(Some(op)) => self.dismissed.push((op, addr)),
            _ => self.link.remove(addr),
        }
    }

    fn hello(&mut self, nonce: u64, (format, address): (u32, &[u8]), why: Option<Why>) -> Result<()> {
        if self.peer.as_ref().is_some_and(|peer| peer.nonce == nonce) {
            return Ok(()); // said twice
        }
        if self.dismissed.len() >= DISMISSED {
            self.stats.nonsense += 1;
            return Ok(());
        }
        let addr = match self.link.insert(format, address) {
            Ok(addr) => addr,
            Err(error) => {
                tracing::debug!(target: "mxl::fabrics", %error, "an initiator with an address of no use");
                self.stats.nonsense += 1;
                return Ok(());
            }
        };
        if let Some(why) = why {
            self.dismiss(addr, nonce, why);
            return Ok(());
        }
        if let Some(old) = self.peer.take() {
            drop(old.windows);
            if old.addr != addr {
                self.dismiss(old.addr, old.nonce, Why::Replaced);
            }
            self.tell(Received::Disconnected);
        }
        // What the old one's writes completed before its memory was withdrawn is not the new one's.
        let mut happened = Vec::new();
        for _ in 0..DRAINED {
            if !self.link.poll(&mut happened)? {
                break;
            }
        }
        let token = random()?;
        let mut peer = Peer {
            windows: HashMap::new(),
            addr,
            nonce,
            token,
            granted: VecDeque::new(),
            next: 0,
            pending: BTreeMap::new(),
            outbox: VecDeque::new(),
            until: 0,
        };
        let (mut rings, mut length) = (Remote::default(), 0);
        if let Ring::Samples(writer) = &self.ring {
            let (_, base) = writer.begin(0, 0)?;
            let (word, stride) = writer.strides();
            let memory = Memory { addr: base, len: stride * writer.channels() as usize };
            // SAFETY: the ring is mapped as long as the writer, which outlives the windows; there are no references to it.
            let window = unsafe { self.link.open_window(memory) }?;
            (rings, length) = (window.remote(), (stride / word) as u64);
            peer.windows.insert(0, window);
        }
        peer.outbox.push_back(Message::Welcome { nonce, token, rings, length });
        self.peer = Some(peer);
        self.stats.taken += 1;
        self.tell(Received::Connected);
        for happened in happened {
            // Writes of the old one are left out; what else was said counts.
            if !matches!(happened, Happened::Arrived(_)) {
                self.handle(happened)?;
            }
        }
        Ok(())
    }

    /// Opens slots from `index` on, as many as there may be.
    fn open_for(&mut self, index: u64, floor: u64) -> Result<()> {
        let Self { peer: Some(peer), ring, link, geometry, .. } = self else { return Ok(()) };
        match ring {
            Ring::Grains(writer) => {
                peer.granted.retain(|granted| *granted >= floor);
                for index in (0..=AHEAD as u64).filter_map(|ahead| index.checked_add(ahead)) {
                    grant(peer, writer, link, geometry, index)?;
                }
            }
            Ring::Samples(writer) => {
                if writer.head() != index {
                    // The whole ring: what lies there belongs to other indices.
                    let half = writer.max_write();
                    silence(writer, index, half)?;
                    silence(writer, index.saturating_sub(half), half)?;
                    writer.publish(index);
                }
                self.expected = Some(index);
                let (word, stride) = writer.strides();
                peer.until = index.saturating_add((stride / word / 2) as u64);
                peer.outbox.push_back(Message::Room { token: peer.token, until: peer.until });
            }
        }
        Ok(())
    }

    fn arrived(&mut self, data: u64) -> Result<()> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let pending = match &self.ring {
            Ring::Grains(_) => match Commit::of_grain(data) {
                Some(Commit::Grain { number, index, end }) => {
                    let granted = peer.granted.iter().copied().find(|granted| *granted as u16 == index);
                    granted.map(|index| {
                        (
                            number,
                            Pending {
                                index,
                                amount: end.into(),
                                invalid: false,
                                parts: 1,
                                arrived: 0,
                                is_judged: false,
                            },
                        )
                    })
                }
                _ => None,
            },
            Ring::Samples(writer) => match Commit::of_samples(data) {
                Commit::Samples { number, parts, index, count } => {
                    let index = widen(self.expected.unwrap_or(0), index.into(), 32);
                    let is_inside =
                        index <= peer.until && u64::from(count) <= writer.max_write() && count > 0;
                    let parts = u32::from(parts) + 1;
                    let pending = Pending {
                        index,
                        amount: count.into(),
                        invalid: false,
                        parts,
                        arrived: 0,
                        is_judged: false,
                    };
                    is_inside.then_some((number, pending))
                }
                Commit::Grain { .. } => None,
            },
        };
        let Some((number, pending)) = pending else {
            self.stats.nonsense += 1;
            return Ok(());
        };
        let number = widen(peer.next, number.into(), 8);
        if number < peer.next || number - peer.next > EARLY {
            self.stats.nonsense += 1;
            return Ok(());
        }
        let there = peer.pending.entry(number).or_insert(pending);
        there.arrived += 1;
        self.publish()
    }

    fn invalid(&mut self, number: u64, index: u64) -> Result<()> {
        let (Some(peer), Ring::Grains(_)) = (&mut self.peer, &self.ring) else { return Ok(()) };
        if !peer.granted.contains(&index) || number < peer.next || number - peer.next > EARLY {
            self.stats.nonsense += 1;
            return Ok(());
        }
        let Geometry::Grains { slices, .. } = self.geometry else { return Ok(()) };
        let pending =
            Pending { index, amount: slices.into(), invalid: true, parts: 1, arrived: 1, is_judged: true };
        peer.pending.insert(number, pending);
        self.publish()
    }

    /// Publishes what is complete, in the order of the commits.
    fn publish(&mut self) -> Result<()> {
        while let Some(peer) = &mut self.peer {
            if peer
                .pending
                .get(&peer.next)
                .is_none_or(|first| !first.is_judged || first.arrived < first.parts)
            {
                return Ok(());
            }
            let Some(Pending { index, amount, invalid, .. }) = peer.pending.remove(&peer.next) else {
                return Ok(());
            };
            peer.next += 1;
            self.stats.published += 1;
            match &mut self.ring {
                Ring::Grains(writer) => {
                    let (info, _) = writer.begin(index);
                    let slices = (amount as u16).min(info.total_slices);
                    let is_whole = slices == info.total_slices;
                    let Geometry::Grains { payload, .. } = self.geometry else { return Ok(()) };
                    let flags = u32::from(invalid);
                    writer.publish(GrainInfo { flags, size: payload, valid_slices: slices, ..info });
                    if is_whole {
                        peer.granted.retain(|granted| *granted != index);
                        let last = peer.granted.iter().max().copied().unwrap_or(index);
                        if let Some(next) = last.max(index).checked_add(1) {
                            grant(peer, writer, &self.link, &self.geometry, next)?;
                        }
                    }
                    self.stats.invalid += u64::from(invalid);
                    let first = self.expected.filter(|expected| *expected < index);
                    if let Some(first) = first {
                        self.lost(first, index - first);
                    }
                    let after = index.saturating_add(u64::from(is_whole));
                    self.expected = Some(self.expected.map_or(after, |expected| expected.max(after)));
                    self.tell(Received::Grain { index, slices, invalid });
                }
                Ring::Samples(writer) => {
                    if invalid {
                        silence(writer, index, amount)?;
                    }
                    writer.publish(index);
                    let (word, stride) = writer.strides();
                    let length = (stride / word) as u64;
                    let until = index.saturating_add(length / 2);
                    if until.saturating_sub(peer.until) >= length / 8 {
                        peer.until = until;
                        peer.outbox.push_back(Message::Room { token: peer.token, until });
                    }
                    let start = index.saturating_sub(amount);
                    if let Some(first) = self.expected.filter(|expected| *expected < start) {
                        self.lost(first, start - first);
                    }
                    self.expected = Some(index);
                    if invalid {
                        self.lost(start, amount);
                    } else {
                        self.tell(Received::Samples { index, count: amount });
                    }
                }
            }
        }
        Ok(())
    }

    fn lost(&mut self, first: u64, count: u64) {
        self.stats.lost = self.stats.lost.saturating_add(count);
        self.tell(Received::Lost { first, count });
    }

    /// Says what is to be said, as far as there is room.
    fn flush(&mut self) {
        let Some(peer) = &mut self.peer else { return };
        while let Some(message) = peer.outbox.front() {
            match self.link.send(peer.addr, message) {
                Ok(Some(_)) => drop(peer.outbox.pop_front()),
                Ok(None) => return,
                Err(error) => {
                    tracing::debug!(target: "mxl::fabrics", %error, "an initiator cannot be told");
                    return self.part();
                }
            }
        }
    }
}

/// Opens the slot of a grain for the initiator, unless it has as many as it may, or that slot.
fn grant(peer: &mut Peer, writer: &GrainWriter, link: &Link, geometry: &Geometry, index: u64) -> Result<()> {
    let grains = writer.grains();
    let most = (AHEAD + 1).min((grains.max(3) - 2) as usize);
    let slot = index % grains;
    let is_taken = peer.granted.iter().any(|granted| granted % grains == slot);
    let Geometry::Grains { payload, .. } = *geometry else { return Ok(()) };
    if peer.granted.contains(&index) {
        // Asked for again: it was told once, and messages are reliable.
        return Ok(());
    }
    if is_taken || peer.granted.len() >= most {
        return Ok(());
    }
    let (_, addr) = writer.begin(index);
    let payload = match peer.windows.entry(slot) {
        Entry::Occupied(there) => there.get().remote(),
        Entry::Vacant(place) => {
            // SAFETY: the slot is mapped as long as the writer, which outlives the windows; there are no references to it.
            let window = unsafe { link.open_window(Memory { addr, len: payload as usize }) }?;
            place.insert(window).remote()
        }
    };
    peer.granted.push_back(index);
    peer.outbox.push_back(Message::Grant { token: peer.token, index, payload });
    Ok(())
}

/// Silence in the `count` samples before `index`.
fn silence(writer: &mut SampleWriter, index: u64, count: u64) -> Result<()> {
    let ((word, _), channels) = (writer.strides(), writer.channels());
    let mut open = writer.open(index, count)?;
    for channel in 0..channels {
        if word == 4 {
            open.write_channel(channel, &vec![0_f32; count as usize])?;
        } else {
            open.write_channel(channel, &vec![0_f64; count as usize])?;
        }
    }
    Ok(())
}
