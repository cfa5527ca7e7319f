//! Unreliable datagrams on the simulated fabric: any sender that knows a queue pair's number and key may send to it. A
//! datagram arrives whole, once, and in its sender's order, or not at all.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ofi_core::sys;
use ofi_verbs::rc::ud::{
    Datagrams, Gid, GroupAddress, MULTICAST, Membership, UdPort, UdQueues, UdRoute, UdSizes, UdTarget,
};
use ofi_verbs::rc::{Opcode, Result, Segment, Sizes, Status, WorkCompletion};

use super::device::{Handle, error};
use super::fabric::{Endpoint, Fabric, put, total};
use super::{Did, Logged, SimulatedDevice};

/// The maximum length of a datagram, in bytes.
const MTU: usize = 1024;
/// The maximum number of groups.
const GROUPS: usize = 128;
/// Bytes before each datagram: a route header.
const GRH: usize = 40;

/// An outgoing datagram.
struct Posted {
    id: u64,
    from: Segment,
    to: [u8; 16],
    lid: u16,
    qp: u32,
    qkey: u32,
    data: Option<u32>,
}

/// Granted, or the error number of a refusal.
type Answer = std::result::Result<(), i32>;

/// A join that was requested of the network, and not left.
pub struct Join {
    group: IpAddr,
    answer: Option<Answer>,
    /// Readable from the arrival of the answer until it is taken.
    told: OwnedFd,
}

impl Join {
    fn answer(&mut self, answer: Answer) {
        self.answer = Some(answer);
        sys::signal_eventfd(&self.told);
    }
}

/// A queue pair.
pub struct UdPair {
    endpoint: u64,
    gid: [u8; 16],
    qkey: u32,
    sends: usize,
    /// Sends whose completions were not taken.
    open: usize,
    /// Its number of address handles.
    routes: usize,
    posted: VecDeque<Posted>,
    receives: VecDeque<(u64, Segment)>,
    size: usize,
}

/// The fates of datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fates {
    /// Stored in a receive.
    pub arrived: u64,
    /// Lost by the network.
    pub lost: u64,
    /// There is no such queue pair, or its key differs.
    pub stray: u64,
    /// The queue pair had no receive, or a short one.
    pub dropped: u64,
}

/// A report of a datagram with arbitrary contents ([`SimulatedDevice::forge`]).
#[derive(Clone, Debug, Default)]
pub struct Forged {
    /// The bytes written to the receive, from its first byte on, as far as it has room: the route header comes first.
    pub bytes: Vec<u8>,
    /// The reported length.
    pub len: usize,
    /// The reported source queue pair.
    pub source_qp: u32,
    /// The sender's LID.
    pub lid: u16,
    /// Whether a route header is reported.
    pub has_route: bool,
    /// Immediate data.
    pub data: Option<u32>,
    /// Whether the receive is reported as failed.
    pub failed: bool,
}

/// The datagram part of a fabric.
#[derive(Default)]
pub struct Ud {
    pub pairs: BTreeMap<u32, UdPair>,
    /// Queue pairs that receive messages to a group, by its GID and LID.
    members: BTreeSet<([u8; 16], u16, u32)>,
    pub joins: BTreeMap<u64, Join>,
    last_join: u64,
    /// Joins are not answered by themselves.
    holds_joins: bool,
    fates: Fates,
}

/// The route header of a datagram from one GID to another: that of IPv6, or of IPv4 at the end of its room.
pub fn route_header(from: [u8; 16], to: [u8; 16]) -> [u8; GRH] {
    let mut header = [0; GRH];
    let v4 = |gid: [u8; 16]| std::net::Ipv6Addr::from(gid).to_ipv4_mapped().map(|ip| ip.octets());
    match (v4(from), v4(to)) {
        (Some(from), Some(to)) => {
            header[20] = 0x45;
            header[32..36].copy_from_slice(&from);
            header[36..].copy_from_slice(&to);
        }
        _ => {
            header[0] = 0x60;
            header[8..24].copy_from_slice(&from);
            header[24..].copy_from_slice(&to);
        }
    }
    header
}

impl Fabric {
    /// Whether datagrams are in flight.
    pub fn has_datagrams(&self) -> bool {
        self.ud.pairs.values().any(|pair| !pair.posted.is_empty())
    }

    /// Sends some of the posted datagrams.
    pub fn move_datagrams(&mut self) {
        let busy = self.ud.pairs.iter().filter(|(_, pair)| !pair.posted.is_empty());
        let busy: Vec<u32> = busy.map(|(&qp, _)| qp).collect();
        for qp in busy {
            let most = if self.is_driven() { self.draw() % 4 } else { 64 };
            for _ in 0..most {
                let Some(posted) = self.ud.pairs.get_mut(&qp).and_then(|pair| pair.posted.pop_front()) else {
                    break;
                };
                self.send_datagram(qp, &posted);
            }
        }
    }

    fn send_datagram(&mut self, qp: u32, posted: &Posted) {
        let Some((endpoint, gid)) = self.ud.pairs.get(&qp).map(|pair| (pair.endpoint, pair.gid)) else {
            return;
        };
        let is_there = self.owns(posted.from);
        let status = if is_there { Status::SUCCESS } else { super::fabric::LOCAL_PROTECTION };
        if is_there {
            let mut bytes = route_header(gid, posted.to).to_vec();
            // Ethernet has no local identifiers, and nothing writes the bytes before a header of IPv4.
            let (lid, garbage) = (self.draw() as u16, self.draw().to_ne_bytes());
            if bytes[0] == 0 {
                bytes[..8].copy_from_slice(&garbage);
                bytes[0] = 0x60 | garbage[0] & 0xF;
            }
            let (from, len) = (posted.from.addr.cast_const(), posted.from.len as usize);
            bytes.resize(GRH + len, 0);
            // SAFETY: registered memory that is lent until the send has ended.
            unsafe { super::fabric::device_copy(from, bytes[GRH..].as_mut_ptr(), len) };
            let len = bytes.len();
            let (data, has_route) = (posted.data, true);
            let forged = Forged { bytes, len, source_qp: qp, lid, has_route, data, ..Forged::default() };
            // The network makes a copy for each member of a group, and may lose any.
            let to: Vec<(u32, [u8; 16])> = match posted.qp {
                MULTICAST => {
                    let to = (posted.to, posted.lid);
                    let members = self.ud.members.iter().filter(|&&(gid, lid, _)| (gid, lid) == to);
                    members.filter_map(|&(_, _, qp)| Some((qp, self.ud.pairs.get(&qp)?.gid))).collect()
                }
                qp => vec![(qp, posted.to)],
            };
            for (qp, gid) in to {
                if self.removed || self.chance(self.plan.lost) {
                    self.ud.fates.lost += 1;
                } else {
                    self.arrive_at(gid, qp, Some(posted.qkey), forged.clone());
                }
            }
        }
        if let Some(it) = self.endpoints.get_mut(&endpoint) {
            let opcode = Opcode::Request;
            let (len, data, source_qp, lid, has_route) = (0, None, 0, 0, false);
            let id = posted.id;
            it.push_entry(WorkCompletion { id, status, opcode, len, qp, data, source_qp, lid, has_route });
        }
    }

    /// Delivers a datagram to a queue pair.
    fn arrive_at(&mut self, gid: [u8; 16], qp: u32, qkey: Option<u32>, came: Forged) {
        let found = self.ud.pairs.get_mut(&qp);
        let Some(pair) = found.filter(|pair| pair.gid == gid && qkey.is_none_or(|key| key == pair.qkey))
        else {
            self.ud.fates.stray += 1;
            return;
        };
        let Some((id, into)) = pair.receives.pop_front() else {
            self.ud.fates.dropped += 1;
            return;
        };
        let endpoint = pair.endpoint;
        assert!(self.owns(into), "a receive whose memory is registered no more");
        let room = total(&[into]);
        let fits = came.bytes.len() <= room;
        put(&[into], &came.bytes[..came.bytes.len().min(room)]);
        let status = match came.failed {
            true => Status::FLUSHED,
            false if fits => Status::SUCCESS,
            false => Status::TOO_LONG,
        };
        *if fits { &mut self.ud.fates.arrived } else { &mut self.ud.fates.dropped } += 1;
        let Forged { len, source_qp, lid, has_route, data, .. } = came;
        let opcode = Opcode::Receive;
        let entry = WorkCompletion { id, status, opcode, len, qp, data, source_qp, lid, has_route };
        if let Some(it) = self.endpoints.get_mut(&endpoint) {
            it.push_entry(entry);
        }
    }
}

impl Ud {
    /// A completion of a request was taken.
    pub fn taken(&mut self, entry: &WorkCompletion) {
        if entry.opcode == Opcode::Request
            && let Some(pair) = self.pairs.get_mut(&entry.qp)
        {
            pair.open -= 1;
        }
    }

    /// The device is removed: the network answers no more.
    pub fn refuse_joins(&mut self) {
        let waiting = self.joins.values_mut().filter(|join| join.answer.is_none());
        waiting.for_each(|join| join.answer(Err(libc::ENODEV)));
    }
}

impl Datagrams for Handle {
    fn port(&self, ip: IpAddr) -> Result<UdPort> {
        let plan = self.0.lock().plan;
        let (queue, completions) = (plan.requests, plan.completions);
        // A LID on Ethernet means nothing, and the driver irdma reports this one.
        let (gid, lid, is_ethernet, mtu) = (gid(ip), 1, true, MTU);
        Ok(UdPort { gid, lid, is_ethernet, mtu, queue, completions, groups: GROUPS })
    }

    fn open(&self, ip: IpAddr, sizes: UdSizes) -> Result<Box<dyn UdQueues>> {
        let UdSizes { sends, receives, qkey } = sizes;
        let eventfd = || sys::eventfd().map_err(|_| error("eventfd", libc::EMFILE));
        let (done, told) = (eventfd()?, eventfd()?);
        let fd = done.as_raw_fd();
        let mut fabric = self.0.lock();
        let plan = fabric.plan;
        if sends.max(receives) > plan.requests || sends + receives > plan.completions {
            return Err(error("ibv_create_qp", libc::EINVAL));
        }
        if fabric.removed {
            return Err(error("ibv_create_qp", libc::ENODEV));
        }
        fabric.last.endpoint += 1;
        fabric.last.pair += 1;
        let (endpoint, qp) = (fabric.last.endpoint, fabric.last.pair);
        let of = Sizes { requests: sends, receives, completions: sends + receives, inline: 0 };
        fabric.endpoints.insert(endpoint, Endpoint::new(of, done, told));
        let (open, routes, posted, receives_posted) = (0, 0, VecDeque::new(), VecDeque::new());
        let gid = gid(ip);
        let pair = UdPair {
            endpoint,
            gid,
            qkey,
            sends,
            open,
            routes,
            posted,
            receives: receives_posted,
            size: receives,
        };
        fabric.ud.pairs.insert(qp, pair);
        Ok(Box::new(Opened { device: Arc::clone(&self.0), endpoint, qp, fd }))
    }
}

/// The GID of an address in a port's table.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address that the network grants to a group: as on InfiniBand, it is not the group's IP address.
fn granted(group: IpAddr) -> GroupAddress {
    let mut name = [0; 16];
    let (signature, from) = if group.is_ipv4() { (0x40, 12) } else { (0x60, 6) };
    name[..6].copy_from_slice(&[0xFF, 0x12, signature, 0x1B, 0xFF, 0xFF]);
    name[from..].copy_from_slice(&gid(group)[from..]);
    GroupAddress { gid: Gid(name), lid: 0xC000 | u16::from(name[15]) }
}

/// A membership of a group, or the request for one.
struct Member {
    device: Arc<SimulatedDevice>,
    number: u64,
    fd: RawFd,
}

impl Membership for Member {
    fn grant(&mut self) -> Result<Option<GroupAddress>> {
        let mut fabric = self.device.lock();
        let silent = fabric.dead;
        let join = fabric.ud.joins.get_mut(&self.number).filter(|_| !silent);
        let Some((join, answer)) = join.and_then(|join| join.answer.map(|answer| (join, answer))) else {
            return Ok(None);
        };
        sys::drain_eventfd(&join.told);
        answer.map(|()| Some(granted(join.group))).map_err(|errno| error(JOIN, errno))
    }

    fn fd(&self) -> RawFd {
        self.fd
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.device.lock().ud.joins.remove(&self.number);
    }
}

const JOIN: &str = "rdma_join_multicast";

/// An address handle.
struct Along {
    device: Arc<SimulatedDevice>,
    gid: [u8; 16],
    lid: u16,
    /// The queue pair for which it was made.
    of: u32,
}

impl Drop for Along {
    fn drop(&mut self) {
        if let Some(pair) = self.device.lock().ud.pairs.get_mut(&self.of) {
            pair.routes -= 1;
        }
    }
}

/// An endpoint's queue pair.
struct Opened {
    device: Arc<SimulatedDevice>,
    endpoint: u64,
    qp: u32,
    fd: RawFd,
}

impl Drop for Opened {
    fn drop(&mut self) {
        let mut fabric = self.device.lock();
        fabric.ud.pairs.remove(&self.qp);
        fabric.ud.members.retain(|&(_, _, qp)| qp != self.qp);
        fabric.close(self.endpoint);
    }
}

// SAFETY: a receive is taken off its queue when its datagram is written, and its end reported once; the queue goes when
// this is dropped. What leaves is read before its end is reported.
unsafe impl UdQueues for Opened {
    fn number(&self) -> u32 {
        self.qp
    }

    fn route(&self, gid: Option<[u8; 16]>, lid: u16) -> Result<UdRoute> {
        let mut fabric = self.device.lock();
        if fabric.removed {
            return Err(error("ibv_create_ah", libc::ENODEV));
        }
        let most = fabric.plan.routes;
        let pair = fabric.ud.pairs.get_mut(&self.qp).filter(|pair| pair.routes < most);
        pair.ok_or_else(|| error("ibv_create_ah", libc::ENOMEM))?.routes += 1;
        let (device, gid) = (Arc::clone(&self.device), gid.unwrap_or_default());
        Ok(Arc::new(Along { device, gid, lid, of: self.qp }))
    }

    fn join(&self, group: IpAddr) -> Result<Box<dyn Membership>> {
        let told = sys::eventfd().map_err(|_| error("eventfd", libc::EMFILE))?;
        let fd = told.as_raw_fd();
        let mut fabric = self.device.lock();
        let groups: BTreeSet<IpAddr> = fabric.ud.joins.values().map(|join| join.group).collect();
        match () {
            () if fabric.removed => return Err(error(JOIN, libc::ENODEV)),
            () if !group.is_multicast() => return Err(error(JOIN, libc::EINVAL)),
            () if groups.len() >= GROUPS && !groups.contains(&group) => {
                return Err(error(JOIN, libc::ENOMEM));
            }
            () => {}
        }
        let mut join = Join { group, answer: None, told };
        if !fabric.ud.holds_joins {
            join.answer(Ok(()));
        }
        fabric.ud.last_join += 1;
        let number = fabric.ud.last_join;
        fabric.ud.joins.insert(number, join);
        Ok(Box::new(Member { device: Arc::clone(&self.device), number, fd }))
    }

    fn attach(&mut self, group: GroupAddress) -> Result<()> {
        self.device.lock().ud.members.insert((group.gid.0, group.lid, self.qp));
        Ok(())
    }

    fn detach(&mut self, group: GroupAddress) {
        self.device.lock().ud.members.remove(&(group.gid.0, group.lid, self.qp));
    }

    unsafe fn send(&self, id: u64, from: Segment, to: UdTarget<'_>, data: Option<u32>) -> Result<()> {
        let failed = |errno| error("ibv_post_send", errno);
        let along = to.route.downcast_ref::<Along>().ok_or_else(|| failed(libc::EXDEV))?;
        let mut fabric = self.device.lock();
        assert!(fabric.owns(from), "memory that is not registered: {from:?}");
        if from.len as usize > MTU {
            return Err(failed(libc::EINVAL));
        }
        let pair = fabric.ud.pairs.get_mut(&self.qp).ok_or_else(|| failed(libc::EINVAL))?;
        if pair.open >= pair.sends {
            return Err(failed(libc::ENOMEM));
        }
        pair.open += 1;
        let Along { gid, lid, .. } = *along;
        pair.posted.push_back(Posted { id, from, to: gid, lid, qp: to.qp, qkey: to.qkey, data });
        let (addr, len) = (from.addr.addr(), from.len as usize);
        if let Some(it) = fabric.endpoints.get_mut(&self.endpoint) {
            it.note(Logged { did: Did::Sent, addr, len, inline: false, reported: true });
        }
        drop(fabric);
        self.device.work.notify_one();
        Ok(())
    }

    unsafe fn receive(&self, id: u64, into: Segment) -> Result<()> {
        let mut fabric = self.device.lock();
        assert!(fabric.owns(into), "a receive into memory that is not registered");
        let pair = fabric.ud.pairs.get_mut(&self.qp);
        let pair = pair.filter(|pair| pair.receives.len() < pair.size);
        pair.ok_or_else(|| error("ibv_post_recv", libc::ENOMEM))?.receives.push_back((id, into));
        Ok(())
    }

    fn poll(&self, into: &mut VecDeque<WorkCompletion>) -> Result<usize> {
        Ok(self.device.lock().poll(self.endpoint, into))
    }

    fn arm(&self) -> Result<()> {
        if let Some(it) = self.device.lock().endpoints.get_mut(&self.endpoint) {
            it.arm();
        }
        Ok(())
    }

    fn quiet(&self) {
        if let Some(it) = self.device.lock().endpoints.get(&self.endpoint) {
            it.quiet();
        }
    }

    fn fd(&self) -> RawFd {
        self.fd
    }

    fn has_queue(&self, number: usize) -> bool {
        number as u64 == self.endpoint
    }
}

impl SimulatedDevice {
    /// Whether joins of groups that begin from now on wait for [`SimulatedDevice::answer_join`]. Otherwise the network
    /// grants each at once.
    pub fn hold_joins(&self, hold: bool) {
        self.lock().ud.holds_joins = hold;
    }

    /// Answers the joins of a group that wait: they are granted, or refused with an error number. Returns how many
    /// there were.
    pub fn answer_join(&self, group: IpAddr, answer: Answer) -> usize {
        let mut fabric = self.lock();
        let all = fabric.ud.joins.values_mut();
        let waiting = all.filter(|join| join.group == group && join.answer.is_none());
        waiting.map(|join| join.answer(answer)).count()
    }

    /// Number of joins that were requested of the network, and not left.
    pub fn joins(&self) -> usize {
        self.lock().ud.joins.len()
    }

    /// The fates of all datagrams.
    pub fn fates(&self) -> Fates {
        self.lock().ud.fates
    }

    /// Number of address handles of a queue pair.
    pub fn routes(&self, qp: u32) -> usize {
        self.lock().ud.pairs.get(&qp).map_or(0, |pair| pair.routes)
    }

    /// Receives of a queue pair for datagrams that are posted, or completed and unread.
    pub fn datagram_receives(&self, qp: u32) -> usize {
        let fabric = self.lock();
        let Some(pair) = fabric.ud.pairs.get(&qp) else { return 0 };
        pair.receives.len() + fabric.endpoints.get(&pair.endpoint).map_or(0, Endpoint::received)
    }

    /// The requests of a queue pair for datagrams since the last call, and the number of completions reported.
    pub fn take_datagram_log(&self, qp: u32) -> (Vec<Logged>, usize) {
        let mut fabric = self.lock();
        let endpoint = fabric.ud.pairs.get(&qp).map(|pair| pair.endpoint);
        let found = endpoint.and_then(|endpoint| fabric.endpoints.get_mut(&endpoint));
        found.map_or((Vec::new(), 0), Endpoint::take_log)
    }

    /// Completes a receive of that queue pair with a datagram reported as in `forged`.
    pub fn forge(&self, qp: u32, forged: Forged) {
        let mut fabric = self.lock();
        let gid = fabric.ud.pairs.get(&qp).map_or([0; 16], |pair| pair.gid);
        fabric.arrive_at(gid, qp, None, forged);
    }
}
