//! The conformance suite, for every transport and endpoint type of this host. Each gap is listed with its reason.

use std::net::SocketAddr;

use ofi::raw::{AddrFormat, Address, Caps, EpType, Hints};
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

/// UDP sockets on loopback, reliable datagram endpoints. With shared memory as well: `lanes/main.rs`.
struct UdpPair;

impl Kit for UdpPair {
    fn hints(&self) -> Hints {
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("udp").ep_type(EpType::Rdm).src_addr(loopback)
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// UDP sockets on loopback, connected endpoints.
struct UdpConnected;

impl Kit for UdpConnected {
    fn hints(&self) -> Hints {
        let loopback = Address::from(SocketAddr::from(([127, 0, 0, 1], 0)));
        Hints::new().provider("udp").ep_type(EpType::Msg).src_addr(loopback)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::TAGGED | Caps::RMA
    }
}

/// UDP sockets on loopback, with packets that are encrypted, and a key.
struct UdpSealed;

impl Kit for UdpSealed {
    fn hints(&self) -> Hints {
        UdpPair.hints().auth_key(*b"the conformance suite")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

testkit::conformance!(shm: ShmPair);
testkit::conformance!(shm_ports: ShmPorts);
testkit::conformance!(shm_direct: ShmDirect);
testkit::conformance!(udp: UdpPair, skip = [
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs the peer to acknowledge, so to look",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "an access that may be lost without a word would have no end",
]);
testkit::conformance!(udp_sealed: UdpSealed, skip = [
    authorization_keys_are_granted_or_refused_by_name: "has a key to begin with",
    a_vector_s_key_is_that_of_its_endpoints_and_addresses: "has a key to begin with",
    a_key_stays_in_its_vector_while_anything_is_of_it: "has a key to begin with",
    a_datagram_has_a_bounded_size: "datagrams show no authorization key",
    a_datagram_longer_than_its_receive_is_an_error: "datagrams show no authorization key",
    a_datagram_to_nobody_completes: "datagrams show no authorization key",
    datagrams_carry_messages_and_their_source: "datagrams show no authorization key",
    a_sender_of_datagrams_never_waits_for_its_receiver: "datagrams show no authorization key",
    datagrams_that_nobody_receives_are_dropped_and_counted: "datagrams show no authorization key",
    another_endpoint_type_is_refused_by_name: "the key is refused along with the type",
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs the peer to acknowledge, so to look",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "an access that may be lost without a word would have no end",
]);
/// The suite over connected endpoints: without the cases that need a peer chosen by address, and those that are named.
macro_rules! connected {
    ($name:ident: $kit:expr, skip = [$($case:ident: $reason:literal),* $(,)?]) => {
        testkit::conformance!($name: $kit, skip = [
            $($case: $reason,)*
            a_vector_s_key_is_that_of_its_endpoints_and_addresses: "no address vector",
            a_key_stays_in_its_vector_while_anything_is_of_it: "no address vector",
            a_peer_with_another_key_is_refused: "no connection, so nothing to post: a_request_with_another_key_is_refused",
            no_key_fits_only_no_key: "no connection, so nothing to post: a_request_with_another_key_is_refused",
            both_may_begin_and_both_are_refused: "no connection, so nothing to post: a_request_with_another_key_is_refused",
            a_domain_s_key_is_that_of_its_endpoints: "no connection, so nothing to post: a_request_with_another_key_is_refused",
            a_registration_is_accessed_through_endpoints_of_its_key: "no connection, so nothing to post: a_request_with_another_key_is_refused",
            an_endpoint_with_one_context_is_reached_by_its_name_too: "no address vector",
            a_message_for_a_context_that_is_not_there_is_dropped_and_counted: "no address vector",
            a_vector_has_room_for_peers_beside_the_bits_of_contexts: "no address vector",
            a_receive_context_is_reached_by_its_name: "a connected endpoint has one context of each kind",
            transmit_contexts_have_the_address_of_their_endpoint: "a connected endpoint has one context of each kind",
            without_a_name_the_endpoint_chooses_a_context_that_can: "a connected endpoint has one context of each kind",
            messages_of_one_sender_go_to_one_context_in_order: "a connected endpoint has one context of each kind",
            messages_wait_for_a_context_that_is_opened_later: "a connected endpoint has one context of each kind",
            a_context_has_what_it_asks_for_within_its_endpoint: "a connected endpoint has one context of each kind",
            contexts_and_their_endpoint_refuse_what_they_do_not_have: "a connected endpoint has one context of each kind",
            transmit_contexts_read_write_and_change_remote_memory: "a connected endpoint has one context of each kind",
            a_context_that_closes_leaves_the_others_alone: "a connected endpoint has one context of each kind",
            a_context_searches_cancels_and_packs_like_an_endpoint: "a connected endpoint has one context of each kind",
            a_blocked_reader_of_a_context_wakes_for_its_message: "a connected endpoint has one context of each kind",
            threads_use_contexts_of_one_endpoint_at_once: "a connected endpoint has one context of each kind",
            a_shared_receive_is_directed_at_a_peer_of_all_endpoints: "one peer for each endpoint",
            endpoints_of_a_shared_context_have_one_vector: "no address vector",
            one_vector_serves_many_endpoints: "no address vector",
            endpoints_send_by_the_numbers_of_a_shared_vector: "no address vector",
            an_id_given_with_an_insertion_is_reported_as_the_source: "no address vector",
            an_id_is_reported_once_it_is_set: "no address vector",
            sending_to_a_removed_address_is_invalid: "no address vector",
            the_source_follows_removal_and_reuse: "no address vector",
            a_number_used_again_leads_to_the_new_peer: "no address vector",
            a_direction_that_is_not_asked_for_needs_no_queue: "binds an address vector",
            triggered_operations_are_checked_when_they_are_given: "the destination is the connection's, whatever is named",
            failed_work_is_counted_or_told: "the destination is the connection's, whatever is named",
            an_unknown_peer_is_refused: "the destination is the connection's, whatever is named",
            enabling_without_a_queue_is_refused: "binds an address vector",
            enabling_without_an_address_vector_is_refused: "needs none; a_connected_endpoint_needs_an_event_queue_and_no_address_vector",
            wrong_bindings_are_refused: "binds an address vector",
            an_endpoint_without_the_capability_has_no_atomics: "one peer for each endpoint",
            both_sides_and_the_owner_count_together: "sends to itself",
            endpoints_share_a_counter: "one peer for each endpoint",
            a_peer_that_does_not_look_stops_nobody_else: "one peer for each endpoint",
            a_receiver_that_lacks_receives_stops_nobody_else: "one peer for each endpoint",
            a_peer_that_closes_and_comes_back_under_its_name_is_met_anew: "a connection ends with its peer",
            a_directed_receive_finds_an_unexpected_message_of_its_source: "one peer, so no FI_DIRECTED_RECV",
            a_directed_receive_takes_only_its_source: "one peer, so no FI_DIRECTED_RECV",
            a_primary_capability_is_granted_only_if_asked_for: "asks for FI_DIRECTED_RECV",
            costly_secondary_capabilities_are_granted_only_if_asked_for: "one peer, so no FI_SOURCE",
            an_unknown_source_is_an_error_with_its_address_on_request: "one peer, so no FI_SOURCE",
            an_unknown_source_is_not_available_until_inserted: "one peer, so no FI_SOURCE",
            the_source_is_told: "one peer, so no FI_SOURCE",
            one_queue_serves_many_endpoints: "one peer for each endpoint",
            an_error_of_one_endpoint_follows_what_the_others_have: "one peer for each endpoint",
            an_endpoint_can_send_to_itself: "a connection has two ends",
            a_peek_tells_of_a_message_and_leaves_it: "one peer, so no FI_SOURCE",
            six_a_closed_peer_is_an_error_within_a_bound: "a closed peer is FI_SHUTDOWN; closing_an_endpoint_shuts_its_peer_down",
            six_the_source_is_the_number_of_the_sender: "one peer, so no FI_SOURCE",
            an_endpoint_accesses_its_own_memory: "a connection has two ends",
            control_calls_come_from_any_thread: "one peer, so no FI_SOURCE",
            at_completion_level_endpoints_of_a_domain_run_apart: "endpoints of several threads are paired by the test's",
            a_sleeping_hub_is_woken_by_each_of_many_peers: "one peer for each endpoint",
            an_endpoint_that_comes_later_wakes_a_sleeper_too: "one peer for each endpoint",
            a_condition_variable_is_broadcast: "one peer for each endpoint",
            a_poll_set_reports_each_change_of_a_counter_once: "one peer for each endpoint",
            a_poll_set_reports_what_has_something: "one peer for each endpoint",
            a_wait_set_has_one_descriptor_for_all: "one peer for each endpoint",
            a_wait_set_times_out: "one peer for each endpoint",
            a_wait_set_wakes_for_any_member: "one peer for each endpoint",
            members_of_a_wait_set_do_not_block_alone: "one peer for each endpoint",
            one_descriptor_serves_many_endpoints: "one peer for each endpoint",
        ]);
    };
}

connected!(shm_msg: ShmConnected, skip = []);
connected!(udp_msg: UdpConnected, skip = [
    each_level_completes_at_its_step: "FI_TRANSMIT_COMPLETE needs the peer to acknowledge, so to look",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "an access that may be lost without a word would have no end",
]);
