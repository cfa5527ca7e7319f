//! Several transports in one endpoint (`ofi_core::composite`): the whole conformance suite over two instances of shared
//! memory, between which peers are divided, and over UDP endpoints that meet over shared memory.

mod nearby;

use std::net::SocketAddr;

use nearby::{echo, squat};
use ofi::raw::{Address, EpType, Hints};
use ofi_tests::mesh::member;
use ofi_tests::two;
use testkit::Kit;

testkit::roles!(echo, squat, member);

/// Peers by turns on either instance, so that most pairs use one for each direction.
struct Crossed;

impl Kit for Crossed {
    fn hints(&self) -> Hints {
        two::register();
        Hints::new().provider("crossed").ep_type(EpType::Rdm)
    }
}

/// Half of all pairs on either instance.
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

testkit::conformance!(crossed: Crossed, skip = [
    a_datagram_has_a_bounded_size: "reliable datagram endpoints only",
    a_datagram_longer_than_its_receive_is_an_error: "reliable datagram endpoints only",
    a_datagram_to_nobody_completes: "reliable datagram endpoints only",
    datagrams_carry_messages_and_their_source: "reliable datagram endpoints only",
    a_sender_of_datagrams_never_waits_for_its_receiver: "reliable datagram endpoints only",
    datagrams_that_nobody_receives_are_dropped_and_counted: "reliable datagram endpoints only",
]);
testkit::conformance!(halved: Halved, skip = [
    a_datagram_has_a_bounded_size: "reliable datagram endpoints only",
    a_datagram_longer_than_its_receive_is_an_error: "reliable datagram endpoints only",
    a_datagram_to_nobody_completes: "reliable datagram endpoints only",
    datagrams_carry_messages_and_their_source: "reliable datagram endpoints only",
    a_sender_of_datagrams_never_waits_for_its_receiver: "reliable datagram endpoints only",
    datagrams_that_nobody_receives_are_dropped_and_counted: "reliable datagram endpoints only",
]);
testkit::conformance!(udp_near: UdpNear, skip = [
    a_datagram_has_a_bounded_size: "sockets only: `udp` in conformance.rs",
    a_datagram_longer_than_its_receive_is_an_error: "sockets only: `udp` in conformance.rs",
    a_datagram_to_nobody_completes: "sockets only: `udp` in conformance.rs",
    datagrams_carry_messages_and_their_source: "sockets only: `udp` in conformance.rs",
    a_sender_of_datagrams_never_waits_for_its_receiver: "sockets only: `udp` in conformance.rs",
    datagrams_that_nobody_receives_are_dropped_and_counted: "sockets only: `udp` in conformance.rs",
    a_connection_carries_data_both_ways_and_then_messages: "sockets only: `udp` in conformance.rs",
    a_connected_endpoint_reads_and_writes_its_peer_s_memory: "sockets only: `udp` in conformance.rs",
    connection_data_is_cut_to_the_size_that_is_told: "sockets only: `udp` in conformance.rs",
    a_rejection_is_an_error_with_its_data: "sockets only: `udp` in conformance.rs",
    a_request_that_is_dropped_is_refused: "sockets only: `udp` in conformance.rs",
    requests_over_the_backlog_are_refused: "sockets only: `udp` in conformance.rs",
    nobody_listening_refuses: "sockets only: `udp` in conformance.rs",
    a_listener_that_closes_refuses_what_waits: "sockets only: `udp` in conformance.rs",
    a_listener_that_closes_after_an_acceptance_undoes_nothing: "sockets only: `udp` in conformance.rs",
    a_request_that_was_read_outlives_its_listener: "sockets only: `udp` in conformance.rs",
    nothing_is_sent_before_the_connection_but_receives_are_posted: "sockets only: `udp` in conformance.rs",
    shutdown_follows_all_that_was_sent: "sockets only: `udp` in conformance.rs",
    shutdown_ends_what_is_outstanding: "sockets only: `udp` in conformance.rs",
    closing_an_endpoint_shuts_its_peer_down: "sockets only: `udp` in conformance.rs",
    a_caller_that_closes_while_it_waits_fails_the_acceptance: "sockets only: `udp` in conformance.rs",
    one_listener_serves_many_callers_in_any_domain: "sockets only: `udp` in conformance.rs",
    a_passive_endpoint_needs_its_queue_and_has_its_name: "sockets only: `udp` in conformance.rs",
    a_connected_endpoint_needs_an_event_queue_and_no_address_vector: "sockets only: `udp` in conformance.rs",
    a_blocked_reader_of_events_wakes_for_a_connection: "sockets only: `udp` in conformance.rs",
    connections_come_and_go: "sockets only: `udp` in conformance.rs",
    both_ends_may_shut_down_and_both_are_told_once: "sockets only: `udp` in conformance.rs",
    nothing_is_told_of_an_endpoint_that_was_closed: "sockets only: `udp` in conformance.rs",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "sockets only: `udp` in conformance.rs",
    messages_and_accesses_share_a_datagram_endpoint: "sockets only: `udp` in conformance.rs",
    a_connection_of_one_key_comes_about: "sockets only: `udp` in conformance.rs",
    a_request_with_another_key_is_refused: "sockets only: `udp` in conformance.rs",
]);
