//! A transport for tests, which moves nothing and records its calls. The test plays the peer, and delivers messages
//! through [`Upcalls`].

use std::os::fd::RawFd;
use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, AvAttr, BindFlags, Caps, CompletionQueue, CqAttr, Domain, Endpoint, EpType, Errno,
    Error, Info, LibraryMemory, MrAttr, Placement, Result, SHARED_CONTEXT, Statistic,
};

use super::{Ep, EpCore};
use crate::fabric::FabricCore;
use crate::slots::SlotId;
use crate::transport::{
    Arm, DomainPart, OutMessage, OutRma, PeerId, Posted, Registered, Transport, TransportEndpoint, Upcalls,
};

/// A test transport that moves nothing and records its calls.
pub struct Still;

/// The recorded calls.
#[derive(Default)]
pub struct InertEndpoint {
    peers: PeerId,
    /// Payloads to be moved.
    pub pulled: Vec<(PeerId, u64)>,
    /// Discarded payloads.
    pub discarded: Vec<(PeerId, u64)>,
}

// SAFETY: it touches no memory.
unsafe impl Transport for Still {
    type Domain = ();
    type Region = ();
    type Endpoint = InertEndpoint;
    type Op = ();
    type Token = u64;

    fn open_domain(_: &Info, _: &Registered<()>) -> Result<()> {
        Ok(())
    }

    fn open_endpoint(_: &Arc<DomainPart<Self>>, _: &Info) -> Result<InertEndpoint> {
        Ok(InertEndpoint::default())
    }

    fn register((): &(), _: &MrAttr<'_>) -> Result<()> {
        Ok(())
    }

    fn deregister((): &(), (): &()) -> Result<()> {
        Ok(())
    }

    fn alloc(_: &Arc<DomainPart<Self>>, _: usize, _: Placement) -> Result<Arc<dyn LibraryMemory>> {
        Err(Error::new(Errno::ENOMEM))
    }

    fn resolve(_: Option<&str>, _: Option<&str>) -> Result<Address> {
        Ok(address(0))
    }

    fn normalize(address: &Address) -> Result<Address> {
        Ok(address.clone())
    }
}

// SAFETY: it touches no memory.
unsafe impl TransportEndpoint<Still> for InertEndpoint {
    fn enable(&mut self, _: Option<&Address>) -> Result<Address> {
        Ok(address(0))
    }

    fn peer<H: Upcalls<Still>>(&mut self, host: &mut H, address: &Address) -> Result<PeerId> {
        let peer = self.peers;
        self.peers += 1;
        host.introduce(peer, address);
        Ok(peer)
    }

    fn send<H: Upcalls<Still>>(&mut self, _: &mut H, _: &OutMessage<'_>) -> Result<Posted> {
        Err(Error::AGAIN)
    }

    fn rma<H: Upcalls<Still>>(&mut self, _: &mut H, _: &OutRma<'_>) -> Result<Posted> {
        Err(Error::AGAIN)
    }

    fn pull<H: Upcalls<Still>>(&mut self, _: &mut H, peer: PeerId, token: u64, _: SlotId) {
        self.pulled.push((peer, token));
    }

    fn discard(&mut self, peer: PeerId, token: u64) {
        self.discarded.push((peer, token));
    }

    fn poll<H: Upcalls<Still>>(&mut self, _: &mut H) {}

    fn arm(&mut self) -> Arm {
        Arm::Armed
    }

    fn wait_fd(&self) -> Option<RawFd> {
        None
    }

    fn statistics(&self, _: &mut Vec<Statistic>) {}
}

/// Some address.
pub fn address(number: u8) -> Address {
    Address::new(AddrFormat::Str, &[b'a' + number, 0])
}

/// An info of an endpoint with a shared receive context.
pub fn sharing() -> Info {
    let mut info = Info { caps: Caps::MSG | Caps::TAGGED, ..Info::default() };
    info.ep_attr.ep_type = EpType::Rdm;
    (info.ep_attr.tx_ctx_cnt, info.ep_attr.rx_ctx_cnt) = (1, SHARED_CONTEXT);
    info.ep_attr.max_msg_size = 1 << 20;
    info.domain_attr.max_ep_srx_ctx = 8;
    for caps in [&mut info.tx_attr.caps, &mut info.rx_attr.caps] {
        *caps = Caps::MSG | Caps::TAGGED;
    }
    (info.tx_attr.size, info.rx_attr.size) = (8, 8);
    (info.tx_attr.iov_limit, info.rx_attr.iov_limit) = (1, 1);
    info
}

/// A domain of this transport.
pub fn domain(info: &Info) -> Arc<dyn Domain> {
    FabricCore::<Still>::open(info).open_domain(info).unwrap()
}

/// An endpoint and its queue. `prepare` may bind anything to the endpoint.
pub fn endpoint(
    domain: &Arc<dyn Domain>,
    info: &Info,
    prepare: impl FnOnce(&dyn Endpoint),
) -> (Arc<Ep<Still>>, Arc<dyn CompletionQueue>) {
    let ep = domain.open_endpoint(info).unwrap();
    let cq = domain.open_cq(&CqAttr::default()).unwrap();
    ep.bind_cq(&cq, BindFlags::TRANSMIT | BindFlags::RECV).unwrap();
    ep.bind_av(&domain.open_av(&AvAttr::default()).unwrap()).unwrap();
    prepare(&*ep);
    ep.enable().unwrap();
    let any: Arc<dyn std::any::Any + Send + Sync> = ep;
    (any.downcast().unwrap_or_else(|_| panic!("an endpoint of this transport")), cq)
}

impl Ep<Still> {
    /// What is behind it.
    pub(super) fn core(&self) -> &Arc<EpCore<Still>> {
        &self.core
    }
}
