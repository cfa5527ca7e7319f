//! The cases that the suite skips over provider `tcp`, with its sockets alone and with shared memory.

/// The suite over reliable datagram endpoints, without the given cases.
macro_rules! over_tcp {
    ($name:ident: $kit:expr, skip = [$($case:ident: $reason:literal),* $(,)?]) => {
        ofi_testkit::conformance!($name: $kit, skip = [
            $($case: $reason,)*
            a_blocked_reader_of_a_context_wakes_for_its_message: "C's protocol names no contexts, so there are no scalable endpoints",
            a_context_has_what_it_asks_for_within_its_endpoint: "C's protocol names no contexts, so there are no scalable endpoints",
            a_context_searches_cancels_and_packs_like_an_endpoint: "C's protocol names no contexts, so there are no scalable endpoints",
            a_context_that_closes_leaves_the_others_alone: "C's protocol names no contexts, so there are no scalable endpoints",
            a_receive_context_is_reached_by_its_name: "C's protocol names no contexts, so there are no scalable endpoints",
            an_endpoint_with_a_single_context_is_used_without_naming_it: "C's protocol names no contexts, so there are no scalable endpoints",
            contexts_and_their_endpoint_refuse_what_they_do_not_have: "C's protocol names no contexts, so there are no scalable endpoints",
            contexts_take_directions_and_names_for_granted: "C's protocol names no contexts, so there are no scalable endpoints",
            messages_of_one_sender_go_to_one_context_in_order: "C's protocol names no contexts, so there are no scalable endpoints",
            messages_wait_for_a_context_that_is_opened_later: "C's protocol names no contexts, so there are no scalable endpoints",
            selective_contexts_complete_only_on_request: "C's protocol names no contexts, so there are no scalable endpoints",
            threads_use_contexts_of_one_endpoint_at_once: "C's protocol names no contexts, so there are no scalable endpoints",
            transmit_contexts_have_the_address_of_their_endpoint: "C's protocol names no contexts, so there are no scalable endpoints",
            transmit_contexts_read_write_and_change_remote_memory: "C's protocol names no contexts, so there are no scalable endpoints",
            what_a_closing_context_has_under_way_goes_on_without_its_memory: "C's protocol names no contexts, so there are no scalable endpoints",
            without_a_name_the_endpoint_chooses_a_context_that_can: "C's protocol names no contexts, so there are no scalable endpoints",
            a_message_for_a_context_that_is_not_there_is_dropped_and_counted: "C's protocol names no contexts, so there are no scalable endpoints",
            a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "no FI_EP_DGRAM",
            a_datagram_has_a_bounded_size: "no FI_EP_DGRAM",
            a_datagram_longer_than_its_receive_is_an_error: "no FI_EP_DGRAM",
            a_datagram_to_nobody_completes: "no FI_EP_DGRAM",
            a_sender_of_datagrams_never_waits_for_its_receiver: "no FI_EP_DGRAM",
            datagrams_carry_messages_and_their_source: "no FI_EP_DGRAM",
            datagrams_that_nobody_receives_are_dropped_and_counted: "no FI_EP_DGRAM",
            messages_and_accesses_share_a_datagram_endpoint: "no FI_EP_DGRAM",
            an_info_with_collectives_opens_contexts_that_refuse_them: "C's protocol names no contexts, so there are no scalable endpoints",
        ]);
    };
}

/// The suite over connected endpoints, without the given cases.
macro_rules! over_connected_tcp {
    ($name:ident: $kit:expr, skip = [$($case:ident: $reason:literal),* $(,)?]) => {
        connected!($name: $kit, skip = [
            $($case: $reason,)*
            a_name_in_use_is_refused: "a passive endpoint may have the name of an earlier one whose connections go on",
            a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "no FI_EP_DGRAM",
            a_datagram_has_a_bounded_size: "no FI_EP_DGRAM",
            a_datagram_longer_than_its_receive_is_an_error: "no FI_EP_DGRAM",
            a_datagram_to_nobody_completes: "no FI_EP_DGRAM",
            a_sender_of_datagrams_never_waits_for_its_receiver: "no FI_EP_DGRAM",
            datagrams_carry_messages_and_their_source: "no FI_EP_DGRAM",
            datagrams_that_nobody_receives_are_dropped_and_counted: "no FI_EP_DGRAM",
            messages_and_accesses_share_a_datagram_endpoint: "no FI_EP_DGRAM",
        ]);
    };
}
