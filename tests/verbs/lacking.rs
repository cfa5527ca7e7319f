//! Devices that lack something that endpoints of one type need.

use std::sync::Once;

use ofi_testkit::prelude::*;
use ofi_testkit::rc::Plan;

use super::{device, hints};

/// A device without shared receive queues.
struct Unshared;

impl Kit for Unshared {
    fn hints(&self) -> Hints {
        static ADDED: Once = Once::new();
        ADDED.call_once(|| drop(device("unshared0", Plan { receives: 0, ..Plan::default() })));
        hints("unshared0")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

/// An endpoint of reliable datagrams could not be enabled there.
#[test]
fn a_device_without_shared_receive_queues_offers_no_reliable_datagrams_and_says_so() {
    let kit: &dyn Kit = &Unshared;
    let error = kit.getinfo(&Unshared.hints()).expect_err("refused");
    let refusal = error.refusals().iter().find(|refusal| refusal.field == "ep_attr.type").expect("a refusal");
    assert!(refusal.offered.contains("unshared0 has no shared receive queues"), "{refusal:?}");
    let any = Unshared.hints().ep_type(EpType::Unspec).mode(Mode::RX_CQ_DATA);
    let infos = kit.getinfo(&any).expect("others");
    assert!(infos.iter().all(|info| info.ep_attr.ep_type != EpType::Rdm), "{infos:?}");
    assert!(infos.iter().any(|info| info.ep_attr.ep_type == EpType::Msg), "{infos:?}");
}
