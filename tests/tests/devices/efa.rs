//! The conformance suite over provider `efa`, on a simulated fabric that reorders packets and is not always
//! ready.

use std::sync::{Arc, Once};

use ofi::raw::{EpType, Hints};
use ofi_testkit::Kit;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

mod batches;
mod contexts;
mod counted_anew;
mod device;
mod direct;
mod dmabuf;
mod lives;
mod logs;
mod losses;
mod native;
pub mod options;
mod pauses;
mod raw;
pub mod raw_peer;
mod shares;
mod troubles;

/// Reliable datagram endpoints; every byte goes over the device.
struct EfaPair;

impl Kit for EfaPair {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| {
            let device = SimulatedDevice::new("simulated0", Plan::default());
            ofi_efa::srd::add(Arc::new(Handle(device)));
            // Refused if the provider is already registered.
            let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
        });
        Hints::new().provider("efa").ep_type(EpType::Rdm)
    }

    fn shared_memory(&self) -> bool {
        false
    }

    fn names_early(&self) -> bool {
        false
    }
}

/// The same, with shared memory between the endpoints, which is the default.
struct EfaNear;

impl Kit for EfaNear {
    fn hints(&self) -> Hints {
        EfaPair.hints()
    }

    fn names_early(&self) -> bool {
        EfaPair.names_early()
    }
}

/// The suite without the features that endpoints of this provider lack.
macro_rules! on_efa {
    ($name:ident: $kit:expr, skip = []) => {
ofi_testkit::conformance!($name: $kit, skip = [
    what_a_closing_context_has_under_way_goes_on_without_its_memory: "such operations are withdrawn with their context, as the device accesses their memory",
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
    a_connection_carries_data_both_ways_and_then_messages: "no FI_EP_MSG",
    a_connected_endpoint_reads_and_writes_its_peer_s_memory: "no FI_EP_MSG",
    connection_data_is_cut_to_the_size_that_is_told: "no FI_EP_MSG",
    a_rejection_is_an_error_with_its_data: "no FI_EP_MSG",
    a_request_that_is_dropped_is_refused: "no FI_EP_MSG",
    requests_over_the_backlog_are_refused: "no FI_EP_MSG",
    nobody_listening_refuses: "no FI_EP_MSG",
    a_listener_that_closes_refuses_what_waits: "no FI_EP_MSG",
    a_listener_that_closes_after_an_acceptance_undoes_nothing: "no FI_EP_MSG",
    a_request_that_was_read_outlives_its_listener: "no FI_EP_MSG",
    nothing_is_sent_before_the_connection_but_receives_are_posted: "no FI_EP_MSG",
    shutdown_follows_all_that_was_sent: "no FI_EP_MSG",
    both_ends_may_shut_down_and_both_are_told_once: "no FI_EP_MSG",
    nothing_is_told_of_an_endpoint_that_was_closed: "no FI_EP_MSG",
    shutdown_ends_what_is_outstanding: "no FI_EP_MSG",
    closing_an_endpoint_shuts_its_peer_down: "no FI_EP_MSG",
    a_caller_that_closes_while_it_waits_fails_the_acceptance: "no FI_EP_MSG",
    one_listener_serves_many_callers_in_any_domain: "no FI_EP_MSG",
    a_passive_endpoint_needs_its_queue_and_has_its_name: "no FI_EP_MSG",
    a_connected_endpoint_needs_an_event_queue_and_no_address_vector: "no FI_EP_MSG",
    a_connected_endpoint_without_an_event_queue_has_its_domain_s: "no FI_EP_MSG",
    a_blocked_reader_of_events_wakes_for_a_connection: "no FI_EP_MSG",
    connections_come_and_go: "no FI_EP_MSG",
    an_endpoint_keeps_the_name_that_it_has_before_enabling: "the device names the queue pair, which options of the endpoint change",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "no FI_EP_DGRAM",
    messages_and_accesses_share_a_datagram_endpoint: "no FI_EP_DGRAM",
    datagrams_carry_messages_and_their_source: "no FI_EP_DGRAM",
    a_datagram_has_a_bounded_size: "no FI_EP_DGRAM",
    datagrams_have_no_atomics_and_no_collectives: "no FI_EP_DGRAM",
    a_group_s_members_receive_what_is_sent_to_it: "no FI_EP_DGRAM",
    datagrams_that_nobody_receives_are_dropped_and_counted: "no FI_EP_DGRAM",
    a_sender_of_datagrams_never_waits_for_its_receiver: "no FI_EP_DGRAM",
    a_datagram_to_nobody_completes: "no FI_EP_DGRAM",
    a_datagram_longer_than_its_receive_is_an_error: "no FI_EP_DGRAM",
    a_name_in_use_is_refused: "the device chooses names",
    a_name_is_chosen_before_enabling_only: "the device chooses names",
    a_name_of_another_format_is_refused: "the device chooses names",
    a_peer_that_closes_and_comes_back_under_its_name_is_met_anew: "the device chooses names",
    the_source_address_of_the_hints_is_the_name: "the device chooses names",
    services_are_inserted_by_name: "names do not resolve to addresses of this fabric",
]);
    };
}

on_efa!(efa: EfaPair, skip = []);
on_efa!(efa_near: EfaNear, skip = []);

#[test]
fn peers_of_one_host_are_met_over_shared_memory_unless_it_is_forbidden() {
    super::near::check(&EfaNear, &EfaPair);
}
