//! Unreliable datagrams of provider `verbs` on a simulated device: their cases of the suite, the wire format,
//! the cost, and the eviction of peers. Tests that need a real device are in `verbs.rs`.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once, PoisonError};

use ofi::raw::{AddrFormat, Caps, EpType, Hints};
use ofi_testkit::rc::{Handle, Plan, SimulatedDevice};
use ofi_testkit::{Kit, TestEndpoint};

#[path = "../../verbs/datagram_costs.rs"]
mod datagram_costs;
#[path = "../../verbs/datagram_events.rs"]
mod datagram_events;
#[path = "../../verbs/datagram_hostile.rs"]
mod datagram_hostile;
#[path = "../../verbs/datagram_model.rs"]
mod datagram_model;
#[path = "../../verbs/datagram_peers.rs"]
mod datagram_peers;
#[path = "../../verbs/datagram_prefix.rs"]
mod datagram_prefix;
#[path = "../../verbs/groups.rs"]
mod groups;
#[path = "../../verbs/joins.rs"]
pub mod joins;

#[path = "../../verbs/naming.rs"]
pub mod naming;

/// Adds a device to the provider.
fn add(device: &Arc<SimulatedDevice>) {
    ofi_verbs::rc::add(Arc::new(Handle(Arc::clone(device))));
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(Arc::new(ofi_verbs::VerbsProvider));
}

fn hints(device: &str) -> Hints {
    Hints::new().provider("verbs").ep_type(EpType::Dgram).addr_format(AddrFormat::IbUd).domain(device)
}

const CAPS: Caps = Caps::MSG.union(Caps::SOURCE);

/// A device that makes progress only when polled. A process has at most three devices.
fn driven() -> (Arc<SimulatedDevice>, MutexGuard<'static, ()>) {
    static ALONE: Mutex<()> = Mutex::new(());
    static DEVICE: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
        let device = SimulatedDevice::driven("driven0", Plan::default());
        add(&device);
        device
    });
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    (Arc::clone(&DEVICE), alone)
}

/// Endpoints on the device of [`driven`].
struct Driven;

impl Kit for Driven {
    fn hints(&self) -> Hints {
        hints("driven0")
    }

    fn usual_caps(&self) -> Caps {
        CAPS
    }
}

/// The number of an endpoint's queue pair.
fn qp(side: &TestEndpoint) -> u32 {
    u32::from_ne_bytes(side.name().bytes()[16..20].try_into().unwrap())
}

/// Hints for the members of a multicast group: all on one device, as two simulated devices cannot reach each
/// other.
fn group_hints(_device: usize) -> Hints {
    Quick.hints()
}

static DEVICE: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    let device = SimulatedDevice::new("datagrams0", Plan::default());
    add(&device);
    device
});

/// Endpoints on a device without faults or delays.
struct Quick;

impl Kit for Quick {
    fn hints(&self) -> Hints {
        LazyLock::force(&DEVICE);
        hints("datagrams0")
    }

    fn usual_caps(&self) -> Caps {
        CAPS
    }
}

/// Endpoints on a device with few requests, completions and routes.
struct Small;

impl Kit for Small {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| {
            let plan = Plan { requests: 8, completions: 12, routes: 2, ..Plan::default() };
            add(&SimulatedDevice::new("small0", plan));
        });
        hints("small0")
    }

    fn usual_caps(&self) -> Caps {
        CAPS
    }
}

/// The suite's cases of datagrams, without those that count drops: a device drops datagrams silently.
macro_rules! datagrams {
    ($name:ident: $kit:expr, [$($case:ident)*]) => {
        mod $name {
            use super::*;

            $(#[test]
            fn $case() {
                ofi_testkit::conformance::datagram::$case(&$kit);
            })*
        }
    };
}

datagrams!(quick: Quick, [
    datagrams_carry_messages_and_their_source
    a_datagram_has_a_bounded_size
    datagrams_have_no_atomics_and_no_collectives
    a_sender_of_datagrams_never_waits_for_its_receiver
    a_datagram_to_nobody_completes
    a_datagram_longer_than_its_receive_is_an_error
]);

datagrams!(small: Small, [
    datagrams_carry_messages_and_their_source
    a_sender_of_datagrams_never_waits_for_its_receiver
    a_datagram_to_nobody_completes
    a_datagram_longer_than_its_receive_is_an_error
]);
