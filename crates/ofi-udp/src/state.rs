//! The core's view of an endpoint's peers, before and after it is enabled.

use std::os::fd::RawFd;
use std::sync::{Arc, Weak};

use ofi_api::{Address, Errno, Error, Info, OpFlags, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Arm, Attendant, OutAtomic, OutMessage, OutNote, OutRma, PeerId, Posted, TransportEndpoint, Upcalls,
};

use crate::datagram::{self, Beside, Datagrams};
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
    /// See [`ofi_core::transport::Transport::open_lanes`].
    pub fn new(domain: &Arc<DomainPart<Udp>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()) }
    }

    /// Whether it is enabled, and bound to all addresses of the host.
    pub fn has_all_addresses(&self) -> bool {
        matches!(self, Self::Open(lanes) if lanes.socket.address.ip().is_unspecified())
    }

    #[inline]
    fn open(&mut self) -> Result<&mut UdpEndpoint> {
        match self {
            Self::Open(lanes) => Ok(lanes),
            Self::Datagrams(_) => Err(Error::new(Errno::EOPNOTSUPP)),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

// SAFETY: the kernel copies during its calls, and everything else is copied in polls, from and to operations that the
// host still has.
unsafe impl TransportEndpoint<Udp> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let Self::Closed { domain, info } = self else {
            return Err(Error::new(Errno::EOPBADSTATE));
        };
        if datagram::is_datagram(info) {
            datagram::without_key(info)?;
        }
        if !datagram::has_sessions(info) {
            let lanes = Datagrams::new(info, name)?;
            let address = lanes.address();
            *self = Self::Datagrams(Box::new(lanes));
            return Ok(address);
        }
        let lanes = UdpEndpoint::new(domain, info, name)?;
        let address = Address::from(lanes.socket.name());
        *self = Self::Open(Box::new(lanes));
        Ok(address)
    }

    fn peer<H: Upcalls<Udp>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        if let Self::Datagrams(lanes) = self {
            return lanes.peer(host, address);
        }
        let lanes = self.open()?;
        let socket = address::socket(address)?;
        if socket.is_ipv4() != lanes.socket.address.is_ipv4() || socket.port() == 0 {
            return Err(Error::with(
                Errno::EADDRNOTAVAIL,
                format!(
                    "{socket} cannot be reached from {}: it needs a port, and the same address family",
                    lanes.socket.address
                ),
            ));
        }
        Ok(lanes.meet(host, socket))
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
            Self::Datagrams(lanes) if !TAGGED => unsafe { lanes.send_now(peer, from, len) },
            _ => false,
        }
    }

    #[inline]
    fn send<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        if let Self::Datagrams(lanes) = self {
            return lanes.send(out);
        }
        let lanes = self.open()?;
        if let UdpEndpoint { messages: Some(messages), endpoint, lanes, common, socket, .. } = &mut *lanes {
            let book = Beside { endpoint, lanes, loose: &mut common.loose };
            return messages.send(socket, &book, out);
        }
        let lane = &mut lanes.lanes[out.peer as usize];
        lanes.common.greets = out.flags.contains(OpFlags::INJECT) && !lanes.endpoint.is_open(out.peer);
        let time = now();
        let Some(sender) = lanes.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = lane.send(&mut lanes.common, sender, host, out)?;
        lanes.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn rma<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        let lane = &mut lanes.lanes[out.peer as usize];
        let time = now();
        let Some(sender) = lanes.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = lane.rma(&mut lanes.common, sender, host, out)?;
        lanes.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn atomic<H: Upcalls<Udp>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        let lanes = self.open()?;
        let lane = &mut lanes.lanes[out.peer as usize];
        let time = now();
        let Some(sender) = lanes.endpoint.sender(time, out.peer) else { return Err(Error::AGAIN) };
        let posted = lane.atomic(&mut lanes.common, sender, host, out)?;
        lanes.posted(host, time, out.peer, out.flags);
        Ok(posted)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        let lanes = self.open()?;
        let sender = lanes.endpoint.sender(now(), out.peer).ok_or(Error::AGAIN)?;
        note::send(sender, out)?;
        lanes.dirty = true;
        Ok(())
    }

    fn pull<H: Upcalls<Udp>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        let Ok(lanes) = self.open() else { return };
        let time = now();
        if let Some(sender) = lanes.endpoint.sender(time, peer) {
            lanes.lanes[peer as usize].pull(&mut lanes.common, sender, host, peer, token, into);
            lanes.posted(host, time, peer, OpFlags::empty());
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
        let Ok(lanes) = self.open() else { return };
        if let Some(sender) = lanes.endpoint.sender(now(), peer) {
            Peer::discard(sender, token);
            lanes.dirty = true;
        }
    }

    fn poll<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        match self {
            Self::Open(lanes) => lanes.poll(host),
            Self::Datagrams(lanes) => lanes.poll(host),
            Self::Closed { .. } => {}
        }
    }

    fn attend(&mut self, attendant: Weak<dyn Attendant>) {
        if let Self::Open(lanes) = self {
            lanes.alive.set_attendant(attendant);
        }
    }

    fn let_out<H: Upcalls<Udp>>(&mut self, host: &mut H) {
        if let Self::Open(lanes) = self {
            lanes.alive.sent();
            if lanes.endpoint.hasten() || lanes.dirty {
                lanes.transmit(host, now(), 1);
            }
        }
    }

    fn give_back(&mut self) {
        if let Self::Open(lanes) = self {
            lanes.give_back();
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(lanes) => lanes.arm(),
            Self::Datagrams(lanes) => lanes.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(lanes) => Some(lanes.socket.fd()),
            Self::Datagrams(lanes) => Some(lanes.wait_fd()),
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
        if let Self::Open(lanes) = self {
            lanes.part(host, drain);
        }
    }

    fn is_settled(&self) -> bool {
        match self {
            Self::Open(lanes) => {
                lanes.common.connection.as_ref().is_none_or(|connection| connection.is_settled())
            }
            _ => true,
        }
    }

    fn join_group(&mut self, group: &Address, receives: bool) -> Result<(Address, Posted)> {
        let joined = match self {
            _ if !receives => Ok(group.clone()), // an endpoint that only sends to a group does not join it
            Self::Datagrams(lanes) => lanes.join_group(group),
            Self::Open(lanes) => match &mut lanes.messages {
                Some(messages) => messages.join_group(&lanes.socket, group),
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
            Self::Datagrams(lanes) => lanes.leave_group(group),
            Self::Open(lanes) => {
                if let Some(messages) = &mut lanes.messages {
                    messages.leave_group(group);
                }
            }
            Self::Closed { .. } => {}
        }
    }

    fn peer_statistics(&self, peer: PeerId, into: &mut Vec<Statistic>) {
        if let Self::Open(lanes) = self {
            lanes.peer_statistics(peer, into);
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        match self {
            Self::Open(lanes) => lanes.statistics(into),
            Self::Datagrams(lanes) => lanes.statistics(into),
            Self::Closed { .. } => {}
        }
    }
}
