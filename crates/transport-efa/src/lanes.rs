//! All lanes of an endpoint over its device.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{Address, Errno, Error, Info, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::sys::{Timer, WaitSet};
use ofi_core::transport::{Arm, Host, Lanes, OutAtomic, OutMessage, OutNote, OutRma, Peer, Posted};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::adapter::{Adapter, Ended};
use crate::direct::Held;
use crate::ids::Ids;
use crate::lane::{Common, Counts, Lane};
use crate::message::{Broken, Flow, Token};
use crate::native::{End, Rdma};
use crate::srd::From;
use crate::wire::{Control, Header, Malformed, Origin, Packet, RawAddress, parse};
use crate::{Efa, address, settings};

/// Completions that one poll takes.
const MOST: usize = 256;
/// Polls after which the clock is read, for lanes whose peers should have answered.
const LOOK: u32 = 64;
/// How long a peer may say nothing before it is asked whether it lives.
const PROBE: Duration = Duration::from_millis(500);

/// How long the device may take to give back memory of what has ended, before its queue pair is stopped.
const SETTLE: Duration = Duration::from_secs(5);

/// The lanes of one endpoint.
pub struct EfaLanes {
    lanes: Vec<Lane>,
    peers: FxHashMap<RawAddress, Peer>,
    /// Who has a queue pair now: by the number of its device, and its own.
    queues: FxHashMap<(u16, u16), Peer>,
    /// Who had one before somebody else.
    former: FxHashSet<RawAddress>,
    polls: u32,
    timer: Timer,
    waits: WaitSet,
    /// Messages without headers that have no room.
    held: Held,
    /// Insertions into the address vector whose addresses are known here.
    met: u32,
    common: Common,
}

/// An endpoint's lanes before and after it is enabled.
pub enum State {
    Closed { domain: Arc<DomainPart<Efa>>, info: Box<Info> },
    Open(Box<EfaLanes>),
}

impl State {
    /// See [`ofi_core::transport::Transport::open_lanes`].
    pub fn new(domain: &Arc<DomainPart<Efa>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()) }
    }

    #[inline]
    fn open(&mut self) -> Result<&mut EfaLanes> {
        match self {
            Self::Open(lanes) => Ok(lanes),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

impl EfaLanes {
    fn new(domain: &Arc<DomainPart<Efa>>, info: &Info) -> Result<Self> {
        let adapter = Adapter::new(&*domain.transport.device)?;
        let (timer, waits) = (Timer::new()?, WaitSet::new()?);
        waits.add(timer.fd())?;
        waits.add(adapter.fd())?;
        let common = Common {
            domain: Arc::clone(domain),
            caps: info.caps,
            rdma: Rdma::of(&domain.transport.device.limits()),
            direct: info.fabric_attr.name == crate::provider::DIRECT,
            adapter,
            transfers: Slots::default(),
            ids: Ids::default(),
            dirty: Vec::new(),
            stalled: Vec::new(),
            resting: Vec::new(),
            counts: Counts::default(),
        };
        Ok(Self {
            lanes: Vec::new(),
            peers: FxHashMap::default(),
            queues: FxHashMap::default(),
            former: FxHashSet::default(),
            polls: 0,
            timer,
            waits,
            held: Held::default(),
            met: 0,
            common,
        })
    }

    /// The peer with this address, introduced to the core at first sight. It has its queue pair from now on, whoever had it before.
    fn peer_at<H: Host<Efa>>(&mut self, host: &mut H, address: RawAddress) -> Result<Peer> {
        if let Some(&peer) = self.peers.get(&address) {
            return Ok(peer);
        }
        let handle = self.common.adapter.attach(&address)?;
        let peer = self.lanes.len() as Peer;
        self.lanes.push(Lane::new(address, handle));
        self.peers.insert(address, peer);
        let old = self.queues.insert((handle, address.qpn), peer);
        // Messages without headers say nothing of who had a queue pair when.
        if let Some(old) = old.filter(|_| !self.common.direct) {
            let lane = &mut self.lanes[old as usize];
            self.former.insert(lane.address);
            lane.ending.get_or_insert(Errno::ECONNRESET);
            self.common.hold(&mut lane.is_dirty, old);
        }
        host.introduce(peer, &address::named(&address));
        Ok(peer)
    }

    /// Whose a packet is; `None` if it is nobody's, or of somebody who is gone.
    fn whose<H: Host<Efa>>(&mut self, host: &mut H, from: From, origin: Origin) -> Option<Peer> {
        let known = from.handle.and_then(|handle| self.queues.get(&(handle, from.qpn)).copied());
        let told = match (origin, from.gid) {
            (Origin::Address(address), _) => Some(address),
            (Origin::Connid(connid), Some(gid)) => Some(RawAddress { gid, qpn: from.qpn, connid }),
            _ => None,
        };
        match (known, origin, told) {
            (Some(peer), Origin::Unsaid, _) => return Some(peer),
            (Some(peer), Origin::Connid(connid), _) => {
                if self.lanes[peer as usize].address.connid == connid {
                    return Some(peer);
                }
                self.common.counts.stale += 1;
                return None;
            }
            (Some(peer), Origin::Address(address), _) if self.lanes[peer as usize].address == address => {
                return Some(peer);
            }
            // The device has another word than the packet.
            (_, _, Some(address))
                if address.qpn != from.qpn || from.gid.is_some_and(|gid| gid != address.gid) =>
            {
                self.common.counts.malformed += 1;
                return None;
            }
            (_, _, Some(address)) if self.former.contains(&address) => {
                self.common.counts.stale += 1;
                return None;
            }
            (_, _, Some(address)) => return self.peer_at(host, address).ok(),
            (_, _, None) => {}
        }
        self.common.counts.strangers += 1;
        None
    }

    /// Makes the acquaintance of whom the application has named since: messages do not say all of their sender's address, and a device lets
    /// only those write and read that it has a handle of.
    fn meet<H: Host<Efa>>(&mut self, host: &mut H) {
        let insertions = host.insertions();
        if std::mem::replace(&mut self.met, insertions) == insertions {
            return;
        }
        for address in host.addresses() {
            if let Ok(raw) = address::raw(&address)
                && let Err(error) = self.peer_at(host, raw)
            {
                tracing::warn!(target: "ofi::efa::av", %address, %error, "a peer cannot be met");
            }
        }
    }

    /// Whose a message without a header is.
    fn sender<H: Host<Efa>>(&mut self, host: &mut H, from: From) -> Option<Peer> {
        if let Some(handle) = from.handle
            && let Some(&peer) = self.queues.get(&(handle, from.qpn))
        {
            return Some(peer);
        }
        let neighbour = self.lanes.iter().find(|lane| Some(lane.to.handle) == from.handle);
        let gid = from.gid.or(neighbour.map(|lane| lane.address.gid))?;
        // Nobody whom the application knows; it may learn the key later.
        self.peer_at(host, RawAddress { gid, qpn: from.qpn, connid: 0 }).ok()
    }

    fn take_direct<H: Host<Efa>>(
        &mut self,
        host: &mut H,
        slot: u32,
        len: usize,
        data: Option<u32>,
        from: From,
    ) {
        if let Some(peer) = self.sender(host, from) {
            let bytes = self.common.adapter.packet(slot, len);
            // SAFETY: the device writes to the slot no more until it is posted again.
            let bytes = unsafe { &*bytes };
            self.held.take(host, &mut self.common, peer, bytes, data);
        } else {
            self.common.counts.strangers += 1;
        }
        self.held.give_back(&mut self.common, slot);
    }

    fn poll<H: Host<Efa>>(&mut self, host: &mut H) {
        if self.common.direct {
            self.meet(host);
            self.held.offer(host, &mut self.common);
        }
        self.polls = self.polls.wrapping_add(1);
        for peer in std::mem::take(&mut self.common.stalled) {
            let (lane, common) = (&mut self.lanes[peer as usize], &mut self.common);
            lane.is_stalled = false;
            if lane.advance(common, host, peer).is_err() {
                broken(lane, common, peer);
            }
        }
        let mut taken = 0;
        while taken < MOST && host.hungry() {
            if !self.common.adapter.has_ready() && self.common.adapter.refill() == 0 {
                break;
            }
            while host.hungry()
                && let Some(ended) = self.common.adapter.next()
            {
                taken += 1;
                self.take(host, ended);
            }
        }
        if !self.common.resting.is_empty() {
            for peer in std::mem::take(&mut self.common.resting) {
                let lane = &mut self.lanes[peer as usize];
                if lane.rests_until().is_some() {
                    self.common.resting.push(peer);
                    self.common.hold(&mut lane.is_dirty, peer);
                }
            }
        }
        if self.polls.is_multiple_of(LOOK) {
            self.probe();
        }
        for peer in std::mem::take(&mut self.common.dirty) {
            self.tend(host, peer);
        }
    }

    fn take<H: Host<Efa>>(&mut self, host: &mut H, ended: Ended) {
        match ended {
            Ended::Nothing => {}
            Ended::Sent { packet, status } => {
                let lane = &mut self.lanes[packet.peer as usize];
                lane.sent(&mut self.common, host, packet, status);
            }
            Ended::Accessed { request, status } => {
                let lane = &mut self.lanes[request.peer as usize];
                lane.accessed(&mut self.common, host, request, status);
            }
            Ended::Written { slot, len, data, from } => {
                let sender = match self.common.direct {
                    true => self.sender(host, from),
                    false => self.whose(host, from, Origin::Unsaid),
                };
                if let Some(peer) = sender {
                    self.lanes[peer as usize].told(&mut self.common, host, peer, data, len);
                }
                if let Some(slot) = slot {
                    self.common.adapter.receive(slot);
                }
            }
            Ended::Received { slot, len, data, from } => {
                self.common.counts.received += 1;
                if self.common.direct {
                    return self.take_direct(host, slot, len, data, from);
                }
                let bytes = self.common.adapter.packet(slot, len);
                // SAFETY: the device writes to the slot no more until it is posted again, which is below.
                let bytes = unsafe { &*bytes };
                match parse(bytes) {
                    Ok((origin, packet)) => {
                        if let Some(peer) = self.whose(host, from, origin) {
                            self.take_packet(host, peer, &packet, bytes);
                        }
                    }
                    Err(Malformed::Version(_)) => self.common.counts.version += 1,
                    Err(why) => {
                        tracing::debug!(target: "ofi::efa::ep_data", ?why, "a packet was dropped");
                        self.common.counts.malformed += 1;
                    }
                }
                self.common.adapter.receive(slot);
            }
        }
    }

    fn take_packet<H: Host<Efa>>(&mut self, host: &mut H, peer: Peer, packet: &Packet<'_>, bytes: &[u8]) {
        let (lane, common) = (&mut self.lanes[peer as usize], &mut self.common);
        if lane.dead.is_some() || lane.ending.is_some() {
            common.counts.stale += 1;
            return;
        }
        lane.probed = None;
        lane.greet(common, peer);
        let taken = match packet {
            Packet::Control(control) => lane.take_control(common, host, peer, control),
            Packet::Handshake(shake) => {
                lane.features.get_or_insert(shake.features);
                for (id, errno) in std::mem::take(&mut lane.unsaid) {
                    lane.refuse(common, peer, id, errno);
                }
                for (send_id, msg_id) in std::mem::take(&mut lane.doubtful) {
                    if lane.is_own() == Some(true) {
                        lane.control(common, peer, Control::Receipt { send_id, msg_id });
                    }
                }
                Ok(())
            }
            Packet::Message(message) => lane.take_ordered(common, host, peer, message.msg_id, packet, bytes),
            Packet::Atomic(atomic) => lane.take_ordered(common, host, peer, atomic.msg_id, packet, bytes),
            Packet::Note { msg_id, .. } => lane.take_ordered(common, host, peer, *msg_id, packet, bytes),
            Packet::Write(write) => lane.take_write(common, host, peer, write).map(|flow| {
                if flow == Flow::Stop {
                    common.counts.stalls += 1;
                    lane.late.push_back(bytes.into());
                }
            }),
            Packet::Read(read) => lane.take_read(common, host, peer, read),
            Packet::Pause(number) => {
                // Words may overtake one another.
                if number.wrapping_sub(lane.paused) < 1 << 31 {
                    lane.paused = *number;
                }
                Ok(())
            }
            Packet::Bye => {
                lane.ending.get_or_insert(Errno::ECONNRESET);
                common.hold(&mut lane.is_dirty, peer);
                Ok(())
            }
        };
        if taken.is_err() {
            broken(lane, common, peer);
        }
        if !lane.late.is_empty() || !lane.finishing.is_empty() {
            common.hold(&mut lane.is_dirty, peer);
        }
    }

    /// Does what is to be done on a lane: what waits is posted, and a lane whose peer is lost ends.
    fn tend<H: Host<Efa>>(&mut self, host: &mut H, peer: Peer) {
        let (lane, common) = (&mut self.lanes[peer as usize], &mut self.common);
        lane.is_dirty = false;
        while let Some(bytes) = lane.late.pop_front() {
            let Ok((_, Packet::Write(write))) = parse(&bytes) else { continue };
            match lane.take_write(common, host, peer, &write) {
                Ok(Flow::Next) => {}
                Ok(Flow::Stop) => {
                    lane.late.push_front(bytes);
                    break;
                }
                Err(Broken) => broken(lane, common, peer),
            }
        }
        if !lane.finishing.is_empty() {
            lane.finish_writes(common, host);
        }
        let flushed = lane.flush(common, host, peer);
        if !flushed || !lane.late.is_empty() || !lane.finishing.is_empty() {
            common.hold(&mut lane.is_dirty, peer);
        }
        let lost = lane.ending.or(lane.dead.filter(|_| lane.outstanding > 0));
        let Some(errno) = lost else { return };
        lane.stop_accesses(common, host, peer);
        // The device uses memory of operations until it has given every request back; its ends have the lane looked at again.
        if lane.is_busy() {
            return;
        }
        // What has come before the end is taken before it.
        if lane.is_stalled || !lane.late.is_empty() || !lane.finishing.is_empty() {
            common.hold(&mut lane.is_dirty, peer);
        } else {
            lane.lose(common, host, peer, errno);
        }
    }

    /// Asks peers that owe something, and have said nothing for a while, whether they live: the device answers for them.
    fn probe(&mut self) {
        let now = Instant::now();
        for (peer, lane) in self.lanes.iter_mut().enumerate() {
            let peer = peer as Peer;
            if lane.dead.is_some()
                || lane.outstanding == 0
                || lane.inflight > 0
                || lane.is_own() != Some(true)
            {
                continue;
            }
            match lane.probed {
                Some(at) if now >= at + PROBE => {
                    let word = Header::of_pause(self.common.adapter.address.connid, lane.pausing);
                    lane.packet(&mut self.common, peer, &word, 0, crate::adapter::Mark::Nothing, |_| {});
                    lane.probed = Some(now);
                }
                Some(_) => {}
                None => lane.probed = Some(now),
            }
        }
    }

    /// Waits until the device is done with memory of receives and reads that have ended.
    fn settle_receives<H: Host<Efa>>(&mut self, host: &mut H) {
        let common = &mut self.common;
        let mut gone = common.transfers.ids(|_| true);
        gone.retain(|&id| match common.transfers.get(id).map(|transfer| (transfer.peer, &transfer.end)) {
            Some((_, End::Payload(incoming))) => {
                incoming.receive().is_some_and(|into| host.receiving(into).is_none())
            }
            Some((peer, &End::Access(op))) => host.op(peer, op).is_none(),
            None => false,
        });
        let end = Instant::now() + SETTLE;
        let mut stopped = false;
        loop {
            for &id in &gone {
                if let Some(transfer) = common.transfers.get_mut(id) {
                    transfer.todo.clear();
                }
            }
            gone.retain(|&id| common.transfers.get(id).is_some_and(|transfer| transfer.posted > 0));
            if gone.is_empty() {
                return;
            }
            common.adapter.refill();
            while let Some((request, status)) = common.adapter.next_accessed() {
                self.lanes[request.peer as usize].accessed(common, host, request, status);
            }
            // The device reports every request in the end: after a peer's silence, or as its queue pair stops.
            if Instant::now() >= end && !std::mem::replace(&mut stopped, true) {
                tracing::error!(target: "ofi::efa::ep_ctrl", "a device does not give memory back: its queue pair is stopped");
                common.adapter.stop();
            }
            std::thread::yield_now();
        }
    }

    fn arm(&mut self) -> Arm {
        let common = &mut self.common;
        if !common.dirty.is_empty()
            || !common.stalled.is_empty()
            || common.adapter.has_ready()
            || !self.held.is_empty()
        {
            return Arm::Ready;
        }
        // What came before the queue was armed makes nothing readable.
        if common.adapter.arm().is_err() || common.adapter.refill() > 0 {
            return Arm::Ready;
        }
        let now = Instant::now();
        let rests = common.resting.iter().filter_map(|&peer| self.lanes[peer as usize].rests_until()).min();
        let owed = self.lanes.iter().any(|lane| lane.outstanding > 0 && lane.dead.is_none());
        let probe = owed.then(|| now + PROBE);
        if owed {
            self.polls = LOOK - 1; // the next poll looks
        }
        let wake = [rests, probe].into_iter().flatten().min();
        self.timer.set(wake.map(|at| at.saturating_duration_since(now)));
        Arm::Armed
    }

    /// Waits a little for what was reported as sent to arrive, and for answers to what was executed here.
    fn close(&mut self) {
        let end = Instant::now() + Duration::from_millis(settings::LINGER_MS.get() as u64);
        let mut told = false;
        loop {
            for (peer, lane) in self.lanes.iter_mut().enumerate() {
                lane.flush_frames(&mut self.common, peer as Peer);
            }
            let awaited = self.lanes.iter().any(Lane::is_awaited);
            if (!awaited && told) || Instant::now() >= end {
                return;
            }
            if !awaited {
                told = true;
                for (peer, lane) in self.lanes.iter_mut().enumerate() {
                    lane.part(&mut self.common, peer as Peer);
                }
            }
            if self.common.adapter.refill() == 0 {
                std::thread::sleep(Duration::from_micros(50));
            }
            while let Some(ended) = self.common.adapter.next() {
                if let Ended::Sent { packet, status } = ended {
                    self.lanes[packet.peer as usize].sent_last(&mut self.common, packet, status);
                }
            }
        }
    }
}

/// A peer does not keep to the protocol: it is given up, and nobody else.
fn broken(lane: &mut Lane, common: &mut Common, peer: Peer) {
    common.counts.malformed += 1;
    lane.ending.get_or_insert(Errno::EIO);
    common.hold(&mut lane.is_dirty, peer);
}

impl Drop for EfaLanes {
    fn drop(&mut self) {
        self.close();
    }
}

impl Lanes<Efa> for State {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let Self::Closed { domain, info } = self else {
            return Err(Error::new(Errno::EOPBADSTATE));
        };
        if let Some(name) = name {
            return Err(Error::wanted(
                Errno::EADDRNOTAVAIL,
                "the name of an endpoint of provider efa",
                "none: the device chooses it",
                name.to_string(),
                "leave the name away, and tell others what fi_getname answers",
            ));
        }
        let lanes = EfaLanes::new(domain, info)?;
        let address = address::named(&lanes.common.adapter.address);
        *self = Self::Open(Box::new(lanes));
        Ok(address)
    }

    fn peer<H: Host<Efa>>(&mut self, host: &mut H, address: &Address) -> Result<Peer> {
        self.open()?.peer_at(host, address::raw(address)?)
    }

    fn send<H: Host<Efa>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        let lane = &mut lanes.lanes[out.peer as usize];
        lane.send(&mut lanes.common, host, out).inspect(|_| lane.posted(&mut lanes.common, out.peer))
    }

    fn rma<H: Host<Efa>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        let lane = &mut lanes.lanes[out.peer as usize];
        lane.rma(&mut lanes.common, host, out).inspect(|_| lane.posted(&mut lanes.common, out.peer))
    }

    fn atomic<H: Host<Efa>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        let lane = &mut lanes.lanes[out.peer as usize];
        lane.atomic(&mut lanes.common, host, out).inspect(|_| lane.posted(&mut lanes.common, out.peer))
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let lanes = self.open()?;
        lanes.lanes[out.peer as usize].note(&mut lanes.common, out)
    }

    fn pull<H: Host<Efa>>(&mut self, host: &mut H, peer: Peer, token: Token, into: SlotId) {
        let Ok(lanes) = self.open() else { return };
        lanes.lanes[peer as usize].pull(&mut lanes.common, host, peer, token, into);
    }

    fn settle_receives<H: Host<Efa>>(&mut self, host: &mut H) {
        if let Self::Open(lanes) = self {
            lanes.settle_receives(host);
        }
    }

    fn discard(&mut self, peer: Peer, token: Token) {
        let Ok(lanes) = self.open() else { return };
        lanes.lanes[peer as usize].discard(&mut lanes.common, peer, token);
    }

    fn poll<H: Host<Efa>>(&mut self, host: &mut H) {
        if let Self::Open(lanes) = self {
            lanes.poll(host);
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(lanes) => lanes.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(lanes) => Some(lanes.waits.fd()),
            Self::Closed { .. } => None,
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        let Self::Open(lanes) = self else { return };
        let counts = &lanes.common.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("efa_eager", counts.eager, "messages sent in one packet");
        add("efa_medium", counts.medium, "messages sent in a few packets at once");
        add("efa_long", counts.long, "messages sent as their receiver cleared them");
        add("efa_lent", counts.lent, "messages that their receivers were to read");
        add("efa_fetched", counts.fetched, "payloads that were read from their senders");
        add("efa_nacks", counts.nacks, "payloads that could not be read, and were to be sent");
        add("efa_native_reads", counts.native_reads, "requests that read a peer's memory");
        add("efa_native_writes", counts.native_writes, "requests that wrote a peer's memory");
        add(
            "efa_native_refused",
            counts.native_refused,
            "accesses that the peer's device refused, and which its owner was asked for",
        );
        add("efa_sent", counts.sent, "packets posted");
        add("efa_received", counts.received, "packets received");
        add(
            "efa_not_ready",
            counts.not_ready,
            "packets whose receiver had no receive posted, and which were sent again",
        );
        add("efa_early", counts.early, "packets that came before their turn");
        add("efa_stalls", counts.stalls, "messages and reports that had to wait for room here");
        add("efa_refused", counts.refused, "accesses of peers that were refused");
        add("efa_strangers", counts.strangers, "packets of nobody that is known");
        add("efa_stale", counts.stale, "packets of endpoints that are gone, or about what has ended");
        add("efa_version", counts.version, "packets of another protocol version");
        add("efa_malformed", counts.malformed, "packets that break the protocol");
    }
}
