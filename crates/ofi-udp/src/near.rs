//! Peers of the same host: shared memory, under the endpoint's network address ([`ofi_shm::ip_neighbours`]).

use ofi_core::ip::Addressing;
use ofi_shm::ip_neighbours::{IpOrShm, IpTransport};

use crate::Udp;
use crate::address;
use crate::settings;
use crate::state::EndpointState;

/// The composite transport: sockets for other hosts, and shared memory for this one.
pub type UdpOrShm = IpOrShm<Udp>;

impl IpTransport for Udp {
    const SCHEME: &'static str = "fi_shm://udp/";

    fn addressing() -> &'static Addressing {
        &address::IP
    }

    fn may_share() -> bool {
        settings::SHARED_MEMORY.get()
    }

    fn has_all_addresses(endpoint: &EndpointState) -> bool {
        endpoint.has_all_addresses()
    }
}
