//! The settings for timeouts and retries of connections reach the device: the simulated device returns them, as
//! ibv_query_qp would. Each case is a process with its own environment.

use std::sync::{Arc, LazyLock};

use ofi_testkit::connect::connect;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{ConnectedOver, device, hints};

type Added = LazyLock<Arc<SimulatedDevice>>;

static TIMED: Added = LazyLock::new(|| device("timed0", Plan::default()));
/// A device whose kernel has no option for acknowledgement times.
static UNTIMED: Added = LazyLock::new(|| device("untimed0", Plan { untimed: true, ..Plan::default() }));

/// Reliable datagrams; every byte goes over the device.
struct Datagrams(fn() -> Hints);

impl Kit for Datagrams {
    fn hints(&self) -> Hints {
        (self.0)()
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

fn kits(device: &str) -> (&'static Added, [&'static dyn Kit; 2]) {
    fn timed() -> Hints {
        LazyLock::force(&TIMED);
        hints("timed0")
    }
    fn untimed() -> Hints {
        LazyLock::force(&UNTIMED);
        hints("untimed0")
    }
    match device {
        "untimed0" => (&UNTIMED, [&ConnectedOver(untimed), &Datagrams(untimed)]),
        _ => (&TIMED, [&ConnectedOver(timed), &Datagrams(timed)]),
    }
}

/// Prints the acknowledgement timeout code, both numbers of retries, and the RNR timer code, at both ends of a
/// connection: of connected endpoints, and of reliable datagrams.
pub fn timed(line: &mut Line, arguments: &[String]) {
    let (device, [connected, datagrams]) = kits(&arguments[0]);
    let a = connected.opening().open_disabled().unwrap();
    let b = connect(&a, connected.opening()).unwrap();
    let pair = Pair::of(datagrams.opening().open(), datagrams.opening().open());
    pair.warm_up();
    let at = |side: &TestEndpoint| {
        let all = device.timers(side.name().to_socket_addr().unwrap());
        let [one] = all[..] else { panic!("{all:?}") };
        [one.ack_timeout, one.retries, one.rnr_retries, one.rnr_timer]
    };
    // The accepting end of a connected endpoint has the address of its listener.
    line.say(format!("{:?} {:?}", at(&a), [at(&pair.a), at(&pair.b)]));
    drop(b);
}

/// Prints the reason of a refusal.
pub fn unusable(line: &mut Line, _: &[String]) {
    let refused = |kit: &dyn Kit| {
        let error = kit.getinfo(&kit.usual()).unwrap_err();
        let refusal = error.refusals().iter().find(|refusal| refusal.field == "settings").expect("a refusal");
        format!("{:?} {} {}", error.errno(), refusal.wanted, refusal.offered)
    };
    let (_, [connected, datagrams]) = kits("timed0");
    assert_eq!(refused(connected), refused(datagrams));
    line.say(refused(connected));
}

#[track_caller]
fn says(role: &str, argument: &str, environment: &[(&str, &str)], expected: &str) {
    let mut child = Child::start_with(role, &[argument], environment);
    child.line.expect(expected);
    child.finish();
}

const ALL: [(&str, &str); 4] = [
    ("FI_VERBS_ACK_TIMEOUT", "14"),
    ("FI_VERBS_RETRY_COUNT", "3"),
    ("FI_VERBS_RNR_RETRY_COUNT", "5"),
    ("FI_VERBS_MIN_RNR_TIMER", "8"),
];

#[test]
fn without_settings_times_are_the_kernel_s_and_retries_those_of_the_device() {
    says("timed", "timed0", &[], "[0, 7, 7, 12] [[0, 6, 7, 12], [0, 6, 7, 12]]");
}

#[test]
fn settings_say_how_long_a_connection_waits_for_its_peer() {
    says("timed", "timed0", &ALL, "[14, 3, 5, 8] [[14, 3, 5, 8], [14, 3, 5, 8]]");
}

/// The other attributes are still set.
#[test]
fn a_kernel_without_acknowledgement_times_keeps_its_own() {
    says("timed", "untimed0", &ALL, "[0, 3, 5, 8] [[0, 3, 5, 8], [0, 3, 5, 8]]");
}

#[test]
fn times_and_retries_that_cannot_be_used_are_refused_by_name() {
    for (name, value, why) in [
        ("FI_VERBS_ACK_TIMEOUT", "32", "it must lie between 0 and 31"),
        ("FI_VERBS_RETRY_COUNT", "8", "it must lie between 0 and 7"),
        ("FI_VERBS_RNR_RETRY_COUNT", "8", "it must lie between 0 and 7"),
        ("FI_VERBS_MIN_RNR_TIMER", "32", "it must lie between 0 and 31"),
    ] {
        says("unusable", "", &[(name, value)], &format!("FI_ENODATA(61) {name}={value} {why}"));
    }
}
