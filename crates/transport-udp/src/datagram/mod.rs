//! Endpoints of `FI_EP_DGRAM`: each message is a datagram, as it is, so that anything that speaks UDP can be the peer,
//! C libfabric's `udp` for one. Where the application asked for tags or remote CQ data, a small header goes before it
//! (`header.rs`).
//!
//! Nothing is repeated, and nobody waits. What finds no room is dropped and counted.

mod groups;
mod header;
mod kernel;

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use ofi_api::{AddrFormat, Address, Caps, Errno, Error, Info, OpFlags, Result, Statistic};
use ofi_core::copy;
use ofi_core::transport::{Arm, Arrived, Host, OutMessage, Peer, Posted, RxName};
use rustc_hash::FxHashMap;

use crate::Udp;
use crate::address;
use crate::settings;
use crate::socket::Socket;
use groups::Groups;
use header::Envelope;
pub use header::MOST as HEADER;

/// Batches received by one poll.
const ROUNDS: usize = 4;
/// Datagrams of one group received by one poll.
const FROM_GROUP: usize = 64;
/// Room for one datagram of any length.
const LONGEST: usize = 65_536;
/// Senders that an endpoint remembers though the application did not name them. Further ones have no source address.
const STRANGERS: usize = 1 << 16;

/// What people may read.
#[derive(Default)]
struct Counts {
    sent: u64,
    received: u64,
    unsendable: u64,
    refused: u64,
    full: u64,
    malformed: u64,
    nameless: u64,
}

/// See the module.
pub struct Datagrams {
    socket: Socket,
    address: SocketAddr,
    groups: Groups,
    /// What came from a group. Empty until one is joined.
    heard: Vec<u8>,
    /// Whether a header goes before each message.
    headed: bool,
    /// Whether anybody asks from whom a message came.
    sources: bool,
    peers: Vec<SocketAddr>,
    by_address: FxHashMap<SocketAddr, Peer>,
    /// Of `peers`, those that only wrote to this end.
    strangers: usize,
    /// Who stands for all that are not remembered.
    nobody: Option<Peer>,
    /// Who sent last.
    last: Option<(SocketAddr, Peer)>,
    buffer: Vec<u8>,
    counts: Counts,
}

/// Whether an info's endpoints send bare datagrams, or ones with a header.
pub fn is_datagram(info: &Info) -> bool {
    info.ep_attr.ep_type == ofi_api::EpType::Dgram
}

impl Datagrams {
    /// Binds the socket.
    ///
    /// # Errors
    /// `FI_EADDRINUSE`, `FI_EADDRNOTAVAIL`, `FI_EMFILE`, `FI_ENOMEM`.
    pub fn new(info: &Info, name: Option<&Address>) -> Result<Self> {
        if !info.ep_attr.auth_key.is_empty() {
            return Err(Error::with(Errno::EINVAL, "datagrams show no authorization key"));
        }
        let mut wanted: SocketAddr = match name {
            Some(name) => address::socket(name)?,
            None => (address::own_ip(info.addr_format == AddrFormat::SockaddrIn6), 0).into(),
        };
        if wanted.ip().is_unspecified() {
            wanted.set_ip(address::own_ip(wanted.is_ipv6()));
        }
        let socket =
            Socket::new(wanted, settings::SOCKET_BUFFER.get(), settings::SEGMENTS.get(), settings::driver())?;
        let headed = info.ep_attr.protocol != ofi_api::Protocol::UDP;
        let of_source = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV;
        Ok(Self {
            address: address::canonical(socket.address),
            socket,
            groups: Groups::default(),
            heard: Vec::new(),
            headed,
            sources: info.caps.intersects(of_source),
            peers: Vec::new(),
            by_address: FxHashMap::default(),
            strangers: 0,
            nobody: None,
            last: None,
            buffer: vec![0; info.ep_attr.max_msg_size + HEADER],
            counts: Counts::default(),
        })
    }

    /// Its address.
    pub fn address(&self) -> Address {
        Address::from(self.address)
    }

    fn introduce<H: Host<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> Peer {
        let peer = self.peers.len() as Peer;
        self.peers.push(socket);
        host.introduce(peer, &Address::from(socket));
        peer
    }

    /// See [`ofi_core::transport::Lanes::peer`].
    pub fn peer<H: Host<Udp>>(&mut self, host: &mut H, address: &Address) -> Result<Peer> {
        let socket = address::socket(address)?;
        if socket.is_ipv4() != self.address.is_ipv4() || socket.port() == 0 {
            return Err(Error::with(Errno::EADDRNOTAVAIL, format!("{socket}, from {}", self.address)));
        }
        if let Some(&peer) = self.by_address.get(&socket) {
            return Ok(peer);
        }
        let peer = self.introduce(host, socket);
        self.by_address.insert(socket, peer);
        self.last = None; // it may have been nobody
        Ok(peer)
    }

    /// Who a datagram is from.
    fn source<H: Host<Udp>>(&mut self, host: &mut H, from: SocketAddr) -> Peer {
        if let Some((last, peer)) = self.last
            && last == from
        {
            return peer;
        }
        let known = self.by_address.get(&from).copied();
        let peer = match known {
            Some(peer) => peer,
            None if self.sources && self.strangers < STRANGERS => {
                self.strangers += 1;
                let peer = self.introduce(host, from);
                self.by_address.insert(from, peer);
                peer
            }
            None => {
                self.counts.nameless += u64::from(self.sources);
                match self.nobody {
                    Some(peer) => peer,
                    None => {
                        let any = SocketAddr::new(
                            match from {
                                SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                                SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
                            },
                            0,
                        );
                        let peer = self.introduce(host, any);
                        self.nobody = Some(peer);
                        peer
                    }
                }
            }
        };
        self.last = Some((from, peer));
        peer
    }

    /// Sends bytes to a peer. What the system does not take is lost, as it may be on the way.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the socket is full.
    fn put(&mut self, to: SocketAddr, bytes: &[u8]) -> Result<()> {
        // An error may be of an earlier datagram, about which ICMP came back: then this one was not tried.
        for last in [false, true] {
            match self.socket.raw().send_to(bytes, to) {
                Ok(_) => {
                    self.counts.sent += 1;
                    return Ok(());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    self.counts.full += 1;
                    return Err(Error::AGAIN);
                }
                Err(_) if !last => self.counts.refused += self.socket.take_refused().len() as u64,
                Err(_) => self.counts.unsendable += 1,
            }
        }
        Ok(())
    }

    /// See [`ofi_core::transport::Lanes::send_now`].
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline]
    pub unsafe fn send_now(&mut self, peer: Peer, from: *const u8, len: usize) -> bool {
        if self.headed || len == 0 {
            return false;
        }
        let Some(&to) = self.peers.get(peer as usize) else { return false };
        // SAFETY: the caller's promise. What the application changes meanwhile only the peer can tell.
        let bytes = unsafe { std::slice::from_raw_parts(from, len) };
        self.put(to, bytes).is_ok()
    }

    /// See [`ofi_core::transport::Lanes::send`].
    pub fn send(&mut self, out: &OutMessage<'_>) -> Result<Posted> {
        let has_data = out.flags.contains(OpFlags::REMOTE_CQ_DATA);
        if has_data && !self.headed {
            return Err(Error::wanted(
                Errno::EBADFLAGS,
                "a datagram with FI_REMOTE_CQ_DATA",
                "an endpoint whose datagrams have a header (ep_attr.protocol)",
                "one of bare datagrams",
                "ask getinfo for domain_attr.cq_data_size 8",
            ));
        }
        let Some(&to) = self.peers.get(out.peer as usize) else { return Err(Error::new(Errno::EINVAL)) };
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = 0;
        if self.headed {
            let envelope =
                Envelope { tag: out.tagged.then_some(out.tag), data: has_data.then_some(out.data) };
            at = envelope.write(&mut buffer);
        }
        let body = &mut buffer[at..at + out.len];
        // SAFETY: the pieces are lent, and `body` is as long as they together.
        let got = unsafe { copy::gather(out.pieces, 0, body.as_mut_ptr(), body.len()) };
        let put = self.put(to, &buffer[..at + got]);
        self.buffer = buffer;
        put.map(|()| Posted::Done)
    }

    /// See [`ofi_core::transport::Lanes::poll`].
    pub fn poll<H: Host<Udp>>(&mut self, host: &mut H) {
        for _ in 0..ROUNDS {
            if !host.hungry() {
                return;
            }
            let (got, more) = self.socket.receive();
            for index in 0..got {
                let (bytes, from) = self.socket.datagram(index);
                let (body, len) = (bytes.as_ptr(), bytes.len());
                // SAFETY: the datagram stays where it is until the next receive.
                unsafe { self.take(host, from, body, len) };
            }
            if !more {
                break;
            }
        }
        self.counts.refused += std::mem::take(&mut self.socket.refused).len() as u64;
        for index in 0..self.groups.len() {
            self.listen(host, index);
        }
    }

    /// Takes what was sent to a group.
    #[cold]
    fn listen<H: Host<Udp>>(&mut self, host: &mut H, index: usize) {
        let mut heard = std::mem::take(&mut self.heard);
        heard.resize(LONGEST, 0);
        for _ in 0..FROM_GROUP {
            if !host.hungry() {
                break;
            }
            let Ok((len, from)) = self.groups.socket(index).recv_from(&mut heard) else { break };
            // SAFETY: `heard` has `len` bytes, and is not touched meanwhile.
            unsafe { self.take(host, Some(from), heard.as_ptr(), len) };
        }
        self.heard = heard;
    }

    /// Takes a datagram.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes, and nobody changes them.
    unsafe fn take<H: Host<Udp>>(
        &mut self,
        host: &mut H,
        from: Option<SocketAddr>,
        body: *const u8,
        len: usize,
    ) {
        let Some(from) = from.map(address::canonical) else { return };
        self.counts.received += 1;
        let mut arrived =
            Arrived { peer: 0, tagged: false, has_data: false, tag: 0, data: 0, rx: RxName::ANY, len };
        let mut skip = 0;
        if self.headed {
            // SAFETY: the caller's promise.
            let bytes = unsafe { std::slice::from_raw_parts(body, len) };
            let Some((envelope, rest)) = Envelope::parse(bytes) else {
                self.counts.malformed += 1;
                return;
            };
            skip = len - rest.len();
            arrived.len = rest.len();
            (arrived.tagged, arrived.tag) = (envelope.tag.is_some(), envelope.tag.unwrap_or(0));
            (arrived.has_data, arrived.data) = (envelope.data.is_some(), envelope.data.unwrap_or(0));
        }
        arrived.peer = self.source(host, from);
        // SAFETY: the caller's promise; `skip` bytes were there.
        unsafe { host.deliver(&arrived, body.wrapping_add(skip)) };
    }

    /// See [`ofi_core::transport::Lanes::arm`].
    pub fn arm(&mut self) -> Arm {
        let now = Some(std::time::Instant::now());
        if self.socket.holds() || ofi_core::sys::wait_readable(&[self.socket.fd()], now) {
            Arm::Ready
        } else {
            Arm::Armed
        }
    }

    /// Readable when datagrams wait.
    pub fn wait_fd(&self) -> RawFd {
        self.socket.fd()
    }

    /// See [`ofi_core::transport::Lanes::join_group`].
    pub fn join_group(&mut self, group: &Address) -> Result<Address> {
        let mut group = address::socket(group)?;
        if group.port() == 0 {
            group.set_port(self.address.port());
        }
        if let SocketAddr::V6(v6) = &mut group
            && v6.scope_id() == 0
            && address::is_local_group(*v6.ip())
        {
            v6.set_scope_id(groups::interface(self.address));
        }
        let joined = self.groups.join(group, self.address)?;
        self.socket.watch(joined.as_raw_fd())?;
        Ok(Address::from(group))
    }

    /// See [`ofi_core::transport::Lanes::leave_group`].
    pub fn leave_group(&mut self, group: &Address) {
        if let Ok(group) = address::socket(group) {
            self.groups.leave(group);
        }
    }

    /// See [`ofi_core::transport::Lanes::statistics`].
    pub fn statistics(&self, into: &mut Vec<Statistic>) {
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("udp_peers", self.peers.len() as u64, "peers met");
        add("udp_tx_datagrams", counts.sent, "datagrams sent");
        add("udp_rx_datagrams", counts.received, "datagrams received");
        let dropped = kernel::dropped(self.socket.raw()) + self.groups.dropped();
        add("udp_rx_dropped", dropped, "datagrams that found no room in the socket's buffer");
        add("udp_send_full", counts.full, "datagrams dropped as the socket took no more");
        add("udp_unsendable", counts.unsendable, "datagrams that the system would not send");
        add("udp_refused", counts.refused, "times that ICMP said that a peer cannot be reached");
        add("udp_malformed", counts.malformed, "datagrams dropped: without the header of this protocol");
        add("udp_nameless", counts.nameless, "datagrams of senders that are too many to be remembered");
        add("udp_groups", self.groups.len() as u64, "multicast groups joined");
        add("udp_receive_buffer", self.socket.granted as u64, "bytes that the kernel lets the socket hold");
    }
}
