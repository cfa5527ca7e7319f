//! The RNR back-off of an endpoint (`Peer::rest`), measured by the device's own clock.

use std::sync::{Arc, LazyLock};

use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::EfaPair;
use super::raw_peer::Raw;

/// A device whose clock advances only with polls: by 200 us with each idle one.
static CLOCKED: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    let device = SimulatedDevice::driven("clocked0", Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    device
});
/// Maximum time by which a pause may be exceeded: a poll and the packet's round trip.
const LATE: Duration = Duration::from_micros(300);

/// Checks that a packet is resent after each of these pauses, and finds no receive.
fn check(side: &TestEndpoint, raw: &Raw, pauses: &[Duration]) {
    let mut before: Option<Instant> = None;
    for (nth, pause) in pauses.iter().enumerate() {
        let count = side.statistic("efa_not_ready");
        wait::drive(&[side], "another attempt", || (side.statistic("efa_not_ready") > count).then_some(()));
        let now = raw.qp.now();
        if let Some(before) = before.replace(now) {
            let took = now - before;
            assert!((*pause..*pause + LATE).contains(&took), "attempt {nth}: {took:?} after the last one");
        }
    }
}

#[test]
fn a_packet_that_finds_no_receive_is_sent_again_after_pauses_that_double() {
    LazyLock::force(&CLOCKED);
    let kit: &dyn Kit = &EfaPair;
    let side = kit.opening().hints(|hints| hints.domain("clocked0-rdm")).open();
    let mut raw = Raw::deaf(&CLOCKED, &side, 1);
    let to = side.insert_address(&Address::new(side.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(8, 1);
    let micros = |all: &[u64]| all.iter().map(|&us| Duration::from_micros(us)).collect::<Vec<_>>();
    side.out(to, &word).context(2).send().unwrap();
    let doubled = [0, 100, 200, 400, 800, 1600, 3200, 6400, 12_800, 20_000, 20_000];
    check(&side, &raw, &micros(&doubled));
    // An arrival resets the next pause.
    raw.listen(1);
    wait::drive(&[&side], "the end of a message", || side.next_of(2)).done();
    side.out(to, &word).context(2).send().unwrap();
    check(&side, &raw, &micros(&[0, 100, 200]));
}
