//! Provider `tcp`: messages, tags and remote memory over TCP, on the wire protocol of C libfabric's `tcp`. An endpoint
//! of this library and one of C libfabric (1.17, where the provider is called `net`, to 2.6) are peers like any others.
//!
//! [`wire`] has the protocol, without I/O. Follow a message: `TransportEndpoint::send` in `state.rs`,
//! `endpoint/sending.rs`, the queue of its connection (`outgoing.rs`), `sendmsg`; and on the peer `endpoint/` (poll),
//! `taking.rs`, and the core. Connections come about in `endpoint/meeting.rs`, by the rules of `handshake.rs`. Peers of
//! the same host that are of this library use shared memory: `near.rs`. Endpoints with a key encrypt: `tls/`.

mod address;
mod bulk;
mod common;
mod conn;
mod endpoint;
#[cfg(all(
    feature = "encryption",
    any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))
))]
pub mod fuzz;
mod handshake;
mod listener;
mod mismatch;
mod near;
mod op;
mod outgoing;
mod port;
mod ports;
mod provider;
mod settings;
mod stash;
mod state;
mod stream;
mod sys;
mod taking;
#[cfg_attr(
    not(all(
        feature = "encryption",
        any(target_arch = "x86_64", all(target_arch = "aarch64", target_endian = "little"))
    )),
    path = "tls/absent.rs"
)]
mod tls;
pub mod wire;

use std::sync::Arc;

use ofi_api::{Address, EpType, Info, LibraryMemory, MrAttr, Placement, Result};
use ofi_core::domain::{DomainPart, Registered};
use ofi_core::transport::{Port, Transport};

pub use near::TcpOrShm;
pub use provider::TcpProvider;
pub use settings::SETTINGS;

/// The transport over sockets. The provider combines it with shared memory ([`TcpOrShm`]).
pub struct Tcp;

// SAFETY: allocations are pages of this process, and this process alone executes accesses, by the key table of the
// core.
unsafe impl Transport for Tcp {
    type Domain = ();
    type Region = ();
    type Endpoint = state::EndpointState;
    type Op = op::TcpOp;
    type Token = op::Token;

    const AUTH_KEY_SIZE: usize = tls::MAX_KEY_LEN;
    const SEVERS: bool = true;
    const KEEPS: bool = true;

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
        Ok(()) // the owner checks every access, and holds the memory only during a call
    }

    fn alloc(
        _domain: &Arc<DomainPart<Self>>,
        len: usize,
        placement: Placement,
    ) -> Result<Arc<dyn LibraryMemory>> {
        ofi_core::pages::alloc(len, placement)
    }

    fn atomic_size(_ep: EpType) -> usize {
        if settings::ATOMICS.get() { ofi_core::atomic::MAX_PACKET_ATOMIC_LEN } else { 0 }
    }

    fn in_flight() -> usize {
        settings::UNEXPECTED_BYTES.get() // what was granted to a peer has a place
    }

    fn note_size() -> usize {
        wire::MAX_SHORT_LEN
    }

    fn resolve(node: Option<&str>, service: Option<&str>) -> Result<Address> {
        address::resolve(node, service, None)
    }

    fn open_port(info: &Info, name: Option<&Address>) -> Result<Box<dyn Port>> {
        Ok(Box::new(port::TcpPort::open(info, name)?))
    }

    fn normalize(address: &Address) -> Result<Address> {
        address::normalize(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn atomics_are_not_offered_unasked() {
        assert_eq!(Tcp::atomic_size(EpType::Rdm), 0);
    }
}
