//! Two endpoints of a process on one emulated device: `cargo xtask efa --test`.

use ofi_testkit::prelude::*;

const MODES: MrMode = MrMode::VIRT_ADDR.union(MrMode::PROV_KEY).union(MrMode::ALLOCATED).union(MrMode::LOCAL);

fn opening() -> Opening {
    // Refused if the provider is already registered.
    let _ = ofi::register_provider(std::sync::Arc::new(ofi_efa::EfaProvider));
    let hints = Hints::new().provider("efa").ep_type(EpType::Rdm).caps(Caps::MSG);
    Opening::new(hints.mode(Mode::CONTEXT2).mr_mode(MODES)).without_shared_memory()
}

/// The device reports a sender by its address handle, which belongs to all endpoints of the process. The receiver has
/// none of its own for that device.
#[test]
#[ignore = "needs an EFA device: cargo xtask efa --test"]
fn a_message_from_a_device_that_another_endpoint_knows_is_taken() {
    let knows = opening().open();
    let hears = opening().beside(&knows).open();
    assert_eq!(hears.info.fabric_attr.name, "efa-direct");
    let to = knows.insert(&hears);
    let (from, into) = (Memory::patterned(100, 3), Memory::new(100));
    let sides = [&knows, &hears];
    wait::drive(&sides, "room", || hears.receive(&into).context(1).post().ok());
    wait::drive(&sides, "room", || knows.out(to, &from).context(2).send().ok());
    assert_eq!(wait::drive(&sides, "the message", || hears.next_of(1)).done().len, 100);
    into.check(100, 3);
    assert_eq!(hears.statistic("efa_strangers"), 0, "{}", hears.report());
}
