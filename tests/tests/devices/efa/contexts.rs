//! Contexts of a scalable endpoint that close while the device still has their requests.

use std::sync::{Arc, LazyLock};

use ofi_efa::srd::{Access, Device};
use ofi_efa::wire::Features;
use ofi_testkit::fork::Forked;
use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

use super::EfaPair;
use super::native::{DEVICE, alone, on_own_device};
use super::raw_peer::{C, Raw};

/// Length of an access that is too long for a slot, in memory that the application has not registered.
const LEN: usize = 100_000;

/// A scalable endpoint with one transmit context, and one receive context for peers' messages.
fn scalable(on: impl Fn(Hints) -> Hints) -> (TestEndpoint, TestEndpoint, TestEndpoint) {
    let kit: &dyn Kit = &EfaPair;
    let hints = |hints| on(hints).tx_ctx_cnt(1).rx_ctx_cnt(1);
    let host = kit.opening().hints(hints).open_disabled().expect("an endpoint");
    let hub = host.domain.open_scalable(&host.info).expect("a scalable endpoint");
    hub.bind_av(&host.av).unwrap();
    let hub = host.context(hub);
    let tx = transmitting(&hub);
    let rx = context(&hub, hub.ep.receive_context(0, None).unwrap().0, BindFlags::RECV);
    hub.ep.enable().unwrap();
    (hub, tx, rx)
}

/// The registrations with the device, except those that the domain only keeps for later operations.
fn in_use(device: &SimulatedDevice, hub: &TestEndpoint) -> usize {
    device.registrations() - hub.statistic("efa_mr_cache_count") as usize
}

fn context(hub: &TestEndpoint, ep: Arc<dyn Endpoint>, direction: BindFlags) -> TestEndpoint {
    let queue = hub.domain.open_cq(&CqAttr::default()).unwrap();
    ep.bind_cq(&queue, direction).unwrap();
    ep.enable().unwrap();
    hub.context_with(ep, queue)
}

fn transmitting(hub: &TestEndpoint) -> TestEndpoint {
    context(hub, hub.ep.transmit_context(0, None).unwrap().0, BindFlags::TRANSMIT)
}

#[test]
fn memory_stays_registered_until_its_request_ends_though_its_context_has_closed() {
    let _alone = alone();
    let (hub, tx, rx) = scalable(on_own_device);
    let kit: &dyn Kit = &EfaPair;
    let peer = kit.opening().hints(on_own_device).open();
    let to_peer = hub.insert(&peer);
    peer.receive(()).context(1).post().unwrap();
    wait::drive(&[&tx, &rx, &peer], "room", || tx.out(to_peer, ()).inject().send().ok());
    wait::drive(&[&tx, &rx, &peer], "a greeting", || peer.next_of(1)).done();
    let (there, into) = (Memory::patterned(LEN, 5), Memory::new(LEN));
    let region = peer.register(&there, MrAccess::REMOTE_READ).unwrap();
    // Once the peer's device is known to support reads, a read is one request.
    wait::drive(&[&tx, &rx, &peer], "a read by the device", || {
        tx.out(to_peer, &into).context(2).read(&[remote(&region)]).ok()?;
        wait::drive(&[&tx, &rx, &peer], "a read", || tx.next_of(2)).done();
        (hub.statistic("efa_native_reads") > 0).then_some(())
    });
    // Its middle shares no page with memory that has a registration, which would be replaced.
    let into = Memory::new(3 * LEN);
    let (before, quiet, into) = (DEVICE.registrations(), in_use(&DEVICE, &hub), into.slice(LEN..2 * LEN));
    DEVICE.hold(true);
    tx.out(to_peer, into).context(2).read(&[remote(&region)]).unwrap();
    assert_eq!(DEVICE.registrations(), before + 1);
    std::thread::scope(|scope| {
        let closed = scope.spawn(|| drop(tx));
        // The context waits up to a second for its posted operations.
        std::thread::sleep(Duration::from_millis(1500));
        let (registered, flying) = (DEVICE.registrations(), DEVICE.flying());
        DEVICE.hold(false);
        closed.join().unwrap();
        assert!(flying > 0);
        assert_eq!(registered, before + 1, "the device has the request");
    });
    assert_eq!((in_use(&DEVICE, &hub), hub.statistic("efa_open_now")), (quiet, 0));
}

/// A device whose writes with data consume receives.
pub static SOLICITED: LazyLock<Arc<SimulatedDevice>> = LazyLock::new(|| {
    let device = SimulatedDevice::new("simulated2", Plan { unsolicited: false, ..Plan::default() });
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    device
});

/// Writes pieces of memory (begin, end) to a peer that has no receive for the data, and closes the context. Checks that
/// no state is left.
fn close_while_a_write_waits(cut: &[(usize, usize)]) {
    let device = &*SOLICITED;
    let (hub, tx, rx) = scalable(|hints| hints.domain("simulated2-rdm"));
    let raw = Raw::to(device, &hub, &[C, &[Features::RDMA_WRITE]].concat(), 0);
    wait::drive(&[&tx, &rx], "its features", || (hub.statistic("efa_received") > 0).then_some(()));
    let to_raw = hub.insert_address(&Address::new(hub.name().format(), &raw.address.to_bytes()));
    let (there, from) = (Memory::new(LEN), Memory::patterned(LEN, 5));
    // SAFETY: the memory stays longer than the registration.
    let region = unsafe { Handle(Arc::clone(device)).register(there.as_ptr(), LEN, Access::RemoteWrite) };
    let key = region.as_ref().unwrap().rkey().into();
    let len = cut.iter().map(|(start, end)| end - start).sum();
    let there = RemotePiece { addr: there.as_ptr().expose_provenance() as u64, len, key };
    let before = in_use(device, &hub);
    // A handshake that finds no receive at the peer keeps its slot.
    let packets = hub.statistic("efa_packets_now");
    let pieces: Vec<_> = cut.iter().map(|&(start, end)| from.slice(start..end)).collect();
    wait::drive(&[&tx, &rx], "room", || {
        tx.out(to_raw, pieces.clone()).context(2).data(7).write(&[there]).ok()
    });
    assert_eq!(hub.statistic("efa_open_now"), 2, "an operation, and what its device is to do");
    drop(tx);
    assert_eq!((in_use(device, &hub), hub.statistic("efa_open_now")), (before, 0));
    assert_eq!(hub.statistic("efa_packets_now"), packets, "its slot");
}

#[test]
fn what_waits_for_its_peer_is_dropped_with_its_context() {
    let _alone = alone();
    close_while_a_write_waits(&[(0, LEN)]);
    // Through a slot, as a transfer.
    close_while_a_write_waits(&[(0, 1000), (2000, 3000)]);
}

#[test]
fn a_fence_does_not_wait_for_what_has_gone_with_its_context() {
    let _alone = alone();
    let (hub, tx, rx) = scalable(on_own_device);
    // The peer receives messages, and never confirms them.
    let raw = Raw::to(&DEVICE, &hub, C, 8);
    wait::drive(&[&tx, &rx], "its features", || (hub.statistic("efa_received") > 0).then_some(()));
    let to_raw = hub.insert_address(&Address::new(hub.name().format(), &raw.address.to_bytes()));
    let word = Memory::patterned(64, 5);
    let delivered = OpFlags::COMPLETION | OpFlags::DELIVERY_COMPLETE;
    wait::drive(&[&tx, &rx], "room", || tx.out(to_raw, &word).context(2).msg(delivered).send().ok());
    let fenced = OpFlags::COMPLETION | OpFlags::FENCE;
    let refused = tx.out(to_raw, &word).context(3).msg(fenced).send();
    assert!(refused.is_err_and(|error| error.is_again()), "the first has not ended");
    assert_eq!((hub.statistic("efa_open_now"), hub.statistic("efa_numbers_now")), (1, 1));
    drop(tx);
    assert_eq!((hub.statistic("efa_open_now"), hub.statistic("efa_numbers_now")), (0, 0));
    let tx = transmitting(&hub);
    wait::drive(&[&tx, &rx], "room", || tx.out(to_raw, &word).context(4).msg(fenced).send().ok());
    wait::drive(&[&tx, &rx], "the fenced send", || tx.next_of(4)).done();
}

/// A child has its parent's device descriptor, so the kernel would let it deregister its parent's memory.
#[test]
fn a_forked_child_that_drops_a_domain_deregisters_nothing() {
    let _alone = alone();
    let kit: &dyn Kit = &EfaPair;
    let before = DEVICE.registrations();
    let host = kit.opening().hints(on_own_device).open_disabled().expect("an endpoint");
    let memory = Memory::new(LEN);
    let region = host.register(&memory, MrAccess::REMOTE_READ).unwrap();
    let domain = Arc::clone(&host.domain);
    drop(host); // an endpoint keeps its domain in a child
    let registered = DEVICE.registrations();
    assert!(registered > before);
    let mut both = Some((domain, region));
    let child = Forked::start(|| {
        drop(both.take());
        i32::from(DEVICE.registrations() != registered)
    });
    child.finish(|| {});
    drop(both);
    assert_eq!(DEVICE.registrations(), before, "its parent does");
}
