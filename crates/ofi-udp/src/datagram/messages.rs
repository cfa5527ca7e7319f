//! The messages of an endpoint of type `FI_EP_DGRAM`: each is one datagram, sent and forgotten.
//!
//! The socket and the numbers of peers belong to the caller ([`PeerNumbers`]).

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use ofi_api::{Address, Caps, Errno, Error, Info, OpFlags, Result, Statistic};
use ofi_core::copy;
use ofi_core::transport::{Arrived, OutMessage, PeerId, Posted, RxName, Upcalls};

use super::groups::{self, Groups};
use super::header::{self, Envelope};
use crate::socket::Socket;
use crate::{Udp, address, sys};

/// Maximum number of datagrams of one group that one poll receives.
const FROM_GROUP: usize = 64;
/// Size in bytes of a buffer that any UDP datagram fits into.
const MAX_DATAGRAM_LEN: usize = 65_536;
/// Maximum number of remembered senders that the application did not insert. Messages of further senders are reported
/// without a source address.
const STRANGERS: usize = 1 << 16;
/// Maximum number of remembered senders that are checked to make room for a new one.
const LOOKS: usize = 2;

/// The owner of an endpoint's peer numbers.
pub trait PeerNumbers {
    /// The peer at an address, if it has a number.
    fn find(&self, socket: SocketAddr) -> Option<PeerId>;
    /// The same, but assigns a number to a new peer and reports it.
    fn meet<H: Upcalls<Udp>>(&mut self, host: &mut H, socket: SocketAddr) -> PeerId;
    /// Removes a peer if nothing refers to it. Returns whether it was removed.
    fn forget<H: Upcalls<Udp>>(&mut self, host: &mut H, peer: PeerId) -> bool;
    /// The address of a peer.
    fn address(&self, peer: PeerId) -> Option<SocketAddr>;
}

/// Statistics.
#[derive(Default)]
struct DatagramCounts {
    sent: u64,
    received: u64,
    unsendable: u64,
    refused: u64,
    full: u64,
    malformed: u64,
    nameless: u64,
}

/// The state of the datagram messages of one endpoint.
pub struct Messages {
    groups: Groups,
    /// A datagram from a group. Empty until one is joined.
    heard: Vec<u8>,
    /// Whether each message has a header.
    headed: bool,
    /// Whether completions report the sender.
    sources: bool,
    /// Peers that only sent to this end, least recently checked first.
    strangers: VecDeque<(PeerId, SocketAddr)>,
    /// The peer number of all senders that are not remembered.
    nobody: Option<PeerId>,
    /// The last sender.
    last: Option<(SocketAddr, PeerId)>,
    buffer: Vec<u8>,
    counts: DatagramCounts,
}

impl Messages {
    /// Creates the state of an endpoint without groups.
    pub fn new(info: &Info) -> Self {
        let of_source = Caps::SOURCE | Caps::SOURCE_ERR | Caps::DIRECTED_RECV | Caps::TAGGED_DIRECTED_RECV;
        Self {
            groups: Groups::default(),
            heard: Vec::new(),
            headed: info.ep_attr.protocol != ofi_api::Protocol::UDP,
            sources: info.caps.intersects(of_source),
            strangers: VecDeque::new(),
            nobody: None,
            last: None,
            buffer: vec![0; info.ep_attr.max_msg_size + header::MAX_HEADER_LEN],
            counts: DatagramCounts::default(),
        }
    }

    /// Called after others assigned peer numbers: an unknown sender may be known now.
    pub fn look_again(&mut self) {
        self.last = None;
    }

    /// The sender of a datagram.
    fn source<H: Upcalls<Udp>>(
        &mut self,
        host: &mut H,
        numbers: &mut impl PeerNumbers,
        from: SocketAddr,
    ) -> PeerId {
        if let Some((last, peer)) = self.last
            && last == from
        {
            return peer;
        }
        let peer = match numbers.find(from) {
            Some(peer) => peer,
            None if self.sources && self.has_room(host, numbers) => {
                let peer = numbers.meet(host, from);
                self.strangers.push_back((peer, from));
                peer
            }
            None => {
                self.counts.nameless += u64::from(self.sources);
                *self.nobody.get_or_insert_with(|| {
                    let any: IpAddr = match from {
                        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
                    };
                    numbers.meet(host, SocketAddr::new(any, 0))
                })
            }
        };
        self.last = Some((from, peer));
        peer
    }

    /// Whether one more sender may be remembered. At the limit, an idle one is removed first.
    fn has_room<H: Upcalls<Udp>>(&mut self, host: &mut H, numbers: &mut impl PeerNumbers) -> bool {
        for _ in 0..LOOKS {
            if self.strangers.len() < STRANGERS {
                return true;
            }
            let Some((peer, address)) = self.strangers.pop_front() else { return true };
            // It may have been forgotten elsewhere, and its number reused.
            if numbers.address(peer) == Some(address) && !numbers.forget(host, peer) {
                self.strangers.push_back((peer, address));
            }
        }
        self.last = None;
        self.strangers.len() < STRANGERS
    }

    /// Sends `bytes` (an address and a length) to a peer. A datagram that the system rejects counts as lost, as if on
    /// the way.
    ///
    /// # Errors
    /// `FI_EAGAIN` if the socket is full.
    ///
    /// # Safety
    /// The bytes may be read; others may change them meanwhile.
    unsafe fn put(&mut self, socket: &mut Socket, to: SocketAddr, bytes: (*const u8, usize)) -> Result<()> {
        // The error may come from an ICMP report about an earlier datagram: then this one was not sent.
        for last in [false, true] {
            // SAFETY: the caller's promise.
            match unsafe { socket.send_to(bytes, to) } {
                Ok(_) => {
                    self.counts.sent += 1;
                    return Ok(());
                }
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                    self.counts.full += 1;
                    return Err(Error::AGAIN);
                }
                Err(_) if !last => self.counts.refused += socket.take_refused().len() as u64,
                Err(_) => self.counts.unsendable += 1,
            }
        }
        Ok(())
    }

    /// See [`ofi_core::transport::TransportEndpoint::send_now`].
    ///
    /// # Safety
    /// `from` may be read for `len` bytes.
    #[inline]
    pub unsafe fn send_now(
        &mut self,
        socket: &mut Socket,
        numbers: &impl PeerNumbers,
        peer: PeerId,
        from: *const u8,
        len: usize,
    ) -> bool {
        if self.headed || len == 0 {
            return false;
        }
        let Some(to) = numbers.address(peer) else { return false };
        // SAFETY: the caller's promise.
        unsafe { self.put(socket, to, (from, len)) }.is_ok()
    }

    /// See [`ofi_core::transport::TransportEndpoint::send`].
    pub fn send(
        &mut self,
        socket: &mut Socket,
        numbers: &impl PeerNumbers,
        out: &OutMessage<'_>,
    ) -> Result<Posted> {
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
        let Some(to) = numbers.address(out.peer) else { return Err(Error::new(Errno::EINVAL)) };
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
        // SAFETY: the buffer's own bytes.
        let put = unsafe { self.put(socket, to, (buffer.as_ptr(), at + got)) };
        self.buffer = buffer;
        put.map(|()| Posted::Done)
    }

    /// Receives datagrams sent to groups.
    pub fn poll_groups<H: Upcalls<Udp>>(&mut self, host: &mut H, numbers: &mut impl PeerNumbers) {
        for index in 0..self.groups.len() {
            self.listen(host, numbers, index);
        }
    }

    /// Receives datagrams sent to a group.
    #[cold]
    fn listen<H: Upcalls<Udp>>(&mut self, host: &mut H, numbers: &mut impl PeerNumbers, index: usize) {
        let mut heard = std::mem::take(&mut self.heard);
        heard.resize(MAX_DATAGRAM_LEN, 0);
        for _ in 0..FROM_GROUP {
            if !host.hungry() {
                break;
            }
            let Ok((len, from)) = self.groups.socket(index).recv_from(&mut heard) else { break };
            // SAFETY: `heard` has `len` bytes, and is not touched meanwhile.
            unsafe { self.take(host, numbers, Some(from), heard.as_ptr(), len) };
        }
        self.heard = heard;
    }

    /// Processes a received datagram.
    ///
    /// # Safety
    /// `body` may be read for `len` bytes, and nobody changes them.
    pub unsafe fn take<H: Upcalls<Udp>>(
        &mut self,
        host: &mut H,
        numbers: &mut impl PeerNumbers,
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
        arrived.peer = self.source(host, numbers, from);
        // SAFETY: the caller's promise; `skip` bytes were there.
        unsafe { host.deliver(&arrived, body.wrapping_add(skip)) };
    }

    /// Whether a datagram to a group is unread.
    pub fn is_readable(&self) -> bool {
        let fds: Vec<_> = (0..self.groups.len()).map(|index| self.groups.socket(index).as_raw_fd()).collect();
        !fds.is_empty() && ofi_core::sys::wait_readable(&fds, Some(std::time::Instant::now()))
    }

    /// Handles ICMP reports of unreachable peers.
    pub fn refused(&mut self, times: usize) {
        self.counts.refused += times as u64;
    }

    /// See [`ofi_core::transport::TransportEndpoint::join_group`].
    pub fn join_group(&mut self, socket: &Socket, group: &Address) -> Result<Address> {
        let own = socket.name();
        let mut group = address::socket(group)?;
        if group.port() == 0 {
            group.set_port(own.port());
        }
        if let SocketAddr::V6(v6) = &mut group
            && v6.scope_id() == 0
            && address::is_local_group(*v6.ip())
        {
            v6.set_scope_id(groups::interface(own));
        }
        // The endpoint has one address (`address::beside_groups`), so the port of a group may be its own.
        let joined = self.groups.join(group, own)?;
        socket.watch(joined.as_raw_fd())?;
        Ok(Address::from(group))
    }

    /// See [`ofi_core::transport::TransportEndpoint::leave_group`].
    pub fn leave_group(&mut self, group: &Address) {
        if let Ok(group) = address::socket(group) {
            self.groups.leave(group);
        }
    }

    /// Appends the counters of a socket that carries messages only.
    pub fn statistics(&self, socket: &Socket, into: &mut Vec<Statistic>) {
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("udp_tx_datagrams", counts.sent, "datagrams sent");
        add("udp_rx_datagrams", counts.received, "datagrams received");
        add("udp_send_full", counts.full, "datagrams dropped because the socket was full");
        add("udp_unsendable", counts.unsendable, "datagrams that the system refused to send");
        add("udp_malformed", counts.malformed, "datagrams dropped: without the header of this protocol");
        add("udp_receive_buffer", socket.granted as u64, "bytes that the kernel lets the socket hold");
        self.common_statistics(socket, into);
    }

    /// Appends the counters of messages on a socket that carries sessions too.
    pub fn statistics_beside(&self, socket: &Socket, into: &mut Vec<Statistic>) {
        let counts = &self.counts;
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        add("udp_tx_messages", counts.sent, "messages sent, each a datagram");
        add("udp_rx_messages", counts.received, "messages received");
        add("udp_messages_full", counts.full, "messages dropped because the socket was full");
        add("udp_messages_unsendable", counts.unsendable, "messages that the system refused to send");
        add("udp_messages_malformed", counts.malformed, "messages dropped: malformed");
        self.common_statistics(socket, into);
    }

    fn common_statistics(&self, socket: &Socket, into: &mut Vec<Statistic>) {
        let mut add = |name, value, help| into.push(Statistic { name, value, help });
        let dropped = sys::dropped(socket.raw()) + self.groups.dropped();
        add("udp_rx_dropped", dropped, "datagrams that found no room in the socket's buffer");
        add("udp_refused", self.counts.refused, "ICMP reports that a peer is unreachable");
        add(
            "udp_nameless",
            self.counts.nameless,
            "datagrams reported without a source, because the table of senders was full",
        );
        add("udp_groups", self.groups.len() as u64, "multicast groups joined");
    }
}
