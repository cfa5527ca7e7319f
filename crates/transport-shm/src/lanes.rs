//! All lanes of an endpoint: which peers there are, which of them are polled, and how the endpoint sleeps.
//!
//! Up to [`HOT`] lanes are polled at every poll. With more peers than that, those that were quiet become cold: their
//! senders set a hint byte, and a poll looks at a cache line of hints and at one cold lane in turn, since a hint may be
//! wrong (the memory is everybody's).

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use ofi_api::{AddrFormat, Address, Caps, Errno, Error, Info, MsgOrder, Result, Statistic};
use ofi_core::auth::AuthKey;
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{Arm, Host, Lanes, OutAtomic, OutMessage, OutNote, OutRma, Peer, Posted};
use ofi_ring::crash_point;
use ofi_ring::doorbell::{Sleeper, take_hint};
use ofi_ring::membarrier::{self, Support};
use ofi_ring::mpsc;
use rustc_hash::FxHashMap;

use crate::Shm;
use crate::control::Message;
use crate::helper::Helper;
use crate::hints::{HintTable, Hinted};
use crate::lane::{Common, Counts, Lane};
use crate::layout::{LINE, doorbell, endpoint, pair, wish};
use crate::message::Token;
use crate::settings::{SINGLE_COPY_SIZE, SingleCopy};
use crate::shared::{Event, Shared};

/// Lanes polled at every poll.
const HOT: usize = 16;
/// Polls without a command after which a lane may become cold.
const QUIET: u32 = 256;
/// Lost lanes that are looked at for each new peer.
const SPARES: usize = 8;
/// Polls after which an endpoint that had slept no longer expects to sleep soon.
const AWAKE: u32 = 4096;

/// The lanes of one endpoint.
pub struct ShmLanes {
    pub(crate) common: Common,
    inbox: mpsc::Receiver<Event>,
    /// Events that wait for a lane to be drained.
    postponed: Vec<Event>,
    pub(crate) format: AddrFormat,
    pub(crate) by_socket: FxHashMap<Vec<u8>, Peer>,
    pub(crate) lanes: Vec<Lane>,
    /// Those that were lost, the longest ago first. Some may be in use again.
    spare: VecDeque<Peer>,
    hot: Vec<Peer>,
    cold: Vec<Peer>,
    hinted: HintTable,
    next_cold: usize,
    next_line: usize,
    sleeper: Sleeper,
    armed: bool,
    /// The next poll has more to do than to look at the hot lanes.
    rare: bool,
    /// Polls since the endpoint last prepared to sleep; `None` if senders need not ring.
    polls_awake: Option<u32>,
}

/// An endpoint's lanes before and after it is enabled.
pub enum State {
    Closed { domain: Arc<DomainPart<Shm>>, terms: Terms },
    Open(Box<ShmLanes>),
}

/// What the lanes must know of their endpoint's info.
#[derive(Clone)]
pub struct Terms {
    pub format: AddrFormat,
    pub caps: Caps,
    pub strict: bool,
    pub connected: bool,
    pub auth: AuthKey,
    /// The name in the info, which is the endpoint's unless another endpoint has it.
    pub proposed: Option<Address>,
}

impl State {
    /// See [`ofi_core::transport::Transport::open_lanes`].
    pub fn new(domain: &Arc<DomainPart<Shm>>, info: &Info) -> Self {
        let terms = Terms {
            format: info.addr_format,
            caps: info.caps,
            strict: info.tx_attr.msg_order.intersects(MsgOrder::WAS | MsgOrder::RAS),
            connected: crate::connection::is_connected(info),
            auth: AuthKey::of(info),
            proposed: info.src_addr.clone(),
        };
        Self::Closed { domain: Arc::clone(domain), terms }
    }

    #[inline]
    fn open(&mut self) -> Result<&mut ShmLanes> {
        match self {
            Self::Open(lanes) => Ok(lanes),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

impl ShmLanes {
    fn new(domain: &Arc<DomainPart<Shm>>, terms: &Terms, name: Option<&Address>) -> Result<Self> {
        let barrier = membarrier::register();
        let helper = Helper::get()?;
        let (shared, inbox) = Shared::open(domain, name, terms, barrier)?;
        helper.add(&shared);
        // SAFETY: the word lies in the endpoint memory, which `common.shared` keeps; only this sleeper stores it.
        let sleeper = unsafe { Sleeper::new(shared.memory.word(endpoint::SLEEPING), barrier) };
        let common = Common {
            shared,
            helper,
            eager: crate::lane::eager(),
            kept: 0,
            kept_limit: crate::settings::KEPT_BYTES.get(),
            strict: terms.strict,
            single: SingleCopy::get(),
            single_size: SINGLE_COPY_SIZE.get(),
            counts: Counts::default(),
        };
        Ok(Self {
            common,
            inbox,
            postponed: Vec::new(),
            format: terms.format,
            by_socket: FxHashMap::default(),
            lanes: Vec::new(),
            spare: VecDeque::new(),
            hot: Vec::new(),
            cold: Vec::new(),
            hinted: HintTable::default(),
            next_cold: 0,
            next_line: 0,
            sleeper,
            armed: false,
            rare: false,
            polls_awake: None,
        })
    }

    pub(crate) fn meet<H: Host<Shm>>(&mut self, host: &mut H, socket: &[u8]) -> Option<Peer> {
        if let Some(&peer) = self.by_socket.get(socket) {
            return Some(peer);
        }
        let address = crate::name::address_of(socket, self.format)?;
        let peer = self.take_spare(host).unwrap_or(self.lanes.len() as Peer);
        let lane = Lane::new(peer, socket.to_vec());
        match self.lanes.get_mut(peer as usize) {
            Some(spare) => {
                let last = std::mem::replace(spare, lane);
                self.by_socket.remove(&last.socket);
            }
            None => self.lanes.push(lane),
        }
        self.by_socket.insert(socket.to_vec(), peer);
        host.introduce(peer, &address);
        Some(peer)
    }

    /// The number of a lane that was lost, and that nothing refers to: so there are as many lanes as peers at one time, not as
    /// peers ever met.
    fn take_spare<H: Host<Shm>>(&mut self, host: &mut H) -> Option<Peer> {
        for _ in 0..self.spare.len().min(SPARES) {
            let peer = self.spare.pop_front()?;
            let lane = &mut self.lanes[peer as usize];
            let is_idle = lane.link.is_none() && lane.outstanding == 0;
            if is_idle && !host.retire(peer) {
                self.spare.push_back(peer); // later, perhaps
                continue;
            }
            lane.is_spare = false;
            if is_idle {
                return Some(peer);
            }
        }
        None
    }

    /// A lane was lost. Its peer may come back, and find it as it is, unless another one takes it.
    fn spare(&mut self, peer: Peer) {
        let lane = &mut self.lanes[peer as usize];
        if !lane.is_spare {
            lane.is_spare = true;
            self.spare.push_back(peer);
        }
    }

    /// Takes what the helper has to say.
    #[cold]
    fn take_events<H: Host<Shm>>(&mut self, host: &mut H) {
        let mut events = std::mem::take(&mut self.postponed);
        while let Some(event) = self.inbox.pop() {
            events.push(event);
        }
        for event in events {
            match event {
                Event::Attached { peer, own, parts } => {
                    let Some(peer) = self.meet(host, &peer) else { continue };
                    let lane = &mut self.lanes[peer as usize];
                    if lane.gone && lane.has_commands() {
                        // The successor of an ended peer waits until all that its predecessor sent has been taken.
                        let peer = lane.socket.clone();
                        self.postponed.push(Event::Attached { peer, own, parts });
                        continue;
                    }
                    if lane.up().is_some() {
                        lane.lose(&mut self.common, host, Errno::ECONNRESET);
                        self.drop_from_lists(peer);
                    }
                    let lane = &mut self.lanes[peer as usize];
                    let hint = own.hint as usize;
                    crash_point!("attach.begin");
                    if lane.attach(&self.common, &own, parts).is_err() {
                        lane.lose(&mut self.common, host, Errno::EINVAL);
                        self.spare(peer);
                        continue;
                    }
                    // What was sent before the peer was there rang no bell, and the peer may have looked, and slept, since.
                    crash_point!("attach.rings");
                    lane.ring(&mut self.common);
                    lane.confirm(host);
                    crash_point!("attach.confirmed");
                    lane.move_parked(&mut self.common, host);
                    let mut hinted = std::mem::take(&mut self.hinted);
                    hinted.assign(hint, peer, |other| self.is_hinted(other, hint));
                    self.hinted = hinted;
                    self.hot.push(peer);
                }
                Event::Refused { peer, errno } => {
                    if let Some(&peer) = self.by_socket.get(&peer)
                        && self.lanes[peer as usize].up().is_none()
                    {
                        self.lanes[peer as usize].refuse(&mut self.common, host, errno);
                        self.spare(peer);
                    }
                }
                Event::Gone { peer, incarnation } => {
                    if let Some(peer) = self.known(&peer, incarnation) {
                        self.bury(peer);
                    }
                }
                Event::Bulk { peer, incarnation, lines, memory } => {
                    if let Some(peer) = self.known(&peer, incarnation)
                        && self.lanes[peer as usize].attach_bulk(memory, lines).is_err()
                    {
                        self.give_up(host, peer, Errno::EINVAL);
                    }
                }
                Event::Grant { peer, incarnation, key, terms, memory } => {
                    if let Some(peer) = self.known(&peer, incarnation) {
                        let lane = &mut self.lanes[peer as usize];
                        lane.granted(key, terms, memory);
                        crash_point!("grant.taken");
                        lane.move_parked(&mut self.common, host);
                    }
                }
                Event::Packet { peer, packet } => self.take_packet(host, &peer, &packet),
                Event::PacketLost { peer, errno } => self.packet_lost(host, &peer, errno),
            }
        }
    }

    fn known(&self, socket: &[u8], incarnation: u64) -> Option<Peer> {
        let peer = *self.by_socket.get(socket)?;
        let up = self.lanes[peer as usize].up()?;
        (up.parts.incarnation == incarnation).then_some(peer)
    }

    /// A peer is gone. Its lane ends when what it sent has been taken.
    pub(crate) fn bury(&mut self, peer: Peer) {
        let lane = &mut self.lanes[peer as usize];
        (lane.gone, lane.busy) = (true, true);
        self.warm_up(peer); // a cold lane is not polled
    }

    #[cold]
    pub(crate) fn give_up<H: Host<Shm>>(&mut self, host: &mut H, peer: Peer, errno: Errno) {
        let lane = &mut self.lanes[peer as usize];
        let incarnation = lane.up().map(|up| up.parts.incarnation);
        self.common.shared.forget(&lane.socket, incarnation);
        self.common.shared.shut_out();
        lane.lose(&mut self.common, host, errno);
        self.drop_from_lists(peer);
        self.spare(peer);
    }

    fn drop_from_lists(&mut self, peer: Peer) {
        self.hot.retain(|&other| other != peer);
        self.cold.retain(|&other| other != peer);
    }

    fn poll_lane<H: Host<Shm>>(&mut self, host: &mut H, peer: Peer) -> bool {
        let lane = &mut self.lanes[peer as usize];
        if lane.poll(&mut self.common, host).is_err() {
            self.break_up(host, peer);
            return false;
        }
        true
    }

    #[cold]
    fn break_up<H: Host<Shm>>(&mut self, host: &mut H, peer: Peer) {
        let lane = &self.lanes[peer as usize];
        let closed = lane.gone || lane.is_closed();
        if !closed {
            self.common.counts.corrupt += 1;
            tracing::warn!(target: "ofi::shm::ep_data", peer, "a peer broke the protocol; its lane is given up");
        }
        self.give_up(host, peer, if closed { Errno::ECONNRESET } else { Errno::EIO });
    }

    /// Makes quiet lanes cold, while there are too many hot ones.
    #[cold]
    fn cool_down<H: Host<Shm>>(&mut self, host: &mut H) {
        let quiet = |lane: &Lane| lane.idle >= QUIET && lane.outstanding == 0 && !lane.copies();
        let candidates: Vec<Peer> =
            self.hot.iter().copied().filter(|&peer| quiet(&self.lanes[peer as usize])).collect();
        if candidates.is_empty() {
            return;
        }
        for &peer in &candidates {
            if let Some(link) = &self.lanes[peer as usize].link {
                self.sleeper.attend(link.own.word32(pair::ATTENTION));
            }
        }
        if self.sleeper.settle().is_err() {
            return;
        }
        let (mut quiet, mut late) = (Vec::new(), Vec::new());
        for peer in candidates {
            // What was sent before the barrier is seen now; what comes later rings.
            let lane = &mut self.lanes[peer as usize];
            lane.is_cold = !lane.has_input();
            if lane.is_cold { quiet.push(peer) } else { late.push(peer) }
        }
        self.hot.retain(|&peer| !self.lanes[peer as usize].is_cold);
        self.cold.append(&mut quiet);
        for peer in late {
            self.poll_lane(host, peer);
        }
    }

    fn warm_up(&mut self, peer: Peer) {
        if self.lanes.get(peer as usize).is_some_and(|lane| lane.is_cold)
            && let Some(at) = self.cold.iter().position(|&other| other == peer)
        {
            self.cold.swap_remove(at);
            let lane = &mut self.lanes[peer as usize];
            (lane.idle, lane.is_cold) = (0, false);
            if self.lanes[peer as usize].up().is_some() {
                self.hot.push(peer);
            }
        }
    }

    /// Whether a lane in use has this hint byte.
    fn is_hinted(&self, peer: Peer, hint: usize) -> bool {
        let link = self.lanes.get(peer as usize).and_then(|lane| lane.link.as_ref());
        link.is_some_and(|link| link.up.is_some() && link.own.hint as usize == hint)
    }

    /// A hint was set: its sender has something, or one of its senders.
    fn follow_hint(&mut self, hint: usize) {
        match self.hinted.of(hint) {
            Hinted::Nobody => {}
            Hinted::One(peer) => self.warm_up(peer),
            Hinted::Several => {
                let its: Vec<Peer> =
                    self.cold.iter().copied().filter(|&peer| self.is_hinted(peer, hint)).collect();
                its.into_iter().for_each(|peer| self.warm_up(peer));
            }
        }
    }

    fn hint(&self, index: usize) -> &AtomicU8 {
        // SAFETY: inside the doorbell memory, which `shared` keeps; accessed atomically.
        unsafe { &*self.common.shared.doorbell.word(index % doorbell::HINTS) }
    }

    /// Looks at one line of hints and at one cold lane.
    #[cold]
    fn poll_cold<H: Host<Shm>>(&mut self, host: &mut H) {
        let first = self.next_line * LINE;
        for index in first..(first + LINE).min(self.hinted.len()) {
            if self.hint(index).load(Ordering::Relaxed) != 0 && take_hint(self.hint(index)) {
                self.follow_hint(index);
            }
        }
        self.next_line += 1;
        if self.next_line * LINE >= self.hinted.len() {
            self.next_line = 0;
        }
        self.next_cold += 1;
        if self.next_cold >= self.cold.len() {
            self.next_cold = 0;
        }
        if let Some(&peer) = self.cold.get(self.next_cold) {
            self.poll_lane(host, peer);
        }
    }

    /// Tells senders that nobody is going to sleep.
    #[cold]
    fn settle_down(&mut self) {
        self.polls_awake = None;
        for &peer in &self.hot {
            if let Some(link) = &self.lanes[peer as usize].link {
                self.sleeper.unattend(link.own.word32(pair::ATTENTION));
            }
        }
    }

    #[inline(always)]
    fn poll<H: Host<Shm>>(&mut self, host: &mut H) {
        if self.rare || self.common.shared.has_news() {
            self.poll_rare(host);
        }
        let mut at = 0;
        while let Some(&peer) = self.hot.get(at) {
            let lane = &mut self.lanes[peer as usize];
            if lane.wants_poll() && lane.poll(&mut self.common, host).is_err() {
                self.break_up(host, peer);
                continue;
            }
            at += 1;
        }
        if self.hot.len() > 1 && !host.hungry() {
            self.hot.rotate_left(1); // the next poll begins with another peer: none starves
        }
    }

    /// What most polls have nothing of: events, cold lanes, the way back from sleep.
    #[cold]
    #[inline(never)]
    fn poll_rare<H: Host<Shm>>(&mut self, host: &mut H) {
        if let Some(polls) = &mut self.polls_awake {
            *polls += 1;
            if *polls > AWAKE {
                self.settle_down();
            }
            if self.armed {
                self.armed = false;
                self.sleeper.disarm();
                host.disarmed();
            }
        }
        if self.common.shared.take_news() || !self.postponed.is_empty() {
            self.take_events(host);
        }
        if !self.cold.is_empty() {
            self.poll_cold(host);
        }
        if self.hot.len() > HOT {
            for index in 0..self.hot.len() {
                self.lanes[self.hot[index] as usize].idle += 1;
            }
            self.cool_down(host);
        }
        self.rare = self.polls_awake.is_some()
            || !self.postponed.is_empty()
            || !self.cold.is_empty()
            || self.hot.len() > HOT;
    }

    /// Whether a peer whose lane is hot has sent something, or made room for what found none. Of room a sleeper is told
    /// once: the application may not want it any more, and then nothing would ever use it up.
    fn has_input(&mut self) -> bool {
        (0..self.hot.len()).any(|index| {
            let lane = &mut self.lanes[self.hot[index] as usize];
            let has_input = lane.has_input();
            if has_input && lane.has_room_again() {
                lane.starved = 0;
            }
            has_input
        })
    }

    fn arm(&mut self) -> Arm {
        // What was signalled before is looked at below.
        ofi_core::sys::drain_eventfd(self.common.shared.event.as_raw_fd());
        self.polls_awake = Some(0);
        (self.armed, self.rare) = (true, true);
        for index in 0..self.hot.len() {
            let peer = self.hot[index];
            if let Some(link) = &self.lanes[peer as usize].link {
                self.sleeper.attend(link.own.word32(pair::ATTENTION));
            }
        }
        crash_point!("sleep.attend");
        if self.sleeper.arm().is_err() || self.common.shared.has_news() {
            return Arm::Ready;
        }
        if self.has_input() {
            return Arm::Ready;
        }
        if !self.cold.is_empty() {
            for index in 0..self.hinted.len() {
                if take_hint(self.hint(index)) {
                    self.follow_hint(index);
                }
            }
            if self.has_input() {
                return Arm::Ready;
            }
        }
        crash_point!("sleep.armed");
        Arm::Armed
    }
}

impl Drop for ShmLanes {
    fn drop(&mut self) {
        // The application has its memory back when this returns: nobody else may be at it then.
        let deadline = crate::single::deadline();
        self.lanes.iter_mut().for_each(|lane| lane.close_copies(deadline));
        let shared = &self.common.shared;
        // Peers learn of it from their mappings, and those that sleep from the datagram.
        shared.close_pairs();
        for lane in &self.lanes {
            if let Some(link) = &lane.link {
                link.own.word32(pair::WISH).store(wish::CLOSED, Ordering::Release);
            }
        }
        let bye = Message::Bye { incarnation: shared.incarnation }.encode();
        shared.part_from_admitted();
        for peer in shared.peers() {
            // A socket that is full belongs to a process that does not run; it will see the word.
            crash_point!("close.bye");
            let _ = shared.socket.send(&peer, &bye, &[]);
        }
        crash_point!("close.removed");
        self.common.helper.remove(shared);
    }
}

impl Lanes<Shm> for State {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let Self::Closed { domain, terms } = self else {
            return Err(Error::new(Errno::EOPBADSTATE));
        };
        let lanes = ShmLanes::new(domain, terms, name)?;
        let address = lanes.common.shared.address.clone();
        *self = Self::Open(Box::new(lanes));
        Ok(address)
    }

    fn peer<H: Host<Shm>>(&mut self, host: &mut H, address: &Address) -> Result<Peer> {
        let lanes = self.open()?;
        let socket = crate::name::socket_name(address)?;
        lanes.meet(host, &socket).ok_or_else(|| Error::new(Errno::EADDRNOTAVAIL))
    }

    #[inline(always)]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        peer: Peer,
        tag: u64,
        from: *const u8,
        len: usize,
    ) -> bool {
        let Self::Open(lanes) = self else { return false };
        let Some(lane) = lanes.lanes.get_mut(peer as usize) else { return false };
        // SAFETY: the caller's promise.
        unsafe { lane.send_now::<TAGGED>(&mut lanes.common, tag, from, len) }
    }

    fn send<H: Host<Shm>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        let Self::Open(lanes) = self else { return Err(Error::new(Errno::EOPBADSTATE)) };
        lanes.lanes[out.peer as usize].send(&mut lanes.common, host, out)
    }

    fn rma<H: Host<Shm>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        lanes.lanes[out.peer as usize].rma(&mut lanes.common, host, out)
    }

    fn atomic<H: Host<Shm>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        lanes.lanes[out.peer as usize].atomic(&mut lanes.common, host, out)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let lanes = self.open()?;
        lanes.lanes[out.peer as usize].note(&mut lanes.common, out)
    }

    fn pull<H: Host<Shm>>(&mut self, host: &mut H, peer: Peer, token: Token, into: SlotId) {
        if let Ok(lanes) = self.open() {
            lanes.lanes[peer as usize].pull(&mut lanes.common, host, token, into);
        }
    }

    fn settle_receives<H: Host<Shm>>(&mut self, host: &mut H) {
        if let Self::Open(lanes) = self {
            for &peer in &lanes.hot {
                lanes.lanes[peer as usize].settle_receives(host);
            }
        }
    }

    fn discard(&mut self, peer: Peer, token: Token) {
        if let Ok(lanes) = self.open() {
            lanes.lanes[peer as usize].discard(&mut lanes.common, token);
        }
    }

    #[inline(always)]
    fn poll<H: Host<Shm>>(&mut self, host: &mut H) {
        if let Self::Open(lanes) = self {
            lanes.poll(host);
        }
    }

    fn arm(&mut self) -> Arm {
        self.open().map_or(Arm::Armed, ShmLanes::arm)
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(lanes) => Some(lanes.common.shared.event.as_raw_fd()),
            Self::Closed { .. } => None,
        }
    }

    fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        self.open()?.packet(to, packet, watch)
    }

    fn join<H: Host<Shm>>(&mut self, host: &mut H, address: &Address, first: bool) -> Result<()> {
        self.open()?.join(host, address, first)
    }

    fn part<H: Host<Shm>>(&mut self, host: &mut H, drain: bool) {
        if let Ok(lanes) = self.open() {
            lanes.part(host, drain);
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        let Self::Open(lanes) = self else { return };
        let counts = &lanes.common.counts;
        let helper = &lanes.common.shared.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add(
            "shm_peers",
            lanes.lanes.len() as u64,
            "lanes of peers, those that are gone and not forgotten included",
        );
        add("shm_hot", lanes.hot.len() as u64, "lanes polled at every poll");
        add("shm_eager", counts.eager, "messages sent inside a command");
        add("shm_announced", counts.announced, "messages announced first");
        add("shm_kept", counts.kept, "of those, kept by the library as the receiver was out of room");
        add("shm_bulk_bytes", counts.bulk_bytes, "bytes streamed through bulk memory");
        add("shm_direct_bytes", counts.direct_bytes, "bytes copied straight to or from a peer's memory");
        add("shm_direct_atomics", counts.direct_atomics, "atomic operations done in a peer's memory");
        add(
            "shm_single_messages",
            counts.single_messages,
            "messages received straight from memory to memory",
        );
        add("shm_single_accesses", counts.single_accesses, "long reads and writes that got their bytes so");
        add("shm_single_read_bytes", counts.single_read, "bytes of those that this end read");
        add("shm_single_received_bytes", counts.single_received, "bytes of those that their senders wrote");
        add("shm_single_written_bytes", counts.single_written, "bytes written straight into peers' memory");
        add(
            "shm_single_failed",
            counts.single_failed,
            "messages that failed to come so and came through bulk memory",
        );
        add(
            "shm_single_denied",
            counts.single_denied,
            "peers whose memory may not be read, or not be written",
        );
        add("shm_ring_full", counts.ring_full, "times that the ring to a peer was full");
        add("shm_wakes", counts.wakes, "sleeping peers woken");
        add("shm_lost", counts.lost, "peers lost");
        add("shm_corrupt", counts.corrupt, "peers given up for breaking the protocol");
        add("shm_dropped", helper.dropped.load(Ordering::Relaxed), "control datagrams dropped");
        let keys = helper.other_key.load(Ordering::Relaxed);
        add("shm_other_key", keys, "greetings and requests refused for another authorization key");
        add("shm_granted", helper.granted.load(Ordering::Relaxed), "mappings handed to peers");
        let fenceless = lanes.common.shared.barrier == Support::Expedited;
        add("shm_fenceless", fenceless.into(), "1 if senders need no fence (membarrier works)");
    }
}
