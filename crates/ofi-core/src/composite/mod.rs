//! Two transports in one endpoint. The endpoint reaches each peer over one of them.
//!
//! The endpoint owns matching, completions, keys and addresses; a transport moves bytes to a peer. So two transports
//! can be combined without knowing each other: [`Composite`] is a transport made of two, and forwards an endpoint's
//! calls to one of them by the peer's number. A [`CompositeSpec`] defines which addresses belong together, and chooses
//! the transport for a peer: before the first message, and not again until the peer is lost there. So messages to a
//! peer arrive once and in order, as over a single transport.
//!
//! Each end chooses for its own sends. Usually both choose alike. If they do not (one did not exist yet when the other
//! chose), the two directions use different transports, and an endpoint receives from its peer on both. A connection
//! (`link.rs`, `port.rs`) uses the transport of its request in both directions.

mod either;
mod endpoint;
mod link;
mod pace;
mod port;
mod routes;
mod side;

use std::marker::PhantomData;
use std::sync::Arc;

use ofi_api::{
    Address, AtomicKind, Datatype, Dmabuf, EpOption, EpType, FiOp, Info, LibraryMemory, MrAttr, Placement,
    Result, RxAttr,
};

pub use either::Either;
pub use endpoint::CompositeEndpoint;

use crate::domain::{DomainPart, Registered};
use crate::hmem::RegisteredDevice;
use crate::transport::{Port, SharedReceives, Transport};

/// Two transports that are combined, and the mapping between their addresses. The endpoint has the far transport's
/// addresses.
pub trait CompositeSpec: Sized + Send + Sync + 'static {
    /// The transport for peers of this host.
    type Near: Transport;
    /// The transport for all other peers, and for unreliable datagrams. If it takes receives before their messages
    /// ([`TransportEndpoint::claims`](crate::transport::TransportEndpoint::claims)), endpoints have no near transport.
    type Far: Transport;
    /// State of an enabled endpoint, held while peers may reach it over the near transport.
    type Meeting: Send + Sync;

    /// Whether a poll of the far transport takes a system call, so that it is skipped now and then while only near
    /// peers are active.
    const FAR_IS_COSTLY: bool;

    /// The name of the far transport in the log.
    const FAR_NAME: &'static str;

    /// The info for the near transport. `None` leaves it out of a domain or an endpoint.
    fn near_info(info: &Info) -> Option<Info>;

    /// The near address of this endpoint, which is enabled over the far transport with the address `far`.
    fn own_near(endpoint: &<Self::Far as Transport>::Endpoint, far: &Address) -> Option<Address>;

    /// The far addresses of the endpoint with this near address, the usual one first.
    fn far_addresses(near: &Address) -> Vec<Address>;

    /// For connected endpoints: the far address of an endpoint that has accepted a request and answers from this near
    /// address, if such endpoints have names of their own.
    fn far_of_accepting(near: &Address) -> Option<Address> {
        let _ = near;
        None
    }

    /// Announces to peers that the endpoint at `near` is reachable over both transports, from now on.
    ///
    /// # Errors
    /// Any error: the endpoint then works without the near transport.
    fn meet(near: &Address) -> Result<Self::Meeting>;

    /// The near address of the peer at `far`, if sends to it should use the near transport. Called before the first
    /// message, and again after the peer was lost there. It must not block, so it uses only information on this host.
    fn near_address(meeting: &mut Self::Meeting, far: &Address) -> Option<Address>;

    /// The near address of a passive endpoint whose port over the far transport was opened under the name `wanted` and
    /// has the address `far`. `None`: connections use the far transport.
    fn passive_near(wanted: Option<&Address>, far: &Address) -> Option<Address> {
        let _ = (wanted, far);
        None
    }

    /// The near address of the passive endpoint at `far`, if it can be called over the near transport.
    fn near_passive(far: &Address) -> Option<Address> {
        let _ = far;
        None
    }

    /// The possible near addresses of an endpoint at `far`.
    fn near_names(far: &Address) -> Vec<Address> {
        let _ = far;
        Vec::new()
    }

    /// Whether two far addresses are on one host and belong to different endpoints there.
    fn is_beside(one: &Address, other: &Address) -> bool {
        let _ = (one, other);
        false
    }
}

/// The transport that a [`CompositeSpec`] makes.
pub struct Composite<P>(PhantomData<fn() -> P>);

/// The parts of a domain for both transports.
pub struct CompositeDomain<P: CompositeSpec> {
    near: Option<Arc<DomainPart<P::Near>>>,
    far: Arc<DomainPart<P::Far>>,
}

/// The parts of a registration for both transports.
pub struct CompositeRegion<P: CompositeSpec> {
    near: Option<<P::Near as Transport>::Region>,
    far: <P::Far as Transport>::Region,
}

type OpOf<P> =
    Either<<<P as CompositeSpec>::Near as Transport>::Op, <<P as CompositeSpec>::Far as Transport>::Op>;
type TokenOf<P> =
    Either<<<P as CompositeSpec>::Near as Transport>::Token, <<P as CompositeSpec>::Far as Transport>::Token>;

// SAFETY: both transports fulfil the contract, and each handles only its own operations.
unsafe impl<P: CompositeSpec> Transport for Composite<P> {
    type Domain = CompositeDomain<P>;
    type Region = CompositeRegion<P>;
    type Endpoint = CompositeEndpoint<P>;
    type Op = OpOf<P>;
    type Token = TokenOf<P>;

    const MATCHES: bool = P::Near::MATCHES && P::Far::MATCHES;
    const KEEPS: bool = P::Far::KEEPS;
    const ABANDONS: bool = P::Near::ABANDONS && P::Far::ABANDONS;
    const SEVERS: bool = P::Far::SEVERS;
    const DMABUF: bool = P::Far::DMABUF;
    const EXPORTS: bool = P::Far::EXPORTS;
    const AUTH_KEY_SIZE: usize = match (P::Near::AUTH_KEY_SIZE, P::Far::AUTH_KEY_SIZE) {
        (near, far) if near < far => near,
        (_, far) => far,
    };

    fn prefix(info: &Info) -> usize {
        P::Far::prefix(info)
    }

    fn open_domain(info: &Info, registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        let near = match P::near_info(info) {
            // A region of this domain has data of the near transport, as the domain does.
            Some(info) => Some(DomainPart::open(&info, registered.part(|region| region.near.as_ref()))?),
            None => None,
        };
        Ok(CompositeDomain {
            near,
            far: DomainPart::open(info, registered.part(|region| Some(&region.far)))?,
        })
    }

    fn option(
        domain: &Self::Domain,
        info: &Info,
        set: &[(EpOption, usize)],
        option: EpOption,
    ) -> Option<usize> {
        P::Far::option(&domain.far.transport, info, set, option)
    }

    fn check_option(domain: &Self::Domain, info: &Info, option: EpOption, value: usize) -> Result<()> {
        P::Far::check_option(&domain.far.transport, info, option, value)
    }

    fn error_text(domain: &Self::Domain) -> fn(i32) -> String {
        P::Far::error_text(&domain.far.transport)
    }

    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint> {
        CompositeEndpoint::open(domain, info)
    }

    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region> {
        let near = domain.near.as_ref().filter(|_| attr.dmabuf().is_none());
        let near = near.map(|near| P::Near::register(&near.transport, attr)).transpose()?;
        Ok(CompositeRegion { near, far: P::Far::register(&domain.far.transport, attr)? })
    }

    fn register_device(
        domain: &Self::Domain,
        attr: &MrAttr<'_>,
        device: &RegisteredDevice,
        dmabuf: Option<Dmabuf<'_>>,
    ) -> Result<Self::Region> {
        let near = domain.near.as_ref();
        let near =
            near.map(|near| P::Near::register_device(&near.transport, attr, device, None)).transpose()?;
        Ok(CompositeRegion {
            near,
            far: P::Far::register_device(&domain.far.transport, attr, device, dmabuf)?,
        })
    }

    fn exports(domain: &Self::Domain, attr: &MrAttr<'_>) -> bool {
        P::Far::exports(&domain.far.transport, attr)
    }

    fn key(region: &Self::Region) -> Option<u64> {
        P::Far::key(&region.far)
    }

    fn counts(region: &Self::Region) -> bool {
        P::Far::counts(&region.far)
    }

    fn deregister(domain: &Self::Domain, region: &Self::Region) -> Result<()> {
        let near = match (&domain.near, &region.near) {
            (Some(domain), Some(region)) => P::Near::deregister(&domain.transport, region),
            _ => Ok(()),
        };
        P::Far::deregister(&domain.far.transport, &region.far).and(near)
    }

    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        // Near peers may map it; for the far transport it is ordinary memory.
        match &domain.transport.near {
            Some(near) => P::Near::alloc(near, len, placement),
            None => P::Far::alloc(&domain.transport.far, len, placement),
        }
    }

    fn shared_receives(
        domain: &Arc<DomainPart<Self>>,
        attr: &RxAttr,
    ) -> Result<Option<Arc<dyn SharedReceives>>> {
        P::Far::shared_receives(&domain.transport.far, attr)
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        P::Far::resolve(node, service)
    }

    fn needs_shared_memory() -> bool {
        P::Far::needs_shared_memory()
    }

    fn in_flight() -> usize {
        P::Near::in_flight().max(P::Far::in_flight())
    }

    fn atomic_size(ep: EpType) -> usize {
        P::Near::atomic_size(ep).min(P::Far::atomic_size(ep))
    }

    #[inline]
    fn has_atomic(ep: EpType, kind: AtomicKind, op: FiOp, datatype: Datatype) -> bool {
        P::Near::has_atomic(ep, kind, op, datatype) && P::Far::has_atomic(ep, kind, op, datatype)
    }

    fn cm_data_size() -> usize {
        P::Near::cm_data_size().min(P::Far::cm_data_size())
    }

    fn note_size() -> usize {
        P::Near::note_size().min(P::Far::note_size())
    }

    fn normalize(address: &Address) -> Result<Address> {
        P::Far::normalize(address)
    }

    fn open_port(info: &Info, name: Option<&Address>) -> Result<Box<dyn Port>> {
        Ok(Box::new(port::BothPort::<P>::open(info, name)?))
    }
}
