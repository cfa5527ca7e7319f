//! All peers of an endpoint over its device.

mod closing;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ofi_api::{Errno, Info, OpFlags, Result};
use ofi_core::domain::DomainPart;
use ofi_core::slots::{SlotId, Slots};
use ofi_core::sys::{Timer, WaitSet};
use ofi_core::transport::{Arm, PeerId, Posted, Upcalls};
use ofi_ring::cq_arm::{CqArm, may_sleep};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::adapter::{Adapter, DeviceCompletion};
use crate::common::{Common, EndpointCounts, Entry};
use crate::direct::RxBacklog;
use crate::held::Regions;
use crate::ids::Ids;
use crate::op::{Op, Work};
use crate::options::{Options, Rdma};
use crate::peer::{Broken, NextStep, Peer, nothing};
use crate::srd::{From, Status};
use crate::wire::{Control, Header, Malformed, Origin, Packet, RawAddress, parse};
use crate::{Efa, address, settings};

/// Maximum number of completions that one poll reads.
const MAX_COMPLETIONS_PER_POLL: usize = 256;
/// Number of polls per clock read, which finds peers that owe an answer.
const POLLS_PER_CLOCK_READ: u32 = 64;
/// How long a peer that owes an answer may be silent before it is probed.
const PROBE: Duration = Duration::from_millis(500);

/// How long a lost device may take to stop its accesses to memory.
const RELEASE: Duration = Duration::from_secs(1);
/// How often a thread that waits for a device without notifications polls it.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The peers of one endpoint.
pub struct EfaEndpoint {
    pub peers: Vec<Peer>,
    by_address: FxHashMap<RawAddress, PeerId>,
    /// The current owners of queue pairs, by the numbers of the device and of the queue pair.
    queues: FxHashMap<(u16, u16), PeerId>,
    /// Former owners of queue pairs that another peer has taken over.
    former: FxHashSet<RawAddress>,
    polls: u32,
    /// Time of the last check for silent peers.
    looked: Option<Instant>,
    timer: Timer,
    pub waits: WaitSet,
    /// A spare list of peers, kept for its capacity.
    tended: Vec<PeerId>,
    /// Messages without headers that the core has no room for.
    held: RxBacklog,
    /// Number of insertions into the address vector that were processed.
    met: u32,
    /// When the device was lost.
    lost: Option<Instant>,
    pub common: Common,
}

impl EfaEndpoint {
    pub fn new(domain: &Arc<DomainPart<Efa>>, info: &Info, options: &Options) -> Result<Self> {
        let direct = info.fabric_attr.name == crate::domain::DIRECT;
        let limits = domain.transport.device.limits();
        // Long requests take twice the device's memory, so they are used only if the application asks for them.
        let inline = if direct { limits.inline.max(info.tx_attr.inject_size) } else { limits.inline };
        let rdma = Rdma::of(&limits, options);
        let retries = options.device_retries(direct);
        let adapter = Adapter::new(&domain.transport, inline, rdma.unsolicited, retries)?;
        let (timer, waits) = (Timer::new()?, WaitSet::new()?);
        waits.add(timer.fd())?;
        if let Some(fd) = adapter.fd() {
            waits.add(fd)?;
        }
        for fd in adapter.event_fds() {
            waits.add(fd)?;
        }
        let common = Common {
            domain: Arc::clone(domain),
            caps: info.caps,
            meets_bare: crate::bare::meets(info.caps, options, adapter.mtu),
            rdma,
            direct,
            gives_up: direct && options.gives_up(),
            adapter,
            settings: settings::Chosen::now(),
            regions: Regions::default(),
            transfers: Slots::default(),
            orphans: FxHashMap::default(),
            ids: Ids::default(),
            dirty: Vec::new(),
            stalled: Vec::new(),
            resting: Vec::new(),
            counts: EndpointCounts::default(),
        };
        Ok(Self {
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            queues: FxHashMap::default(),
            former: FxHashSet::default(),
            polls: 0,
            looked: None,
            timer,
            waits,
            tended: Vec::new(),
            held: RxBacklog::default(),
            met: 0,
            lost: None,
            common,
        })
    }

    /// The peer with this address. A new peer is introduced to the core, and owns its queue pair if no other peer does.
    pub fn peer_at<H: Upcalls<Efa>>(&mut self, host: &mut H, address: RawAddress) -> Result<PeerId> {
        if let Some(&peer) = self.by_address.get(&address) {
            return Ok(peer);
        }
        let handle = self.common.adapter.attach(&address)?;
        tracing::debug!(
            target: "ofi::efa::av",
            peer = %address::named(&address), handle,
            device_reads = self.common.rdma.read, device_writes = self.common.rdma.write,
            "attached a peer's device"
        );
        let peer = self.peers.len() as PeerId;
        let mut state = Peer::new(address, handle);
        if self.common.direct {
            state.decide(&self.common);
        }
        state.dead = self.lost.map(|_| Errno::ENODEV);
        self.peers.push(state);
        self.by_address.insert(address, peer);
        // Both an address and a packet may be outdated: the arrival of a packet shows which of two peers owns the queue
        // pair. A peer that was given up may come back. Messages without headers do not identify their sender.
        if self.common.direct || !self.queues.contains_key(&(handle, address.qpn)) {
            self.take_over(peer);
        }
        host.introduce(peer, &address::named(&address));
        Ok(peer)
    }

    /// Makes the peer the owner of its queue pair, in place of the previous owner.
    fn take_over(&mut self, peer: PeerId) {
        let state = &self.peers[peer as usize];
        let Some(old) = self.queues.insert((state.to.handle, state.address.qpn), peer) else { return };
        if old != peer && !self.common.direct {
            let state = &mut self.peers[old as usize];
            tracing::info!(
                target: "ofi::efa::ep_ctrl",
                peer = %address::named(&state.address), "a peer has restarted: another has its queue pair"
            );
            self.former.insert(state.address);
            state.is_replaced = true;
            state.ending.get_or_insert(Errno::ECONNRESET);
            self.common.hold(&mut state.is_dirty, old);
        }
    }

    /// Called when a peer has received the packet with this number, or another request: it owns its queue pair, unless
    /// another peer has taken it over since.
    ///
    /// Completions of packets to different peers come in any order. If the owner of the queue pair was met after the
    /// packet was posted, either of the two may be the later one, and only a packet that was posted since can tell.
    #[inline(always)]
    fn met(&mut self, peer: PeerId, number: Option<u64>) {
        if self.peers[peer as usize].met.is_none() {
            self.meets(peer, number);
        }
    }

    #[cold]
    fn meets(&mut self, peer: PeerId, number: Option<u64>) {
        let state = &self.peers[peer as usize];
        let is_over = self.common.direct || self.former.contains(&state.address);
        let owner = self.queues.get(&(state.to.handle, state.address.qpn)).filter(|&&owner| owner != peer);
        let owner_met = owner.and_then(|&owner| self.peers[owner as usize].met);
        if !is_over && owner_met.is_some_and(|met| number.is_none_or(|number| number <= met)) {
            return;
        }
        self.peers[peer as usize].met = Some(self.common.adapter.packets);
        if !is_over {
            self.take_over(peer);
        }
    }

    /// The peer that sent a packet. `None` if it is unknown or gone.
    fn whose<H: Upcalls<Efa>>(&mut self, host: &mut H, from: From, origin: Origin) -> Option<PeerId> {
        let known = from.handle.and_then(|handle| self.queues.get(&(handle, from.qpn)).copied());
        let neighbour = known.map(|peer| self.peers[peer as usize].address);
        let told = match origin {
            Origin::Unsaid => None,
            Origin::Address(address) => Some(address),
            Origin::Connid(connid) => {
                let gid = from.gid.or(neighbour.map(|address| address.gid));
                gid.map(|gid| RawAddress { gid, qpn: from.qpn, connid })
            }
        };
        let counts = &mut self.common.counts;
        let Some(told) = told else {
            counts.strangers += u64::from(known.is_none());
            return known;
        };
        if neighbour == Some(told) {
            return known;
        }
        // The device contradicts the packet.
        if told.qpn != from.qpn || from.gid.is_some_and(|gid| gid != told.gid) {
            counts.malformed += 1;
            return None;
        }
        let is_said = matches!(origin, Origin::Address(_));
        if self.former.contains(&told)
            || (known.is_some() && !is_said && !self.by_address.contains_key(&told))
        {
            counts.stale += 1;
            return None;
        }
        self.peer_at(host, told).ok()
    }

    /// Introduces peers that the application has inserted since the last call: a message does not contain its sender's
    /// whole address, and a device serves accesses only of peers with an address handle.
    pub fn meet<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        let insertions = host.insertions();
        if std::mem::replace(&mut self.met, insertions) == insertions {
            return;
        }
        for address in host.addresses() {
            if let Ok(raw) = address::raw(&address)
                && let Err(error) = self.peer_at(host, raw)
            {
                tracing::warn!(target: "ofi::efa::av", %address, %error, "cannot attach a peer's device");
            }
        }
    }

    /// The peer that sent a message without a header.
    fn sender<H: Upcalls<Efa>>(&mut self, host: &mut H, from: From) -> Option<PeerId> {
        if let Some(handle) = from.handle
            && let Some(&peer) = self.queues.get(&(handle, from.qpn))
        {
            return Some(peer);
        }
        let neighbour = self.peers.iter().find(|state| Some(state.to.handle) == from.handle);
        let gid = from.gid.or(neighbour.map(|state| state.address.gid))?;
        // The application does not know this peer, and may learn the key later.
        self.peer_at(host, RawAddress { gid, qpn: from.qpn, connid: 0 }).ok()
    }

    fn take_direct<H: Upcalls<Efa>>(
        &mut self,
        host: &mut H,
        slot: u32,
        len: usize,
        data: Option<u32>,
        from: From,
    ) {
        if let Some(peer) = self.sender(host, from) {
            let bytes = self.common.adapter.packet(slot, len);
            // SAFETY: the device does not write to the slot until it is posted again.
            let bytes = unsafe { &*bytes };
            self.held.take(host, &mut self.common, peer, bytes, data);
        } else {
            self.common.counts.strangers += 1;
        }
        self.held.give_back(&mut self.common, slot);
    }

    /// Rings the doorbell at the end of a post, unless `FI_MORE` announces another post. A failed post rings it too.
    pub fn posted(&mut self, flags: OpFlags, posted: Result<Posted>) -> Result<Posted> {
        if !flags.contains(OpFlags::MORE) || posted.is_err() {
            self.common.adapter.tell();
        }
        posted
    }

    pub fn poll<H: Upcalls<Efa>>(&mut self, host: &mut H) {
        if self.common.direct {
            self.meet(host);
            self.held.offer(host, &mut self.common);
        }
        self.common.regions.let_go(&self.common.domain.transport);
        self.polls = self.polls.wrapping_add(1);
        for peer in std::mem::take(&mut self.common.stalled) {
            let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
            state.is_stalled = false;
            if state.advance(common, host, peer).is_err() {
                broken(state, common, peer);
            }
        }
        let mut taken = 0;
        while taken < MAX_COMPLETIONS_PER_POLL && host.hungry() {
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
                let state = &mut self.peers[peer as usize];
                state.is_resting = state.rests_until().is_some();
                if state.is_resting {
                    self.common.resting.push(peer);
                    self.common.hold(&mut state.is_dirty, peer);
                }
            }
        }
        if self.polls.is_multiple_of(POLLS_PER_CLOCK_READ) {
            self.probe();
            self.common.domain.transport.cache.tidy();
        }
        // Peers that are scheduled again go to the other list, which keeps its capacity.
        std::mem::swap(&mut self.common.dirty, &mut self.tended);
        for at in 0..self.tended.len() {
            self.tend(host, self.tended[at]);
        }
        self.tended.clear();
        self.common.adapter.tell();
    }

    fn take<H: Upcalls<Efa>>(&mut self, host: &mut H, ended: DeviceCompletion) {
        match ended {
            DeviceCompletion::Nothing => {}
            DeviceCompletion::Sent { packet, status } => {
                if status == Status::Done {
                    self.met(packet.peer, Some(packet.number));
                }
                let state = &mut self.peers[packet.peer as usize];
                state.sent(&mut self.common, host, packet, status);
            }
            DeviceCompletion::Accessed { request, status } => {
                let state = &mut self.peers[request.peer as usize];
                state.accessed(&mut self.common, host, request, status);
            }
            DeviceCompletion::SingleWr { id, status } => self.alone_ended(host, id, status),
            DeviceCompletion::Written { slot, len, data, from } => {
                let sender = match self.common.direct {
                    true => self.sender(host, from),
                    false => self.whose(host, from, Origin::Unsaid),
                };
                if let Some(peer) = sender {
                    self.peers[peer as usize].told(&mut self.common, host, peer, data, len);
                }
                if let Some(slot) = slot {
                    self.common.adapter.receive(slot);
                }
            }
            DeviceCompletion::Received { slot, len, data, from } => {
                self.common.counts.received += 1;
                if self.common.direct {
                    return self.take_direct(host, slot, len, data, from);
                }
                let bytes = self.common.adapter.packet(slot, len);
                // SAFETY: the device does not write to the slot until it is posted again, which is below.
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

    /// Handles the completion of an operation's only request.
    fn alone_ended<H: Upcalls<Efa>>(&mut self, host: &mut H, id: SlotId, status: Status) {
        let peer = match host.own_op(id) {
            Some(Op { work: Work::SingleWr(alone), .. }) => alone.peer,
            _ => match self.common.orphans.get(&id) {
                Some(alone) => alone.peer,
                None => return,
            },
        };
        if status == Status::Done {
            self.met(peer, None);
        }
        self.peers[peer as usize].single_ended(&mut self.common, host, (peer, id), status);
    }

    fn take_packet<H: Upcalls<Efa>>(
        &mut self,
        host: &mut H,
        peer: PeerId,
        packet: &Packet<'_>,
        bytes: &[u8],
    ) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        if let Packet::Restart { round, answer } = *packet {
            return state.take_restart(common, peer, round, answer);
        }
        if state.is_restarting() {
            common.counts.stale += 1; // from before
            return;
        }
        if state.dead.is_some() || state.ending.is_some() {
            common.counts.stale += 1;
            state.dismiss(common, peer, packet);
            return;
        }
        state.probed = None;
        state.greet(common, peer);
        match state.defers(common, host, peer, packet, bytes) {
            Ok(false) => {}
            Ok(true) => return,
            Err(Broken) => {
                broken(state, common, peer);
                return;
            }
        }
        let taken = match packet {
            Packet::Control(control) => state.take_control(common, host, peer, control),
            Packet::Handshake(shake) => {
                let learned = state.learn(common, peer, shake);
                for (id, errno) in std::mem::take(&mut state.unsaid) {
                    state.refuse(common, peer, id, errno);
                }
                for (send_id, msg_id) in std::mem::take(&mut state.doubtful) {
                    if state.is_own() == Some(true) {
                        state.control(common, peer, Control::Receipt { send_id, msg_id });
                    }
                }
                state.resolve_failed(common, host, peer);
                learned
            }
            Packet::Message(message) => state.take_ordered(common, host, peer, message.msg_id, packet, bytes),
            Packet::Atomic(atomic) => state.take_ordered(common, host, peer, atomic.msg_id, packet, bytes),
            Packet::Note { msg_id, .. } => state.take_ordered(common, host, peer, *msg_id, packet, bytes),
            Packet::Write(write) => match state.is_repeated(write.number) {
                Ok(false) => state.take_write(common, host, peer, write).map(|flow| {
                    if flow == NextStep::Stop {
                        common.counts.stalls += 1;
                        state.late.push_back(bytes.into());
                    }
                }),
                repeated => repeated.map(|_| common.counts.stale += 1),
            },
            Packet::Read(read) => match state.is_repeated(read.number) {
                Ok(false) => state.take_read(common, host, peer, read),
                repeated => repeated.map(|_| common.counts.stale += 1),
            },
            Packet::Pause(number) => {
                state.pauses(*number);
                Ok(())
            }
            // Handled above.
            Packet::Restart { .. } => Ok(()),
            Packet::Bye => {
                state.ending.get_or_insert(Errno::ECONNRESET);
                common.hold(&mut state.is_dirty, peer);
                Ok(())
            }
        };
        if taken.is_err() {
            broken(state, common, peer);
        }
        if !state.late.is_empty() || !state.finishing.is_empty() {
            common.hold(&mut state.is_dirty, peer);
        }
        for bytes in state.take_deferred() {
            if let Ok((_, packet)) = parse(&bytes) {
                self.take_packet(host, peer, &packet, &bytes);
            }
        }
    }

    /// Does the pending work of a peer: posts queued packets, or ends it if it is lost.
    fn tend<H: Upcalls<Efa>>(&mut self, host: &mut H, peer: PeerId) {
        let (state, common) = (&mut self.peers[peer as usize], &mut self.common);
        state.is_dirty = false;
        while let Some(bytes) = state.late.pop_front() {
            let Ok((_, Packet::Write(write))) = parse(&bytes) else { continue };
            match state.take_write(common, host, peer, &write) {
                Ok(NextStep::Next) => {}
                Ok(NextStep::Stop) => {
                    state.late.push_front(bytes);
                    break;
                }
                Err(Broken) => broken(state, common, peer),
            }
        }
        if !state.finishing.is_empty() {
            state.finish_writes(common, host);
        }
        let flushed = state.flush(common, host, peer);
        if !flushed || !state.late.is_empty() || !state.finishing.is_empty() {
            common.hold(&mut state.is_dirty, peer);
        }
        let lost = state.ending.or(state.dead.filter(|_| state.outstanding > 0));
        let Some(errno) = lost else { return };
        state.stop_accesses(common, host, peer);
        // The device uses memory of operations until all their requests have completed. These completions schedule the
        // peer again.
        if state.is_busy() {
            // A device that is lost completes nothing, and accesses no memory once it had the time to stop.
            if self.lost.is_none_or(|at| common.adapter.now() < at + RELEASE) {
                return;
            }
            state.drop_transfers(common, host, peer);
        }
        // Packets that arrived before the loss are processed first.
        if state.is_stalled || !state.late.is_empty() || !state.finishing.is_empty() {
            common.hold(&mut state.is_dirty, peer);
        } else {
            state.lose(common, host, peer, errno);
        }
    }

    /// Probes silent peers that owe an answer: their devices answer for them. The probe for a peer of C libfabric is a
    /// write of no bytes, which such endpoints themselves send to request a handshake.
    fn probe(&mut self) {
        let now = self.common.adapter.now();
        if self.looked.is_some_and(|at| now < at + PROBE / 8) {
            return;
        }
        self.looked = Some(now);
        self.watch(now);
        if self.common.direct {
            return; // no peer owes anything: the device completes every operation
        }
        // Expected data, and data that waits for credit, has a number at this end.
        let owing: FxHashSet<PeerId> = self.common.ids.iter().map(Entry::peer).collect();
        for (peer, state) in self.peers.iter_mut().enumerate() {
            let peer = peer as PeerId;
            // A peer that has asked this end to pause owes the word to resume.
            let owes = state.outstanding > 0 || owing.contains(&peer) || state.paused & 1 != 0;
            // The device reports whether packets in flight arrive, and a queued packet serves as a probe.
            let asks = state.inflight > 0 || !state.may_send_now();
            if state.dead.is_some() || !owes || asks {
                continue;
            }
            match state.probed {
                Some(at) if now >= at + PROBE => {
                    let word = match state.is_own() {
                        Some(true) => Header::of_pause(self.common.adapter.address.connid, state.pausing),
                        _ => nothing().encode(state.origin(&self.common)),
                    };
                    state.packet(&mut self.common, peer, &word, 0, crate::adapter::Mark::Nothing, |_| {});
                    state.probed = Some(now);
                }
                Some(_) => {}
                None => state.probed = Some(now),
            }
        }
    }

    pub fn is_lost(&self) -> bool {
        self.lost.is_some()
    }

    /// Ends everything if the device is lost.
    fn watch(&mut self, now: Instant) {
        let common = &mut self.common;
        if self.lost.is_none() {
            if !common.adapter.is_lost() {
                return;
            }
            tracing::error!(
                target: "ofi::efa::ep_ctrl", address = %address::named(&common.adapter.address),
                "the device is lost: all operations of its endpoint end with an error"
            );
            self.lost = Some(now);
            common.adapter.event_fds().into_iter().for_each(|fd| self.waits.remove(fd));
            common.adapter.stop();
        }
        for (peer, state) in self.peers.iter_mut().enumerate() {
            if state.dead != Some(Errno::ENODEV) {
                state.ending = Some(Errno::ENODEV);
                common.hold(&mut state.is_dirty, peer as PeerId);
            }
        }
    }

    pub fn arm(&mut self) -> Arm {
        let common = &mut self.common;
        if !common.dirty.is_empty() || common.adapter.has_ready() || !self.held.is_empty() {
            return Arm::Ready;
        }
        if !may_sleep(self) {
            return Arm::Ready;
        }
        let common = &mut self.common;
        common.domain.transport.cache.tidy();
        let now = common.adapter.now();
        let rests = common.resting.iter().filter_map(|&peer| self.peers[peer as usize].rests_until()).min();
        let owed = !self.common.direct
            && (self.common.ids.len() > 0
                || self
                    .peers
                    .iter()
                    .any(|state| (state.outstanding > 0 || state.paused & 1 != 0) && state.dead.is_none()));
        let probe = owed.then(|| now + PROBE);
        if owed {
            self.polls = POLLS_PER_CLOCK_READ - 1; // the next poll reads the clock
        }
        // A device without notifications is looked at again and again, and so is a lost one until all has ended.
        let has_rest = |state: &Peer| state.ending.is_some() || state.is_busy();
        let is_ending = self.lost.is_some() && self.peers.iter().any(has_rest);
        let looks = self.common.adapter.fd().is_none() || is_ending;
        let look = looks.then(|| now + POLL_INTERVAL);
        let wake = [rests, probe, look].into_iter().flatten().min();
        self.timer.set(wake.map(|at| at.saturating_duration_since(now)));
        if self.common.stalled.is_empty() { Arm::Armed } else { Arm::Stalled }
    }
}

/// Handles a protocol violation: only this peer is given up.
fn broken(state: &mut Peer, common: &mut Common, peer: PeerId) {
    common.counts.malformed += 1;
    state.ending.get_or_insert(Errno::EIO);
    common.hold(&mut state.is_dirty, peer);
}

impl CqArm for EfaEndpoint {
    fn quiet(&mut self) {
        self.common.adapter.quiet();
    }

    fn arm(&mut self) -> bool {
        self.common.adapter.arm().is_ok()
    }

    fn look(&mut self) -> bool {
        self.common.adapter.refill() > 0
    }
}
