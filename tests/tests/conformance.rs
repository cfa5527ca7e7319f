//! The conformance suite, for every transport and endpoint type of this host. Each gap is listed with its reason.

use ofi::raw::{AddrFormat, EpType, Hints};
use testkit::Kit;

/// Shared memory, reliable datagram endpoints, named by text.
struct ShmPair;

impl Kit for ShmPair {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm)
    }
}

/// The same, named by ports of this host.
struct ShmPorts;

impl Kit for ShmPorts {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn)
    }
}

testkit::conformance!(shm: ShmPair);
testkit::conformance!(shm_ports: ShmPorts);
