//! Provider `efa`: reliable datagram endpoints over the SRD queue pairs of Amazon's Elastic Fabric Adapter.
//!
//! There are three layers, and each knows only the next. The endpoint (`state.rs`, `endpoint.rs`, `peer.rs`) follows
//! Amazon's RDM protocol, version 4: messages in one packet, in several, or by the receiver's credit (`message.rs`,
//! `transfer.rs`), ordered by message id (`window.rs`); remote accesses and atomics executed by the memory's owner
//! (`rma.rs`, `atomic.rs`) or by the device (`native.rs`). `wire` parses and encodes the protocol's packets. [`srd`]
//! has the traits of a device.
//!
//! Peers on the same host use shared memory: `near.rs`.
//!
//! The core needs some things that C libfabric's protocol lacks: refusals of accesses, receive contexts, notes,
//! back-pressure. Only endpoints of this library exchange them, and identify each other by a feature bit
//! ([`wire::Features::OWN`]).

mod adapter;
mod address;
mod atomic;
mod bare;
mod common;
mod direct;
mod domain;
mod endpoint;
mod giving_up;
mod held;
mod ids;
mod message;
mod moving;
mod native;
mod near;
mod op;
mod options;
mod peer;
mod provider;
mod ranges;
mod read;
mod region;
mod rma;
mod settings;
mod single;
pub mod srd;
mod state;
mod transfer;
mod window;
pub mod wire;

use std::sync::Arc;

use ofi_api::{Address, Dmabuf, EpOption, EpType, Info, LibraryMemory, MrAttr, Placement, Result};
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::hmem::RegisteredDevice;
use ofi_core::transport::Transport;

pub use near::EfaOrShm;
pub use provider::EfaProvider;
pub use settings::SETTINGS;

/// The transport.
pub struct Efa;

/// Longest payload of a note in bytes.
const NOTE: usize = 4096;

// SAFETY: allocations are pages of this process, and the device holds a registration from `ibv_reg_mr` to
// `ibv_dereg_mr`, which is the lifetime of a region.
unsafe impl Transport for Efa {
    type Domain = domain::Domain;
    type Region = region::Region;
    type Endpoint = state::EndpointState;
    type Op = op::Op;
    type Token = moving::Token;

    const ABANDONS: bool = true;
    const DMABUF: bool = true;
    const EXPORTS: bool = true;
    const MATCHES: bool = true;

    fn open_domain(info: &Info, _registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        domain::Domain::open(info)
    }

    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint> {
        Ok(state::EndpointState::new(domain, info))
    }

    fn option(
        domain: &Self::Domain,
        info: &Info,
        set: &[(EpOption, usize)],
        option: EpOption,
    ) -> Option<usize> {
        options::value(domain, info, set, option)
    }

    fn check_option(domain: &Self::Domain, info: &Info, option: EpOption, value: usize) -> Result<()> {
        options::check(domain, info, option, value)
    }

    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region> {
        match attr.dmabuf() {
            Some(dmabuf) => region::Region::of_dmabuf(domain, attr, dmabuf),
            None => region::Region::of_memory(domain, attr),
        }
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

    fn key(region: &Self::Region) -> Option<u64> {
        region.key.map(u64::from)
    }

    fn deregister(_domain: &Self::Domain, region: &Self::Region) -> Result<()> {
        region.withdraw();
        Ok(()) // accesses that this end executes are checked when bytes are copied
    }

    fn alloc(
        _domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        ofi_core::pages::alloc(len, placement)
    }

    fn atomic_size(_ep: EpType) -> usize {
        ofi_core::atomic::MAX_PACKET_ATOMIC_LEN
    }

    fn note_size() -> usize {
        NOTE
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        address::resolve(node, service)
    }

    fn normalize(address: &Address) -> Result<Address> {
        address::raw(address).map(|raw| address::named(&raw))
    }
}
