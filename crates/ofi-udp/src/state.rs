//! The core's view of an endpoint's peers, before and after it is enabled.

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{Address, Errno, Error, Info, OpFlags, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Arm, Attendant, OutAtomic, OutMessage, OutNote, OutRma, PeerId, Posted, TransportEndpoint, Upcalls,
};

use crate::datagram::{self, Datagrams, SharedNumbers};
use crate::endpoint::UdpEndpoint;
use crate::op::{Op, Token};
use crate::peer::Peer;
use crate::time::now;
use crate::{Udp, address, note};

/// An endpoint's peers before and after it is enabled.
pub enum EndpointState {
    Closed {
        domain: Arc<DomainPart<Udp>>,
        info: Box<Info>,
    },
    Open(Box<UdpEndpoint>),
    /// For `FI_EP_DGRAM` without remote memory.
    Datagrams(Box<Datagrams>),
}

impl EndpointState {
    /// See [`ofi_core::transport::Transport::open_endpoint`].
    pub fn new(domain: &Arc<DomainPart<Udp>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()) }
    }

    /// Whether it is enabled, and bound to all addresses of the host.
    pub fn has_all_addresses(&self) -> bool {
        matches!(self, Self::Open(udp) if udp.socket.address.ip().is_unspecified())
    }

    #[inline]
    fn open(&mut self) -> Result<&mut UdpEndpoint> {
        match self {
            Self::Open(udp) => Ok(udp),
            Self::Datagrams(_) => Err(Error::new(Errno::EOPNOTSUPP)),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

// SAFETY: the kernel copies during its calls, and everything else is copied in polls, from and to operations that the
// host still has.
unsafe impl TransportEndpoint<Udp> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let (domain, info) = match self {
            Self::Closed { domain, info } => (domain, info),
            Self::Open(udp) => return Ok(Address::from(udp.socket.name())), // it was reserved
            Self::Datagrams(udp) => return Ok(udp.address()),
        };
        if datagram::is_datagram(info) {
            datagram::without_key(info)?;
        }
        if !datagram::has_sessions(info) {
            let udp = Datagrams::new(info, name)?;
            let address = udp.address();
            *self = Self::Datagrams(Box::new(udp));
            return Ok(address);
        }
        let udp = UdpEndpoint::new(domain, info, name)?;
        let address = Address::from(udp.socket.name());
        *self = Self::Open(Box::new(udp));
        Ok(address)
    }

    fn reserve(&mut self, name: Option<&Address>) -> Result<Option<Address>> {
        self.enable(name).map(Some) // peers are served when they are polled
    }

    fn peer<H: Upcalls<Udp>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        if let Self::Datagrams(udp) = self {
            return udp.peer(host, address);
        }
        let udp = self.open()?;
        let socket = address::socket(address)?;
        if socket.is_ipv4() != udp.socket.address.is_ipv4() || socket.port() == 0 {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!(
                    "{socket} cannot be reached from {}: it needs a port, and the same address family",
                    udp.socket.address
                ),
            ));
        }
        Ok(udp.meet(host, socket))
    }

    #[inline]
    unsafe fn send_now<const TAGGED: bool>(
        &mut self,
        peer: PeerId,
        _tag: u64,
        from: *const u8,
        len: usize,
        _injected: bool,
    ) -> bool {
        match self {
            // SAFETY: the caller's promise.
            Self::Datagrams(udp) if !TAGGED => unsafe { udp.send_now(peer, from, len) },
            _ => false,
        }
    }

    #[inline]
    fn send<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        if let Self::Datagrams(udp) = self {
            return udp.send(out);
        }
        let udp = self.open()?;
        if let UdpEndpoint { messages: Some(messages), endpoint, peers, common, socket, .. } = &mut *udp {
            let numbers = SharedNumbers { endpoint, peers, sessionless: &mut common.sessionless };
            return messages.send(socket, &numbers, out);
        }
        let entry = &mut udp.peers[out.peer as usize];
        udp.common.greets = out.flags.contains(OpFlags::INJECT) && !udp.endpoint.is_open(out.peer);
        let time = now();
        let Some(sender) = udp.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = entry.send(&mut udp.common, sender, host, out)?;
        udp.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn rma<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let udp = self.open()?;
        let entry = &mut udp.peers[out.peer as usize];
        let time = now();
        let Some(sender) = udp.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = entry.rma(&mut udp.common, sender, host, out)?;
        udp.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn atomic<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let udp = self.open()?;
        let entry = &mut udp.peers[out.peer as usize];
        let time = now();
        let Some(sender) = udp.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = entry.atomic(&mut udp.common, sender, host, out)?;
        udp.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let udp = self.open()?;
        let sender = udp.endpoint.sender(now(), out.peer).ok_or(Error::AGAIN)?;
        note::send(sender, out)?;
        udp.dirty = true;
        Ok(())
    }

    fn pull<H: Upcalls<Udp>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        let Ok(udp) = self.open() else { return };
        let time = now();
        if let Some(sender) = udp.endpoint.sender(time, peer) {
            udp.peers[peer as usize].pull(&mut udp.common, sender, host, peer, token, into);
            udp.posted(host, time, peer, OpFlags::empty());
        }
    }

    fn abandon(&mut self, _peer: PeerId, _id: SlotId, op: &mut Op) -> bool {
        match op {
            Op::Sent | Op::Injected | Op::Confirm => {}
            Op::Message { payload, .. } | Op::Write(payload) => payload.keep(),
            Op::Read { pieces, .. } => *pieces = Box::default(),
        }
        true
    }

    fn discard(&mut self, peer: PeerId, token: Token) {
        let Ok(udp) = self.open() else { return };
        if let Some(sender) = udp.endpoint.sender(now(), peer) {
            Peer::discard(sender, token);
            udp.dirty = true;
        }
    }

    fn poll<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        match self {
            Self::Open(udp) => udp.poll(host),
            Self::Datagrams(udp) => udp.poll(host),
            Self::Closed { .. } => {}
        }
    }

    fn attend(&mut self, attendant: Weak<dyn Attendant>) {
        if let Self::Open(udp) = self {
            udp.alive.set_attendant(attendant);
        }
    }

    fn let_out<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        if let Self::Open(udp) = self {
            udp.alive.sent();
            if udp.endpoint.hasten() || udp.dirty {
                udp.transmit(host, now(), 1);
            }
        }
    }

    fn give_back(&mut self) {
        if let Self::Open(udp) = self {
            udp.give_back();
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(udp) => udp.arm(),
            Self::Datagrams(udp) => udp.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(udp) => Some(udp.socket.fd()),
            Self::Datagrams(udp) => Some(udp.wait_fd()),
            Self::Closed { .. } => None,
        }
    }

    fn packet(&mut self, to: &Address, packet: &[u8], watch: bool) -> Result<()> {
        self.open()?.packet(to, packet, watch)
    }

    fn join<H: Upcalls<Udp>>(&mut self, host: &mut H, address: &Address, _first: bool) -> Result<()> {
        self.open()?.join(host, address)
    }

    fn part<H: Upcalls<Udp>>(&mut self, host: &mut H, drain: bool) {
        if let Self::Open(udp) = self {
            udp.part(host, drain);
        }
    }

    fn is_settled(&self) -> bool {
        match self {
            Self::Open(udp) => {
                udp.common.connection.as_ref().is_none_or(|connection| connection.is_settled())
            }
            _ => true,
        }
    }

    fn join_group(&mut self, group: &Address, receives: bool) -> Result<(Address, Posted)> {
        let joined = match self {
            _ if !receives => Ok(group.clone()), // an endpoint that only sends to a group does not join it
            Self::Datagrams(udp) => udp.join_group(group),
            Self::Open(udp) => match &mut udp.messages {
                Some(messages) => messages.join_group(&udp.socket, group),
                None => Err(Error::new(Errno::EOPNOTSUPP)),
            },
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        };
        Ok((joined?, Posted::Done))
    }

    fn leave_group(&mut self, group: &Address, receives: bool) {
        if !receives {
            return;
        }
        match self {
            Self::Datagrams(udp) => udp.leave_group(group),
            Self::Open(udp) => {
                if let Some(messages) = &mut udp.messages {
                    messages.leave_group(group);
                }
            }
            Self::Closed { .. } => {}
        }
    }

    fn peer_statistics(&self, peer: PeerId, into: &mut Vec<Statistic>) {
        if let Self::Open(udp) = self {
            udp.peer_statistics(peer, into);
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        match self {
            Self::Open(udp) => udp.statistics(into),
            Self::Datagrams(udp) => udp.statistics(into),
            Self::Closed { .. } => {}
        }
    }
}
