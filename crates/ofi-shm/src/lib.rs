//! Provider `shm`: messages, tags and remote memory between processes of one host.
//!
//! A process writes only its own memory. It maps its peers' memory read-only, except rings that only it reads
//! (`pair.rs`). No memory is in a file system, so nothing is left behind. The path of a message:
//! [`TransportEndpoint::send`](ofi_core::transport::TransportEndpoint::send) in `endpoint/`, `message/send.rs`, the
//! ring, and on the peer `endpoint/poll.rs`, `poll.rs`, `message/receive.rs`, and the core. Two endpoints connect in
//! `control.rs`, `helper.rs`, `shared.rs`. The layout of shared memory: `layout.rs`, `command.rs`.

mod atomic;
mod bulk;
mod choice;
mod cma;
mod command;
mod common;
mod connected;
mod control;
mod ending;
mod endpoint;
mod endpoint_info;
mod event;
mod exposed_buffer;
#[doc(hidden)]
pub mod fuzz;
mod grants;
mod helper;
mod hints;
pub mod ip_neighbours;
mod layout;
pub mod locality_probe;
mod memory;
mod message;
mod name;
mod note;
mod op;
mod openings;
mod pair;
mod path;
mod peer;
mod peer_exit;
mod poll;
mod port;
mod provider;
mod region;
mod rma;
mod settings;
mod shared;
mod single;
mod stores;
mod sys;
mod token;

use std::sync::Arc;

use ofi_api::{Address, Dmabuf, EpType, Info, LibraryMemory, MrAttr, Placement, Result};
use ofi_core::auth;
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::hmem::RegisteredDevice;
use ofi_core::transport::{Port, Transport};

pub use provider::ShmProvider;
pub use settings::SETTINGS;

/// The transport.
pub struct Shm;

/// Its state in a domain.
#[derive(Default)]
pub struct ShmDomain {
    allocations: memory::Allocations,
}

// SAFETY: allocations are mappings of this process (`memory`), and peers reach a registration only through its grants,
// which `deregister` withdraws, waiting for copies in progress.
unsafe impl Transport for Shm {
    type Domain = Arc<ShmDomain>;
    type Region = region::ShmRegion;
    type Endpoint = endpoint::EndpointState;
    type Op = op::Op;
    type Token = token::Token;

    const MATCHES: bool = true;
    const ABANDONS: bool = true;
    const AUTH_KEY_SIZE: usize = auth::MAX_SIZE;

    fn open_domain(_info: &Info, _registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        Ok(Arc::new(ShmDomain::default()))
    }

    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint> {
        Ok(endpoint::EndpointState::new(domain, info))
    }

    fn register(domain: &Self::Domain, attr: &MrAttr<'_>) -> Result<Self::Region> {
        Ok(region::ShmRegion::new(domain, attr))
    }

    fn register_device(
        _domain: &Self::Domain,
        attr: &MrAttr<'_>,
        device: &RegisteredDevice,
        _dmabuf: Option<Dmabuf<'_>>,
    ) -> Result<Self::Region> {
        Ok(region::ShmRegion::of_device(attr, device))
    }

    fn deregister(_domain: &Self::Domain, region: &Self::Region) -> Result<()> {
        let withdrawn = region::withdraw(region);
        helper::tell_withdrawn(&region.take_keys());
        withdrawn
    }

    fn alloc(
        domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        memory::alloc(&domain.transport, len, placement)
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        name::resolve(node, service)
    }

    fn needs_shared_memory() -> bool {
        true
    }

    fn in_flight() -> usize {
        // One ring, plus what is sent while it is processed and before the request is seen. The peer's ring may be
        // longer.
        (4 * layout::LINE * settings::COMMAND_LINES.get().next_power_of_two()).max(256 << 10)
    }

    fn atomic_size(_ep: EpType) -> usize {
        atomic::size_limit()
    }

    fn note_size() -> usize {
        note::size_limit()
    }

    fn normalize(address: &Address) -> Result<Address> {
        name::normalize(address)
    }

    fn open_port(info: &Info, name: Option<&Address>) -> Result<Box<dyn Port>> {
        Ok(Box::new(port::ShmPort::open(info, name)?))
    }
}
