//! Several transports in one endpoint (`ofi_core::composite`): the whole conformance suite over two instances
//! of shared memory that share the peers, and over endpoints of `udp` and `tcp` that use shared memory within the host.

#[macro_use]
#[path = "../../suites/connected.rs"]
mod connected;
#[macro_use]
#[path = "../../suites/tcp.rs"]
mod skipped;
pub mod connected_near;
pub mod nearby;

use std::net::SocketAddr;

use ofi::raw::{Address, Caps, EpType, Hints};
use ofi_testkit::Kit;
use ofi_tests::two;

/// Peers alternate between the instances, so that most pairs use a different one for each direction.
struct Crossed;

impl Kit for Crossed {
    fn hints(&self) -> Hints {
        two::register();
        Hints::new().provider("crossed").ep_type(EpType::Rdm)
    }
}

/// Each instance carries half of all pairs.
struct Halved;

impl Kit for Halved {
    fn hints(&self) -> Hints {
        two::register();
        Hints::new().provider("halved").ep_type(EpType::Rdm)
    }
}

/// Provider `udp` between processes of one host.
struct UdpNear;

impl Kit for UdpNear {
    fn hints(&self) -> Hints {
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("udp").ep_type(EpType::Rdm).src_addr(loopback)
    }
}

/// The same with connected endpoints.
struct UdpNearConnected;

impl Kit for UdpNearConnected {
    fn hints(&self) -> Hints {
        UdpNear.hints().ep_type(EpType::Msg)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }
}

/// Provider `tcp` between processes of one host.
struct TcpNear;

impl Kit for TcpNear {
    fn hints(&self) -> Hints {
        ofi_tests::tcp_atomics();
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("tcp").ep_type(EpType::Rdm).src_addr(loopback)
    }
}

/// The same with connected endpoints.
struct TcpNearConnected;

impl Kit for TcpNearConnected {
    fn hints(&self) -> Hints {
        TcpNear.hints().ep_type(EpType::Msg)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }
}

ofi_testkit::conformance!(crossed: Crossed, skip = [
    a_datagram_has_a_bounded_size: "reliable datagram endpoints only",
    a_datagram_longer_than_its_receive_is_an_error: "reliable datagram endpoints only",
    a_datagram_to_nobody_completes: "reliable datagram endpoints only",
    datagrams_carry_messages_and_their_source: "reliable datagram endpoints only",
    a_sender_of_datagrams_never_waits_for_its_receiver: "reliable datagram endpoints only",
    datagrams_that_nobody_receives_are_dropped_and_counted: "reliable datagram endpoints only",
]);
ofi_testkit::conformance!(halved: Halved, skip = [
    a_datagram_has_a_bounded_size: "reliable datagram endpoints only",
    a_datagram_longer_than_its_receive_is_an_error: "reliable datagram endpoints only",
    a_datagram_to_nobody_completes: "reliable datagram endpoints only",
    datagrams_carry_messages_and_their_source: "reliable datagram endpoints only",
    a_sender_of_datagrams_never_waits_for_its_receiver: "reliable datagram endpoints only",
    datagrams_that_nobody_receives_are_dropped_and_counted: "reliable datagram endpoints only",
]);
ofi_testkit::conformance!(udp_near: UdpNear, skip = [
    a_datagram_has_a_bounded_size: "sockets only: `udp` in conformance.rs",
    a_datagram_longer_than_its_receive_is_an_error: "sockets only: `udp` in conformance.rs",
    a_datagram_to_nobody_completes: "sockets only: `udp` in conformance.rs",
    datagrams_carry_messages_and_their_source: "sockets only: `udp` in conformance.rs",
    a_sender_of_datagrams_never_waits_for_its_receiver: "sockets only: `udp` in conformance.rs",
    datagrams_that_nobody_receives_are_dropped_and_counted: "sockets only: `udp` in conformance.rs",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "sockets only: `udp` in conformance.rs",
    messages_and_accesses_share_a_datagram_endpoint: "sockets only: `udp` in conformance.rs",
]);
connected!(udp_near_msg: UdpNearConnected, skip = []);
over_tcp!(tcp_near: TcpNear, skip = []);
over_connected_tcp!(tcp_near_msg: TcpNearConnected, skip = []);
