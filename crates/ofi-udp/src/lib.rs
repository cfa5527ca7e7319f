//! Provider `udp`: messages, tags and remote memory over any IP network, on ordinary sockets.
//!
//! `ofi-rdm` decides on the content and timing of datagrams; this crate has the sockets and the clock, and defines the
//! records of a session. The path of a message:
//! [`TransportEndpoint::send`](ofi_core::transport::TransportEndpoint::send) in `state.rs`, `endpoint/`, `message.rs`,
//! the session's stream, a packet, `socket/`; and on the peer `endpoint/` (poll), `driver_adapter.rs`, `message.rs`
//! again, and the core. Peers of the same host use shared memory: `near.rs`. `command.rs` has the layout of records;
//! `docs/protocol.md` specifies all of it.

mod address;
mod ahead;
mod answer;
mod atomic;
mod class;
mod command;
mod config;
mod connected;
mod datagram;
mod driver_adapter;
mod endpoint;
mod lent;
mod liveness;
mod message;
mod near;
mod nic;
mod note;
mod op;
mod parts;
mod peer;
mod placement;
mod port;
mod ports;
mod probe;
mod provider;
mod rma;
mod rx_batch;
mod settings;
mod sockaddr;
mod socket;
mod state;
mod statistics;
mod sys;
mod time;

use std::sync::Arc;

use ofi_api::{Address, EpType, Info, LibraryMemory, MrAttr, Placement, Result};
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::transport::{Port, Transport};

pub use near::UdpOrShm;
pub use provider::UdpProvider;
pub use settings::SETTINGS;

/// The transport over sockets. The provider combines it with shared memory ([`UdpOrShm`]).
pub struct Udp;

// SAFETY: allocations are pages of this process, and this process alone executes accesses, by the key table of the
// core.
unsafe impl Transport for Udp {
    type Domain = ();
    type Region = ();
    type Endpoint = state::EndpointState;
    type Op = op::Op;
    type Token = op::Token;

    const MATCHES: bool = true;
    const KEEPS: bool = true;
    const ABANDONS: bool = true;
    const AUTH_KEY_SIZE: usize = if cfg!(feature = "encryption") { ofi_core::auth::MAX_SIZE } else { 0 };

    fn open_domain(_info: &Info, _registered: &Registered<Self::Region>) -> Result<Self::Domain> {
        Ok(())
    }

    fn open_endpoint(domain: &Arc<DomainPart<Self>>, info: &Info) -> Result<Self::Endpoint> {
        Ok(state::EndpointState::new(domain, info))
    }

    fn register(_domain: &Self::Domain, _attr: &MrAttr<'_>) -> Result<Self::Region> {
        Ok(())
    }

    fn deregister(_domain: &Self::Domain, _region: &Self::Region) -> Result<()> {
        Ok(()) // the owner checks every access, and takes back the memory that it lent to answers
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
        note::MAX_NOTE_LEN
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        address::resolve(node, service, None)
    }

    fn open_port(info: &Info, name: Option<&Address>) -> Result<Box<dyn Port>> {
        Ok(Box::new(port::UdpPort::open(info, name)?))
    }

    fn normalize(address: &Address) -> Result<Address> {
        address::normalize(address)
    }
}
