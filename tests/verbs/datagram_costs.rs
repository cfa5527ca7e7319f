//! Checks the costs of datagrams on the simulated device against the table in `docs/hot-path.md`, "Over verbs,
//! unreliable datagrams".

use ofi_core::copy;
use ofi_testkit::prelude::*;
use ofi_tests::costs::{Counted, check, check_copies};

use super::{DEVICE, Quick, qp};

/// Number of operations of each row.
const COUNT: usize = 100;

/// The costs of this number of datagrams: requests and reported completions of both ends, and how often the library
/// copies each payload.
fn cost(pair: &Pair, len: usize, injected: bool) -> (Counted, usize) {
    let (from, into) = (Memory::patterned(len, 5), Memory::new(len));
    let take = |side: &TestEndpoint| DEVICE.take_datagram_log(qp(side));
    pair.quiet(Duration::from_millis(5));
    let _before = [&pair.a, &pair.b].map(take);
    let before = copy::counted();
    for _ in 0..COUNT {
        pair.b.receive(&into).context(1).post().unwrap();
        pair.post(|| {
            let out = pair.a.out(pair.to_b, &from).context(2);
            if injected { out.inject() } else { out }.send()
        });
        pair.drive("a datagram", || pair.b.next_of(1)).done();
        if !injected {
            pair.drive("its end", || pair.a.next_of(2)).done();
        }
    }
    pair.quiet(Duration::from_millis(5));
    into.check(len, 5);
    let [here, there] = [&pair.a, &pair.b].map(take);
    let copied = (copy::counted() - before) as usize;
    ([here.0.len(), here.1, there.0.len(), there.1], copied / (COUNT * len))
}

#[test]
fn datagrams_cost_no_more_than_the_table_says() {
    let kit: &dyn Kit = &Quick;
    let pair = kit.pair();
    pair.warm_up();
    let measured = [
        ("send 64 B, injected", cost(&pair, 64, true)),
        ("send 64 B", cost(&pair, 64, false)),
        ("send 1 KiB", cost(&pair, 1024, false)),
    ];
    let title = "Over verbs, unreliable datagrams";
    check(title, &measured.map(|(name, (counted, _))| (name, counted)));
    check_copies(title, &measured.map(|(name, (_, copies))| (name, copies)));
}

/// A poll without traffic posts no request.
#[test]
fn a_poll_that_finds_no_datagram_posts_nothing() {
    let kit: &dyn Kit = &Quick;
    let pair = kit.pair();
    pair.warm_up();
    let take = |side: &TestEndpoint| DEVICE.take_datagram_log(qp(side));
    pair.quiet(Duration::from_millis(5));
    let _before = [&pair.a, &pair.b].map(take);
    (0..COUNT).for_each(|_| pair.poll());
    assert_eq!([&pair.a, &pair.b].map(take), [(Vec::new(), 0), (Vec::new(), 0)]);
}
