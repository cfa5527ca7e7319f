//! The conformance suite over an RDMA device, which `cargo xtask rdma` has.

use ofi::raw::{AddrFormat, EpType, Hints};
use testkit::Kit;

#[path = "../verbs/datagram.rs"]
mod datagram;
#[path = "../verbs/hostile.rs"]
mod hostile;
#[path = "../verbs/loss.rs"]
mod loss;
#[path = "../verbs/native.rs"]
mod native;

use loss::victim;

testkit::roles!(victim);

/// Reliable datagram endpoints, by IPv4.
struct VerbsPair;

impl Kit for VerbsPair {
    fn hints(&self) -> Hints {
        Hints::new().provider("verbs").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn)
    }
}

testkit::conformance!(verbs: VerbsPair, skip = [
    a_region_counts_from_the_moment_it_is_bound: "fails: a peer that had the device's key has its next access refused; see docs/next.md",
    both_sides_and_the_owner_count_together: "fails in emulation: 3,400 atomics at once take longer than the 10 s that are waited",
    many_atomics_at_once_are_executed_once_each: "fails in emulation: 3,000 atomics at once take longer than the 10 s that are waited",
    a_connection_of_one_key_comes_about: "no authorization keys",
    a_domain_s_key_is_that_of_its_endpoints: "no authorization keys",
    a_key_stays_in_its_vector_while_anything_is_of_it: "no authorization keys",
    a_registration_is_accessed_through_endpoints_of_its_key: "no authorization keys",
    a_peer_with_another_key_is_refused: "no authorization keys",
    a_request_with_another_key_is_refused: "no authorization keys",
    a_vector_s_key_is_that_of_its_endpoints_and_addresses: "no authorization keys",
    endpoints_of_one_key_talk: "no authorization keys",
    both_may_begin_and_both_are_refused: "no authorization keys",
    no_key_fits_only_no_key: "no authorization keys",
    services_are_inserted_by_name: "names loopback, which has no RDMA device",
    a_connection_carries_data_both_ways_and_then_messages: "no FI_EP_MSG yet",
    a_connected_endpoint_reads_and_writes_its_peer_s_memory: "no FI_EP_MSG yet",
    connection_data_is_cut_to_the_size_that_is_told: "no FI_EP_MSG yet",
    a_rejection_is_an_error_with_its_data: "no FI_EP_MSG yet",
    a_request_that_is_dropped_is_refused: "no FI_EP_MSG yet",
    requests_over_the_backlog_are_refused: "no FI_EP_MSG yet",
    nobody_listening_refuses: "no FI_EP_MSG yet",
    a_listener_that_closes_refuses_what_waits: "no FI_EP_MSG yet",
    a_listener_that_closes_after_an_acceptance_undoes_nothing: "no FI_EP_MSG yet",
    nothing_is_sent_before_the_connection_but_receives_are_posted: "no FI_EP_MSG yet",
    shutdown_follows_all_that_was_sent: "no FI_EP_MSG yet",
    both_ends_may_shut_down_and_both_are_told_once: "no FI_EP_MSG yet",
    nothing_is_told_of_an_endpoint_that_was_closed: "no FI_EP_MSG yet",
    shutdown_ends_what_is_outstanding: "no FI_EP_MSG yet",
    closing_an_endpoint_shuts_its_peer_down: "no FI_EP_MSG yet",
    a_caller_that_closes_while_it_waits_fails_the_acceptance: "no FI_EP_MSG yet",
    one_listener_serves_many_callers_in_any_domain: "no FI_EP_MSG yet",
    a_passive_endpoint_needs_its_queue_and_has_its_name: "no FI_EP_MSG yet",
    a_connected_endpoint_needs_an_event_queue_and_no_address_vector: "no FI_EP_MSG yet",
    a_connected_endpoint_without_an_event_queue_has_its_domain_s: "no FI_EP_MSG yet",
    a_blocked_reader_of_events_wakes_for_a_connection: "no FI_EP_MSG yet",
    connections_come_and_go: "no FI_EP_MSG yet",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    messages_and_accesses_share_a_datagram_endpoint: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    datagrams_carry_messages_and_their_source: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    a_datagram_has_a_bounded_size: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    datagrams_have_no_atomics_and_no_collectives: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    a_group_s_members_receive_what_is_sent_to_it: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    datagrams_that_nobody_receives_are_dropped_and_counted: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    a_sender_of_datagrams_never_waits_for_its_receiver: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    a_datagram_to_nobody_completes: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
    a_datagram_longer_than_its_receive_is_an_error: "datagrams of the device have other addresses, and 4 bytes of data: tests/verbs/datagram.rs",
]);
