//! Provider `verbs`: messages, tags and remote memory over RDMA devices: InfiniBand, RoCE, soft-RoCE.
//!
//! A peer has a reliable connected queue pair, which rdma_cm establishes at first use (`endpoint/connecting.rs`).
//! All peers' records arrive in slots of one shared receive queue (`adapter.rs`); credits limit the slots that a peer
//! may use (`peer/`). Short messages are sent in records (`wire.rs`). Long ones are announced, and the receiver reads
//! them from the sender's memory (`message.rs`, `fetch.rs`). The owner of memory executes the first access to it, and
//! checks key, bounds and rights whenever bytes are copied (`rma.rs`, `atomic.rs`); the device executes later accesses
//! (`native.rs`).
//!
//! Peers on the same host use shared memory: `near.rs`.
//!
//! Datagram endpoints (`datagram/`) and connected endpoints (`connected/`) use the wire protocol of C libfabric's
//! provider.

mod adapter;
mod address;
mod atomic;
mod completions;
mod connected;
mod cq_data;
mod datagram;
mod devices;
mod domain;
mod ending;
mod endpoint;
mod errors;
mod events;
mod fetch;
mod few;
mod listing;
mod memory;
mod message;
mod native;
mod near;
mod op;
mod peer;
mod probe;
mod provider;
mod quiet;
pub mod rc;
mod refused;
mod region;
mod rma;
mod sending;
mod settings;
mod single;
mod state;
mod timers;
mod transfer;
mod waiter;
mod wire;

use std::sync::Arc;

use ofi_api::{
    AddrFormat, Address, AtomicKind, Datatype, Dmabuf, EpType, Errno, Error, FiOp, Info, LibraryMemory,
    MrAccess, MrAttr, Placement, Result, RxAttr,
};
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::hmem::RegisteredDevice;
use ofi_core::transport::{Port, SharedReceives, Transport};

pub use near::VerbsOrShm;
pub use provider::VerbsProvider;
pub use settings::SETTINGS;

/// The transport.
pub struct Verbs;

// SAFETY: allocations are pages of this process, and the device holds a registration from `ibv_reg_mr` to
// `ibv_dereg_mr`, which is the lifetime of a region.
unsafe impl Transport for Verbs {
    type Domain = domain::Domain;
    type Region = region::Region;
    type Endpoint = state::EndpointState;
    type Op = op::Op;
    type Token = op::Token;

    const MATCHES: bool = true;
    const KEEPS: bool = true;
    const SEVERS: bool = true;
    const DMABUF: bool = true;
    const EXPORTS: bool = true;

    fn prefix(info: &Info) -> usize {
        datagram::prefix(info, info.tx_attr.mode)
    }

    fn open_domain(info: &Info, _registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        domain::Domain::open(info)
    }

    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint> {
        Ok(state::EndpointState::new(domain, info))
    }

    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region> {
        if domain.keyed {
            return region::Region::keyed(domain, attr, attr.dmabuf());
        }
        if attr.dmabuf().is_some() {
            return Err(Error::wanted(
                Errno::ENOSYS,
                "a dma-buf to register for reliable datagrams (FI_EP_RDM) of provider verbs",
                "memory that this process can touch: it executes the first access of each peer",
                "a dma-buf",
                "use connected endpoints (FI_EP_MSG), or provider efa",
            ));
        }
        Ok(region::Region::new(domain, attr))
    }

    fn register_device(
        domain: &Self::Domain,
        attr: &MrAttr<'_>,
        _device: &RegisteredDevice,
        dmabuf: Option<Dmabuf<'_>>,
    ) -> Result<Self::Region> {
        match dmabuf {
            Some(dmabuf) => region::Region::of_device(domain, attr, dmabuf),
            None => Self::register(domain, attr),
        }
    }

    fn exports(domain: &Self::Domain, attr: &MrAttr<'_>) -> bool {
        domain.keyed || attr.access().intersects(MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE)
    }

    fn deregister(domain: &Self::Domain, region: &Self::Region) -> Result<()> {
        region.withdraw(domain); // accesses that the owner executes are checked when bytes are copied
        Ok(())
    }

    fn key(region: &Self::Region) -> Option<u64> {
        region.key()
    }

    fn counts(region: &Self::Region) -> bool {
        region.counts()
    }

    fn cm_data_size() -> usize {
        connected::MAX_CM_DATA_LEN
    }

    fn open_port(info: &Info, name: Option<&Address>) -> Result<Box<dyn Port>> {
        Ok(Box::new(connected::MsgPort::open(info, name)?))
    }

    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        memory::alloc(&domain.transport.cache, len, placement)
    }

    fn shared_receives(
        domain: &Arc<DomainPart<Self>>,
        attr: &RxAttr,
    ) -> Result<Option<Arc<dyn SharedReceives>>> {
        if !domain.transport.keyed {
            return Ok(None); // endpoints of this domain match messages themselves
        }
        Ok(Some(Arc::new(connected::SharedReceives::new(domain, attr)?)))
    }

    fn error_text(domain: &Self::Domain) -> fn(i32) -> String {
        if domain.keyed { errors::request_text } else { |number| Errno::from_raw(number).to_string() }
    }

    fn atomic_size(ep: EpType) -> usize {
        if ep == EpType::Msg { connected::atomic::SIZE } else { ofi_core::atomic::MAX_PACKET_ATOMIC_LEN }
    }

    #[inline]
    fn has_atomic(ep: EpType, kind: AtomicKind, op: FiOp, datatype: Datatype) -> bool {
        ep != EpType::Msg || connected::atomic::has(kind, op, datatype)
    }

    fn note_size() -> usize {
        wire::PAYLOAD
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        address::resolve(node, service, None)
    }

    fn normalize(address: &Address) -> Result<Address> {
        match address.format() {
            AddrFormat::IbUd => address::Name::parse(address).map(|name| name.encode()),
            _ => address::socket(address).map(Address::from),
        }
    }
}
