//! The conformance suite over an RDMA device, which `cargo xtask rdma` provides.

use ofi::raw::{AddrFormat, Address, Caps, EpType, Hints, Mode};
use ofi_testkit::Kit;

#[path = "../verbs/atomics.rs"]
mod atomics;
#[path = "../verbs/connected.rs"]
mod connected;
#[path = "../verbs/datagram.rs"]
mod datagram;
#[path = "../verbs/groups.rs"]
mod groups;
#[path = "../verbs/hostile.rs"]
mod hostile;
#[path = "../verbs/limits.rs"]
mod limits;
#[path = "../verbs/link.rs"]
mod link;
#[path = "../verbs/listed.rs"]
mod listed;
#[path = "../verbs/loss.rs"]
mod loss;
#[path = "../verbs/native.rs"]
mod native;
#[path = "../near.rs"]
mod near;
#[path = "../verbs/nic.rs"]
mod nic;
#[path = "../verbs/safe.rs"]
mod safe;
#[path = "../verbs/shared_receive.rs"]
mod shared_receive;
#[path = "../steady.rs"]
mod steady;
#[path = "../verbs/strangers.rs"]
mod strangers;

use limits::{bounded, sized};
use link::{cut, outlast};
use loss::victim;
use safe::{served, waited};
use strangers::{asker, caller};

#[path = "suites/connected.rs"]
#[macro_use]
mod suite;
#[path = "suites/verbs_connected.rs"]
#[macro_use]
mod verbs_suite;

ofi_testkit::roles!(victim, caller, bounded, served, waited, sized, asker, cut, outlast);

/// Reliable datagram endpoints with IPv4 addresses; every byte goes over the device.
struct VerbsPair;

impl Kit for VerbsPair {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn);
        hints.mode(Mode::RX_CQ_DATA) // of connected endpoints
    }

    fn connected_caps(&self) -> Caps {
        Caps::MSG | Caps::RMA
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// Connected endpoints with IPv4 addresses.
struct ConnectedPair;

impl Kit for ConnectedPair {
    fn hints(&self) -> Hints {
        let hints = Hints::new().provider("verbs").ep_type(EpType::Msg).addr_format(AddrFormat::SockaddrIn);
        hints.mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        Caps::MSG | Caps::RMA
    }

    fn connected_caps(&self) -> Caps {
        self.usual_caps()
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

/// Hints for the members of a multicast group, at the two ends of the machine's link.
fn group_hints(device: usize) -> Hints {
    let mut name = [0; 32];
    name[10..16].copy_from_slice(&[0xFF, 0xFF, 10, 78, 0, 1 + device as u8]);
    name[22..24].fill(0xFF);
    let hints = Hints::new().provider("verbs").ep_type(EpType::Dgram).addr_format(AddrFormat::IbUd);
    hints.src_addr(Address::new(AddrFormat::IbUd, &name))
}

/// The same as [`VerbsPair`], with shared memory between the endpoints, which is the default.
struct VerbsNear;

impl Kit for VerbsNear {
    fn hints(&self) -> Hints {
        VerbsPair.hints()
    }
}

ofi_testkit::conformance!(verbs: VerbsPair, skip = [
    both_sides_and_the_owner_count_together: "fails in emulation: 3,400 atomics at once take longer than the limit of 10 s",
    many_atomics_at_once_are_executed_once_each: "fails in emulation: 3,000 atomics at once take longer than the limit of 10 s",
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
    services_are_inserted_by_name: "loopback has no RDMA device",
    shutdown_follows_all_that_was_sent: "a message without a receive waits at its sender (RNR): connected.rs",
    shutdown_ends_what_is_outstanding: "has tags: connected.rs",
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    messages_and_accesses_share_a_datagram_endpoint: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    datagrams_carry_messages_and_their_source: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    a_datagram_has_a_bounded_size: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    datagrams_have_no_atomics_and_no_collectives: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    a_group_s_members_receive_what_is_sent_to_it: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    datagrams_that_nobody_receives_are_dropped_and_counted: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    a_sender_of_datagrams_never_waits_for_its_receiver: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    a_datagram_to_nobody_completes: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
    a_datagram_longer_than_its_receive_is_an_error: "datagrams of the device have other addresses and 4 bytes of remote CQ data: tests/verbs/datagram.rs",
]);

verbs_connected!(verbs_msg: ConnectedPair, skip = [
    another_endpoint_type_is_refused_by_name: "datagrams have addresses of another format",
]);

#[test]
fn peers_of_one_host_are_met_over_shared_memory_unless_it_is_forbidden() {
    near::check(&VerbsNear, &VerbsPair);
}
