//! Endpoints of `FI_EP_DGRAM`: each message is one plain datagram of the device (UD), with up to 4 bytes of remote CQ
//! data as immediate data. C libfabric's verbs provider sends and understands the same datagrams, and has the same
//! addresses (`FI_ADDR_IB_UD`).
//!
//! Outgoing messages are copied to registered slots, and incoming messages from such slots, after the route header that
//! the device writes there. With `FI_MSG_PREFIX` the application gets the header with the message, and the same number
//! of bytes at the start of an outgoing message is not sent. Nothing is resent, and no call waits: a datagram without
//! room is dropped and counted.

mod groups;
pub mod naming;
mod peers;

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::Arc;

use ibv::GRH;
use ofi_api::{Address, Caps, EpType, Errno, Error, Info, Mode, Result, Statistic};
use ofi_core::copy;
use ofi_core::domain::DomainPart;
use ofi_core::log::Limit;
use ofi_core::transport::{Arm, Arrived, OutMessage, PeerId, Posted, RxName, Upcalls};
use ofi_ring::cq_arm::{CqArm, may_sleep};

use self::groups::Groups;
use self::naming::Registered;
use self::peers::{Met, Peers};
use crate::Verbs;
use crate::adapter::Slab;
use crate::address::{Name, service, source};
use crate::cq_data::immediate;
use crate::errors::failed;
use crate::events::{Failed, Watch};
use crate::rc::ud::{UdQueues, UdRoute, UdSizes, UdTarget};
use crate::rc::{Status, WorkCompletion};
use crate::waiter::Waiter;

/// The Q-Key of all endpoints, including C's.
const QKEY: u32 = 0x1111_1111;
/// Maximum number of datagrams in flight: outgoing, and incoming.
const SENDS: usize = 128;
const RECEIVES: usize = 512;
/// Maximum number of completion queue entries that one poll reads.
const MAX_COMPLETIONS_PER_POLL: usize = 256;
/// Number of polls per check for asynchronous events of the device.
const POLLS_PER_EVENT_CHECK: u32 = 64;
/// Marks the ids of receives.
const RECEIVE: u64 = 1 << 63;

/// Length in bytes of the prefix of an endpoint's messages, in the direction with this mode.
pub fn prefix(info: &Info, mode: Mode) -> usize {
    let has_one = info.ep_attr.ep_type == EpType::Dgram && mode.contains(Mode::MSG_PREFIX);
    if has_one { GRH } else { 0 }
}

/// The statistics.
#[derive(Default)]
struct DatagramCounts {
    sent: u64,
    received: u64,
    full: u64,
    unsendable: u64,
    malformed: u64,
    nameless: u64,
}

/// The state of one datagram endpoint: its queue pair, slots, peers and groups.
pub struct Datagrams {
    // The queue pair is dropped first: it uses the slots' memory and the routes, and is attached to the groups.
    queues: Box<dyn UdQueues>,
    sending: Slab,
    receiving: Slab,
    free: Vec<u32>,
    /// The route of each slot that is being sent.
    along: Vec<Option<UdRoute>>,
    /// Completion queue entries that were read early.
    ready: VecDeque<WorkCompletion>,
    peers: Peers,
    groups: Groups,
    /// Whether the application wants the senders of messages.
    sources: bool,
    longest: usize,
    /// Number of bytes at the start of an outgoing message that are not sent, and of bytes of the route header that are
    /// delivered.
    prefixes: [usize; 2],
    name: Name,
    is_ethernet: bool,
    /// The name at this host's name server, if the endpoint has a service.
    _registered: Option<Registered>,
    waiter: Waiter,
    /// The device's events.
    watch: Watch,
    /// Set when the device, or the queue pair, is lost.
    gone: Option<Errno>,
    /// Whether events of the device are queued.
    look: bool,
    polls: u32,
    counts: DatagramCounts,
    // The domain of the device, which must outlive the fields above.
    _domain: Arc<DomainPart<Verbs>>,
}

impl Datagrams {
    /// Opens the queue pair.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` for a requested name, because the device assigns names; the error of rdma-core.
    pub fn new(domain: &Arc<DomainPart<Verbs>>, info: &Info, name: Option<&Address>) -> Result<Self> {
        let failed = |error: ibv::Error| failed(&error);
        let (of, ip, device) =
            (domain.transport.datagrams()?, domain.transport.ip, &*domain.transport.device);
        let port = of.port(ip).map_err(failed)?;
        let service = name.or(info.src_addr.as_ref()).map_or(0, service);
        let name = name.map(Name::parse).transpose()?;
        if name.is_some_and(|name| name.qp != 0 || name.gid != port.gid) {
            return Err(Error::wanted(
                Errno::EADDRNOTAVAIL,
                "the name of a datagram endpoint",
                "the GID of its domain's port, and queue pair 0: the device chooses the number",
                name.map_or_else(String::new, |name| name.encode().to_string()),
                "use the name that fi_getname returns",
            ));
        }
        // Each request under way may need an entry in the completion queue.
        let receives = RECEIVES.min(port.queue).min(port.completions / 2);
        let sends = SENDS.min(port.queue).min(port.completions - receives);
        let queues = of.open(ip, UdSizes { sends, receives, qkey: QKEY }).map_err(failed)?;
        let sending = Slab::new(&domain.transport, sends, port.mtu)?;
        let receiving = Slab::new(&domain.transport, receives, GRH + port.mtu)?;
        // A LID means nothing on Ethernet, where some drivers report 1.
        let lid = if port.is_ethernet { 0 } else { port.lid };
        let name = Name { gid: port.gid, qp: queues.number(), lid };
        let of_source = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
        let watch = Watch::new(device, &[])?;
        let waiter = Waiter::new(&[&[queues.fd()], watch.fds()].concat())?;
        let made = Self {
            waiter,
            watch,
            gone: None,
            look: false,
            polls: 0,
            queues,
            sending,
            receiving,
            free: (0..sends as u32).collect(),
            along: vec![None; sends],
            ready: VecDeque::new(),
            peers: Peers::new(peers::MAX_PEERS),
            groups: Groups::default(),
            sources: info.caps.intersects(of_source),
            longest: info.ep_attr.max_msg_size.min(port.mtu),
            prefixes: [info.tx_attr.mode, info.rx_attr.mode].map(|mode| prefix(info, mode)),
            name,
            is_ethernet: port.is_ethernet,
            _registered: Registered::new(service, &name.encode()),
            counts: DatagramCounts::default(),
            _domain: Arc::clone(domain),
        };
        for slot in 0..receives as u32 {
            made.receive(slot);
        }
        Ok(made)
    }

    /// Its address.
    pub fn address(&self) -> Address {
        self.name.encode()
    }

    fn receive(&self, slot: u32) {
        let to = self.receiving.segment(slot, self.receiving.size());
        // SAFETY: the slot's datagram has been taken, so that the device owns the slot again; the slab is dropped after
        // the queue pair.
        if let Err(error) = unsafe { self.queues.receive(RECEIVE | u64::from(slot), to) } {
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive is lost");
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::peer`].
    pub fn peer<H: Upcalls<Verbs>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        let name = Name::parse(address)?;
        let peer = match self.peers.meet(name, |peer| host.retire(peer)) {
            Met::Before(peer) => return Ok(peer),
            Met::New(peer) => peer,
            Met::NoRoom => self.peers.add(name),
        };
        host.introduce(peer, &name.encode());
        Ok(peer)
    }

    /// See [`ofi_core::transport::TransportEndpoint::send`].
    pub fn send(&mut self, out: &OutMessage<'_>) -> Result<Posted> {
        let data = immediate(out.flags, out.data)?;
        let [skipped, _] = self.prefixes;
        let Some(len) = out.len.checked_sub(skipped) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "the message's length in bytes",
                format!("at least {skipped} (ep_attr.msg_prefix_size)"),
                out.len.to_string(),
                "leave room for the prefix in front of the message, or call getinfo without FI_MSG_PREFIX",
            ));
        };
        if len > self.longest {
            return Err(Error::with(
                Errno::EMSGSIZE,
                format!("{len} bytes; a datagram holds {}", self.longest),
            ));
        }
        if let Some(errno) = self.gone {
            let advice = "the device is lost; close the endpoint and its domain, and call getinfo again";
            return Err(Error::with(errno, advice));
        }
        let qp = self.peers.qp(out.peer)?;
        let route = match self.peers.route(out.peer, &*self.queues, |name| self.groups.resolve(name)) {
            // The device has no room for another route, and sends in flight keep theirs.
            Err(error) if error.errno() == Errno::ENOMEM && self.along.iter().any(Option::is_some) => {
                self.drain();
                self.full();
                return Err(Error::AGAIN);
            }
            route => route?,
        };
        if self.free.is_empty() {
            self.drain();
        }
        let Some(slot) = self.free.pop() else {
            self.full();
            return Err(Error::AGAIN);
        };
        // SAFETY: the pieces are lent during the call, and a slot has room for the longest datagram.
        unsafe { copy::gather(out.pieces, skipped, self.sending.at(slot), len) };
        let from = self.sending.segment(slot, len);
        let route = self.along[slot as usize].insert(route);
        // SAFETY: the device owns the slot, which keeps the route, until the request has ended.
        match unsafe { self.queues.send(slot.into(), from, UdTarget { route, qp, qkey: QKEY }, data) } {
            Ok(()) => self.counts.sent += 1,
            Err(error) => {
                tracing::debug!(target: "ofi::verbs::ep_data", %error, "a datagram was not sent");
                self.give_slot(slot);
                self.counts.unsendable += 1;
            }
        }
        Ok(Posted::Done)
    }

    /// Counts and logs a send that finds no room.
    #[cold]
    fn full(&mut self) {
        static LIMIT: Limit = Limit::new();
        self.counts.full += 1;
        if tracing::enabled!(target: "ofi::verbs::ep_data", tracing::Level::DEBUG)
            && let Some(more) = LIMIT.pass()
        {
            tracing::debug!(
                target: "ofi::verbs::ep_data",
                refused = self.counts.full, more,
                "all slots for datagrams, or all routes of the device, are in use: sends get FI_EAGAIN"
            );
        }
    }

    /// Gives back a slot that is no longer being sent.
    fn give_slot(&mut self, slot: u32) {
        self.along[slot as usize] = None;
        self.free.push(slot);
    }

    /// Processes only completions of sends.
    fn drain(&mut self) {
        let before = self.ready.len();
        self.refill();
        for entry in self.ready.split_off(before) {
            match entry.id & RECEIVE {
                0 => self.sent(&entry),
                _ => self.ready.push_back(entry),
            }
        }
    }

    /// Reads entries of the completion queue. Returns their number.
    fn refill(&mut self) -> usize {
        self.queues.poll(&mut self.ready).unwrap_or_else(|error| {
            if self.gone.is_none() {
                tracing::error!(target: "ofi::verbs::cq", %error, "the completion queue is lost");
                self.lost(Errno::EIO);
            }
            0
        })
    }

    /// Marks the endpoint as lost, after which it sends nothing.
    #[cold]
    fn lost(&mut self, errno: Errno) {
        self.watch.failures += 1;
        self.gone.get_or_insert(errno);
        self.watch.mute(&self.waiter, self.queues.fd());
    }

    fn sent(&mut self, entry: &WorkCompletion) {
        self.counts.unsendable += u64::from(entry.status != Status::SUCCESS);
        self.give_slot(entry.id as u32);
    }

    /// Processes the device's events. An endpoint that has lost its queue pair sends nothing.
    fn take_device_events(&mut self) {
        while let Some(failed) = self.watch.next() {
            let errno = match failed {
                Failed::Device => Errno::ENODEV,
                Failed::Pair(qp) if qp == self.queues.number() => Errno::EIO,
                Failed::Queue(queue) if self.queues.has_queue(queue) => Errno::EIO,
                Failed::Pair(_) | Failed::Queue(_) => continue, // another endpoint's
            };
            tracing::error!(target: "ofi::verbs::ep_data", ?failed, "the device reports a failure: the endpoint sends no more datagrams");
            self.lost(errno);
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::poll`].
    pub fn poll<H: Upcalls<Verbs>>(&mut self, host: &mut H) {
        self.polls = self.polls.wrapping_add(1);
        if std::mem::take(&mut self.look) || self.polls.is_multiple_of(POLLS_PER_EVENT_CHECK) {
            self.take_device_events();
        }
        if self.groups.joining() > 0 {
            self.move_joins(host);
        }
        let mut taken = 0;
        while taken < MAX_COMPLETIONS_PER_POLL && host.hungry() {
            let Some(entry) = self.next() else { return };
            taken += 1;
            if entry.id & RECEIVE == 0 {
                self.sent(&entry);
                continue;
            }
            let slot = (entry.id & !RECEIVE) as u32;
            if entry.status == Status::SUCCESS {
                self.take(host, slot, &entry);
            }
            self.receive(slot);
        }
    }

    /// The next completion, if there is one.
    fn next(&mut self) -> Option<WorkCompletion> {
        if self.ready.is_empty() {
            self.refill();
        }
        self.ready.pop_front()
    }

    fn take<H: Upcalls<Verbs>>(&mut self, host: &mut H, slot: u32, entry: &WorkCompletion) {
        self.counts.received += 1;
        let at = self.receiving.at(slot);
        let Some(len) = entry.len.checked_sub(GRH).filter(|&len| GRH + len <= self.receiving.size()) else {
            self.counts.malformed += 1;
            return;
        };
        // SAFETY: the device has written the slot, and does not write to it until it is posted again.
        let header = unsafe { &*at.cast_const().cast::<[u8; GRH]>() };
        let gid = if entry.has_route { source(header, &self.name.gid) } else { Some([0; 16]) };
        let lid = if self.is_ethernet { 0 } else { entry.lid };
        let name = gid.map(|gid| Name { gid, qp: entry.source_qp, lid });
        let peer = self.source(host, name);
        let [_, delivered] = self.prefixes;
        let arrived = Arrived {
            peer,
            rx: RxName::ANY,
            tagged: false,
            has_data: entry.data.is_some(),
            tag: 0,
            data: entry.data.unwrap_or(0).into(),
            len: delivered + len,
        };
        // SAFETY: as above; `len` bytes follow the header, of which all or none is delivered.
        unsafe { host.deliver(&arrived, at.wrapping_add(GRH - delivered)) };
    }

    /// The sender of a datagram.
    fn source<H: Upcalls<Verbs>>(&mut self, host: &mut H, name: Option<Name>) -> PeerId {
        let met = match name.filter(|_| self.sources) {
            Some(name) => (name, self.peers.meet(name, |peer| host.retire(peer))),
            None => (Name::NOBODY, Met::NoRoom),
        };
        match met {
            (_, Met::Before(peer)) => peer,
            (name, Met::New(peer)) => {
                host.introduce(peer, &name.encode());
                peer
            }
            (_, Met::NoRoom) => {
                self.counts.nameless += u64::from(self.sources);
                let (peer, is_new) = self.peers.nobody();
                if is_new {
                    host.introduce(peer, &Name::NOBODY.encode());
                }
                peer
            }
        }
    }

    /// See [`ofi_core::transport::TransportEndpoint::arm`].
    pub fn arm(&mut self) -> Arm {
        if !self.ready.is_empty() || !may_sleep(self) {
            return Arm::Ready;
        }
        if self.watch.is_ready() {
            self.look = true; // at the next poll
            return Arm::Ready;
        }
        Arm::Armed
    }

    /// The descriptor that becomes readable when datagrams are queued.
    pub fn wait_fd(&self) -> RawFd {
        self.waiter.fd()
    }

    /// See [`ofi_core::transport::TransportEndpoint::is_lost`].
    pub fn is_lost(&self) -> bool {
        self.gone.is_some()
    }

    /// See [`ofi_core::transport::TransportEndpoint::statistics`].
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        self.watch.statistics(into);
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("verbs_tx_datagrams", counts.sent, "datagrams sent");
        add("verbs_rx_datagrams", counts.received, "datagrams received");
        add("verbs_send_full", counts.full, "sends refused for lack of room");
        add("verbs_unsendable", counts.unsendable, "datagrams that the device did not send");
        add(
            "verbs_malformed",
            counts.malformed,
            "datagrams dropped because they were shorter than their header",
        );
        add(
            "verbs_nameless",
            counts.nameless,
            "datagrams delivered without a source: the table of peers was full",
        );
        add("verbs_groups", self.groups.joined() as u64, "multicast groups joined");
        add("verbs_joins_now", self.groups.joining() as u64, "joins that the network has not answered yet");
        add("verbs_peers_now", self.peers.count() as u64, "peers in the table now");
        add(
            "verbs_forgotten",
            self.peers.forgotten,
            "least recently used peers that were evicted from the table",
        );
    }
}

impl CqArm for Datagrams {
    fn quiet(&mut self) {
        self.queues.quiet();
    }

    fn arm(&mut self) -> bool {
        // A lost queue sends no notifications, so no thread stays awake for it.
        self.queues.arm().is_ok() || self.gone.is_some()
    }

    fn look(&mut self) -> bool {
        self.refill() > 0
    }
}
