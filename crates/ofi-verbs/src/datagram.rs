//! Endpoints of `FI_EP_DGRAM`: each message is one datagram of the device (UD) without a header of ours, with up to 4
//! bytes of remote CQ data as immediate data. C libfabric's verbs provider sends and understands the same, with the
//! same addresses (`FI_ADDR_IB_UD`).
//!
//! Messages are copied to registered slots on their way out, and from such slots on their way in, where they lie behind
//! the route header that the device writes. Messages are neither repeated nor waited for: a message without room is
//! dropped and counted.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::os::fd::RawFd;
use std::sync::Arc;

use ibv::{
    AddressHandle, CompletionChannel, CompletionQueue, GRH, Gid, Status, UdAttr, UdPeer, UdQueuePair, Way,
    WorkCompletion,
};
use ofi_api::{AddrFormat, Address, Caps, Errno, Error, Info, Result, Statistic};
use ofi_core::copy;
use ofi_core::domain::DomainPart;
use ofi_core::transport::{Arm, Arrived, Host, OutMessage, Peer, Posted, RxName};
use rustc_hash::FxHashMap;

use crate::adapter::Slab;
use crate::{Verbs, failed, immediate};

/// The key of all endpoints, C's too.
const QKEY: u32 = 0x1111_1111;
/// Datagrams that may be on their way out, and in.
const SENDS: usize = 128;
const RECEIVES: usize = 512;
/// Entries of the completion queue that one poll takes.
const MOST: usize = 256;
/// Marks receives.
const RECEIVE: u64 = 1 << 63;
/// Senders that are remembered though the application did not name them. Further ones have no source address.
const STRANGERS: usize = 1 << 14;
/// Bytes of an address: `struct ofi_ib_ud_ep_name` of C libfabric.
const ADDRESS: usize = 32;

/// Where an endpoint is: its port's GID, its queue pair, and its port's LID where that counts (InfiniBand).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    pub gid: [u8; 16],
    pub qp: u32,
    pub lid: u16,
}

impl Name {
    /// As C has it: GID, queue pair, LID, partition key, service, service level, in the order of this host's bytes.
    pub fn encode(&self) -> Address {
        let mut bytes = [0; ADDRESS];
        bytes[..16].copy_from_slice(&self.gid);
        bytes[16..20].copy_from_slice(&self.qp.to_ne_bytes());
        bytes[20..22].copy_from_slice(&self.lid.to_ne_bytes());
        bytes[22..24].copy_from_slice(&u16::MAX.to_ne_bytes()); // the default partition
        Address::new(AddrFormat::IbUd, &bytes)
    }

    /// What tells endpoints apart in an address.
    ///
    /// # Errors
    /// `FI_EINVAL` for an invalid address.
    pub fn parse(address: &Address) -> Result<Self> {
        let bytes: Option<&[u8; ADDRESS]> = address.bytes().try_into().ok();
        let Some(bytes) = bytes.filter(|_| address.format() == AddrFormat::IbUd) else {
            return Err(Error::wanted(
                Errno::EINVAL,
                "an address of a datagram endpoint of provider verbs",
                "32 bytes of FI_ADDR_IB_UD",
                format!("{} bytes of {}", address.bytes().len(), address.format()),
                "exchange the addresses that fi_getname answers",
            ));
        };
        let gid = std::array::from_fn(|index| bytes[index]);
        let qp = u32::from_ne_bytes(std::array::from_fn(|index| bytes[16 + index]));
        let lid = u16::from_ne_bytes([bytes[20], bytes[21]]);
        Ok(Self { gid, qp, lid })
    }
}

/// Who sent a datagram, by the route header before it. `None` if there is no GID in it.
pub fn source(header: &[u8; GRH]) -> Option<[u8; 16]> {
    match header[0] >> 4 {
        6 => Some(std::array::from_fn(|index| header[8 + index])),
        // An IPv4 header lies at the end of the room (RoCE version 2).
        _ if header[20] >> 4 == 4 => {
            let ip = Ipv4Addr::new(header[32], header[33], header[34], header[35]);
            Some(ip.to_ipv6_mapped().octets())
        }
        _ => None,
    }
}

/// What people may read.
#[derive(Default)]
struct Counts {
    sent: u64,
    received: u64,
    full: u64,
    unsendable: u64,
    malformed: u64,
    nameless: u64,
}

struct Known {
    name: Name,
    /// Made at the first send.
    handle: Option<Arc<AddressHandle>>,
}

/// See the module.
pub struct Datagrams {
    // The queue pair goes first: it uses the slots' memory and the handles.
    qp: UdQueuePair,
    cq: Arc<CompletionQueue>,
    channel: Arc<CompletionChannel>,
    domain: Arc<DomainPart<Verbs>>,
    sending: Slab,
    receiving: Slab,
    free: Vec<u32>,
    /// Entries that were taken out of the completion queue ahead of their time.
    ready: VecDeque<WorkCompletion>,
    peers: Vec<Known>,
    by_name: FxHashMap<Name, Peer>,
    strangers: usize,
    nobody: Option<Peer>,
    /// Whether completions name the sender.
    sources: bool,
    longest: usize,
    name: Name,
    counts: Counts,
}

impl Datagrams {
    /// Opens the queue pair.
    ///
    /// # Errors
    /// `FI_EADDRNOTAVAIL` for a name, as the device gives them; what rdma-core answers.
    pub fn new(domain: &Arc<DomainPart<Verbs>>, info: &Info, name: Option<&Address>) -> Result<Self> {
        let (device, own) = (&*domain.transport.device, domain.transport.port()?);
        let name = name.map(Name::parse).transpose()?;
        if name.is_some_and(|name| name.qp != 0 || name.gid != own.gid.0) {
            return Err(Error::wanted(
                Errno::EADDRNOTAVAIL,
                "the name of a datagram endpoint",
                "the GID of its domain's port, and queue pair 0: the device chooses the number",
                name.map_or_else(String::new, |name| name.encode().to_string()),
                "take the name that fi_getname answers",
            ));
        }
        let failed = |error: ibv::Error| failed(&error);
        let context = own.pd.context();
        let (port, limits) = (context.port(own.number).map_err(failed)?, context.query().map_err(failed)?);
        let channel = CompletionChannel::new(context).map_err(failed)?;
        let receives = RECEIVES.min(limits.max_queue);
        let cq = CompletionQueue::new(&channel, (SENDS + receives).min(limits.max_completions));
        let cq = cq.map_err(failed)?;
        let attr = UdAttr {
            pd: Arc::clone(&own.pd),
            cq: Arc::clone(&cq),
            sends: SENDS as u32,
            receives: receives as u32,
            port: own.number,
            qkey: QKEY,
        };
        let qp = UdQueuePair::new(attr).map_err(failed)?;
        let longest = info.ep_attr.max_msg_size.min(port.mtu);
        let sending = Slab::new(device, SENDS, port.mtu)?;
        let receiving = Slab::new(device, receives, GRH + port.mtu)?;
        let name = Name { gid: own.gid.0, qp: qp.number(), lid: port.lid };
        let of_source = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV;
        let made = Self {
            qp,
            cq,
            channel,
            domain: Arc::clone(domain),
            sending,
            receiving,
            free: (0..SENDS as u32).collect(),
            ready: VecDeque::new(),
            peers: Vec::new(),
            by_name: FxHashMap::default(),
            strangers: 0,
            nobody: None,
            sources: info.caps.intersects(of_source),
            longest,
            name,
            counts: Counts::default(),
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
        // SAFETY: the slot's datagram has been taken, so that it is the device's again; the slab goes after the queue
        // pair.
        if let Err(error) = unsafe { self.qp.receive(RECEIVE | u64::from(slot), to) } {
            tracing::warn!(target: "ofi::verbs::ep_data", %error, "a receive is lost");
        }
    }

    fn meet<H: Host<Verbs>>(&mut self, host: &mut H, name: Name) -> Peer {
        if let Some(&peer) = self.by_name.get(&name) {
            return peer;
        }
        let peer = self.peers.len() as Peer;
        self.peers.push(Known { name, handle: None });
        self.by_name.insert(name, peer);
        host.introduce(peer, &name.encode());
        peer
    }

    /// See [`ofi_core::transport::Lanes::peer`].
    pub fn peer<H: Host<Verbs>>(&mut self, host: &mut H, address: &Address) -> Result<Peer> {
        Ok(self.meet(host, Name::parse(address)?))
    }

    /// See [`ofi_core::transport::Lanes::send`].
    pub fn send(&mut self, out: &OutMessage<'_>) -> Result<Posted> {
        let data = immediate(out.flags, out.data)?;
        if out.len > self.longest {
            return Err(Error::with(
                Errno::EMSGSIZE,
                format!(
                    "a message of {} bytes; a datagram has at most {} (ep_attr.max_msg_size)",
                    out.len, self.longest
                ),
            ));
        }
        let handle = self.handle(out.peer)?;
        if self.free.is_empty() {
            self.drain();
        }
        let Some(slot) = self.free.pop() else {
            self.counts.full += 1;
            return Err(Error::AGAIN);
        };
        // SAFETY: the pieces are lent during the call, and a slot has room for the longest datagram.
        unsafe { copy::gather(out.pieces, 0, self.sending.at(slot), out.len) };
        let to = UdPeer { handle: &handle, qp: self.peers[out.peer as usize].name.qp, qkey: QKEY };
        let from = self.sending.segment(slot, out.len);
        // SAFETY: the slot is the device's until the request has ended; handles stay as long as the endpoint.
        match unsafe { self.qp.send(slot.into(), from, to, data) } {
            Ok(()) => self.counts.sent += 1,
            Err(error) => {
                tracing::debug!(target: "ofi::verbs::ep_data", %error, "a datagram was not sent");
                self.free.push(slot);
                self.counts.unsendable += 1;
            }
        }
        Ok(Posted::Done)
    }

    /// The way to a peer.
    fn handle(&mut self, peer: Peer) -> Result<Arc<AddressHandle>> {
        let own = self.domain.transport.port()?;
        let known = self.peers.get_mut(peer as usize).ok_or_else(|| Error::new(Errno::EINVAL))?;
        if let Some(handle) = &known.handle {
            return Ok(Arc::clone(handle));
        }
        let gid = (known.name.gid[8..] != [0; 8]).then_some(Gid(known.name.gid));
        let way = Way { gid, gid_index: own.gid_index, hops: 64, lid: known.name.lid, port: own.number };
        let handle = AddressHandle::along(&own.pd, way).map_err(|error| failed(&error))?;
        known.handle = Some(Arc::clone(&handle));
        Ok(handle)
    }

    /// Takes ends of sends alone.
    fn drain(&mut self) {
        let (mut ended, ready) = (Vec::new(), &mut self.ready);
        let _ = self.cq.poll(|entry| match entry.id & RECEIVE {
            0 => ended.push(entry),
            _ => ready.push_back(entry),
        });
        for entry in ended {
            self.sent(&entry);
        }
    }

    fn sent(&mut self, entry: &WorkCompletion) {
        self.counts.unsendable += u64::from(entry.status != Status::SUCCESS);
        self.free.push(entry.id as u32);
    }

    /// See [`ofi_core::transport::Lanes::poll`].
    pub fn poll<H: Host<Verbs>>(&mut self, host: &mut H) {
        let mut taken = 0;
        while taken < MOST && host.hungry() {
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

    /// The next end of a request, if there is one.
    fn next(&mut self) -> Option<WorkCompletion> {
        if self.ready.is_empty() {
            let ready = &mut self.ready;
            let _ = self.cq.poll(|entry| ready.push_back(entry));
        }
        self.ready.pop_front()
    }

    fn take<H: Host<Verbs>>(&mut self, host: &mut H, slot: u32, entry: &WorkCompletion) {
        self.counts.received += 1;
        let at = self.receiving.at(slot);
        let Some(len) = entry.len.checked_sub(GRH).filter(|&len| GRH + len <= self.receiving.size()) else {
            self.counts.malformed += 1;
            return;
        };
        // SAFETY: the device has written the slot, and does not until it is posted again.
        let header = unsafe { &*at.cast_const().cast::<[u8; GRH]>() };
        let gid = if entry.has_route { source(header) } else { Some([0; 16]) };
        let name = gid.map(|gid| Name { gid, qp: entry.source_qp, lid: entry.lid });
        let peer = self.source(host, name);
        let arrived = Arrived {
            peer,
            rx: RxName::ANY,
            tagged: false,
            has_data: entry.data.is_some(),
            tag: 0,
            data: entry.data.unwrap_or(0).into(),
            len,
        };
        // SAFETY: as above; `len` bytes are behind the header.
        unsafe { host.deliver(&arrived, at.wrapping_add(GRH)) };
    }

    /// Who a datagram is from.
    fn source<H: Host<Verbs>>(&mut self, host: &mut H, name: Option<Name>) -> Peer {
        let known = name.and_then(|name| self.by_name.get(&name).copied());
        if let Some(peer) = known {
            return peer;
        }
        match name.filter(|_| self.sources && self.strangers < STRANGERS) {
            Some(name) => {
                self.strangers += 1;
                self.meet(host, name)
            }
            None => {
                self.counts.nameless += u64::from(self.sources);
                let peer = match self.nobody {
                    Some(peer) => peer,
                    None => self.meet(host, Name { gid: [0; 16], qp: 0, lid: 0 }),
                };
                *self.nobody.insert(peer)
            }
        }
    }

    /// See [`ofi_core::transport::Lanes::arm`].
    pub fn arm(&mut self) -> Arm {
        if !self.ready.is_empty() {
            return Arm::Ready;
        }
        self.cq.quiet();
        // What came before the queue was armed makes nothing readable.
        let armed = self.cq.arm().is_ok();
        let ready = &mut self.ready;
        let came = self.cq.poll(|entry| ready.push_back(entry));
        match armed && came.is_ok_and(|count| count == 0) {
            true => Arm::Armed,
            false => Arm::Ready,
        }
    }

    /// Readable when datagrams wait.
    pub fn wait_fd(&self) -> RawFd {
        self.channel.fd()
    }

    /// See [`ofi_core::transport::Lanes::statistics`].
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("verbs_tx_datagrams", counts.sent, "datagrams sent");
        add("verbs_rx_datagrams", counts.received, "datagrams received");
        add("verbs_send_full", counts.full, "times that no datagram could be sent for want of room");
        add("verbs_unsendable", counts.unsendable, "datagrams that the device did not send");
        add("verbs_malformed", counts.malformed, "datagrams dropped: shorter than their own header");
        add("verbs_nameless", counts.nameless, "datagrams of senders that are too many to be remembered");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_c_s_and_what_tells_endpoints_apart_comes_back() {
        let name = Name { gid: std::array::from_fn(|index| index as u8), qp: 0x0001_0203, lid: 0x0405 };
        let address = name.encode();
        let bytes = address.bytes();
        assert_eq!((bytes.len(), &bytes[..16]), (32, &name.gid[..]));
        assert_eq!(bytes[16..24], [&0x0001_0203u32.to_ne_bytes()[..], &[5, 4], &[0xFF; 2]].concat()[..]);
        let mut others = bytes.to_vec();
        others[22..].fill(7); // partition, service, level and what is behind them
        assert_eq!(Name::parse(&Address::new(AddrFormat::IbUd, &others)).unwrap(), name);
        for bad in [Address::new(AddrFormat::IbUd, &others[1..]), Address::new(AddrFormat::Efa, &others)] {
            assert_eq!(Name::parse(&bad).unwrap_err().errno(), Errno::EINVAL);
        }
    }

    #[test]
    fn senders_are_found_in_route_headers_of_either_kind() {
        let mut header = [0; GRH];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&[9; 16]);
        assert_eq!(source(&header), Some([9; 16]));
        let mut header = [0; GRH];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 77, 0, 1]);
        assert_eq!(source(&header), Some(Ipv4Addr::new(10, 77, 0, 1).to_ipv6_mapped().octets()));
        assert_eq!(source(&[0; GRH]), None);
    }
}
