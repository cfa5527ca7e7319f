//! The conformance suite, for every transport and endpoint type of this host. Each gap is listed with its reason.

use ofi::raw::{AddrFormat, Caps, EpType, Hints};
use ofi_testkit::Kit;

#[macro_use]
#[path = "suites/connected.rs"]
mod connected;

include!("suites/udp.rs");

/// Shared memory, reliable datagram endpoints with text addresses.
struct ShmPair;

impl Kit for ShmPair {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm)
    }
}

/// The same, addressed by ports of this host.
struct ShmPorts;

impl Kit for ShmPorts {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn)
    }
}

/// Shared memory, connected endpoints.
struct ShmConnected;

impl Kit for ShmConnected {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Msg)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }
}

/// Shared memory whose data path is called without dynamic dispatch (`ofi::direct`).
struct ShmDirect;

impl Kit for ShmDirect {
    fn hints(&self) -> Hints {
        ShmPair.hints()
    }

    fn direct(&self) -> bool {
        true
    }
}

/// UDP sockets on loopback, with a key and encrypted packets.
struct UdpSealed;

impl Kit for UdpSealed {
    fn hints(&self) -> Hints {
        UdpPair.hints().auth_key(*b"the conformance suite")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

ofi_testkit::conformance!(shm: ShmPair);
ofi_testkit::conformance!(shm_ports: ShmPorts);
ofi_testkit::conformance!(shm_direct: ShmDirect);
ofi_testkit::conformance!(udp_sealed: UdpSealed, skip = [
    authorization_keys_are_granted_or_refused_by_name: "the endpoints already have a key",
    a_vector_s_key_is_that_of_its_endpoints_and_addresses: "the endpoints already have a key",
    a_key_stays_in_its_vector_while_anything_is_of_it: "the endpoints already have a key",
    a_datagram_has_a_bounded_size: "datagrams carry no authorization key",
    a_datagram_longer_than_its_receive_is_an_error: "datagrams carry no authorization key",
    a_datagram_to_nobody_completes: "datagrams carry no authorization key",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "datagrams carry no authorization key",
    messages_and_accesses_share_a_datagram_endpoint: "datagrams carry no authorization key",
    datagrams_carry_messages_and_their_source: "datagrams carry no authorization key",
    a_sender_of_datagrams_never_waits_for_its_receiver: "datagrams carry no authorization key",
    datagrams_that_nobody_receives_are_dropped_and_counted: "datagrams carry no authorization key",
    another_endpoint_type_is_refused_by_name: "the key is refused together with the endpoint type",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs an acknowledgement, so the peer must poll",
]);
connected!(shm_msg: ShmConnected, skip = []);
