//! Peers of the same host: shared memory, under the endpoint's network address ([`ofi_shm::ip_neighbours`]). Endpoints
//! of C libfabric announce nothing there, and are reached over TCP.

use ofi_core::ip::Addressing;
use ofi_shm::ip_neighbours::{IpOrShm, IpTransport};

use crate::Tcp;
use crate::address;
use crate::settings;
use crate::state::EndpointState;

/// The composite transport: TCP for other hosts, and shared memory for this one.
pub type TcpOrShm = IpOrShm<Tcp>;

impl IpTransport for Tcp {
    const SCHEME: &'static str = "fi_shm://tcp/";

    fn addressing() -> &'static Addressing {
        &address::IP
    }

    fn may_share() -> bool {
        settings::SHARED_MEMORY.get()
    }

    fn has_all_addresses(endpoint: &EndpointState) -> bool {
        endpoint.has_all_addresses()
    }

    fn has_listener_s_address(endpoint: &EndpointState) -> bool {
        endpoint.accepts()
    }
}
