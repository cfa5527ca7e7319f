//! Provider `verbs`: messages, tags and remote memory over RDMA devices: InfiniBand, RoCE, soft-RoCE.
//!
//! A lane to a peer is a reliable connected queue pair, made at first use by rdma_cm (`meeting.rs`). What a peer sends comes into slots of one
//! shared receive queue (`adapter.rs`), and as many as it has credits for (`lane.rs`). Short messages travel in records (`wire.rs`); long ones
//! are announced, and the receiver reads them from where they lie (`message.rs`, `fetch.rs`). Remote accesses are executed by the memory's
//! owner, who checks key, bounds and rights when the bytes are copied (`rma.rs`, `atomic.rs`).

mod adapter;
mod address;
mod atomic;
mod datagram;
mod domain;
mod fetch;
mod lane;
mod lanes;
mod meeting;
mod memory;
mod message;
mod native;
mod provider;
mod region;
mod rma;
mod settings;
mod sys;
mod wire;

use std::sync::Arc;

use ofi_api::{AddrFormat, Address, Errno, Error, Info, LibraryMemory, MrAttr, Placement, Result};
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::transport::Transport;

pub use provider::VerbsProvider;
pub use settings::SETTINGS;

/// The transport.
pub struct Verbs;

impl Transport for Verbs {
    type Domain = domain::Domain;
    type Region = region::Region;
    type Lanes = lanes::State;
    type Op = message::Op;
    type Token = message::Token;

    const MATCHES: bool = true;

    fn open_domain(info: &Info, _registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        domain::Domain::open(info)
    }

    fn open_lanes(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Lanes> {
        Ok(lanes::State::new(domain, info))
    }

    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region> {
        Ok(region::Region::new(domain, attr))
    }

    fn deregister(domain: &Self::Domain, region: &Self::Region) -> Result<()> {
        region.withdraw(domain); // what the owner executes is checked when its bytes are copied
        Ok(())
    }

    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        memory::alloc(&domain.transport.cache, len, placement)
    }

    fn atomic_size() -> usize {
        atomic::MOST
    }

    fn note_size() -> usize {
        wire::PAYLOAD
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        address::resolve(node, service, None)
    }

    fn normalize(address: &Address) -> Result<Address> {
        match address.format() {
            AddrFormat::IbUd => datagram::Name::parse(address).map(|name| name.encode()),
            _ => address::socket(address).map(Address::from),
        }
    }
}

/// An error of rdma-core as one of ours.
fn failed(error: &ibv::Error) -> Error {
    Error::with(Errno::from_raw(error.errno), error.to_string())
}
