//! An endpoint's peers before and after it is enabled: what the core calls.

use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::{Address, Errno, Error, Info, Result, Statistic};
use ofi_core::domain::DomainPart;
use ofi_core::slots::SlotId;
use ofi_core::transport::{
    Arm, OutAtomic, OutMessage, OutNote, OutRma, PeerId, Posted, RequestData, TransportEndpoint, Upcalls,
};

use crate::Tcp;
use crate::endpoint::TcpEndpoint;
use crate::op::{TcpOp, Token};

/// An endpoint's peers before and after it is enabled.
pub enum EndpointState {
    /// Before.
    Closed { domain: Arc<DomainPart<Tcp>>, info: Box<Info> },
    /// After.
    Open(Box<TcpEndpoint>),
}

impl EndpointState {
    /// See [`ofi_core::transport::Transport::open_endpoint`].
    pub fn new(domain: &Arc<DomainPart<Tcp>>, info: &Info) -> Self {
        Self::Closed { domain: Arc::clone(domain), info: Box::new(info.clone()) }
    }

    /// Whether it is enabled, and bound to all addresses of the host.
    pub fn has_all_addresses(&self) -> bool {
        matches!(self, Self::Open(peers) if peers.has_all_addresses())
    }

    /// Whether it is enabled, and was opened to accept a request: then it has the address of its passive endpoint.
    pub fn accepts(&self) -> bool {
        matches!(self, Self::Open(peers) if peers.accepts())
    }

    #[inline]
    fn open(&mut self) -> Result<&mut TcpEndpoint> {
        match self {
            Self::Open(peers) => Ok(peers),
            Self::Closed { .. } => Err(Error::new(Errno::EOPBADSTATE)),
        }
    }
}

// SAFETY: the kernel copies during its calls, and everything else is copied in polls, from and to operations that the
// host still has.
unsafe impl TransportEndpoint<Tcp> for EndpointState {
    fn enable(&mut self, name: Option<&Address>) -> Result<Address> {
        let peers = match self {
            Self::Closed { domain, info } => TcpEndpoint::new(domain, info, name)?,
            Self::Open(peers) => return Ok(Address::from(peers.name)), // it was reserved
        };
        let address = Address::from(peers.name);
        *self = Self::Open(Box::new(peers));
        Ok(address)
    }

    fn reserve(&mut self, name: Option<&Address>) -> Result<Option<Address>> {
        self.enable(name).map(Some) // peers are served when they are polled
    }

    fn peer<H: Upcalls<Tcp>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        self.open()?.peer(host, address)
    }

    fn send<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutMessage<'_>) -> Result<Posted> {
        self.open()?.send(host, out)
    }

    fn rma<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutRma<'_>) -> Result<Posted> {
        self.open()?.rma(host, out)
    }

    fn atomic<H: Upcalls<Tcp>>(&mut self, host: &mut H, out: &OutAtomic<'_>) -> Result<Posted> {
        self.open()?.atomic(host, out)
    }

    fn note(&mut self, out: &OutNote<'_>) -> Result<()> {
        self.open()?.note(out)
    }

    fn await_note(&mut self, peer: PeerId) {
        if let Ok(peers) = self.open() {
            peers.await_note(peer);
        }
    }

    fn pull<H: Upcalls<Tcp>>(&mut self, host: &mut H, peer: PeerId, token: Token, into: SlotId) {
        if let Ok(peers) = self.open() {
            peers.pull(host, peer, token, into);
        }
    }

    fn abandon(&mut self, _peer: PeerId, _id: SlotId, op: &mut TcpOp) -> bool {
        match op {
            TcpOp::Confirm => {}
            TcpOp::Send { payload, .. } => payload.keep(),
            TcpOp::Read { pieces, .. } => *pieces = Box::default(),
        }
        true
    }

    fn sever<H: Upcalls<Tcp>>(&mut self, host: &mut H, peer: PeerId) -> bool {
        if let Ok(peers) = self.open()
            && let Some(id) = peers.peers.get(peer as usize).and_then(|entry| entry.conn)
        {
            peers.lose(host, id, Errno::ECANCELED);
        }
        true
    }

    fn discard(&mut self, peer: PeerId, token: Token) {
        if let Ok(peers) = self.open() {
            peers.discard(peer, token);
        }
    }

    fn poll<H: Upcalls<Tcp>>(&mut self, host: &mut H) {
        if let Self::Open(peers) = self {
            peers.poll(host);
        }
    }

    fn arm(&mut self) -> Arm {
        match self {
            Self::Open(peers) => peers.arm(),
            Self::Closed { .. } => Arm::Armed,
        }
    }

    fn wait_fd(&self) -> Option<RawFd> {
        match self {
            Self::Open(peers) => Some(peers.fd()),
            Self::Closed { .. } => None,
        }
    }

    fn packet(&mut self, to: &Address, packet: &[u8], _watch: bool) -> Result<()> {
        self.open()?.packet(to, packet)
    }

    fn adopt(&mut self, held: &RequestData) -> Result<()> {
        self.open()?.adopt(held)
    }

    fn join<H: Upcalls<Tcp>>(&mut self, host: &mut H, address: &Address, _first: bool) -> Result<()> {
        self.open()?.join(host, address)
    }

    fn part<H: Upcalls<Tcp>>(&mut self, host: &mut H, _drain: bool) {
        if let Self::Open(peers) = self {
            peers.part(host);
        }
    }

    fn is_settled(&self) -> bool {
        match self {
            Self::Open(peers) => peers.is_settled(),
            Self::Closed { .. } => true,
        }
    }

    fn statistics(&self, into: &mut Vec<Statistic>) {
        let Self::Open(peers) = self else { return };
        let counts = &peers.common.counts;
        let stat = |name, value, help| Statistic { name, value, help };
        into.extend([
            stat("connections", counts.connections, "connections established"),
            stat("connections_lost", counts.lost, "connections that have ended before the endpoint"),
            stat(
                "connections_refused",
                counts.refused,
                "requests for connections that were refused, and calls without a request",
            ),
            stat(
                "broken",
                counts.broken,
                "connections ended because the peer broke the protocol, or accessed what it may not",
            ),
            stat("encrypted", counts.encrypted, "connections established with TLS"),
            stat(
                "other_key",
                counts.other_key,
                "connections ended because only one end encrypts, or for another authorization key or certificate",
            ),
            stat("receive_calls", counts.reads, "calls of readv"),
            stat("send_calls", counts.writes, "calls of sendmsg"),
            stat("send_full", counts.full, "calls of sendmsg that the kernel did not take all of"),
            stat("announced", counts.announced, "messages that were sent on request"),
            stat("bulk_connections", counts.bulk, "bulk connections established"),
            stat("stripes", counts.striped, "stripes of long payloads sent on bulk connections"),
        ]);
    }
}
