//! Messages that their receivers read, and whose first bytes are sent ahead (`FI_EFA_RUNT_SIZE`).

use std::sync::Arc;

use ofi_testkit::prelude::*;
use ofi_testkit::srd::{Handle, Plan, SimulatedDevice};

struct Efa;

impl Kit for Efa {
    fn hints(&self) -> Hints {
        Hints::new().provider("efa").ep_type(EpType::Rdm).domain("runt0-rdm")
    }

    fn shared_memory(&self) -> bool {
        false
    }
}

#[test]
fn first_bytes_are_sent_ahead_and_the_rest_is_read_or_sent() {
    const LEN: usize = 2 << 20;
    // SAFETY: the one test of this binary, before it starts anything.
    unsafe { std::env::set_var("FI_EFA_RUNT_SIZE", "100000") };
    let device = SimulatedDevice::new("runt0", Plan::default());
    ofi_efa::srd::add(Arc::new(Handle(Arc::clone(&device))));
    // Where the library has it already, this is refused.
    let _ = ofi::register_provider(Arc::new(ofi_efa::EfaProvider));
    let kit: &dyn Kit = &Efa;
    let pair = kit.pair();
    pair.warm_up();
    let runts = || ["efa_lent", "efa_runts"].map(|name| pair.a.statistic(name));
    for (round, refuses) in [false, true, false].into_iter().enumerate() {
        device.refuse_local(refuses);
        let (from, into) = (Memory::patterned(LEN, 3 + round as u8), Memory::new(LEN));
        pair.post(|| pair.b.receive(&into).context(1).post());
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
        assert_eq!(pair.done(&pair.b).len, LEN);
        pair.done(&pair.a);
        into.check(LEN, 3 + round as u8);
        assert_eq!(runts(), [round as u64 + 1; 2], "each had its share sent ahead");
    }
    assert_eq!((pair.b.statistic("efa_fetched"), pair.b.statistic("efa_nacks")), (2, 1));
    // Two at a time: the second is read from its first byte on, as the peer has not ended the first.
    let (from, into) = (Memory::patterned(LEN, 8), [Memory::new(LEN), Memory::new(LEN)]);
    for _ in 0..2 {
        pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    }
    assert_eq!(runts(), [5, 4]);
    for into in &into {
        pair.post(|| pair.b.receive(into).context(1).post());
    }
    for into in &into {
        pair.done(&pair.b);
        pair.done(&pair.a);
        into.check(LEN, 8);
    }
    // A shorter receive takes what it has room for.
    let short = Memory::new(5000);
    pair.post(|| pair.b.receive(&short).context(1).post());
    pair.post(|| pair.a.out(pair.to_b, &from).context(2).send());
    assert_eq!(pair.failed(&pair.b).err, Errno::ETRUNC);
    pair.done(&pair.a);
    short.check(5000, 8);
}
