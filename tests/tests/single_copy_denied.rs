//! The conformance suite in a process that is set to copy between memories, but is not permitted to:
//! everything goes through the bulk ring, and nothing else differs.

use ofi::raw::{EpType, Hints};
use ofi_testkit::Kit;
use ofi_testkit::prelude::*;
use ofi_tests::denied::{deny_process_vm, may_copy, set_early};
use ofi_tests::{Naming, open};

extern "C" fn first() {
    set_early(c"FI_SHM_SINGLE_COPY", c"always");
    set_early(c"FI_SHM_SINGLE_COPY_SIZE", c"1");
    deny_process_vm();
}

/// Runs before `main`, so that every thread of every test is denied.
#[used]
#[unsafe(link_section = ".init_array")]
static FIRST: extern "C" fn() = first;

/// Shared memory, reliable datagram endpoints.
struct Denied;

impl Kit for Denied {
    fn hints(&self) -> Hints {
        Hints::new().provider("shm").ep_type(EpType::Rdm)
    }
}

ofi_testkit::conformance!(shm_denied: Denied);

#[test]
fn what_may_not_be_copied_comes_through_the_ring() {
    assert!(!may_copy(), "the filter does not work");
    let pair = Pair::of(open(Naming::Names), open(Naming::Names));
    pair.warm_up();
    for (round, len) in [(0, 9_000), (1, 1 << 20), (2, 3 << 20)] {
        let (from, into) = (Memory::patterned(len, round), Memory::new(len));
        pair.b.receive(&into).context(2).post().unwrap();
        pair.post(|| pair.a.out(pair.to_b, &from).context(1).send());
        pair.drive("a message", || pair.b.next_of(2)).done();
        pair.drive("the send", || pair.a.next_of(1)).done();
        into.check(len, round);
    }
    assert_eq!(pair.b.statistic("shm_single_messages"), 0);
    assert_eq!(pair.a.statistic("shm_single_written_bytes"), 0);
    assert!(pair.a.statistic("shm_bulk_bytes") >= 4 << 20);
    // The copy was attempted once, not for each message.
    assert_eq!(pair.a.statistic("shm_single_denied"), 1, "{}", pair.a.report());
}
