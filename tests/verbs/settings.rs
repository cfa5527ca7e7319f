//! The settings of connected endpoints that have C's names: their effect on fi_getinfo, and on the attributes of queue
//! pairs. Each case is a process with its own environment.

use std::sync::{Arc, LazyLock};

use ofi_testkit::connect::connect;
use ofi_testkit::prelude::*;
use ofi_testkit::process::{Child, Line};
use ofi_testkit::rc::{Plan, SimulatedDevice};

use super::{ConnectedOver, device, hints};

/// The device's limits: lengths of queues, and bytes of an inline request.
const QUEUE: usize = 600;
const INLINE: usize = 400;

static DEVICE: LazyLock<Arc<SimulatedDevice>> =
    LazyLock::new(|| device("settings0", Plan { requests: QUEUE, inline: INLINE, ..Plan::default() }));

const SET: ConnectedOver = ConnectedOver(|| {
    LazyLock::force(&DEVICE);
    hints("settings0")
});

/// The granted sizes and pieces of both directions, for hints that request this many (0: none).
fn answered(size: usize, pieces: usize) -> Result<[usize; 4]> {
    let kit: &dyn Kit = &SET;
    let mut hints = kit.usual();
    let of = &mut hints.info;
    (of.tx_attr.size, of.rx_attr.size) = (size, size);
    (of.tx_attr.iov_limit, of.rx_attr.iov_limit) = (pieces, pieces);
    let info = kit.getinfo(&hints)?.remove(0);
    let (tx, rx) = (&info.tx_attr, &info.rx_attr);
    Ok([tx.size, rx.size, tx.iov_limit, rx.iov_limit])
}

/// The number of messages that an endpoint accepts for a peer without a receive, and the inline lengths of its
/// requests.
fn taken() -> (usize, Vec<usize>) {
    let kit: &dyn Kit = &SET;
    let a = kit.opening().open_disabled().unwrap();
    let b = connect(&a, kit.opening()).unwrap();
    let from = Memory::patterned(1024, 1);
    let lengths = [31, 33, 255, 257, 399, 401];
    let name = a.name().to_socket_addr().unwrap();
    for len in lengths {
        b.receive(&Memory::new(len)).context(2).post().unwrap();
        a.out(FiAddr::UNSPEC, from.slice(..len)).context(1).send().unwrap();
        wait::drive(&[&a, &b], "a message", || b.next_of(2)).done();
        wait::drive(&[&a, &b], "its end", || a.next_of(1)).done();
    }
    let (requests, _) = DEVICE.take_log(name);
    let carried = requests.iter().filter(|request| request.inline).map(|request| request.len).collect();
    let posted = (0..2 * QUEUE).take_while(|_| a.out(FiAddr::UNSPEC, &from).context(1).send().is_ok());
    (posted.count(), carried)
}

/// Prints the effect of its environment.
pub fn sized(line: &mut Line, _: &[String]) {
    line.say(format!("{:?} {:?}", answered(0, 0).unwrap(), taken()));
}

/// Prints the reason of a refusal.
pub fn refused(line: &mut Line, _: &[String]) {
    let kit: &dyn Kit = &SET;
    let error = answered(0, 0).unwrap_err();
    let refusal = error.refusals().iter().find(|refusal| refusal.field == "settings").expect("a refusal");
    // The setting does not affect endpoints of other types.
    let rdm = kit.getinfo(&kit.usual().ep_type(EpType::Rdm)).is_ok();
    line.say(format!("{:?} {} {}: {rdm}", error.errno(), refusal.wanted, refusal.offered));
}

#[track_caller]
fn says(role: &str, environment: &[(&str, &str)], expected: &str) {
    let mut child = Child::start_with(role, &[], environment);
    child.line.expect(expected);
    child.finish();
}

#[test]
fn without_settings_connected_endpoints_have_c_s_defaults() {
    says("sized", &[], "[384, 384, 4, 4] (384, [31, 33, 255])");
}

#[test]
fn settings_say_how_much_a_connected_endpoint_has_outstanding() {
    let sizes = [("FI_VERBS_TX_SIZE", "5"), ("FI_VERBS_RX_SIZE", "7")];
    let pieces = [("FI_VERBS_TX_IOV_LIMIT", "2"), ("FI_VERBS_RX_IOV_LIMIT", "3")];
    let all = [&sizes[..], &pieces, &[("FI_VERBS_INLINE_SIZE", "32")]].concat();
    says("sized", &all, "[5, 7, 2, 3] (5, [31])");
}

/// Offers do not exceed the device's limits. 0 bytes stand for the device's limit.
#[test]
fn a_device_bounds_what_is_set() {
    let all =
        [("FI_VERBS_TX_SIZE", "100000"), ("FI_VERBS_RX_SIZE", "100000"), ("FI_VERBS_TX_IOV_LIMIT", "8")];
    let all = [&all[..], &[("FI_VERBS_INLINE_SIZE", "0")]].concat();
    says("sized", &all, "[600, 600, 4, 4] (600, [31, 33, 255, 257, 399])");
}

/// A setting is the default for hints of 0. Hints may request more, up to the device's limit.
#[test]
fn hints_may_ask_for_more_than_is_set() {
    assert_eq!(answered(500, 3).unwrap(), [500, 500, 3, 3]);
    assert_eq!(answered(QUEUE, 4).unwrap(), [QUEUE, QUEUE, 4, 4]);
    for (size, pieces, field) in [(QUEUE + 1, 0, "tx_attr.size"), (0, 5, "tx_attr.iov_limit")] {
        let error = answered(size, pieces).unwrap_err();
        assert!(error.refusals().iter().any(|refusal| refusal.field == field), "{error}");
    }
}

#[test]
fn values_that_cannot_be_used_are_refused_by_name() {
    for (name, value, why) in [
        ("FI_VERBS_TX_SIZE", "0", "it must lie between 1 and 1048576"),
        ("FI_VERBS_RX_SIZE", "2M", "it must lie between 1 and 1048576"),
        ("FI_VERBS_TX_IOV_LIMIT", "9", "it must lie between 1 and 8"),
        ("FI_VERBS_RX_IOV_LIMIT", "0", "it must lie between 1 and 8"),
        ("FI_VERBS_INLINE_SIZE", "1025", "it must lie between 0 and 1024"),
    ] {
        says("refused", &[(name, value)], &format!("FI_ENODATA(61) {name}={value} {why}: true"));
    }
}
