//! Endpoints of a device that communicate over shared memory.

use ofi_testkit::prelude::*;

/// Checks that endpoints of `near` use shared memory between them, also with keys of their own, and that endpoints of
/// `far` use the device.
pub fn check(near: &dyn Kit, far: &dyn Kit) {
    for (kit, lanes) in [(near, (1, 0)), (far, (0, 0))] {
        let pair = kit.pair();
        pair.warm_up();
        let (memory, from) = (Memory::new(1 << 20), Memory::patterned(1 << 20, 3));
        let region = pair.b.register(&memory, MrAccess::REMOTE_READ | MrAccess::REMOTE_WRITE).unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).write(&[remote_at(&region, 0, 1 << 20)]));
        pair.done(&pair.a);
        memory.check(1 << 20, 3);
        let back = Memory::new(4096);
        pair.post(|| pair.a.out(pair.to_b, &back).context(1).read(&[remote_at(&region, 0, 4096)]));
        pair.done(&pair.a);
        back.check(4096, 3);
        assert_eq!((pair.a.statistic("peers_local"), pair.a.statistic("peers_remote")), lanes);
    }
}
