//! The conformance suite over provider `verbs`' reliable datagrams, on a simulated fabric whose receivers are
//! not always ready, and which reports completions late. Tests that need a real device are in `verbs.rs`.

use std::sync::{Arc, LazyLock, Once};

use ofi::raw::{AddrFormat, Caps, EpType, Hints, Mode};
use ofi_testkit::Kit;
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};

#[path = "../../verbs/atomics.rs"]
mod atomics;
#[path = "../../verbs/awaited.rs"]
mod awaited;
#[path = "../../verbs/connected.rs"]
mod connected;
#[path = "../../verbs/costs.rs"]
mod costs;
#[path = "../../verbs/device_events.rs"]
mod device_events;
#[path = "../../verbs/lacking.rs"]
mod lacking;
#[path = "../../verbs/least.rs"]
mod least;
#[path = "../../verbs/lockable.rs"]
mod lockable;
#[path = "../../verbs/logs.rs"]
mod logs;
#[path = "../../verbs/native.rs"]
mod native;
#[path = "../../verbs/raw.rs"]
mod raw;
#[path = "../../verbs/receives.rs"]
mod receives;
#[path = "../../verbs/room.rs"]
pub mod room;
#[path = "../../verbs/safe.rs"]
pub mod safe;
#[path = "../../verbs/settings.rs"]
pub mod settings;
#[path = "../../verbs/shared_receive.rs"]
mod shared_receive;
#[path = "../../verbs/sharing.rs"]
mod sharing;
#[path = "../../verbs/silent.rs"]
mod silent;
#[path = "../../verbs/sources.rs"]
mod sources;
#[path = "../../verbs/timers.rs"]
pub mod timers;
#[path = "../../verbs/unasked.rs"]
mod unasked;
#[path = "../../verbs/unreported.rs"]
mod unreported;
#[path = "../suites/connected.rs"]
#[macro_use]
mod suite;
#[path = "../suites/verbs_connected.rs"]
#[macro_use]
mod verbs_suite;
#[path = "../../verbs/troubles.rs"]
mod troubles;

/// Adds a device to the provider.
fn device(name: &str, plan: Plan) -> Arc<SimulatedDevice> {
    let device = SimulatedDevice::new(name, plan);
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(&device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
    device
}

fn hints(device: &str) -> Hints {
    Hints::new().provider("verbs").ep_type(EpType::Rdm).addr_format(AddrFormat::SockaddrIn).domain(device)
}

static DEVICE: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| device("simulated0", Plan::default()));

/// The capabilities of connected endpoints.
const CONNECTED: Caps = Caps::MSG.union(Caps::RMA);

/// Reliable datagram endpoints; every byte goes over a device without faults or delays.
struct VerbsPair;

impl Kit for VerbsPair {
    fn hints(&self) -> Hints {
        LazyLock::force(&DEVICE);
        hints("simulated0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// The same over a device with late completions, late events, and receivers that are not always ready.
struct Unruly;

impl Kit for Unruly {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| {
            device("simulated1", Plan { not_ready: 1, late: 10, slow: 5, ..Plan::default() });
        });
        hints("simulated1").mode(Mode::RX_CQ_DATA) // of connected endpoints
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// A device that holds one connection: an endpoint with several peers closes each connection as soon as it is
/// idle.
struct Retiring;

impl Kit for Retiring {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| {
            device("retiring0", Plan { late: 10, connections: 1, ..Plan::default() });
        });
        hints("retiring0").mode(Mode::RX_CQ_DATA) // of connected endpoints
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// The same, with shared memory between the endpoints, which is the default.
struct VerbsNear;

impl Kit for VerbsNear {
    fn hints(&self) -> Hints {
        VerbsPair.hints().mode(Mode::RX_CQ_DATA) // of connected endpoints
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }
}

/// Connected endpoints over the device without faults or delays.
struct ConnectedPair;

impl Kit for ConnectedPair {
    fn hints(&self) -> Hints {
        VerbsPair.hints().ep_type(EpType::Msg).mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        CONNECTED
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

/// Connected endpoints over a device of one test; the function adds the device and returns hints for it.
struct ConnectedOver(fn() -> Hints);

impl Kit for ConnectedOver {
    fn hints(&self) -> Hints {
        (self.0)().ep_type(EpType::Msg).mode(Mode::RX_CQ_DATA)
    }

    fn usual_caps(&self) -> Caps {
        CONNECTED
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

/// Connected endpoints over the device of [`Unruly`].
struct UnrulyConnected;

impl Kit for UnrulyConnected {
    fn hints(&self) -> Hints {
        Unruly.hints().ep_type(EpType::Msg)
    }

    fn usual_caps(&self) -> Caps {
        CONNECTED
    }

    fn connected_caps(&self) -> Caps {
        CONNECTED
    }

    fn moves_by_itself(&self) -> bool {
        true
    }
}

/// The suite without the features that endpoints of this provider lack.
macro_rules! on_verbs {
    ($name:ident: $kit:expr, skip = [$($more:tt)*]) => {
ofi_testkit::conformance!($name: $kit, skip = [
    another_endpoint_type_is_refused_by_name: "datagrams have addresses of another format",
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
    a_datagram_endpoint_reads_and_writes_its_peer_s_memory: "other addresses: verbs_datagrams.rs",
    messages_and_accesses_share_a_datagram_endpoint: "other addresses: verbs_datagrams.rs",
    datagrams_carry_messages_and_their_source: "other addresses: verbs_datagrams.rs",
    a_datagram_has_a_bounded_size: "other addresses: verbs_datagrams.rs",
    datagrams_have_no_atomics_and_no_collectives: "other addresses: verbs_datagrams.rs",
    a_group_s_members_receive_what_is_sent_to_it: "other addresses: verbs_datagrams.rs",
    datagrams_that_nobody_receives_are_dropped_and_counted: "other addresses: verbs_datagrams.rs",
    a_sender_of_datagrams_never_waits_for_its_receiver: "other addresses: verbs_datagrams.rs",
    a_datagram_to_nobody_completes: "other addresses: verbs_datagrams.rs",
    a_datagram_longer_than_its_receive_is_an_error: "other addresses: verbs_datagrams.rs",
    shutdown_follows_all_that_was_sent: "a message without a receive waits at its sender",
    shutdown_ends_what_is_outstanding: "has tags",
    services_are_inserted_by_name: "loopback has no simulated device",
    $($more)*
]);
    };
}

on_verbs!(verbs: Unruly, skip = []);
verbs_connected!(verbs_msg: ConnectedPair, skip = [
    another_endpoint_type_is_refused_by_name: "datagrams have addresses of another format",
]);
verbs_connected!(verbs_msg_unruly: UnrulyConnected, skip = [
    another_endpoint_type_is_refused_by_name: "datagrams have addresses of another format",
]);
on_verbs!(verbs_retiring: Retiring, skip = [
    a_member_that_leaves_or_ends_fails_the_others: "the loss of a member without an open connection shows as a refused connection",
    a_member_may_end_when_its_part_is_done: "the loss of a member without an open connection shows as a refused connection",
    a_poll_set_reports_each_change_of_a_counter_once: "a sender that makes no more calls does not reconnect",
    a_poll_set_reports_what_has_something: "a sender that makes no more calls does not reconnect",
    a_sleeping_hub_is_woken_by_each_of_many_peers: "a sender that makes no more calls does not reconnect",
    a_wait_set_has_one_descriptor_for_all: "a sender that makes no more calls does not reconnect",
    a_wait_set_wakes_for_any_member: "a sender that makes no more calls does not reconnect",
]);
on_verbs!(verbs_near: VerbsNear, skip = []);

#[test]
fn peers_of_one_host_are_met_over_shared_memory_unless_it_is_forbidden() {
    super::near::check(&VerbsNear, &VerbsPair);
}
