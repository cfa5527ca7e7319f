//! Which keys are offered to a C program that accepts any (`ofi::getinfo_asking_least`).

use ofi::raw::{Caps, GetinfoFlags, Hints, MrMode, Request, Version};
use ofi_testkit::Kit;

use super::VerbsPair;

/// `mr_mode` of the first offer for an `FI_EP_RDM` endpoint with these capabilities.
fn offered(caps: Caps) -> MrMode {
    let accepted =
        MrMode::VIRT_ADDR | MrMode::PROV_KEY | MrMode::ALLOCATED | MrMode::LOCAL | MrMode::ENDPOINT;
    let hints: Hints = VerbsPair.hints().caps(caps).mr_mode(accepted);
    let request = Request {
        version: Version::new(2, 0),
        node: None,
        service: None,
        flags: GetinfoFlags::empty(),
        hints: Some(&hints),
    };
    ofi::getinfo_asking_least(&request).unwrap().remove(0).domain_attr.mr_mode
}

#[test]
fn keys_are_the_device_s_unless_accesses_are_reported() {
    let needed = MrMode::VIRT_ADDR | MrMode::PROV_KEY;
    assert_eq!(offered(Caps::MSG | Caps::RMA) & needed, needed);
    // The owner executes them, whoever chooses the keys. Programs that choose their own must find them valid.
    assert_eq!(offered(Caps::MSG | Caps::RMA | Caps::RMA_EVENT), MrMode::empty());
}
